"""Ledgers for tests: quick ones that are gone at the end, and one that dies with its process."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sagaspan.ledger.leases import release_all_on
from sagaspan.ledger.store import Store
from sagaspan.stores.sqlite import SqliteStore

_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of its own is made in it
_NAME = "ledger.db"


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder of this test's own, in memory where the system has a place for that."""
    memory = str(_MEMORY) if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="sagaspan-", dir=memory) as folder:
        yield Path(folder)


def quick_store(folder: Path) -> Store:
    """The ledger of ``folder``: it survives the death of a process, but not a power cut."""
    return SqliteStore(folder / _NAME, durability="off")


@contextlib.contextmanager
def temporary_store() -> Iterator[Store]:
    """A ledger for ``guard.override(store=...)`` or ``Guard(...)``, empty, and gone at the end.

    The real SQLite store, but nothing waits for a disk.
    """
    with temporary_folder() as folder:
        store = quick_store(folder)
        try:
            yield store
        finally:
            leave(store)


def leave(store: Store) -> None:
    """Let nobody in this process use ``store`` any more: its files may be gone after this."""
    release_all_on(store)
    store.close()
