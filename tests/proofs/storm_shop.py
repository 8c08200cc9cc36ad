"""What the workers of the storm do with an order: with the library, and without it, as people do it.

An order is reserved, charged and shipped, and its customer is told. Some are declined by the provider when they are to
be shipped: those have to be undone.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from typing import Any, Final

from sagaspan import Applied, Guard, NotApplied, OutcomeUnknown, Retry, RunClosed, SagaspanError, Unsure
from sagaspan._run import Run
from tests.proofs.storm_provider import UNDO, Client, Declined

STEPS: Final = ("reserve", "charge", "ship")
TOLD: Final = "notify"
TIMEOUT: Final = 0.4
"""Seconds a step may take; the provider is sometimes later, and that is evidence."""

TRIES: Final = 3
PAUSE: Final = 0.15


def run_id(order: str) -> str:
    """The run of an order."""
    return f"order-{order}"


def on_interrupt(order: str) -> str:
    """What becomes of an order whose worker dies: of every third one, what was done is undone first."""
    return "compensate" if int(order) % 3 == 0 else "hold"


def customer(order: str) -> str:
    """Whose order it is; orders of one customer are worked on one after the other."""
    return f"customer-{int(order) // 4}"


class Shop:
    """The tools, as ``kind`` of provider allows to protect them."""

    def __init__(self, guard: Guard, client: Client, kind: str, *, is_async: bool = False) -> None:
        self.guard, self.client, self.is_async = guard, client, is_async
        shield: dict[str, Any] = {}
        if kind == "dedupes":
            shield = {"downstream_dedupes_for": 3600, "retry": Retry(attempts=2, initial_delay=0.05)}
        self.tools = {
            what: self._tool(what, **shield, **({"probe": self._probe(what)} if kind == "status" else {}), **more)
            for what, more in {
                "reserve": {"compensate": self._undo("reserve"), "lock": customer, "lock_wait": 1.0},
                "charge": {"compensate": self._undo("charge"), "key": lambda order: order, "cost": "1 USD"},
                "ship": {"compensate": self._undo("ship"), "marks_sending": True},
                TOLD: {"defer": True},
            }.items()
        }

    def _tool(self, what: str, **policy: Any) -> Callable[..., Any]:
        policy = {"timeout": TIMEOUT, **policy}
        if policy.get("key"):
            policy["effect"] = "write"

        def body(order: str, idempotency_key: str) -> str:
            self._mark(policy)
            return self.client.do(what, order, idempotency_key)

        async def async_body(order: str, idempotency_key: str) -> str:
            if policy.get("marks_sending"):
                await self.guard.current_call().asending()  # type: ignore[union-attr]
            return await self.client.ado(what, order, idempotency_key)

        return self.guard.tool(what, **policy)(async_body if self.is_async else body)

    def _mark(self, policy: dict[str, Any]) -> None:
        if policy.get("marks_sending"):
            self.guard.current_call().sending()  # type: ignore[union-attr]

    def _undo(self, what: str) -> Callable[[str, str], None]:
        def undo(order: str, idempotency_key: str) -> None:
            self.client.do(f"{UNDO}{what}", order, idempotency_key)

        undo.__name__ = f"{UNDO}{what}"
        return undo

    def _probe(self, what: str) -> Callable[[str], Any]:
        def probe(idempotency_key: str) -> Applied | NotApplied | Unsure:
            found = self.client.find(what, idempotency_key)
            if found["id"] is not None:
                return Applied(found["id"])
            return Unsure("it is on its way") if found["pending"] else NotApplied()

        return probe

    # -- one order ---------------------------------------------------------------------------------------------

    def work(self, order: str) -> bool:
        """Go on with an order; returns whether it is over: shipped, or undone because it was declined."""
        with contextlib.suppress(Exception):  # whatever it was, the ledger knows where the order is now
            try:
                self._run(order, reopen=False)
            except RunClosed as closed:
                if closed.status != "compensated" or self._was_declined(order):
                    raise
                self._run(order, reopen=True)  # its worker died, and recovery undid it: from the beginning
        run = self.guard.runs.get(run_id(order))
        status = None if run is None else run.status
        return status == "completed" or (status == "compensated" and self._was_declined(order))

    def _was_declined(self, order: str) -> bool:
        run = self.guard.runs.get(run_id(order))
        return run is not None and any(call.tool == "ship" and "Declined" in (call.error or "") for call in run.calls)

    def _run(self, order: str, *, reopen: bool) -> None:
        run = self.guard.run("order", id=run_id(order), tenant="shop", on_interrupt=on_interrupt(order), reopen=reopen)
        if self.is_async:
            asyncio.run(self._async_steps(run, order))
        else:
            self._steps(run, order)

    def _steps(self, run: Run, order: str) -> None:
        with run:
            for what in STEPS:
                for attempt in range(TRIES):
                    try:
                        self.tools[what](order)
                        break
                    except Exception as problem:
                        _try_again(run, problem, attempt)
                    time.sleep(PAUSE)
                else:
                    return
            self.tools[TOLD](order)

    async def _async_steps(self, run: Run, order: str) -> None:
        async with run:
            for what in STEPS:
                for attempt in range(TRIES):
                    try:
                        await self.tools[what](order)
                        break
                    except Exception as problem:
                        _try_again(run, problem, attempt)
                    await asyncio.sleep(PAUSE)
                else:
                    return
            await self.tools[TOLD](order)


def _try_again(run: Run, problem: Exception, attempt: int) -> None:
    """After trouble a step is tried again, and in the end the run is put off: nothing is undone for that.

    A refusal leaves the run and so undoes it; what the library says leaves it too, once trying again does not help.
    """
    last = attempt == TRIES - 1
    if isinstance(problem, Declined | SagaspanError) and (last or not isinstance(problem, OutcomeUnknown)):
        raise problem
    if last:
        run.pause()


# -- without the library -------------------------------------------------------------------------------------------


def work_without(client: Client, order: str, done: set[str], note: Callable[[str], None]) -> None:
    """An order as people do it: each step tried three times, noted when it is done; undone where it is refused.

    ``done`` is what was noted before. Raises what the last try raised; the queue brings the order again.
    """
    for what in (*STEPS, TOLD):
        if what in done:
            continue
        try:
            _tried(lambda what=what: client.do(what, order))  # type: ignore[misc]
        except Declined:
            for step in ("charge", "reserve"):
                _tried(lambda step=step: client.do(f"{UNDO}{step}", order))  # type: ignore[misc]
            return
        note(what)


def _tried(request: Callable[[], Any]) -> None:
    for attempt in range(TRIES):
        try:
            request()
            return
        except Declined:
            raise
        except Exception:
            if attempt == TRIES - 1:
                raise
            time.sleep(PAUSE * random.random())
