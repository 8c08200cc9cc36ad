"""Forgetting what is over: everything that somebody may still need stays whole."""

from __future__ import annotations

import asyncio
import contextvars
import datetime as dt
import json
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sagaspan import ConfigurationError, Guard, NotApplied, RunClosed, StoreUnavailable
from sagaspan.cli import cli
from sagaspan.ledger.resolution import DUPLICATE
from sagaspan.ledger.store import CallChange
from sagaspan.ledger.transitions import CallEvent, duplicate_effect, move_call
from sagaspan.stores import sqlite
from sagaspan.testing import assert_history, frozen_clock
from tests.conftest import Caller, Sql, Worker


class Shop:
    """Tools of every kind; ``ran`` is the world."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.ran: list[str] = []
        self.refuses = False

        def undo(order: str) -> None:
            if self.refuses:
                raise RuntimeError("the bank is closed")
            self.ran.append(f"undo {order}")

        @guard.tool(compensate=undo)
        def book(order: str) -> str:
            self.ran.append(f"book {order}")
            return f"b-{order}"

        @guard.tool(effect="write", key="order")
        def pay(order: str) -> str:
            self.ran.append(f"pay {order}")
            return f"p-{order}"

        @guard.tool(timeout=5, error_means="unknown")
        def lose(order: str) -> None:
            raise TimeoutError(order)

        @guard.tool(effect="write", error_means="unknown")
        def doubt(order: str) -> None:
            raise TimeoutError(order)

        @guard.tool(effect="read")
        def look(order: str) -> str:
            return f"seen {order}"

        self.book, self.pay, self.lose, self.doubt, self.look = book, pay, lose, doubt, look


@pytest.fixture
def shop(guard: Guard) -> Shop:
    return Shop(guard)


def rows(sql: Sql) -> dict[str, int]:
    """How many rows each table has."""
    return {table: sql(f"select count(*) from {table}")[0][0] for table in ("runs", "calls", "audit", "locks")}


def a_settled_run(shop: Shop, name: str) -> None:
    with shop.guard.run("job", id=name), shop.guard.run("inner"):
        shop.book(name)
        shop.look(name)


def test_what_is_settled_is_forgotten_with_its_history(guard: Guard, shop: Shop, sql: Sql) -> None:
    """Completed, failed and compensated runs go with the runs inside them, their calls and their audit rows."""
    a_settled_run(shop, "completed")
    with pytest.raises(LookupError), guard.run("job", id="failed"):
        raise LookupError
    with pytest.raises(LookupError), guard.run("job", id="compensated"):
        shop.book("x")
        raise LookupError
    before = rows(sql)
    expected = guard.prune(older_than=0, dry_run=True)
    assert rows(sql) == before
    done = guard.prune(older_than=0)
    assert (done.runs, done.calls) == (expected.runs, expected.calls) == (4, 4)
    assert done.kept == {}
    assert done.spare_bytes or not guard._store.url.startswith("sqlite")
    assert guard.runs.list() == []
    assert rows(sql) == {"runs": 0, "calls": 0, "audit": 4, "locks": 0}  # each leaves one that says so
    assert guard.prune(older_than=0).runs == 0


def test_what_is_forgotten_is_new_when_it_comes_again(guard: Guard, shop: Shop) -> None:
    """The same run id is another run, and its writes are done."""
    for _ in range(2):
        a_settled_run(shop, "a")
        guard.prune(older_than=0)
    assert shop.ran == ["book a", "book a"]


def test_the_history_of_a_new_run_has_nothing_of_the_forgotten_one(guard: Guard, shop: Shop) -> None:
    """The newest row of all keeps its number taken, so it stays when its run is forgotten."""
    a_settled_run(shop, "a")
    guard.prune(older_than=0)
    a_settled_run(shop, "a")
    assert_history(guard)
    assert [row.event for row in guard._store.audit_of("default", "a")] == ["run.open", "run.complete"]


def _open_inside(shop: Shop) -> None:
    def enter() -> None:
        shop.guard.run("job", id="open").__enter__()
        with shop.guard.run("inner", id="done-inside"):
            shop.book("x")

    contextvars.copy_context().run(enter)


def _paused(shop: Shop) -> None:
    with shop.guard.run("job", id="open") as run:
        shop.book("x")
        run.pause()


def _held(shop: Shop) -> None:
    with pytest.raises(TimeoutError), shop.guard.run("job", id="open"):
        shop.doubt("x")


def _in_doubt(shop: Shop) -> None:
    with shop.guard.run("job", id="open"), pytest.raises(TimeoutError):
        shop.lose("x")


def _not_undone(shop: Shop) -> None:
    shop.refuses = True
    with pytest.raises(Exception, match="NOT undone"), shop.guard.run("job", id="open"):
        shop.book("x")
        raise LookupError


def _queued(shop: Shop) -> None:
    a_settled_run(shop, "open")
    with Guard(shop.guard._store.url) as other, pytest.raises(Exception, match="not registered"):
        other.compensate("open")


def _twice(shop: Shop) -> None:
    a_settled_run(shop, "open")
    store = shop.guard._store
    first = next(call for child in store.children_of("default", "open") for call in store.calls_of("default", child.id))
    from dataclasses import replace

    extra, audit = duplicate_effect(
        replace(first, id="extra", scope=f"{DUPLICATE}{first.id}", key="extra", version=1, claim_seq=0)
    )
    assert store.commit([CallChange(extra, audit)], synced=True)


def _interrupted(shop: Shop) -> None:
    with pytest.raises(KeyboardInterrupt), shop.guard.run("job", id="open"):
        shop.book("x")
        raise KeyboardInterrupt


def _still_in_force(shop: Shop) -> None:
    write = shop.guard.tool("write", effect="write")(lambda: None)
    with pytest.raises(LookupError), shop.guard.run("job", id="open"):
        write()
        raise LookupError


def _paused_inside(shop: Shop) -> None:
    with shop.guard.run("job", id="open"), shop.guard.run("inner") as inner:
        inner.pause()


def _happened_after_all(shop: Shop) -> None:
    @shop.guard.tool(effect="write")
    def refuse() -> None:
        raise NotApplied("no")

    with pytest.raises(NotApplied), shop.guard.run("job", id="open"):
        refuse()
    store = shop.guard._store
    (call,) = store.calls_of("default", "open")
    after, audit = move_call(call, CallEvent.SUCCEED, call.started_us + 1, detail="late result")
    assert store.commit([CallChange(after, audit, call.version)], synced=True)
    assert [late.id for late in shop.guard.calls.late()] == [call.id]


OPEN = [_open_inside, _paused, _paused_inside, _held, _interrupted, _in_doubt, _not_undone, _still_in_force, _queued,
        _twice, _happened_after_all]  # fmt: skip


@pytest.mark.parametrize("make", OPEN)
def test_what_is_not_over_stays_whole(guard: Guard, shop: Shop, sql: Sql, make: Callable[[Shop], None]) -> None:
    """Open, paused, held, in doubt, not undone, waiting for a process, or done twice: not a row of it is forgotten."""
    make(shop)
    before, history = rows(sql), [row.event for row in guard._store.audit_of("default", "open")]
    done = guard.prune(older_than=0, forget_keys=True)
    assert (done.runs, done.calls) == (0, 0)
    assert rows(sql) == before
    assert [row.event for row in guard._store.audit_of("default", "open")] == history
    assert_history(guard)


def test_a_business_key_keeps_its_run(guard: Guard, shop: Shop) -> None:
    """Somebody may ask for the order again in a year: only on request it is forgotten, and then it is paid again."""
    with guard.run("job", id="a"):
        shop.pay("o-1")
    assert guard.prune(older_than=0).kept == {"key": 1}
    with guard.run("job", id="b"):
        shop.pay("o-1")
    assert shop.ran == ["pay o-1"]
    assert guard.prune(older_than=0, forget_keys=True).runs == 2
    with guard.run("job", id="c"):
        shop.pay("o-1")
    assert shop.ran == ["pay o-1", "pay o-1"]


def test_a_business_key_that_is_free_keeps_nothing(guard: Guard, shop: Shop) -> None:
    """What was undone may be done again anyway."""

    @guard.tool(compensate=lambda: None, key="order")
    def reserve(order: str) -> str:
        return order

    with pytest.raises(LookupError), guard.run("job", id="a"):
        reserve("o-1")
        raise LookupError
    assert guard.prune(older_than=0).runs == 1


def test_only_what_is_old_enough(guard: Guard, shop: Shop) -> None:
    """A run counts from its end, and so does a call that was decided later."""
    with frozen_clock() as clock:
        a_settled_run(shop, "old")
        clock.advance(dt.timedelta(days=10))
        a_settled_run(shop, "young")
        clock.advance(dt.timedelta(days=5))
        assert guard.prune(older_than=dt.timedelta(days=90)).runs == 0
        assert guard.prune(older_than=dt.timedelta(days=7)).runs == 2
        assert sorted(run.id for run in guard.runs.list()) == ["young", "young/inner#1"]
        run = guard.run("job", id="long")
        with run:
            clock.advance(dt.timedelta(days=30))
        assert guard.prune(older_than=dt.timedelta(days=7)).kept == {"recent": 1}


@pytest.mark.parametrize("bad", [-1, float("nan"), float("inf"), dt.timedelta(days=-1)])
def test_an_age_that_is_none_is_refused(guard: Guard, bad: Any) -> None:
    """A negative or endless age is a mistake."""
    with pytest.raises(ConfigurationError, match="is no time"):
        guard.prune(older_than=bad)


# -- calls outside a run -------------------------------------------------------------------------------------------


def test_calls_outside_a_run_go_one_by_one(guard: Guard, shop: Shop, tmp_path: Path) -> None:
    """Also while their process lives: settled ones go with their history, what is open or under a key stays."""
    for n in range(20):
        shop.look(f"o-{n}")
    shop.pay("o-1")
    with pytest.raises(TimeoutError):
        shop.doubt("o-1")
    done = guard.prune(older_than=0)
    assert (done.runs, done.calls, dict(done.kept)) == (0, 20, {"key": 1, "open": 1})
    (session,) = guard.runs.list()
    assert sorted(call.tool for call in guard.runs.get(session.id).calls) == ["doubt", "pay"]
    history = guard._store.audit_of("default", session.id)
    assert [row.event for row in history] == ["run.open", "claim", "succeed", "claim", "lose", "forget"]
    assert done.audit_rows == 40
    assert_history(guard)
    assert shop.pay("o-1") == "p-o-1"
    assert shop.ran == ["pay o-1"]


def test_a_session_that_ended_is_forgotten_with_its_last_call(guard: Guard, shop: Shop) -> None:
    """Nothing of it is needed then."""
    shop.look("o-1")
    guard.close()
    done = guard.prune(older_than=0)
    assert (done.runs, done.calls) == (1, 1)
    assert guard.runs.list() == []


def test_how_often_an_undo_was_tried_is_not_forgotten(guard: Guard, shop: Shop) -> None:
    """The record of a failed compensation stays as long as its step is not undone."""
    shop.refuses = True
    shop.book("o-1")
    (step,) = guard.calls.list(open=False)
    with pytest.raises(Exception, match="NOT undone"):
        guard.compensate(step.run_id, call=step.id)
    done = guard.prune(older_than=0)
    assert (done.calls, done.kept) == (0, {"open": 2})


def test_locks_that_nobody_holds_are_forgotten(guard: Guard, sql: Sql) -> None:
    """The lock of a forgotten run or call is free, and so is its name."""
    write = guard.tool("write", effect="write", lock="name")(lambda name: name)
    with guard.run("job", id="a"):
        write("x")
    write("y")
    assert rows(sql)["locks"] == 2
    guard.prune(older_than=0)
    assert rows(sql)["locks"] == 0
    with guard.run("job", id="b"):
        write("x")


# -- while others work ---------------------------------------------------------------------------------------------


def test_what_changes_meanwhile_stays_whole(guard: Guard, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who takes up a run again between the look and the deletion keeps all of it."""
    for name in ("resumed", "undone", "left"):
        a_settled_run(shop, name)
    with pytest.raises(LookupError), guard.run("job", id="failed"):
        shop.look("x")
        raise LookupError
    forget = guard._store.forget
    opened = []

    def meanwhile(families: Any, **by: Any) -> Any:
        monkeypatch.setattr(guard._store, "forget", forget)
        opened.append(guard.run("job", id="failed"))
        opened[0].__enter__()
        guard.compensate("undone")
        return forget(families, **by)

    monkeypatch.setattr(guard._store, "forget", meanwhile)
    done = guard.prune(older_than=0)
    assert done.runs == 4
    assert sorted(run.id for run in guard.runs.list()) == ["failed", "undone", "undone/inner#1"]
    opened[0].__exit__(None, None, None)
    assert_history(guard)


