"""Semantic locks: who holds them, until when, and who waits for whom (rule book (b) 12)."""

from __future__ import annotations

import contextlib
import contextvars
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sagaspan import (
    ApprovalPending,
    CompensationFailed,
    ConfigurationError,
    Guard,
    LockConflict,
    OutcomeUnknown,
    Policy,
    Refused,
    Run,
    RunClosed,
)
from sagaspan.ledger.store import LockChange, Store
from tests.conftest import Caller, Worker


class Declined(Exception):
    """What a service says no with."""


class Bank:
    """Accounts whose transfers lock them: ``transfer`` can be undone, ``lose`` is in doubt, ``charge`` cannot."""

    def __init__(self, guard: Guard, caller: Caller | None = None) -> None:
        self.guard, self.caller = guard, caller or Caller("sync")
        self.log: list[str] = []
        self.answers = True
        self.transfer = self.caller.tool(guard, compensate=self.back, lock="['account:' + a, 'account:' + b]")(
            self._transfer
        )
        self.charge = self.caller.tool(guard, "charge", effect="write", lock=lambda a: f"account:{a}")(self._charge)
        self.lose = self.caller.tool(guard, "lose", effect="write", lock="'account:' + a")(self._lose)

    def _transfer(self, a: str, b: str) -> str:
        self.log.append(f"{a}>{b}")
        return f"{a}>{b}"

    _transfer.__name__ = "transfer"

    def _charge(self, a: str) -> None:
        self.log.append(f"charge {a}")

    def _lose(self, a: str) -> None:
        self.log.append(f"lose {a}")
        raise TimeoutError

    def back(self, result: str) -> None:
        if not self.answers:
            raise ConnectionResetError("no answer")
        self.log.append(f"back {result}")

    def held(self, *accounts: str) -> list[str]:
        """Which of the accounts another run is refused, tried as a stranger would."""
        return [account for account in accounts if contextvars.Context().run(self._is_refused, account)]

    def _is_refused(self, account: str) -> bool:
        attempt = self.guard.tool("attempt", effect="write", lock="'account:' + a")(_nothing)
        try:
            with self.guard.run("other"):
                attempt(account)
        except LockConflict:
            return True
        return False


def _nothing(a: str) -> None:
    pass


@pytest.fixture
def bank(guard: Guard) -> Bank:
    return Bank(guard)


# -- until when ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failing", [False, True])
def test_a_run_holds_its_locks_until_it_is_over(guard: Guard, caller: Caller, failing: bool) -> None:
    """Completed or undone; meanwhile another run is refused before its body, and told who holds what."""
    bank = Bank(guard, caller)

    async def job() -> None:
        with contextlib.suppress(Declined):
            async with caller.run(guard, id="one", nested=False):
                await caller.call(bank.transfer, "1", "2")
                with pytest.raises(
                    LockConflict, match=r"lock 'account:2' is held by the run 'one' .running."
                ) as refused:
                    async with caller.run(guard, id="two", nested=False):
                        await caller.call(bank.charge, "2")
                assert (refused.value.lock, refused.value.holder) == ("account:2", "one")
                assert (refused.value.tool_ran, isinstance(refused.value, Refused)) == ("no", True)
                assert guard.runs.get("two").calls == ()
                assert guard.runs.get("one").locks == ("account:1", "account:2")
                if failing:
                    raise Declined
        async with caller.run(guard, id="three", nested=False):
            await caller.call(bank.charge, "2")

    caller.play(job)
    assert bank.log == ["1>2", *(["back 1>2"] if failing else []), "charge 2"]
    assert guard.runs.get("one").locks == ()
    assert guard.runs.get("one").calls[0].locks == ("account:1", "account:2")


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt(), "held"), (ApprovalPending("ask", approval_id="7"), "paused")]
)
def test_a_run_that_can_go_on_keeps_its_locks(guard: Guard, bank: Bank, error: BaseException, status: str) -> None:
    """Held or paused: nobody may change what it will go on from; entered again it takes its own locks."""
    with pytest.raises(type(error)), guard.run(id="one"):
        bank.transfer("1", "2")
        raise error
    assert guard.runs.get("one").status == status
    assert bank.held("1", "2", "3") == ["1", "2"]
    with guard.run(id="one"):
        bank.transfer("1", "2")
        bank.transfer("2", "3")
    assert bank.log == ["1>2", "2>3"]
    assert bank.held("1", "2", "3") == []


