"""Finding out about a call in doubt: its history is read, its probe asked, and what that proves is recorded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from opentelemetry.trace import Span, Tracer

from sagaspan import _metrics as metrics
from sagaspan import _owner as owner
from sagaspan import _spans as spans
from sagaspan import semconv
from sagaspan._backends import Backend, BodyTimeout
from sagaspan._clock import new_id, now_us
from sagaspan._commands import command
from sagaspan._probe import RESERVED, Answer, Applied, Probe, Unsure, answer_of
from sagaspan.exceptions import NotApplied
from sagaspan.ledger import looking, resolution, too_large, transitions
from sagaspan.ledger.attempts import body_token
from sagaspan.ledger.budgets import NOTHING, Spent, settling
from sagaspan.ledger.judgement import CLOCK_TOLERANCE_US, LOST, Judge, Verdict
from sagaspan.ledger.records import UNREADABLE, AuditRow, CallRecord, CallState, RunState, call_info
from sagaspan.ledger.resolution import IN_DOUBT
from sagaspan.ledger.store import CallChange, RunChange, Store
from sagaspan.ledger.transitions import CallEvent, RunEvent

_log = logging.getLogger("sagaspan")
_ANSWERS: Final = {Applied: "applied", NotApplied: "not_applied", Unsure: "unsure"}


def history(store: Store, record: CallRecord) -> list[AuditRow]:
    """The audit rows of one call, oldest first."""
    return [row for row in store.audit_of(record.namespace, record.run_id) if row.call_id == record.id]


def declare_lost(store: Store, record: CallRecord, verdict: Verdict) -> CallRecord:
    """The record of a running call whose owner is dead or expired: in doubt, or ``failed`` if it sent nothing.

    One that is only expired may still send: its missing mark proves nothing yet.
    """
    harmless = verdict is Verdict.DEAD and resolution.not_sent(history(store, record))
    event = CallEvent.FAIL if harmless else CallEvent.LOSE
    why = resolution.NOT_SENT if harmless else LOST[verdict]
    # Nobody decides about a read or a call of a model: what it reserved is spent, rather than kept for ever.
    reserved = None if record.effect == "read" else record.reserved
    after, audit = transitions.move_call(record, event, now_us(), detail=why, reserved=reserved)
    spent = NOTHING if harmless else None
    lost = store.commit(settling(record, CallChange(after, audit, record.version), spent), synced=True)
    if lost and event is CallEvent.LOSE and record.effect != "read":
        metrics.in_doubt(record.tool)
    return store.get_call(record.id) or record


async def resolve_in_doubt(
    store: Store,
    judge: Judge,
    record: CallRecord,
    *,
    probe: Probe | None,
    backend: Backend,
    tracer: Tracer,
    parent: Span | None = None,
) -> CallRecord:
    """Ask what can find out about ``record``; returns it as it is then, decided or still in doubt.

    A call whose owner is dead or expired becomes in doubt first; one that runs or is settled is returned as it is.
    """
    if record.state is CallState.RUNNING:
        verdict = await backend.io(judge.verdict, record.owner, record.id)
        if verdict is not Verdict.ALIVE:
            record = await backend.io(declare_lost, store, record, verdict)
    if record.state not in IN_DOUBT or probe is None:
        return record
    span = spans.start(
        tracer, semconv.SPAN_PROBE.format(tool=record.tool),
        {semconv.GEN_AI_TOOL_NAME: record.tool, semconv.RUN_ID: record.run_id, semconv.CALL_ID: record.id,
         semconv.OPENINFERENCE_SPAN_KIND: semconv.KIND_CHAIN},
        parent=parent, links=spans.link_to(record.traceparent, semconv.LINK_PROBES),
    )  # fmt: skip
    said: dict[str, str] = {}
    try:
        with spans.current(span):
            answer = await _ask(probe, record, backend)
        said[semconv.PROBE_ANSWER] = next(name for kind, name in _ANSWERS.items() if isinstance(answer, kind))
        metrics.probed(record.tool, said[semconv.PROBE_ANSWER])
        record = await backend.io(_record_answer, store, record, answer, probe.settle)
        return record
    finally:
        spans.end(span, {**said, semconv.CALL_STATE: record.state.value})


async def _ask(probe: Probe, record: CallRecord, backend: Backend) -> Answer:
    info = call_info(record)
    if UNREADABLE in info.args and (probe.takes_all or probe.declared - set(RESERVED)):
        return Unsure("it asks for the arguments, which cannot be read in the ledger")
    timeout, arguments = probe.timeout or looking.SECONDS, probe.arguments(info)
    try:
        value = await looking.look(probe.function, arguments, is_async=probe.is_async, timeout=timeout, backend=backend)
    except NotApplied as answer:
        return answer
    except BodyTimeout:
        return Unsure(f"it took longer than {timeout:g} s")
    except Exception as error:  # noqa: BLE001 - a probe that breaks is no evidence
        _log.warning("the probe %r of call %s failed: %r; the call stays in doubt", probe.name, record.id, error)
        return Unsure(f"{type(error).__name__}: {error}")
    return answer_of(value)


def earliest_sent_us(record: CallRecord, rows: Sequence[AuditRow]) -> int:
    """When the service may first have seen the key; the earliest that can mean, where another machine's clock said it.

    ``rows`` are the audit rows of the call, oldest first.
    """
    first = resolution.first_sent_us(record, rows)
    elsewhere = any(not owner.same_boot(row.actor) for row in rows if row.event == CallEvent.CLAIM)
    return first - CLOCK_TOLERANCE_US if elsewhere else first


def _record_answer(store: Store, record: CallRecord, answer: Answer, settle: float) -> CallRecord:
    rows = history(store, record)
    over = resolution.attempts_over(rows, last_is_dead=_ended(record))
    finding = resolution.weigh_answer(
        record, rows, answer, over=over, settle=settle, now_us=now_us(),
        clocks_us=0 if owner.same_boot(record.owner) else CLOCK_TOLERANCE_US,
    )  # fmt: skip
    if finding.event is None:
        return record
    changes = resolution.recorded(finding.value) if finding.event is CallEvent.SUCCEED else {}
    after, audit = transitions.move_call(
        record, finding.event, now_us(), detail=finding.why, actor=owner.this_process(), **changes
    )
    store.commit(settling(record, CallChange(after, audit, record.version)), synced=True)
    return store.get_call(record.id) or after  # somebody else may have found out meanwhile


def may_still_land(store: Store, judge: Judge, record: CallRecord) -> bool:
    """Whether a body of a call that runs or is in doubt is running on in a process that lives."""
    if record.state is CallState.RUNNING:
        return not judge.is_over(record.owner, record.id)
    going_on = resolution.going_on(history(store, record), last_is_dead=_ended(record))
    return any(judge.verdict(actor, body_token(record.id)) is Verdict.ALIVE for actor in going_on)


def _ended(record: CallRecord) -> bool:
    """Whether the latest attempt's process is dead, or its body has ended in this one."""
    if owner.is_self(record.owner):
        return owner.provably_dead(record.owner, body_token(record.id))
    return owner.provably_dead(record.owner, record.id)


