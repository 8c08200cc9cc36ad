"""Telemetry: one ``execute_tool {tool}`` span a logical call, also for one that is refused or replayed.

The span is never made current here: only the body runner does that, so that nothing leaks across ``call_next``.
"""

from __future__ import annotations

from opentelemetry.trace import Span, Tracer
from opentelemetry.util.types import AttributeValue

from sagaspan import _spans as spans
from sagaspan import codecs, semconv
from sagaspan._call import Call, Result
from sagaspan._frozen import replaced
from sagaspan._middleware import CallNext
from sagaspan.exceptions import ApprovalPending, KeyConflict
from sagaspan.ledger.records import CallState

_MAX_DESCRIPTION = 256


class TelemetryMiddleware:
    """Opens and closes the call's span with ``tracer``."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    async def __call__(self, call: Call, call_next: CallNext, /) -> Result:
        links = None if call.scheduled is None else spans.link_to(call.scheduled.traceparent, semconv.LINK_SENDS)
        span = spans.start(self._tracer, semconv.SPAN_TOOL.format(tool=call.tool.name), _opening(call), links=links)
        call = replaced(call, span=span, tracer=self._tracer)
        try:
            result = await call_next(call)
        except BaseException as error:
            _refused(span, error)
            raise
        if span.is_recording():
            _ended(span, call, result)
        return result


def _opening(call: Call) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        semconv.GEN_AI_OPERATION_NAME: semconv.OPERATION_EXECUTE_TOOL,
        semconv.GEN_AI_TOOL_NAME: call.tool.name,
        semconv.GEN_AI_TOOL_TYPE: semconv.TOOL_TYPE_FUNCTION,
        semconv.RUN_ID: call.run.id,
        semconv.RUN_NAME: call.run.name,
        semconv.CALL_PHASE: semconv.PHASE_FORWARD,
    }
    optional = (
        (semconv.GEN_AI_TOOL_DESCRIPTION, call.tool.description[:_MAX_DESCRIPTION]),
        (semconv.GEN_AI_TOOL_CALL_ID, call.tool_call_id),
        (semconv.GEN_AI_AGENT_NAME, call.agent or call.run.agent),
        (semconv.GEN_AI_CONVERSATION_ID, call.run.conversation),
        (semconv.CALL_EFFECT, call.tool.policy.effect),
    )
    attributes.update({name: value for name, value in optional if value})
    return attributes


@spans.harmless(None)
def _ended(span: Span, call: Call, result: Result) -> None:
    attributes: dict[str, AttributeValue] = {
        semconv.CALL_ID: result.record.id,
        semconv.CALL_STATE: result.state,
        semconv.CALL_EXECUTED: result.executed,
        semconv.CALL_ATTEMPTS: result.record.attempts,
        semconv.IDEMPOTENCY_OUTCOME: result.outcome,
    }
    if spans.captures_content():
        attributes[semconv.GEN_AI_TOOL_CALL_ARGUMENTS] = spans.content(call.encoded)
        attributes.update(_result_content(call, result))
    spans.end(span, attributes, result.error)


def _result_content(call: Call, result: Result) -> dict[str, AttributeValue]:
    try:
        if result.error is not None:
            return {}
        plain = codecs.to_json(result.value, hide=codecs.blank)
        if call.tool.redaction is not None:
            plain = call.tool.redaction.result(plain, codecs.blank)
        return {semconv.GEN_AI_TOOL_CALL_RESULT: spans.content(codecs.dump(plain))}
    except codecs.Unencodable:
        return {}


@spans.harmless(None)
def _refused(span: Span, error: BaseException) -> None:
    attributes: dict[str, AttributeValue] = {semconv.CALL_EXECUTED: False}
    if isinstance(error, ApprovalPending):
        attributes[semconv.CALL_STATE] = CallState.AWAITING_APPROVAL
        attributes[semconv.APPROVAL_ID] = error.approval_id
    if isinstance(error, KeyConflict):
        attributes[semconv.IDEMPOTENCY_OUTCOME] = semconv.OUTCOME_CONFLICT
    spans.end(span, attributes, error)
