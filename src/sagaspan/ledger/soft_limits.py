"""Soft limits: an event on the span of the call that crossed one, and a metric; nothing is refused (rule book (c) 7).

What counts is what was *spent*: a reservation is an upper bound, and would speak up too early. Spending only grows, so
that of all processes together one sees a crossing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace

from sagaspan import _metrics as metrics
from sagaspan import _owner as owner
from sagaspan import _spans as spans
from sagaspan import semconv
from sagaspan._call import Call
from sagaspan._clock import now_us
from sagaspan.amounts import Unit, show_amount
from sagaspan.budget import Budget, told_at
from sagaspan.ledger.limits import Limits
from sagaspan.ledger.notices import SOFT_LIMIT
from sagaspan.ledger.records import NO_RUN, AuditRow
from sagaspan.ledger.store import Change, Mark, SpendChange

_log = logging.getLogger("sagaspan")


@spans.harmless(None)
def tell(call: Call, limits: Limits, changes: Sequence[Change], used: Sequence[int]) -> None:
    """Say which soft limits the settled ``changes`` of ``call`` crossed; ``used`` is as in ``Commit``."""
    spends = [change for change in changes if isinstance(change, SpendChange)]
    for change, after in zip(spends, used, strict=True):
        budget = limits.budget_for(call, change.record) if change.spent else None
        if budget is not None:
            for percent in _crossed(budget, after - change.spent, after):
                _tell(call, change.record.scope, budget, percent)


def marked(call: Call, limits: Limits, changes: Sequence[Change]) -> list[Change]:
    """``changes`` with a row of the audit trail for each soft limit that they may cross, for who is to be told."""
    return [
        replace(change, marks=_marks(call, limits, change)) if isinstance(change, SpendChange) else change
        for change in changes
    ]


def _marks(call: Call, limits: Limits, change: SpendChange) -> tuple[Mark, ...]:
    budget = limits.budget_for(call, change.record) if change.spent else None
    if budget is None:
        return ()
    return tuple(Mark(at, _row(call, change, budget, percent)) for percent, at in told_at(budget).items())


def _row(call: Call, change: SpendChange, budget: Budget, percent: int) -> AuditRow:
    said = {
        "namespace": call.run.namespace, "run": call.run.id, "scope": change.record.scope, "budget": str(budget),
        "percent": percent, "next": "sagaspan budgets list",
    }  # fmt: skip
    return AuditRow(
        at_us=now_us(), namespace=call.run.namespace, run_id=NO_RUN, call_id=None, event=SOFT_LIMIT, from_state=None,
        to_state=SOFT_LIMIT, actor=owner.this_process(), detail=json.dumps(said),
    )  # fmt: skip


def _crossed(budget: Budget, before: int, after: int) -> tuple[int, ...]:
    crossed = budget.soft_limits_crossed(before, after)
    is_at_end = not budget.hard and 100 not in budget.soft and before < budget.limit <= after
    return (*crossed, 100) if is_at_end else crossed  # nothing else would say so


def _tell(call: Call, scope: str, budget: Budget, percent: int) -> None:
    limit = show_amount(budget.limit, Unit(budget.unit))
    _log.info("budget: %s has used %d %% of %s", scope, percent, budget)
    call.span.add_event(
        semconv.EVENT_SOFT_LIMIT,
        {
            semconv.BUDGET_SCOPE: scope,
            semconv.BUDGET_UNIT: str(budget.unit),
            semconv.BUDGET_LIMIT: limit,
            semconv.BUDGET_PERCENT: percent,
            **({semconv.BUDGET_WINDOW: str(budget.window)} if budget.window else {}),
        },
    )
    metrics.soft_limit(scope, budget.unit, percent)
