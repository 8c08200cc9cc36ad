"""What calls reserve of budgets, and what becomes of it: pure functions (rule book (c) 2, 4, 5).

A reservation belongs to a record, not to a timer: the claim makes it, and it lies in the record until it is settled.
``failed`` gives it back (a call that was claimed still counts as one), ``done`` spends what the call really used,
``unknown`` keeps it, for the call may have happened. So ``reserved`` of a budget is always the sum over open records,
and what is spent of it the sum over all of them.

Every call that costs money also has an account of its own (``OWN``), whatever budgets there are. The row of the call in
``usage`` says the same amount. An attempt that gave its reservation back leaves a note of it, by its epoch: evidence
may show later that it happened after all, and then it is booked in the same budgets.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Final, NamedTuple

from sagaspan._clock import now_us
from sagaspan._frozen import replaced
from sagaspan.amounts import Unit
from sagaspan.ledger.records import OWN, BudgetRecord, CallRecord, CallState, UsageRecord
from sagaspan.ledger.store import CallChange, Change, ReserveChange, SpendChange, UsageChange

Name = tuple[str, str, str, int]
"""Which budget it is, in a namespace: scope, unit, window and start."""

GivenBack = tuple[tuple[int, int], ...]
"""What attempts gave back, by their epoch."""

_OWN_NAME: Final[Name] = (OWN, Unit.USD.value, "", 0)
_name: Final[Callable[[BudgetRecord], Name]] = attrgetter("scope", "unit", "window", "start_us")
_MOST_GIVEN_BACK: Final = 8
"""Of how many attempts a record remembers what they gave back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a call used, by unit; a unit that is left out was used as reserved. ``usage`` is what is recorded of it.

    ``happened``: False for an attempt that did not happen, as far as is known.
    """

    amounts: Mapping[str, int]
    usage: UsageRecord | None = None
    happened: bool = True


AS_RESERVED: Final = Spent(amounts={})
NOTHING: Final = Spent(amounts=dict.fromkeys(map(str, Unit), 0), happened=False)
ONLY_COUNTED: Final = Spent(amounts={**NOTHING.amounts, Unit.CALLS: 1}, happened=False)
"""A call that was claimed and did not happen."""


_BY_STATE: Final = {CallState.FAILED: ONLY_COUNTED, CallState.REFUSED: NOTHING}


class Booking(NamedTuple):
    """What a call has taken of one budget: ``amount``, and by epoch what attempts of it gave back."""

    budget: BudgetRecord
    amount: int
    given_back: GivenBack = ()


def reserving(changes: Sequence[ReserveChange], costs: Mapping[str, int]) -> str | None:
    """What a record says of the reservations made with its claim, and of what it may cost by itself."""
    rows = [(*_name(change.record), change.amount) for change in changes]
    if Unit.USD in costs:
        rows.append((*_OWN_NAME, costs[Unit.USD]))
    return _text(tuple(rows)) if rows else None


def reserving_more(record: CallRecord, changes: Sequence[ReserveChange], more: Mapping[str, int]) -> str | None:
    """What ``record`` says of its reservations with those of ``changes`` on top, for ``more`` by unit."""
    held = {_name(budget): amount for budget, amount in reserved_by(record)}
    for name, amount in [(_name(change.record), change.amount) for change in changes]:
        held[name] = held.get(name, 0) + amount
    if _OWN_NAME in held:
        held[_OWN_NAME] += more.get(Unit.USD, 0)
    return _text(tuple((*name, amount) for name, amount in held.items())) if held else None


# The calls of one run mostly reserve and spend the same of the same: three texts a call, made and read once.
@lru_cache(maxsize=1024)
def _text(rows: tuple[tuple[object, ...], ...]) -> str:
    return json.dumps(rows, separators=(",", ":"))


def reserved_by(record: CallRecord) -> Sequence[tuple[BudgetRecord, int]]:
    """The budgets that a call has reserved of, and how much; its own account among them."""
    return [(budget, amount) for budget, amount, _ in _read(record.namespace, record.reserved)]


def holds(record: CallRecord) -> bool:
    """Whether a call holds a reservation of a budget."""
    return any(budget.scope != OWN for budget, *_ in _read(record.namespace, record.reserved))


def bookings_of(record: CallRecord) -> Sequence[Booking]:
    """What a call has taken of budgets in all its attempts."""
    return _read(record.namespace, record.spent)


def agent_of(record: CallRecord) -> str | None:
    """The agent in whose budgets a call is counted; None if it has none."""
    return _named("agent:", record)


def _named(kind: str, record: CallRecord) -> str | None:
    found = (*_read(record.namespace, record.reserved), *_read(record.namespace, record.spent))
    scopes = (booking.budget.scope for booking in found)
    return next((scope.removeprefix(kind) for scope in scopes if scope.startswith(kind)), None)


@lru_cache(maxsize=1024)
def _read(namespace: str, written: str | None) -> Sequence[Booking]:
    if written is None:
        return ()
    return tuple(
        Booking(
            BudgetRecord(namespace=namespace, scope=scope, unit=unit, window=window, start_us=start),
            amount,
            tuple((epoch, given) for epoch, given in (back[0] if back else ())),
        )
        for scope, unit, window, start, amount, *back in json.loads(written)
    )


def _written(taken: Mapping[Name, tuple[int, GivenBack]]) -> str | None:
    rows = [
        (*name, amount, back) if back else (*name, amount) for name, (amount, back) in taken.items() if amount or back
    ]
    return _text(tuple(rows)) if rows else None


def settling(
    before: CallRecord,
    change: CallChange,
    spent: Spent | None = None,
    *,
    of: tuple[CallRecord, int] | None = None,
) -> tuple[CallChange, *tuple[Change, ...]]:
    """``change`` of a call that was ``before``, with what it does to its budgets and its usage.

    ``spent`` None: by its new state, as far as that says it. ``of``: the record and epoch of the attempt that is known
    to have happened, if that is not the latest one of ``before``. The first of the changes is that of the call.
    """
    record = change.record
    if of is None and before.reserved is None and record.spent is None:  # as most calls: nothing was ever reserved
        return (change,) if spent is None or spent.usage is None else (change, UsageChange(spent.usage))
    books = _Books(change, spent)
    attempt, epoch = of or (before, before.epoch)
    latest = attempt.id == before.id and epoch == before.epoch
    if before.id == record.id and before.reserved not in (None, record.reserved):
        # Where an earlier attempt happened, the latest one is not known to have: it gives back what it holds.
        books.settle(before, (spent or _BY_STATE.get(record.state, AS_RESERVED)) if latest else ONLY_COUNTED)
    happens = record.state is CallState.DONE and (before.state is not CallState.DONE or before.id != record.id)
    if happens and not (latest and before.reserved is not None):
        books.take_again(attempt, epoch)
    return books.changes(before, is_evidence=of is not None)


class _Books:
    """What one change of a call does to its budgets."""

    def __init__(self, change: CallChange, spent: Spent | None) -> None:
        self._change = change
        self._spent = spent
        self._taken = {_name(budget): (amount, back) for budget, amount, back in bookings_of(change.record)}
        self._spends: list[Change] = []
        self._is_booked = False

    def settle(self, before: CallRecord, used: Spent) -> None:
        """Settle what ``before`` holds: its latest attempt ``used`` that."""
        for budget, reserved, _ in _read(before.namespace, before.reserved):
            amount = used.amounts.get(budget.unit, reserved)
            back = () if used.happened or amount >= reserved else ((before.epoch, reserved - amount),)
            self._book(budget, reserved, amount, back)

    def take_again(self, attempt: CallRecord, epoch: int) -> None:
        """Spend what the attempt of this ``epoch`` gave back, for it happened after all."""
        used = self._spent or AS_RESERVED
        for budget, _, given in bookings_of(attempt):
            back = dict(given).get(epoch)
            if back is None:
                continue
            self._book(budget, 0, used.amounts.get(budget.unit, back))
            if attempt.id == self._change.record.id:
                total, left = self._taken[_name(budget)]
                self._taken[_name(budget)] = total, tuple(one for one in left if one[0] != epoch)

    def _book(self, budget: BudgetRecord, reserved: int, amount: int, back: GivenBack = ()) -> None:
        name = _name(budget)
        total, given = self._taken.get(name, (0, ()))
        self._taken[name] = total + amount, (*given, *back)[-_MOST_GIVEN_BACK:]
        self._is_booked = True
        if budget.scope != OWN:
            self._spends.append(SpendChange(budget, reserved, amount))

    def changes(self, before: CallRecord, *, is_evidence: bool) -> tuple[CallChange, *tuple[Change, ...]]:
        """The change of the call, and what goes with it."""
        change, usage = self._change, None if self._spent is None else self._spent.usage
        if not self._is_booked:  # evidence of what was booked when the call was claimed again
            return (change,) if usage is None or is_evidence else (change, UsageChange(usage))
        record = replaced(change.record, spent=_written(self._taken))
        change = replaced(change, record=record)
        own, _ = self._taken.get(_OWN_NAME, (None, ()))
        if own is not None:  # of all attempts together
            usage = usage or (_usage_of(before) if own else None)
            usage = usage and replaced(usage, call_id=record.id, run_id=record.run_id, cost=own)
        others: list[Change] = [*self._spends] if usage is None else [UsageChange(usage), *self._spends]
        return (change, *others)


def _usage_of(record: CallRecord) -> UsageRecord:
    """What is recorded of a call whose costs only its record says."""
    return UsageRecord(
        call_id=record.id, namespace=record.namespace, run_id=record.run_id, at_us=now_us(), tool=record.tool,
        model=_named("model:", record), agent=agent_of(record),
    )  # fmt: skip
