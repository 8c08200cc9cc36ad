"""Orphans: writes of a run that its resumed incarnation, on another path, never asks for again (design, section 3)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Literal

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sagaspan import CompensationFailed, ConfigurationError, Guard, OutcomeUnknown
from tests.conftest import Caller

Rule = Literal["warn", "compensate"]


class Trip:
    """A trip whose steps are ``book WHAT`` (can be undone), ``pay WHAT`` (cannot), ``mail WHAT`` (deferred)..."""

    def __init__(self, guard: Guard, caller: Caller) -> None:
        self.guard, self.caller = guard, caller
        self.log: list[str] = []
        self.answers = True

        def cancel(what: str) -> None:
            if not self.answers:
                raise ConnectionResetError("no answer")
            self.log.append(f"cancel {what}")

        def does(verb: str) -> Callable[[str], str]:
            def body(what: str) -> str:
                self.log.append(f"{verb} {what}")
                return what

            return body

        self.tools = {
            "book": caller.tool(guard, "book", compensate=cancel)(does("book")),
            "pay": caller.tool(guard, "pay", effect="write")(does("pay")),
            "mail": caller.tool(guard, "mail", defer=True)(does("mail")),
            "look": caller.tool(guard, "look", effect="read")(does("look")),
            "free": caller.tool(guard, "free")(does("free")),
            "ship": caller.tool(guard, "ship", effect="write", pivot=True)(does("ship")),
        }

    async def steps(self, *steps: str) -> None:
        for step in steps:
            verb, _, what = step.partition(" ")
            await self.caller.call(self.tools[verb], what)

    def play(self, *steps: str, pause: bool = False, orphans: Rule | None = None, commit: int = -1) -> Any:
        """One incarnation of the run ``a``; ``commit`` after so many steps."""

        async def job() -> Any:
            async with self.caller.run(self.guard, "trip", id="a", orphans=orphans) as run:
                for number, step in enumerate(steps):
                    if number == commit:
                        run.commit()
                    await self.steps(step)
                run.output = "done"
                if pause:
                    run.pause()
            return run

        return self.caller.play(job)


@pytest.fixture
def trip(guard: Guard, caller: Caller) -> Trip:
    """A trip for each kind of caller."""
    return Trip(guard, caller)


Warnings = Callable[[], list[str]]


def test_they_are_warned_of(
    guard: Guard, trip: Trip, spans: InMemorySpanExporter, warnings_of_sagaspan: Warnings
) -> None:
    """In the log, on the span, on the run and in the ledger; what they did stays."""
    first = trip.play("look x", "book Ritz", "book car", "free y", pause=True)
    assert (first.orphans, guard.runs.get("a").orphans) == ((), ())
    run = trip.play("book Plaza", "book car")
    assert [call.args for call in run.orphans] == [{"what": "Ritz"}]
    assert guard.runs.get("a").orphans == (run.orphans[0].id,)
    assert (run.status, run.orphans[0].state) == ("completed", "done")
    assert trip.log == ["look x", "book Ritz", "book car", "free y", "book Plaza"]
    (warning,) = warnings_of_sagaspan()
    assert f"not asked for again, and kept (orphans='compensate' undoes them): book ({run.orphans[0].id})" in warning
    ended = [span.attributes for span in spans.get_finished_spans() if span.name == "sagaspan trip"]
    assert [attributes.get("sagaspan.run.orphans") for attributes in ended] == [None, 1]
    assert [call.id for call in trip.play("book Plaza").orphans] == [run.orphans[0].id]  # replayed whole


def test_inside_the_block_they_are_those_not_asked_for_so_far(guard: Guard, trip: Trip, caller: Caller) -> None:
    """So the agent can look before it ends."""
    trip.play("book Ritz", "book car", pause=True)

    async def job() -> list[list[str]]:
        seen = []
        async with caller.run(guard, "trip", id="a") as run:
            for step in ("book car", "book Ritz"):
                seen.append([call.args["what"] for call in run.orphans])
                await trip.steps(step)
        return [*seen, [call.args["what"] for call in run.orphans]]

    assert caller.play(job) == [["car", "Ritz"], ["Ritz"], []]


def test_they_are_undone_if_that_is_wanted(guard: Guard, trip: Trip, warnings_of_sagaspan: Warnings) -> None:
    """When the run completes, newest first, before what it deferred is sent; one without an undo stays."""
    trip.play("book Ritz", "pay Ritz", "mail Ritz", "book car", pause=True)
    run = trip.play("book Plaza", "mail Plaza", orphans="compensate")
    assert trip.log[3:] == ["book Plaza", "cancel car", "cancel Ritz", "mail Plaza"]
    info = guard.runs.get("a")
    assert (info.status, info.output, info.completing) == ("completed", "done", False)
    states = {call.id: f"{call.tool} {call.state}" for call in info.calls}
    assert [states[call_id] for call_id in info.orphans] == [
        "book compensated", "mail refused", "pay done", "book compensated",
    ]  # fmt: skip
    assert "done before, not asked for again, and undone: book" in warnings_of_sagaspan()[0]
    assert [call.state for call in run.orphans] == ["compensated", "refused", "done", "compensated"]


def test_what_was_scheduled_and_is_not_asked_for_is_sent_unless_it_shall_be_undone(trip: Trip) -> None:
    """It is on record, and the caller was told that it is scheduled."""
    trip.play("mail Ritz", pause=True)
    run = trip.play("book car")
    assert trip.log == ["book car", "mail Ritz"]
    assert [call.tool for call in run.orphans] == ["mail"]


@pytest.mark.parametrize("orphans", ["warn", "compensate"])
def test_the_same_path_has_none(trip: Trip, orphans: Rule, warnings_of_sagaspan: Warnings) -> None:
    """In whatever order; nor have reads, undeclared tools, committed steps, or a run that fails."""
    trip.play("book Ritz", "book car", "look x", "free y", pause=True)
    trip.play("book car", "book Ritz", pause=True, orphans=orphans)
    run = trip.play("book new", "book car", "book Ritz", orphans=orphans)
    assert (run.orphans, run.status) == ((), "completed")
    assert trip.log == ["book Ritz", "book car", "look x", "free y", "book new"]
    assert warnings_of_sagaspan() == []


def test_what_was_committed_is_settled(trip: Trip) -> None:
    """A commit says that it stays, so nobody need ask for it again."""
    trip.play("book Ritz", "book car", commit=1, pause=True)
    run = trip.play("book Plaza", orphans="compensate")
    assert [call.args["what"] for call in run.orphans] == ["car"]
    assert trip.log == ["book Ritz", "book car", "book Plaza", "cancel car"]


def test_what_was_before_a_pivot_stays(guard: Guard, trip: Trip) -> None:
    """After the point of no return nothing before it is undone, wanted or not; it is listed all the same."""
    trip.play("book Ritz", "ship it", "book car", pause=True)
    run = trip.play("ship it", orphans="compensate")
    assert trip.log[3:] == ["cancel car"]
    assert {call.args["what"]: str(call.state) for call in run.orphans} == {"Ritz": "done", "car": "compensated"}
    assert run.status == "completed"


def test_a_run_that_fails_undoes_all_of_it_anyway(guard: Guard, trip: Trip, caller: Caller) -> None:
    """Orphans are a matter of runs that complete."""
    trip.play("book Ritz", pause=True)

    async def job() -> None:
        async with caller.run(guard, "trip", id="a"):
            await trip.steps("book Plaza")
            raise KeyError

    with pytest.raises(KeyError):
        caller.play(job)
    assert trip.log == ["book Ritz", "book Plaza", "cancel Plaza", "cancel Ritz"]
    assert guard.runs.get("a").orphans == ()


def test_what_a_replayed_step_had_called_was_asked_for_with_it(guard: Guard, trip: Trip, caller: Caller) -> None:
    """Its body does not run again. If it does, because it failed before, it asks for itself."""
    fails = True

    def plan(hotel: str) -> Any:
        async def steps() -> None:
            await trip.steps(f"book {hotel}" if fails else "book Plaza")
            if fails and hotel == "Ritz":
                raise KeyError(hotel)

        return steps() if caller.is_async else caller.play(steps)

    async def aplan(hotel: str) -> None:
        await plan(hotel)

    outer = guard.tool("plan", effect="write", error_means="failed")(aplan if caller.is_async else plan)

    async def job(pause: bool) -> Any:
        async with caller.run(guard, id="a") as run:
            for hotel in ("Savoy", "Ritz"):
                with contextlib.suppress(KeyError):
                    await caller.call(outer, hotel)
            if pause:
                run.pause()
        return run

    caller.play(job, True)
    fails = False
    run = caller.play(job, False)
    assert [call.args["what"] for call in run.orphans if call.tool == "book"] == ["Ritz"]
    assert trip.log == ["book Savoy", "book Ritz", "book Plaza"]


def test_nested_runs_look_after_their_own(guard: Guard, trip: Trip, caller: Caller) -> None:
    """One that is passed by is the outer run's matter; one that is entered again has its own, by the same rule."""

    async def job(first: bool) -> Any:
        async with caller.run(guard, id="a", orphans="compensate") as run:
            async with caller.run(guard, "one", id="one") as one:
                await trip.steps("book Ritz" if first else "book Plaza")
                if first:
                    one.pause()
            if first:
                async with caller.run(guard, "two", id="two"):
                    await trip.steps("book car")
                run.pause()
        return one, run

    caller.play(job, True)
    one, run = caller.play(job, False)
    assert trip.log == ["book Ritz", "book car", "book Plaza", "cancel Ritz", "cancel car"]
    assert [[call.args["what"] for call in each.orphans] for each in (one, run)] == [["Ritz"], ["car"]]
    assert {info.id: str(info.status) for info in guard.runs.list()} == {
        "a": "completed", "one": "completed", "two": "completed",
    }  # fmt: skip