def test_agents_go_on_meanwhile(guard: Guard, shop: Shop, store_url: str) -> None:
    """Calls of this and of another connection are neither refused nor lost while many runs are forgotten."""
    for n in range(150):
        a_settled_run(shop, f"old-{n}")
    stop, failures, made = threading.Event(), [], []

    def work(own: Guard, name: str) -> None:
        tool = own.tool("work", effect="write")(lambda n: n)
        try:
            n = 0
            while not stop.is_set() or n < 20:
                with own.run("job", id=f"{name}-{n}"):
                    tool(n)
                made.append(f"{name}-{n}")
                n += 1
                time.sleep(0.01)  # prune forgets what they make, too: it would never end
        except Exception as error:
            failures.append(error)

    with Guard(store_url) as other:
        threads = [threading.Thread(target=work, args=pair) for pair in ((guard, "mine"), (other, "other"))]
        for thread in threads:
            thread.start()
        for _ in range(5):
            guard.prune(older_than=0)
        stop.set()
        for thread in threads:
            thread.join(60)
    assert failures == []
    assert len(made) >= 40
    assert not any(guard.runs.get(f"old-{n}") for n in range(150))
    assert_history(guard)


def test_killed_in_the_middle_it_is_gone_on_with(guard: Guard, shop: Shop, worker: Worker) -> None:
    """Whole runs are gone or there; the next prune takes the rest."""
    for n in range(120):
        a_settled_run(shop, f"old-{n}")
    for n in range(20):
        shop.look(f"o-{n}")
    for at in range(1, 6):
        done = worker.run(f"""
        from sagaspan._prune import Pruner
        steps = []
        def progress(done):
            steps.append(done)
            if len(steps) == {at}:
                die()
        Pruner(guard._store, namespace=None, before_us=2**62, forget_keys=False, progress=progress)(dry_run=False)
        """)
        assert done.returncode in (0, -9)
        assert_history(guard)
        for run in guard.runs.list(limit=1000):
            assert run.name in ("session", "inner") or len(guard.runs.list(limit=1000)) % 2
    guard.prune(older_than=0)
    assert [run.name for run in guard.runs.list()] == ["session"]