def record_late_result(
    store: Store, record: CallRecord, value: Any, spent: Spent | None = None, *, given_up: bool, dedupes: bool
) -> CallRecord | None:
    """What the call of ``record`` (as its attempt knew it) returned after it was given up or taken over.

    ``spent`` is what it cost, if its tool says it.
    Returns the record that was changed or, for an effect that came twice, added; None if it is known already.
    """
    for _ in range(10):  # somebody may settle it at the same moment
        target = attempt = store.get_call(record.id)
        epoch = record.epoch
        taken = transitions.superseded_key(target) if target is not None else None
        if target is not None and taken is not None and target.state is CallState.FAILED:
            target, epoch = store.find_call(target.namespace, taken[0], target.tool, taken[1]), 0
        if target is None or attempt is None:
            return None
        event = resolution.weigh_late_result(
            target, history(store, target), epoch=epoch, given_up=given_up, dedupes=dedupes
        )
        if event is None:
            _warn_if_undone(target)
            return None
        change = _late_change(target, event, value)
        books = settling(target, change, spent, of=(attempt, record.epoch))
        changes = [*books, *_reopened(store, change.record)]
        commit, (saved, *_) = too_large.saved(store, changes, synced=False)
        if commit:
            return saved.record if isinstance(saved, CallChange) else change.record
    return None


def _reopened(store: Store, call: CallRecord) -> Iterator[RunChange]:
    """A run that was rolled back without knowing of ``call`` is not wholly undone, nor are those it is nested in."""
    run = store.get_run(call.namespace, call.run_id) if call.declared_write else None
    while run is not None and run.state is RunState.COMPENSATED:
        after, audit = transitions.move_run(run, RunEvent.PARTIALLY_COMPENSATED, now_us(), detail=resolution.LATE)
        yield RunChange(after, audit, run.version)
        run = store.get_run(run.namespace, run.parent_id) if run.parent_id else None


def _warn_if_undone(target: CallRecord) -> None:
    if target.empty_safe and target.result_lost == transitions.UNDONE_IN_DOUBT:
        _log.warning(
            "call %s of tool %r returned after it was undone in doubt; that is well if it happened before, or if its "
            "service refused it, as empty_safe=True says. See: %s",
            target.id, target.tool, command("show", target.id),
        )  # fmt: skip


def _late_change(target: CallRecord, event: CallEvent, value: Any) -> CallChange:
    now, actor = now_us(), owner.this_process()
    if event is CallEvent.DUPLICATE_EFFECT:
        extra, audit = transitions.duplicate_effect(
            resolution.extra_effect(target, id_=new_id(now), value=value, owner=actor, now_us=now)
        )
        _log.error(
            "call %s of tool %r happened twice; the other effect is call %s. Undo it: %s",
            target.id, target.tool, extra.id, command("compensate", extra.run_id, call=extra.id),
        )  # fmt: skip
        return CallChange(extra, audit)
    if target.state is CallState.FAILED and target.declared_write:
        _log.error(
            "call %s of tool %r was taken for failed and happened after all; see: %s",
            target.id, target.tool, command("show", target.id),
        )  # fmt: skip
    after, audit = transitions.move_call(
        target, event, now, detail=resolution.LATE, actor=actor, **resolution.recorded(value)
    )
    return CallChange(after, audit, target.version)


def record_body_ended(store: Store, record: CallRecord) -> None:
    """A body that nobody waited for ended without a result: it cannot land any more."""
    for _ in range(10):  # a probe may answer at the same moment
        current = store.get_call(record.id)
        if current is None or current.state not in IN_DOUBT:
            return
        after, audit = transitions.move_call(current, CallEvent.BODY_ENDED, now_us(), actor=owner.this_process())
        if store.commit([CallChange(after, audit, current.version)], synced=False):
            return


FindProbe = Callable[[CallRecord], Probe | None]
"""The probe registered for a recorded call, or None."""
