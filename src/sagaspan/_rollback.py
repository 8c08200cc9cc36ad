"""Rolling back: every step that happened is undone in reverse start order, or listed as not (rule book (b)).

An undo is at least once and has a record and a key of its own. One that fails does not stop the older ones: it
becomes a dead letter, ``compensation_failed``, and a person must look.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from opentelemetry.trace import Span, Tracer

from sagaspan import _owner as owner
from sagaspan import _spans as spans
from sagaspan import codecs, semconv
from sagaspan._backends import Backend
from sagaspan._call import Call
from sagaspan._clock import monotonic, new_id, now_us
from sagaspan._compensation import OF_THE_RESULT, RESERVED, Compensation
from sagaspan._tool import tool_of
from sagaspan.exceptions import StoreUnavailable
from sagaspan.keys import CallKey, KeySource, fingerprint, idempotency_key
from sagaspan.ledger import transitions
from sagaspan.ledger.attempts import Ended, run_attempts
from sagaspan.ledger.families import family
from sagaspan.ledger.judgement import LOST, Judge, Verdict
from sagaspan.ledger.locks import commit_with, step_as_holder
from sagaspan.ledger.records import UNREADABLE, CallInfo, CallRecord, CallState, Phase, RunRecord, call_info, names_of
from sagaspan.ledger.resolution import IN_DOUBT, is_unsent
from sagaspan.ledger.store import CallChange, Store
from sagaspan.ledger.transitions import CallEvent
from sagaspan.policy import Policy, Retry

FindCompensation = Callable[[CallRecord], Compensation | None]
"""The compensation registered for a recorded call, or None."""

PATIENCE_SECONDS: Final = 5.0
PATIENT: Final = Retry(attempts=3, initial_delay=0.25, max_delay=2.0)
UNDO_KEY: Final = "undo"
_HAPPENED: Final = (CallState.DONE, CallState.COMPENSATING, CallState.COMPENSATION_FAILED)
_UNSURE: Final = (CallState.UNKNOWN, CallState.NEEDS_HUMAN, CallState.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """A run's steps by what a rollback makes of them; ``undoable`` in the order of undoing.

    ``safe`` are the ids of those that may be undone while they are in doubt.
    """

    undoable: tuple[CallRecord, ...]
    not_compensable: tuple[CallRecord, ...]
    unresolved: tuple[CallRecord, ...]
    safe: frozenset[str]
    undeclared: tuple[CallRecord, ...]
    unsent: tuple[CallRecord, ...]
    undone: bool

    @property
    def expected(self) -> tuple[CallRecord, ...]:
        """What is undone if those that say they are running have lost their process."""
        lost = [call for call in self.unresolved if call.state is CallState.RUNNING and call.id in self.safe]
        return tuple(sorted((*self.undoable, *lost), key=lambda call: call.claim_seq, reverse=True))

    @property
    def happened(self) -> bool:
        """Whether there is anything to undo, or that should be, or that was before this process took over."""
        return bool(self.undoable or self.not_compensable or self.undone)


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """What a rollback did, or would do: steps ``undone``, ``failed`` to undo, and ``not_compensable`` by declaration.

    ``queued`` steps wait, in their order, for a process in which their compensation is registered; ``undeclared`` ones
    have no policy that says whether they changed anything. ``unsent`` ones were deferred, and are not sent any more.
    """

    undone: tuple[CallInfo, ...] = ()
    failed: tuple[CallInfo, ...] = ()
    not_compensable: tuple[CallInfo, ...] = ()
    queued: tuple[CallInfo, ...] = ()
    undeclared: tuple[CallInfo, ...] = ()
    unsent: tuple[CallInfo, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether nothing is left to a person or to another process."""
        return not (self.failed or self.not_compensable or self.queued)

    def sentence(self, run_id: str) -> str:
        """What was undone and what is open, for the note on the original error."""
        parts = [f"sagaspan: run {run_id!r}: undone {_names(self.undone) or 'nothing'}"]
        if self.failed:
            parts.append(f"NOT undone, a person must look: {_names(self.failed)} (sagaspan show {run_id})")
        if self.queued:
            missing = self.queued[0]
            parts.append(
                f"NOT undone yet: {_names(self.queued)}; {missing.compensate!r}, which undoes {missing.tool!r}, is not "
                "registered in this process, so this waits for one that has it"
            )
        if self.not_compensable:
            parts.append(f"declared without compensate, so still in force: {_names(self.not_compensable)}")
        if self.unsent:
            parts.append(f"deferred and not sent: {_names(self.unsent)}")
        if self.undeclared:
            parts.append(f"undeclared, so perhaps still in force: {_names(self.undeclared)}")
        return "; ".join(parts)