def test_a_run_in_doubt_keeps_its_locks_until_it_is_decided(guard: Guard, bank: Bank) -> None:
    """A held run holds; the decision alone frees nothing, the end of the run does."""
    with pytest.raises(TimeoutError), guard.run(id="one") as run:
        bank.lose("1")
    assert bank.held("1") == ["1"]
    guard.calls.resolve(run.calls[0].id, "did-not-happen", note="looked")
    assert bank.held("1") == ["1"]
    guard.compensate("one")
    assert bank.held("1") == []


def test_what_could_not_be_undone_keeps_the_locks(guard: Guard, bank: Bank) -> None:
    """A step that is undone later must find the world as it was; a write nobody can undo holds nothing."""
    bank.answers = False
    with pytest.raises(CompensationFailed), guard.run(id="one"):
        bank.transfer("1", "2")
        raise Declined
    assert bank.held("1", "2") == ["1", "2"]
    bank.answers = True
    guard.compensate("one")
    assert bank.held("1", "2") == []
    with pytest.raises(Declined), guard.run(id="two"):
        bank.charge("1")
        raise Declined
    assert guard.runs.get("two").status == "partially_compensated"
    assert bank.held("1") == []


def test_a_step_undone_by_hand_gives_the_locks_back(guard: Guard, bank: Bank) -> None:
    """Who resolves the last step that could not be undone ends what the run holds."""
    bank.answers = False
    with pytest.raises(CompensationFailed), guard.run(id="one") as run:
        bank.transfer("1", "2")
        raise Declined
    guard.calls.resolve(run.calls[0].id, "compensated", note="by telephone")
    assert bank.held("1", "2") == []


# -- whose -----------------------------------------------------------------------------------------------------------


def test_nested_runs_take_their_locks_for_the_outermost(guard: Guard, caller: Caller) -> None:
    """They share them, and what an inner run took is held until the outer one is over, however the inner one ended."""
    bank = Bank(guard, caller)

    async def job() -> None:
        async with caller.run(guard, id="outer"):
            async with caller.run(guard, "inner"):
                await caller.call(bank.transfer, "1", "2")
            with pytest.raises(Declined):
                async with caller.run(guard, "inner"):
                    await caller.call(bank.transfer, "2", "3")
                    raise Declined
            await caller.call(bank.charge, "1")
            assert guard.runs.get("outer").locks == ("account:1", "account:2", "account:3")
            assert bank.held("1", "2", "3", "4") == ["1", "2", "3"]

    caller.play(job)
    assert bank.held("1", "2", "3") == []


def test_outside_any_run_the_call_holds_them(guard: Guard, caller: Caller) -> None:
    """While its body runs, and for what that calls; then they are free."""
    bank = Bank(guard, caller)

    def outer(a: str) -> list[str]:
        guard.tool("inner", effect="write", lock="'account:' + a")(_nothing)(a)
        return bank.held(a)

    tool = caller.tool(guard, effect="write", lock="'account:' + a")(outer)
    assert caller.play(lambda: caller.call(tool, "1")) == ["1"]
    assert bank.held("1") == []


def test_a_call_in_doubt_outside_any_run_keeps_them(guard: Guard, bank: Bank) -> None:
    """Until somebody has found out."""
    with pytest.raises(TimeoutError):
        bank.lose("1")
    with pytest.raises(LockConflict, match=r"held by the call \w+ of tool 'lose' .unknown."):
        bank.charge("1")
    (call,) = guard.calls.list()
    guard.calls.resolve(call.id, "happened", note="looked")
    bank.charge("1")
    assert bank.log == ["lose 1", "charge 1"]


def test_namespaces_share_no_locks(guard: Guard, store_url: str, bank: Bank) -> None:
    """A lock is a word of one application."""
    with guard.run(), Guard(store_url, namespace="other") as other:
        bank.charge("1")
        Bank(other).charge("1")


# -- compensations ---------------------------------------------------------------------------------------------------


