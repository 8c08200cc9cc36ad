"""Runs inside one another: the calls of a run with those of the runs nested in it, and the outermost of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sagaspan.ledger.records import SETTLED, CallRecord, CallState, RunRecord, RunState
from sagaspan.ledger.store import Sifting, Store

_ENDED: Final = (RunState.COMPLETED, RunState.FAILED, RunState.COMPENSATED, RunState.PARTIALLY_COMPENSATED)
_TO_BE_UNDONE: Final = (CallState.COMPENSATING, CallState.COMPENSATION_FAILED)


def family(store: Store, run: RunRecord) -> Iterator[CallRecord]:
    """The calls of a run and of the runs nested in it."""
    yield from store.calls_of(run.namespace, run.id)
    for child in store.children_of(run.namespace, run.id):
        yield from family(store, child)


def open_family(store: Store, run: RunRecord) -> Iterator[CallRecord]:
    """Those of ``family`` that are not settled; of a store that can sift them, no others are read."""
    sifting: Sifting | None = store if hasattr(store, "open_calls_of") else None  # type: ignore[assignment] # just seen
    if sifting is not None:
        yield from sifting.open_calls_of(run.namespace, run.id)
    else:
        yield from (call for call in store.calls_of(run.namespace, run.id) if call.state not in SETTLED)
    for child in store.children_of(run.namespace, run.id):
        yield from open_family(store, child)


def outermost(store: Store, run: RunRecord) -> RunRecord:
    """The run that ``run`` is nested in, at whatever depth; itself if it is in none."""
    while run.parent_id is not None:
        outer = store.get_run(run.namespace, run.parent_id)
        if outer is None:
            break
        run = outer
    return run


def is_over(store: Store, run: RunRecord) -> bool:
    """Whether nothing of a run, nor of those nested in it, will go on or be undone any more.

    One that is held, paused or lost its process is not over, nor one of which a step could not be undone yet.
    """
    if run.state not in _ENDED:
        return False
    calls = store.calls_of(run.namespace, run.id) if run.state is RunState.PARTIALLY_COMPENSATED else []
    if any(call.state in _TO_BE_UNDONE for call in calls):
        return False
    return all(is_over(store, child) for child in store.children_of(run.namespace, run.id))
