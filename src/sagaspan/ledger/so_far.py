"""What a run has done and cost by the time somebody is asked: he decides about the rest of it too.

He is told two numbers and a few names, so no more than that is read of a store that can count: a run may have made ten
thousand calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from sagaspan.amounts import Unit, show_amount
from sagaspan.ledger.records import CallRecord, CallState, Phase, RunRecord
from sagaspan.ledger.store import Store, Tally, Tallying, Undoable

_NAMED: Final = 10


def so_far(store: Store, run: RunRecord) -> dict[str, Any]:
    """The calls and cost of ``run``, and which of its calls would be undone if it failed now, the newest first."""
    tally = tally_of(store, run.namespace, run.id, limit=_NAMED)
    more = [f"and {tally.more} more"] if tally.more else []
    return {
        "calls": tally.calls, "cost": show_amount(tally.cost, Unit.USD) if tally.cost else None,
        "undo": ", ".join((*map(_told, tally.undoable), *more)) or None,
    }  # fmt: skip


def tally_of(store: Store, namespace: str, run_id: str, *, limit: int) -> Tally:
    """What a run has done, as ``Tallying.tally_of`` says; of a store that cannot count, from all of its calls."""
    counting: Tallying | None = store if hasattr(store, "tally_of") else None  # type: ignore[assignment] # just seen
    if counting is not None:
        return counting.tally_of(namespace, run_id, limit=limit)
    totals = store.usage_of(namespace, {"run": run_id})
    return _counted(store.calls_of(namespace, run_id), sum(one.cost for one in totals), limit)


def _counted(calls: Sequence[CallRecord], cost: int, limit: int) -> Tally:
    forward = [call for call in calls if call.phase is Phase.FORWARD]
    done = [call for call in reversed(forward) if call.compensate and call.state is CallState.DONE]
    kinds = Counter((call.tool, call.compensate or "") for call in done)
    undoable = [Undoable(tool, compensate, times) for (tool, compensate), times in kinds.items()]
    return Tally(len(forward), cost, tuple(undoable[:limit]), len(undoable[limit:]))


def _told(kind: Undoable) -> str:
    what = f"{kind.tool} by {kind.compensate}"
    return what if kind.calls == 1 else f"{what} ({kind.calls})"
