"""What waits for people in the ledgers of this process, for whoever reads metrics."""

from __future__ import annotations

import weakref
from typing import Final

from sagaspan import _metrics as metrics
from sagaspan.ledger.records import ApprovalState
from sagaspan.ledger.resolution import IN_DOUBT
from sagaspan.ledger.store import Store

_COUNTED: Final = 1000
_stores: Final[weakref.WeakSet[Store]] = weakref.WeakSet()


def watch(store: Store) -> None:
    """Count what waits in this ledger, which is open, from now on."""
    if store not in _stores:
        _stores.add(store)
        metrics.watch_pending(_pending)
        metrics.watch_unresolved(_unresolved)


def unwatch(store: Store) -> None:
    """It is closed: to count would open it again."""
    _stores.discard(store)


def _pending() -> int:
    waiting = (ApprovalState.PENDING,)
    return sum(len(store.list_approvals(states=waiting, limit=_COUNTED)) for store in list(_stores))


def _unresolved() -> int:
    """Nobody decides about a read, or a call of a model."""
    found = (call for store in list(_stores) for state in IN_DOUBT for call in store.calls_in(state))
    return sum(call.effect != "read" for call in found)
