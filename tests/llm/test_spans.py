"""The span of a model's call: a client's, and the current one while the request runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from sagaspan import BudgetExceeded, Guard

PRICES = {"cheap": {"input": 1, "output": 10}}


@pytest.fixture
def spans(provider: TracerProvider) -> InMemorySpanExporter:
    """What was exported."""
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter


@pytest.fixture
def guard(store_url: str, provider: TracerProvider, spans: InMemorySpanExporter) -> Iterator[Guard]:
    """A guard whose spans are exported."""
    with Guard(store_url, prices=PRICES, budget="0.02 USD", tracer_provider=provider) as guard:
        yield guard


def _sync(guard: Guard, streams: bool, request: Callable[[str], None]) -> None:
    with guard.run("r"):
        with guard.llm_call("cheap", max_output_tokens=100) as call:
            request("http")
            if streams:
                call.streams()
                request("between two pieces")
            call.record_usage(input_tokens=1, output_tokens=1)
        request("after it")


def _async(guard: Guard, streams: bool, request: Callable[[str], None]) -> None:
    async def job() -> None:
        async with guard.run("r"):
            async with guard.llm_call("cheap", max_output_tokens=100) as call:
                request("http")
                if streams:
                    call.streams()
                    request("between two pieces")
                call.record_usage(input_tokens=1, output_tokens=1)
            request("after it")

    asyncio.run(job())


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("asked", [_sync, _async])
def test_it_is_current_while_the_request_runs(
    guard: Guard, spans: InMemorySpanExporter, provider: TracerProvider, asked: Any, streams: bool
) -> None:
    """What the SDK does is below it; what is done between two pieces of an answer, or after it, is not."""
    asked(guard, streams, lambda name: provider.get_tracer("sdk").start_span(name).end())
    by_id = {span.context.span_id: span for span in spans.get_finished_spans() if span.context}
    above = {span.name: by_id[span.parent.span_id].name for span in by_id.values() if span.parent}
    between = {"between two pieces": "sagaspan r"} if streams else {}
    assert above == {"http": "chat cheap", "after it": "sagaspan r", "chat cheap": "sagaspan r", **between}
    (chat,) = [span for span in by_id.values() if span.name == "chat cheap"]
    assert chat.kind is SpanKind.CLIENT
    assert not trace.get_current_span().get_span_context().is_valid


def test_one_that_is_refused_is_never_current(guard: Guard, spans: InMemorySpanExporter) -> None:
    """Nothing of it is left behind."""
    with pytest.raises(BudgetExceeded), guard.run("r"):
        around = trace.get_current_span()
        with pytest.raises(BudgetExceeded), guard.llm_call("cheap", max_output_tokens=10_000):
            pytest.fail("sent")
        assert trace.get_current_span() is around


@pytest.mark.parametrize(
    ("model", "provider_name"), [("gpt-4o", "openai"), ("claude-sonnet-4-5", "anthropic"), ("cheap", "unknown")]
)
def test_its_provider_is_always_said(guard: Guard, spans: InMemorySpanExporter, model: str, provider_name: str) -> None:
    """The conventions require it: by the name of the model where nothing else says it."""
    with guard.run("r"), guard.llm_call(model, max_output_tokens=10) as call:
        call.record_usage(input_tokens=1, output_tokens=1)
    (chat,) = [span for span in spans.get_finished_spans() if span.name.startswith("chat")]
    assert (chat.attributes or {})["gen_ai.provider.name"] == provider_name
    assert chat.instrumentation_scope is not None
    assert chat.instrumentation_scope.schema_url == "https://opentelemetry.io/schemas/gen-ai/0.1.0"
