"""Room: whether what refuses a claim is only reserved by calls that have not ended, and comes back by itself.

A reservation is an upper bound, so calls at once can refuse each other though all of them would fit one after the
other. What is *spent* never comes back; nor does what a call in doubt keeps until somebody decides it, or what is only
counted: a call that was claimed counts whatever becomes of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sagaspan._call import Call
from sagaspan._clock import monotonic, now_us
from sagaspan._context import calls_held
from sagaspan._frozen import replaced
from sagaspan.amounts import Unit
from sagaspan.budget import Window, window_end
from sagaspan.ledger.budgets import reserved_by
from sagaspan.ledger.judgement import Judge, Verdict
from sagaspan.ledger.records import CallRecord, CallState
from sagaspan.ledger.store import ReserveChange, Store


class Room(NamedTuple):
    """What stands in the way of a reservation.

    ``fits``: nothing, by now, or its window is over. ``in_flight``: only calls that run. ``may_come``: without those
    that wait for this one themselves.
    """

    fits: bool
    in_flight: bool
    may_come: bool


async def wait_for_room(store: Store, judge: Judge, call: Call, refused: ReserveChange, deadline: float) -> Room:
    """Wait until ``refused``, a reservation of ``call``, may fit; or no longer than ``deadline`` (monotonic)."""
    pause = 0.005
    while True:
        room = await call.io(room_for, store, judge, call, refused)
        left = deadline - monotonic()
        if room.fits or not room.may_come or left <= 0:
            return room
        await call.sleep(min(pause, left))
        pause = min(pause * 1.5, 0.25)


def room_for(store: Store, judge: Judge, call: Call, refused: ReserveChange) -> Room:
    """Why ``refused`` does not fit now. Raises ``StoreUnavailable``."""
    row = refused.record
    end = window_end(Window(row.window) if row.window else None, row.start_us)
    if end is not None and now_us() >= end:
        return Room(fits=True, in_flight=False, may_come=False)
    now = store.budget(row)
    free = (row.cap or 0) - now.spent - now.overdraft - refused.amount
    if row.unit == Unit.CALLS or free < 0:
        return Room(fits=free >= now.reserved, in_flight=False, may_come=False)
    held = [
        (holder, amount)
        for holder in store.reserving(row.namespace)
        for budget, amount in reserved_by(holder)
        if budget == replaced(row, cap=None)
    ]
    ours = {*call.ancestors, *calls_held.get()}
    return Room(
        fits=free >= now.reserved,
        in_flight=free >= _sum(held, lambda holder: not _runs(judge, holder)),
        may_come=free >= _sum(held, lambda holder: holder.id in ours or not _runs(judge, holder)),
    )


def _sum(held: list[tuple[CallRecord, int]], counts: Callable[[CallRecord], bool]) -> int:
    return sum(amount for holder, amount in held if counts(holder))


def _runs(judge: Judge, holder: CallRecord) -> bool:
    return holder.state is CallState.RUNNING and judge.verdict(holder.owner, holder.id) is Verdict.ALIVE
