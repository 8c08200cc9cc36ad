"""The embedded store: its file, its schema, its fences."""

from __future__ import annotations

import contextvars
import os
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest

from sagaspan import ConfigurationError, Guard, SchemaOutdated, StoreUnavailable
from sagaspan.ledger.store import CallChange, RunChange, Store
from sagaspan.ledger.transitions import (
    CallEvent,
    RunEvent,
    claim_again,
    move_call,
    move_run,
    open_call,
    open_run,
    supersede,
)
from sagaspan.stores import connect
from sagaspan.stores._migrate import current_version, migrate, migrations
from tests.conftest import Worker
from tests.ledger.test_transitions import CALL, RUN


@pytest.fixture
def store(store_url: str) -> Store:
    """An open store with one run."""
    store = connect(store_url)
    opened, audit = open_run(RUN)
    assert store.commit([RunChange(opened, audit)], synced=True)
    return store


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_files_are_private(tmp_path: Path) -> None:
    """The ledger, its WAL and its shared memory are 0600, the folder made for it 0700, whatever the umask."""
    before = os.umask(0)
    try:
        with Guard(f"sqlite:///{tmp_path}/new/ledger.db") as guard:
            guard.tool("act")(lambda: 1)()
            found = {path.name: _mode(path) for path in (tmp_path / "new").iterdir()}
    finally:
        os.umask(before)
    assert found == {"ledger.db": 0o600, "ledger.db-wal": 0o600, "ledger.db-shm": 0o600}
    assert _mode(tmp_path / "new") == 0o700


def test_nothing_is_opened_before_the_first_call(tmp_path: Path) -> None:
    """A guard and its tools touch no disk."""
    guard = Guard(f"sqlite:///{tmp_path}/ledger.db")
    guard.tool("act")(lambda: 1)
    guard.run()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("ledger.db", "is not a URL"),
        ("oracle://h/db", "of a kind this version does not know"),
        ("sqlite://ledger.db", "has no path"),
        ("sqlite:///", "has no path"),
        ("sqlite://", "has no path"),
    ],
)
def test_bad_urls(url: str, sentence: str) -> None:
    """A URL that cannot be read is refused when the guard is made, with one that can."""
    with pytest.raises(ConfigurationError, match=sentence):
        Guard(url)


def test_memory_is_no_ledger(tmp_path: Path) -> None:
    """Neither one that forgets everything, nor a file of that name."""
    with pytest.raises(ConfigurationError, match="would forget everything"):
        Guard("sqlite:///:memory:")
    assert list(tmp_path.iterdir()) == []


def test_a_relative_path_is_of_the_folder_it_was_named_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that changes its folder keeps its ledger."""
    with Guard("sqlite:///ledger.db") as guard:
        (tmp_path / "sub").mkdir()
        monkeypatch.chdir(tmp_path / "sub")
        guard.tool("act")(lambda: 1)()
    assert (tmp_path / "ledger.db").exists()
    assert not (tmp_path / "sub" / "ledger.db").exists()


def test_the_store_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """``SAGASPAN_STORE`` names the ledger; otherwise it is in ``.sagaspan``, the nearest upwards."""
    (tmp_path / "project" / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project" / "deep")
    (tmp_path / "project" / ".sagaspan").mkdir(mode=0o700)
    for expected in (tmp_path / "project" / ".sagaspan" / "ledger.db", tmp_path / "elsewhere.db"):
        with Guard() as guard:
            guard.tool("act")(lambda: 1)()
        assert expected.exists()
        monkeypatch.setenv("SAGASPAN_STORE", f"sqlite:///{tmp_path}/elsewhere.db")


def test_a_home_of_somebody_else_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a shared machine nobody takes in the records of others by a ``.sagaspan`` above their folders."""
    mine = tmp_path / "shared" / "mine"
    mine.mkdir(parents=True)
    planted = tmp_path / "shared" / ".sagaspan"
    planted.mkdir(mode=0o777)
    monkeypatch.chdir(mine)
    somebody = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: somebody)
    with Guard() as guard:
        guard.tool("act")(lambda: 1)()
    assert (mine / ".sagaspan" / "ledger.db").exists()
    assert list(planted.iterdir()) == []


