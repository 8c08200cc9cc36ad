"""Runs inside one another: the calls of a run with those of the runs nested in it, and the outermost of them."""

from __future__ import annotations

from collections.abc import Iterator

from sagaspan.ledger.records import CallRecord, RunRecord
from sagaspan.ledger.store import Store


def family(store: Store, run: RunRecord) -> Iterator[CallRecord]:
    """The calls of a run and of the runs nested in it."""
    yield from store.calls_of(run.namespace, run.id)
    for child in store.children_of(run.namespace, run.id):
        yield from family(store, child)


def outermost(store: Store, run: RunRecord) -> RunRecord:
    """The run that ``run`` is nested in, at whatever depth; itself if it is in none."""
    while run.parent_id is not None:
        outer = store.get_run(run.namespace, run.parent_id)
        if outer is None:
            break
        run = outer
    return run
