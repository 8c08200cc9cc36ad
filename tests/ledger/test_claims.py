"""Claims: done once, joined, claimed again or refused, by the state of the record (rule book (a))."""

from __future__ import annotations

import asyncio
import contextvars
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sagaspan import (
    ApprovalDenied,
    ApprovalPending,
    ApprovalRequest,
    CallInProgress,
    Guard,
    LoopDetected,
    OutcomeUnknown,
    RunClosed,
    StoreUnavailable,
)
from tests.conftest import Caller, Sql


class Declined(Exception):
    """What a service says no with."""


@pytest.mark.parametrize(
    ("policy", "runs"),
    [({}, 3), ({"effect": "read"}, 3), ({"effect": "idempotent"}, 3), ({"effect": "write"}, 1), ({"key": "n"}, 1),
     ({"compensate": lambda: None}, 1), ({"effect": "write", "repeat": "new"}, 3), ({"repeat": "dedupe"}, 1)],
)  # fmt: skip
def test_an_equal_call_in_the_same_run(
    guard: Guard, caller: Caller, policy: dict[str, Any], runs: int, warnings_of_sagaspan: Callable[[], list[str]]
) -> None:
    """Declared writes are done once and the log says so; every other equal call is a new one, by its number."""
    ran: list[int] = []

    @caller.tool(guard, **policy)
    def act(n: int) -> int:
        ran.append(n)
        return len(ran)

    async def job(pause: bool) -> list[int]:
        async with caller.run(guard, id="a") as run:
            results = [await caller.call(act, 5) for _ in range(3)]
            if pause:
                run.pause()
        return results

    first = caller.play(job, True)
    assert (first, len(ran)) == ([1, 2, 3] if runs == 3 else [1, 1, 1], runs)
    warned = [text for text in warnings_of_sagaspan() if "already done with these arguments" in text]
    assert bool(warned) == (runs == 1 and "key" not in policy)
    assert caller.play(job, False) == first
    assert len(ran) == runs


def test_a_number_is_not_used_up_by_a_failure(guard: Guard, caller: Caller) -> None:
    """A call that failed and was repeated is one call: a resume finds it done, and runs nothing again."""
    ran: list[int] = []

    @caller.tool(guard)
    def act() -> int:
        ran.append(1)
        if len(ran) == 1:
            raise Declined
        return len(ran)

    async def job(pause: bool) -> list[int]:
        async with caller.run(guard, id="a") as run:
            results = []
            while len(results) < 2:
                try:
                    results.append(await caller.call(act))
                except Declined:
                    continue
            if pause:
                run.pause()
        return results

    assert caller.play(job, True) == [2, 3]
    assert caller.play(job, False) == [2, 3]
    assert len(ran) == 3
    assert [call.attempts for call in guard.runs.get("a").calls] == [2, 1]


def test_irreversible_calls_are_not_repeated_unasked(guard: Guard, caller: Caller) -> None:
    """``repeat="ask"``: an equal call in the same run is asked about, and is a call of its own if somebody agrees."""
    ran: list[str] = []
    answers: list[Any] = []

    @caller.tool(guard, effect="irreversible", approve=False)
    def wipe() -> int:
        ran.append(guard.current_call().idempotency_key)
        return len(ran)

    async def job() -> list[int]:
        async with caller.run(guard, id="a") as run:
            found = [await caller.call(wipe) for _ in range(3)]
            run.pause()
            return found

    def ask(request: ApprovalRequest) -> Any:
        assert "done with these arguments already" in request.text
        return answers.pop(0)

    with pytest.raises(ApprovalPending), guard.override(approver="inbox"):
        caller.play(job)
    assert len(ran) == 1
    with guard.override(approver=ask):
        answers[:] = [True, True]
        assert caller.play(job) == [1, 2, 3]
        assert caller.play(job) == [1, 2, 3]  # a resume asks nobody
        assert (answers, len(ran), len(set(ran))) == ([], 3, 3)


