"""A store that is locked, full, read-only, damaged or gone: a clear error in bounded time, and no half-claimed call."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sagaspan import Guard, StoreError, StoreUnavailable
from sagaspan.adapters import Tool
from sagaspan.ledger.store import RunChange
from sagaspan.ledger.transitions import open_run
from sagaspan.policy import Policy
from sagaspan.stores import connect, sqlite
from tests.conftest import Worker
from tests.ledger.test_transitions import RUN

# What is imported or read lazily may be out of reach for that user, so it is used once before.
DROP = """
import contextlib, io
from sagaspan.cli import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    Guard(f"sqlite:///{effects}.db").tool("act")(lambda: 1)()
    main(["calls", "list", "--all", "--json", "--store", f"sqlite:///{effects}.db"])
if os.geteuid() == 0:  # root may write anything
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
"""
REPORT = """
@guard.tool(effect="write")
def pay(order):
    effect(order)
try:
    pay("o-1")
except Exception as error:
    print(type(error).__name__, error.tool_ran, str(error))
else:
    print("paid")
"""


@pytest.fixture
def pay(guard: Guard) -> Callable[[str], str]:
    """A write on a ledger that is open; ``pay.ran`` is the world."""
    ran: list[str] = []

    @guard.tool(effect="write")
    def pay(order: str) -> str:
        ran.append(order)
        return f"paid {order}"

    guard.runs.list()
    pay.ran = ran  # type: ignore[attr-defined]
    return pay


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that waits for a lock only for a moment."""
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.2)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another program that holds the write lock of the ledger."""
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("begin immediate")
    try:
        yield
    finally:
        other.execute("rollback")
        other.close()


# -- locked ----------------------------------------------------------------------------------------------------


def test_a_lock_that_stays_is_an_error_and_nothing_is_claimed(
    impatient: None, guard: Guard, pay: Any, tmp_path: Path
) -> None:
    """The body does not run, and once the lock is gone the same call runs once."""
    with guard.run(id="r"):
        with locked(tmp_path / "ledger.db"), pytest.raises(StoreUnavailable, match="stayed locked") as caught:
            pay("o-1")
        assert caught.value.tool_ran == "no"
        assert guard.runs.get("r").calls == ()
        pay("o-1")
    assert pay.ran == ["o-1"]
    assert [call.state for call in guard.runs.get("r").calls] == ["done"]


def test_a_crowd_waits_for_a_lock_together(
    impatient: None, guard: Guard, pay: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers who queued up are all told at once, not each after a wait of its own."""
    pay("first")
    attempts: list[int] = []
    write = sqlite._write
    monkeypatch.setattr(sqlite, "_write", lambda *how: attempts.append(len(how[1])) or write(*how))
    errors: list[BaseException] = []

    def try_it(order: str) -> None:
        try:
            pay(order)
        except StoreUnavailable as error:
            errors.append(error)

    with locked(tmp_path / "ledger.db"):
        crowd = [threading.Thread(target=try_it, args=(f"o-{n}",)) for n in range(12)]
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join(60)
    assert len(errors) == 12
    assert sum(attempts) == 12, "a request was written more than once"
    assert pay.ran == ["first"]
    assert {call.state for call in guard.calls.list(open=False)} == {"done"}


def test_a_ledger_that_another_program_has_for_itself(impatient: None, store_url: str, tmp_path: Path) -> None:
    """A store that cannot even be opened says so, and is opened when it can be."""
    with Guard(store_url) as guard:
        guard.tool("act")(lambda: 1)()
    other = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    other.execute("pragma locking_mode = exclusive")
    other.execute("begin exclusive")
    with Guard(store_url) as guard:
        act = guard.tool("act")(lambda: 2)
        with pytest.raises(StoreUnavailable, match="stayed locked"):
            act()
        other.close()
        assert act() == 2


# -- one writer for many ---------------------------------------------------------------------------------------


