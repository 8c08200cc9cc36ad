"""Spans beside those of other instrumentations of LangChain: one trace, no orphans, nothing left open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_anthropic import ChatAnthropic
from langchain_core.callbacks import BaseCallbackManager
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.pregel import Pregel
from langgraph.types import Command, interrupt
from opentelemetry import context
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sagaspan import Guard, configure_tracing, semconv
from sagaspan.cli._trace_tree import totals
from sagaspan.index import TraceIndex
from tests.adapters.langchain.scripts import ask, model, on
from tests.providers.replies import Reply, ToolCall
from tests.providers.server import ModelServer

OpenInference = pytest.importorskip("openinference.instrumentation.langchain").LangChainInstrumentor
OpenTelemetry = pytest.importorskip("opentelemetry.instrumentation.genai.langchain").LangChainInstrumentor
OpenLLMetry = pytest.importorskip("opentelemetry.instrumentation.langchain").LangchainInstrumentor
OTHERS: dict[str, Any] = {
    "none": None, "OpenInference": OpenInference, "OpenTelemetry": OpenTelemetry, "OpenLLMetry": OpenLLMetry,
}  # fmt: skip
STAYS_WRAPPED: list[tuple[Any, str]] = [
    (BaseCallbackManager, "__init__"), (Command, "__init__"), (Pregel, "stream"), (Pregel, "astream"),
    *((AgentMiddleware, f"{way}{at}_{what}") for way in ("", "a") for at in ("before", "after")
      for what in ("agent", "model")),
]  # fmt: skip
"""The methods that OpenLLMetry still wraps once it is uninstrumented: it looks for them in modules, not in classes."""
PAID: dict[str, list[str]] = {
    "none": ["sagaspan agent"],
    "OpenInference": ["tools", "agent", "sagaspan agent"],
    "OpenLLMetry": ["execute_task tools", "agent.workflow", "invoke_agent agent", "sagaspan agent"],
    "OpenTelemetry": ["invoke_agent agent", "sagaspan agent"],
}
"""The spans around that of the tool, the innermost first."""


class Spans(InMemorySpanExporter):
    """What was exported, and how many spans were begun."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = 0

    def named(self, name: str, scope: str = "sagaspan") -> list[ReadableSpan]:
        """The spans called ``name`` of an instrumentation."""
        return [
            s for s in self.get_finished_spans() if s.name == name and s.instrumentation_scope.name.startswith(scope)
        ]

    def above(self, span: ReadableSpan) -> list[str]:
        """The names of the spans around ``span``, the innermost first; raises ``KeyError`` for an orphan."""
        by_id = {one.context.span_id: one for one in self.get_finished_spans() if one.context}
        names = []
        while span.parent is not None:
            span = by_id[span.parent.span_id]
            names.append(span.name)
        return names


class Counting(SimpleSpanProcessor):
    """Counts what begins, too."""

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self.span_exporter.begun += 1  # type: ignore[attr-defined] # it is a Spans


@pytest.fixture(params=OTHERS, scope="module")
def other(request: Any) -> Iterator[tuple[str, TracerProvider, Spans]]:
    """Another instrumentation, made once: made again, OpenLLMetry's goes on with the provider it had first."""
    spans = Spans()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Counting(spans))
    made = None if OTHERS[request.param] is None else OTHERS[request.param]()
    with pytest.MonkeyPatch.context() as originals:
        for owner, name in STAYS_WRAPPED:
            originals.setattr(owner, name, vars(owner)[name])
        if made is not None:
            made.instrument(tracer_provider=provider)
        yield request.param, provider, spans
        if made is not None:
            made.uninstrument()
    context.attach(context.Context())


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream", "abandoned"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_spans_of_others_and_ours_are_one_tree(
    tmp_path: Path, other: tuple[str, TracerProvider, Spans], way: str
) -> None:
    """Ours are the same ones whoever else looks; only the span that the other opened for a tool is taken instead."""
    name, provider, spans = other
    spans.clear()
    spans.begun = 0
    context.attach(context.Context())  # OpenLLMetry leaves spans of earlier agents in the context

    @tool
    def pay(to: str) -> str:
        """Pay."""
        provider.get_tracer("user").start_span("http").end()
        return to

    url = f"sqlite:///{tmp_path}/ledger.db"
    with Guard(url, tracer_provider=provider, prices={"scripted": {"input": 0, "output": 0}}) as guard:
        agent = guard.wrap(create_agent(model(("pay", {"to": "A"})), [pay], name="agent"), {"pay": {"effect": "write"}})
        await _go(agent, way)
    finished = spans.get_finished_spans()
    assert len(finished) == spans.begun
    assert len({one.context.trace_id for one in finished if one.context}) == 1
    assert all(spans.above(one)[-1:] in ([], ["sagaspan agent"]) for one in finished)
    if way == "abandoned":
        return
    (paid,) = [span for span in finished if (span.attributes or {}).get("gen_ai.tool.name") == "pay"]
    assert (paid.attributes or {})["sagaspan.call.state"] == "done"
    assert len(spans.named("chat scripted")) == 2
    assert paid.instrumentation_scope is not None
    assert (paid.instrumentation_scope.name == "sagaspan") is (name == "none")
    assert spans.above(paid) == PAID[name]
    (http,) = spans.named("http", scope="user")
    assert spans.above(http)[0] == paid.name


def _openai(server: ModelServer) -> Any:
    return ChatOpenAI(
        model="gpt-4o", base_url=f"{server.url}/v1", api_key="test", max_retries=0, max_tokens=200, stream_usage=True
    )


def _anthropic(server: ModelServer) -> Any:
    return ChatAnthropic(
        model_name="claude-sonnet-5", base_url=server.url, api_key="test", max_retries=0, max_tokens_to_sample=200
    )


