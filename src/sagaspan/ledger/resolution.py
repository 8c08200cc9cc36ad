"""What becomes of a call in doubt: pure decisions from its record, its history and the evidence (rule book (a) 6).

Evidence comes in this order: a late result, the probe, sending the same key again while the service does it only once,
running a read or an idempotent tool again; what is left is for a person. ``rows`` are always the audit rows of the
one call, oldest first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from sagaspan import codecs
from sagaspan._commands import command
from sagaspan._probe import NOT_GIVEN, Answer, Applied
from sagaspan.exceptions import NotApplied, ResolutionError
from sagaspan.ledger.judgement import LOST, Verdict
from sagaspan.ledger.records import AuditRow, CallRecord, CallState, Phase, call_info
from sagaspan.ledger.tasks import why_of
from sagaspan.ledger.transitions import UNDONE_IN_DOUBT, CallEvent

IN_DOUBT: Final = (CallState.UNKNOWN, CallState.NEEDS_HUMAN)
DUPLICATE: Final = "duplicate:"
"""How the scope of a record starts that is the extra effect of a call that happened twice."""

# What the audit rows of a claim and of its end say, and the decisions below read.
MARKS: Final = "marks sending"
RESENT: Final = "the same key again"
PERMITTED: Final = "one more run, permitted"
BODY_ENDED: Final = "its body ended"
BODY_RUNS: Final = "its body still runs"
PROCESS_DIED: Final = LOST[Verdict.DEAD]
NOT_SENT: Final = "its process died before sending"
LATE: Final = "late result"

_NOBODY_SAID: Final = "nobody said what it returned"

WORDS: Final = frozenset(
    {MARKS, RESENT, PERMITTED, BODY_ENDED, BODY_RUNS, NOT_SENT, LATE, UNDONE_IN_DOUBT, _NOBODY_SAID, *LOST.values()}
)
"""What is never encrypted: every process reads these to decide, with a codec or without."""


def happened_after_all(rows: Sequence[AuditRow]) -> bool:
    """Whether a call was taken for failed and its late result is the last that is known of it."""
    return bool(rows) and rows[-1].event == CallEvent.SUCCEED and rows[-1].from_state == CallState.FAILED


class Resolution(StrEnum):
    """What a person can say of a call."""

    HAPPENED = "happened"
    DID_NOT_HAPPEN = "did-not-happen"
    COMPENSATED = "compensated"
    RETRY = "retry"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What the evidence does to the record; ``event`` None: nothing, because of ``why``."""

    event: CallEvent | None
    why: str
    value: Any = NOT_GIVEN


# -- the attempts ----------------------------------------------------------------------------------------------


def not_sent(rows: Sequence[AuditRow]) -> bool:
    """Whether the attempt in force provably sent nothing: its tool marks sending, and there is no mark."""
    for row in reversed(rows):
        if row.event == CallEvent.SENDING:
            return False
        if row.event == CallEvent.CLAIM:
            return why_of(row) == MARKS and row.from_state in (None, CallState.FAILED, CallState.SCHEDULED)
    return False


def attempts_over(rows: Sequence[AuditRow], *, last_is_dead: bool) -> bool:
    """Whether no attempt can land any more. ``last_is_dead``: the latest one's process is, or its body has ended."""
    return not going_on(rows, last_is_dead=last_is_dead)


def going_on(rows: Sequence[AuditRow], *, last_is_dead: bool) -> list[str]:
    """The processes of which an attempt may still land; see ``attempts_over``."""
    lost = [row for row in rows if row.event == CallEvent.LOSE]
    open_attempts = Counter(row.actor for row in lost if row.detail not in (BODY_ENDED, PROCESS_DIED))
    open_attempts.subtract(row.actor for row in rows if row.event == CallEvent.BODY_ENDED or row.detail == LATE)
    if last_is_dead and lost:
        open_attempts.pop(lost[-1].actor, None)
    return [actor for actor, count in open_attempts.items() if count > 0]


def first_sent_us(record: CallRecord, rows: Sequence[AuditRow]) -> int:
    """When the service may first have seen the key; ``created_us`` for what was not deferred, or taken over."""
    if record.scheduled_seq is None:
        return record.created_us
    return min((row.at_us for row in rows if row.event == CallEvent.CLAIM), default=record.created_us)


