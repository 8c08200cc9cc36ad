"""What a run has done and cost by the time somebody is asked: he decides about the rest of it too."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from sagaspan.amounts import Unit, show_amount
from sagaspan.ledger.records import CallState, Phase, RunRecord
from sagaspan.ledger.store import Store

_NAMED: Final = 10


def so_far(store: Store, run: RunRecord) -> dict[str, Any]:
    """The calls and cost of ``run``, and which of its calls would be undone if it failed now, the newest first."""
    calls = [call for call in store.calls_of(run.namespace, run.id) if call.phase is Phase.FORWARD]
    undone = Counter(
        f"{call.tool} by {call.compensate}"
        for call in reversed(calls)
        if call.compensate and call.state is CallState.DONE
    )
    named = [what if times == 1 else f"{what} ({times})" for what, times in undone.items()]
    more = [] if len(named) <= _NAMED else [f"and {len(named) - _NAMED} more"]
    totals = store.usage_of(run.namespace, {"run": run.id})
    return {
        "calls": len(calls), "cost": show_amount(totals[0].cost, Unit.USD) if totals and totals[0].cost else None,
        "undo": ", ".join((*named[:_NAMED], *more)) or None,
    }  # fmt: skip
