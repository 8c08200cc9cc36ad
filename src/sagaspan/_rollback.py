"""Rolling back: every step that happened is undone in reverse start order, or listed as not (rule book (b)).

An undo is at least once and has a record and a key of its own. One that fails does not stop the older ones: it
becomes a dead letter, ``compensation_failed``, and a person must look.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from opentelemetry.trace import Span, Tracer
from opentelemetry.util.types import AttributeValue

from sagaspan import _metrics as metrics
from sagaspan import _owner as owner
from sagaspan import _spans as spans
from sagaspan import codecs, semconv
from sagaspan._backends import Backend, BodyTimeout, stops_everything
from sagaspan._call import Call
from sagaspan._call_content import content_of, without_redacted
from sagaspan._clock import monotonic, new_id, now_us
from sagaspan._compensation import OF_THE_RESULT, RESERVED, Compensation, Handler
from sagaspan._tool import tool_of
from sagaspan._undone import Undone
from sagaspan.exceptions import StoreError, StoreUnavailable
from sagaspan.keys import CallKey, KeySource, fingerprint, idempotency_key
from sagaspan.ledger import too_large, transitions
from sagaspan.ledger.attempts import Ended, UntilSettled, run_attempts
from sagaspan.ledger.budgets import settling
from sagaspan.ledger.judgement import LOST, Judge, Verdict
from sagaspan.ledger.locks import commit_with, step_as_holder
from sagaspan.ledger.looking import SECONDS, look
from sagaspan.ledger.records import (
    UNREADABLE,
    CallInfo,
    CallRecord,
    CallState,
    Phase,
    RunRecord,
    call_info,
    is_encrypted,
    names_of,
)
from sagaspan.ledger.resolution import IN_DOUBT, LATE
from sagaspan.ledger.store import CallChange, Change, Store
from sagaspan.ledger.transitions import CallEvent
from sagaspan.policy import Policy, Retry

_log = logging.getLogger("sagaspan")

FindCompensation = Callable[[CallRecord], Compensation | None]
"""The compensation registered for a recorded call, or None."""

PATIENCE_SECONDS: Final = 5.0
"""How long a caller waits for a compensation, unless that is a tool with a longer ``timeout``."""

_LEAST_SECONDS: Final = 0.5
"""An attempt with less time than this is not begun."""

PATIENT: Final = Retry(attempts=3, initial_delay=0.25, max_delay=2.0)
UNDO_KEY: Final = "undo"
_UNREADABLE: Final = "which cannot be read in the ledger"
_NO_CONTENT: Final[Mapping[str, AttributeValue]] = {}


class Rollback:
    """Undoes the steps of one run, waiting through ``backend``; its spans are children of ``parent``.

    ``again`` is how often a step is tried that could not be undone before. ``lock``: the run may be over, so each step
    takes its locks again. ``undone_late`` is told of a step whose compensation ended well after nobody waited for it.
    """

    def __init__(
        self,
        store: Store,
        run: RunRecord,
        *,
        judge: Judge,
        find: FindCompensation,
        tracer: Tracer,
        parent: Span,
        backend: Backend,
        again: Retry = PATIENT,
        lock: bool = False,
        undone_late: Callable[[CallRecord], None] = lambda _: None,
    ) -> None:
        self._undone_late = undone_late
        self._lock = lock
        self._judge = judge
        self._again = again
        self._store = store
        self._run = run
        self._find = find
        self._tracer = tracer
        self._parent = parent
        self._backend = backend
        self._process = owner.this_process()

    async def __call__(self, steps: Sequence[CallRecord]) -> Undone:
        """Undo ``steps`` in their order, up to the first whose compensation this process does not know."""
        undone: list[CallInfo] = []
        failed: list[CallInfo] = []
        unfinished: list[CallInfo] = []
        for number, step in enumerate(steps):
            compensation = self._find(step)
            if compensation is None:  # the older ones wait with it: nothing is undone before what rests on it
                queued = tuple(map(call_info, steps[number:]))
                return Undone(undone=tuple(undone), failed=tuple(failed), unfinished=tuple(unfinished), queued=queued)
            if not await self._backend.io(self._goes_on, step):
                step = await self._undo(step, compensation)
                metrics.compensated(step.tool, str(step.state))
            (undone if step.state is CallState.COMPENSATED else failed).append(call_info(step))
            if await self._backend.io(self._goes_on, step):
                unfinished.append(call_info(step))
        return Undone(undone=tuple(undone), failed=tuple(failed), unfinished=tuple(unfinished))

    def _goes_on(self, step: CallRecord) -> bool:
        """Whether the compensation of ``step`` still runs, and nobody waits for it any more."""
        if step.state is not CallState.COMPENSATION_FAILED:
            return False
        undo = undo_of(self._store, step)
        return undo is not None and undo.state is CallState.RUNNING and not self._judge.is_over(undo.owner, undo.id)

    async def _undo(self, step: CallRecord, compensation: Compensation) -> CallRecord:
        retry = self._again if step.state is CallState.COMPENSATION_FAILED else PATIENT
        if step.state in IN_DOUBT:
            step = replace(step, result_lost=transitions.UNDONE_IN_DOUBT)
        lost = _lost(step, compensation)
        if lost is not None:
            return await self._give_up(step, f"{compensation.name!r} asks for {lost}")
        if compensation.expect is not None and (why := await self._forbidden(step, compensation.expect)) is not None:
            return await self._give_up(step, why, error_type=transitions.WORLD_CHANGED, error_message=why)
        span = self._span(step, compensation)
        call = self._call(step, compensation, span)
        step, record = await self._backend.io(self._claim, call, step)
        executed = record.state is not CallState.DONE  # else undone before a crash, and only not noted on the step
        if executed:
            return await self._run_and_close(call, step, record, retry, _Patience(compensation))
        self._end_span(call, record, Ended(state=CallState.DONE), executed=False)
        return await self._close(step, record, Ended(state=CallState.DONE))

    def _end_span(self, call: Call, record: CallRecord, ended: Ended, *, executed: bool) -> None:
        attributes: dict[str, AttributeValue] = {
            semconv.CALL_ID: record.id,
            semconv.CALL_STATE: ended.state.value,
            semconv.CALL_EXECUTED: executed,
            semconv.IDEMPOTENCY_OUTCOME: semconv.OUTCOME_EXECUTED if executed else semconv.OUTCOME_REPLAYED,
        }
        if executed and spans.captures_content():
            attributes.update(self._content(call, ended))
        spans.end(call.span, attributes, ended.error)
        if executed:
            metrics.ran(call.tool.name, self._run.agent, semconv.PHASE_COMPENSATION, record, ended.error, call.span)

    @spans.harmless(_NO_CONTENT)
    def _content(self, call: Call, ended: Ended) -> Mapping[str, AttributeValue]:
        redaction = self._store.seal.redaction(call.run.namespace, call.tool.name)
        return content_of(without_redacted(call.encoded, redaction), ended.value, ended.error, redaction)

    # -- records ---------------------------------------------------------------------------------------------

    async def _give_up(self, step: CallRecord, why: str, **changes: str) -> CallRecord:
        """A step that is not even tried to be undone."""
        undoing, audit = transitions.start_undoing(step, now_us())
        begun, *books = settling(step, CallChange(undoing, audit, step.version))
        failed, why_audit = transitions.move_call(
            begun.record, CallEvent.COMPENSATION_FAILED, now_us(), detail=why, **changes
        )
        both = [begun, *books, CallChange(failed, why_audit, undoing.version)]
        earlier = await self._backend.io(undo_of, self._store, step)
        lost = [] if earlier is None else await self._backend.io(self._lose, earlier)
        await self._backend.io(self._save, *lost, *both)
        return failed

    def _lose(self, undo: CallRecord) -> list[CallChange]:
        """An attempt to undo that lost its process is in doubt; one that goes on is nobody's to take over."""
        if undo.state is not CallState.RUNNING:
            return []
        verdict = self._judge.verdict(undo.owner, undo.id)
        if verdict is Verdict.ALIVE:
            raise self._taken_over()
        lost, audit = transitions.move_call(undo, CallEvent.LOSE, now_us(), detail=LOST[verdict])
        return [CallChange(lost, audit, undo.version)]

    def _save(self, *changes: Change) -> None:
        # A child forked inside a compensation must not say how that ended.
        if not owner.is_self(self._process) or not too_large.saved(self._store, changes, synced=True)[0]:
            raise self._taken_over()

    def _save_locked(self, step: CallRecord, changes: list[Change]) -> None:
        names = names_of(step.locks) if self._lock else ()
        if not names:
            self._save(*changes)
            return
        holder = step_as_holder(self._store, step, self._run)
        what = f"the call {step.id} of tool {step.tool!r} is not undone"
        ours = owner.is_self(self._process)
        if not ours or not commit_with(self._store, changes, names, holder, what=what, synced=True):
            raise self._taken_over()

    def _taken_over(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"the rollback of run {self._run.id!r} was taken over by another worker; this one changes nothing more"
        )

    def _claim(self, call: Call, step: CallRecord) -> tuple[CallRecord, CallRecord]:
        """The step, ``compensating``, and what undoes it, claimed: on disk before its body starts, as for every call.

        In one commit, so that of two rollbacks that meet at a step one is refused before it runs anything. What is done
        already is returned as it is; what ``_run_body`` is to run is held.
        """
        existing = self._store.find_call(call.run.namespace, call.key.scope, call.tool.name, call.key.value)
        after, audit = transitions.start_undoing(step, now_us())
        begun, *books = settling(step, CallChange(after, audit, step.version))
        after = begun.record
        if existing is not None and existing.state is CallState.DONE:
            self._save(begun, *books)
            return after, existing
        record, changes = self._claimed(call, step, existing)
        owner.hold(record.id)
        try:
            self._save_locked(step, [begun, *books, *changes])
        except BaseException:
            owner.drop(record.id)
            raise
        return after, record

    def _claimed(
        self, call: Call, step: CallRecord, existing: CallRecord | None
    ) -> tuple[CallRecord, list[CallChange]]:
        if existing is None:
            record, audit = transitions.open_call(_compensation_record(call, step))
            return record, [CallChange(record, audit)]
        changes = self._lose(existing)
        if changes:
            existing = changes[0].record
        record, audit = transitions.claim_again(
            existing, owner=owner.this_process(), now_us=now_us(), traceparent=spans.traceparent_of(call.span)
        )
        return record, [*changes, CallChange(record, audit, existing.version)]

    async def _close(self, step: CallRecord, record: CallRecord, ended: Ended) -> CallRecord:
        """The compensation's end and its step's, in one commit: they cannot disagree after a crash.

        One that was given up goes on: its own record stays ``running``, so that nobody starts a second one. One that
        was broken off (a second Ctrl-C) has not failed: its step stays ``compensating``, and recovery goes on with it.
        """
        changes = []
        if record.state is CallState.RUNNING and not ended.given_up:
            changes.append(_end_of(record, ended))
        if ended.error is not None and stops_everything(ended.error):
            await self._backend.io(self._save, *changes)
            return step
        succeeded = ended.state is CallState.DONE
        event = CallEvent.COMPENSATION_SUCCEEDED if succeeded else CallEvent.COMPENSATION_FAILED
        why = None if succeeded else _said(ended.error)
        after, audit = transitions.move_call(
            step, event, now_us(), detail=f"{why}; it still runs" if ended.given_up else why
        )
        changes.append(CallChange(after, audit, step.version))
        await self._backend.io(self._save, *changes)
        return after

    def _close_late(self, step: CallRecord, record: CallRecord, ended: Ended) -> None:
        """How a compensation ended that nobody waited for any more: it is evidence, for its step and for its run."""
        try:
            after = self._save_late(step, record, ended)
            if after is not None and after.state is CallState.COMPENSATED:
                self._undone_late(after)
        except StoreError:
            _log.exception("the end of %r, which undoes call %s, could not be recorded", record.tool, step.id)
        finally:
            owner.drop(record.id)

    def _save_late(self, step: CallRecord, record: CallRecord, ended: Ended) -> CallRecord | None:
        if not owner.is_self(self._process):  # a child forked inside it
            return None
        for _ in range(10):  # somebody may decide about the step at the same moment
            undo, after = self._store.get_call(record.id), self._store.get_call(step.id)
            if undo is None or after is None or undo.state is not CallState.RUNNING or undo.epoch != record.epoch:
                return None
            changes = [_end_of(replace(record, version=undo.version), ended)]
            if ended.state is CallState.DONE and after.state is CallState.COMPENSATION_FAILED:
                before = after.version
                after, audit = transitions.move_call(
                    after, CallEvent.COMPENSATION_SUCCEEDED, now_us(), detail=LATE, actor=owner.this_process()
                )
                changes.append(CallChange(after, audit, before))
            if too_large.saved(self._store, changes, synced=True)[0]:
                return after
        return None

    # -- the world -------------------------------------------------------------------------------------------

    async def _forbidden(self, step: CallRecord, expect: Handler) -> str | None:
        """Why ``step`` is not to be undone: ``expect`` does not say that this overwrites nothing. None if it does.

        Asked before every round. What an attempt that died may have undone already, it cannot tell from what somebody
        else did: then a person looks.
        """
        earlier = await self._backend.io(undo_of, self._store, step)
        if earlier is not None and earlier.state is CallState.DONE:  # only not noted on the step
            return None
        answer = await self._answer(step, expect)
        if answer is None:
            return None
        perhaps = "" if earlier is None else "; an earlier attempt may have undone it"
        return f"it is left as it is, because {expect.name!r} {answer}{perhaps}"

    async def _answer(self, step: CallRecord, expect: Handler) -> str | None:
        if (lost := _lost(step, expect)) is not None:
            return f"asks for {lost}"
        forward = call_info(step)
        arguments = expect.arguments(forward, forward.idempotency_key)
        try:
            said = await look(expect.function, arguments, is_async=expect.is_async, backend=self._backend)
        except BodyTimeout:
            return f"took longer than {SECONDS:g} s"
        except Exception as error:  # noqa: BLE001 - what cannot be looked at may have changed
            return f"could not say: {type(error).__name__}: {spans.error_message(error) or ''}"
        return None if said is True else f"says {said!r}, not True: what the call left has changed since"

    # -- the body --------------------------------------------------------------------------------------------

    def _span(self, step: CallRecord, compensation: Compensation) -> Span:
        attributes = {
            semconv.GEN_AI_OPERATION_NAME: semconv.OPERATION_EXECUTE_TOOL,
            semconv.GEN_AI_TOOL_NAME: compensation.name,
            semconv.GEN_AI_TOOL_TYPE: semconv.TOOL_TYPE_FUNCTION,
            semconv.RUN_ID: self._run.id,
            semconv.RUN_NAME: self._run.name,
            semconv.CALL_PHASE: semconv.PHASE_COMPENSATION,
            semconv.CALL_COMPENSATES: step.id,
        }
        optional = (
            (semconv.GEN_AI_AGENT_NAME, self._run.agent),
            (semconv.GEN_AI_CONVERSATION_ID, self._run.conversation),
            (semconv.USER_ID, spans.user_of(self._run.user)),
        )
        attributes.update({name: value for name, value in optional if value})
        links = spans.link_to(step.traceparent, semconv.LINK_COMPENSATES)
        return spans.start(
            self._tracer, semconv.SPAN_TOOL.format(tool=compensation.name), attributes, parent=self._parent, links=links
        )

    def _call(self, step: CallRecord, compensation: Compensation, span: Span) -> Call:
        forward = call_info(step)
        scope = undo_scope(step)
        key = idempotency_key(step.namespace, scope, compensation.name, UNDO_KEY, 0)
        arguments = compensation.arguments(forward, key)
        encoded = _encoded(arguments)
        tool = tool_of(
            compensation.function,
            name=compensation.name,
            policy=Policy(effect="idempotent"),
            is_async=compensation.is_async,
        )
        return Call(
            id=new_id(now_us()),
            tool=tool,
            arguments=arguments,
            invoke=lambda given: compensation.function(**given),
            encoded=encoded,
            key=CallKey(source=KeySource.UNIQUE, scope=scope, value=UNDO_KEY, fingerprint=fingerprint([scope])),
            generation=0,
            idempotency_key=key,
            run=replace(self._run, id=step.run_id),
            under=step.run_id,
            phase=Phase.COMPENSATION,
            backend=self._backend,
            span=span,
            tracer=self._tracer,
        )

    async def _run_and_close(
        self, call: Call, step: CallRecord, record: CallRecord, retry: Retry, patience: _Patience
    ) -> CallRecord:
        """Run the body for as long as its caller waits, and write how that ended; what comes later is written then."""
        late, given_up = UntilSettled(), False

        def ended_late(ended: Ended) -> None:
            def close() -> None:
                self._close_late(step, patience.counted(record), ended)

            if not late.keep(close):
                close()

        try:
            ended = await run_attempts(
                call, retry=retry, next_attempt=patience.next_attempt, timeout=patience.left,
                late=lambda value: ended_late(Ended(state=CallState.DONE, value=value)),
                gone=lambda: ended_late(Ended(state=CallState.UNKNOWN)),
            )  # fmt: skip
            given_up = ended.given_up
            self._end_span(call, record, ended, executed=True)
            after = await self._close(step, patience.counted(record), ended)
        finally:
            if not given_up:
                owner.drop(record.id)
            for close in late.settled():
                await self._backend.io(close)
        if ended.error is not None and stops_everything(ended.error):
            raise ended.error
        return await self._backend.io(self._reload, after) if given_up else after

    def _reload(self, step: CallRecord) -> CallRecord:
        now = self._store.get_call(step.id)
        return step if now is None else now


