"""The ledgers that this process has open, for whoever reads metrics."""

from __future__ import annotations

import weakref
from typing import Final

from sagaspan import _metrics as metrics
from sagaspan import semconv
from sagaspan.ledger.store import Store

_stores: Final[weakref.WeakSet[Store]] = weakref.WeakSet()
_counts: list[metrics.Counts] = []


def count_with(counts: metrics.Counts) -> None:
    """Count what needs a person with ``counts``, which a room above the ledger knows."""
    _counts[:] = [counts]


def watch(store: Store) -> None:
    """Count what needs a person in this ledger, which is open, from now on."""
    if store not in _stores:
        _stores.add(store)
        for counts in _counts:
            metrics.observe(semconv.METRIC_STATUS, counts)


def unwatch(store: Store) -> None:
    """Stop counting, because the ledger is closed: to count would open it again."""
    _stores.discard(store)


def open_stores() -> list[Store]:
    """Return the ledgers that are open."""
    return list(_stores)