def _foreign(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("create table customers (id)")
    connection.commit()
    connection.close()


def _calls_of_another_program(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("create table calls (id)")
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (_foreign, "is a database of something else"),
        (_calls_of_another_program, "is a database of something else"),
        (lambda path: path.write_bytes(b"Dear diary, " * 100), "is not a readable SQLite ledger"),
        (lambda path: path.mkdir(), "cannot be made"),
        (lambda path: path.parent.joinpath("file").write_text(""), "cannot be made"),
    ],
)
def test_what_is_no_ledger_stays_as_it_is(tmp_path: Path, make: object, sentence: str) -> None:
    """Somebody else's database or file, a folder, an impossible path: one sentence, and not a byte is changed."""
    path = tmp_path / "ledger.db"
    make(path)  # type: ignore[operator]
    if not path.exists():
        path = tmp_path / "file" / "ledger.db"
    before = path.read_bytes() if path.is_file() else None
    names = sorted(item.name for item in tmp_path.iterdir())
    guard = Guard(f"sqlite:///{path}")
    with pytest.raises(StoreUnavailable, match=sentence) as caught:
        guard.tool("act")(lambda: pytest.fail("ran"))()
    assert "\n" not in str(caught.value)
    assert caught.value.tool_ran == "no"
    assert (path.read_bytes() if path.is_file() else None) == before
    assert sorted(item.name for item in tmp_path.iterdir()) == names


def test_a_newer_ledger_is_left_alone(tmp_path: Path, store_url: str) -> None:
    """A ledger of a later version is ``SchemaOutdated``, and not a byte of it changes."""
    with Guard(store_url) as guard:
        guard.tool("act")(lambda: 1)()
    path = tmp_path / "ledger.db"
    connection = sqlite3.connect(path)
    connection.execute("insert into migrations values (999, 'future')")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(SchemaOutdated, match=r"has schema 999.*upgrade sagaspan"):
        Guard(store_url).runs.list()
    assert path.read_bytes() == before


def test_who_is_at_work_while_a_newer_program_migrates_starts_nothing_more(tmp_path: Path, store_url: str) -> None:
    """It knows neither the new tables nor their rules: its next commit says so, and what it had is as it was."""
    ran: list[int] = []
    with Guard(store_url) as guard:
        act = guard.tool("act", effect="write")(ran.append)
        with pytest.raises(SchemaOutdated, match=r"has schema 999.*upgrade sagaspan"), guard.run(id="r"):
            act(1)
            connection = sqlite3.connect(tmp_path / "ledger.db")
            connection.execute("insert into migrations values (999, 'future')")
            connection.commit()
            connection.close()
            with pytest.raises(SchemaOutdated, match=r"has schema 999.*upgrade sagaspan") as caught:
                act(2)
            assert caught.value.tool_ran == "no"
            act(3)
        assert [call.state for call in guard.runs.get("r").calls] == ["done"]
    assert ran == [1]


def test_an_older_ledger_is_checked_or_migrated(tmp_path: Path, store_url: str) -> None:
    """``migrate="check"`` refuses an older (here: empty) ledger without touching it; ``"auto"`` migrates it."""
    path = tmp_path / "ledger.db"
    path.write_bytes(b"")
    with pytest.raises(SchemaOutdated, match=r"has schema 0.*migrate='auto'"):
        Guard(store_url, migrate="check").runs.list()
    with Guard(store_url) as guard:
        assert guard.runs.list() == []
    with Guard(store_url, migrate="check") as guard:
        assert guard.runs.list() == []


def test_migrations_are_applied_once_by_many_processes(worker: Worker) -> None:
    """Processes that open a new ledger at once all succeed, and each migration is applied once."""
    script = """
    while not effects.exists():
        time.sleep(0.001)
    @guard.tool
    def act():
        return 1
    act()
    """
    processes = [worker.start(script) for _ in range(6)]
    worker.effects_file.with_name("ledger.db").unlink(missing_ok=True)
    worker.effects_file.write_text("go")
    for process in processes:
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    connection = sqlite3.connect(worker.effects_file.with_name("ledger.db"))
    assert connection.execute("select number, count(*) from migrations group by number").fetchall() == [
        (migration.number, 1) for migration in migrations("sqlite")
    ]
    assert connection.execute("select count(*) from calls where state = 'done'").fetchone() == (6,)
    connection.close()


