"""Approvals as telemetry sees them: a span each time somebody is asked, no error while it waits, and metrics."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from sagaspan import ApprovalDenied, ApprovalPending, Guard, semconv


def _pay(guard: Guard) -> Any:
    @guard.tool("pay", approve=True, effect="write")
    def pay(amount: int) -> None:
        """Paid."""

    return pay


def _named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


def test_waiting_is_no_error(guard: Guard, spans: InMemorySpanExporter) -> None:
    """Neither on the tool's span nor on the run's: nothing has failed."""
    with guard.override(approver="inbox"), pytest.raises(ApprovalPending) as caught, guard.run("order", id="a"):
        _pay(guard)(5)
    (tool,), (run,) = _named(spans, "execute_tool pay"), _named(spans, "sagaspan order")
    assert tool.status.status_code is StatusCode.UNSET
    assert run.status.status_code is StatusCode.UNSET
    assert semconv.ERROR_TYPE not in tool.attributes
    assert tool.attributes[semconv.CALL_STATE] == "awaiting_approval"
    assert tool.attributes[semconv.APPROVAL_ID] == caught.value.approval_id
    assert tool.attributes[semconv.CALL_EXECUTED] is False


def test_each_asking_is_a_span_and_the_later_ones_link_to_the_first(guard: Guard, spans: InMemorySpanExporter) -> None:
    """Under the span of its call; who approved is on none of them."""
    pay = _pay(guard)
    with guard.override(approver="inbox"):
        with pytest.raises(ApprovalPending) as caught, guard.run(id="a"):
            pay(5)
        guard.approvals.approve(caught.value.approval_id, by="canary-alice")
        with guard.run(id="a"):
            pay(5)
    first, second = _named(spans, "approval pay")
    tools = {span.context.span_id: span for span in _named(spans, "execute_tool pay")}
    assert first.parent.span_id in tools
    assert second.parent.span_id in tools
    assert [span.attributes[semconv.APPROVAL_OUTCOME] for span in (first, second)] == ["pending", "approved"]
    assert second.attributes[semconv.APPROVAL_CHANNEL] == "api"
    assert first.links == ()
    (link,) = second.links
    assert link.context.span_id == first.context.span_id
    assert link.attributes == {semconv.LINK_TYPE: "asked"}
    assert "canary" not in "".join(span.to_json() for span in spans.get_finished_spans())


def test_a_no_is_an_error_of_the_call_and_not_of_asking(guard: Guard, spans: InMemorySpanExporter) -> None:
    """The call was refused; asking went well."""
    with guard.override(approver=lambda _: False), pytest.raises(ApprovalDenied), guard.run(id="a"):
        _pay(guard)(5)
    (asked,), (tool,) = _named(spans, "approval pay"), _named(spans, "execute_tool pay")
    assert (asked.status.status_code, asked.attributes[semconv.APPROVAL_OUTCOME]) == (StatusCode.UNSET, "denied")
    assert tool.attributes[semconv.ERROR_TYPE] == "approval_denied"


def test_a_no_that_was_said_meanwhile_is_on_the_later_asking(guard: Guard, spans: InMemorySpanExporter) -> None:
    """Nobody is asked again: what was said is known before, and is still what became of the request."""
    pay = _pay(guard)
    with guard.override(approver="inbox"):
        with pytest.raises(ApprovalPending) as caught, guard.run(id="a"):
            pay(5)
        guard.approvals.deny(caught.value.approval_id, by="alice", reason="no")
        with pytest.raises(ApprovalDenied), guard.run(id="a"):
            pay(5)
    first, second = _named(spans, "approval pay")
    assert second.attributes[semconv.APPROVAL_ID] == caught.value.approval_id
    assert second.attributes[semconv.APPROVAL_OUTCOME] == "denied"
    assert [link.context.span_id for link in second.links] == [first.context.span_id]


def test_decisions_are_counted_by_channel_and_outcome(guard: Guard, reader: InMemoryMetricReader) -> None:
    """Where they are made; and what waits is observed whenever metrics are read."""
    pay = _pay(guard)
    for run, decide in (("a", "approve"), ("b", "deny"), ("c", None)):
        with guard.override(approver="inbox"), pytest.raises(ApprovalPending) as caught, guard.run(id=run):
            pay(5)
        if decide is not None:
            getattr(guard.approvals, decide)(caught.value.approval_id, by="alice")
    data = reader.get_metrics_data()
    assert data is not None
    found = {
        metric.name: metric.data.data_points
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    decided = {(point.attributes[semconv.APPROVAL_OUTCOME], point.attributes[semconv.APPROVAL_CHANNEL]): point.value
               for point in found[semconv.METRIC_APPROVALS_DECIDED]}  # fmt: skip
    assert decided == {("approved", "api"): 1, ("denied", "api"): 1}
    needed = {
        (point.attributes[semconv.STATUS_KIND], point.attributes[semconv.STATUS_STATE]): point.value
        for point in found[semconv.METRIC_STATUS]
    }
    assert needed["approval", "pending"] == 1
    assert sum(point.count for point in found[semconv.METRIC_APPROVAL_WAIT]) == 2


def test_who_is_asked_sees_what_the_run_did_and_what_would_be_undone(guard: Guard) -> None:
    """And what it cost so far, as it was when it asked."""
    seen: list[str] = []

    def look(request: Any) -> bool:
        seen.append(request.text)
        return True

    @guard.tool(compensate=lambda: None, cost="0.05 USD", repeat="new")
    def book() -> None:
        """Booked."""

    with guard.override(approver=look), guard.run(id="a"):
        book()
        book()
        _pay(guard)(5)
    (text,) = seen
    assert "so far      2 calls in this run, 0.1 USD" in text
    assert "would undo  book by <lambda> (2)" in text