def test_the_order_of_claims_goes_on(guard: Guard, shop: Shop) -> None:
    """A number that was given once is not given again: what is undone last was started first."""
    a_settled_run(shop, "a")
    last = max(call.claim_seq for child in guard._store.children_of("default", "a")
               for call in guard._store.calls_of("default", child.id))  # fmt: skip
    guard.prune(older_than=0)
    with guard.run("job", id="b"):
        shop.look("x")
    assert guard._store.calls_of("default", "b")[0].claim_seq > last


def test_namespaces_are_apart(store_url: str) -> None:
    """A guard forgets what is its own."""
    with Guard(store_url, namespace="one") as one, Guard(store_url, namespace="two") as two:
        for guard in (one, two):
            with guard.run("job", id="a"):
                pass
        assert one.prune(older_than=0).runs == 1
        assert [run.id for run in two.runs.list()] == ["a"]


def test_asynchronous_callers_prune_too(store_url: str) -> None:
    """``aprune`` does the same; cancelled, it stops after the batch in hand."""

    async def job() -> None:
        async with Guard(store_url) as guard:
            for n in range(120):
                async with guard.run("job", id=f"a-{n}"):
                    pass
            work = asyncio.create_task(guard.aprune(older_than=0))
            await asyncio.sleep(0)
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
            left = len(guard.runs.list(limit=1000))
            done = await guard.aprune(older_than=0)
            assert done.runs == left
            assert guard.runs.list() == []

    asyncio.run(job())


