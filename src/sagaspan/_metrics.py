"""Metrics through OpenTelemetry's API: nothing happens where no SDK is configured, and no attribute names a person.

Scopes are told by their kind (``user``, not ``user:42``): a dimension must not grow with the number of users.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Final

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Counter, Histogram, ObservableGauge, Observation
from opentelemetry.util.types import AttributeValue

from sagaspan import _spans as spans
from sagaspan import semconv

_NANO: Final = 1e9
_TOKEN_TYPES: Final = (("input", 0), ("output", 1))


@functools.cache
def _counter(name: str, unit: str, description: str) -> Counter:
    return metrics.get_meter("sagaspan", schema_url=semconv.SCHEMA_URL).create_counter(name, unit, description)


@functools.cache
def _histogram(name: str, unit: str, description: str) -> Histogram:
    return metrics.get_meter("sagaspan", schema_url=semconv.SCHEMA_URL).create_histogram(name, unit, description)


def kind_of(scope: str) -> str:
    """The kind of a scope: what may be a dimension."""
    return scope.partition(":")[0]


@spans.harmless(None)
def soft_limit(scope: str, unit: str, percent: int) -> None:
    """A budget has passed one of its soft limits."""
    counter = _counter(semconv.METRIC_SOFT_LIMITS, "{crossing}", "Soft limits of budgets that were crossed")
    counter.add(1, {semconv.BUDGET_KIND: kind_of(scope), semconv.BUDGET_UNIT: unit, semconv.BUDGET_PERCENT: percent})


@spans.harmless(None)
def refusal(error_type: str, scope: str, unit: str) -> None:
    """A call was refused by a budget or a rate."""
    counter = _counter(semconv.METRIC_BUDGET_REFUSALS, "{call}", "Calls that budgets and rates refused")
    kind = kind_of(scope)
    counter.add(1, {semconv.ERROR_TYPE: error_type, semconv.BUDGET_KIND: kind, semconv.BUDGET_UNIT: unit})


@spans.harmless(None)
def approval(tool: str, outcome: str, channel: str, seconds: float) -> None:
    """A request for approval was decided after so many seconds."""
    attributes = {semconv.GEN_AI_TOOL_NAME: tool, semconv.APPROVAL_OUTCOME: outcome, semconv.APPROVAL_CHANNEL: channel}
    _counter(semconv.METRIC_APPROVALS_DECIDED, "{request}", "Requests for approval that were decided").add(
        1, attributes
    )
    _histogram(semconv.METRIC_APPROVAL_WAIT, "s", "How long requests for approval wait").record(seconds, attributes)


@spans.harmless(None)
def watch_pending(count: Callable[[], int]) -> None:
    """Observe how many requests wait, whenever metrics are read."""
    _pending_gauge(count)


@functools.cache
def _pending_gauge(count: Callable[[], int]) -> ObservableGauge:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        try:
            return [Observation(count())]
        except Exception:  # noqa: BLE001 - a store that is down is no matter of whoever reads metrics
            return []

    meter = metrics.get_meter("sagaspan", schema_url=semconv.SCHEMA_URL)
    said = "Requests that wait for approval"
    return meter.create_observable_gauge(semconv.METRIC_APPROVALS_PENDING, [observe], "{request}", said)


@spans.harmless(None)
def cost(nano_usd: int, attributes: dict[str, AttributeValue]) -> None:
    """What a call cost."""
    _counter(semconv.METRIC_COST, "USD", "What calls of tools and models cost").add(nano_usd / _NANO, attributes)


@spans.harmless(None)
def model_call(seconds: float, tokens: tuple[int, int] | None, attributes: dict[str, AttributeValue]) -> None:
    """A call of a model: how long it took, and its (input, output) tokens if they are known."""
    duration = _histogram(semconv.METRIC_OPERATION_DURATION, "s", "How long calls of models take")
    duration.record(seconds, attributes)
    if tokens is None:
        return
    usage = _histogram(semconv.METRIC_TOKEN_USAGE, "{token}", "Tokens that calls of models use")
    for token_type, at in _TOKEN_TYPES:
        usage.record(tokens[at], {**attributes, semconv.GEN_AI_TOKEN_TYPE: token_type})
