"""The innermost layer: one atomic claim before the body starts, one settle after it.

The claim's conflict is the replay: a record under the same key is answered from the ledger, joined, claimed again
or refused, by its state. Time alone never permits a second run; only evidence or a person does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from opentelemetry.trace import Span, Tracer

from sagaspan import _fork as fork
from sagaspan import _owner as owner
from sagaspan import codecs, semconv
from sagaspan._backends import Backend
from sagaspan._call import Call, Result
from sagaspan._clock import monotonic, now_us
from sagaspan._frozen import replaced
from sagaspan._probe import Probe
from sagaspan._spans import error_message, error_type, traceparent_of
from sagaspan._waiting import Waiting
from sagaspan.exceptions import (
    ApprovalDenied,
    CallInProgress,
    ConfigurationError,
    KeyConflict,
    LoopDetected,
    OutcomeUnknown,
    Refused,
    RunClosed,
    ScopeFrozen,
    StoreError,
    ToolTimeout,
)
from sagaspan.keys import KeySource, idempotency_key
from sagaspan.ledger import approvals, transitions
from sagaspan.ledger.approvals import AlreadyDone, ApprovalSpent
from sagaspan.ledger.attempts import Ended, History, UntilSettled, body_token, run_attempts
from sagaspan.ledger.budgets import AS_RESERVED, NOTHING, ONLY_COUNTED, Spent, booked, reserving, settling, spending
from sagaspan.ledger.costs import rate_of, spent_by
from sagaspan.ledger.encryption import check_fingerprint
from sagaspan.ledger.extending import extend
from sagaspan.ledger.families import family, outermost
from sagaspan.ledger.in_doubt import (
    FindProbe,
    declare_lost,
    earliest_sent_us,
    history,
    record_body_ended,
    record_late_result,
    resolve_in_doubt,
)
from sagaspan.ledger.judgement import Judge, Verdict
from sagaspan.ledger.leases import Lease
from sagaspan.ledger.limits import Limits
from sagaspan.ledger.locks import holder_of, in_order, taking, wait_for
from sagaspan.ledger.observing import noting, waiving
from sagaspan.ledger.pivots import barrier, wait_for_steps
from sagaspan.ledger.records import ApprovalRecord, AuditRow, CallRecord, CallState, RunRecord, RunState, call_info
from sagaspan.ledger.resolution import (
    BODY_ENDED,
    BODY_RUNS,
    IN_DOUBT,
    MARKS,
    PERMITTED,
    RESENT,
    permitted,
)
from sagaspan.ledger.room import Room, wait_for_room
from sagaspan.ledger.soft_limits import marked, tell
from sagaspan.ledger.store import (
    ApprovalChange,
    Barrier,
    CallChange,
    Change,
    Commit,
    LockChange,
    ReserveChange,
    SpendChange,
    Store,
)
from sagaspan.ledger.transitions import CallEvent
from sagaspan.policy import Retry

_log = logging.getLogger("sagaspan")
JOIN_SECONDS: Final = 30.0
ONCE: Final = Retry()
_CANCELLED: Final = "cancelled before the body"
_ENDINGS: Final = {
    CallState.DONE: CallEvent.SUCCEED,
    CallState.FAILED: CallEvent.FAIL,
    CallState.UNKNOWN: CallEvent.LOSE,
}


class Ledger:
    """The endpoint of the onion over one store."""

    def __init__(
        self,
        store: Store,
        *,
        judge: Judge,
        lease: Lease,
        find_probe: FindProbe,
        limits: Limits,
        is_about: Callable[[Call, ApprovalRecord], bool],
        tracer: Tracer,
    ) -> None:
        self._store = store
        self._tracer = tracer
        self._is_about = is_about
        self._limits = limits
        self._find_probe = find_probe
        self._judge = judge
        self._lease = lease
        self._unsettled: dict[str, tuple[list[Change], CallRecord, Ended]] = {}
        self._lock = fork.new_lock()
        lease.settle = self.settle_leftovers
        lease.forked.append(self._unsettled.clear)

    async def __call__(self, call: Call) -> Result:
        """Claim, run and settle ``call``, or schedule it if it is deferred, or answer it from its record."""
        try:
            claimed = await self._claim(call)
        except ScopeFrozen:
            done = await self._done_before(call)
            if done is None:
                raise
            return done
        if isinstance(claimed, Result):
            return claimed
        if claimed[1].record.state is CallState.SCHEDULED:
            owner.drop(claimed[1].record.id)  # from here on it is its run's
            return scheduled(claimed[1].record)
        return await self._run(*claimed)

    async def send(self, call: Call) -> Result:
        """Claim, run and settle the deferred ``call.scheduled``, or say what became of it meanwhile.

        Raises ``OutcomeUnknown`` if it may have been sent before a crash and nobody knows, ``RunClosed`` if another
        worker has the run now.
        """
        record = call.scheduled
        assert record is not None  # noqa: S101 - that is what a sending call is
        while True:
            record = await call.io(self._reload, record)
            if record.state is CallState.RUNNING:
                record, _ = await self._await_owner(call, record)
            if record.state in IN_DOUBT:
                record = await self.resolve(record, call.tool.probe, call.backend, call.span)
            if record.state not in (CallState.SCHEDULED, CallState.FAILED, *IN_DOUBT):
                return Result(state=record.state, outcome=semconv.OUTCOME_REPLAYED, record=record)
            in_doubt = record.state in IN_DOUBT
            again = await self._again_in_doubt(call, record) if in_doubt else _Again(record, _marks(call))
            claimed = await self._claim_scheduled(call, again)
            if claimed is not None:
                return await self._run(*claimed)

    async def resolve(
        self, record: CallRecord, probe: Probe | None, backend: Backend, parent: Span | None = None
    ) -> CallRecord:
        """Find out about a call in doubt; see ``resolve_in_doubt``."""
        return await resolve_in_doubt(
            self._store, self._judge, record, probe=probe, backend=backend, tracer=self._tracer, parent=parent
        )

    async def serve(self, call: Call) -> Result | None:
        """The answer of the ledger without claiming anything; None if ``call`` is to be run."""
        if self._unsettled:
            await call.io(self.settle_leftovers)
        if call.former:
            call = await self._as_known_before(call)
        record = await call.io(self._find, call)
        if record is None:
            if call.resumed and call.tool.policy.declared_write:
                await self._check_resolved(call)
            return None
        answer = await self._answer(call, record)
        return answer if isinstance(answer, Result) else None

    async def _as_known_before(self, call: Call) -> Call:
        """``call`` under the key that its record has from before its fields were redacted, if there is one."""
        for key in call.former:
            record = await call.io(self._store.find_call, call.run.namespace, key.scope, call.tool.name, key.value)
            if record is not None and record.fingerprint == key.fingerprint:
                return replace(call, key=key, former=(), idempotency_key=record.idempotency_key)
        return replace(call, former=())

    def settle_leftovers(self) -> None:
        """Save what could not be recorded when it ended; raises ``StoreError`` if it still cannot."""
        with self._lock:
            for call_id, (changes, record, ended) in list(self._unsettled.items()):
                if not self._store.commit(changes, synced=False):
                    self._settle_taken_over(record, ended)
                del self._unsettled[call_id]
                owner.drop(call_id)

    # -- claim ---------------------------------------------------------------------------------------------

    async def _claim(self, call: Call) -> tuple[Call, Claim] | Result:
        if call.former:
            call = await self._as_known_before(call)
        if call.declared.locks:
            call = in_order(call)
        while True:
            known = self._limits.version
            record, audit = transitions.open_call(new_record(call), None if call.tool.policy.defer else _marks(call))
            change = CallChange(record, audit, claims=True, run_epoch=call.run.epoch, controls=known)
            claimed = await self._commit_claim(call, change)
            if claimed is not None:
                return call, Claim(claimed)
            existing = await call.io(self._find, call)
            if existing is None:
                if await call.io(self._limits.reload, known):
                    continue
                raise _closed(call)
            answer = await self._answer(call, existing)
            if isinstance(answer, Result):
                return answer
            again = await self._claim_again(call, answer)
            if again is not None:
                return again

    async def _done_before(self, call: Call) -> Result | None:
        """The recorded result of a call that is frozen now: nothing runs for that."""
        existing = await call.io(self._find, call)
        if existing is None or existing.state is not CallState.DONE:
            return None
        answer = await self._answer(call, existing)
        return answer if isinstance(answer, Result) else None

    async def _claim_again(self, call: Call, again: _Again) -> tuple[Call, Claim] | None:
        """Claim a call that may run again; None if somebody else was faster. Raises ``RunClosed``."""
        existing = again.record
        in_doubt = existing.state in IN_DOUBT
        changed = call.declared.approval is not None and existing.arguments != call.encoded
        if changed and in_doubt:
            raise OutcomeUnknown(
                f"tool {call.tool.name!r}: call {existing.id} may have happened with other arguments than those that "
                f"are approved now, so it is not run. {_decide(existing)}",
                call=call_info(existing),
            )
        # Sent again under its key it is the same effect; run again it was spent, for all that anybody knows.
        spent = spending(existing, ONLY_COUNTED if again.why == RESENT else AS_RESERVED)
        if existing.run_id == call.run.id and existing.state is not CallState.COMPENSATED and not changed:
            call = replace(
                call, id=existing.id, generation=existing.generation, idempotency_key=existing.idempotency_key
            )
            record, audit = _taken_again(call, again)
            change = CallChange(booked(record, spent), audit, existing.version, claims=True, run_epoch=call.run.epoch)
            freeing: list[CallChange] = []
        else:
            call = _next_generation(call, existing)
            handed_over = in_doubt and not call.tool.policy.rerunnable
            event = CallEvent.HAND_OVER if handed_over else CallEvent.SUPERSEDE
            freed, freed_audit = transitions.supersede(existing, now_us(), event, detail=again.why)
            record = new_record(call)
            if in_doubt:  # the service may have seen the key since then
                first = earliest_sent_us(existing, await call.io(history, self._store, existing))
                record = replace(record, created_us=min(existing.created_us, first))
            record, audit = transitions.open_call(record, None if call.tool.policy.defer else again.why)
            change = CallChange(record, audit, claims=True, run_epoch=call.run.epoch)
            freeing = [CallChange(booked(freed, spent), freed_audit, existing.version)]
        claimed = await self._commit_claim(call, change, freeing=freeing, spent=spent, in_doubt=in_doubt)
        if claimed is not None:
            return call, Claim(claimed, in_doubt=in_doubt, resent=again.why == RESENT)
        if not await call.io(self._limits.reload):
            await self._check_open(call)
        return None

    async def _claim_scheduled(self, call: Call, again: _Again) -> tuple[Call, Claim] | None:
        """Claim a deferred call for the run that sends it; None if somebody else was faster. Raises ``RunClosed``."""
        existing = again.record
        in_doubt = existing.state in IN_DOUBT
        record, audit = transitions.claim_again(
            existing, owner=owner.this_process(), now_us=now_us(), traceparent=traceparent_of(call.span),
            detail=again.why, scheduled_seq=existing.place, locks=existing.locks, reserved=existing.reserved,
            policy=existing.policy,
        )  # fmt: skip
        change = CallChange(record, audit, existing.version, claims=True, run_epoch=call.run.epoch, run_id=call.run.id)
        claimed = await self._commit_claim(call, change, in_doubt=in_doubt, scheduled=existing.reserved is not None)
        if claimed is not None:
            return call, Claim(claimed, in_doubt=in_doubt, resent=again.why == RESENT)
        if not await call.io(self._limits.reload):
            await self._check_open(call)
        return None

    async def _check_open(self, call: Call) -> None:
        run = await call.io(self._store.get_run, call.run.namespace, call.run.id)
        if run is None or run.epoch != call.run.epoch or run.state is not RunState.RUNNING:
            raise _closed(call)

    async def _commit_claim(
        self,
        call: Call,
        change: CallChange,
        *,
        freeing: Sequence[CallChange] = (),
        spent: Sequence[SpendChange] = (),
        in_doubt: bool = False,
        scheduled: bool = False,
    ) -> CallRecord | None:
        """Claim the call of ``change`` with all that it needs; None if its record, or a limit, is not as it was.

        ``scheduled``: what it costs was reserved when it was scheduled.
        Raises ``BudgetExceeded``, ``RateLimited``, ``LockConflict`` if a lock is kept beyond ``lock_wait``, and
        ``CallInProgress`` or ``OutcomeUnknown`` if a pivot finds an earlier step open.
        """
        if self._unsettled:
            await call.io(self.settle_leftovers)
        is_pivot = call.tool.policy.pivot and call.under is not None
        waits = is_pivot or bool(call.declared.locks)
        now = monotonic() if waits else 0.0
        lock_deadline = now + (call.tool.policy.lock_wait or 0.0)
        step_deadline = now + (call.tool.policy.timeout or JOIN_SECONDS)
        room_deadline = 0.0
        waived: list[Change] = []
        change = self._observed_time(call, change)
        while True:
            change, reserves = self._reserving(call, change, scheduled=scheduled)
            if self._limits.frozen(call) is not None:
                await call.io(self._limits.check_frozen, call)
                continue  # it was lifted meanwhile
            conditions = await call.io(self._conditions, call, is_pivot) if waits else []
            # The record comes first: where it answers the call itself, nothing else is needed.
            rate = () if scheduled else rate_of(call)
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
                await wait_for_steps(self._store, call, lambda step: self._find_out(step, call), step_deadline)
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

    def _reserving(self, call: Call, change: CallChange, *, scheduled: bool) -> tuple[CallChange, list[ReserveChange]]:
        """The claim under the limits known now, and what it reserves of them."""
        version = self._limits.version
        if scheduled:
            return replaced(change, controls=version), []
        reserves = self._limits.reservations(call, change.record.started_us)
        if not reserves and change.controls == version:
            return change, reserves
        record = replaced(change.record, reserved=reserving(reserves))
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
        return approvals.consume(approval, now_us(), actor=owner.this_process(), call_id=record.id)

    def _conditions(self, call: Call, is_pivot: bool) -> list[Change]:
        conditions: list[Change] = [barrier(self._store, call)] if is_pivot else []
        if call.declared.locks:
            conditions += taking(self._store, call.declared.locks, holder_of(self._store, call))
        return conditions

    async def _find_out(self, step: CallRecord, call: Call) -> CallRecord:
        return await self.resolve(step, self._find_probe(step), call.backend, call.span)

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

    async def _check_resolved(self, call: Call) -> None:
        """A resume that takes another path starts no write while an earlier one is in doubt, of any run it is in."""
        for other in await call.io(self._family, call.run):
            if not other.declared_write or other.state not in (*IN_DOUBT, CallState.RUNNING):
                continue
            other = await self._find_out(other, call)
            if other.state in IN_DOUBT:
                raise OutcomeUnknown(
                    f"tool {call.tool.name!r} did not run: nobody knows whether {other.tool!r} of this run happened; "
                    f"a new write must not rest on a guess. {_decide(other)}",
                    call=call_info(other), tool_ran="no",
                )  # fmt: skip

    def _family(self, run: RunRecord) -> list[CallRecord]:
        return list(family(self._store, outermost(self._store, run)))

    def _find(self, call: Call) -> CallRecord | None:
        return self._store.find_call(call.run.namespace, call.key.scope, call.tool.name, call.key.value)

    # -- a record that exists --------------------------------------------------------------------------------

    async def _answer(self, call: Call, record: CallRecord) -> Result | _Again:
        """The recorded result, or why the call may be claimed again; raises what forbids both."""
        if record.fingerprint != call.key.fingerprint:
            if record.namespace not in self._store.seal.encryption:
                check_fingerprint(record.fingerprint, f"the call {record.id} of tool {call.tool.name!r}")
            raise KeyConflict(
                f"tool {call.tool.name!r}: the key {call.key.value!r} was used with other arguments (call "
                f"{record.id}); "
                "nothing ran. Use a new key, or the same arguments",
                call=call_info(record),
            )
        if call.tool.policy.defer or record.state is CallState.SCHEDULED:
            standing = await self._standing(call, record)
            if standing is not None:
                return standing
        if record.state is CallState.RUNNING:
            record, outcome = await self._await_owner(call, record)
        else:
            outcome = semconv.OUTCOME_REPLAYED
        if record.state in IN_DOUBT:
            record = await self.resolve(record, call.tool.probe, call.backend, call.span)
        if record.state is CallState.DONE:
            return _replayed(call, record, outcome)
        if record.state in IN_DOUBT:
            return await self._again_in_doubt(call, record, scheduling=call.tool.policy.defer)
        return _claimable(call, record)

    async def _standing(self, call: Call, record: CallRecord) -> Result | None:
        """What a deferred call is answered that stands as scheduled, or was sent, in this run or one it is nested in.

        None: it is to be judged like any other. Raises ``CallInProgress`` if another run has scheduled it, and may yet
        drop it.
        """
        ours = await call.io(self._is_ours, call.run, record)
        if record.state is CallState.SCHEDULED and not (ours and call.tool.policy.defer):
            if record.run_id == call.run.id:  # it is not deferred any more
                return None
            raise CallInProgress(
                f"tool {call.tool.name!r}: the call {record.id} of the run {record.run_id!r} is scheduled under this "
                "key, and sent when that run completes; try again when it has",
                call=call_info(record),
            )
        if not ours:
            return None
        if record.state in IN_DOUBT:
            record = await self.resolve(record, call.tool.probe, call.backend, call.span)
        if record.state in IN_DOUBT and not call.replaying:
            await self._again_in_doubt(call, record)  # raises, unless it may be sent again
        standing = (CallState.SCHEDULED, CallState.RUNNING, CallState.DONE, *IN_DOUBT)
        return _scheduled_before(call, record) if call.replaying or record.state in standing else None

    def _is_ours(self, run: RunRecord, record: CallRecord) -> bool:
        """Whether a call is of this run, or of one that ends with it."""
        if record.run_id == run.id:
            return True
        other = self._store.get_run(record.namespace, record.run_id)
        return other is not None and outermost(self._store, other).id == outermost(self._store, run).id

    async def _again_in_doubt(self, call: Call, record: CallRecord, *, scheduling: bool = False) -> _Again:
        """A call in doubt runs again only where that is harmless, or where a person permitted it.

        ``scheduling``: not now, but at a time that nobody knows, so that neither holds then.
        """
        policy = call.tool.policy
        if policy.rerunnable:
            return _Again(record)
        rows = await call.io(history, self._store, record)
        if not scheduling and policy.may_resend(earliest_sent_us(record, rows), now_us()):
            return _Again(record, RESENT)
        if not scheduling and permitted(rows):
            return _Again(record, PERMITTED)
        why = codecs.legible(rows[-1].detail) if rows else None
        raise OutcomeUnknown(
            f"tool {call.tool.name!r} was started before (call {record.id}) and nobody knows if it happened"
            f"{f' ({why})' if why else ''}; it is not run again. {_decide(record)}",
            call=call_info(record),
        )

    async def _await_owner(self, call: Call, record: CallRecord) -> tuple[CallRecord, str]:
        """Join a call that runs elsewhere; a provably dead owner leaves it ``unknown``."""
        if record.id in call.ancestors:
            raise LoopDetected(
                f"tool {call.tool.name!r} calls itself with the same arguments and would wait for itself; "
                "give it a key= that differs, or repeat='new'",
                signature=call.key.value, count=1, call=call_info(record),
            )  # fmt: skip
        deadline = monotonic() + (call.tool.policy.timeout or JOIN_SECONDS)
        with Waiting(call, semconv.WAIT_OWNER) as waiting:
            while record.state is CallState.RUNNING:
                verdict = await call.io(self._judge.verdict, record.owner, record.id)
                if verdict is not Verdict.ALIVE:
                    return await call.io(self._declare_lost, record, verdict), semconv.OUTCOME_REPLAYED
                if monotonic() > deadline:
                    raise CallInProgress(
                        f"tool {call.tool.name!r}: call {record.id} is still running elsewhere ({record.owner}); "
                        "try again when it has ended",
                        call=call_info(record),
                    )
                await waiting.pause(JOIN_SECONDS)
                record = await call.io(self._reload, record)
        return record, semconv.OUTCOME_JOINED

    def _declare_lost(self, record: CallRecord, verdict: Verdict) -> CallRecord:
        return declare_lost(self._store, record, verdict)

    def _reload(self, record: CallRecord) -> CallRecord:
        return self._store.get_call(record.id) or record

    # -- run and settle --------------------------------------------------------------------------------------

    async def _run(self, call: Call, claim: Claim) -> Result:
        record = claim.record

        async def next_attempt() -> None:
            if not owner.is_self(record.owner):
                raise _fenced(call, record)
            after, audit = transitions.move_call(
                claim.record, CallEvent.ATTEMPT, now_us(), attempts=claim.record.attempts + 1
            )
            if not await call.io(self._store.commit, [CallChange(after, audit, claim.record.version)], synced=False):
                raise _fenced(call, record)
            claim.record = after

        try:
            retry = call.tool.policy.retry or ONCE
            dedupes = call.tool.policy.downstream_dedupes_for is not None
            ended = await run_attempts(
                call,
                retry=retry,
                next_attempt=next_attempt,
                late=self._late(claim, dedupes),
                gone=self._gone(claim),
                save_mark=lambda: self._save_mark(call, claim),
                history=History(
                    first_us=await self._first_sent_us(call, claim), in_doubt=claim.in_doubt, resent=claim.resent
                ),
            )
            finished = await call.shielded(self._settle, call, claim, ended)
        finally:
            if record.id not in self._unsettled:
                owner.drop(record.id)
        if isinstance(ended.error, ToolTimeout) and ended.error.call is None:
            ended.error.call = call_info(finished.value)
        error = finished.interrupted or ended.error
        return Result(
            value=ended.value,
            error=error,
            state=ended.state,
            outcome=semconv.OUTCOME_EXECUTED,
            record=finished.value,
        )

    async def _first_sent_us(self, call: Call, claim: Claim) -> int:
        """When the service may first have seen the key; what was scheduled long ago is sent only now."""
        record = claim.record
        if record.epoch == 1:
            return record.created_us if record.scheduled_seq is None else record.started_us
        if call.tool.policy.downstream_dedupes_for is None:
            return record.created_us
        return earliest_sent_us(record, await call.io(history, self._store, record))

    async def begin(self, call: Call) -> Claim:
        """Claim a call whose body this layer does not run, under a key of its own; ``end`` settles it."""
        claimed = await self._claim(call)
        assert not isinstance(claimed, Result)  # noqa: S101 - nobody else has its key
        return claimed[1]

    def extend(self, call: Call, claim: Claim, more: Mapping[str, int]) -> ReserveChange | None:
        """Reserve ``more`` for a call that was begun; the reservation that did not fit, if one did not."""
        found = extend(self._store, self._limits, call, claim.record, more)
        if isinstance(found, ReserveChange):
            return found
        claim.record = found
        return None

    async def room(self, call: Call, refused: ReserveChange, deadline: float, *, moves_on: bool = False) -> Room:
        """Wait until calls in flight have given back enough for ``refused``, before or after the claim of ``call``."""
        is_changed = partial(self._limits.reload, self._limits.version)
        return await wait_for_room(self._store, self._judge, call, refused, deadline, is_changed, moves_on=moves_on)

    async def end(self, call: Call, claim: Claim, ended: Ended, spent: Spent) -> CallRecord:
        """Settle a call that was begun."""
        try:
            return (await call.shielded(self._settle, call, claim, ended, spent)).value
        finally:
            if claim.record.id not in self._unsettled:
                owner.drop(claim.record.id)

    def _settle(self, call: Call, claim: Claim, ended: Ended, spent: Spent | None = None) -> CallRecord:
        record = claim.record
        if not owner.is_self(record.owner):  # forked inside the body: its end is for the parent to record
            return record
        # Nobody decides about a read either, so what one in doubt reserved is spent rather than kept for ever.
        undecided = ended.state is CallState.UNKNOWN and record.effect == "read" and record.locks is None
        after, audit = transitions.move_call(
            record,
            _ENDINGS[ended.state],
            now_us(),
            detail=_how(record, ended),
            **outcome(ended),
            **({"reserved": None} if undecided or spent is not None else {}),
        )
        spent = spent or spent_by(call, after, ended.value)
        changes = settling(record, CallChange(after, audit, record.version), spent)
        if self._limits.marks_soft:
            changes = marked(call, self._limits, changes)
        after = _booked_in(changes, after)
        try:
            commit = self._store.commit(changes, synced=False)
            if not commit:
                after = self._settle_taken_over(record, ended)
            elif commit.used:
                tell(call, self._limits, changes, commit.used)
        except StoreError as problem:
            # What succeeded must not be broken by its recording; the next claim fails closed until it is saved.
            _log.error(
                "call %s of tool %r ended but could not be recorded yet (%s); it is kept, and written as soon as the "
                "ledger can be; do not repeat it", record.id, record.tool, type(problem.__cause__ or problem).__name__,
            )  # fmt: skip
            self._unsettled[record.id] = changes, after, ended
            self._lease.hurry()
        for step in claim.settled():
            step()
        return after

    def _save_mark(self, call: Call, claim: Claim) -> None:
        """The second mark, on disk before the request is sent; raises if the call was taken over."""
        if not owner.is_self(claim.record.owner):
            raise ConfigurationError(
                f"tool {call.tool.name!r}: sending() was called in a process that was forked inside its body; call it "
                "before the fork"
            )
        after, audit = transitions.move_call(claim.record, CallEvent.SENDING, now_us())
        if not self._store.commit([CallChange(after, audit, claim.record.version)], synced=True):
            raise _fenced(call, claim.record)
        claim.record = after

    def _settle_taken_over(self, record: CallRecord, ended: Ended) -> CallRecord:
        """Somebody judged us dead meanwhile: a result is evidence, anything else changes nothing.

        Returns what is on record now: what was not written has the version of what was, and would pass for it.
        """
        if ended.state is CallState.DONE:
            self._settle_late(record, ended.value, given_up=False, dedupes=False)
        return self._store.get_call(record.id) or record

    def _late(self, claim: Claim, dedupes: bool) -> Callable[[Any], None]:
        """Told of a result that came after its call was given up: it is evidence once the call is settled."""

        def arrived(value: Any) -> None:
            def settle() -> None:
                self._settle_late(claim.record, value, given_up=True, dedupes=dedupes)

            if not claim.keep(settle):
                settle()

        return arrived

    def _gone(self, claim: Claim) -> Callable[[], None]:
        """Told that a body given up has ended without a result: it cannot land any more."""

        def ended() -> None:
            if not claim.keep(settle):
                settle()

        def settle() -> None:
            try:
                record_body_ended(self._store, claim.record)
            except StoreError:
                _log.exception("the end of the body of call %s could not be recorded", claim.record.id)

        return ended

    def _settle_late(self, record: CallRecord, value: Any, *, given_up: bool, dedupes: bool) -> None:
        try:
            record_late_result(self._store, record, value, given_up=given_up, dedupes=dedupes)
        except StoreError:
            _log.exception("the late result of call %s could not be recorded; it stays unknown", record.id)


@dataclass(frozen=True, slots=True)
class _Again:
    """A record that may be claimed again, and why (None: nothing happened, or it is harmless)."""

    record: CallRecord
    why: str | None = None


class Claim(UntilSettled):
    """The record in hand, which changes with every attempt.

    ``in_doubt``: an attempt before this claim may have applied, so a clean failure of this one proves nothing of it.
    ``resent``: it is only claimed because the service does its key once.
    """

    __slots__ = ("in_doubt", "record", "resent")

    def __init__(self, record: CallRecord, *, in_doubt: bool = False, resent: bool = False) -> None:
        super().__init__()
        self.record = record
        self.in_doubt = in_doubt
        self.resent = resent


def new_record(call: Call) -> CallRecord:
    """The record of a call as it is claimed."""
    now = now_us()
    policy, compensation = call.tool.policy, call.declared.compensation
    waits = policy.defer
    return CallRecord(
        id=call.id,
        namespace=call.run.namespace,
        scope=call.key.scope,
        tool=call.tool.name,
        key=call.key.value,
        key_source=call.key.source,
        generation=call.generation,
        idempotency_key=call.idempotency_key,
        fingerprint=call.key.fingerprint,
        run_id=call.run.id,
        parent_id=call.ancestors[-1] if call.ancestors else None,
        state=CallState.SCHEDULED if waits else CallState.RUNNING,
        effect=policy.effect,
        declared_write=policy.declared_write,
        arguments=call.encoded,
        compensate=None if compensation is None else compensation.name,
        empty_safe=policy.empty_safe,
        pivot=policy.pivot,
        expect=None if compensation is None or compensation.expect is None else compensation.expect.name,
        locks=_lock_names(call),
        tool_call_id=call.tool_call_id,
        owner=owner.this_process(),
        epoch=0 if waits else 1,
        attempts=0 if waits else 1,
        policy=call.policy,
        observed="\n".join(call.declared.observed) or None,
        traceparent=traceparent_of(call.span),
        created_us=now,
        started_us=now,
    )


def _booked_in(changes: Sequence[Change], record: CallRecord) -> CallRecord:
    """``record`` as the first of ``changes`` saves it."""
    first = changes[0]
    return first.record if isinstance(first, CallChange) else record


def _lock_names(call: Call) -> str | None:
    """The locks a call takes, as recorded: what undoes it later takes them again."""
    return "\n".join(call.declared.locks) or None


def _taken_again(call: Call, again: _Again) -> tuple[CallRecord, AuditRow]:
    """A record of this run that may run again: claimed by this call, or scheduled if it is deferred."""
    who: dict[str, Any] = {
        "owner": owner.this_process(), "now_us": now_us(), "traceparent": traceparent_of(call.span),
        "locks": _lock_names(call), "policy": call.policy,
    }  # fmt: skip
    if call.tool.policy.defer:
        return transitions.schedule_again(again.record, **who)
    return transitions.claim_again(again.record, detail=again.why, **who)


def _next_generation(call: Call, existing: CallRecord) -> Call:
    """The call under a key whose earlier call is over: after an undone one, downstream must not answer for that one."""
    generation = existing.generation + (existing.state is CallState.COMPENSATED)
    key = idempotency_key(call.run.namespace, call.key.scope, call.tool.name, call.key.value, generation)
    return replace(call, generation=generation, idempotency_key=key)


def outcome(ended: Ended) -> dict[str, Any]:
    """The columns of a record whose body ended so."""
    if ended.error is not None:
        return {"error_type": error_type(ended.error), "error_message": error_message(ended.error)}
    try:
        return {"result": codecs.encode(ended.value), "result_lost": None}
    except codecs.Unencodable as problem:
        # Done is done: never run it again for want of a way to write its result down.
        return {"result": None, "result_lost": str(problem)}


def scheduled(record: CallRecord) -> Result:
    """The answer to a deferred call: data, also for a model."""
    when = "It is sent when the run completes, and not at all if the run fails; what it returns is not known before."
    answer = {"status": str(CallState.SCHEDULED), "record": record.id, "tool": record.tool, "message": when}
    return Result(value=answer, state=record.state, outcome=semconv.OUTCOME_SCHEDULED, record=record)


def _scheduled_before(call: Call, record: CallRecord) -> Result:
    _check_repeated(call, record)
    if call.occurrence > 0:
        _log.warning(
            "tool %r was already scheduled with these arguments, so it is sent once (repeat='new' sends it again)",
            record.tool,
        )
    return scheduled(record)


def _check_repeated(call: Call, record: CallRecord) -> None:
    """Let somebody be asked about an irreversible call that is done in this run, and was not asked about as such."""
    if call.tool.policy.repeat_rule == "ask" and call.occurrence > 0 and call.repeats is None:
        raise AlreadyDone(record.id)


def _replayed(call: Call, record: CallRecord, outcome: str) -> Result:
    _check_repeated(call, record)
    if call.tool.policy.defer:  # of another run, under the same business key
        said = "It was done before, under the same key; nothing is scheduled."
        answer = {"status": str(CallState.DONE), "record": record.id, "tool": record.tool, "message": said}
        return Result(value=answer, state=record.state, outcome=outcome, record=record)
    if record.result_lost is not None:
        raise OutcomeUnknown(
            f"tool {call.tool.name!r} is done and is not run again, but its result was not recorded: "
            f"{record.result_lost}. Say what it returned: sagaspan calls resolve {record.id} happened --result JSON "
            "--note WHY (and let it return plain data)",
            call=call_info(record), tool_ran="yes",
        )  # fmt: skip
    if call.occurrence > 0:
        _log.warning(
            "tool %r was already done with these arguments at %s; the recorded result is returned "
            "(repeat='new' runs it again)",
            record.tool, call_info(record).ended,
        )  # fmt: skip
    remarks = (_already_done(record),) if _is_repeat(call, record) else ()
    return Result(
        value=_recorded_value(call, record), state=record.state, outcome=outcome, record=record, remarks=remarks
    )


def _is_repeat(call: Call, record: CallRecord) -> bool:
    """Whether a call is one more of what is done, rather than the same, made again by a run that goes on."""
    if call.key.source is not KeySource.BUSINESS:
        return call.occurrence > 0
    return record.run_id != call.run.id or record.started_us >= call.run.started_us


def _already_done(record: CallRecord) -> str:
    at = call_info(record).ended or call_info(record).started
    return f"already done at {at:%Y-%m-%dT%H:%M:%SZ}: it was not done again, and this is what it returned then"


def _recorded_value(call: Call, record: CallRecord) -> Any:
    if record.result is not None and codecs.holds_redacted(record.result):
        raise OutcomeUnknown(
            f"tool {call.tool.name!r} is done and is not run again, but fields of its result are redacted, so nobody "
            f"has all of it any more. See: sagaspan show {record.id}",
            call=call_info(record), tool_ran="yes",
        )  # fmt: skip
    try:
        return None if record.result is None else codecs.decode(record.result)
    except codecs.Undecodable as problem:
        raise OutcomeUnknown(
            f"tool {call.tool.name!r} is done and is not run again, but its recorded result cannot be read: {problem}. "
            f"See: sagaspan show {record.id}",
            call=call_info(record), tool_ran="yes",
        ) from problem  # fmt: skip


def _claimable(call: Call, record: CallRecord) -> _Again:
    """Why a call that is over may be run (again) by this one; raises otherwise."""
    undone = record.state is CallState.COMPENSATED and call.key.source is KeySource.BUSINESS
    if record.state in (CallState.FAILED, CallState.REFUSED) or undone:
        return _Again(record, _marks(call))
    raise RunClosed(
        f"tool {call.tool.name!r}: its call {record.id} is {record.state}; a call that was undone is not run again in "
        "the same run. Reopen the run (reopen=True) or use a new run id",
        status=record.state, call=call_info(record),
    )  # fmt: skip


def _marks(call: Call) -> str | None:
    """What the claim says of a tool whose missing second mark proves that nothing was sent."""
    return MARKS if call.tool.policy.marks_sending else None


def _how(record: CallRecord, ended: Ended) -> str | None:
    """What the audit row of a settle says beside the state."""
    if ended.state is CallState.UNKNOWN:
        over = owner.provably_dead(owner.this_process(), body_token(record.id))
        return BODY_ENDED if over else BODY_RUNS
    return "suspended" if ended.suspended else None


def _decide(record: CallRecord) -> str:
    return f"Find out (sagaspan show {record.id}), then say so: sagaspan calls resolve {record.id} OUTCOME --note WHY"


def _closed(call: Call) -> RunClosed:
    return RunClosed(
        f"the run {call.run.id!r} takes no new calls: it has ended or was taken over; tool {call.tool.name!r} "
        "did not run",
        status=str(call.run.state),
    )


def _fenced(call: Call, record: CallRecord) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"tool {call.tool.name!r}: call {record.id} was taken over by another worker; this one stops",
        call=call_info(record),
    )
