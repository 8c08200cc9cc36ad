"""The claim: the record of a call and all that it needs, in one commit on disk, before its body starts.

It waits for what others hold for a while only (locks, earlier steps of a pivot, room in a budget); the rest it refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from sagaspan import _owner as owner
from sagaspan._call import Call
from sagaspan._clock import monotonic, now_us
from sagaspan._frozen import replaced
from sagaspan.amounts import Unit
from sagaspan.exceptions import ApprovalDenied, Refused
from sagaspan.ledger import approvals, transitions
from sagaspan.ledger.answers import JOIN_SECONDS, Answers
from sagaspan.ledger.approvals import ApprovalSpent
from sagaspan.ledger.budgets import NOTHING, reserving, settling
from sagaspan.ledger.costs import rate_of
from sagaspan.ledger.judgement import Judge
from sagaspan.ledger.leases import Lease
from sagaspan.ledger.limits import Limits
from sagaspan.ledger.locks import holder_of, taking, wait_for
from sagaspan.ledger.observing import noting, waiving
from sagaspan.ledger.pivots import barrier, wait_for_steps
from sagaspan.ledger.records import ApprovalRecord, CallRecord, CallState
from sagaspan.ledger.resolution import BODY_ENDED
from sagaspan.ledger.room import wait_for_room
from sagaspan.ledger.settling import Settling
from sagaspan.ledger.store import (
    ApprovalChange,
    Barrier,
    CallChange,
    Change,
    Commit,
    LockChange,
    ReserveChange,
    Store,
)
from sagaspan.ledger.transitions import CallEvent

_CANCELLED: Final = "cancelled before the body"


class Claiming:
    """Commits claims to one store."""

    def __init__(
        self,
        store: Store,
        *,
        judge: Judge,
        lease: Lease,
        limits: Limits,
        answers: Answers,
        settling: Settling,
        is_about: Callable[[Call, ApprovalRecord], bool],
    ) -> None:
        self._store = store
        self._judge = judge
        self._lease = lease
        self._limits = limits
        self._answers = answers
        self._settling = settling
        self._is_about = is_about

    async def commit(
        self,
        call: Call,
        change: CallChange,
        *,
        freeing: Sequence[Change] = (),
        spent: Sequence[Change] = (),
        in_doubt: bool = False,
        held: bool = False,
    ) -> CallRecord | None:
        """Claim the call of ``change`` with all that it needs; None if its record, or a limit, is not as it was.

        ``held``: its record holds the reservation of this very attempt, made when it was scheduled.
        Raises ``BudgetExceeded``, ``RateLimited``, ``LockConflict`` if a lock is kept beyond ``lock_wait``, and
        ``CallInProgress`` or ``OutcomeUnknown`` if a pivot finds an earlier step open.
        """
        if self._settling.leftovers:
            await call.io(self._settling.settle_leftovers)
        is_pivot = call.tool.policy.pivot and call.under is not None
        waits = is_pivot or bool(call.declared.locks)
        now = monotonic() if waits else 0.0
        lock_deadline = now + (call.tool.policy.lock_wait or 0.0)
        step_deadline = now + (call.tool.policy.timeout or JOIN_SECONDS)
        room_deadline = 0.0
        waived: list[Change] = []
        change = self._observed_time(call, change)
        while True:
            change, reserves = self._reserving(call, change, held=held)
            if self._limits.frozen(call) is not None:
                await call.io(self._limits.check_frozen, call)
                continue  # it was lifted meanwhile
            conditions = await call.io(self._conditions, call, is_pivot) if waits else []
            # The record comes first: where it answers the call itself, nothing else is needed.
            rate = rate_of(call)
            approval = [] if call.declared.approval is None else [self._consuming(call, change.record)]
            changes: list[Change] = [*freeing, change, *spent, *reserves, *rate, *approval, *conditions]
            commit = await self._commit_held(call, change.record, waiving(changes, waived), in_doubt)
            refused = commit.refused
            if refused is None or isinstance(refused, CallChange):
                return change.record if refused is None else None
            if isinstance(refused, LockChange):
                await wait_for(self._store, call, lock_deadline)
            elif isinstance(refused, ApprovalChange):
                raise ApprovalSpent
            elif isinstance(refused, Barrier):
                await wait_for_steps(self._store, call, lambda step: self._answers.find_out(step, call), step_deadline)
            elif isinstance(refused, ReserveChange) and not self._limits.observes:
                room_deadline = room_deadline or monotonic() + (call.tool.policy.timeout or JOIN_SECONDS)
                is_changed = partial(self._limits.reload, change.controls)
                room = await wait_for_room(self._store, self._judge, call, refused, room_deadline, is_changed)
                if not room.fits:
                    raise await call.io(self._limits.refusal, call, refused, room)
                change = replaced(change, record=replaced(change.record, started_us=now_us()))  # of the window of now
            else:
                change = noting(call, change, await self._only_observed(call, refused))
                waived.append(refused)

    def _observed_time(self, call: Call, change: CallChange) -> CallChange:
        """The claim of a run that is out of time, where that is only noted."""
        limits = self._limits
        return noting(call, change, limits.timed_out(call, change.record.started_us)) if limits.observes else change

    async def _only_observed(self, call: Call, refused: Change) -> Refused:
        """Why a budget or a rate refuses the claim of ``call``; raised, but where that is only noted."""
        error = await call.io(self._limits.refusal, call, refused)
        if not self._limits.observes:
            raise error
        return error

    def _reserving(self, call: Call, change: CallChange, *, held: bool) -> tuple[CallChange, list[ReserveChange]]:
        """The claim under the limits known now, and what it reserves of them."""
        version, costs = self._limits.version, call.declared.costs
        if held:
            return replaced(change, controls=version), []
        reserves = self._limits.reservations(call, change.record.started_us, begins=call.scheduled is None)
        if not reserves and Unit.USD not in costs and change.controls == version:
            return change, reserves
        record = replaced(change.record, reserved=reserving(reserves, costs))
        return replaced(change, record=record, controls=version), reserves

    def _consuming(self, call: Call, record: CallRecord) -> ApprovalChange:
        """The use of an approval, which is of exactly what the body gets; raises ``ApprovalDenied`` if it is not."""
        approval = call.declared.approval
        assert approval is not None  # noqa: S101 - that is when this is called
        if not self._is_about(call, approval):
            raise ApprovalDenied(
                f"tool {call.tool.name!r} did not run: its arguments are not those that were approved ({approval.id}); "
                "something changed them on the way"
            )
        return approvals.consume(approval, self._store.now_us(), actor=owner.this_process(), call_id=record.id)

    def _conditions(self, call: Call, is_pivot: bool) -> list[Change]:
        conditions: list[Change] = [barrier(self._store, call)] if is_pivot else []
        if call.declared.locks:
            conditions += taking(self._store, call.declared.locks, holder_of(self._store, call))
        return conditions

    async def _commit_held(self, call: Call, record: CallRecord, changes: Sequence[Change], in_doubt: bool) -> Commit:
        """Commit the claim of ``record``; it is held from before it is on disk until ``_run`` lets it go."""
        claimed = False
        owner.hold(record.id)
        try:
            finished = await call.shielded(self._commit_covered, changes)
            if finished.interrupted is not None:
                if finished.value:  # claimed, but the body never started: that is proof
                    await call.shielded(self._release, record, in_doubt)
                raise finished.interrupted
            claimed = bool(finished.value)
        finally:
            if not claimed:
                owner.drop(record.id)
        return finished.value

    def _commit_covered(self, changes: Sequence[Change]) -> Commit:
        self._lease.cover()
        return self._store.commit(changes, synced=True)

    def _release(self, record: CallRecord, in_doubt: bool) -> None:
        if record.state is CallState.SCHEDULED:
            after, audit = transitions.drop(record, now_us(), why=_CANCELLED)
        else:
            event = CallEvent.LOSE if in_doubt else CallEvent.FAIL
            after, audit = transitions.move_call(record, event, now_us(), detail=BODY_ENDED if in_doubt else _CANCELLED)
        self._store.commit(settling(record, CallChange(after, audit, record.version), NOTHING), synced=False)
