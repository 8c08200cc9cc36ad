"""Soft limits: an event on the span of the call that crossed one, and metrics; nothing is refused (rule book (c) 7)."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from opentelemetry import metrics
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sagaspan import Budget, BudgetExceeded, Guard, RateLimited, semconv
from sagaspan import _metrics as ours
from tests.conftest import Caller


def _points(reader: InMemoryMetricReader, name: str) -> list[tuple[Any, dict[str, Any]]]:
    data = reader.get_metrics_data()
    found = [
        point
        for resource in (data.resource_metrics if data else [])
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == name
        for point in metric.data.data_points
    ]
    return [(getattr(point, "value", getattr(point, "sum", None)), dict(point.attributes)) for point in found]


def _crossings(spans: InMemorySpanExporter) -> list[tuple[str, Any, Any]]:
    def of(span: ReadableSpan) -> list[tuple[str, Any, Any]]:
        events = [event for event in span.events if event.name == semconv.EVENT_SOFT_LIMIT]
        told = [dict(event.attributes or {}) for event in events]
        return [(span.name, one[semconv.BUDGET_SCOPE], one[semconv.BUDGET_PERCENT]) for one in told]

    ended = sorted(spans.get_finished_spans(), key=lambda span: span.start_time or 0)
    return [crossing for span in ended for crossing in of(span)]


def test_each_is_told_once(guard: Guard, caller: Caller, spans: InMemorySpanExporter, caplog: Any) -> None:
    """By the call that crossed it, in the order of the percents; a call may cross several."""

    @caller.tool(guard, cost=lambda amount: f"{amount} USD", effect="write")
    def buy(amount: int) -> None: ...

    async def job() -> None:
        async with caller.run(guard, "shop", id="s", budget=Budget("100 USD", soft=(80, 50, 95))):
            for amount in (49, 1, 2, 45, 3):
                await caller.call(buy, amount)

    with caplog.at_level(logging.INFO, logger="sagaspan"):
        caller.play(job)
    assert [percent for _, _, percent in _crossings(spans)] == [50, 80, 95]
    assert {scope for _, scope, _ in _crossings(spans)} == {"run:s"}
    assert "run:s has used 80 % of 100 USD" in caplog.text


def test_a_bound_that_is_not_used_up_tells_nothing(guard: Guard, spans: InMemorySpanExporter) -> None:
    """What counts is what was spent, not what was reserved for a while."""

    @guard.tool(cost=lambda result: "1 USD" if result else "90 USD", effect="write")
    def ask() -> bool:
        return True

    with guard.run("r", budget="100 USD"):
        ask()
    assert _crossings(spans) == []


def test_a_budget_that_refuses_nothing_tells_of_its_end(guard: Guard, spans: InMemorySpanExporter) -> None:
    """With hard=False the whole of it is a soft limit too, and beyond it nothing is told again."""

    @guard.tool(cost="6 USD", effect="write", repeat="new")
    def buy() -> None: ...

    with guard.run("r", id="r", budget=Budget("10 USD", hard=False, soft=(50,))):
        for _ in range(4):
            buy()
    assert [percent for _, _, percent in _crossings(spans)] == [50, 100]


def test_a_model_s_call_tells_too(guard: Guard, spans: InMemorySpanExporter) -> None:
    """On its own span."""
    with (
        guard.run("r", id="r", budget="0.01 USD"),
        guard.llm_call("gpt-4o", input_tokens=1000, max_output_tokens=500) as call,
    ):
        call.record_usage(input_tokens=1000, output_tokens=400)
    assert _crossings(spans) == [("chat gpt-4o", "run:r", 50)]


@pytest.mark.usefixtures("spans")
def test_metrics(guard: Guard, reader: InMemoryMetricReader) -> None:
    """Crossings, refusals, costs and tokens; people are no dimension."""

    @guard.tool(cost="6 USD", effect="write", repeat="new", rate="2/day")
    def buy() -> None: ...

    guard.set_budget("user:42", "10 USD/day")
    with pytest.raises(BudgetExceeded), guard.run("r", user="42", agent="buyer"):
        buy()
        buy()
    with pytest.raises(RateLimited):
        for _ in range(3):
            buy()
    with guard.llm_call("gpt-4o", input_tokens=1000, max_output_tokens=500) as call:
        call.record_usage(input_tokens=1000, output_tokens=400)
    kind, unit = semconv.BUDGET_KIND, semconv.BUDGET_UNIT
    assert _points(reader, semconv.METRIC_SOFT_LIMITS) == [(1, {kind: "user", unit: "USD", semconv.BUDGET_PERCENT: 50})]
    assert _points(reader, semconv.METRIC_BUDGET_REFUSALS) == [
        (1, {"error.type": "budget_exceeded", kind: "user", unit: "USD"}),
        (1, {"error.type": "rate_limited", kind: "tool", unit: "calls"}),
    ]
    assert _points(reader, semconv.METRIC_COST) == [
        (6.0, {"gen_ai.tool.name": "buy", "gen_ai.agent.name": "buyer"}),
        (6.0, {"gen_ai.tool.name": "buy"}),
        (0.0065, {"gen_ai.request.model": "gpt-4o"}),
    ]  # fmt: skip
    tokens = {point[semconv.GEN_AI_TOKEN_TYPE]: total for total, point in _points(reader, semconv.METRIC_TOKEN_USAGE)}
    assert tokens == {"input": 1000, "output": 400}
    assert len(_points(reader, semconv.METRIC_OPERATION_DURATION)) == 1


def test_broken_telemetry_breaks_no_call(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    """A meter that raises changes nothing."""

    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(metrics, "get_meter", broken)
    for made in (ours._counter, ours._histogram):
        made.cache_clear()

    @guard.tool(cost="6 USD", effect="write")
    def buy() -> str:
        return "bought"

    with guard.run("r", budget="10 USD"):
        assert buy() == "bought"
