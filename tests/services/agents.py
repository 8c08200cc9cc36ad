"""Agents with every feature, round after round until their input is closed: what dashboards ask about happens here.

``CANARY`` is in every argument, result, message and person's name, and content is opted in to: where the word is found
behind the Collector, something was let through.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable

from opentelemetry import trace

from sagaspan import (
    Budget,
    CompensationFailed,
    Guard,
    KeyConflict,
    LoopDetected,
    PolicyDenied,
    Refused,
    SagaspanError,
    configure_metrics,
    configure_tracing,
)

CANARY = "canary-5e0f7d"
CARD = "4111111111111111"
SERVICE = "agents-of-the-tests"


class Broken(Exception):
    """What a service breaks with."""


def everything(guard: Guard, number: int) -> None:
    """One round: each story, each in runs of its own."""
    stories: tuple[Callable[[Guard, int], None], ...] = (_trip, _doubt, _not_undone, _asks, _models, _refused, _foreign)
    for story in stories:
        with contextlib.suppress(Broken, SagaspanError, TimeoutError):
            story(guard, number)


def _trip(guard: Guard, number: int) -> None:
    """Paid once, asked again, looked at in circles, then undone."""
    tries = iter([Broken(CANARY), None])

    @guard.tool("pay", key="order", compensate=lambda order: None, cost="0.5 USD")
    def pay(order: str, amount: int = 1) -> str:
        return CANARY

    @guard.tool("look", effect="read", retry={"attempts": 2, "initial_delay": 0.01})
    def look(what: str) -> str:
        if (error := next(tries, None)) is not None:
            raise error
        return CANARY

    with guard.run("trip", agent="booker", user=CANARY, input={"task": CANARY}):
        pay(f"{CANARY}-{number}")
        pay(f"{CANARY}-{number}")
        with contextlib.suppress(KeyConflict):
            pay(f"{CANARY}-{number}", 2)
        with contextlib.suppress(LoopDetected):
            for _ in range(6):
                look(CANARY)
        raise Broken(CANARY)


def _doubt(guard: Guard, number: int) -> None:
    """A write of which nobody knows; of the last round it is left to somebody."""

    @guard.tool("lose", effect="write")
    def lose(secret: str) -> None:
        raise TimeoutError(secret)

    with contextlib.suppress(TimeoutError), guard.run("doubtful", id=f"doubtful-{number}"):
        lose(CANARY)
    if number:
        for doubt in guard.calls.list(status="unknown")[1:]:
            guard.calls.resolve(doubt.id, "did-not-happen", note=CANARY)


def _not_undone(guard: Guard, number: int) -> None:
    def refund(result: str) -> None:
        raise Broken(result)

    book = guard.tool("book", compensate=refund)(lambda: CANARY)
    with contextlib.suppress(CompensationFailed), guard.run("undone") as run:
        book()
        run.abort(CANARY)


def _asks(guard: Guard, number: int) -> None:
    """One request is decided, one waits."""
    ask = guard.tool("ask", approve=True)(lambda what: what)
    for answer in (True, False):
        with contextlib.suppress(Refused, SagaspanError), guard.run("asks", id=f"asks-{number}-{answer}"):
            ask(CANARY)
        if answer:
            for request in guard.approvals.list():
                guard.approvals.deny(request.id, by=CANARY, reason=CANARY)


def _models(guard: Guard, number: int) -> None:
    with contextlib.suppress(Broken), guard.run("thinks", agent="booker"):
        with guard.llm_call("small", provider="house", input_tokens=2000, max_output_tokens=4000) as call:
            call.messages(input=[{"role": "user", "content": CANARY}])
            call.record_usage(input_tokens=2000, output_tokens=4000)
        with guard.llm_call("small", provider="house", input_tokens=2, max_output_tokens=4):
            raise Broken(CANARY)
    with guard.run("overspends", budget=Budget("10 tokens", soft=(50,))):
        with guard.llm_call("small", input_tokens=2, max_output_tokens=4) as call:
            call.record_usage(input_tokens=2, output_tokens=4)
        with guard.llm_call("small", input_tokens=100, max_output_tokens=1):
            """It does not fit."""


def _refused(guard: Guard, number: int) -> None:
    once = guard.tool("once", effect="read", max_calls=1)(lambda what: what)
    with guard.run("refused"):
        once(CANARY)
        with contextlib.suppress(PolicyDenied):
            once(f"{CANARY} again")


def _foreign(guard: Guard, number: int) -> None:
    """What other instrumentations record, with an SDK's defaults: content, secrets, exceptions' own words."""
    attributes = {
        "gen_ai.input.messages": CANARY, "input.value": CANARY, "traceloop.entity.output": CANARY,
        "llm.input_messages.0.message.content": CANARY, "http.request.header.authorization": f"Basic {CANARY}",
        "note": f"paid with {CARD}", "harmless": "kept",
    }  # fmt: skip
    with trace.get_tracer("another").start_as_current_span("foreign", attributes=attributes):
        raise Broken(CANARY)


def main() -> None:
    """Rounds until the input is closed, at least one."""
    configure_tracing(SERVICE)
    configure_metrics(SERVICE)
    closed = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), closed.set()), daemon=True).start()
    with Guard(approver="inbox", prices={"small": {"input": 1, "output": 2}}) as guard:
        for number in range(1_000_000):
            everything(guard, number)
            print(number, flush=True)
            if closed.wait(0.3):
                break


if __name__ == "__main__":
    main()