def steps_of(store: Store, run: RunRecord) -> Steps:
    """The steps of ``run`` and of the runs nested in it that count, newest first."""
    everything = [call for call in family(store, run) if call.phase is Phase.FORWARD]
    calls = _on_their_own([call for call in everything if call.place > run.committed_seq])
    safe = frozenset(call.id for call in calls if call.empty_safe and call.compensate and call.state in _UNSURE)
    in_doubt = [call for call in _on_their_own(everything) if call.state in _UNSURE]
    return Steps(
        undoable=tuple(
            call
            for call in calls
            if (call.state in _HAPPENED and call.compensate is not None) or (call.state in IN_DOUBT and call.id in safe)
        ),
        not_compensable=tuple(
            call for call in calls if call.state is CallState.DONE and call.declared_write and call.compensate is None
        ),
        # A commit does not end a doubt: it only says that what happened stays.
        unresolved=tuple(call for call in in_doubt if call.declared_write or call.compensate is not None),
        safe=safe,
        undeclared=tuple(
            call for call in calls if call.state is CallState.DONE and call.effect is None and not call.declared_write
        ),
        unsent=tuple(call for call in everything if is_unsent(call)),
        undone=any(call.state is CallState.COMPENSATED and call.run_id == run.id for call in calls),
    )


def _on_their_own(calls: Sequence[CallRecord]) -> list[CallRecord]:
    """Those for which no other of ``calls`` is undone, newest first."""
    by_id = {call.id: call for call in calls}
    own = [call for call in calls if not _covered(call, by_id)]
    return sorted(own, key=lambda call: call.claim_seq, reverse=True)


def _covered(call: CallRecord, by_id: dict[str, CallRecord]) -> bool:
    """Whether a done ancestor with a compensation undoes for this call too."""
    parent = by_id.get(call.parent_id or "")
    while parent is not None:
        if parent.compensate is not None and parent.state in (*_HAPPENED, CallState.COMPENSATED):
            return True
        parent = by_id.get(parent.parent_id or "")
    return False