def test_who_opens_a_new_ledger_waits_for_who_does_so_too(tmp_path: Path) -> None:
    """SQLite itself waits for no lock when it switches to WAL."""
    path = tmp_path / "ledger.db"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("begin immediate")
    letting_go = threading.Timer(0.2, other.rollback)
    letting_go.start()
    with Guard(f"sqlite:///{path}") as guard:
        assert guard.tool("act")(lambda: "done")() == "done"
    letting_go.join()
    other.close()


def test_nobody_else_migrates_in_the_middle(tmp_path: Path) -> None:
    """Of two that open a new ledger at the same moment one waits, and finds it done."""
    path = tmp_path / "ledger.db"
    first, second = (sqlite3.connect(path, isolation_level=None, timeout=0) for _ in range(2))
    first.execute("pragma journal_mode = wal")
    interrupted: list[str] = []

    def meanwhile(statement: str) -> None:
        if statement.startswith("create table if not exists migrations") and not interrupted:
            try:
                migrate(second, str(path), apply=True)
            except sqlite3.OperationalError as locked:
                interrupted.append(str(locked))

    first.set_trace_callback(meanwhile)
    migrate(first, str(path), apply=True)
    assert interrupted == ["database is locked"]
    migrate(second, str(path), apply=True)
    assert current_version(second, str(path)) == migrations("sqlite")[-1].number
    first.close()
    second.close()


def test_each_migration_has_a_number_of_its_own() -> None:
    """Every file of the folder is a migration."""
    files = [file.name for file in (resources.files("sagaspan.stores") / "migrations" / "sqlite").iterdir()]
    assert len({migration.number for migration in migrations("sqlite")}) == len(files)


def test_a_migration_that_was_left_out_is_applied_later(tmp_path: Path) -> None:
    """Of two that were made side by side the one with the higher number may come first."""
    path = tmp_path / "ledger.db"
    connection = sqlite3.connect(path, isolation_level=None)
    migrate(connection, str(path), apply=True)
    connection.execute("delete from migrations where name = 'approvals'")
    connection.execute("drop table approvals")
    migrate(connection, str(path), apply=True)
    assert connection.execute("select count(*) from approvals").fetchone() == (0,)
    connection.close()


def test_the_schema_checks_what_the_code_promises(store: Store, tmp_path: Path) -> None:
    """The database itself refuses states that do not exist and text where numbers belong."""
    connection = sqlite3.connect(tmp_path / "ledger.db")
    for statement in ("update runs set state = 'lost'", "update runs set epoch = 'x'", "update runs set name = null"):
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute(statement)
    connection.close()


def test_claims_are_fenced(store: Store) -> None:
    """A claim needs its run at the same epoch and running; otherwise nothing of the commit is saved."""
    record, audit = open_call(CALL)
    other, other_audit = open_call(replace(CALL, id="d", key="other"))
    for epoch in (0, 2):
        changes = [CallChange(other, other_audit), CallChange(record, audit, claims=True, run_epoch=epoch)]
        assert not store.commit(changes, synced=True)
    assert store.calls_of("n", "r") == []
    assert store.commit([CallChange(record, audit, claims=True, run_epoch=1)], synced=True)
    assert not store.commit([CallChange(record, audit, claims=True, run_epoch=1)], synced=True)
    failed, audit = move_call(record, CallEvent.FAIL, 2)
    assert store.commit([CallChange(failed, audit, 1)], synced=False)
    again, audit = claim_again(failed, owner="o", now_us=3, traceparent=None)
    assert not store.commit([CallChange(again, audit, 2, claims=True, run_epoch=2)], synced=True)
    ended, run_audit = move_run(RUN, RunEvent.COMPLETE, 4)
    assert store.commit([RunChange(ended, run_audit, 1)], synced=True)
    assert not store.commit([CallChange(again, audit, 2, claims=True, run_epoch=1)], synced=True)
    assert [row.event for row in store.audit_of("n", "r")] == ["run.open", "claim", "fail", "run.complete"]


