"""Orphans: writes of a run from before it was resumed, which its block, on another path now, never asked for again."""

from __future__ import annotations

from sagaspan._steps import on_their_own, uncommitted
from sagaspan.ledger.asked import Asked
from sagaspan.ledger.families import family
from sagaspan.ledger.records import CallRecord, CallState, Phase, RunRecord, RunState
from sagaspan.ledger.resolution import DUPLICATE
from sagaspan.ledger.store import Store

_STANDS = (CallState.DONE, CallState.SCHEDULED)


def orphans_of(store: Store, run: RunRecord, asked: Asked) -> list[CallRecord]:
    """The declared writes of ``run`` that stand, are not committed and were not asked for; newest first.

    Of the runs nested in it those count that have completed and were not entered again.
    """
    calls = [*store.calls_of(run.namespace, run.id), *_of_runs_passed_by(store, run, asked)]
    by_id = {call.id: call for call in calls}
    return on_their_own([
        call
        for call in uncommitted([call for call in calls if call.phase is Phase.FORWARD], run)
        if call.state in _STANDS and call.declared_write and not call.scope.startswith(DUPLICATE)
        and not asked.covers(call, by_id)
    ])  # fmt: skip


def _of_runs_passed_by(store: Store, run: RunRecord, asked: Asked) -> list[CallRecord]:
    children = store.children_of(run.namespace, run.id)
    passed_by = [child for child in children if child.state is RunState.COMPLETED and not asked.has_run(child.id)]
    return [call for child in passed_by for call in family(store, child)]