def test_a_value_that_the_file_cannot_hold_is_the_matter_of_its_own_call(guard: Guard, pay: Any) -> None:
    """A framework's call id that is no text refuses its call; those who write with it and after it are not touched."""
    tool: Tool = guard.define(lambda: None, name="other", policy=Policy())
    for _ in range(2):
        with pytest.raises(StoreError, match="cannot hold") as caught:
            guard.call_tool(tool, {}, lambda _: pytest.fail("ran"), tool_call_id="\ud800")
        assert caught.value.tool_ran == "no"
        assert pay("o-1") == "paid o-1"


def test_who_was_told_that_it_failed_does_not_find_it_done(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that was interrupted is not written by the next writer."""
    store = connect(store_url)
    store.list_runs()
    write = sqlite._write

    def interrupted(*_: Any) -> None:
        monkeypatch.setattr(sqlite, "_write", write)
        raise KeyboardInterrupt

    monkeypatch.setattr(sqlite, "_write", interrupted)
    changes = {name: RunChange(*open_run(replace(RUN, id=name))) for name in ("one", "two")}
    with pytest.raises(KeyboardInterrupt):
        store.commit([changes["one"]], synced=True)
    assert store.commit([changes["two"]], synced=True)
    assert [run.id for run in store.list_runs()] == ["two"]


# -- no room ---------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A real disk of 24 MB."""
    folder = Path(tempfile.mkdtemp(prefix="sagaspan-"))
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", folder], capture_output=True)
    if mounted.returncode != 0:
        folder.rmdir()
        pytest.skip("may not mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)
        folder.rmdir()


def test_a_disk_that_fills_up_in_the_middle(small_disk: Path) -> None:
    """What a tool returned reaches its caller, nothing new is claimed until it is recorded, and then it is."""
    with Guard(f"sqlite:///{small_disk}/ledger.db") as guard:
        filler = small_disk / "filler"

        @guard.tool(effect="write", key="order")
        def pay(order: str, fills: bool = False) -> str:
            if fills:
                with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                    while True:
                        file.write(b"x" * 4096)
            return "x" * 8_000_000 if fills else "paid"

        assert pay("o-1") == "paid"
        assert len(pay("o-2", fills=True)) == 8_000_000
        with pytest.raises(StoreUnavailable, match="full") as caught:
            pay("o-3")
        assert caught.value.tool_ran == "no"
        states = {call.key: call.state for call in guard.calls.list(open=False)}
        assert states == {"o-1": "done", "o-2": "running"}
        filler.unlink()
        assert pay("o-3") == "paid"
        assert {call.key: call.state for call in guard.calls.list(open=False)} == dict.fromkeys(
            ("o-1", "o-2", "o-3"), "done"
        )


def test_a_disk_without_room_at_the_start(small_disk: Path) -> None:
    """A ledger that cannot be made says why, and leaves nothing that a later start would stumble over."""
    (small_disk / "filler").write_bytes(b"x" * (24 * 2**20 - 40_000))
    with Guard(f"sqlite:///{small_disk}/ledger.db") as guard:
        act = guard.tool("act")(lambda: 1)
        with pytest.raises(StoreUnavailable, match="full"):
            act()
        (small_disk / "filler").unlink()
        assert act() == 1


def test_a_limit_on_file_sizes(worker: Worker) -> None:
    """A file-size limit of the system is a clear error too."""
    done = worker.run("import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))\n" + REPORT)
    assert done.stdout.startswith("StoreUnavailable no the disk of the ledger"), (done.stdout, done.stderr)
    assert worker.effects == []


# -- no right --------------------------------------------------------------------------------------------------


@pytest.fixture
def common_folder() -> Iterator[Path]:
    """A folder that every user can enter, as pytest's own is not."""
    folder = Path(tempfile.mkdtemp(prefix="sagaspan-"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def _ledger_in(folder: Path) -> Path:
    with Guard(f"sqlite:///{folder}/ledger.db") as guard:
        guard.tool("act")(lambda: 1)()
    return folder / "ledger.db"


def test_a_folder_that_may_not_be_written(worker: Worker, common_folder: Path) -> None:
    """A new ledger there is a sentence with the path."""
    common_folder.chmod(0o555)
    done = worker.run(DROP + REPORT, TEST_STORE=f"sqlite:///{common_folder}/ledger.db")
    assert done.stdout.startswith(f"StoreUnavailable no the ledger {common_folder}/ledger.db cannot be made"), done


@pytest.mark.parametrize("mode", [0o444, 0o000])
def test_a_ledger_that_may_not_be_written(worker: Worker, common_folder: Path, mode: int) -> None:
    """Nothing runs, and not a byte of it is changed."""
    path = _ledger_in(common_folder)
    path.chmod(mode)
    common_folder.chmod(0o555)
    before = path.read_bytes()
    done = worker.run(DROP + REPORT, TEST_STORE=f"sqlite:///{path}")
    what = "is read-only" if mode else "cannot be opened"
    assert done.stdout.startswith(f"StoreUnavailable no the ledger {path} {what}"), done
    assert path.read_bytes() == before
    assert worker.effects == []


@pytest.mark.parametrize("live", [False, True])
def test_a_read_only_ledger_can_be_looked_at(worker: Worker, common_folder: Path, live: bool) -> None:
    """The command line reads a ledger on a read-only disk: a copy, and one that somebody else is writing."""
    path = _ledger_in(common_folder)
    with contextlib.ExitStack() as stack:
        if live:
            guard = stack.enter_context(Guard(f"sqlite:///{path}"))
            guard.tool("act")(lambda: 1)()
        for file in common_folder.iterdir():
            file.chmod(0o444)
        common_folder.chmod(0o555)
        script = "main(['calls', 'list', '--all', '--json', '--store', os.environ['TEST_STORE']])"
        done = worker.run(DROP + script, TEST_STORE=f"sqlite:///{path}")
        assert done.stdout.count('"tool": "act"') == 1 + live, (done.stdout, done.stderr)


# -- damaged or gone -------------------------------------------------------------------------------------------


def test_a_damaged_ledger_is_left_alone(guard: Guard, pay: Any, tmp_path: Path, store_url: str) -> None:
    """Pages that are no pages: an error that says so, no second run, and no byte written."""
    with guard.run(id="r"):
        for n in range(200):
            pay(f"o-{n}")
    guard.close()
    path = tmp_path / "ledger.db"
    content = bytearray(path.read_bytes())
    content[8192:] = b"\xff" * (len(content) - 8192)
    path.write_bytes(content)
    with Guard(store_url) as other:
        again = other.tool("pay", effect="write")(lambda order: pytest.fail("ran"))
        with pytest.raises(StoreUnavailable, match="not a readable SQLite ledger"):
            again("o-1")
    assert path.read_bytes() == content


@pytest.mark.parametrize("how", ["deleted", "moved", "replaced"])
def test_a_ledger_that_goes_away_while_it_is_used(
    how: str, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite would write on to a file that nobody finds again; it is noticed with the next lease, and nothing runs."""
    monkeypatch.setenv("SAGASPAN_LEASE_SECONDS", "0.3")
    with Guard(store_url) as guard:
        ran: list[int] = []
        act = guard.tool("act")(ran.append)
        act(0)
        (tmp_path / "away").mkdir()
        for file in list(tmp_path.glob("ledger.db*")):
            file.rename(tmp_path / "away" / file.name)
        if how == "deleted":
            shutil.rmtree(tmp_path / "away")
        if how == "replaced":
            _ledger_in(tmp_path)
        deadline = time.monotonic() + 300
        with pytest.raises(StoreUnavailable, match="moved, deleted or replaced while it was in use") as caught:
            while time.monotonic() < deadline:
                act(1)
                time.sleep(0.05)
        assert caught.value.tool_ran == "no"
        before = len(ran)
        with pytest.raises(StoreUnavailable):
            act(2)
        assert len(ran) == before
        if how == "moved":
            for file in (tmp_path / "away").iterdir():
                file.rename(tmp_path / file.name)
            act(3)
            assert [call.result for call in guard.calls.list(open=False)] == [None] * (before + 1)