@pytest.mark.parametrize(("made", "way"), [(_openai, "invoke"), (_openai, "astream"), (_anthropic, "ainvoke")])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_a_call_of_a_model_counts_once(
    tmp_path: Path, other: tuple[str, TracerProvider, Spans], model_server: ModelServer, reader: InMemoryMetricReader,
    made: Any, way: str,
) -> None:  # fmt: skip
    """The provider's books, SQL, the tree's footer, our metrics and ``usage`` agree to the token."""
    _, provider, spans = other
    spans.clear()
    context.attach(context.Context())
    configure_tracing(directory=tmp_path / "traces", tracer_provider=provider)

    @tool
    def pay(to: str) -> str:
        """Pay."""
        return to

    call = ToolCall(name="pay", arguments={"to": "A"}, id="call_7")
    model_server.say(
        Reply(text="", tool_calls=(call,), input_tokens=90, output_tokens=20),
        Reply(text="Paid.", input_tokens=120, output_tokens=30),
    )
    with Guard(f"sqlite:///{tmp_path}/ledger.db", tracer_provider=provider) as guard:
        agent = guard.wrap(create_agent(made(model_server), [pay]), {"pay": {"effect": "write"}}, run_id="r")
        await _go(agent, way)
        usage = guard.usage(run="r")
    used = (model_server.input_tokens, model_server.output_tokens)
    assert used == (210, 50)
    assert (usage.input_tokens, usage.output_tokens) == used
    with TraceIndex(tmp_path / "traces") as index:
        index.sync()
        asked = "select count(*), sum(input_tokens)::int, sum(output_tokens)::int from llm_calls"
        assert index.query(asked).rows == [(2, *used)]
        (trace,) = index.traces()
        assert "210 tokens in, 50 out" in totals(index.trace(trace.trace_id))
    data = reader.get_metrics_data()
    ours = [scope for one in data.resource_metrics for scope in one.scope_metrics if scope.scope.name == "sagaspan"]
    points = [
        point for scope in ours for metric in scope.metrics if metric.name == semconv.METRIC_TOKEN_USAGE
        for point in metric.data.data_points
    ]  # fmt: skip
    measured = [
        sum(point.sum for point in points if point.attributes[semconv.GEN_AI_TOKEN_TYPE] == kind)
        for kind in ("input", "output")
    ]
    assert tuple(measured) == used
    assert {point.attributes[semconv.GEN_AI_PROVIDER_NAME] for point in points} == {
        "openai" if made is _openai else "anthropic"
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_a_tool_whose_body_is_called_by_itself_has_a_span_of_its_own(
    tmp_path: Path, other: tuple[str, TracerProvider, Spans]
) -> None:
    """The span around it is not the tool's, and is left as it is."""
    _, provider, spans = other
    spans.clear()
    context.attach(context.Context())

    @tool
    def pay(to: str) -> str:
        """Pay."""
        return to

    with Guard(f"sqlite:///{tmp_path}/ledger.db", tracer_provider=provider) as guard:
        guarded = guard.wrap(pay)
        RunnableLambda(lambda to: guarded._run(to, config={}), name="step").invoke("A")
    (paid,) = spans.named("execute_tool pay")
    assert not [
        one for one in spans.get_finished_spans() if one is not paid and "sagaspan.call.id" in (one.attributes or {})
    ]


@pytest.mark.parametrize("nested", [False, True], ids=["a tool asks", "an agent within a tool asks"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_pause_is_no_error(tmp_path: Path, other: tuple[str, TracerProvider, Spans], nested: bool) -> None:
    """No span of ours says that a tool failed which only waits, nor does an adopted one; the resumed run is linked."""
    name, provider, spans = other
    spans.clear()
    context.attach(context.Context())

    @tool
    def confirm() -> str:
        """Ask a person."""
        return str(interrupt("sure?"))

    within = create_agent(model(("confirm", {})), [confirm], name="within")

    @tool
    def helper() -> str:
        """Ask another agent."""
        return str(within.invoke(ask())["messages"][-1].content)

    asks = helper if nested else confirm
    made = create_agent(model((asks.name, {})), [asks], name="agent", checkpointer=InMemorySaver())
    url = f"sqlite:///{tmp_path}/ledger.db"
    with Guard(url, tracer_provider=provider, prices={"scripted": {"input": 0, "output": 0}}) as guard:
        agent = guard.wrap(made)
        agent.invoke(ask(), on("t"))
        agent.invoke(Command(resume="yes"), on("t"))
    called = [one for one in spans.get_finished_spans() if "sagaspan.call.executed" in (one.attributes or {})]
    tools = [dict(one.attributes or {}) for one in called if "gen_ai.tool.name" in (one.attributes or {})]
    assert {one["gen_ai.tool.name"] for one in tools} == {"confirm", asks.name}
    if name in ("none", "OpenInference"):  # the others themselves call it an error
        assert [one["error.type"] for one in tools if "error.type" in one] == []
    ours = [one for one in spans.get_finished_spans() if one.instrumentation_scope.name == "sagaspan"]  # type: ignore[union-attr]
    assert {one.status.status_code.name for one in ours} == {"UNSET"}
    before, after = spans.named("sagaspan agent")
    assert [link.context.span_id for link in after.links] == [before.context.span_id]


async def _go(agent: Any, way: str) -> None:
    match way:
        case "invoke":
            agent.invoke(ask())
        case "ainvoke":
            await agent.ainvoke(ask())
        case "stream":
            list(agent.stream(ask()))
        case "astream":
            [chunk async for chunk in agent.astream(ask())]
        case _:
            stream = agent.stream(ask())
            next(stream)
            stream.close()