def permitted(rows: Sequence[AuditRow]) -> bool:
    """Whether a person permitted one more run, and nobody has used it yet."""
    events = (row.event for row in reversed(rows) if row.event != CallEvent.BODY_ENDED)
    return next(events, None) == CallEvent.PERMIT


# -- the evidence ----------------------------------------------------------------------------------------------


def weigh_answer(
    record: CallRecord,
    rows: Sequence[AuditRow],
    answer: Answer,
    *,
    over: bool,
    settle: float,
    now_us: int,
    clocks_us: int = 0,
) -> Finding:
    """What a probe's answer does to a call in doubt.

    ``Applied`` always counts. ``NotApplied`` only once no attempt can land any more (``over``), and ``settle`` seconds
    after that: before, it says only that it did not happen *yet*. ``clocks_us``: how far the clock that wrote the end
    may be from the one that reads it.
    """
    if isinstance(answer, Applied):
        return Finding(event=CallEvent.SUCCEED, why="its probe found it done", value=answer.result)
    if isinstance(answer, NotApplied):
        settle = settle if answer.settle is None else max(answer.settle, 0.0)
        if not over:
            return Finding(event=None, why="its probe found nothing, but an attempt may still land")
        if settle and now_us < (record.ended_us or now_us) + settle * 1e6 + clocks_us:
            more = f", and {clocks_us / 1e6:g} s more, for another machine's clock says when" if clocks_us else ""
            return Finding(event=None, why=f"its probe found nothing yet; that counts {settle:g} s after its end{more}")
        return Finding(event=CallEvent.DISPROVE, why=_text("its probe found that it did not happen", str(answer)))
    why = _text("its probe could not say", answer.reason)
    escalate = over and record.state is CallState.UNKNOWN and not permitted(rows)
    return Finding(event=CallEvent.ESCALATE if escalate else None, why=why)


def weigh_late_result(
    record: CallRecord, rows: Sequence[AuditRow], *, epoch: int, given_up: bool, dedupes: bool
) -> CallEvent | None:
    """What the late result of the attempt of ``epoch`` does to the record as it is now; None: it is known already.

    ``given_up``: its caller did not wait for it, so it is not the success on record. ``dedupes``: the service does one
    key only once.
    """
    rerunnable = record.effect in ("read", "idempotent")
    if record.state is CallState.RUNNING and rerunnable and epoch < record.epoch:
        return None
    if record.state in (*IN_DOUBT, CallState.FAILED, CallState.RUNNING):
        return CallEvent.SUCCEED  # a re-run that is going on is fenced by it: its own success is then the extra one
    success = next((row for row in reversed(rows) if row.event == CallEvent.SUCCEED), None)
    if success is None:
        return None
    late = success.detail == LATE
    if success.from_state != CallState.RUNNING and not late:  # a probe or a person saw this very effect
        wanted = record.state is CallState.DONE and record.result_lost is not None
        return CallEvent.SUPPLY_RESULT if wanted else None
    if not (given_up or late) and record.epoch == epoch:
        return None
    resent = [why_of(row) == RESENT for row in rows if row.event == CallEvent.CLAIM]
    if not given_up and not resent[epoch:]:  # an earlier attempt's late result was faster than what was sent again
        dedupes = epoch > 1 and all(resent[1:epoch])
    same_effect = rerunnable or all(resent[epoch:] or [dedupes])
    return None if same_effect else CallEvent.DUPLICATE_EFFECT


def extra_effect(record: CallRecord, *, id_: str, value: Any, owner: str, now_us: int) -> CallRecord:
    """The effect beside the one of ``record``, as a step of its own: undone with its run, or by itself."""
    return replace(
        record, id=id_, scope=f"{DUPLICATE}{record.id}", key=id_, tool_call_id=None, state=CallState.DONE,
        owner=owner, epoch=1, attempts=1, version=1, claim_seq=0, created_us=now_us, started_us=now_us, ended_us=now_us,
        reserved=None, spent=None, **recorded(value),
    )  # fmt: skip


# -- a person --------------------------------------------------------------------------------------------------