def test_a_call_that_loses_its_key_gives_it_to_the_next(store: Store) -> None:
    """It keeps its record under another key; the next claim of the old one is a new call."""
    record, audit = open_call(CALL)
    assert store.commit([CallChange(record, audit, claims=True, run_epoch=1)], synced=True)
    failed, audit = move_call(record, CallEvent.FAIL, 2)
    assert store.commit([CallChange(failed, audit, 1)], synced=False)
    freed, audit = supersede(failed, 3)
    following, opened = open_call(replace(CALL, id="d"))
    changes = [CallChange(freed, audit, 2), CallChange(following, opened, claims=True, run_epoch=1)]
    assert store.commit(changes, synced=True)
    found = store.find_call(CALL.namespace, CALL.scope, CALL.tool, CALL.key)
    assert found is not None
    assert found.id == "d"
    assert store.get_call("c") == replace(freed, claim_seq=2)


def test_a_change_of_another_version_saves_nothing(store: Store) -> None:
    """What was read before somebody else saved is stale: nothing is written over, and nothing claimed again."""
    record, audit = open_call(CALL)
    assert store.commit([CallChange(record, audit, claims=True, run_epoch=1)], synced=True)
    failed, audit = move_call(record, CallEvent.FAIL, 2)
    assert store.commit([CallChange(failed, audit, 1)], synced=False)
    lost, audit = move_call(record, CallEvent.LOSE, 3)
    assert not store.commit([CallChange(lost, audit, 1)], synced=True)
    again, audit = claim_again(failed, owner="o", now_us=4, traceparent=None)
    assert not store.commit([CallChange(again, audit, 1, claims=True, run_epoch=1)], synced=True)
    assert store.get_call("c") == replace(failed, claim_seq=2)
    committed, audit = move_run(RUN, RunEvent.COMMIT, 5)
    assert store.commit([RunChange(committed, audit, 1)], synced=True)
    ended, audit = move_run(RUN, RunEvent.COMPLETE, 6)
    assert not store.commit([RunChange(ended, audit, 1)], synced=True)
    assert store.get_run("n", "r") == committed


def test_claim_order_is_the_order_of_starting(store: Store) -> None:
    """A call that is claimed again takes its place anew: it started later."""
    for name in "ab":
        record, audit = open_call(replace(CALL, id=name, key=name))
        assert store.commit([CallChange(record, audit, claims=True, run_epoch=1)], synced=True)
    first = store.get_call("a")
    assert first is not None
    failed, audit = move_call(first, CallEvent.FAIL, 2)
    assert store.commit([CallChange(failed, audit, 1)], synced=False)
    again, audit = claim_again(failed, owner="o", now_us=3, traceparent=None)
    assert store.commit([CallChange(again, audit, 2, claims=True, run_epoch=1)], synced=True)
    assert [call.id for call in store.calls_of("n", "r")] == ["b", "a"]


@pytest.mark.parametrize(
    "prefix", ["a*", "a?", "a[b]", "a]", "a^-", "a'b\"; --", "a%_", "a\\", "a\ud7ff", "a\U0010ffff"]
)
def test_prefixes_are_literal(store: Store, prefix: str) -> None:
    """Characters that mean something to GLOB or SQL match only themselves."""
    for name in (f"{prefix}1", f"{prefix}2", "ab1", "aXY"):
        opened, audit = open_run(replace(RUN, id=name))
        assert store.commit([RunChange(opened, audit)], synced=False)
        record, audit = open_call(replace(CALL, id=name, key=f"k-{name}", run_id=name))
        assert store.commit([CallChange(record, audit)], synced=False)
    assert {run.id for run in store.match_runs(prefix)} == {f"{prefix}1", f"{prefix}2"}
    assert {call.id for call in store.match_calls(prefix)} == {f"{prefix}1", f"{prefix}2"}
    assert {call.id for call in store.match_calls(f"k-{prefix}")} == {f"{prefix}1", f"{prefix}2"}
    assert [run.id for run in store.match_runs(f"{prefix}1")] == [f"{prefix}1"]


def test_namespaces_are_found_and_kept_apart(store: Store) -> None:
    """Each once, however many runs it has; what is asked of one shows nothing of another."""
    assert store.namespaces() == ["n"]
    for namespace in ("b", "a", "c"):
        for name in ("r1", "r2"):
            opened, audit = open_run(replace(RUN, namespace=namespace, id=name))
            assert store.commit([RunChange(opened, audit)], synced=False)
            id_ = f"{namespace}-{name}"
            record, audit = open_call(replace(CALL, namespace=namespace, id=id_, key=id_, scope="s:1", run_id=name))
            assert store.commit([CallChange(record, audit)], synced=False)
    assert store.namespaces() == ["a", "b", "c", "n"]
    assert len(store.match_runs("r1")) == 3
    for found in (store.list_runs(namespace="b"), store.match_runs("r", namespace="b")):
        assert sorted((run.namespace, run.id) for run in found) == [("b", "r1"), ("b", "r2")]
    lists = (store.list_calls, store.open_calls)
    for calls in (*(listed(namespace="b") for listed in lists), store.calls_in_scope("s:", namespace="b")):
        assert sorted(call.id for call in calls) == ["b-r1", "b-r2"]
    assert store.match_calls("b-r1", namespace="a") == []
    assert len(store.calls_in_scope("s:")) == 6


