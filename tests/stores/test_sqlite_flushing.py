"""Flushes for a crowd: what several threads want synced is on disk before any of them is answered."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import shutil
import sqlite3
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sagaspan.exceptions import StoreUnavailable
from sagaspan.ledger.records import LeaseRecord
from sagaspan.ledger.store import CallChange
from sagaspan.ledger.transitions import open_call
from sagaspan.stores._sleeping import Sleeper
from sagaspan.stores._sqlite_flushing import LONG, Flushing
from sagaspan.stores.sqlite import SqliteStore
from tests.proofs.wal_file import read
from tests.stores.test_sqlite import CALL

pytestmark = pytest.mark.skipif(not hasattr(os, "fdatasync"), reason="SQLite syncs each commit where there is none")


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """An open ledger."""
    store = SqliteStore(tmp_path / "ledger.db")
    store.describe()
    yield store
    store.close()


def _together(work: Sequence[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=one) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def _claims(store: SqliteStore, ids: str, saved: Callable[[str], object] = lambda name: None) -> list[Any]:
    """What became of as many claims that wait for the file together."""
    answers: list[Any] = []

    def claim(name: str) -> None:
        try:
            answers.append(store.commit([CallChange(*open_call(replace(CALL, id=name, key=name)))], synced=True))
        except StoreUnavailable as error:
            answers.append(error)
        saved(name)

    def let_them_in() -> None:
        with store._lock, store._in_use:
            while len(store._queue) < len(ids):
                pass

    _together([let_them_in, *((lambda name=name: claim(name)) for name in ids)])  # type: ignore[misc]
    return answers


def test_a_crowd_is_answered_after_its_flush(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are written in one commit that is not synced, flushed once, and answered then."""
    happened: list[str] = []
    flush = os.fdatasync

    def noted(file: int) -> None:
        flush(file)
        assert os.path.samestat(os.fstat(file), Path(f"{store.path}-wal").stat())
        happened.append("flush")

    monkeypatch.setattr(os, "fdatasync", noted)
    store._connection.set_trace_callback(  # type: ignore[union-attr]
        lambda statement: happened.append(statement) if statement.startswith(("pragma", "commit")) else None
    )
    assert all(_claims(store, "abc", lambda name: happened.append("answer")))
    assert happened == ["pragma synchronous = normal", "commit", "flush", "answer", "answer", "answer"]
    assert store.commit([CallChange(*open_call(replace(CALL, id="d", key="d")))], synced=True)
    assert happened[6:] == ["pragma synchronous = full", "commit"]


def test_a_flush_is_for_what_was_written_before_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written while the disk works may have missed it, and waits for the next."""
    (tmp_path / "ledger.db-wal").touch()
    flushing = Flushing(tmp_path / "ledger.db")
    flushing.open()
    first, flushes = flushing.written(), [0]

    def slow(file: int) -> None:
        flushes[0] += 1
        if flushes[0] == 1:
            flushing.written()
            flushing.written()

    monkeypatch.setattr(os, "fdatasync", slow)
    flushing.flush(first)
    flushing.flush(first)
    assert flushes == [1]
    flushing.flush(first + 1)
    flushing.flush(first + 2)
    assert flushes == [2]
    flushing.close()
    assert flushes == [2]


def test_who_is_on_disk_goes_on_while_the_next_flush_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waited for a flush does not wait for the one after it, although that begins at once."""
    (tmp_path / "ledger.db-wal").touch()
    flushing = Flushing(tmp_path / "ledger.db")
    flushing.open()
    waits, answered = threading.Event(), threading.Event()
    first, second = flushing.written(), 0
    went_on: list[bool] = []

    def slow(file: int) -> None:
        if second:
            went_on.append(answered.wait(60))
        else:
            waits.wait(60)
            deadline = time.monotonic() + 300
            while not flushing._asleep and time.monotonic() < deadline:
                time.sleep(0.001)

    def wait_for_the_first() -> None:
        while not flushing._lock.locked():
            pass
        waits.set()
        flushing.flush(first)
        answered.set()

    monkeypatch.setattr(os, "fdatasync", slow)
    waiting = threading.Thread(target=wait_for_the_first)
    waiting.start()
    flushing.flush(first)
    second = flushing.written()
    flushing.flush(second)
    waiting.join(60)
    assert went_on == [True]
    flushing.close()


