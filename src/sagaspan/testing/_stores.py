"""Ledgers for tests: quick ones that are gone at the end, and one that dies with its process."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

from sagaspan.ledger.store import Store
from sagaspan.stores.sqlite import SqliteStore
from sagaspan.testing._leaving import leave
from sagaspan.testing._servers import ServerLedgers, ledgers_of

_servers: Final[list[ServerLedgers]] = []
_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of its own is made in it
_NAME = "ledger.db"


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder of this test's own, in memory where the system has a place for that."""
    memory = str(_MEMORY) if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="sagaspan-", dir=memory) as folder:
        yield Path(folder)


@cache
def empty_ledger() -> bytes:
    """The file of a ledger with nothing in it: to begin with a copy is half of what a small test takes."""
    with temporary_folder() as folder:
        store = quick_store(folder)
        store.migrate()
        store.close()
        return (folder / _NAME).read_bytes()


def quick_store(folder: Path) -> Store:
    """The ledger of ``folder``: it survives the death of a process, but not a power cut."""
    return SqliteStore(folder / _NAME, durability="off")


@contextlib.contextmanager
def temporary_ledger() -> Iterator[Callable[[], Store]]:
    """An empty ledger, gone at the end: what opens it, as often as there are processes."""
    ledgers = _servers[-1] if _servers else None
    if ledgers is None:
        with temporary_folder() as folder:
            (folder / _NAME).write_bytes(empty_ledger())
            yield lambda: quick_store(folder)
        return
    url = ledgers.take()
    try:
        yield lambda: ledgers.opened(url)
    finally:
        ledgers.give_back(url)


@contextlib.contextmanager
def ledgers_on(url: str) -> Iterator[None]:
    """Within the block every ledger made for a test (``World``, ``crash_points``, ``temporary_store``) is on a server.

    Args:
        url: of a server, such as ``"postgresql://postgres@127.0.0.1/test"`` or ``"mysql://root@127.0.0.1/test"``. Each
            ledger is a schema (on MariaDB: a database) of its own there, ``sagaspan_test_`` and a random number, and
            dropped when the block ends.
    """
    ledgers = ledgers_of(url)
    _servers.append(ledgers)
    try:
        yield
    finally:
        _servers.remove(ledgers)
        ledgers.close()


@contextlib.contextmanager
def temporary_store() -> Iterator[Store]:
    """A ledger for ``guard.override(store=...)`` or ``Guard(...)``, empty, and gone at the end.

    The real SQLite store, or that of the server of ``ledgers_on``, but nothing waits for a disk.
    """
    with temporary_ledger() as opens:
        store = opens()
        try:
            yield store
        finally:
            leave(store)