class _Patience:
    """How long a caller waits for one compensation, its attempts together."""

    def __init__(self, compensation: Compensation) -> None:
        self._name = compensation.name
        self._seconds = max(PATIENCE_SECONDS, compensation.timeout or 0.0)
        self._started = monotonic()
        self._more = 0

    def left(self) -> float:
        """Seconds that are left."""
        return self._seconds - (monotonic() - self._started)

    async def next_attempt(self) -> None:
        """Another attempt begins; raises ``TimeoutError`` if there is no time for it."""
        if self.left() < _LEAST_SECONDS:
            raise TimeoutError(f"the compensation {self._name!r} did not succeed within {self._seconds:g} s")
        self._more += 1

    def counted(self, record: CallRecord) -> CallRecord:
        """``record`` with the attempts that were made since its claim."""
        return replace(record, attempts=record.attempts + self._more)


def undo_scope(step: CallRecord) -> str:
    """The scope of the key of what undoes ``step``."""
    return f"undo:{step.id}"


def undo_of(store: Store, step: CallRecord) -> CallRecord | None:
    """The record of what undoes ``step``, or undid it, or tried to."""
    return store.find_call(step.namespace, undo_scope(step), step.compensate or "", UNDO_KEY)


def _compensation_record(call: Call, step: CallRecord) -> CallRecord:
    now = now_us()
    return CallRecord(
        id=call.id,
        namespace=call.run.namespace,
        scope=call.key.scope,
        tool=call.tool.name,
        key=call.key.value,
        key_source=call.key.source,
        idempotency_key=call.idempotency_key,
        fingerprint=call.key.fingerprint,
        run_id=step.run_id,
        parent_id=None,
        phase=Phase.COMPENSATION,
        compensates=step.id,
        state=CallState.RUNNING,
        arguments=call.encoded,
        owner=owner.this_process(),
        attempts=1,
        traceparent=spans.traceparent_of(call.span),
        created_us=now,
        started_us=now,
    )


