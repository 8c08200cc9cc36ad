"""``guard.compensate``: the agent's Ctrl+Z."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from sagaspan import CallInfo, CompensationFailed, Guard, OutcomeUnknown, RunError, RunInProgress, StoreUnavailable
from sagaspan._backends import SYNC, run_sync
from sagaspan._saga import rollback_of
from sagaspan.ledger.records import CallRecord

DIES_IN_A_RUN = """
import os, sys
from sagaspan import Guard
guard = Guard(sys.argv[1])
@guard.tool(compensate=lambda result: None)
def book(what): return what
with guard.run(id="dead"):
    book("room")
    os._exit(9)
"""


@dataclass
class World:
    """What was booked and cancelled, and a hotel that may not answer."""

    log: list[str] = field(default_factory=list)
    answers: bool = True

    def cancel(self, what: str) -> None:
        if not self.answers:
            raise ConnectionResetError("no answer")
        self.log.append(f"cancel {what}")


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def book(guard: Guard, world: World) -> Iterator[object]:
    """A tool that can be undone."""

    @guard.tool(compensate=lambda result: world.cancel(result))
    def book(what: str) -> str:
        world.log.append(f"book {what}")
        return what

    return book


@pytest.fixture
def done(guard: Guard, book, world: World) -> str:
    """A completed run of three steps, the first of them committed."""
    with guard.run("trip", id="done") as run:
        book("flight")
        run.commit()
        book("room")
        with guard.run("inner"):
            book("car")
    world.log.clear()
    return "done"


class TestWholeRuns:
    """Of every state."""

    def test_a_completed_run_is_undone_in_reverse(self, guard: Guard, done: str, world: World) -> None:
        """What was committed and what nested runs did, too."""
        report = guard.compensate(done)
        assert world.log == ["cancel car", "cancel room", "cancel flight"]
        assert [call.args["what"] for call in report.undone] == ["car", "room", "flight"]
        assert report.complete
        assert guard.runs.get(done).status == "compensated"
        assert guard.runs.get("done/inner#1").status == "compensated"

    def test_what_an_error_left_committed_is_undone_on_request(self, guard: Guard, book, world: World) -> None:
        """Rolled back to its line a run is compensated; asked for by name, the rest is undone too, and only once."""
        with pytest.raises(ZeroDivisionError), guard.run("trip", id="half") as run:
            book("flight")
            run.commit()
            book("room")
            raise ZeroDivisionError
        assert guard.runs.get("half").status == "compensated"
        assert [call.args["what"] for call in guard.compensate("half").undone] == ["flight"]
        assert guard.compensate("half").undone == ()
        assert world.log == ["book flight", "book room", "cancel room", "cancel flight"]

    def test_what_was_done_before_a_run_was_reopened_is_undone_on_request(
        self, guard: Guard, book, world: World
    ) -> None:
        """The failure of the later incarnation left it in force."""
        with guard.run("trip", id="again"):
            book("flight")
        with pytest.raises(ZeroDivisionError), guard.run("trip", id="again", reopen=True):
            book("room")
            raise ZeroDivisionError
        guard.compensate("again")
        assert world.log == ["book flight", "book room", "cancel room", "cancel flight"]

    def test_a_nested_run_that_was_committed_stays_completed(self, guard: Guard, book, world: World) -> None:
        """Its steps are in force, so it is not called compensated with the outer run; it can be undone by itself."""
        with pytest.raises(ZeroDivisionError), guard.run("trip", id="outer") as run:
            with guard.run("inner"):
                book("car")
            run.commit()
            with guard.run("later"):
                book("room")
            raise ZeroDivisionError
        assert [guard.runs.get(f"outer/{name}#1").status for name in ("inner", "later")] == ["completed", "compensated"]
        guard.compensate("outer/inner#1")
        assert world.log == ["book car", "book room", "cancel room", "cancel car"]

    async def test_asynchronous_callers_have_a_twin(self, guard: Guard, done: str, world: World) -> None:
        """``acompensate`` does the same."""
        await guard.acompensate(done)
        assert world.log == ["cancel car", "cancel room", "cancel flight"]

    def test_asking_twice_undoes_once(self, guard: Guard, done: str, world: World) -> None:
        """The second time there is nothing left."""
        guard.compensate(done)
        assert guard.compensate(done).undone == ()
        assert len(world.log) == 3

    def test_a_dry_run_changes_nothing(self, guard: Guard, done: str, world: World) -> None:
        """It names what would be undone, in that order."""
        report = guard.compensate(done, dry_run=True)
        assert [call.args["what"] for call in report.undone] == ["car", "room", "flight"]
        assert world.log == []
        assert guard.runs.get(done).status == "completed"

    def test_a_dry_run_says_what_would_have_to_wait(self, guard: Guard, store_url: str, done: str) -> None:
        """In a process without the compensation all of it is queued; only looking raises nothing."""
        with Guard(store_url) as without_tools:
            report = without_tools.compensate(done, dry_run=True)
        assert [call.args["what"] for call in report.queued] == ["car", "room", "flight"]
        assert (report.undone, report.complete) == ((), False)
        assert guard.runs.get(done).status == "completed"

    def test_a_run_that_changed_nothing_stays_completed(self, guard: Guard) -> None:
        """Nothing is undone, and nothing failed."""
        with guard.run(id="read"):
            guard.tool("look", effect="read")(lambda: 1)()
        assert guard.compensate("read").undone == ()
        assert guard.runs.get("read").status == "completed"

    def test_what_failed_to_be_undone_is_tried_again(self, guard: Guard, done: str, world: World) -> None:
        """A dead letter stays until somebody asks again; what was undone is not undone twice."""
        world.answers = False
        with pytest.raises(CompensationFailed):
            guard.compensate(done, call=guard.runs.get(done).calls[1].id)
        with pytest.raises(CompensationFailed):
            guard.compensate(done)
        assert guard.runs.get(done).status == "partially_compensated"
        world.answers = True
        guard.compensate(done)
        assert world.log == ["cancel car", "cancel room", "cancel flight"]
        assert guard.runs.get(done).status == "compensated"

    def test_a_run_that_somebody_is_in_is_left_alone(self, guard: Guard, book, world: World) -> None:
        """It says so; nothing is undone under a worker's feet."""
        with guard.run(id="busy"):
            book("room")
            with pytest.raises(RunInProgress):
                guard.compensate("busy")
        assert world.log == ["book room"]

    def test_two_that_undo_one_step_at_the_same_moment(
        self, guard: Guard, store_url: str, book, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Somebody was faster between the look and the claim: the later one is refused before its body."""
        with guard.run(id="a") as run:
            book("room")
        record = guard._store.get_run("default", "a")
        (step,) = guard._store.calls_of("default", "a")
        find_call = guard._store.find_call
        met: list[bool] = []

        def look(*key: str) -> CallRecord | None:
            found = find_call(*key)
            if key[1].startswith("undo:") and not met:
                met.append(True)
                with Guard(store_url) as other:
                    other.tool("book", compensate=lambda result: world.cancel(result))(lambda what: what)
                    run_sync(rollback_of(other._engine, record, backend=SYNC, span=other._engine.span_here)([step]))
            return found

        monkeypatch.setattr(guard._store, "find_call", look)
        with pytest.raises(StoreUnavailable, match="taken over by another worker"):
            guard.compensate(run)
        assert world.log == ["book room", "cancel room"]

    def test_a_word_that_comes_while_the_rollback_goes_on(self, guard: Guard) -> None:
        """Somebody undoes by hand what could not be undone while older steps still are: then all of it is."""
        told: list[CallInfo] = []

        def cancel(result: str) -> None:
            if result == "room":
                raise ConnectionResetError("no answer")
            (room,) = guard.calls.list(status=["compensation_failed"])
            told.append(guard.calls.resolve(room.id, "compensated", note="called them"))

        book = guard.tool("book", compensate=cancel)(lambda what: what)
        with pytest.raises(CompensationFailed), guard.run(id="a") as run:
            book("flight")
            book("room")
            run.abort()
        assert [call.state for call in told] == ["compensated"]
        assert guard.runs.get("a").status == "compensated"

    def test_a_dead_process_s_run_can_be_undone(self, guard: Guard, store_url: str, book, world: World) -> None:
        """Any process that has the tools can finish it."""
        child = subprocess.run([sys.executable, "-c", DIES_IN_A_RUN, store_url], capture_output=True, text=True)
        assert child.returncode == 9, child.stderr
        guard.compensate("dead")
        assert world.log == ["cancel room"]
        assert guard.runs.get("dead").status == "compensated"

    def test_a_write_in_doubt_forbids_it(self, guard: Guard, book, world: World) -> None:
        """Nothing is undone by a guess."""

        @guard.tool(effect="write")
        def pay() -> None:
            raise TimeoutError

        with pytest.raises(TimeoutError), guard.run(id="doubt"):
            book("room")
            pay()
        with pytest.raises(OutcomeUnknown, match="pay"):
            guard.compensate("doubt")
        assert world.log == ["book room"]

    def test_a_dry_run_shows_the_plan_and_what_it_waits_for(self, guard: Guard, book, world: World) -> None:
        """Looking raises nothing and asks no probe; once that is decided, the plan is what is done."""
        asked = []

        @guard.tool(effect="write", probe=lambda: asked.append(1))
        def pay() -> None:
            raise TimeoutError

        with pytest.raises(TimeoutError), guard.run(id="doubt") as run:
            book("room")
            pay()
        asked.clear()
        plan = guard.compensate("doubt", dry_run=True)
        assert [call.args["what"] for call in plan.undone] == ["room"]
        assert [(call.tool, call.state) for call in plan.unresolved] == [("pay", "needs_human")]
        assert not plan.complete
        assert f"sagaspan calls resolve {run.calls[1].id} OUTCOME" in plan.sentence("doubt")
        alone = guard.compensate("doubt", call=run.calls[1].id, dry_run=True)
        assert (alone.undone, alone.unresolved) == ((), plan.unresolved)
        assert asked == []
        guard.calls.resolve(run.calls[1].id, "did-not-happen", note="looked")
        assert guard.compensate("doubt").undone[0].id == plan.undone[0].id

    def test_an_unknown_run_is_an_error(self, guard: Guard) -> None:
        """With what to look at."""
        with pytest.raises(RunError, match="sagaspan runs list"):
            guard.compensate("nothing")


class TestOneCall:
    """Of a run that is over, or of the run in force."""

    def test_only_that_call_is_undone(self, guard: Guard, done: str, world: World) -> None:
        """The run stays completed, and a later undo of it leaves the call alone."""
        room = guard.runs.get(done).calls[1]
        guard.compensate(done, call=room.id)
        assert world.log == ["cancel room"]
        assert guard.runs.get(done).status == "completed"
        assert guard.compensate(done, call=room.id).undone == ()
        guard.compensate(done)
        assert world.log == ["cancel room", "cancel car", "cancel flight"]

    def test_a_run_can_undo_a_step_of_its_own(self, guard: Guard, book, world: World) -> None:
        """The agent takes one step back and goes on; leaving by an error does not undo it twice."""
        with pytest.raises(ValueError, match="no"), guard.run(id="own") as run:
            book("flight")
            book("room")
            guard.compensate(run, call=run.calls[1].id)
            raise ValueError("no")
        assert world.log == ["book flight", "book room", "cancel room", "cancel flight"]

    def test_a_call_outside_any_run_can_be_undone(self, guard: Guard, book, world: World) -> None:
        """While the session it belongs to goes on; the whole session is nobody's to undo then."""
        book("flight")
        book("room")
        (session,) = guard.runs.list()
        room = guard.runs.get(session.id).calls[1]
        guard.compensate(session.id, call=room.id)
        assert world.log[2:] == ["cancel room"]
        with pytest.raises(RunInProgress):
            guard.compensate(session.id)
        book("car")

    def test_one_call_waits_for_a_process_that_can(self, guard: Guard, store_url: str, done: str, world: World) -> None:
        """It is on record that it is to be undone: recovery finds it, once, and leaves the rest of its run."""
        room = guard.runs.get(done).calls[1]
        with Guard(store_url) as without_tools:
            for _ in range(2):
                with pytest.raises(CompensationFailed, match="not registered in this process"):
                    without_tools.compensate(done, call=room.id)
            assert [call.state for call in without_tools.recover().alone] == ["compensating"]
        assert [call.state for call in guard.recover().alone] == ["compensated"]
        assert not guard.recover()
        assert world.log == ["cancel room"]
        assert guard.runs.get(done).status == "completed"

    def test_what_cannot_be_undone_is_said(self, guard: Guard) -> None:
        """A write without a compensation is reported, not skipped."""
        pay = guard.tool("pay", effect="write")(lambda: 1)
        with guard.run(id="paid") as run:
            pay()
        (call,) = run.calls
        assert guard.compensate(run, call=call.id).not_compensable[0].tool == "pay"
        assert not guard.compensate(run, dry_run=True).complete

    def test_a_call_of_another_run_is_an_error(self, guard: Guard, done: str) -> None:
        """A slip of the hand undoes nothing."""
        with pytest.raises(RunError, match="has no call"):
            guard.compensate(done, call="0123")