def test_reading_makes_no_ledger(tmp_path: Path) -> None:
    """``create=False`` says that there is none, and makes none."""
    with pytest.raises(StoreUnavailable, match="there is no ledger"):
        connect(f"sqlite:///{tmp_path}/none.db", create=False).list_runs()
    assert list(tmp_path.iterdir()) == []


def test_a_closed_store_opens_again(guard: Guard) -> None:
    """``close`` gives the file back; the next use opens it."""
    act = guard.tool("act")(lambda: 1)
    act()
    guard.close()
    guard.close()
    act()
    assert len(guard.runs.list()) == 2


FORK = """
import os, sys, warnings
warnings.simplefilter("ignore")
from sagaspan import Guard
guard = Guard(sys.argv[1])
@guard.tool
def act(n):
    return n
act(0)
parents = guard._store._connection
with guard.run(id="outer"):
    act(1)
    for child in range(3):
        if os.fork() == 0:
            with guard.run(id=f"child-{child}", nested=False):
                for n in range(20):
                    act(n)
            assert guard._store._connection is not parents
            assert guard.runs.get("outer").status == "running"
            try:
                guard.run(id="outer", nested=False).__enter__()
            except Exception as problem:
                assert type(problem).__name__ == "RunInProgress", problem
            else:
                os._exit(3)
            guard.close()
            os._exit(0)
    act(2)
    assert {os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(3)} == {0}
act(3)
info = guard.runs.get("outer")
assert (info.status, len(info.calls)) == ("completed", 2), info
assert all(len(guard.runs.get(f"child-{n}").calls) == 20 for n in range(3))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_children_open_their_own_connection(store_url: str) -> None:
    """A guard that is used before and after a fork works in parent and children, each with its own connection."""
    done = subprocess.run([sys.executable, "-c", FORK, store_url], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_a_full_durability_is_accepted(store_url: str) -> None:
    """``durability`` is ``normal`` or ``full``."""
    with Guard(store_url, durability="full") as guard:
        guard.tool("act")(lambda: 1)()
    with pytest.raises(ConfigurationError, match="durability='none' is not one of"):
        Guard(store_url, durability="none")  # type: ignore[arg-type]


@pytest.mark.parametrize("durability", ["normal", "full"])
def test_what_is_synced_and_what_is_not(store_url: str, durability: str) -> None:
    """Claims, second marks and the end of a run are synced when they return; what follows a claim is not, by itself.

    With ``durability="full"`` all of it is.
    """
    with Guard(store_url, durability=durability) as guard:  # type: ignore[arg-type]
        look = guard.tool("look", effect="read")(lambda: 1)
        book = guard.tool("book", compensate=lambda result: None)(lambda: 1)
        send = guard.tool("send", effect="write", marks_sending=True)(lambda: guard.current_call().sending())
        look()
        statements: list[str] = []
        guard._store._connection.set_trace_callback(statements.append)  # type: ignore[attr-defined]
        with guard.run(id="well"):
            send()
        with pytest.raises(ZeroDivisionError), guard.run(id="undone"):
            book()
            raise ZeroDivisionError
        guard._store._connection.set_trace_callback(None)  # type: ignore[attr-defined]
    levels: dict[str, set[str]] = {"normal": set(), "full": set()}
    level, events = "", []
    for statement in statements:
        words = statement.split()
        if words[:2] == ["pragma", "synchronous"]:
            level = words[-1]
        elif words[:3] == ["insert", "into", "audit"]:
            events.append(statement.split("values (")[1].split(", ")[5].strip("'"))
        elif words == ["commit"]:
            levels[level] |= set(events)
            events = []
    synced = {"claim", "sending", "run.complete", "run.compensate", "compensate", "compensation.claim",
              "compensation.succeed", "compensation_succeeded", "run.compensated"}  # fmt: skip
    unsynced = {"run.open", "succeed"}
    if durability == "full":
        synced, unsynced = synced | unsynced, set()
    assert levels == {"full": synced, "normal": unsynced}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_waits_for_the_statement_that_is_going_on(worker: Worker) -> None:
    """Nobody is in the middle of SQLite when the child is made: its locks would stay taken there for ever."""
    done = worker.run("""
    guard.tool("act")(lambda: 1)()
    inside, go_on, forked = threading.Event(), threading.Event(), threading.Event()
    def hold():
        with guard._store._lock:
            inside.set()
            go_on.wait(60)
    def fork():
        pid = os.fork()
        if pid == 0:
            guard.tool("act")(lambda: 1)()
            os._exit(0)
        os.waitpid(pid, 0)
        forked.set()
    threading.Thread(target=hold).start()
    inside.wait(60)
    threading.Thread(target=fork).start()
    print(forked.wait(0.5))
    go_on.set()
    print(forked.wait(60))
    """)
    assert done.stdout.split() == ["False", "True"], done.stderr


# -- writing for a crowd -------------------------------------------------------------------------------------------


def test_threads_share_a_sync_and_lose_nothing(guard: Guard) -> None:
    """Callers who wait for the file are written together, each still all or nothing."""
    tool = guard.tool("pay", effect="write")(lambda order: order)
    with guard.run(id="crowd"):
        work = [
            threading.Thread(
                target=contextvars.copy_context().run,
                args=(lambda first: [tool(first + n) for n in range(50)], 100 * n),
            )
            for n in range(8)
        ]
        for thread in work:
            thread.start()
        for thread in work:
            thread.join()
    run = guard.runs.get("crowd")
    assert sorted(call.result for call in run.calls) == sorted(100 * n + m for n in range(8) for m in range(50))
    assert {call.state for call in run.calls} == {"done"}


def test_what_is_refused_of_a_batch_leaves_nothing_behind(store: Store) -> None:
    """A request of two changes, of which one is stale, saves neither, though others of its batch are saved."""
    good, good_audit = open_call(CALL)
    half, half_audit = open_call(replace(CALL, id="d", key="other"))
    stale, stale_audit = move_run(RUN, RunEvent.COMPLETE, 2)
    requests = [[CallChange(good, good_audit)], [CallChange(half, half_audit), RunChange(stale, stale_audit, 7)]]
    saved: list[bool] = []
    with store._lock, store._in_use:  # type: ignore[attr-defined]
        work = [
            threading.Thread(target=lambda changes: saved.append(store.commit(changes, synced=True)), args=(changes,))
            for changes in requests
        ]
        for thread in work:
            thread.start()
        while len(store._queue) < 2:  # type: ignore[attr-defined]
            time.sleep(0.001)
    for thread in work:
        thread.join()
    assert sorted(map(bool, saved)) == [False, True]
    assert [call.id for call in store.calls_of("n", "r")] == ["c"]
    assert [row.event for row in store.audit_of("n", "r")] == ["run.open", "claim"]


def test_who_is_written_by_another_goes_on_at_once(store: Store) -> None:
    """It does not wait for the connection, which others may use one after the other."""
    answered = threading.Event()

    def claim() -> None:
        assert store.commit([CallChange(*open_call(CALL))], synced=True)
        answered.set()

    waiting = threading.Thread(target=claim)
    with store._lock, store._in_use:  # type: ignore[attr-defined]
        waiting.start()
        while not store._queue:  # type: ignore[attr-defined]
            time.sleep(0.001)
        store._write_all(store._connection)  # type: ignore[attr-defined]
        assert answered.wait(60)
    waiting.join()


def test_what_is_refused_of_a_batch_does_not_touch_the_others(guard: Guard) -> None:
    """Equal writes of many threads: one runs, the others are answered from its record."""
    ran = []
    tool = guard.tool("pay", effect="write", loop=False)(lambda order: ran.append(order) or order)
    with guard.run(id="crowd"):
        work = [
            threading.Thread(target=contextvars.copy_context().run, args=(lambda: [tool(n) for n in range(40)],))
            for _ in range(8)
        ]
        for thread in work:
            thread.start()
        for thread in work:
            thread.join()
    assert sorted(ran) == list(range(40))
