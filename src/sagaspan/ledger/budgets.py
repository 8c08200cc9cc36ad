"""What calls reserve of budgets, and what becomes of it: pure functions (rule book (c) 2, 4, 5).

A reservation belongs to a record, not to a timer: it is made in the claim and lies in the record until that is settled.
``failed`` gives it back (a call that was claimed still counts as one), ``done`` spends what the call really used,
``unknown`` keeps it, for it may have happened. So ``reserved`` of a budget is always the sum over open records.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sagaspan.amounts import Unit
from sagaspan.ledger.records import BudgetRecord, CallRecord, CallState, UsageRecord
from sagaspan.ledger.store import CallChange, Change, ReserveChange, SpendChange, UsageChange


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a call used, by unit; a unit that is left out was used as reserved. ``usage`` is what is recorded of it."""

    amounts: Mapping[str, int]
    usage: UsageRecord | None = None


AS_RESERVED: Final = Spent(amounts={})
NOTHING: Final = Spent(amounts=dict.fromkeys(map(str, Unit), 0))
ONLY_COUNTED: Final = Spent(amounts={**NOTHING.amounts, Unit.CALLS: 1})
"""A call that was claimed and did not happen."""


_BY_STATE: Final = {CallState.FAILED: ONLY_COUNTED, CallState.REFUSED: NOTHING}


def reserving(changes: Sequence[ReserveChange]) -> str | None:
    """What a record says of the reservations made with its claim."""
    if not changes:
        return None
    return json.dumps([[*_name_of(change.record), change.amount] for change in changes], separators=(",", ":"))


def _name_of(record: BudgetRecord) -> tuple[str, str, str, int]:
    return record.scope, record.unit, record.window, record.start_us


def reserved_by(record: CallRecord) -> list[tuple[BudgetRecord, int]]:
    """The budgets a call has reserved of, and how much."""
    if record.reserved is None:
        return []
    return [
        (BudgetRecord(namespace=record.namespace, scope=scope, unit=unit, window=window, start_us=start), amount)
        for scope, unit, window, start, amount in json.loads(record.reserved)
    ]


def settling(before: CallRecord, change: CallChange, spent: Spent | None = None) -> list[Change]:
    """``change`` of a call that was ``before``, with what it does to its budgets.

    ``spent`` None: by its new state, as far as that says it.
    """
    usage: list[Change] = [] if spent is None or spent.usage is None else [UsageChange(spent.usage)]
    if before.reserved is None or before.reserved == change.record.reserved:
        return [change, *usage]
    if spent is None:
        spent = _BY_STATE.get(change.record.state, AS_RESERVED)
    return [change, *usage, *spending(before, spent)]


def spending(record: CallRecord, spent: Spent) -> list[SpendChange]:
    """What becomes of the reservations of a call that used ``spent``."""
    return [
        SpendChange(budget, reserved, spent.amounts.get(budget.unit, reserved))
        for budget, reserved in reserved_by(record)
    ]


def total_reserved(calls: Iterable[CallRecord]) -> dict[BudgetRecord, int]:
    """What ``calls`` have reserved of each budget, for ``budgets fsck``."""
    totals: dict[BudgetRecord, int] = {}
    for call in calls:
        for budget, amount in reserved_by(call):
            totals[budget] = totals.get(budget, 0) + amount
    return totals
