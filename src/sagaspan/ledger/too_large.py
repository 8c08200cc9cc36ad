"""An end that the store cannot hold: what has ended is on record as ended, without what is too large for that.

A claim that does not fit is refused before anything runs. A result comes after: kept for later it would be in the way
of every other claim, and the run of an output that does not fit could never end.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sagaspan.exceptions import SchemaOutdated, StoreError, StoreUnavailable
from sagaspan.ledger.records import CallState
from sagaspan.ledger.store import CallChange, Change, Commit, RunChange, Store
from sagaspan.ledger.transitions import RunEvent

_ENDS: Final = (f"run.{RunEvent.FINISH}", f"run.{RunEvent.COMPLETE}")

_log = logging.getLogger("sagaspan")


def saved(store: Store, changes: Sequence[Change], *, synced: bool) -> tuple[Commit, Sequence[Change]]:
    """What became of the commit, and the changes as they are saved: results and outputs that do not fit are left out.

    Raises as ``Store.commit``.
    """
    try:
        return store.commit(changes, synced=synced), changes
    except StoreError as problem:
        if isinstance(problem, StoreUnavailable | SchemaOutdated):
            raise
        shorter = [_without_its_end(change, problem) for change in changes]
        if all(one is other for one, other in zip(shorter, changes, strict=True)):
            raise
    return store.commit(shorter, synced=synced), shorter


def _without_its_end(change: Change, problem: StoreError) -> Change:
    # Not of what had ended before: what is on record stays there.
    if isinstance(change, CallChange) and change.record.result is not None and change.audit.to_state == CallState.DONE:
        lost = f"the ledger cannot hold it ({_in_short(problem)})"
        return replace(change, record=replace(change.record, result=None, result_lost=lost))
    if isinstance(change, RunChange) and change.record.output is not None and change.audit.event in _ENDS:
        _log.warning(
            "the output of run %r is not recorded: the ledger cannot hold it (%s)", change.record.id, _in_short(problem)
        )
        return replace(change, record=replace(change.record, output=None))
    return change


def _in_short(problem: StoreError) -> str:
    return str(problem.__cause__ or problem).partition("\n")[0]