def test_one_that_cannot_be_undone_holds_the_run(guard: Guard, trip: Trip, caller: Caller) -> None:
    """The run has ended well; the failure is raised, nothing is sent, and entering it again goes on there."""
    trip.play("book Ritz", pause=True)
    trip.answers = False
    with pytest.raises(CompensationFailed, match="NOT undone, a person must look: book") as caught:
        trip.play("book Plaza", "mail x", orphans="compensate")
    assert "its orphan 'book'" in caught.value.__notes__[0]
    info = guard.runs.get("a")
    assert (info.status, info.reason, info.completing) == ("held", "orphans", True)
    with pytest.raises(CompensationFailed):
        trip.play("book Plaza", "mail x")
    trip.answers = True
    run = trip.play("book Plaza")
    assert (run.status, trip.log) == ("completed", ["book Ritz", "book Plaza", "cancel Ritz", "mail x"])


def test_a_person_can_say_that_one_was_undone(guard: Guard, trip: Trip) -> None:
    """Then recovery completes the run."""
    trip.play("book Ritz", pause=True)
    trip.answers = False
    with pytest.raises(CompensationFailed):
        trip.play("book Plaza", "mail x", orphans="compensate")
    assert guard.recover().completed == ()
    guard.calls.resolve(guard.runs.get("a").orphans[0], "compensated", note="by telephone")
    assert [run.id for run in guard.recover().completed] == ["a"]
    assert trip.log == ["book Ritz", "book Plaza", "mail x"]


