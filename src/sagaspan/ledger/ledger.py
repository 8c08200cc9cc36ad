"""The innermost layer: one atomic claim before the body starts, one settle after it.

The claim's conflict is the replay: a record under the same key is answered from the ledger, joined, claimed again
or refused, by its state. Time alone never permits a second run; only evidence or a person does.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from sagaspan import _owner as owner
from sagaspan import codecs, semconv
from sagaspan._call import Call, Result
from sagaspan._clock import now_us
from sagaspan._spans import error_message, error_type, traceparent_of
from sagaspan.exceptions import (
    ApprovalDenied,
    CallInProgress,
    KeyConflict,
    LoopDetected,
    OutcomeUnknown,
    RunClosed,
    StoreError,
)
from sagaspan.keys import KeySource, idempotency_key
from sagaspan.ledger import transitions
from sagaspan.ledger.attempts import Ended, run_attempts
from sagaspan.ledger.records import CallRecord, CallState, RunState, call_info
from sagaspan.ledger.store import CallChange, Store
from sagaspan.ledger.transitions import CallEvent
from sagaspan.policy import Retry

_log = logging.getLogger("sagaspan")
JOIN_SECONDS: Final = 30.0
_ONCE: Final = Retry()
_ENDINGS: Final = {
    CallState.DONE: CallEvent.SUCCEED,
    CallState.FAILED: CallEvent.FAIL,
    CallState.UNKNOWN: CallEvent.LOSE,
}


class Ledger:
    """The endpoint of the onion over one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._unsettled: dict[str, tuple[CallChange, Ended]] = {}
        self._lock = threading.Lock()

    async def __call__(self, call: Call) -> Result:
        """Claim, run and settle ``call``, or answer it from its record."""
        claimed = await self._claim(call)
        return claimed if isinstance(claimed, Result) else await self._run(*claimed)

    async def serve(self, call: Call) -> Result | None:
        """The answer of the ledger without claiming anything; None if ``call`` is to be run."""
        if self._unsettled:
            await call.io(self.settle_leftovers)
        record = await call.io(self._find, call)
        if record is None:
            if call.resumed and call.tool.policy.declared_write:
                await call.io(self._check_resolved, call)
            return None
        answer = await self._answer(call, record)
        return answer if isinstance(answer, Result) else None

    def settle_leftovers(self) -> None:
        """Save what could not be recorded when it ended; raises ``StoreError`` if it still cannot."""
        with self._lock:
            for call_id, (change, ended) in list(self._unsettled.items()):
                if not self._store.commit([change], synced=False):
                    self._settle_taken_over(call_id, ended)
                del self._unsettled[call_id]
                owner.drop(call_id)

    # -- claim ---------------------------------------------------------------------------------------------

    async def _claim(self, call: Call) -> tuple[Call, CallRecord] | Result:
        record, audit = transitions.open_call(_new_record(call))
        if await self._commit_claim(call, [CallChange(record, audit, claims=True, run_epoch=call.run.epoch)]):
            return call, record
        while True:
            existing = await call.io(self._find, call)
            if existing is None:
                raise _closed(call)
            answer = await self._answer(call, existing)
            if isinstance(answer, Result):
                return answer
            again = await self._claim_again(call, answer)
            if again is not None:
                return again

    async def _claim_again(self, call: Call, existing: CallRecord) -> tuple[Call, CallRecord] | None:
        """Claim a call that may run again; None if somebody else was faster. Raises ``RunClosed``."""
        if existing.run_id == call.run.id and existing.state is not CallState.COMPENSATED:
            call = replace(
                call, id=existing.id, generation=existing.generation, idempotency_key=existing.idempotency_key
            )
            record, audit = transitions.claim_again(
                existing, owner=owner.this_process(), now_us=now_us(), traceparent=traceparent_of(call.span)
            )
            changes = [CallChange(record, audit, existing.version, claims=True, run_epoch=call.run.epoch)]
        else:
            call = _next_generation(call, existing)
            freed, freed_audit = transitions.supersede(existing, now_us())
            record, audit = transitions.open_call(_new_record(call))
            fresh = CallChange(record, audit, claims=True, run_epoch=call.run.epoch)
            changes = [CallChange(freed, freed_audit, existing.version), fresh]
        if await self._commit_claim(call, changes):
            return call, record
        await self._check_open(call)
        return None

    async def _check_open(self, call: Call) -> None:
        run = await call.io(self._store.get_run, call.run.namespace, call.run.id)
        if run is None or run.epoch != call.run.epoch or run.state is not RunState.RUNNING:
            raise _closed(call)

    async def _commit_claim(self, call: Call, changes: list[CallChange]) -> bool:
        """Claim the call of the last change; it is held from before it is on disk until ``_run`` lets it go."""
        if self._unsettled:
            await call.io(self.settle_leftovers)
        record, claimed = changes[-1].record, False
        owner.hold(record.id)
        try:
            finished = await call.shielded(self._store.commit, changes, synced=True)
            if finished.interrupted is not None:
                if finished.value:  # claimed, but the body never started: that is proof
                    await call.shielded(self._release, record)
                raise finished.interrupted
            claimed = finished.value
        finally:
            if not claimed:
                owner.drop(record.id)
        return claimed

    def _release(self, record: CallRecord) -> None:
        after, audit = transitions.move_call(record, CallEvent.FAIL, now_us(), detail="cancelled before the body")
        self._store.commit([CallChange(after, audit, record.version)], synced=False)

    def _check_resolved(self, call: Call) -> None:
        """A resume that takes another path starts no write while an earlier one of the run is in doubt."""
        for other in self._store.calls_of(call.run.namespace, call.run.id):
            lost = other.state is CallState.RUNNING and owner.provably_dead(other.owner, other.id)
            if other.declared_write and (lost or other.state in (CallState.UNKNOWN, CallState.NEEDS_HUMAN)):
                raise OutcomeUnknown(
                    f"tool {call.tool.name!r} did not run: nobody knows whether {other.tool!r} of this run happened; "
                    f"a new write must not rest on a guess. Find out, then decide. See: sagaspan show {other.id}",
                    call=call_info(other), tool_ran="no",
                )  # fmt: skip

    def _find(self, call: Call) -> CallRecord | None:
        return self._store.find_call(call.run.namespace, call.key.scope, call.tool.name, call.key.value)

    # -- a record that exists --------------------------------------------------------------------------------

    async def _answer(self, call: Call, record: CallRecord) -> Result | CallRecord:
        """The recorded result, or the record if it may be claimed again; raises what forbids both."""
        if record.fingerprint != call.key.fingerprint:
            raise KeyConflict(
                f"tool {call.tool.name!r}: the key {call.key.value!r} was used with other arguments (call "
                f"{record.id}); "
                "nothing ran. Use a new key, or the same arguments",
                call=call_info(record),
            )
        if record.state is CallState.RUNNING:
            record, outcome = await self._await_owner(call, record)
        else:
            outcome = semconv.OUTCOME_REPLAYED
        if record.state is CallState.DONE:
            return _replayed(call, record, outcome)
        return _claimable(call, record)

    async def _await_owner(self, call: Call, record: CallRecord) -> tuple[CallRecord, str]:
        """Join a call that runs elsewhere; a provably dead owner leaves it ``unknown``."""
        if record.id in call.ancestors:
            raise LoopDetected(
                f"tool {call.tool.name!r} calls itself with the same arguments and would wait for itself; "
                "give it a key= that differs, or repeat='new'",
                signature=call.key.value, count=1, call=call_info(record),
            )  # fmt: skip
        deadline = time.monotonic() + (call.tool.policy.timeout or JOIN_SECONDS)
        pause = 0.005
        while record.state is CallState.RUNNING:
            if owner.provably_dead(record.owner, record.id):
                return await call.io(self._declare_dead, record), semconv.OUTCOME_REPLAYED
            if time.monotonic() > deadline:
                raise CallInProgress(
                    f"tool {call.tool.name!r}: call {record.id} is still running elsewhere ({record.owner}); "
                    "try again when it has ended",
                    call=call_info(record),
                )
            await call.sleep(pause)
            pause = min(pause * 1.5, 0.25)
            record = await call.io(self._reload, record)
        return record, semconv.OUTCOME_JOINED

    def _declare_dead(self, record: CallRecord) -> CallRecord:
        after, audit = transitions.move_call(record, CallEvent.LOSE, now_us(), detail="its process died")
        self._store.commit([CallChange(after, audit, record.version)], synced=True)
        return self._reload(record)

    def _reload(self, record: CallRecord) -> CallRecord:
        return self._store.get_call(record.id) or record

    # -- run and settle --------------------------------------------------------------------------------------

    async def _run(self, call: Call, record: CallRecord) -> Result:
        claim = _Claim(record)

        async def next_attempt() -> None:
            after, audit = transitions.move_call(
                claim.record, CallEvent.ATTEMPT, now_us(), attempts=claim.record.attempts + 1
            )
            if not await call.io(self._store.commit, [CallChange(after, audit, claim.record.version)], synced=False):
                raise _fenced(call, record)
            claim.record = after

        try:
            retry = call.tool.policy.retry or _ONCE
            ended = await run_attempts(call, retry=retry, next_attempt=next_attempt, late=self._late(claim))
            finished = await call.shielded(self._settle, claim, ended)
        finally:
            if record.id not in self._unsettled:
                owner.drop(record.id)
        error = finished.interrupted or ended.error
        return Result(
            value=ended.value,
            error=error,
            state=ended.state,
            outcome=semconv.OUTCOME_EXECUTED,
            record=finished.value,
        )

    def _settle(self, claim: _Claim, ended: Ended) -> CallRecord:
        record = claim.record
        after, audit = transitions.move_call(
            record,
            _ENDINGS[ended.state],
            now_us(),
            detail="suspended" if ended.suspended else None,
            **_outcome(ended),
        )
        change = CallChange(after, audit, record.version)
        try:
            if not self._store.commit([change], synced=False):
                self._settle_taken_over(record.id, ended)
        except StoreError:
            # What succeeded must not be broken by its recording; the next claim fails closed until it is saved.
            _log.exception("call %s of tool %r ended but could not be recorded yet", record.id, record.tool)
            self._unsettled[record.id] = change, ended
        for value in claim.settled():
            self._settle_late(record.id, value)
        return after

    def _settle_taken_over(self, call_id: str, ended: Ended) -> None:
        """Somebody judged us dead meanwhile: a result is evidence, anything else changes nothing."""
        if ended.state is CallState.DONE:
            self._settle_late(call_id, ended.value)

    def _late(self, claim: _Claim) -> Callable[[Any], None]:
        """Told of a result that came after its call was given up: it is evidence once the call is settled."""

        def arrived(value: Any) -> None:
            if not claim.keep(value):
                self._settle_late(claim.record.id, value)

        return arrived

    def _settle_late(self, call_id: str, value: Any) -> None:
        try:
            record = self._store.get_call(call_id)
            if record is None or record.state is not CallState.UNKNOWN:
                return
            after, audit = transitions.move_call(
                record,
                CallEvent.SUCCEED,
                now_us(),
                detail="late result",
                **_outcome(Ended(state=CallState.DONE, value=value)),
            )
            self._store.commit([CallChange(after, audit, record.version)], synced=False)
        except StoreError:
            _log.exception("the late result of call %s could not be recorded; it stays unknown", call_id)