def test_a_no_to_repeating_it_is_final(guard: Guard, caller: Caller) -> None:
    """The call that is done stays done, and another process answers no differently."""
    ran: list[int] = []

    @caller.tool(guard, effect="irreversible", approve=False)
    def wipe() -> None:
        ran.append(1)

    async def job() -> None:
        async with caller.run(guard, id="a") as run:
            await caller.call(wipe)
            with pytest.raises(ApprovalDenied) as caught:
                await caller.call(wipe)
            assert caught.value.tool_ran == "no"
            run.pause()

    for approver in (lambda _: False, lambda _: True):
        with guard.override(approver=approver):
            caller.play(job)
    assert ran == [1]


def test_a_failed_call_may_be_claimed_again(guard: Guard, caller: Caller) -> None:
    """What provably did not happen runs again under the same record, with one more attempt."""
    ran: list[int] = []

    @caller.tool(guard, effect="write")
    def act() -> int:
        ran.append(1)
        if len(ran) == 1:
            raise Declined
        return len(ran)

    async def job() -> None:
        async with caller.run(guard, id="a") as run:
            with pytest.raises(Declined):
                await caller.call(act)
            assert await caller.call(act) == 2
            (call,) = run.calls
            assert (call.state, call.attempts, call.error) == ("done", 2, None)

    caller.play(job)


