"""What a call is told whose record is done, or stands as scheduled: nothing runs for that."""

from __future__ import annotations

import logging
from typing import Any

from sagaspan import codecs, semconv
from sagaspan._call import Call, Result
from sagaspan._commands import command, result_command
from sagaspan.exceptions import OutcomeUnknown
from sagaspan.keys import KeySource
from sagaspan.ledger.approvals import AlreadyDone
from sagaspan.ledger.records import CallRecord, CallState, call_info

_log = logging.getLogger("sagaspan")


def scheduled(record: CallRecord) -> Result:
    """The answer to a deferred call: data, also for a model."""
    when = "It is sent when the run completes, and not at all if the run fails; what it returns is not known before."
    answer = {"status": str(CallState.SCHEDULED), "record": record.id, "tool": record.tool, "message": when}
    return Result(value=answer, state=record.state, outcome=semconv.OUTCOME_SCHEDULED, record=record)


def scheduled_before(call: Call, record: CallRecord) -> Result:
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


def replayed(call: Call, record: CallRecord, outcome: str) -> Result:
    _check_repeated(call, record)
    if call.tool.policy.defer:  # of another run, under the same business key
        said = "It was done before, under the same key; nothing is scheduled."
        answer = {"status": str(CallState.DONE), "record": record.id, "tool": record.tool, "message": said}
        return Result(value=answer, state=record.state, outcome=outcome, record=record)
    if record.result_lost is not None:
        raise OutcomeUnknown(
            f"tool {call.tool.name!r} is done and is not run again, but its result was not recorded: "
            f"{record.result_lost}. Say what it returned: {result_command(record.id)} "
            "(and let it return plain data)",
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
            f"has all of it any more. See: {command('show', record.id)}",
            call=call_info(record), tool_ran="yes",
        )  # fmt: skip
    try:
        return None if record.result is None else codecs.decode(record.result)
    except codecs.Undecodable as problem:
        raise OutcomeUnknown(
            f"tool {call.tool.name!r} is done and is not run again, but its recorded result cannot be read: {problem}. "
            f"See: {command('show', record.id)}",
            call=call_info(record), tool_ran="yes",
        ) from problem  # fmt: skip
