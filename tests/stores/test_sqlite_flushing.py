"""Flushes for a crowd: what several threads want synced is on disk before any of them is answered."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sagaspan.exceptions import StoreUnavailable
from sagaspan.ledger.store import CallChange
from sagaspan.ledger.transitions import open_call
from sagaspan.stores._sqlite_flushing import Flushing
from sagaspan.stores.sqlite import SqliteStore
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
        thread.join(20)


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
        with store._lock:
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
    _where_nothing_is_flushed(lambda: store.commit(first, synced=True))
    with pytest.raises(StoreUnavailable, match="start it again") as refused:
        store.commit(after, synced=True)
    assert refused.value.tool_ran == "no"
    assert store.commit(after, synced=False)


def _where_nothing_is_flushed(work: Callable[[], object]) -> None:
    """In a thread whose flushes the kernel refuses (seccomp), which is to be told of it."""
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
    told: list[BaseException | None] = []

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
    assert "start it again" in str(told[0])
