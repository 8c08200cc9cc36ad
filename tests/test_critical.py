"""Steps that need not succeed, and steps beside each other: what is undone, in which order (rule book (b) 3 and 8)."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any

import pytest

from sagaspan import Guard, LockConflict, RunClosed
from tests.conftest import Caller, Worker


class Declined(Exception):
    """What a service says no with."""


class Tour:
    """``must`` and ``may`` can be undone; ``may`` is not critical, and fails, or is in doubt, if it is told to."""

    def __init__(self, guard: Guard, caller: Caller, **fields: Any) -> None:
        self.guard, self.caller = guard, caller
        self.log: list[str] = []
        self.must = caller.tool(guard, "must", compensate=self.undo)(self.do)
        self.may = caller.tool(guard, "may", compensate=self.undo, critical=False, **fields)(self.do)

    def do(self, what: str) -> str:
        self.log.append(what)
        if what == "no":
            raise Declined("no")
        if what == "lost":
            raise TimeoutError("no answer")
        return what

    def undo(self, what: str, result: str | None = None) -> None:
        self.log.append(f"undo {what}")

    async def run(self, *uncritical: str, error: BaseException | None = None) -> list[Any]:
        """A step that must be, those that may, another that must, and perhaps an error."""
        async with self.caller.run(self.guard, id="r"):
            await self.caller.call(self.must, "a")
            answers = [await self.caller.call(self.may, what) for what in uncritical]
            await self.caller.call(self.must, "z")
            if error is not None:
                raise error
        return answers


@pytest.fixture
def tour(guard: Guard, caller: Caller) -> Tour:
    return Tour(guard, caller)


def states(guard: Guard) -> list[str]:
    """The states of the run's forward calls."""
    run = guard.runs.get("r")
    assert run is not None
    return [str(call.state) for call in run.calls if call.phase == "forward"]


# -- not critical ----------------------------------------------------------------------------------------------------


def test_its_failure_stops_nothing(guard: Guard, tour: Tour) -> None:
    """It is told to the caller as data; the run goes on and completes, and nothing is undone."""
    (answer,) = tour.caller.play(lambda: tour.run("no"))
    call = guard.runs.get("r").calls[1]
    assert answer == {"status": "failed", "error": "Declined: no", "call": call.id}
    assert (tour.log, states(guard)) == (["a", "no", "z"], ["done", "failed", "done"])
    assert guard.runs.get("r").status == "completed"


def test_what_it_did_is_undone_like_the_rest(guard: Guard, tour: Tour) -> None:
    """In its place, newest first; one that failed did nothing."""
    with pytest.raises(Declined):
        tour.caller.play(lambda: tour.run("b", "no", "c", error=Declined()))
    assert tour.log[5:] == ["undo z", "undo c", "undo b", "undo a"]
    assert states(guard) == ["compensated", "compensated", "failed", "compensated", "compensated"]
    assert guard.runs.get("r").status == "compensated"


@pytest.mark.parametrize("error", [None, Declined()])
def test_in_doubt_it_holds_the_run_like_any_other(guard: Guard, tour: Tour, error: Exception | None) -> None:
    """That nothing rests on it does not tell whether it happened: it is not undone by a guess."""
    if error is None:
        (answer,) = tour.caller.play(lambda: tour.run("lost"))
        assert (answer["status"], answer["error"]) == ("unknown", "TimeoutError: no answer")
    else:
        with pytest.raises(Declined):
            tour.caller.play(lambda: tour.run("lost", error=error))
    assert (guard.runs.get("r").status, tour.log) == ("held", ["a", "lost", "z"])
    guard.calls.resolve(guard.runs.get("r").calls[1].id, "happened", result="lost", note="looked")
    guard.compensate("r")
    assert tour.log[3:] == ["undo z", "undo lost", "undo a"]


def test_in_doubt_and_safe_to_undo_it_is_undone(guard: Guard, caller: Caller) -> None:
    """``empty_safe`` is said of any step."""
    tour = Tour(guard, caller, empty_safe=True)
    with pytest.raises(Declined):
        caller.play(lambda: tour.run("lost", error=Declined()))
    assert tour.log[3:] == ["undo z", "undo lost", "undo a"]
    assert guard.runs.get("r").status == "compensated"


def test_on_a_resume_it_is_asked_again(guard: Guard, tour: Tour) -> None:
    """A failure is no result: the same step is tried again, what is done is answered from the ledger."""

    async def job(*, stop: bool) -> None:
        async with tour.caller.run(guard, id="r"):
            await tour.caller.call(tour.must, "a")
            await tour.caller.call(tour.may, "no")
            if stop:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tour.caller.play(lambda: job(stop=True))
    tour.caller.play(lambda: job(stop=False))
    assert (tour.log, states(guard)) == (["a", "no", "no"], ["done", "failed"])


