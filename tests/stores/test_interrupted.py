"""A ledger that is interrupted at any moment: by a handler of signals, which uses it itself, and by Ctrl-C."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from sagaspan.exceptions import StoreUnavailable
from sagaspan.ledger.store import CallChange
from sagaspan.ledger.transitions import open_call
from sagaspan.stores.sqlite import SqliteStore, _Request
from tests.moments import interrupted_everywhere
from tests.stores.test_sqlite import CALL

WITHIN = ("stores/sqlite.py", "stores/_sqlite_flushing.py", "stores/_sqlite_changes.py")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    """An open ledger."""
    store = SqliteStore(tmp_path / "ledger.db")
    store.describe()
    yield store
    closing = threading.Thread(target=store.close, daemon=True)  # what a test leaves held must not hold up the others
    closing.start()
    closing.join(60)


_ids = count()


def _claim() -> CallChange:
    name = f"c{next(_ids)}"
    return CallChange(*open_call(replace(CALL, id=name, key=name)))


def _ctrl_c() -> None:
    raise KeyboardInterrupt


def test_a_handler_that_comes_in_the_middle_of_a_commit_is_refused(store: SqliteStore) -> None:
    """It would wait for its own thread; at any other moment it simply works, and what it interrupted always does."""
    refused: list[str] = []
    saved: list[CallChange] = []

    def handle() -> None:
        try:
            saved.append(claim := _claim())
            assert store.commit([claim], synced=True)
            assert store.get_call(claim.record.id) is not None
        except StoreUnavailable as error:
            saved.remove(claim)
            refused.append(str(error))

    def work() -> None:
        saved.append(claim := _claim())
        assert store.commit([claim], synced=True)

    for where, error in interrupted_everywhere(work, handle, within=WITHIN):
        assert error is None, where
    assert "a thread of its own" in refused[0]
    assert len(refused) < len(saved)
    assert {call.id for call in store.calls_of("n", "r")} == {claim.record.id for claim in saved}


def test_a_handler_that_comes_in_the_middle_of_a_flush(store: SqliteStore) -> None:
    """What it writes has a flush of its own; only to close the ledger under it is refused."""
    outcomes: set[tuple[bool, bool]] = set()
    store._flushing._coming.append(None)  # a crowd, whose commits are flushed by themselves

    def is_done(what: Callable[[], object]) -> bool:
        try:
            what()
        except StoreUnavailable:
            return False
        return True

    def handle() -> None:
        outcomes.add((is_done(work), is_done(store.close)))

    def work() -> None:
        assert store.commit([_claim()], synced=True)

    for where, error in interrupted_everywhere(work, handle, within=("_sqlite_flushing.py",)):
        assert error is None, where
    assert outcomes == {(False, False), (True, False), (True, True)}


def test_a_ctrl_c_at_any_moment_leaves_nothing_held(store: SqliteStore) -> None:
    """Nor a transaction open: the next commit is saved, by whichever thread, and so is what waited for this one."""
    for where, error in interrupted_everywhere(lambda: store.commit([_claim()], synced=True), _ctrl_c, within=WITHIN):
        assert isinstance(error, KeyboardInterrupt), where
        assert store._lock.acquire(timeout=60), where
        store._lock.release()
        assert not store._in_use.locked(), where
        assert store.commit([_claim()], synced=True), where
        assert not store._queue, where


def test_a_ctrl_c_while_it_writes_for_others(store: SqliteStore) -> None:
    """They are answered as if nothing had happened: written once, by the next of them if it was not done."""
    waiting: list[_Request] = []

    def work() -> None:
        waiting.append(_Request([_claim()], True))
        store._queue.append(waiting[-1])
        store.commit([_claim()], synced=True)

    for where, _ in interrupted_everywhere(work, _ctrl_c, within=WITHIN):
        store.commit([_claim()], synced=True)
        assert waiting[-1].outcome(), where
        assert waiting[-1].ended, where
        assert store.get_call(waiting[-1].changes[0].record.id) is not None, where


def test_a_ctrl_c_while_the_ledger_is_opened_or_read(tmp_path: Path) -> None:
    """The next who comes opens it."""
    store = SqliteStore(tmp_path / "ledger.db")

    def work() -> None:
        store.close()
        store.get_call("c")
        store.forget_leases(0)

    for where, _ in interrupted_everywhere(work, _ctrl_c, within=("stores/sqlite.py", "_forgetting.py")):
        found: list[object] = []
        other = threading.Thread(target=lambda: found.append(store.get_call("c")))  # noqa: B023
        other.start()
        other.join(60)
        assert found == [None], where
    store.close()
