"""Telemetry: one ``execute_tool {tool}`` span a logical call, also for one that is refused or replayed.

Where another instrumentation has opened one for the call, that one is adopted: it gets what ours would have, and
whoever opened it ends it. The span is never made current here: only the body runner does that, so that nothing leaks
across ``call_next``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from opentelemetry.trace import INVALID_SPAN, Span, Tracer
from opentelemetry.util.types import AttributeValue

from sagaspan import _metrics as metrics
from sagaspan import _spans as spans
from sagaspan import semconv
from sagaspan._call import Call, Result
from sagaspan._call_content import content_of
from sagaspan._frozen import replaced
from sagaspan._middleware import CallNext
from sagaspan.exceptions import ApprovalPending, KeyConflict, SagaspanError
from sagaspan.ledger.records import CallState

_MAX_DESCRIPTION = 256
Close = Callable[[Span, Mapping[str, AttributeValue], BaseException | None], None]


class TelemetryMiddleware:
    """Opens and closes the call's span with ``tracer``."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    async def __call__(self, call: Call, call_next: CallNext, /) -> Result:
        close: Close = spans.end
        by_its_owner = False
        if call.span is not INVALID_SPAN or not spans.nobody_looks(self._tracer):
            call, close, by_its_owner = self._shown(call)
        try:
            result = await call_next(call)
        except BaseException as error:
            _refused(close, call, error)
            raise
        if call.span.is_recording():
            _ended(close, call, result)
        _measured(call, result, by_its_owner=by_its_owner)
        return result

    def _shown(self, call: Call) -> tuple[Call, Close, bool]:
        """``call`` with its span, what closes that, and whether whoever opened it measures the call."""
        adopted = spans.opened_for(call.tool.name, call.span) if call.scheduled is None else None
        if adopted is None:
            return replaced(call, span=self._started(call), tracer=self._tracer), spans.end, False
        is_measured = spans.is_measured(adopted)
        _adopt(adopted, call)
        return replaced(call, span=adopted, tracer=self._tracer), spans.tell, is_measured

    def _started(self, call: Call) -> Span:
        links = None if call.scheduled is None else spans.link_to(call.scheduled.traceparent, semconv.LINK_SENDS)
        return spans.start(self._tracer, semconv.SPAN_TOOL.format(tool=call.tool.name), _opening(call), links=links)


@spans.harmless(None)
def _adopt(span: Span, call: Call) -> None:
    """Say on a span what it does not say by itself."""
    said = getattr(span, "attributes", None) or {}
    span.set_attributes({name: value for name, value in _opening(call).items() if name not in said})


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
        (semconv.USER_ID, spans.user_of(call.run.user)),
        (semconv.CALL_EFFECT, call.tool.policy.effect),
    )
    attributes.update({name: value for name, value in optional if value})
    return attributes


@spans.harmless(None)
def _ended(close: Close, call: Call, result: Result) -> None:
    waits = call.tool.only_waits(result.error)
    attributes: dict[str, AttributeValue] = {
        semconv.CALL_ID: result.record.id,
        semconv.CALL_EXECUTED: result.executed,
        semconv.CALL_ATTEMPTS: result.record.attempts,
        semconv.IDEMPOTENCY_OUTCOME: result.outcome,
    }
    if not waits:  # one that does has not ended
        attributes[semconv.CALL_STATE] = result.state.value
        if result.executed and result.record.ended_us is not None:
            attributes[semconv.CALL_BODY_MS] = max(result.record.ended_us - result.record.started_us, 0) / 1e3
    if spans.captures_content():
        attributes.update(content_of(call.encoded, result.value, result.error, call.tool.redaction))
    close(call.span, attributes, None if waits else result.error)


@spans.harmless(None)
def _refused(close: Close, call: Call, error: BaseException) -> None:
    attributes: dict[str, AttributeValue] = {semconv.CALL_EXECUTED: False}
    if isinstance(error, ApprovalPending):
        attributes[semconv.CALL_STATE] = CallState.AWAITING_APPROVAL.value
        attributes[semconv.APPROVAL_ID] = error.approval_id
    elif isinstance(error, SagaspanError):
        metrics.refused(semconv.GEN_AI_TOOL_NAME, call.tool.name, spans.error_type(error), call.span)
    if isinstance(error, KeyConflict):
        attributes[semconv.IDEMPOTENCY_OUTCOME] = semconv.OUTCOME_CONFLICT
        metrics.answered(call.tool.name, semconv.OUTCOME_CONFLICT)
    close(call.span, attributes, None if call.tool.only_waits(error) else error)


def _measured(call: Call, result: Result, *, by_its_owner: bool) -> None:
    metrics.answered(call.tool.name, result.outcome)
    if not result.executed:
        return
    record = result.record
    if result.state is CallState.UNKNOWN and record.effect != "read":
        metrics.in_doubt(record.tool, call.span)
    if not by_its_owner:
        error = None if call.tool.only_waits(result.error) else result.error
        agent = call.agent or call.run.agent
        metrics.ran(call.tool.name, agent, semconv.PHASE_FORWARD, record, error, call.span)