class _Claim:
    """The record in hand, which changes with every attempt; it keeps late results until it is settled."""

    __slots__ = ("_kept", "_lock", "record")

    def __init__(self, record: CallRecord) -> None:
        self.record = record
        self._kept: list[Any] | None = []
        self._lock = threading.Lock()

    def keep(self, value: Any) -> bool:
        """Keep ``value`` for the settle; False if that is over."""
        with self._lock:
            if self._kept is None:
                return False
            self._kept.append(value)
            return True

    def settled(self) -> list[Any]:
        """The values kept; from now on none is."""
        with self._lock:
            kept, self._kept = self._kept or [], None
        return kept


def _new_record(call: Call) -> CallRecord:
    now = now_us()
    policy, compensation = call.tool.policy, call.declared.compensation
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
        state=CallState.RUNNING,
        effect=policy.effect,
        declared_write=policy.declared_write,
        arguments=call.encoded,
        compensate=None if compensation is None else compensation.name,
        tool_call_id=call.tool_call_id,
        owner=owner.this_process(),
        attempts=1,
        traceparent=traceparent_of(call.span),
        created_us=now,
        started_us=now,
    )


def _next_generation(call: Call, existing: CallRecord) -> Call:
    """The call under a key whose earlier call is over: after an undone one, downstream must not answer for that one."""
    generation = existing.generation + (existing.state is CallState.COMPENSATED)
    key = idempotency_key(call.run.namespace, call.key.scope, call.tool.name, call.key.value, generation)
    return replace(call, generation=generation, idempotency_key=key)