_DECISIONS: Final = {
    (Resolution.HAPPENED, CallState.UNKNOWN): CallEvent.SUCCEED,
    (Resolution.HAPPENED, CallState.NEEDS_HUMAN): CallEvent.SUCCEED,
    (Resolution.DID_NOT_HAPPEN, CallState.UNKNOWN): CallEvent.DISPROVE,
    (Resolution.DID_NOT_HAPPEN, CallState.NEEDS_HUMAN): CallEvent.DISPROVE,
    (Resolution.RETRY, CallState.UNKNOWN): CallEvent.PERMIT,
    (Resolution.RETRY, CallState.NEEDS_HUMAN): CallEvent.PERMIT,
    (Resolution.COMPENSATED, CallState.UNKNOWN): CallEvent.UNDONE_BY_HAND,
    (Resolution.COMPENSATED, CallState.NEEDS_HUMAN): CallEvent.UNDONE_BY_HAND,
    (Resolution.COMPENSATED, CallState.COMPENSATION_FAILED): CallEvent.UNDONE_BY_HAND,
}


_UNSENT: Final = {
    (Resolution.HAPPENED, CallState.SCHEDULED): CallEvent.DONE_BY_HAND,
    (Resolution.HAPPENED, CallState.FAILED): CallEvent.DONE_BY_HAND,
    (Resolution.RETRY, CallState.FAILED): CallEvent.SCHEDULE,
    (Resolution.DID_NOT_HAPPEN, CallState.FAILED): CallEvent.DROP,
    (Resolution.DID_NOT_HAPPEN, CallState.SCHEDULED): CallEvent.DROP,
}


def is_unsent(record: CallRecord) -> bool:
    """Whether a deferred call has not happened and may yet be sent."""
    return record.state is CallState.SCHEDULED or (
        record.state is CallState.FAILED and record.scheduled_seq is not None
    )


def decided_by_hand(
    record: CallRecord, resolution: Resolution, *, result: Any, over: bool, late: bool
) -> tuple[CallEvent, dict[str, Any]]:
    """The event of a person's decision and what it records; raises ``ResolutionError`` if it does not fit.

    ``over``: the call's run does not go on, so what is undone by hand is not run again in it. ``late``: see
    ``happened_after_all``.
    """
    if record.phase is Phase.COMPENSATION:
        raise ResolutionError(
            f"call {record.id} is the undoing of call {record.compensates}; decide that one", call=call_info(record)
        )
    event = (_UNSENT if is_unsent(record) else _DECISIONS).get((resolution, record.state))
    undoable = (record.declared_write and over) or record.scope.startswith(DUPLICATE)
    if record.state is CallState.DONE and resolution is Resolution.COMPENSATED and undoable:
        event = CallEvent.UNDONE_BY_HAND
    if late and resolution is Resolution.HAPPENED and record.result_lost is None and result is NOT_GIVEN:
        event = CallEvent.ACKNOWLEDGE
    if record.state is CallState.DONE and resolution is Resolution.HAPPENED and record.result_lost is not None:
        event = None if result is NOT_GIVEN else CallEvent.SUPPLY_RESULT
    if event is None:
        raise ResolutionError(
            f"call {record.id} of tool {record.tool!r} is {record.state}, so {resolution.value!r} decides nothing "
            f"there. See: {command('show', record.id)}",
            call=call_info(record),
        )
    if result is not NOT_GIVEN and resolution is not Resolution.HAPPENED:
        raise ResolutionError(f"a result goes with 'happened', not with {resolution.value!r}", call=call_info(record))
    return event, _columns(event, result)


def _columns(event: CallEvent, result: Any) -> dict[str, Any]:
    """What a decision changes beside the state."""
    if event in (CallEvent.SUCCEED, CallEvent.SUPPLY_RESULT, CallEvent.DONE_BY_HAND):
        return recorded(result)
    if event is CallEvent.DROP:
        return {"scheduled_seq": None}
    if event is CallEvent.SCHEDULE:
        return {"error_type": None, "error_message": None, "ended_us": None}
    return {}


def recorded(value: Any) -> dict[str, Any]:
    """The columns of a call that is done with ``value``; done is done, also if that cannot be written down."""
    columns: dict[str, Any] = {"result": None, "result_lost": None, "error_type": None, "error_message": None}
    if value is NOT_GIVEN:
        return {**columns, "result_lost": _NOBODY_SAID}
    try:
        return {**columns, "result": codecs.encode(value)}
    except codecs.Unencodable as problem:
        return {**columns, "result_lost": str(problem)}


def _text(what: str, more: str) -> str:
    return f"{what}: {more}" if more else what
