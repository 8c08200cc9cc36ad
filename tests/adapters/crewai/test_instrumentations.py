"""Spans beside those of other instrumentations of CrewAI: one trace, no orphans, nothing left open, no tool twice."""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from crewai.events.event_bus import crewai_event_bus
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sagaspan import Guard
from tests.adapters.crewai.scripts import ask, crew_of
from tests.adapters.crewai.test_tools import pay_tool

OpenInference = pytest.importorskip("openinference.instrumentation.crewai").CrewAIInstrumentor
OpenLLMetry = pytest.importorskip("opentelemetry.instrumentation.crewai").CrewAIInstrumentor
OTHERS: dict[str, Any] = {
    "OpenLLMetry": OpenLLMetry, "OpenInference's listener": OpenInference, "OpenInference": OpenInference,
}  # fmt: skip


class Counting(SimpleSpanProcessor):
    """Counts what begins, too."""

    begun = 0

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self.begun += 1


@pytest.fixture(scope="module")
def spans() -> tuple[TracerProvider, Counting, InMemorySpanExporter]:
    """One provider for all, since what is uninstrumented goes on in classes that were made meanwhile."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(counting := Counting(exporter))
    return provider, counting, exporter


@pytest.fixture(params=OTHERS, scope="module")
def other(
    request: pytest.FixtureRequest, spans: tuple[TracerProvider, Counting, InMemorySpanExporter]
) -> Iterator[str]:
    """Another instrumentation; OpenInference's has two ways, of which one only listens to CrewAI's events."""
    made = OTHERS[request.param]()
    listens = {"use_event_listener": True} if request.param.endswith("listener") else {}
    made.instrument(tracer_provider=spans[0], **listens)
    yield request.param
    made.uninstrument()


def _said(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_spans_of_others_and_ours_are_one_tree(
    tmp_path: Path, other: str, spans: tuple[TracerProvider, Counting, InMemorySpanExporter], native: bool
) -> None:
    """The span that OpenInference opens around a tool's ``run`` is taken; where none is open, ours is the call's."""
    provider, counting, exporter = spans
    exporter.clear()
    counting.begun = 0
    with Guard(f"sqlite:///{tmp_path}/ledger.db", tracer_provider=provider) as guard:
        crew = guard.wrap(crew_of([ask("pay", amount=5)], [pay_tool([])], native))
        # A context of its own, for a crew made from a checkpoint leaves the thread in that one's scope of events.
        contextvars.Context().run(crew.kickoff)
    crewai_event_bus.flush()
    finished = exporter.get_finished_spans()
    by_id = {span.context.span_id: span for span in finished if span.context}
    roots = [span for span in finished if span.parent is None]
    assert [span.name for span in roots] == ["sagaspan crew"]
    assert all(span.parent.span_id in by_id for span in finished if span.parent is not None)
    assert len(finished) == counting.begun
    assert any(span.instrumentation_scope and span.instrumentation_scope.name != "sagaspan" for span in finished)
    (paid,) = [span for span in finished if _said(span).get("gen_ai.tool.name") == "pay"]
    assert (_said(paid)["sagaspan.call.state"], _said(paid)["gen_ai.operation.name"]) == ("done", "execute_tool")
    assert paid.parent is not None
    assert by_id[paid.parent.span_id].name == "invoke_agent Clerk"
    assert paid.name == ("pay.run" if other == "OpenInference" and native else "execute_tool pay")
