"""What happens in the golden traces: one short story a feature."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sagaspan import (
    Applied,
    ApprovalPending,
    Guard,
    KeyConflict,
    LockConflict,
    LoopDetected,
    PolicyDenied,
    RateLimited,
    Refused,
    Retry,
    ToolTimeout,
    Unsure,
)
from sagaspan.testing import World

PRICES = {"small": {"input": 1, "output": 10}}
Make = Callable[..., Guard]


class Broken(Exception):
    """What a service breaks with."""


def calls(make: Make) -> None:
    """Executed, answered from the record, in conflict, nested, unrecorded arguments, and one outside a run."""
    guard = make()
    inner = guard.tool("inner", effect="read")(lambda: 1)
    pay = guard.tool("pay", key="order", effect="write", cost="0.5 USD")(lambda order, amount=1: inner())
    with guard.run("trip", id="trip", agent="booker", conversation="c1"):
        pay("a")
        pay("a")
        with contextlib.suppress(KeyConflict):
            pay("a", 2)
        with guard.run("leg", id="leg"):
            inner()
    pay("b")


def attempts(make: Make) -> None:
    """A body that is run again after an error, and one that fails for good."""
    guard, tries = make(), iter([Broken(), None])
    retry = Retry(attempts=2, initial_delay=0.001, jitter=False)

    @guard.tool(effect="read", retry=retry)
    def look(fail: bool) -> None:
        if fail or (error := next(tries)) is not None:
            raise Broken if fail else error

    with contextlib.suppress(Broken), guard.run("trip", id="trip"):
        look(False)
        look(True)


def compensation(make: Make) -> None:
    """Undone in reverse order, and one step that cannot be; later on request it can."""
    guard, works = make(), [False]

    def cancel() -> None:
        if not works[0]:
            raise Broken

    book = guard.tool("book", compensate=cancel)(lambda: 1)
    pay = guard.tool("pay", compensate=guard.tool("refund")(lambda: None))(lambda: 1)
    with contextlib.suppress(Exception), guard.run("trip", id="trip"):
        book()
        pay()
        raise Broken
    works[0] = True
    guard.compensate("trip")


def approval(make: Make) -> None:
    """Asked, paused, approved, entered again; another one is denied."""
    guard = make(approver="inbox")
    pay = guard.tool("pay", approve=True, effect="write")(lambda amount: amount)

    def job() -> None:
        with guard.run("trip", id="trip"):
            pay(5)

    with contextlib.suppress(ApprovalPending):
        job()
    (waiting,) = guard.approvals.list()
    guard.approvals.approve(waiting.id, by="alice")
    job()
    with guard.override(approver=lambda _: False), contextlib.suppress(Refused), guard.run("no", id="no"):
        pay(6)


def deferred(make: Make) -> None:
    """Scheduled, and sent when its run completes."""
    guard = make()
    mail = guard.tool("mail", defer=True)(lambda to: None)
    with guard.run("trip", id="trip"):
        mail("x")


def doubt(make: Make) -> None:
    """A write that nobody knows of holds its run; the probe says what happened when somebody recovers."""
    guard, answers = make(), [Unsure("down"), Unsure("down"), Applied("p-1")]

    @guard.tool(effect="write", compensate=lambda: None, probe=lambda: answers.pop(0))
    def pay() -> None:
        raise ToolTimeout("no answer")

    with contextlib.suppress(Exception), guard.run("trip", id="trip", on_interrupt="compensate"):
        pay()
    guard.recover()
    guard.recover()


def models(make: Make) -> None:
    """A call that is metered, one that crosses a soft limit, one that does not fit, one of another kind."""
    guard = make(prices=PRICES)
    with contextlib.suppress(Refused), guard.run("trip", id="trip", agent="booker", budget="100 tokens"):
        with guard.llm_call("small", input_tokens=10, max_output_tokens=20, provider="openai") as call:
            call.messages(finish_reasons=["stop"])
            call.record_usage(
                input_tokens=10, output_tokens=20, reasoning_tokens=5, cache_read_tokens=2, model="small-1"
            )
        with guard.llm_call("small", input_tokens=60, operation="embeddings", max_output_tokens=0) as call:
            call.record_usage(input_tokens=60)
        with guard.llm_call("small", input_tokens=50, max_output_tokens=50):
            """Not entered."""


def refusals(make: Make) -> None:
    """By a layer, a rate, a freeze, a lock that was waited for, and a loop; and what is only observed."""

    async def deny(call: Any, call_next: Any) -> Any:
        if call.arguments.get("what") == "bad":
            raise PolicyDenied("no")
        return await call_next(call)

    guard = make(middleware=[deny])
    look = guard.tool("look", effect="read")(lambda what: "same")
    often = guard.tool("often", rate="1/hour", effect="read")(lambda: 1)
    with guard.run("trip", id="trip"):
        with contextlib.suppress(PolicyDenied):
            look("bad")
        with contextlib.suppress(RateLimited):
            often()
            often()
        for _ in range(5):
            look("again")
        with contextlib.suppress(LoopDetected):
            look("again")
    take = guard.tool("take", lock="'room'", lock_wait=5, effect="write")(lambda: 1)
    with guard.run("holder", id="holder") as holder:
        take()
        holder.pause()
    with contextlib.suppress(LockConflict), guard.run("waiter", id="waiter"):
        take()
    guard.freeze("tool:often", reason="incident")
    with contextlib.suppress(Exception), guard.run("frozen", id="frozen"):
        often()
    watching = make(mode="observe")
    limited = watching.tool("limited", max_calls=1, effect="read")(lambda n: n)
    with watching.run("watched", id="watched"):
        limited(1)
        limited(2)


def _dies(
    spans: InMemorySpanExporter, provider: TracerProvider, after: Callable[[Guard, Callable[[], None]], None]
) -> None:
    """A process dies after a step was done; ``after`` is what another one does. What the dead had open is nowhere."""

    def life(world: World, lives: Callable[[Guard, Callable[[], None]], None]) -> None:
        with Guard(world.store, tracer_provider=provider) as guard:
            cancel = guard.tool("cancel")(lambda: None)
            book = guard.tool("book", compensate=cancel)(lambda: 1)

            def job() -> None:
                with guard.run("trip", id="trip", on_interrupt="compensate"):
                    book()

            lives(guard, job)

    with World(lambda world: life(world, lambda _, job: job())) as world:
        world.process(lambda world: life(world, lambda _, job: job()), die_at="book: after settle")
        spans.clear()
        world.process(lambda world: life(world, after))


def resumed(spans: InMemorySpanExporter, provider: TracerProvider) -> None:
    """The run is entered again: a new trace with a link, the same run."""
    _dies(spans, provider, lambda _, job: job())


def recovered(spans: InMemorySpanExporter, provider: TracerProvider) -> None:
    """Somebody recovers it, which undoes it."""
    _dies(spans, provider, lambda guard, _: guard.recover() and None)


STORIES = (calls, attempts, compensation, approval, deferred, doubt, models, refusals)
CRASHES = (resumed, recovered)
