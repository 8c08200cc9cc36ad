"""A running call that goes on past what it had reserved: it reserves more, or it does not fit (rule book (c) 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sagaspan import _owner as owner
from sagaspan._call import Call
from sagaspan._clock import now_us
from sagaspan.exceptions import OutcomeUnknown, StoreUnavailable
from sagaspan.ledger import transitions
from sagaspan.ledger.budgets import reserving_more
from sagaspan.ledger.limits import Limits
from sagaspan.ledger.records import CallRecord, call_info
from sagaspan.ledger.store import CallChange, ReserveChange, Store
from sagaspan.ledger.transitions import CallEvent


def extend(
    store: Store, limits: Limits, call: Call, record: CallRecord, more: Mapping[str, int]
) -> CallRecord | ReserveChange:
    """``record`` with ``more`` reserved for it, by unit; else the reservation that did not fit, and nothing is.

    It is one commit, in the budgets in which it was claimed and those that were set since. Raises ``OutcomeUnknown``
    if somebody took the call over, or ``StoreError``.
    """
    if not owner.is_self(record.owner):  # forked in its middle: it is the parent's
        return record
    known = call.declare(costs=dict.fromkeys(more, 0))
    try:
        limits.reload()
    except StoreUnavailable:
        if _hold(limits.reservations(known, record.started_us, begins=False)):
            raise
        return record
    more = {unit: amount for unit, amount in more.items() if amount > 0}
    # At the time of its claim: what it uses counts in the windows that it began in.
    reserves = limits.reservations(call.declare(costs=more), record.started_us, begins=False)
    if not _hold(reserves):  # who only watches sees it at the end
        return record
    after, audit = transitions.move_call(
        record, CallEvent.EXTEND, now_us(), reserved=reserving_more(record, reserves, more)
    )
    refused = store.commit([CallChange(after, audit, record.version), *reserves], synced=False).refused
    if refused is None:
        return after
    if isinstance(refused, ReserveChange):
        return refused
    raise OutcomeUnknown(
        f"the call {record.id} of {record.tool!r} was taken over by another worker; its answer is read no further",
        call=call_info(record),
    )


def _hold(reserves: Sequence[ReserveChange]) -> bool:
    """Whether one of the budgets is a hard one."""
    return any(change.record.cap is not None for change in reserves)