def test_a_refusal_is_raised_also_of_what_is_not_critical(guard: Guard, caller: Caller) -> None:
    """The tool did not run and its caller can act: that is no failure of the step."""
    tour = Tour(guard, caller, lock="'one'")

    async def job() -> None:
        with guard.run(id="other", nested=False):
            guard.tool("hold", effect="write", lock="'one'")(lambda: None)()
            async with caller.run(guard, id="r", nested=False):
                with pytest.raises(LockConflict):
                    await caller.call(tour.may, "b")

    caller.play(job)
    assert guard.runs.get("r").status == "completed"


def test_in_a_nested_run_its_failure_leaves_neither(guard: Guard, tour: Tour) -> None:
    """The outer run undoes what the inner one did, if it fails itself."""

    async def job() -> None:
        async with tour.caller.run(guard, id="o"):
            await tour.caller.call(tour.must, "o")
            await tour.run("no", "b")
            raise Declined

    with pytest.raises(Declined):
        tour.caller.play(job)
    assert tour.log[5:] == ["undo z", "undo b", "undo a", "undo o"]


def test_killed_in_it_a_person_is_asked(worker: Worker) -> None:
    """A crash knows of no importance: nobody knows whether it happened."""
    script = """
    @guard.tool(compensate=lambda result: effect(f"undo-{result}"), critical=False)
    def may(n, dying=False):
        effect(n)
        if dying: die()
        return n
    """
    died = worker.run(
        script + "\n    with guard.run(id='r', on_interrupt='compensate'):\n        may(1)\n        may(2, True)\n"
    )
    assert died.returncode == -9, died.stderr
    after = worker.run(script + "\n    print([run.id for run in guard.recover().needs_human])\n")
    assert (after.stdout, worker.effects) == ("['r']\n", ["1", "2"]), after.stderr


# -- beside each other -----------------------------------------------------------------------------------------------


def test_siblings_in_threads_are_undone_in_reverse_order_of_their_start(guard: Guard) -> None:
    """Whichever ended first."""
    began = [threading.Event() for _ in range(3)]
    end = [threading.Event() for _ in range(3)]
    log: list[str] = []

    def body(n: int) -> int:
        began[n].set()
        assert end[n].wait(60)
        log.append(f"done {n}")
        return n

    tool = guard.tool("step", compensate=lambda result: log.append(f"undo {result}"))(body)
    threads = []
    with pytest.raises(Declined), guard.run(id="r"):
        for n in range(3):
            threads.append(threading.Thread(target=contextvars.copy_context().run, args=(tool, n)))
            threads[n].start()
            assert began[n].wait(60)
        for n in (1, 2, 0):
            end[n].set()
            threads[n].join(60)
        raise Declined
    assert log == ["done 1", "done 2", "done 0", "undo 2", "undo 1", "undo 0"]


async def test_sibling_tasks_are_undone_in_reverse_order_of_their_start(guard: Guard) -> None:
    """The failure of one that is not critical leaves the others be; that of another one undoes all that happened."""
    log: list[str] = []
    began = [asyncio.Event() for _ in range(4)]
    end = [asyncio.Event() for _ in range(4)]

    async def body(n: int) -> int:
        began[n].set()
        await end[n].wait()
        if n in (1, 3):
            raise Declined(str(n))
        log.append(f"done {n}")
        return n

    fields: dict[str, Any] = {"compensate": lambda result: log.append(f"undo {result}")}
    must, may = guard.tool("must", **fields)(body), guard.tool("may", critical=False, **fields)(body)

    async def one(tool: Callable[[int], Any], n: int) -> Any:
        return await tool(n)

    with pytest.raises(BaseExceptionGroup) as left:
        async with guard.run(id="r"), asyncio.TaskGroup() as group:
            tasks = []
            for n, tool in enumerate((must, may, may, must)):
                tasks.append(group.create_task(one(tool, n)))
                await began[n].wait()
            for n in (2, 1, 0):
                end[n].set()
                await tasks[n]
            assert (await tasks[1])["status"] == "failed"
            end[3].set()
    assert [str(error) for error in left.value.exceptions] == ["3"]
    assert log == ["done 2", "done 0", "undo 2", "undo 0"]
    assert states(guard) == ["compensated", "failed", "compensated", "failed"]


def test_a_critical_sibling_stops_new_calls_and_waits_for_those_in_flight(guard: Guard) -> None:
    """What is in flight when it fails is undone too, once it has ended; nothing new starts."""
    began, go_on = threading.Event(), threading.Event()
    log: list[str] = []

    def slow() -> str:
        began.set()
        assert go_on.wait(60)
        log.append("slow")
        return "slow"

    def fail() -> None:
        raise Declined

    step = guard.tool("step", compensate=lambda result: log.append(f"undo {result}"))(slow)
    check = guard.tool("check", effect="write", critical=True)(fail)
    with pytest.raises(Declined), guard.run(id="r"):
        thread = threading.Thread(target=contextvars.copy_context().run, args=(step,))
        thread.start()
        assert began.wait(60)
        with pytest.raises(Declined):
            check()
        with pytest.raises(RunClosed):
            guard.tool("late", effect="write")(lambda: log.append("late"))()
        threading.Timer(0.1, go_on.set).start()
    thread.join(60)
    assert log == ["slow", "undo slow"]
