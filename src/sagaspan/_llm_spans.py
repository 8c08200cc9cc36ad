"""What is told of a model's call: its span, ``chat MODEL``, and its metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opentelemetry.trace import Span
from opentelemetry.util.types import AttributeValue

from sagaspan import _metrics as metrics
from sagaspan import _spans as spans
from sagaspan import semconv
from sagaspan._call import Call
from sagaspan.exceptions import SagaspanError
from sagaspan.ledger.records import CallState, UsageRecord
from sagaspan.llm.prices import Price
from sagaspan.llm.usage import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which model is asked, for what, and of whom; ``unknown`` where the name of the model does not tell, either."""

    model: str
    operation: str
    provider: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a call ended: what it said it used, and what was booked for it."""

    call_id: str
    state: CallState | None
    usage: Usage | None
    cost: Price | None
    booked: UsageRecord | None
    finish_reasons: Sequence[str]
    seconds: float
    error: BaseException | None


def opening(asked: Asked, call: Call, most_output: int | None) -> dict[str, AttributeValue]:
    """What its span has from the start; ``most_output`` is the limit of the request."""
    attributes: dict[str, AttributeValue] = {
        semconv.GEN_AI_OPERATION_NAME: asked.operation,
        semconv.GEN_AI_REQUEST_MODEL: asked.model,
        semconv.GEN_AI_PROVIDER_NAME: asked.provider,
        semconv.RUN_ID: call.run.id,
        semconv.RUN_NAME: call.run.name,
        semconv.OPENINFERENCE_SPAN_KIND: "EMBEDDING" if asked.operation == semconv.OPERATION_EMBEDDINGS else "LLM",
    }
    optional: tuple[tuple[str, AttributeValue | None], ...] = (
        (semconv.GEN_AI_REQUEST_MAX_TOKENS, most_output),
        (semconv.GEN_AI_CONVERSATION_ID, call.run.conversation),
        (semconv.GEN_AI_AGENT_NAME, call.run.agent),
        (semconv.USER_ID, spans.user_of(call.run.user)),
    )
    attributes.update({name: value for name, value in optional if value is not None})
    return attributes


@spans.harmless(None)
def close(span: Span, ending: Ending) -> None:
    """End its span."""
    attributes: dict[str, AttributeValue] = {semconv.CALL_ID: ending.call_id, semconv.CALL_EXECUTED: True}
    if ending.state is not None:
        attributes[semconv.CALL_STATE] = ending.state.value
    if ending.finish_reasons:
        attributes[semconv.GEN_AI_RESPONSE_FINISH_REASONS] = tuple(ending.finish_reasons)
    usage, cost = ending.usage, ending.cost
    if usage is not None and cost is not None:
        attributes |= {
            semconv.GEN_AI_USAGE_INPUT_TOKENS: usage.input_tokens,
            semconv.GEN_AI_USAGE_OUTPUT_TOKENS: usage.output_tokens,
            semconv.GEN_AI_USAGE_CACHED_TOKENS: usage.cache_read_tokens,
            semconv.GEN_AI_USAGE_REASONING_TOKENS: usage.reasoning_tokens,
            semconv.COST_USD: cost.nano_usd / 1e9,
        }
        if usage.model:
            attributes[semconv.GEN_AI_RESPONSE_MODEL] = usage.model
    spans.end(span, attributes, ending.error)


def refused(asked: Asked, span: Span, error: BaseException) -> None:
    """It was not sent."""
    spans.end(span, {semconv.CALL_EXECUTED: False}, error)
    if isinstance(error, SagaspanError):
        metrics.refused(semconv.GEN_AI_REQUEST_MODEL, asked.model, spans.error_type(error), span)


@spans.harmless(None)
def measure(asked: Asked, ending: Ending, span: Span) -> None:
    """Count it: its duration, its tokens, its cost."""
    attributes: dict[str, AttributeValue] = {
        semconv.GEN_AI_OPERATION_NAME: asked.operation, semconv.GEN_AI_REQUEST_MODEL: asked.model,
        semconv.GEN_AI_PROVIDER_NAME: asked.provider,
    }  # fmt: skip
    if ending.booked is not None and ending.booked.cost is not None:
        metrics.cost(ending.booked.cost, semconv.GEN_AI_REQUEST_MODEL, asked.model, ending.booked.agent)
    if ending.error is not None:
        attributes[semconv.ERROR_TYPE] = spans.error_type(ending.error)
    usage = ending.usage
    if usage is not None and usage.model:
        attributes[semconv.GEN_AI_RESPONSE_MODEL] = usage.model
    tokens = None if usage is None else (usage.input_tokens, usage.output_tokens)
    metrics.model_call(ending.seconds, tokens, attributes, span)
