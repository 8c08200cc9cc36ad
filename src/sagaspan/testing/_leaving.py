"""Ledgers of tests that this process uses no more: also of guards that a test did not close."""

from __future__ import annotations

from sagaspan.ledger.leases import release_all_on, stores_at
from sagaspan.ledger.store import Store


def leave(store: Store) -> None:
    """Let nobody in this process use ``store`` any more: its files may be gone after this."""
    release_all_on(store)
    store.close()


def leave_all(url: str) -> None:
    """Let go of the ledger of ``url``: there are only so many connections and open files for a thousand tests."""
    for store in stores_at(url):
        leave(store)
