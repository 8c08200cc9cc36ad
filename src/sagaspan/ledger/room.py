"""Room: whether what refuses a claim is only reserved by calls that have not ended, and comes back by itself.

A reservation is an upper bound, so calls at once can refuse each other though all of them would fit one after the
other. What is *spent* never comes back; nor does what a call in doubt keeps until somebody decides it, or what is only
counted: a call that was claimed counts whatever becomes of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from sagaspan import semconv
from sagaspan._call import Call
from sagaspan._clock import monotonic, now_us
from sagaspan._context import calls_held
from sagaspan._reading import read_here
from sagaspan._waiting import Waiting, check_goes_on
from sagaspan.amounts import Unit
from sagaspan.budget import Window, window_end
from sagaspan.ledger.judgement import Judge, Verdict
from sagaspan.ledger.records import CallRecord, CallState
from sagaspan.ledger.store import ReserveChange, Store
from sagaspan.ledger.waiters import Waiter, held_of, waiting, waits_in_vain


class Room(NamedTuple):
    """What stands in the way of a reservation.

    ``fits``: nothing, by now, or other limits hold, or its window is over. ``in_flight``: only calls that run.
    ``may_come``: they may end before it does; ``why`` says for people why they cannot.
    """

    fits: bool
    in_flight: bool = False
    may_come: bool = False
    why: str = ""


NO_ROOM: Final = Room(fits=False)


async def wait_for_room(
    store: Store,
    judge: Judge,
    call: Call,
    refused: ReserveChange,
    deadline: float,
    is_changed: Callable[[], bool],
    *,
    moves_on: bool = True,
) -> Room:
    """Wait until ``refused``, a reservation of ``call``, may fit; or no longer than ``deadline`` (monotonic).

    ``is_changed`` says whether other limits hold by now than those it was made under, ``moves_on`` whether it may be
    made in the next window as well. Raises ``StoreUnavailable``.
    """
    waiter = Waiter(call.id, store, refused, holds_up=_held_up_by(call))
    with waiting(waiter), Waiting(call, semconv.WAIT_BUDGET) as pauses:
        while True:
            if moves_on:  # else it was claimed before, and only goes on
                check_goes_on(call)
            if await call.io(is_changed):
                return Room(fits=True)
            room = await call.io(room_for, store, judge, refused, waiter, moves_on=moves_on)
            left = deadline - monotonic()
            if room.fits or not room.may_come or left <= 0:
                return room
            await pauses.pause(left)


def _held_up_by(call: Call) -> frozenset[str]:
    return frozenset({call.id, *call.ancestors, *calls_held.get(), *read_here(call.run.id)})


def room_for(
    store: Store, judge: Judge, refused: ReserveChange, waiter: Waiter | None = None, *, moves_on: bool = True
) -> Room:
    """Why ``refused`` does not fit now, for a ``waiter`` for it. Raises ``StoreUnavailable``."""
    row = refused.record
    end = window_end(Window(row.window) if row.window else None, row.start_us)
    if moves_on and end is not None and now_us() >= end:
        return Room(fits=True)
    now = store.budget(row)
    free = (row.cap or 0) - now.spent - now.overdraft - refused.amount
    if row.unit == Unit.CALLS or free < 0 or free >= now.reserved:
        return Room(fits=free >= now.reserved)
    holders = store.reserving(row.namespace)
    mine = None if waiter is None else waiter.id  # what it has reserved itself, a stream that goes on keeps
    running = {holder.id for holder in holders if holder.id != mine and _runs(judge, holder)}
    held = held_of(refused, holders)
    if free < sum(amount for holder, amount in held if holder.id not in running):
        return Room(fits=False)
    why = "" if waiter is None else _why_in_vain(waiter, free, held, holders, running)
    return Room(fits=False, in_flight=True, may_come=not why, why=why)


def _why_in_vain(
    waiter: Waiter, free: int, held: list[tuple[CallRecord, int]], holders: list[CallRecord], running: set[str]
) -> str:
    ours = waiter.holds_up
    if free < sum(amount for holder, amount in held if holder.id in ours or holder.id not in running):
        names = " and ".join(sorted({repr(holder.tool) for holder, _ in held if holder.id in ours}))
        return f"That is held by {names}, which can only end after it"
    if waits_in_vain(waiter, holders, running):
        return "That is held by calls that would wait for this one, as it for them"
    return ""


def _runs(judge: Judge, holder: CallRecord) -> bool:
    return holder.state is CallState.RUNNING and judge.verdict(holder.owner, holder.id) is Verdict.ALIVE
