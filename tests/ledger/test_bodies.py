"""Bodies that do not end when they should: their caller goes on, and how they end is recorded when they do."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from sagaspan import Guard, ToolTimeout
from sagaspan import _backends as backends
from sagaspan import _owner as owner
from tests.conftest import Caller


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "CANCEL_SECONDS", 0.05)


def until(true: Callable[[], Any]) -> None:
    """Wait for a condition; other threads bring it about."""
    deadline = time.monotonic() + 300
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


async def auntil(true: Callable[[], Any]) -> None:
    """As ``until``, while the loop goes on."""
    await asyncio.to_thread(until, true)


class Stubborn:
    """An asynchronous body that swallows its cancellation and ends when it is told to."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.go_on = threading.Event()
        self.error: Exception | None = None

    async def __call__(self) -> str:
        self.started.set()
        deadline = time.monotonic() + 300
        while not self.go_on.is_set() and time.monotonic() < deadline:
            try:
                await asyncio.sleep(0.005)
            except asyncio.CancelledError:
                continue
        if self.error is not None:
            raise self.error
        return "at last"


@pytest.mark.parametrize("fails", [False, True])
async def test_a_body_that_swallows_its_cancellation_is_given_up(guard: Guard, fails: bool) -> None:
    """Its caller waits a moment for it, then the call is unknown; how it ends later is recorded."""
    stubborn = Stubborn()
    stubborn.error = KeyError("late") if fails else None

    @guard.tool("pay", effect="write", timeout=0.02)
    async def pay() -> str:
        return await stubborn()

    with pytest.raises(ToolTimeout):
        async with guard.run(id="r"):
            await pay()
    (call,) = guard.runs.get("r").calls
    assert call.state == "unknown"
    assert _last(guard, call.id) == "its body still runs"
    stubborn.go_on.set()
    expected = ("unknown", None) if fails else ("done", "at last")
    await auntil(lambda: _events(guard, call.id)[-1] == ("body_ended" if fails else "succeed"))
    (call,) = guard.runs.get("r").calls
    assert (call.state, call.result) == expected
    assert not [token for token in owner._alive if call.id in token]


@pytest.mark.parametrize("fails", [False, True])
def test_so_is_one_of_a_synchronous_caller(guard: Guard, fails: bool) -> None:
    """An asynchronous layer or compensation runs on a loop of its own; nobody waits for that without limit."""
    stubborn, watched = Stubborn(), Watched()
    stubborn.error = KeyError("late") if fails else None
    with pytest.raises(backends.BodyTimeout):
        backends.private_loop().run(stubborn, 0.02, watched)
    assert watched.given_up_at is not None
    stubborn.go_on.set()
    until(lambda: watched.outcome is not None)
    assert watched.outcome == (KeyError if fails else "at last")


class Watched:
    """Remembers what it is told of a body."""

    given_up_at: str | None = None
    outcome: Any = None

    def given_up(self) -> None:
        """Nobody waits any more."""
        self.given_up_at = threading.current_thread().name

    def ended(self, body: Any) -> None:
        """It ended."""
        self.outcome = type(body.exception()) if body.exception() else body.result()
        self.ended_at = threading.current_thread().name


def test_a_body_that_blocks_the_loop_of_its_own_stops_nobody_else() -> None:
    """The next asynchronous body of a synchronous caller gets a loop that runs."""
    go_on, watched = threading.Event(), Watched()

    async def blocks() -> str:
        go_on.wait(60)
        return "blocked"

    async def quick() -> str:
        return "quick"

    before = backends.private_loop()
    with pytest.raises(backends.BodyTimeout):
        before.run(blocks, 0.02, watched)
    assert backends.private_loop().run(quick, 10, watched) == "quick"
    assert backends.private_loop() is not before
    go_on.set()
    until(lambda: watched.outcome == "blocked")
    assert watched.ended_at != "sagaspan-loop"


async def test_a_cancelled_caller_does_not_wait_for_a_stubborn_body(guard: Guard) -> None:
    """It is given a moment to end; then the cancellation goes on, and the call is unknown."""
    stubborn = Stubborn()

    @guard.tool("pay", effect="write", timeout=60)
    async def pay() -> str:
        return await stubborn()

    async def job() -> None:
        async with guard.run(id="r"):
            await pay()

    task = asyncio.ensure_future(job())
    await auntil(stubborn.started.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [call.state for call in guard.runs.get("r").calls] == ["unknown"]
    stubborn.go_on.set()
    await auntil(lambda: guard.runs.get("r").calls[0].state == "done")


async def test_what_a_cancelled_body_still_returns_counts(guard: Guard) -> None:
    """One that ends at once when it is cancelled, and says how, is believed."""

    @guard.tool("pay", effect="write", timeout=0.02)
    async def pay() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "it went through"
        return "never"

    async with guard.run(id="r"):
        assert await pay() == "it went through"
    assert guard.runs.get("r").calls[0].state == "done"


async def test_a_body_that_is_cancelled_before_its_first_statement_does_not_run(guard: Guard) -> None:
    """Nothing goes on saying that it does, so that its end is known."""
    ran: list[int] = []

    @guard.tool("pay", effect="write", timeout=60)
    async def pay() -> None:
        ran.append(1)

    async with guard.run(id="r"):
        task = asyncio.ensure_future(pay())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not [token for token in owner._alive if token.startswith("body:")], ran


def test_no_token_is_left_behind(guard: Guard, caller: Caller) -> None:
    """Whatever happens to a body, this process does not go on answering for it."""
    outcomes: list[Any] = [1, ValueError("no")]

    @caller.tool(guard, "act", effect="write", timeout=20)
    def act(n: int) -> Any:
        if isinstance(outcomes[n], Exception):
            raise outcomes[n]
        return outcomes[n]

    async def job() -> None:
        async with caller.run(guard, id="r"):
            assert await caller.call(act, 0) == 1
            with pytest.raises(ValueError, match="no"):
                await caller.call(act, 1)

    caller.play(job)
    assert not [token for token in owner._alive if not token.startswith("run:")]


def _events(guard: Guard, call_id: str) -> list[str]:
    return [row.event for row in guard._store.audit_of("default", "r") if row.call_id == call_id]


def _last(guard: Guard, call_id: str) -> str | None:
    return [row for row in guard._store.audit_of("default", "r") if row.call_id == call_id][-1].detail
