"""A claim where limits are only observed: what refused it is left out, or has no cap, and is noted on its record."""

from __future__ import annotations

from collections.abc import Sequence

from sagaspan._call import Call
from sagaspan._frozen import replaced
from sagaspan._observed import note_of, tell
from sagaspan.exceptions import Refused
from sagaspan.ledger.records import names_of
from sagaspan.ledger.store import CallChange, Change, RateChange, ReserveChange


def waiving(changes: Sequence[Change], waived: Sequence[Change]) -> list[Change]:
    """``changes`` without the conditions that refused the claim before."""
    if not waived:
        return list(changes)
    budgets = [_name(change) for change in waived if isinstance(change, ReserveChange)]
    rated = any(isinstance(change, RateChange) for change in waived)
    return [
        ReserveChange(replaced(change.record, cap=None), change.amount, change.soft)
        if isinstance(change, ReserveChange) and _name(change) in budgets
        else change
        for change in changes
        if not (rated and isinstance(change, RateChange))
    ]


def noting(call: Call, change: CallChange, error: Refused | None) -> CallChange:
    """The claim of a record with the note that ``error`` would have refused it."""
    if error is None:
        return change
    notes = [*names_of(change.record.observed), note_of(error)]
    tell(call, notes)
    return replaced(change, record=replaced(change.record, observed="\n".join(notes)))


def _name(change: ReserveChange) -> tuple[str, str, str]:
    record = change.record
    return record.scope, record.unit, record.window