def test_a_doubt_comes_first(guard: Guard, trip: Trip, caller: Caller) -> None:
    """No write of another path starts, and nothing is undone, while an earlier one is in doubt."""
    send = caller.tool(guard, "send", effect="write")(lambda: (_ for _ in ()).throw(ConnectionResetError()))

    async def job(first: bool) -> None:
        async with caller.run(guard, "trip", id="a", orphans="compensate"):
            if first:
                await trip.steps("book Ritz")
                await caller.call(send)
            await trip.steps("look x")
            if not first:
                with pytest.raises(OutcomeUnknown, match="did not run"):
                    await trip.steps("book Plaza")

    with pytest.raises(ConnectionResetError):
        caller.play(job, True)
    caller.play(job, False)
    assert (guard.runs.get("a").status, trip.log) == ("held", ["book Ritz", "look x"])


def test_a_reopened_run_has_none_of_the_one_before(guard: Guard, trip: Trip, caller: Caller) -> None:
    """It starts over; what stands of the earlier one is no orphan of this one."""
    trip.play("book Ritz")

    async def job() -> Any:
        async with caller.run(guard, "trip", id="a", reopen=True, orphans="compensate") as run:
            await trip.steps("book Plaza")
        return run

    assert caller.play(job).orphans == ()
    assert trip.log == ["book Ritz", "book Plaza"]


def test_the_rule_is_one_of_two(guard: Guard) -> None:
    """Anything else is refused at once."""
    with pytest.raises(ConfigurationError, match="orphans='ignore' is not one of None, 'warn', 'compensate'"):
        guard.run(orphans="ignore")  # type: ignore[arg-type]


def test_what_a_committed_deferred_call_called_is_committed_with_it(guard: Guard, trip: Trip, caller: Caller) -> None:
    """A later error does not undo it, and a resumed run need not ask for it again."""

    def body() -> Any:
        return trip.steps("book Ritz") if caller.is_async else caller.play(trip.steps, "book Ritz")

    async def abody() -> None:
        await body()

    send = guard.tool("send", defer=True)(abody if caller.is_async else body)

    async def job(fail: bool) -> Any:
        async with caller.run(guard, id="a", orphans="compensate") as run:
            if not fail:
                await caller.call(send)
                await (run.acommit() if caller.is_async else _nothing(run.commit()))
                run.pause()
            else:
                assert run.orphans == ()
                raise KeyError
        return run

    caller.play(job, False)
    with pytest.raises(KeyError):
        caller.play(job, True)
    assert trip.log == ["book Ritz"]


async def _nothing(_: None) -> None: ...