# -- the command line ----------------------------------------------------------------------------------------------


@pytest.fixture
def prune(store_url: str) -> Callable[..., Any]:
    """``sagaspan prune ...`` on this test's ledger."""
    return lambda *args: CliRunner().invoke(cli, ["prune", "--store", store_url, *args])


def test_the_command(
    guard: Guard, shop: Shop, prune: Callable[..., Any], store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts first if asked, then forgets, says what stays and why, and how the room is given back."""
    monkeypatch.setattr(sqlite, "PRIMED_BYTES", 1_000_000)  # so that there is room, also without thousands of calls
    a_settled_run(shop, "a")
    with guard.run("job", id="b"):
        shop.pay("o-1")
    done = prune("--older-than", "0s", "--dry-run")
    assert (done.exit_code, done.output.splitlines()[0]) == (0, "Would forget 2 runs, 2 calls.")
    answer = json.loads(prune("--older-than", "0s", "--dry-run", "--json").output)
    assert (answer["runs"], answer["audit_rows"]) == (2, None)
    done = prune("--older-than", "0s")  # from cron, say
    assert (done.exit_code, len(guard.runs.list())) == (2, 3)
    assert "add --yes" in done.output
    done = prune("--older-than", "0s", "--yes")
    assert done.output.splitlines()[:2] == [
        "Forgot 2 runs, 2 calls.",
        "Kept 1 with a business key that somebody may rely on; --forget-keys forgets them too.",
    ]
    assert "new when they come again" in done.output
    assert ("sagaspan prune --vacuum" in done.output) == store_url.startswith("sqlite")  # a server keeps its own house
    answer = json.loads(prune("--older-than", "0s", "--forget-keys", "--json", "--yes").output)
    assert (answer["runs"], answer["calls"], answer["kept"]) == (1, 1, {})
    assert prune("--older-than", "soon").exit_code == 2
    assert prune().exit_code == 2


@pytest.mark.of_sqlite("what a vacuum does to its file")
def test_the_room_is_given_back(guard: Guard, prune: Callable[..., Any], tmp_path: Path, sql: Sql) -> None:
    """``--vacuum`` makes the file smaller; a guard that has it open goes on."""
    tool = guard.tool("say")(lambda n: "x" * 100_000)
    with guard.run("job", id="a"):
        for n in range(60):
            tool(n)

    def size() -> int:
        return sum(file.stat().st_size for file in tmp_path.glob("ledger.db*"))

    before = size()
    assert prune("--older-than", "0s", "--vacuum", "--yes").exit_code == 0
    assert size() < before / 4
    with guard.run("job", id="b"):
        assert len(tool(1)) == 100_000


@pytest.mark.of_sqlite("its one writer")
def test_a_ledger_that_is_locked_is_said(guard: Guard, shop: Shop, prune: Callable[..., Any], tmp_path: Path, sql: Sql,
                                         monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """What was not forgotten stays, and the next prune takes it."""
    a_settled_run(shop, "a")
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.1)
    other = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    other.execute("begin immediate")
    done = prune("--older-than", "0s", "--yes")
    assert isinstance(done.exception, StoreUnavailable)
    other.execute("rollback")
    other.close()
    assert guard.prune(older_than=0).runs == 2


def test_a_replay_of_what_was_forgotten_is_none(guard: Guard, shop: Shop, caller: Caller) -> None:
    """Nothing half: a run that is there is there whole, so a completed one is replayed."""
    a_settled_run(shop, "a")
    with guard.run("job", id="b"):
        shop.pay("o-1")
    guard.prune(older_than=0)
    with guard.run("job", id="b") as run:
        assert run.replaying
        assert shop.pay("o-1") == "p-o-1"
        with pytest.raises(RunClosed):
            shop.look("x")