def _encoded(arguments: dict[str, object]) -> str:
    """The arguments as recorded; ``call`` is left out, it is the step itself."""
    return codecs.encode({name: value for name, value in arguments.items() if name != "call"})


def _end_of(record: CallRecord, ended: Ended) -> CallChange:
    event = {CallState.DONE: CallEvent.SUCCEED, CallState.FAILED: CallEvent.FAIL}.get(ended.state, CallEvent.LOSE)
    after, audit = transitions.move_call(record, event, now_us(), **_recorded(ended))
    return CallChange(after, audit, record.version)


def _recorded(ended: Ended) -> dict[str, str | None]:
    if ended.error is not None:
        return {"error_type": spans.error_type(ended.error), "error_message": spans.error_message(ended.error)}
    try:
        return {"result": codecs.encode(ended.value)}
    except codecs.Unencodable as problem:
        return {"result_lost": str(problem)}


def _said(error: BaseException | None) -> str | None:
    return None if error is None else spans.error_message(error) or type(error).__name__


def _lost(step: CallRecord, compensation: Handler) -> str | None:
    """What a handler asks for that nobody has, and why; undoing with a stand-in would be a guess."""
    forward = call_info(step)
    asked = compensation.declared & OF_THE_RESULT
    if asked:
        if forward.result_lost is not None and not (step.empty_safe and asked <= compensation.optional):
            return f"'result', which nobody knows: {forward.result_lost}"
        given = compensation.arguments(forward, "")
        if any(isinstance(given.get(name), codecs.Redacted) for name in asked):
            return "'result', which holds a redacted argument and so was not recorded"
        if isinstance(forward.result, codecs.Unreadable):
            return f"'result', {_UNREADABLE}"
    if UNREADABLE in forward.args and (compensation.takes_all or compensation.declared - set(RESERVED)):
        return f"the arguments, {_UNREADABLE}"
    if "call" in compensation.declared and is_encrypted(forward):
        return f"'call', {_UNREADABLE}"
    wanted = set(forward.args) if compensation.takes_all else compensation.declared & set(forward.args)
    lost = (name for name in sorted(wanted) if isinstance(forward.args[name], codecs.Unrecorded))
    return next((f"{name!r}, which could not be recorded" for name in lost), None)