def _outcome(ended: Ended) -> dict[str, Any]:
    if ended.error is not None:
        return {"error_type": error_type(ended.error), "error_message": error_message(ended.error)}
    try:
        return {"result": codecs.encode(ended.value), "result_lost": None}
    except codecs.Unencodable as problem:
        # Done is done: never run it again for want of a way to write its result down.
        return {"result": None, "result_lost": str(problem)}


def _replayed(call: Call, record: CallRecord, outcome: str) -> Result:
    if call.tool.policy.repeat_rule == "ask" and call.occurrence > 0:
        raise ApprovalDenied(
            f"tool {call.tool.name!r} is irreversible and was already done with these arguments (call "
            f"{record.id}); nobody "
            "was asked about doing it again. Declare repeat='dedupe' or 'new', or a key=",
            call=call_info(record),
        )
    if record.result_lost is not None:
        raise OutcomeUnknown(
            f"tool {call.tool.name!r} is done and is not run again, but its result was not recorded: "
            f"{record.result_lost}. "
            "Let it return plain data",
            call=call_info(record), tool_ran="yes",
        )  # fmt: skip
    if call.occurrence > 0:
        _log.warning(
            "tool %r was already done with these arguments at %s; the recorded result is returned "
            "(repeat='new' runs it again)",
            record.tool, call_info(record).ended,
        )  # fmt: skip
    value = None if record.result is None else codecs.decode(record.result)
    return Result(value=value, state=record.state, outcome=outcome, record=record)


def _claimable(call: Call, record: CallRecord) -> CallRecord:
    """``record`` if its call may be run (again) by this one; raises otherwise."""
    if record.state is CallState.FAILED:
        return record
    if record.state is CallState.COMPENSATED and call.key.source is KeySource.BUSINESS:
        return record
    if record.state is CallState.UNKNOWN and call.tool.policy.rerunnable:
        return record
    if record.state in (CallState.UNKNOWN, CallState.NEEDS_HUMAN):
        raise OutcomeUnknown(
            f"tool {call.tool.name!r} was started before (call {record.id}) and nobody knows if it happened; it is "
            f"not run again. Find out, then decide. See: sagaspan show {record.id}",
            call=call_info(record),
        )
    raise RunClosed(
        f"tool {call.tool.name!r}: its call {record.id} is {record.state}; a call that was undone is not run again in "
        "the same run. Reopen the run (reopen=True) or use a new run id",
        status=record.state, call=call_info(record),
    )  # fmt: skip


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
