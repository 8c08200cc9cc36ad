"""The innermost layer: one atomic claim before the body starts, one settle after it.

The claim's conflict is the replay: a record under the same key is answered from the ledger, joined, claimed again
or refused, by its state. Time alone never permits a second run; only evidence or a person does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from opentelemetry.trace import Tracer

from sagaspan import _owner as owner
from sagaspan import semconv
from sagaspan._call import Call, Result
from sagaspan._clock import now_us
from sagaspan._spans import traceparent_of
from sagaspan.exceptions import ApprovalDenied, CallInProgress, OutcomeUnknown, RunClosed, ScopeFrozen, ToolTimeout
from sagaspan.ledger import transitions
from sagaspan.ledger.answers import Again, Answers, decide, marks
from sagaspan.ledger.attempts import Ended, History, run_attempts
from sagaspan.ledger.budgets import AS_RESERVED, ONLY_COUNTED, Spent, holds, settling
from sagaspan.ledger.claiming import Claiming
from sagaspan.ledger.claims import Claim, new_record, next_generation, taken_again, why_opened
from sagaspan.ledger.extending import extend
from sagaspan.ledger.in_doubt import FindProbe, earliest_sent_us, history
from sagaspan.ledger.judgement import Judge
from sagaspan.ledger.leases import Lease
from sagaspan.ledger.limits import Limits
from sagaspan.ledger.locks import in_order
from sagaspan.ledger.records import ApprovalRecord, CallRecord, CallState, RunState, call_info
from sagaspan.ledger.replays import scheduled
from sagaspan.ledger.resolution import IN_DOUBT, RESENT
from sagaspan.ledger.room import Room, wait_for_room
from sagaspan.ledger.settling import Settling, fenced
from sagaspan.ledger.store import CallChange, Change, ReserveChange, Store
from sagaspan.ledger.transitions import CallEvent
from sagaspan.policy import Retry

ONCE: Final = Retry()


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
        self._judge = judge
        self._limits = limits
        self._answers = Answers(store, judge, find_probe, tracer)
        self._settling = Settling(store, lease, limits)
        self._claiming = Claiming(
            store, judge=judge, lease=lease, limits=limits, answers=self._answers, settling=self._settling,
            is_about=is_about,
        )  # fmt: skip
        self.resolve = self._answers.resolve
        self.settle_leftovers = self._settling.settle_leftovers

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
        while True:
            answer = await self._unsent(call)
            if isinstance(answer, Result):
                return answer
            claimed = await self._claim_scheduled(call, answer)
            if claimed is not None:
                return await self._run(*claimed)

    async def sent(self, call: Call) -> Result | None:
        """What became of the deferred ``call.scheduled``; None if it is to be sent (again). Raises as ``send``."""
        answer = await self._unsent(call)
        return answer if isinstance(answer, Result) else None

    async def _unsent(self, call: Call) -> Result | Again:
        """The deferred ``call.scheduled`` that is to be sent, or what became of it."""
        record = call.scheduled
        assert record is not None  # noqa: S101 - that is what a sending call is
        record = await call.io(self._answers.reload, record)
        if record.state is CallState.RUNNING:
            record, _ = await self._answers.await_owner(call, record)
        if record.state in IN_DOUBT:
            record = await self._answers.resolve(record, call.tool.probe, call.backend, call.span)
        if record.state not in (CallState.SCHEDULED, CallState.FAILED, *IN_DOUBT):
            return Result(state=record.state, outcome=semconv.OUTCOME_REPLAYED, record=record)
        if record.state in IN_DOUBT:
            return await self._answers.again_in_doubt(call, record)
        return Again(record, marks(call))

    async def serve(self, call: Call) -> Result | None:
        """The answer of the ledger without claiming anything; None if ``call`` is to be run."""
        if self._settling.leftovers:
            await call.io(self._settling.settle_leftovers)
        if call.former:
            call = await self._as_known_before(call)
        record = await call.io(self._find, call)
        if record is None:
            if call.resumed and call.tool.policy.declared_write:
                await self._answers.check_resolved(call)
            return None
        answer = await self._answers.answer(call, record)
        return answer if isinstance(answer, Result) else None

    async def _as_known_before(self, call: Call) -> Call:
        """``call`` under the key that its record has from before its fields were redacted, if there is one."""
        for key in call.former:
            record = await call.io(self._store.find_call, call.run.namespace, key.scope, call.tool.name, key.value)
            if record is not None and record.fingerprint == key.fingerprint:
                return replace(call, key=key, former=(), idempotency_key=record.idempotency_key)
        return replace(call, former=())

    # -- claim ---------------------------------------------------------------------------------------------

    async def _claim(self, call: Call) -> tuple[Call, Claim] | Result:
        if call.former:
            call = await self._as_known_before(call)
        if call.declared.locks:
            call = in_order(call)
        while True:
            known = self._limits.version
            record, audit = transitions.open_call(new_record(call), why_opened(call, marks(call)))
            change = CallChange(record, audit, claims=True, run_epoch=call.run.epoch, controls=known)
            claimed = await self._claiming.commit(call, change)
            if claimed is not None:
                return call, Claim(claimed)
            existing = await call.io(self._find, call)
            if existing is None:
                if await call.io(self._limits.reload, known):
                    continue
                raise _closed(call)
            answer = await self._answers.answer(call, existing)
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
        answer = await self._answers.answer(call, existing)
        return answer if isinstance(answer, Result) else None

    async def _claim_again(self, call: Call, again: Again) -> tuple[Call, Claim] | None:
        """Claim a call that may run again; None if somebody else was faster. Raises ``RunClosed``."""
        existing = again.record
        in_doubt = existing.state in IN_DOUBT
        changed = call.declared.approval is not None and existing.arguments != call.encoded
        if changed and in_doubt:
            raise OutcomeUnknown(
                f"tool {call.tool.name!r}: call {existing.id} may have happened with other arguments than those that "
                f"are approved now, so it is not run. {decide(existing)}",
                call=call_info(existing),
            )
        # Sent again under its key it is the same effect; run again it was spent, for all that anybody knows.
        so_far = ONLY_COUNTED if again.why == RESENT else AS_RESERVED
        if existing.run_id == call.run.id and existing.state is not CallState.COMPENSATED and not changed:
            call = replace(
                call, id=existing.id, generation=existing.generation, idempotency_key=existing.idempotency_key
            )
            record, audit = taken_again(call, again)
            change = CallChange(record, audit, existing.version, claims=True, run_epoch=call.run.epoch)
            change, *spent = settling(existing, change, so_far)
            freeing = []
        else:
            call = next_generation(call, existing)
            handed_over = in_doubt and not call.tool.policy.rerunnable
            event = CallEvent.HAND_OVER if handed_over else CallEvent.SUPERSEDE
            freed, freed_audit = transitions.supersede(existing, now_us(), event, detail=again.why)
            record = new_record(call)
            if in_doubt:  # the service may have seen the key since then
                first = earliest_sent_us(existing, await call.io(history, self._store, existing))
                record = replace(record, created_us=min(existing.created_us, first))
            record, audit = transitions.open_call(record, why_opened(call, again.why))
            change = CallChange(record, audit, claims=True, run_epoch=call.run.epoch)
            freed_change = CallChange(freed, freed_audit, existing.version)
            freed_change, *spent = settling(existing, freed_change, so_far)
            freeing = [freed_change]
        claimed = await self._claiming.commit(call, change, freeing=freeing, spent=spent, in_doubt=in_doubt)
        if claimed is not None:
            return call, Claim(claimed, in_doubt=in_doubt, resent=again.why == RESENT)
        if not await call.io(self._limits.reload):
            await self._check_open(call)
        return None

    async def _claim_scheduled(self, call: Call, again: Again) -> tuple[Call, Claim] | None:
        """Claim a deferred call for the run that sends it; None if another process was faster. Raises ``RunClosed``.

        Only what it reserved when it was scheduled is reserved for this claim. A second one reserves again.
        """
        existing, sender = again.record, call.sent_by or call.run
        in_doubt, first = existing.state in IN_DOUBT, existing.scheduled_seq is None
        if not first and call.scheduled is not None and call.scheduled.scheduled_seq is None:  # not judged yet
            raise CallInProgress(
                f"tool {call.tool.name!r}: another worker has begun to send the call {existing.id} meanwhile; enter "
                "the run again",
                call=call_info(existing),
            )
        if call.edited is not None:
            raise ApprovalDenied(
                f"tool {call.tool.name!r} was not sent: its arguments were edited, and a deferred call is sent again "
                "only with those that it was scheduled with. Deny the request, or approve it as it is"
            )
        held = first and holds(existing)
        record, audit = transitions.claim_again(
            existing, owner=owner.this_process(), now_us=now_us(), traceparent=traceparent_of(call.span),
            detail=again.why, scheduled_seq=existing.place, locks=existing.locks,
            reserved=existing.reserved if held else None, policy=call.policy or existing.policy,
        )  # fmt: skip
        change = CallChange(record, audit, existing.version, claims=True, run_epoch=sender.epoch, run_id=sender.id)
        spent: list[Change] = []
        if in_doubt:
            change, *spent = settling(existing, change, ONLY_COUNTED if again.why == RESENT else AS_RESERVED)
        claimed = await self._claiming.commit(call, change, spent=spent, in_doubt=in_doubt, held=held)
        if claimed is not None:
            return call, Claim(claimed, in_doubt=in_doubt, resent=again.why == RESENT)
        if not await call.io(self._limits.reload):
            await self._check_open(call)
        return None

    async def _check_open(self, call: Call) -> None:
        sender = call.sent_by or call.run
        run = await call.io(self._store.get_run, sender.namespace, sender.id)
        if run is None or run.epoch != sender.epoch or run.state is not RunState.RUNNING:
            raise _closed(call)

    def _find(self, call: Call) -> CallRecord | None:
        return self._store.find_call(call.run.namespace, call.key.scope, call.tool.name, call.key.value)

    # -- run and settle --------------------------------------------------------------------------------------

    async def _run(self, call: Call, claim: Claim) -> Result:
        record = claim.record

        async def next_attempt() -> None:
            if not owner.is_self(record.owner):
                raise fenced(call, record)
            after, audit = transitions.move_call(
                claim.record, CallEvent.ATTEMPT, now_us(), attempts=claim.record.attempts + 1
            )
            if not await call.io(self._store.commit, [CallChange(after, audit, claim.record.version)], synced=False):
                raise fenced(call, record)
            claim.record = after

        try:
            retry = call.tool.policy.retry or ONCE
            ended = await run_attempts(
                call,
                retry=retry,
                next_attempt=next_attempt,
                late=self._settling.late(call, claim),
                gone=self._settling.gone(claim),
                save_mark=lambda: self._settling.save_mark(call, claim),
                history=History(
                    first_us=await self._first_sent_us(call, claim), in_doubt=claim.in_doubt, resent=claim.resent
                ),
            )
            finished = await call.shielded(self._settling.settle, call, claim, ended)
        finally:
            if record.id not in self._settling.leftovers:
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
            return (await call.shielded(self._settling.settle, call, claim, ended, spent)).value
        finally:
            if claim.record.id not in self._settling.leftovers:
                owner.drop(claim.record.id)


def _closed(call: Call) -> RunClosed:
    run = call.sent_by or call.run
    return RunClosed(
        f"the run {run.id!r} takes no new calls: it has ended or was taken over; tool {call.tool.name!r} did not run",
        status=str(run.state),
    )
