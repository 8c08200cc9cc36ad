"""Who waits for room in this process, and which waits nobody can win.

A call that waits holds up the calls it is made in, and the answers it reads. Where two wait for what the other holds
up, both would wait in vain: the one that came last is told so, and what it held up makes room for the other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Final

from sagaspan import _fork as fork
from sagaspan.ledger.budgets import reserved_by
from sagaspan.ledger.records import CallRecord
from sagaspan.ledger.store import ReserveChange, Store


@dataclass(frozen=True, slots=True, eq=False)
class Waiter:
    """A call (``id``) that waits until ``change`` fits; ``holds_up`` are the calls that cannot end before it."""

    id: str
    store: Store
    change: ReserveChange
    holds_up: frozenset[str]


_waiters: Final[list[Waiter]] = []
_lock: Final = fork.new_lock()
fork.hooks(in_child=_waiters.clear)


@contextlib.contextmanager
def waiting(waiter: Waiter) -> Iterator[None]:
    """It waits, in the block."""
    with _lock:
        _waiters.append(waiter)
    try:
        yield
    finally:
        with _lock:
            _waiters.remove(waiter)


def waits_in_vain(me: Waiter, holders: Sequence[CallRecord], running: Set[str]) -> bool:
    """Whether ``me`` and others wait for each other, and it came last of them.

    ``holders`` are all calls that have reserved something, ``running`` those that will end. Whoever may get what he
    waits for is taken to end, and to give back all that he holds up.
    """
    with _lock:
        stuck = [one for one in _waiters if one.store.url == me.store.url]  # each guard has a store of its own
    if not any(holder.id in one.holds_up for one in stuck if one is not me for holder in holders):
        return False
    while True:
        staying = {holder.id for holder in holders} - running
        staying = staying.union(*(one.holds_up for one in stuck))
        able = [one for one in stuck if _may_fit(one, holders, staying)]
        if not able:
            return bool(stuck) and stuck[-1] is me
        stuck = [one for one in stuck if one not in able]


def _may_fit(one: Waiter, holders: Sequence[CallRecord], staying: Set[str]) -> bool:
    now = one.store.budget(one.change.record)
    free = (one.change.record.cap or 0) - now.spent - now.overdraft - one.change.amount
    return free >= sum(amount for holder, amount in held_of(one.change, holders) if holder.id in staying)


def held_of(change: ReserveChange, holders: Sequence[CallRecord]) -> list[tuple[CallRecord, int]]:
    """What ``holders`` have reserved of the budget that ``change`` would reserve of."""
    wanted = change.record
    name = wanted.namespace, wanted.scope, wanted.unit, wanted.window, wanted.start_us
    return [
        (holder, amount) for holder in holders for budget, amount in reserved_by(holder)
        if (budget.namespace, budget.scope, budget.unit, budget.window, budget.start_us) == name
    ]  # fmt: skip