def test_a_rollback_runs_under_the_locks_of_its_run(guard: Guard) -> None:
    """Nobody comes in between; what a compensation calls itself takes them as the run that is undone."""
    log: list[Any] = []

    def back(result: str) -> None:
        log.append(bank.held(result))
        adjust(result)
        nested(result)

    adjust = guard.tool("adjust", effect="write", lock="'account:' + a")(lambda a: log.append(f"adjust {a}"))
    nested = guard.tool("nested", effect="write")(lambda a: adjust(a))
    tool = guard.tool("pay", compensate=back, lock="'account:' + a")(lambda a: a)
    bank = Bank(guard)
    with pytest.raises(Declined), guard.run("outer"), guard.run("inner"):
        tool("1")
        raise Declined
    assert log == [["1"], "adjust 1", "adjust 1"]
    assert bank.held("1") == []


@pytest.mark.parametrize("one", [False, True], ids=["whole-run", "one-call"])
def test_undoing_a_completed_run_takes_its_locks_again(guard: Guard, caller: Caller, one: bool) -> None:
    """If somebody has them meanwhile nothing is undone; while it is undone nobody else gets them."""
    log: list[Any] = []

    def back(result: str) -> None:
        log.append((result, bank.held("1", "2")))

    tool = caller.tool(guard, "pay", compensate=back, lock="'account:' + a")(lambda a: a)
    bank = Bank(guard)

    async def job() -> None:
        async with caller.run(guard, "outer", id="one"), caller.run(guard, "inner"):
            await caller.call(tool, "1")
            await caller.call(tool, "2")
        call = guard.runs.get("one/inner#1").calls[0].id if one else None
        with guard.run(id="two", nested=False):
            bank.charge("1")
            with pytest.raises(LockConflict, match="is not undone: the lock 'account:1' is held by the run 'two'"):
                await undo(call)
        assert log == []
        await undo(call)

    async def undo(call: str | None) -> None:
        await guard.acompensate("one", call=call) if caller.is_async else guard.compensate("one", call=call)

    caller.play(job)
    assert log == ([("1", ["1"])] if one else [("2", ["1", "2"]), ("1", ["1", "2"])])
    assert bank.held("1", "2") == []


def test_one_call_that_could_not_be_undone_keeps_its_locks(guard: Guard, bank: Bank) -> None:
    """Its run is completed, but something of it is still to be undone; it can be tried again."""
    with guard.run("outer", id="one"), guard.run("inner"):
        bank.transfer("1", "2")
        bank.transfer("3", "4")
    call = guard.runs.get("one/inner#1").calls[0].id
    bank.answers = False
    with pytest.raises(CompensationFailed):
        guard.compensate("one", call=call)
    assert bank.held("1", "2", "3") == ["1", "2"]
    bank.answers = True
    guard.compensate("one", call=call)
    assert bank.held("1", "2", "3") == []


# -- all or nothing --------------------------------------------------------------------------------------------------


def test_all_locks_or_none(guard: Guard, bank: Bank) -> None:
    """A call that is refused one lock has taken no other, and left no record."""
    with guard.run(id="one"):
        bank.charge("2")
        with pytest.raises(LockConflict), guard.run(id="two", nested=False):
            bank.transfer("1", "2")
        assert bank.held("1", "2") == ["2"]
    assert guard.runs.get("two").calls == ()
    assert bank.log == ["charge 2"]