class Rollback:
    """Undoes the steps of one run, waiting through ``backend``; its spans are children of ``parent``.

    ``again`` is how often a step is tried that could not be undone before. ``lock``: the run may be over, so each step
    takes its locks again.
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
    ) -> None:
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
        for number, step in enumerate(steps):
            compensation = self._find(step)
            if compensation is None:  # the older ones wait with it: nothing is undone before what rests on it
                queued = tuple(map(call_info, steps[number:]))
                return Undone(undone=tuple(undone), failed=tuple(failed), queued=queued)
            after = await self._undo(step, compensation)
            (undone if after.state is CallState.COMPENSATED else failed).append(call_info(after))
        return Undone(undone=tuple(undone), failed=tuple(failed))

    async def _undo(self, step: CallRecord, compensation: Compensation) -> CallRecord:
        retry = self._again if step.state is CallState.COMPENSATION_FAILED else PATIENT
        if step.state in IN_DOUBT:
            step = replace(step, result_lost=transitions.UNDONE_IN_DOUBT)
        lost = _lost(step, compensation)
        if lost is not None:
            return await self._give_up(step, f"{compensation.name!r} asks for {lost}")
        span = self._span(step, compensation)
        call = self._call(step, compensation, span)
        step, record = await self._backend.io(self._claim, call, step)
        executed = record.state is not CallState.DONE  # else undone before a crash, and only not noted on the step
        ended, attempts = await self._run_body(call, record, retry) if executed else (Ended(state=CallState.DONE), 0)
        spans.end(
            span,
            {
                semconv.CALL_ID: record.id,
                semconv.CALL_STATE: ended.state,
                semconv.CALL_EXECUTED: executed,
                semconv.IDEMPOTENCY_OUTCOME: semconv.OUTCOME_EXECUTED if executed else semconv.OUTCOME_REPLAYED,
            },
            ended.error,
        )
        return await self._close(step, replace(record, attempts=record.attempts + attempts), ended)

    # -- records ---------------------------------------------------------------------------------------------

    async def _give_up(self, step: CallRecord, why: str) -> CallRecord:
        """A step that is not even tried to be undone."""
        undoing, audit = transitions.start_undoing(step, now_us())
        failed, why_audit = transitions.move_call(undoing, CallEvent.COMPENSATION_FAILED, now_us(), detail=why)
        changes = CallChange(undoing, audit, step.version), CallChange(failed, why_audit, undoing.version)
        await self._backend.io(self._save, *changes)
        return failed

    def _save(self, *changes: CallChange) -> None:
        # A child forked inside a compensation must not say how that ended.
        if not owner.is_self(self._process) or not self._store.commit(changes, synced=True):
            raise self._taken_over()

    def _save_locked(self, step: CallRecord, changes: list[CallChange]) -> None:
        names = names_of(step.locks) if self._lock else ()
        if not names:
            self._save(*changes)
            return
        holder = step_as_holder(self._store, step, self._run)
        what = f"the call {step.id} of tool {step.tool!r} is not undone"
        if not commit_with(self._store, changes, names, holder, what=what, synced=True):
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
        compensating = CallChange(after, audit, step.version)
        if existing is not None and existing.state is CallState.DONE:
            self._save(compensating)
            return after, existing
        record, changes = self._claimed(call, step, existing)
        owner.hold(record.id)
        try:
            self._save_locked(step, [compensating, *changes])
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
        changes = []
        if existing.state is CallState.RUNNING:
            verdict = self._judge.verdict(existing.owner, existing.id)
            if verdict is Verdict.ALIVE:
                raise self._taken_over()
            lost, audit = transitions.move_call(existing, CallEvent.LOSE, now_us(), detail=LOST[verdict])
            changes.append(CallChange(lost, audit, existing.version))
            existing = lost
        record, audit = transitions.claim_again(
            existing, owner=owner.this_process(), now_us=now_us(), traceparent=spans.traceparent_of(call.span)
        )
        return record, [*changes, CallChange(record, audit, existing.version)]

    async def _close(self, step: CallRecord, record: CallRecord, ended: Ended) -> CallRecord:
        """The compensation's end and its step's, in one commit: they cannot disagree after a crash."""
        now = now_us()
        changes = []
        if record.state is CallState.RUNNING:
            event = {CallState.DONE: CallEvent.SUCCEED, CallState.FAILED: CallEvent.FAIL}.get(
                ended.state, CallEvent.LOSE
            )
            after, audit = transitions.move_call(record, event, now, **_recorded(ended))
            changes.append(CallChange(after, audit, record.version))
        succeeded = ended.state is CallState.DONE
        event = CallEvent.COMPENSATION_SUCCEEDED if succeeded else CallEvent.COMPENSATION_FAILED
        after_step, audit = transitions.move_call(step, event, now, detail=None if succeeded else _said(ended.error))
        changes.append(CallChange(after_step, audit, step.version))
        await self._backend.io(self._save, *changes)
        return after_step

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

    async def _run_body(self, call: Call, record: CallRecord, retry: Retry) -> tuple[Ended, int]:
        """How the body ended, and how many attempts that took beside the first one."""
        started, more = monotonic(), 0

        async def next_attempt() -> None:
            nonlocal more
            if monotonic() - started > PATIENCE_SECONDS:
                raise TimeoutError(f"the compensation {call.tool.name!r} did not succeed within {PATIENCE_SECONDS:g} s")
            more += 1

        try:
            ended = await run_attempts(call, retry=retry, next_attempt=next_attempt, late=lambda _: None)
        finally:
            owner.drop(record.id)
        return ended, more


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


def _recorded(ended: Ended) -> dict[str, str | None]:
    if ended.error is not None:
        return {"error_type": spans.error_type(ended.error), "error_message": spans.error_message(ended.error)}
    try:
        return {"result": codecs.encode(ended.value)}
    except codecs.Unencodable as problem:
        return {"result_lost": str(problem)}


def _said(error: BaseException | None) -> str | None:
    return None if error is None else spans.error_message(error) or type(error).__name__


def _lost(step: CallRecord, compensation: Compensation) -> str | None:
    """What the compensation asks for that nobody has, and why; undoing with a stand-in would be a guess."""
    forward = call_info(step)
    asked = compensation.declared & OF_THE_RESULT
    if asked:
        if forward.result_lost is not None and not (step.empty_safe and asked <= compensation.optional):
            return f"'result', which nobody knows: {forward.result_lost}"
        if isinstance(forward.result, codecs.Unreadable):
            return "'result', which cannot be read in the ledger"
    if UNREADABLE in forward.args and (compensation.takes_all or compensation.declared - set(RESERVED)):
        return "the arguments, which cannot be read in the ledger"
    wanted = set(forward.args) if compensation.takes_all else compensation.declared & set(forward.args)
    lost = (name for name in sorted(wanted) if isinstance(forward.args[name], codecs.Unrecorded))
    return next((f"{name!r}, which could not be recorded" for name in lost), None)


def _names(calls: Sequence[CallInfo]) -> str:
    return ", ".join(call.tool for call in calls)