def test_two_flushes_that_end_at_once_wake_whom_they_find(tmp_path: Path) -> None:
    """The one that finds nobody any more has flushed all the same."""
    (tmp_path / "ledger.db-wal").touch()
    flushing = Flushing(tmp_path / "ledger.db")
    flushing.open()
    woken: list[str] = []

    class WokenBetween(Sleeper):
        def wake(self) -> None:
            woken.append("first")
            flushing.flush(flushing.written())

    class Woken(Sleeper):
        def wake(self) -> None:
            woken.append("second")

    flushing._asleep.extend([WokenBetween(), Woken()])
    flushing.flush(flushing.written())
    assert woken == ["first", "second"]
    flushing.close()


def test_a_flush_that_fails(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody whom it was for starts anything, and nothing is claimed any more; what has ended is written."""

    def failing(file: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", failing)
    answers = _claims(store, "ab")
    monkeypatch.undo()
    for error in answers:
        assert isinstance(error, StoreUnavailable)
        assert "Input/output error" in str(error)
        assert error.tool_ran == "no"
    claim = CallChange(*open_call(replace(CALL, id="c", key="c")))
    with pytest.raises(StoreUnavailable, match="start it again"):
        store.commit([claim], synced=True)
    assert store.commit([claim], synced=False)


def test_what_is_closed_is_flushed(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has written and not flushed yet when the ledger is closed, or its process forked, does not wait for ever."""
    flushes: list[int] = []
    monkeypatch.setattr(os, "fdatasync", flushes.append)
    number = store._flushing.written()
    store.close()
    store._flushing.flush(number)
    assert len(flushes) == 1
    assert store.describe()["quick_check"] == "ok"


def test_what_is_closed_after_a_flush_that_failed(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another flush would succeed, and say nothing of what the first one lost: who still waits for that is told so."""
    first, second = store._flushing.written(), store._flushing.written()

    def failing(file: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", failing)
    with pytest.raises(StoreUnavailable):
        store._flushing.flush(first)
    monkeypatch.undo()
    store.close()
    with pytest.raises(StoreUnavailable, match="start it again"):
        store._flushing.flush(second)


def test_a_flush_of_sqlite_that_fails(store: SqliteStore) -> None:
    """What was settled before it may be a gap in the log: a claim behind that would be lost with it in a power cut."""
    before, first, after = ([CallChange(*open_call(replace(CALL, id=name, key=name)))] for name in "abc")
    assert store.commit(before, synced=False)
    told = _where_nothing_is_flushed(lambda: store.commit(first, synced=True))
    assert "start it again" in str(told)
    with pytest.raises(StoreUnavailable, match="start it again") as refused:
        store.commit(after, synced=True)
    assert refused.value.tool_ran == "no"
    assert store.commit(after, synced=False)


def test_a_long_log_that_cannot_be_flushed(store: SqliteStore) -> None:
    """SQLite would write it into the ledger within a commit, and keep the failure to itself: a claim would follow."""
    _lengthen_log(store)
    settled, claimed = _change("settled"), _change("claimed")
    assert _where_nothing_is_flushed(lambda: store.commit(settled, synced=False)) is None
    assert store.get_call("settled") is not None
    with pytest.raises(StoreUnavailable, match="start it again"):
        store.commit(claimed, synced=True)
    assert store.get_call("claimed") is None


def test_a_claim_behind_a_long_log_that_cannot_be_flushed(store: SqliteStore) -> None:
    """It is not written at all."""
    _lengthen_log(store)
    refused = _where_nothing_is_flushed(lambda: store.commit(_change("claimed"), synced=True))
    assert "start it again" in str(refused)
    assert store.get_call("claimed") is None


def test_a_log_stays_short(store: SqliteStore) -> None:
    """It goes into the ledger when it is long, and is begun again; its file stays as long as it was made."""
    log = Path(f"{store.path}-wal")
    seen = []
    for number in range(600):
        assert store.commit(_change(str(number)), synced=number % 2 == 0)
        seen.append(store._flushing.is_long)
    assert seen.count(True) >= 2
    assert seen.count(True) < 10
    assert log.stat().st_size < (LONG + 50) * (4096 + 24)
    assert len(read(log.read_bytes())) < LONG + 50


def test_a_claim_that_came_before_a_flush_failed(store: SqliteStore) -> None:
    """And is written after it: not at all. What has ended and waits beside it is."""
    answers: dict[str, object] = {}

    def commit(name: str, *, synced: bool) -> None:
        try:
            answers[name] = store.commit(_change(name), synced=synced)
        except StoreUnavailable as error:
            answers[name] = error

    def fail() -> None:
        with store._lock:
            while len(store._queue) < 2:
                pass
            store._flushing.failed(OSError(errno.EIO, os.strerror(errno.EIO)))

    _together([fail, lambda: commit("claimed", synced=True), lambda: commit("settled", synced=False)])
    assert "start it again" in str(answers["claimed"])
    assert store.get_call("claimed") is None
    assert answers["settled"]
    assert store.get_call("settled") is not None


def test_a_fact_after_a_flush_that_failed(store: SqliteStore) -> None:
    """A key, or what a policy says, that a power cut takes back would be worse than none; a lease is only for now."""
    assert store.put_fact("n", "before", "1", expected=None)
    store._flushing.failed(OSError(errno.EIO, os.strerror(errno.EIO)))
    with pytest.raises(StoreUnavailable, match="start it again"):
        store.put_fact("n", "after", "1", expected=None)
    with pytest.raises(StoreUnavailable, match="start it again"):
        store.put_fact("n", "before", "2", expected="1")
    assert store.facts("n") == {"before": "1"}
    store.renew(LeaseRecord(owner="o", renewed_us=0, until_us=0, until_boot_us=0, ttl_us=30_000_000))
    assert store.lease_of("o") is not None


def test_what_a_dead_process_left_is_in_the_ledger_before_anything_is_claimed(
    store: SqliteStore, tmp_path: Path
) -> None:
    """It may have died of a flush that failed, of which nobody is told twice; if this one fails, nothing is claimed."""
    assert store.commit(_change("left"), synced=False)
    for folder in ("after", "refused"):
        (tmp_path / folder).mkdir()
        for suffix in ("", "-wal"):
            shutil.copy(f"{store.path}{suffix}", tmp_path / folder / f"ledger.db{suffix}")
    after = SqliteStore(tmp_path / "after" / "ledger.db")
    assert after.get_call("left") is not None
    shutil.copy(after.path, tmp_path / "without-log.db")
    after.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "without-log.db")) as connection:
        assert connection.execute("select id from calls").fetchall() == [("left",)]

    refused = SqliteStore(tmp_path / "refused" / "ledger.db")
    assert _where_nothing_is_flushed(lambda: refused.get_call("left")) is None
    with pytest.raises(StoreUnavailable, match="start it again"):
        refused.commit(_change("claimed"), synced=True)
    refused.close()


def _change(name: str) -> list[CallChange]:
    return [CallChange(*open_call(replace(CALL, id=name, key=name)))]


def _lengthen_log(store: SqliteStore) -> None:
    """Until the next commit finds it long."""
    for number in range(1000):
        if store._flushing.is_long:
            return
        store.commit(_change(f"before-{number}"), synced=False)
    pytest.fail("the log does not grow")


def _where_nothing_is_flushed(work: Callable[[], object]) -> StoreUnavailable | None:
    """In a thread whose flushes the kernel refuses (seccomp); what it was told of that."""
    flushes = {"x86_64": (74, 75), "aarch64": (82, 83)}.get(platform.machine())
    if sys.platform != "linux" or flushes is None:
        pytest.skip("the numbers of these system calls are not known here")
    load, equal, back = 0x20, 0x15, 0x06
    steps = [
        (load, 0, 0, 0),  # the number of the call
        (equal, 1, 0, flushes[0]),
        (equal, 0, 1, flushes[1]),
        (back, 0, 0, 0x00050000 | errno.EIO),
        (back, 0, 0, 0x7FFF0000),  # allowed
    ]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    told: list[StoreUnavailable | None] = []

    def run() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        filters = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(program)))
        if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, filters, 0, 0):  # no new privileges; a filter
            return
        try:
            work()
        except StoreUnavailable as error:
            told.append(error)
        else:
            told.append(None)

    _together([run])
    if not told:
        pytest.skip("the kernel takes no filter here")
    return told[0]
