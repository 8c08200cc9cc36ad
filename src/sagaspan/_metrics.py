"""Metrics through OpenTelemetry's API: nothing happens where no SDK is configured, and no attribute names a person.

Scopes are told by their kind (``user``, not ``user:42``): a dimension must not grow with the number of users. Where the
span of what is counted is at hand, it is the exemplar of the number.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from opentelemetry import metrics
from opentelemetry.context import Context
from opentelemetry.metrics import (
    CallbackOptions,
    Counter,
    Histogram,
    Meter,
    MeterProvider,
    ObservableGauge,
    Observation,
)
from opentelemetry.trace import INVALID_SPAN, Span, set_span_in_context
from opentelemetry.util.types import AttributeValue

from sagaspan import _spans as spans
from sagaspan import semconv
from sagaspan._clock import now_us

_NANO: Final = 1e9
_TOKEN_TYPES: Final = (("input", 0), ("output", 1))


class Timed(Protocol):
    """A record of something that began, and perhaps ended; microseconds since the epoch."""

    @property
    def started_us(self) -> int: ...

    @property
    def ended_us(self) -> int | None: ...


_chosen: MeterProvider | None = None  # the global one, also if it is set later
Counts = Callable[[], Iterable[tuple[int, Mapping[str, AttributeValue]]]]
_observed: Final[dict[str, Counts]] = {}


def measure_with(provider: MeterProvider) -> None:
    """Send what this process measures from now on to ``provider`` instead of the global one."""
    global _chosen
    if provider is _chosen:
        return
    _chosen = provider
    for made in (_counter, _histogram, _gauge):
        made.cache_clear()
    for name, counts in _observed.items():
        _gauge(name, counts)


def _meter() -> Meter:
    return metrics.get_meter("sagaspan", spans.version_of(), _chosen, semconv.SCHEMA_URL)


@functools.cache
def _counter(name: str) -> Counter:
    metric = semconv.METRICS[name]
    return _meter().create_counter(name, metric.unit, metric.meaning)


@functools.cache
def _histogram(name: str) -> Histogram:
    metric = semconv.METRICS[name]
    return _meter().create_histogram(
        name, metric.unit, metric.meaning, explicit_bucket_boundaries_advisory=metric.buckets
    )


def _around(span: Span) -> Context | None:
    """The context in which ``span`` becomes the exemplar; None is the current one."""
    return set_span_in_context(span) if span.get_span_context().is_valid else None


def kind_of(scope: str) -> str:
    """The kind of a scope: what may be a dimension."""
    return scope.partition(":")[0]


# -- calls ---------------------------------------------------------------------------------------------------------


@spans.harmless(None)
def ran(tool: str, agent: str | None, phase: str, times: Timed, error: BaseException | None, span: Span) -> None:
    """Record how long the body of a tool ran, all its attempts together; one that was given up may run still."""
    attributes: dict[str, AttributeValue] = {
        semconv.GEN_AI_TOOL_NAME: tool, semconv.GEN_AI_TOOL_TYPE: semconv.TOOL_TYPE_FUNCTION, semconv.CALL_PHASE: phase,
    }  # fmt: skip
    if agent is not None:
        attributes[semconv.GEN_AI_AGENT_NAME] = agent
    if error is not None:
        attributes[semconv.ERROR_TYPE] = spans.error_type(error)
    until = now_us() if times.ended_us is None else times.ended_us
    seconds = max(until - times.started_us, 0) / 1e6
    _histogram(semconv.METRIC_TOOL_DURATION).record(seconds, attributes, _around(span))


@spans.harmless(None)
def answered(tool: str, outcome: str) -> None:
    """A call was executed, or answered without that."""
    attributes = {semconv.GEN_AI_TOOL_NAME: tool, semconv.IDEMPOTENCY_OUTCOME: outcome}
    _counter(semconv.METRIC_OUTCOMES).add(1, attributes)


@spans.harmless(None)
def refused(dimension: str, name: str, error_type: str, span: Span) -> None:
    """A call of a tool, or of a model (``dimension`` says of which), did not run."""
    _counter(semconv.METRIC_REFUSALS).add(1, {dimension: name, semconv.ERROR_TYPE: error_type}, _around(span))


@spans.harmless(None)
def retried(tool: str, error_type: str) -> None:
    """A body is run once more after an error."""
    _counter(semconv.METRIC_RETRIES).add(1, {semconv.GEN_AI_TOOL_NAME: tool, semconv.ERROR_TYPE: error_type})


@spans.harmless(None)
def in_doubt(tool: str, span: Span = INVALID_SPAN) -> None:
    """A call ended, or lost its process, without anybody knowing whether it happened."""
    _counter(semconv.METRIC_UNKNOWN).add(1, {semconv.GEN_AI_TOOL_NAME: tool}, _around(span))


@spans.harmless(None)
def probed(tool: str, answer: str) -> None:
    """A probe was asked about a call in doubt."""
    _counter(semconv.METRIC_PROBES).add(1, {semconv.GEN_AI_TOOL_NAME: tool, semconv.PROBE_ANSWER: answer})


@spans.harmless(None)
def compensated(tool: str, state: str) -> None:
    """A step of ``tool`` was undone, or could not be."""
    attributes = {semconv.GEN_AI_TOOL_NAME: tool, semconv.CALL_STATE: state}
    _counter(semconv.METRIC_COMPENSATIONS).add(1, attributes)


@spans.harmless(None)
def nudged(tool: str, kind: str) -> None:
    """A model was told that it goes in circles."""
    _counter(semconv.METRIC_NUDGES).add(1, {semconv.GEN_AI_TOOL_NAME: tool, semconv.LOOP_KIND: kind})


# -- runs ----------------------------------------------------------------------------------------------------------


@spans.harmless(None)
def run_ended(name: str, state: str, reason: str | None, seconds: float, span: Span) -> None:
    """A run was left, or recovered, or undone, in this state."""
    attributes = {semconv.RUN_NAME: name, semconv.RUN_STATE: state}
    around = _around(span)
    _histogram(semconv.METRIC_RUN_DURATION).record(seconds, attributes, around)
    told = attributes if reason is None else {**attributes, semconv.RUN_REASON: reason}
    _counter(semconv.METRIC_RUN_COMPLETIONS).add(1, told, around)


# -- budgets -------------------------------------------------------------------------------------------------------


@spans.harmless(None)
def soft_limit(scope: str, unit: str, percent: int) -> None:
    """A budget has passed one of its soft limits."""
    attributes: dict[str, AttributeValue] = {
        semconv.BUDGET_KIND: kind_of(scope), semconv.BUDGET_UNIT: unit, semconv.BUDGET_PERCENT: percent,
    }  # fmt: skip
    _counter(semconv.METRIC_SOFT_LIMITS).add(1, attributes)


@spans.harmless(None)
def refusal(error_type: str, scope: str, unit: str) -> None:
    """A call was refused by a budget or a rate."""
    attributes = {semconv.ERROR_TYPE: error_type, semconv.BUDGET_KIND: kind_of(scope), semconv.BUDGET_UNIT: unit}
    _counter(semconv.METRIC_BUDGET_REFUSALS).add(1, attributes)


@spans.harmless(None)
def cost(nano_usd: int, dimension: str, name: str, agent: str | None) -> None:
    """What a call of a tool, or of a model (``dimension`` says of which), cost."""
    attributes = {dimension: name} if agent is None else {dimension: name, semconv.GEN_AI_AGENT_NAME: agent}
    _counter(semconv.METRIC_COST).add(nano_usd / _NANO, attributes)


# -- people --------------------------------------------------------------------------------------------------------


@spans.harmless(None)
def approval(tool: str, outcome: str, channel: str, seconds: float) -> None:
    """A request for approval was decided after so many seconds."""
    attributes = {semconv.GEN_AI_TOOL_NAME: tool, semconv.APPROVAL_OUTCOME: outcome}
    if channel:
        attributes[semconv.APPROVAL_CHANNEL] = channel
    _counter(semconv.METRIC_APPROVALS_DECIDED).add(1, attributes)
    _histogram(semconv.METRIC_APPROVAL_WAIT).record(seconds, attributes)


@spans.harmless(None)
def notified(kind: str, outcome: str) -> None:
    """A message to a hook was ``delivered``, or ``failed`` and is sent again, or was ``given_up``."""
    attributes = {semconv.NOTIFICATION_KIND: kind, semconv.NOTIFICATION_OUTCOME: outcome}
    _counter(semconv.METRIC_NOTIFICATIONS).add(1, attributes)


# -- ledgers -------------------------------------------------------------------------------------------------------


@spans.harmless(None)
def observe(name: str, counts: Counts) -> None:
    """Observe the gauge ``name`` whenever metrics are read: ``counts`` returns its values, each with its attributes."""
    _observed[name] = counts
    _gauge(name, counts)


@functools.cache
def _gauge(name: str, counts: Counts) -> ObservableGauge:
    provider = _chosen

    def values(_: CallbackOptions) -> Iterable[Observation]:
        try:
            return [Observation(*count) for count in counts()] if provider is _chosen else []
        except Exception:  # noqa: BLE001 - a store that is down is no matter of whoever reads metrics
            return []

    metric = semconv.METRICS[name]
    return _meter().create_observable_gauge(name, [values], metric.unit, metric.meaning)


# -- models --------------------------------------------------------------------------------------------------------


@spans.harmless(None)
def model_call(
    seconds: float, tokens: tuple[int, int] | None, attributes: dict[str, AttributeValue], span: Span
) -> None:
    """A call of a model: how long it took, and its (input, output) tokens if they are known."""
    around = _around(span)
    _histogram(semconv.METRIC_OPERATION_DURATION).record(seconds, attributes, around)
    if tokens is None:
        return
    usage = _histogram(semconv.METRIC_TOKEN_USAGE)
    for token_type, at in _TOKEN_TYPES:
        usage.record(tokens[at], {**attributes, semconv.GEN_AI_TOKEN_TYPE: token_type}, around)
