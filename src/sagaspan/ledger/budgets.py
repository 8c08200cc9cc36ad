"""What calls reserve of budgets, and what becomes of it: pure functions (rule book (c) 2, 4, 5).

A reservation belongs to a record, not to a timer: it is made in the claim and lies in the record until that is settled.
``failed`` gives it back (a call that was claimed still counts as one), ``done`` spends what the call really used,
``unknown`` keeps it, for it may have happened. So ``reserved`` of a budget is always the sum over open records, and
what is spent of it the sum over all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from sagaspan._frozen import replaced
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
    return _written([(change.record, change.amount) for change in changes]) if changes else None


def reserving_more(record: CallRecord, changes: Sequence[ReserveChange]) -> str | None:
    """What ``record`` says of its reservations with those of ``changes`` on top."""
    held = dict(reserved_by(record))
    for change in changes:
        budget = replaced(change.record, cap=None)
        held[budget] = held.get(budget, 0) + change.amount
    return _written(held.items()) if held else None


def _written(amounts: Iterable[tuple[BudgetRecord, int]]) -> str:
    return _text(tuple([(row.scope, row.unit, row.window, row.start_us, amount) for row, amount in amounts]))


# The calls of one run mostly reserve and spend the same of the same: three texts a call, made and read once.
@lru_cache(maxsize=1024)
def _text(rows: tuple[tuple[str, str, str, int, int], ...]) -> str:
    return json.dumps(rows, separators=(",", ":"))


def reserved_by(record: CallRecord) -> Sequence[tuple[BudgetRecord, int]]:
    """The budgets a call has reserved of, and how much."""
    return _read(record.namespace, record.reserved)


def spent_of(record: CallRecord) -> Sequence[tuple[BudgetRecord, int]]:
    """The budgets a call has spent of in all its attempts, and how much."""
    return _read(record.namespace, record.spent)


@lru_cache(maxsize=1024)
def _read(namespace: str, written: str | None) -> Sequence[tuple[BudgetRecord, int]]:
    if written is None:
        return ()
    return tuple(
        (BudgetRecord(namespace=namespace, scope=scope, unit=unit, window=window, start_us=start), amount)
        for scope, unit, window, start, amount in json.loads(written)
    )


def booked(record: CallRecord, spends: Sequence[SpendChange]) -> CallRecord:
    """``record`` with ``spends`` on it, so that the books can be made anew from the calls (``budgets fsck``)."""
    kept = [(change.record, change.spent) for change in spends if change.spent]
    if record.spent is not None:  # by an earlier attempt
        totals = dict(spent_of(record))
        for budget, amount in kept:
            totals[budget] = totals.get(budget, 0) + amount
        kept = list(totals.items())
    return replaced(record, spent=_written(kept) if kept else None)


def settling(before: CallRecord, change: CallChange, spent: Spent | None = None) -> list[Change]:
    """``change`` of a call that was ``before``, with what it does to its budgets.

    ``spent`` None: by its new state, as far as that says it. The first of the changes is that of the call.
    """
    usage: list[Change] = [] if spent is None or spent.usage is None else [UsageChange(spent.usage)]
    if before.reserved is None or before.reserved == change.record.reserved or before.id != change.record.id:
        return [change, *usage]
    if spent is None:
        spent = _BY_STATE.get(change.record.state, AS_RESERVED)
    spends = spending(before, spent)
    return [replaced(change, record=booked(change.record, spends)), *usage, *spends]


def spending(record: CallRecord, spent: Spent) -> list[SpendChange]:
    """What becomes of the reservations of a call that used ``spent``."""
    return [
        SpendChange(budget, reserved, spent.amounts.get(budget.unit, reserved))
        for budget, reserved in reserved_by(record)
    ]
