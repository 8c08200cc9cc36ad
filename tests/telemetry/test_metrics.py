"""Metrics: every one that is declared is measured, with its unit, its dimensions and the span it came from."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, Metric
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sagaspan import (
    ApprovalPending,
    Budget,
    BudgetExceeded,
    CompensationFailed,
    Guard,
    KeyConflict,
    LoopDetected,
    Notify,
    Unsure,
    semconv,
)
from sagaspan.testing import frozen_clock
from tests.conftest import Caller

KINDS = {semconv.COUNTER: "Sum", semconv.HISTOGRAM: "Histogram", semconv.GAUGE: "Gauge"}


def _found(reader: InMemoryMetricReader) -> dict[str, Metric]:
    data = reader.get_metrics_data()
    return {
        metric.name: metric
        for resource in (data.resource_metrics if data else [])
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if scope.scope.name == "sagaspan"
    }


def _points(reader: InMemoryMetricReader, name: str) -> dict[tuple[Any, ...], Any]:
    """The values of a metric by what its dimensions say: counts of histograms, values of others."""
    metric = _found(reader).get(name)
    dimensions = semconv.METRICS[name].dimensions
    return {
        tuple(value for one in dimensions if (value := (point.attributes or {}).get(one)) is not None): getattr(
            point, "value", getattr(point, "count", None)
        )
        for point in (metric.data.data_points if metric else [])
    }


def _waiting(reader: InMemoryMetricReader) -> dict[tuple[str, str], int]:
    """What needs a person, by kind and state; without what is 0."""
    points = _points(reader, semconv.METRIC_STATUS).items()
    return {(kind, state): count for (_, kind, state), count in points if count}


class Broken(Exception):
    """What a service breaks with."""


def _calls(guard: Guard) -> None:
    pay = guard.tool("pay", key="order", compensate=lambda: None, cost="0.5 USD")(lambda order, amount=1: amount)
    tries = iter([Broken(), None])

    @guard.tool(effect="read", retry={"attempts": 2, "initial_delay": 0.001})
    def look() -> str:
        if (error := next(tries, None)) is not None:
            raise error
        return "same"

    with contextlib.suppress(Broken), guard.run("trip", agent="booker"):
        pay("a")
        pay("a")
        with pytest.raises(KeyConflict):
            pay("a", 2)
        for _ in range(5):
            look()
        with pytest.raises(LoopDetected):
            look()
        raise Broken


def _doubts(guard: Guard) -> None:
    def unsure() -> Unsure:
        return Unsure("who knows")

    @guard.tool(effect="write", probe=unsure)
    def lose() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError), guard.run("doubtful", id="doubtful"):
        lose()


def _compensations(guard: Guard) -> None:
    def refund() -> None:
        raise Broken

    book = guard.tool("book", compensate=refund)(lambda: 1)
    with pytest.raises(CompensationFailed), guard.run("undone") as run:
        book()
        run.abort()


def _approvals(guard: Guard) -> None:
    ask = guard.tool("ask", approve=True)(lambda: 1)
    for number in range(2):
        with guard.override(approver="inbox"), pytest.raises(ApprovalPending) as caught, guard.run(id=f"asks-{number}"):
            ask()
    guard.approvals.deny(caught.value.approval_id, by="alice")


def _models(guard: Guard) -> None:
    with pytest.raises(BudgetExceeded), guard.run("models", budget=Budget("10 tokens", soft=(50,))):
        with guard.llm_call("small", input_tokens=2, max_output_tokens=4) as call:
            call.record_usage(input_tokens=2, output_tokens=4)
        with guard.llm_call("small", input_tokens=100, max_output_tokens=1):
            """It does not fit, so the run stops."""


STORIES: list[Callable[[Guard], None]] = [_calls, _doubts, _compensations, _approvals, _models]


@pytest.fixture
def guard(
    store_url: str, provider: TracerProvider, spans: InMemorySpanExporter, reader: InMemoryMetricReader
) -> Iterator[Guard]:
    """A guard whose notifications reach nobody."""
    hook = Notify(url="http://127.0.0.1:9/", secret="a secret that nobody guesses: 0123456789")
    prices = {"small": {"input": 1, "output": 1}}
    with frozen_clock(), Guard(store_url, tracer_provider=provider, notify=hook, prices=prices) as guard:
        yield guard


def test_every_metric_is_measured_as_it_is_declared(guard: Guard, reader: InMemoryMetricReader) -> None:
    """Each has its unit, kind and meaning, no dimension that is not declared, and nobody's name as a value."""
    for story in STORIES:
        story(guard)
    notifier = guard._engine.notifier
    assert notifier is not None
    notifier.round()
    found = _found(reader)
    assert set(found) == set(semconv.METRICS)
    for name, metric in found.items():
        declared = semconv.METRICS[name]
        assert (metric.unit, metric.description) == (declared.unit, declared.meaning)
        assert type(metric.data).__name__ == KINDS[declared.kind]
        for point in metric.data.data_points:
            assert set(point.attributes or {}) <= set(declared.dimensions), name
            assert "alice" not in (point.attributes or {}).values()
            if declared.buckets is not None:
                assert tuple(point.explicit_bounds) == declared.buckets


