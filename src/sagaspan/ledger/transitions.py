"""The state machines: pure functions from (record, event, now) to (record, audit row).

The tables below are the rules, and the docs print them; a store only makes "compare the version, save, append the
audit row" atomic. ``failed`` means it did not happen, ``unknown`` that it may have: an exception, a timeout or a
dead owner leads to ``unknown`` unless there is proof (rule book 1.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from sagaspan._frozen import replaced
from sagaspan.ledger.records import SUPERSEDED, AuditRow, CallRecord, CallState, Phase, RunRecord, RunState


class CallEvent(StrEnum):
    """What can happen to a call."""

    CLAIM = "claim"
    ATTEMPT = "attempt"
    EXTEND = "extend"
    SUCCEED = "succeed"
    FAIL = "fail"
    LOSE = "lose"
    COMPENSATE = "compensate"
    COMPENSATE_IN_DOUBT = "compensate_in_doubt"
    COMPENSATION_SUCCEEDED = "compensation_succeeded"
    COMPENSATION_FAILED = "compensation_failed"
    SUPERSEDE = "supersede"
    SENDING = "sending"
    BODY_ENDED = "body_ended"
    ESCALATE = "escalate"
    DISPROVE = "disprove"
    PERMIT = "permit"
    HAND_OVER = "hand_over"
    UNDONE_BY_HAND = "undone_by_hand"
    SUPPLY_RESULT = "supply_result"
    DUPLICATE_EFFECT = "duplicate_effect"
    ACKNOWLEDGE = "acknowledge"
    SCHEDULE = "schedule"
    DROP = "drop"
    DONE_BY_HAND = "done_by_hand"


class RunEvent(StrEnum):
    """What can happen to a run."""

    OPEN = "open"
    RESUME = "resume"
    REOPEN = "reopen"
    COMMIT = "commit"
    FINISH = "finish"
    COMPLETE = "complete"
    FAIL = "fail"
    PAUSE = "pause"
    HOLD = "hold"
    COMPENSATE = "compensate"
    COMPENSATED = "compensated"
    PARTIALLY_COMPENSATED = "partially_compensated"


class IllegalTransition(RuntimeError):
    """A bug in this library: an event that the table does not allow in that state."""


_C, _E = CallState, CallEvent
CALL_TABLE: Final[Mapping[tuple[CallState | None, CallEvent], CallState]] = {
    (None, _E.CLAIM): _C.RUNNING,
    (_C.FAILED, _E.CLAIM): _C.RUNNING,
    # Only where running it again is harmless (reads, idempotent tools, the same key while the service does it only
    # once), or where a person permitted one more run.
    (_C.UNKNOWN, _E.CLAIM): _C.RUNNING,
    (_C.NEEDS_HUMAN, _E.CLAIM): _C.RUNNING,
    (_C.RUNNING, _E.ATTEMPT): _C.RUNNING,
    (_C.RUNNING, _E.EXTEND): _C.RUNNING,  # it goes on past what it had reserved, and has reserved more
    (_C.RUNNING, _E.SUCCEED): _C.DONE,
    (_C.RUNNING, _E.FAIL): _C.FAILED,
    (_C.RUNNING, _E.LOSE): _C.UNKNOWN,
    (_C.RUNNING, _E.SENDING): _C.RUNNING,  # the second mark: from here on it may have happened
    # A late result, a probe or a person says that it happened. It also proves wrong who said that it did not.
    (_C.UNKNOWN, _E.SUCCEED): _C.DONE,
    (_C.NEEDS_HUMAN, _E.SUCCEED): _C.DONE,
    (_C.FAILED, _E.SUCCEED): _C.DONE,
    (_C.DONE, _E.SUPPLY_RESULT): _C.DONE,  # it happened, and now also its result is known
    (_C.DONE, _E.ACKNOWLEDGE): _C.DONE,  # a person has seen that it happened after all
    # A probe or a person says that it did not happen.
    (_C.UNKNOWN, _E.DISPROVE): _C.FAILED,
    (_C.NEEDS_HUMAN, _E.DISPROVE): _C.FAILED,
    # Everything that can find out was asked, in vain.
    (_C.UNKNOWN, _E.ESCALATE): _C.NEEDS_HUMAN,
    # A body that nobody waited for ended without a result: from now on it cannot land any more.
    (_C.UNKNOWN, _E.BODY_ENDED): _C.UNKNOWN,
    (_C.NEEDS_HUMAN, _E.BODY_ENDED): _C.NEEDS_HUMAN,
    # A person permits one more run of it.
    (_C.UNKNOWN, _E.PERMIT): _C.UNKNOWN,
    (_C.NEEDS_HUMAN, _E.PERMIT): _C.UNKNOWN,
    # Another run sends it again under its business key: the doubt is that run's now.
    (_C.UNKNOWN, _E.HAND_OVER): _C.FAILED,
    (_C.NEEDS_HUMAN, _E.HAND_OVER): _C.FAILED,
    (_C.UNKNOWN, _E.UNDONE_BY_HAND): _C.COMPENSATED,
    (_C.NEEDS_HUMAN, _E.UNDONE_BY_HAND): _C.COMPENSATED,
    (_C.COMPENSATION_FAILED, _E.UNDONE_BY_HAND): _C.COMPENSATED,
    (_C.DONE, _E.UNDONE_BY_HAND): _C.COMPENSATED,
    # A call that was run again, and whose earlier attempt turns out to have happened too: the extra effect.
    (None, _E.DUPLICATE_EFFECT): _C.DONE,
    (_C.DONE, _E.COMPENSATE): _C.COMPENSATING,
    # Only what declares that undoing it is safe even if it did not happen.
    (_C.UNKNOWN, _E.COMPENSATE_IN_DOUBT): _C.COMPENSATING,
    (_C.NEEDS_HUMAN, _E.COMPENSATE_IN_DOUBT): _C.COMPENSATING,
    (_C.COMPENSATING, _E.COMPENSATE): _C.COMPENSATING,
    (_C.COMPENSATION_FAILED, _E.COMPENSATE): _C.COMPENSATING,
    (_C.COMPENSATING, _E.COMPENSATION_SUCCEEDED): _C.COMPENSATED,
    (_C.COMPENSATING, _E.COMPENSATION_FAILED): _C.COMPENSATION_FAILED,
    # Nobody waited for the compensation any more, and then it ended well after all.
    (_C.COMPENSATION_FAILED, _E.COMPENSATION_SUCCEEDED): _C.COMPENSATED,
    # A business key is free again for another run once its call failed or was undone; the record stays.
    (_C.FAILED, _E.SUPERSEDE): _C.FAILED,
    (_C.REFUSED, _E.SUPERSEDE): _C.REFUSED,
    (_C.COMPENSATED, _E.SUPERSEDE): _C.COMPENSATED,
    (_C.UNKNOWN, _E.SUPERSEDE): _C.UNKNOWN,  # reads and idempotent tools only
    (_C.NEEDS_HUMAN, _E.SUPERSEDE): _C.NEEDS_HUMAN,
    # A deferred call waits for its run to commit; then it is claimed like any other, or it is given up.
    (None, _E.SCHEDULE): _C.SCHEDULED,
    (_C.FAILED, _E.SCHEDULE): _C.SCHEDULED,
    (_C.REFUSED, _E.SCHEDULE): _C.SCHEDULED,
    (_C.SCHEDULED, _E.CLAIM): _C.RUNNING,
    (_C.REFUSED, _E.CLAIM): _C.RUNNING,
    (_C.SCHEDULED, _E.DROP): _C.REFUSED,
    (_C.SCHEDULED, _E.DONE_BY_HAND): _C.DONE,
    (_C.FAILED, _E.DONE_BY_HAND): _C.DONE,
    (_C.FAILED, _E.DROP): _C.FAILED,  # sent, and refused by the service: it is not tried again
}

_R, _V = RunState, RunEvent
RUN_TABLE: Final[Mapping[tuple[RunState | None, RunEvent], RunState]] = {
    (None, _V.OPEN): _R.RUNNING,
    (_R.RUNNING, _V.RESUME): _R.RUNNING,
    (_R.PAUSED, _V.RESUME): _R.RUNNING,
    (_R.HELD, _V.RESUME): _R.RUNNING,
    (_R.FAILED, _V.RESUME): _R.RUNNING,
    (_R.COMPLETED, _V.REOPEN): _R.RUNNING,
    (_R.COMPENSATED, _V.REOPEN): _R.RUNNING,
    (_R.PARTIALLY_COMPENSATED, _V.REOPEN): _R.RUNNING,
    (_R.RUNNING, _V.COMMIT): _R.RUNNING,
    # Its block has ended well: from here on it is only finished, never undone by an error or a crash.
    (_R.RUNNING, _V.FINISH): _R.RUNNING,
    (_R.RUNNING, _V.COMPLETE): _R.COMPLETED,
    (_R.RUNNING, _V.FAIL): _R.FAILED,
    (_R.RUNNING, _V.PAUSE): _R.PAUSED,
    (_R.RUNNING, _V.HOLD): _R.HELD,
    (_R.RUNNING, _V.COMPENSATE): _R.COMPENSATING,
    (_R.PAUSED, _V.COMPENSATE): _R.COMPENSATING,
    (_R.HELD, _V.COMPENSATE): _R.COMPENSATING,
    (_R.COMPLETED, _V.COMPENSATE): _R.COMPENSATING,
    (_R.COMPENSATING, _V.COMPENSATE): _R.COMPENSATING,
    # Undoing again tries what could not be undone before.
    (_R.PARTIALLY_COMPENSATED, _V.COMPENSATE): _R.COMPENSATING,
    (_R.COMPENSATED, _V.COMPENSATE): _R.COMPENSATING,  # asked for: what was committed, or done before it was reopened
    (_R.FAILED, _V.COMPENSATE): _R.COMPENSATING,
    # A late result shows that something happened that the rollback did not know of.
    (_R.COMPENSATED, _V.PARTIALLY_COMPENSATED): _R.PARTIALLY_COMPENSATED,
    (_R.COMPENSATING, _V.FAIL): _R.FAILED,
    (_R.COMPENSATING, _V.COMPENSATED): _R.COMPENSATED,
    (_R.COMPENSATING, _V.PARTIALLY_COMPENSATED): _R.PARTIALLY_COMPENSATED,
}

KEEPS_RESERVATIONS: Final = frozenset({_C.AWAITING_APPROVAL, _C.SCHEDULED, _C.RUNNING, _C.UNKNOWN, _C.NEEDS_HUMAN})
"""The states of a call that may still cost something."""

CALL_ENDINGS: Final = frozenset({_E.SUCCEED, _E.FAIL, _E.LOSE, _E.BODY_ENDED, _E.DROP, _E.DONE_BY_HAND})
RUN_ENDINGS: Final = frozenset(RunEvent) - {_V.OPEN, _V.RESUME, _V.REOPEN, _V.COMMIT, _V.FINISH, _V.COMPENSATE}


UNDONE_IN_DOUBT: Final = "it was undone while nobody knew whether it had happened"
"""Why a call that was undone has no result."""

WORLD_CHANGED: Final = "world_changed"
"""The ``error_type`` of a call that is not undone because it is no more as it left the world."""


def open_call(record: CallRecord, detail: str | None = None) -> tuple[CallRecord, AuditRow]:
    """The first claim of a call: ``record`` is new and comes as ``running``, or ``scheduled`` if it is deferred."""
    event = CallEvent.SCHEDULE if record.state is CallState.SCHEDULED else CallEvent.CLAIM
    return record, _call_row(record, event, None, record.started_us, detail)


def duplicate_effect(record: CallRecord) -> tuple[CallRecord, AuditRow]:
    """The extra effect of a call that happened twice: ``record`` is new and comes as ``done``."""
    return record, _call_row(record, CallEvent.DUPLICATE_EFFECT, None, record.started_us, None)


def claim_again(
    record: CallRecord,
    *,
    owner: str,
    now_us: int,
    traceparent: str | None,
    detail: str | None = None,
    locks: str | None = None,
    reserved: str | None = None,
    scheduled_seq: int | None = None,
    policy: str | None = None,
) -> tuple[CallRecord, AuditRow]:
    """Claim a call that did not happen, or that may be run again, for ``owner``; a new epoch, under ``policy``."""
    return move_call(
        record, CallEvent.CLAIM, now_us, detail=detail, owner=owner, epoch=record.epoch + 1,
        attempts=record.attempts + 1, started_us=now_us, ended_us=None, error_type=None, error_message=None,
        traceparent=traceparent, locks=locks, reserved=reserved, scheduled_seq=scheduled_seq, policy=policy,
    )  # fmt: skip


def schedule_again(
    record: CallRecord,
    *,
    owner: str,
    now_us: int,
    traceparent: str | None,
    locks: str | None = None,
    policy: str | None = None,
) -> tuple[CallRecord, AuditRow]:
    """Schedule a deferred call anew that was given up, or that provably did not happen: at the end of the order."""
    return move_call(
        record, CallEvent.SCHEDULE, now_us, owner=owner, started_us=now_us, ended_us=None, error_type=None,
        error_message=None, traceparent=traceparent, locks=locks, scheduled_seq=None, policy=policy,
    )  # fmt: skip


def takes_place(row: AuditRow) -> bool:
    """Whether a row of a call puts it at the end of the order of claims.

    A compensation keeps the place of its first claim, and so does what a person schedules again (with a note).
    """
    scheduled = row.event == CallEvent.SCHEDULE and row.detail is None
    return row.from_state is None or row.event == CallEvent.CLAIM or scheduled


def drop(record: CallRecord, now_us: int, *, why: str, actor: str | None = None) -> tuple[CallRecord, AuditRow]:
    """Give up a deferred call that was not sent, or that failed when it was."""
    return move_call(record, CallEvent.DROP, now_us, detail=why, actor=actor, scheduled_seq=None)


def supersede(
    record: CallRecord, now_us: int, event: CallEvent = CallEvent.SUPERSEDE, *, detail: str | None = None
) -> tuple[CallRecord, AuditRow]:
    """Free a business key for the next run: the record stays, under a key of its own."""
    return move_call(
        record,
        event,
        now_us,
        detail=detail,
        key=f"{record.key}#{record.id}",
        scope=f"{SUPERSEDED}{record.scope}",
        reserved=None,  # whoever takes the key over books what this one had
    )


def start_undoing(
    record: CallRecord, now_us: int, *, detail: str | None = None, actor: str | None = None
) -> tuple[CallRecord, AuditRow]:
    """A step that is undone from here on; what is in doubt only if it is declared safe (``empty_safe``)."""
    changes: dict[str, Any] = {}
    if record.error_type == WORLD_CHANGED:
        changes = {"error_type": None, "error_message": None}
    event = CallEvent.COMPENSATE
    if record.state in (CallState.UNKNOWN, CallState.NEEDS_HUMAN):
        event, changes = CallEvent.COMPENSATE_IN_DOUBT, {"result_lost": UNDONE_IN_DOUBT}
    return move_call(record, event, now_us, detail=detail, actor=actor, **changes)


def superseded_key(record: CallRecord) -> tuple[str, str] | None:
    """The scope and key that another record took over from ``record``, or None if it has them itself."""
    if not record.scope.startswith(SUPERSEDED):
        return None
    return record.scope.removeprefix(SUPERSEDED), record.key.removesuffix(f"#{record.id}")


def move_call(
    record: CallRecord,
    event: CallEvent,
    now_us: int,
    *,
    detail: str | None = None,
    actor: str | None = None,
    **changes: Any,
) -> tuple[CallRecord, AuditRow]:
    """``record`` after ``event``, and the audit row (``actor``: not its owner); raises ``IllegalTransition``."""
    state = CALL_TABLE.get((record.state, event))
    if state is None or (event is CallEvent.COMPENSATE_IN_DOUBT and not record.empty_safe):
        raise IllegalTransition(f"call {record.id}: {event} is not allowed in state {record.state}")
    if event in CALL_ENDINGS:
        changes["ended_us"] = now_us
    if record.reserved is not None and state not in KEEPS_RESERVATIONS:
        changes["reserved"] = None
    after = replaced(record, state=state, version=record.version + 1, **changes)
    return after, _call_row(after, event, record.state, now_us, detail, actor)


def open_run(record: RunRecord) -> tuple[RunRecord, AuditRow]:
    """The first row of a run: ``record`` is new and comes as ``running``."""
    return record, _run_row(record, RunEvent.OPEN, None, record.created_us, None)


def move_run(
    record: RunRecord, event: RunEvent, now_us: int, *, detail: str | None = None, **changes: Any
) -> tuple[RunRecord, AuditRow]:
    """``record`` after ``event``, and the audit row; raises ``IllegalTransition``."""
    state = RUN_TABLE.get((record.state, event))
    if state is None:
        raise IllegalTransition(f"run {record.id}: {event} is not allowed in state {record.state}")
    if event in RUN_ENDINGS:
        changes["ended_us"] = now_us
    if event in (RunEvent.COMPLETE, RunEvent.REOPEN, RunEvent.COMPENSATE):
        changes["completing"] = False
    after = replaced(record, state=state, version=record.version + 1, **changes)
    return after, _run_row(after, event, record.state, now_us, detail)


def _call_row(
    record: CallRecord,
    event: CallEvent,
    before: CallState | None,
    now_us: int,
    detail: str | None,
    actor: str | None = None,
) -> AuditRow:
    name = event if record.phase is Phase.FORWARD else f"{Phase.COMPENSATION}.{event}"
    return AuditRow(
        at_us=now_us, namespace=record.namespace, run_id=record.run_id, call_id=record.id, event=name,
        from_state=before, to_state=record.state, actor=actor or record.owner, detail=detail,
        digest=record.policy if event in _DECISIONS else None,
    )  # fmt: skip


_DECISIONS: Final = frozenset({_E.CLAIM, _E.SCHEDULE})
"""Whose rows say under which version of the policy file they were decided."""


def _run_row(record: RunRecord, event: RunEvent, before: RunState | None, now_us: int, detail: str | None) -> AuditRow:
    return AuditRow(
        at_us=now_us, namespace=record.namespace, run_id=record.id, call_id=None, event=f"run.{event}",
        from_state=before, to_state=record.state, actor=record.owner, detail=detail,
    )  # fmt: skip