def test_the_locks_are_part_of_the_one_synced_commit(guard: Guard, bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim with locks is one commit, synced, like any other; a refused one names the lock that refused it."""
    commits = []
    save = type(guard._store).commit

    def commit(self: Store, changes: Any, *, synced: bool) -> Any:
        commits.append((synced, [type(change).__name__ for change in changes], save(self, changes, synced=synced)))
        return commits[-1][2]

    with guard.run():
        monkeypatch.setattr(type(guard._store), "commit", commit)
        bank.transfer("1", "2")
        assert [(synced, names) for synced, names, _ in commits] == [
            (True, ["CallChange", "LockChange", "LockChange"]), (False, ["CallChange"])
        ]  # fmt: skip
        with pytest.raises(LockConflict), guard.run(nested=False):
            bank.charge("1")
    refused = [saved.refused for _, _, saved in commits if not saved]
    assert [change.record.name for change in refused if isinstance(change, LockChange)] == ["account:1"]


def test_what_is_answered_from_the_ledger_needs_no_lock(guard: Guard) -> None:
    """A business key that is done is replayed though another run holds the lock of its call."""
    ran = []
    pay = guard.tool("pay", key="order", lock="'account:' + a")(lambda order, a: ran.append(order) or "paid")
    with guard.run(id="one"):
        assert pay("o1", "1") == "paid"
        with guard.run(nested=False):
            assert pay("o1", "1") == "paid"
    assert ran == ["o1"]


def test_a_run_that_comes_back_to_life_at_the_same_moment_has_its_lock(
    guard: Guard, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who found a lock free does not get it if its holder took it again before the commit."""
    undoing, go_on = threading.Event(), threading.Event()

    def back(result: str) -> None:
        undoing.set()
        assert go_on.wait(60)

    tool = guard.tool("pay", compensate=back, lock="'account:' + a")(lambda a: a)
    with guard.run(id="one"):
        tool("1")
    undo = threading.Thread(target=guard.compensate, args=("one",), daemon=True)
    save = type(guard._store).commit

    def commit(self: Store, changes: Any, *, synced: bool) -> Any:
        if threading.current_thread() is not undo and not undoing.is_set():
            undo.start()
            assert undoing.wait(60)
        return save(self, changes, synced=synced)

    with guard.run(id="two"):
        monkeypatch.setattr(type(guard._store), "commit", commit)
        with pytest.raises(LockConflict, match=r"held by the run 'one' .compensating"):
            bank.charge("1")
        go_on.set()
        undo.join(60)
        bank.charge("1")
    assert bank.log == ["charge 1"]


def test_a_resumed_run_replays_under_its_own_locks(guard: Guard, caller: Caller) -> None:
    """What is done is not done again; a call that failed takes its lock again."""
    bank = Bank(guard, caller)
    problems = [Declined(), None]

    def pay(a: str) -> None:
        if (problem := problems.pop(0)) is not None:
            raise problem

    tool = caller.tool(guard, effect="write", lock="'account:' + a")(pay)

    async def job() -> None:
        for _ in range(2):
            with contextlib.suppress(KeyboardInterrupt):
                async with caller.run(guard, id="one"):
                    await caller.call(bank.transfer, "1", "2")
                    with contextlib.suppress(Declined):
                        await caller.call(tool, "1")
                    if problems:
                        raise KeyboardInterrupt

    caller.play(job)
    assert (bank.log, problems) == (["1>2"], [])
    assert guard.runs.get("one").status == "completed"
    assert bank.held("1") == []


# -- waiting ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _apart(job: Callable[[], Any]) -> Iterator[list[Any]]:
    """``job`` in a thread of its own, outside any run; its answer or error is in the list when the block is left."""
    answer: list[Any] = []

    def work() -> None:
        try:
            answer.append(job())
        except BaseException as error:
            answer.append(error)

    thread = threading.Thread(target=contextvars.Context().run, args=(work,), daemon=True)
    thread.start()
    yield answer
    thread.join(60)
    assert not thread.is_alive()


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def _waiter(guard: Guard, caller: Caller, ran: list[str], **fields: Any) -> Callable[[str], Any]:
    """``job(run id)``: a run with one call that needs the lock."""
    tool = caller.tool(guard, "need", effect="write", lock="'account:1'", **fields)(lambda who: ran.append(who))

    async def job(run_id: str) -> None:
        async with caller.run(guard, id=run_id):
            await caller.call(tool, run_id)

    return lambda run_id: caller.play(job, run_id)


def test_a_call_waits_for_a_lock(guard: Guard, caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that holds nothing waits however old the holder is, and goes on when that is over."""
    asked = threading.Semaphore(0)
    look = type(guard._store).locks_named
    monkeypatch.setattr(type(guard._store), "locks_named", lambda *args: (asked.release(), look(*args))[1])
    ran: list[str] = []
    need = _waiter(guard, caller, ran, lock_wait=60)
    other = guard.run(id="one")
    other.__enter__()
    guard.tool("hold", effect="write", lock="'account:1'")(lambda: None)()
    with _apart(lambda: need("two")) as answer:
        for _ in range(6):
            assert asked.acquire(timeout=60)
        assert ran == []
        other.__exit__(None, None, None)
    assert (answer, ran) == ([None], ["two"])


def test_waiting_ends(guard: Guard, caller: Caller) -> None:
    """After ``lock_wait`` seconds the call is refused."""
    ran: list[str] = []
    need = _waiter(guard, caller, ran, lock_wait=0.05)
    with guard.run(id="one"):
        guard.tool("hold", effect="write", lock="'account:1'")(lambda: None)()
        with _apart(lambda: need("two")) as answer:
            pass
    assert isinstance(answer[0], LockConflict)
    assert ran == []


def test_who_waits_in_a_run_that_is_aborted_does_not_begin(guard: Guard) -> None:
    """What it would do is not wanted any more; it is told so though the lock is kept on."""
    ran, runs = list[str](), list[Run]()
    take = guard.tool("take", compensate=lambda result: None, lock="'account:' + a", lock_wait=10)(
        lambda a: ran.append(a)
    )

    def wait() -> None:
        with guard.run("b") as run:
            runs.append(run)
            with pytest.raises(RunClosed, match="tool 'take' did not run"):
                take("1")

    with ThreadPoolExecutor(1) as pool, guard.run("a"):
        take("1")
        waits = pool.submit(wait)
        until = time.monotonic() + 300
        while not (runs and runs[0].in_flight):
            assert time.monotonic() < until
            time.sleep(0.002)
        runs[0].abort()
        waits.result(60)
    assert ran == ["1"]


def test_runs_that_want_each_other_s_lock_do_not_wait_for_each_other(guard: Guard) -> None:
    """The younger one is refused at once, which ends it, and the older one goes on."""
    both = threading.Barrier(2)
    take = guard.tool("take", compensate=lambda result: None, lock="'account:' + a", lock_wait=10)(lambda a: a)
    order: list[str] = []

    def job(run_id: str, first: str, second: str) -> None:
        with guard.run(id=run_id):
            take(first)
            both.wait(60)
            take(second)
            order.append(run_id)

    with guard.run(id="older") as run:
        take("1")
        with _apart(lambda: job("younger", "2", "1")) as answer:
            both.wait(60)
            take("2")
            order.append(run.id)
    assert order == ["older"]
    assert isinstance(answer[0], LockConflict)
    assert answer[0].holder == "older"
    assert guard.runs.get("younger").status == "compensated"


def test_one_body_at_a_time(worker: Worker) -> None:
    """Processes whose runs need one lock never are inside it together, and all of them get it."""
    script = """
    @guard.tool(effect="write", lock="'account:1'", lock_wait=60)
    def work(who):
        effect(f"in-{who}")
        time.sleep(0.01)
        effect(f"out-{who}")
    for n in range(2):
        with guard.run(id=f"{os.getpid()}-{n}"):
            work(f"{os.getpid()}-{n}")
    """
    processes = [worker.start(script) for _ in range(3)]
    for process in processes:
        _, problem = process.communicate(timeout=300)
        assert process.returncode == 0, problem
    assert len(worker.effects) == 12
    pairs = zip(worker.effects[::2], worker.effects[1::2], strict=True)
    assert all(one.removeprefix("in-") == other.removeprefix("out-") for one, other in pairs)


# -- death -----------------------------------------------------------------------------------------------------------

DIES = """
@guard.tool(compensate=lambda result: effect("undo"), lock="'account:1'")
def work(dying=False):
    effect("work")
    if dying: die()
@guard.tool(effect="write", lock="'account:1'")
def other():
    effect("other")
def attempt():
    try:
        with guard.run(): other()
    except LockConflict as problem:
        print("refused", problem.holder)
"""


@pytest.mark.parametrize("on_interrupt", ["hold", "compensate"])
def test_a_dead_run_keeps_its_locks_until_recovery_ended_it(worker: Worker, on_interrupt: str) -> None:
    """Its process is provably dead, and still nobody else gets its lock: what it did is not undone yet."""
    died = worker.run(DIES + f"with guard.run(id='dead', on_interrupt={on_interrupt!r}):\n    work()\n    die()")
    assert died.returncode == -9, died.stderr
    after = worker.run(
        DIES + "attempt()\nguard.recover()\nattempt()\nif guard.runs.get('dead').status == 'held':\n"
        "    with guard.run(id='dead'): work()\n    attempt()"
    )
    assert after.returncode == 0, after.stderr
    if on_interrupt == "compensate":
        assert (after.stdout.split("\n"), worker.effects) == (["refused dead", ""], ["work", "undo", "other"])
    else:
        assert (after.stdout.split("\n"), worker.effects) == (["refused dead", "refused dead", ""], ["work", "other"])


def test_killed_in_its_body_a_call_keeps_its_lock(worker: Worker) -> None:
    """In doubt, in a run or outside one: until somebody says what happened."""
    for script, effects in (("with guard.run(id='r', on_interrupt='compensate'): work(True)", 1), ("work(True)", 1)):
        worker.effects_file.unlink(missing_ok=True)
        died = worker.run(DIES + script)
        assert died.returncode == -9, died.stderr
        after = worker.run(
            DIES + "attempt()\nguard.recover()\nattempt()\nfor call in guard.calls.list():\n"
            "    guard.calls.resolve(call.id, 'did-not-happen', note='looked')\nguard.recover()\nattempt()"
        )
        assert after.returncode == 0, after.stderr
        assert after.stdout.count("refused") == 2, after.stdout
        assert worker.effects == ["work"] * effects + ["other"]


# -- declarations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lock", "sentence"),
    [
        ("'account:' + ", "not valid CEL"),
        ("'account:' + acount", "names 'acount'.*did you mean account"),
        (lambda nothing: nothing, "nothing can fill the parameter 'nothing' of its lock function"),
        (Caller("async").body(lambda account: account), "its lock function is async"),
    ],
)
def test_a_lock_is_checked_at_the_definition(guard: Guard, lock: Any, sentence: str) -> None:
    """As a key is; and a wait needs something to wait for."""
    with pytest.raises(ConfigurationError, match=sentence):
        guard.tool("pay", lock=lock)(lambda account: None)
    with pytest.raises(ConfigurationError, match="lock_wait= but no lock="):
        guard.tool("pay", lock_wait=1)(lambda account: None)
    for wait in (-1, float("inf"), "1"):
        with pytest.raises(ConfigurationError, match="lock_wait"):
            Policy(lock="account", lock_wait=wait)


@pytest.mark.parametrize(
    ("lock", "sentence"),
    [
        ("'account:' + account", "its lock failed"),
        ("account", "its lock came out as 7"),
        (lambda: None, "its lock came out as None"),
        (lambda: "", "its lock came out as ''"),
        (lambda: (), "its lock came out as"),
        (lambda: ["a", 3], "asks for the lock 3"),
        (lambda: "a\nb", "in one line"),
        (lambda: "x" * 201, "1 to 200 whole characters"),
        (lambda: "a\0b", "none a NUL"),
        (lambda: "a\ud800", "whole characters"),
        (lambda: [str(n) for n in range(101)], "asks for 101 locks"),
        (lambda account: account["x"], "its lock failed: TypeError"),
    ],
)
def test_a_lock_that_is_none_stops_the_call(guard: Guard, lock: Any, sentence: str) -> None:
    """Fail closed: without its lock the body does not start."""
    ran = []
    tool = guard.tool("pay", effect="write", lock=lock)(lambda account: ran.append(account))
    with pytest.raises(ConfigurationError, match=sentence):
        tool(7)
    assert ran == []


def test_a_layer_can_ask_for_locks(store_url: str) -> None:
    """What any layer declares of the claim is taken with it; a name twice is one lock."""

    async def locking(call: Any, call_next: Any) -> Any:
        return await call_next(call.declare(locks=(*call.declared.locks, "b", "a", "b")))

    with Guard(store_url, middleware=[locking]) as guard:
        tool = guard.tool("act", effect="write")(lambda: guard.runs.get("one").locks)
        with guard.run(id="one"):
            assert tool() == ("a", "b")


def test_outcome_unknown_is_no_conflict(guard: Guard, bank: Bank) -> None:
    """The same call asked again while it is in doubt says so, rather than that it holds its own lock."""
    with pytest.raises(TimeoutError), guard.run(id="one"):
        bank.lose("1")
    with pytest.raises(OutcomeUnknown), guard.run(id="one"):
        bank.lose("1")