def test_calls_are_counted_by_how_they_were_answered(guard: Guard, reader: InMemoryMetricReader) -> None:
    """Executed, replayed, in conflict; refused ones by what refused them, repeated bodies by their error."""
    _calls(guard)
    assert _points(reader, semconv.METRIC_OUTCOMES) == {
        ("pay", "executed"): 1, ("pay", "replayed"): 1, ("pay", "conflict"): 1, ("look", "executed"): 5,
    }  # fmt: skip
    assert _points(reader, semconv.METRIC_REFUSALS) == {("pay", "key_conflict"): 1, ("look", "loop_detected"): 1}
    assert _points(reader, semconv.METRIC_RETRIES) == {("look", f"{__name__}.Broken"): 1}
    ran = _points(reader, semconv.METRIC_TOOL_DURATION)
    assert {key[0]: count for key, count in ran.items()} == {"pay": 1, "look": 5, "<lambda>": 1}
    assert ("pay", "function", "booker", "forward") in ran
    assert ("<lambda>", "function", "booker", "compensation") in ran
    assert _points(reader, semconv.METRIC_COMPENSATIONS) == {("pay", "compensated"): 1}
    assert _points(reader, semconv.METRIC_RUN_COMPLETIONS) == {("trip", "compensated", "error"): 1}
    assert _points(reader, semconv.METRIC_RUN_DURATION) == {("trip", "compensated"): 1}


def test_what_nobody_knows_is_counted_and_what_waits_for_a_decision_observed(
    guard: Guard, reader: InMemoryMetricReader
) -> None:
    """A call in doubt is counted when it happens; until somebody decides about it, it is seen at each reading."""
    _doubts(guard)
    assert _points(reader, semconv.METRIC_UNKNOWN) == {("lose",): 1}
    assert _points(reader, semconv.METRIC_PROBES) == {("lose", "unsure"): 1}
    assert _waiting(reader) == {("call", "needs_human"): 1, ("run", "held"): 1}
    (doubt,) = guard.calls.list(status="needs_human")
    guard.calls.resolve(doubt.id, "did-not-happen", note="looked")
    assert ("call", "needs_human") not in _waiting(reader)
    assert _points(reader, semconv.METRIC_UNKNOWN) == {("lose",): 1}


def test_exemplars_lead_to_the_span(
    guard: Guard, caller: Caller, reader: InMemoryMetricReader, spans: InMemorySpanExporter
) -> None:
    """The number of a call has its span, which no longer is current when it is counted; so have a run's, a model's."""
    pay = caller.tool(guard, "pay")(lambda: None)

    async def job() -> None:
        async with caller.run(guard, "trip"):
            await caller.call(pay)
            with guard.llm_call("small", input_tokens=1, max_output_tokens=1) as call:
                call.record_usage(input_tokens=1, output_tokens=1)

    caller.play(job)
    by_name = {span.name: span.context for span in spans.get_finished_spans()}
    found = _found(reader)  # once: whoever reads exemplars takes them away
    for metric, name in (
        (semconv.METRIC_TOOL_DURATION, "execute_tool pay"),
        (semconv.METRIC_RUN_DURATION, "sagaspan trip"),
        (semconv.METRIC_OPERATION_DURATION, "chat small"),
    ):
        (point,) = found[metric].data.data_points
        (exemplar,) = point.exemplars
        assert (exemplar.trace_id, exemplar.span_id) == (by_name[name].trace_id, by_name[name].span_id)