def test_threads_join_an_equal_call(guard: Guard) -> None:
    """Concurrent equal calls are one: one body runs, the others wait for its result."""
    ran, results = [], []

    @guard.tool(effect="write")
    def act(n: int) -> int:
        ran.append(n)
        time.sleep(0.1)
        return len(ran)

    with guard.run():
        threads = [
            threading.Thread(target=contextvars.copy_context().run, args=(lambda: results.append(act(1)),))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert (ran, results) == ([1], [1] * 8)


async def test_tasks_join_an_equal_call(guard: Guard) -> None:
    """The same in a loop."""
    ran = []

    @guard.tool(effect="write")
    async def act(n: int) -> int:
        ran.append(n)
        await asyncio.sleep(0.05)
        return len(ran)

    async with guard.run():
        assert await asyncio.gather(*(act(1) for _ in range(8))) == [1] * 8
    assert ran == [1]


def test_a_race_for_a_failed_record_runs_one_body_at_a_time(guard: Guard) -> None:
    """Threads that claim a failed record at once never take its winner for dead."""
    inside, worst, problems = [0], [0], []
    fail = True

    @guard.tool(effect="write", loop=False)  # six equal calls are no loop, whichever of them ends first
    def act() -> int:
        if fail:
            raise Declined
        inside[0] += 1
        worst[0] = max(worst[0], inside[0])
        time.sleep(0.02)
        inside[0] -= 1
        return 1

    def call() -> None:
        try:
            assert act() == 1
        except BaseException as problem:
            problems.append(problem)

    for _ in range(15):
        fail = True
        with guard.run():
            with pytest.raises(Declined):
                act()
            fail = False
            threads = [threading.Thread(target=contextvars.copy_context().run, args=(call,)) for _ in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
    assert (problems, worst) == ([], [1])


def test_a_call_that_would_wait_for_itself(guard: Guard) -> None:
    """A call equal to one of its own ancestors raises ``LoopDetected`` at once, also after it was claimed again."""

    @guard.tool(effect="write")
    def outer() -> str:
        if fail:
            raise Declined
        return str(middle())

    @guard.tool
    def middle() -> str:
        return outer()

    fail = True
    started = time.monotonic()
    with guard.run():
        with pytest.raises(Declined):
            outer()
        fail = False
        with pytest.raises(LoopDetected, match="would wait for itself") as caught:
            outer()
    assert (caught.value.tool_ran, caught.value.call.tool) == ("no", "outer")
    assert time.monotonic() - started < 5


def test_waiting_for_another_worker_ends(guard: Guard) -> None:
    """An equal call that runs longer than the waiter's timeout is ``CallInProgress``."""
    started, go_on = threading.Event(), threading.Event()

    def body(key: str) -> int:
        started.set()
        go_on.wait(60)
        return 1

    slow = guard.tool("slow", key="key")(body)
    thread = threading.Thread(target=slow, args=("k",))
    thread.start()
    assert started.wait(60)
    hasty = guard.tool("slow", key="key", timeout=0.1)(body)
    with pytest.raises(CallInProgress, match="still running elsewhere") as caught:
        hasty("k")
    assert caught.value.tool_ran == "no"
    go_on.set()
    thread.join(60)
    assert hasty("k") == 1


def test_a_business_key_after_its_call_was_undone(guard: Guard, caller: Caller) -> None:
    """A key is free for another run once its call failed or was undone; the old record stays."""
    ran: list[int] = []

    @caller.tool(guard, key="order", compensate=lambda: ran.append(-1))
    def pay(order: str) -> int:
        ran.append(1)
        return len(ran)

    async def job(error: Exception | None) -> Any:
        async with caller.run(guard):
            value = await caller.call(pay, "o")
            if error:
                raise error
            return value

    with pytest.raises(Declined):
        caller.play(job, Declined())
    assert caller.play(job, None) == 3
    assert caller.play(job, None) == 3
    assert ran == [1, -1, 1]
    assert len([call for run in guard.runs.list() for call in guard.runs.get(run.id).calls if call.tool == "pay"]) == 2


def test_an_undone_call_is_not_run_again_in_its_run(guard: Guard, caller: Caller) -> None:
    """A step that was undone is over for its run, even if somebody resumes by other means."""
    act = caller.tool(guard, "act", compensate=lambda: None)(lambda: 1)

    async def job(abort: bool) -> None:
        async with caller.run(guard, id="a") as run:
            await caller.call(act)
            async with caller.run(guard, "inner") as inner:
                await caller.call(act)
                if abort:
                    inner.abort()
            if abort:
                run.pause()

    caller.play(job, True)
    caller.play(job, False)
    assert guard.runs.get("a").status == "completed"


def test_an_undone_step_is_not_run_again(guard: Guard, caller: Caller) -> None:
    """An agent that took a step back cannot take it again under the same key: it is told to reopen the run."""
    ran: list[int] = []
    act = caller.tool(guard, "act", compensate=lambda: ran.append(-1))(lambda: ran.append(1))

    async def job() -> None:
        async with caller.run(guard, id="a") as run:
            await caller.call(act)
            (step,) = run.calls
            if caller.is_async:
                await guard.acompensate(run, call=step.id)
            else:
                guard.compensate(run, call=step.id)
            with pytest.raises(RunClosed, match="is compensated; a call that was undone is not run again"):
                await caller.call(act)

    caller.play(job)
    assert ran == [1, -1]


# -- failing stores ---------------------------------------------------------------------------------------------------


class Lock:
    """Another process's write transaction on the ledger, so that nothing can be saved."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("begin immediate")

    def release(self) -> None:
        self._connection.execute("rollback")
        self._connection.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger that waits 0.1 s for a lock instead of 10."""
    monkeypatch.setattr("sagaspan.stores.sqlite.BUSY_SECONDS", 0.1)


@pytest.mark.of_sqlite("its one writer")
def test_a_settle_that_fails(guard: Guard, caller: Caller, tmp_path: Path, impatient: None) -> None:
    """The caller still gets the result; nothing else is claimed until it is saved, and then it is there."""
    locks: list[Lock] = []

    @caller.tool(guard, effect="write")
    def act(n: int) -> int:
        if n == 1:
            locks.append(Lock(tmp_path / "ledger.db"))
        return n

    async def job() -> None:
        async with caller.run(guard, id="a") as run:
            assert await caller.call(act, 1) == 1
            with pytest.raises(StoreUnavailable, match="stayed locked") as caught:
                await caller.call(act, 2)
            assert caught.value.tool_ran == "no"
            locks.pop().release()
            assert await caller.call(act, 2) == 2
            assert await caller.call(act, 1) == 1
            assert [str(call.state) for call in run.calls] == ["done", "done"]

    caller.play(job)
    assert guard.runs.get("a").status == "completed"


@pytest.mark.of_sqlite("its one writer")
def test_nothing_is_claimed_before_what_ended_is_saved(guard: Guard, caller: Caller) -> None:
    """A result too large for a full disk: a claim that would fit is refused until that is saved, and then goes."""

    def fill(pages: int) -> None:
        guard._store._connection.execute(f"pragma max_page_count = {pages}")  # type: ignore[attr-defined]

    @caller.tool(guard, effect="write")
    def act(size: int) -> str:
        ((pages,),) = guard._store._connection.execute("pragma page_count").fetchall()  # type: ignore[attr-defined]
        fill(pages)
        return "x" * size

    async def job() -> None:
        async with caller.run(guard, id="a") as run:
            assert len(await caller.call(act, 9_000_000)) == 9_000_000
            with pytest.raises(StoreUnavailable, match="the disk of the ledger"):
                await caller.call(act, 1)
            assert [str(call.state) for call in run.calls] == ["running"]
            fill(2**30)
            assert await caller.call(act, 1) == "x"
            assert [str(call.state) for call in run.calls] == ["done", "done"]

    caller.play(job)


@pytest.mark.parametrize("leave", ["error", "completed", "close"])
def test_a_settle_that_failed_is_saved_at_the_end(
    guard: Guard, store_url: str, tmp_path: Path, impatient: None, leave: str
) -> None:
    """What could not be saved is saved before the run ends or the guard is closed: it is done, so it is undone."""
    undone: list[int] = []

    @guard.tool(key="n", compensate=lambda n: undone.append(n))
    def act(n: int) -> int:
        locks.append(Lock(tmp_path / "ledger.db"))
        return n

    locks: list[Lock] = []
    if leave == "close":
        act(1)
        locks.pop().release()
        guard.close()
    else:
        try:
            with guard.run(id="a"):
                act(1)
                locks.pop().release()
                if leave == "error":
                    raise Declined
        except Declined:
            pass
    (call,) = [call for run in guard.runs.list() for call in guard.runs.get(run.id).calls if call.tool == "act"]
    assert (call.state, undone) == (("compensated", [1]) if leave == "error" else ("done", []))


@pytest.mark.of_sqlite("its one writer")
def test_an_unsaved_result_is_not_taken_for_a_dead_one(
    guard: Guard, store_url: str, tmp_path: Path, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another guard of this process waits for a result that is not saved yet, instead of declaring it lost."""
    monkeypatch.setattr("sagaspan.ledger.leases._watch", lambda lease: None)  # no beat saves it before the other asks
    locks: list[Lock] = []

    def body(n: int) -> int:
        locks.append(Lock(tmp_path / "ledger.db"))
        return n

    act = guard.tool("act", key="n", timeout=0.3)(body)
    assert act(1) == 1
    locks.pop().release()
    with Guard(store_url) as other:
        same = other.tool("act", key="n", timeout=0.3)(body)
        with pytest.raises(CallInProgress):
            same(1)
        guard.close()
        assert same(1) == 1


@pytest.mark.of_sqlite("its one writer")
def test_a_store_that_fails_before_the_claim_starts_nothing(guard: Guard, tmp_path: Path, impatient: None) -> None:
    """No claim, no body: the error says that nothing was started."""
    act = guard.tool("act")(lambda: pytest.fail("ran"))
    with guard.run() as run:
        lock = Lock(tmp_path / "ledger.db")
        with pytest.raises(StoreUnavailable, match="nothing was started"):
            act()
        lock.release()
        assert run.calls == ()


def test_a_worker_that_was_taken_over_claims_nothing(guard: Guard, sql: Sql) -> None:
    """Claims are fenced by the run's epoch: after a take-over the old worker's calls are refused."""
    act = guard.tool("act", effect="write")(lambda n: n)
    with pytest.raises(StoreUnavailable, match="taken over"), guard.run(id="a"):
        act(1)
        sql("update runs set epoch = epoch + 1, version = version + 1")
        with pytest.raises(RunClosed, match="taken over") as caught:
            act(2)
        assert caught.value.tool_ran == "no"
    assert guard.runs.get("a").status == "running"
    assert len(guard.runs.get("a").calls) == 1


@pytest.mark.parametrize("before", ["new", "paused"])
def test_a_worker_that_was_taken_over_opens_no_nested_run(guard: Guard, sql: Sql, before: str) -> None:
    """What began in one would be undone by nobody: whoever took the outer run over does not know of it."""
    if before == "paused":
        with guard.run(id="a") as run:
            with guard.run("inner") as inner:
                inner.pause()
            run.pause()
    with pytest.raises(StoreUnavailable, match="taken over"), guard.run(id="a"):
        sql("update runs set epoch = epoch + 1, version = version + 1 where id = 'a'")
        with pytest.raises(RunClosed, match="was taken over by another worker"), guard.run("inner"):
            pytest.fail("it was entered")
    inner_run = guard.runs.get("a/inner#1")
    assert inner_run is None if before == "new" else inner_run.status == "paused"


def test_nothing_new_begins_in_a_run_that_replays(guard: Guard) -> None:
    """A completed run is over: a nested run that was done is replayed, another one is refused."""
    act = guard.tool("act", effect="write")(lambda n: n)
    with guard.run(id="a"), guard.run("inner"):
        act(1)
    with guard.run(id="a"):
        with guard.run("inner") as inner:
            assert (act(1), inner.replaying) == (1, True)
        with pytest.raises(RunClosed, match="'a' around it is completed"), guard.run("other"):
            pytest.fail("it was entered")


async def test_cancelled_while_claiming(guard: Guard) -> None:
    """A cancellation that arrives during the claim lets it finish and releases it: the body never starts."""
    act = guard.tool("act", effect="write")(Caller("async").body(lambda: pytest.fail("ran")))
    async with guard.run() as run:
        for _ in range(5):
            task = asyncio.ensure_future(act())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert {str(call.state) for call in run.calls} <= {"failed"}


async def test_cancelled_while_settling(guard: Guard) -> None:
    """A cancellation that arrives during the settle waits for it: the outcome is saved first."""
    tasks: list[asyncio.Task[Any]] = []

    @guard.tool(effect="write")
    async def act() -> int:
        asyncio.get_running_loop().call_soon(tasks[0].cancel)
        return 7

    async with guard.run() as run:
        tasks.append(asyncio.ensure_future(act()))
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        assert (run.calls[0].state, run.calls[0].result) == ("done", 7)


def test_what_is_unknown_is_refused_with_the_way_out(guard: Guard, caller: Caller) -> None:
    """A write in doubt is refused and names its record; reads and idempotent tools run again."""

    def lose() -> None:
        raise ConnectionResetError

    tools = {
        effect: caller.tool(guard, str(effect), effect=effect, repeat="dedupe")(lose)
        for effect in ("read", "idempotent", "write")
    }

    refused: list[tuple[str, bool]] = []

    async def job() -> None:
        async with caller.run(guard, id="a") as run:
            for effect, tool in tools.items():
                for _ in range(2):
                    try:
                        await caller.call(tool)
                    except ConnectionResetError:
                        continue
                    except OutcomeUnknown as problem:
                        refused.append((effect, f"sagaspan show {problem.call.id}" in str(problem)))
            assert refused == [("write", True)]
            assert [call.attempts for call in run.calls] == [2, 2, 1]

    caller.play(job)
    assert guard.runs.get("a").status == "held"
