"""Models of a wrapped crew: every request is reserved before it is sent and counted once; one trace shows it all."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from crewai import LLM, Agent, BaseLLM, Crew, Process, Task
from crewai.telemetry import Telemetry
from crewai.tools import tool
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sagaspan import BudgetExceeded, Guard, PolicyDenied
from tests.adapters.crewai.scripts import USAGE, Say, agent_of, ask, crew_of, model_of
from tests.providers.replies import Reply, ToolCall
from tests.providers.server import ModelServer


@tool("pay")
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


class Silent(BaseLLM):
    """A model of the user's own that tells CrewAI nothing of its calls."""

    lines: list[str] = []  # noqa: RUF012 - pydantic copies it

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> str:
        return self.lines.pop(0)

    def supports_function_calling(self) -> bool:
        return False

    def get_context_window_size(self) -> int:
        return 100_000


def job(agent: Any = None, **options: Any) -> Task:
    return Task(**{"description": "do", "expected_output": "x", "agent": agent, **options})


def of_openai(server: ModelServer, **options: Any) -> LLM:
    settings = {"model": "openai/gpt-4o-mini", "base_url": f"{server.url}/v1", "api_key": "k", "max_tokens": 100}
    return LLM(**{**settings, **options})


def test_what_is_counted_is_the_sum_of_the_calls(guard: Guard, native: bool) -> None:
    crew = crew_of([ask("pay", amount=1), ask("pay", amount=2)], [pay], native)
    guard.wrap(crew).kickoff()
    used = guard.usage()
    assert (used.calls, used.input_tokens, used.output_tokens) == (5, 30, 15)
    assert used.spent == guard.usage(model="gpt-4o").spent > 0


def test_a_model_that_several_agents_share_is_counted_once_a_call(guard: Guard) -> None:
    delegate = ask("delegate_work_to_coworker", task="t", context="c", coworker="Clerk")
    boss = agent_of([delegate, ask("pay", amount=1), Say(), Say()], (), role="Boss", allow_delegation=True)
    clerk = Agent(role="Clerk", goal="g", backstory="b", llm=boss.llm, tools=[pay])
    crew = Crew(agents=[clerk], tasks=[job()], manager_agent=boss, process=Process.hierarchical)
    guard.wrap(crew).kickoff()
    assert guard.usage(model="gpt-4o").input_tokens == 10 * len(boss.llm.seen)  # type: ignore[union-attr]


def test_a_plan_of_the_crew_is_counted_too(guard: Guard) -> None:
    plan = '{"list_of_plans_per_task": [{"task_number": 1, "task": "do", "plan": "just do"}]}'
    planner = agent_of([plan]).llm
    crew = crew_of([], planning=True, planning_llm=planner)
    guard.wrap(crew).kickoff()
    asked = len(planner.seen) + len(model_of(crew).seen)  # type: ignore[union-attr]
    assert asked >= 2
    assert guard.usage(model="gpt-4o").input_tokens == 10 * asked


def test_a_model_that_tells_nothing_is_counted_by_its_bytes(guard: Guard) -> None:
    llm = Silent(model="gpt-4o", lines=["Thought: x\nFinal Answer: all well"])
    agent = Agent(role="R", goal="g", backstory="b", llm=llm)
    assert guard.wrap(Crew(agents=[agent], tasks=[job(agent)])).kickoff().raw == "all well"
    used = guard.usage(model="gpt-4o")
    assert used.calls == 1
    assert used.output_tokens == len("Thought: x\nFinal Answer: all well")
    assert used.input_tokens > 100


def test_a_model_that_tells_nothing_is_not_asked_beyond_the_budget(guard: Guard) -> None:
    llm = Silent(model="gpt-4o", lines=["Thought: x\nFinal Answer: all well"])
    agent = Agent(role="R", goal="g", backstory="b", llm=llm)
    with pytest.raises(BudgetExceeded):
        guard.wrap(Crew(agents=[agent], tasks=[job(agent)]), budget="0.001 USD").kickoff()
    assert len(llm.lines) == 1


def test_a_model_without_a_price_is_refused_where_money_is_limited(guard: Guard) -> None:
    llm = Silent(model="nobody-knows-this-one", lines=["Thought: x\nFinal Answer: all well"])
    agent = Agent(role="R", goal="g", backstory="b", llm=llm)
    with pytest.raises(PolicyDenied, match="nobody-knows-this-one"):
        guard.wrap(Crew(agents=[agent], tasks=[job(agent)]), budget="1 USD").kickoff()
    assert len(llm.lines) == 1


def test_a_call_that_failed_stays_booked_as_reserved(guard: Guard) -> None:
    crew = crew_of([RuntimeError("the line is dead")])
    guard.wrap(crew).kickoff()
    used = guard.usage(model="gpt-4o")
    assert used.calls == 2
    assert used.input_tokens > 2 * USAGE["prompt_tokens"]


@pytest.mark.parametrize("stream", [False, True])
def test_the_books_of_the_provider_agree(guard: Guard, model_server: ModelServer, stream: bool) -> None:
    model_server.say(Reply(tool_calls=(ToolCall(name="pay", arguments={"amount": 1}),)), Reply(text="all done"))
    agent = Agent(role="R", goal="g", backstory="b", llm=of_openai(model_server, stream=stream), tools=[pay])
    guard.wrap(Crew(agents=[agent], tasks=[job(agent)])).kickoff()
    used = guard.usage(model="gpt-4o-mini")
    assert (used.calls, used.input_tokens, used.output_tokens) == (
        2, model_server.input_tokens, model_server.output_tokens,
    )  # fmt: skip


def test_a_provider_is_not_asked_beyond_the_budget(guard: Guard, model_server: ModelServer) -> None:
    model_server.default = Reply(tool_calls=(ToolCall(name="pay", arguments={"amount": 1}),))
    agent = Agent(role="R", goal="g", backstory="b", llm=of_openai(model_server), tools=[pay])
    with pytest.raises(BudgetExceeded):
        guard.wrap(Crew(agents=[agent], tasks=[job(agent)]), budget="4 calls").kickoff()
    assert len(model_server.requests) == 2


def test_what_the_provider_refused_costs_nothing(guard: Guard, model_server: ModelServer) -> None:
    model_server.default = Reply(status=400)
    agent = Agent(role="R", goal="g", backstory="b", llm=of_openai(model_server), max_retry_limit=0)
    with pytest.raises(Exception, match="400"):
        guard.wrap(Crew(agents=[agent], tasks=[job(agent)])).kickoff()
    assert guard.usage(model="gpt-4o-mini").spent == 0


# -- spans -------------------------------------------------------------------------------------------------------


def tree(exporter: InMemorySpanExporter) -> list[str]:
    """The paths of all spans, and that there is one trace."""
    spans = {span.context.span_id: span for span in exporter.get_finished_spans()}
    assert len({span.context.trace_id for span in spans.values()}) == 1

    def path(span: Any) -> str:
        around = spans.get(span.parent.span_id) if span.parent else None
        return span.name if around is None else f"{path(around)} > {span.name}"

    return [path(span) for span in sorted(spans.values(), key=lambda span: span.start_time)]


@pytest.mark.parametrize("how", ["kickoff", "akickoff"])
def test_the_spans_of_a_crew(tmp_path: Path, provider: TracerProvider, spans: InMemorySpanExporter, how: str) -> None:
    with Guard(f"sqlite:///{tmp_path}/ledger.db", tracer_provider=provider) as guard:
        crew = crew_of([ask("pay", amount=1)], [pay], task={"name": "paying"}, name="till")
        wrapped = guard.wrap(crew)
        wrapped.kickoff() if how == "kickoff" else asyncio.run(wrapped.akickoff())
    agent = "sagaspan till > invoke_workflow till > task paying > invoke_agent Clerk"
    assert tree(spans) == [
        "sagaspan till",
        "sagaspan till > invoke_workflow till",
        "sagaspan till > invoke_workflow till > task paying",
        agent,
        f"{agent} > chat gpt-4o",
        f"{agent} > execute_tool pay",
        f"{agent} > chat gpt-4o",
    ]


def test_delegated_work_stands_under_its_delegation(
    tmp_path: Path, provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    delegate = ask("delegate_work_to_coworker", task="t", context="c", coworker="Clerk")
    clerk = agent_of([ask("pay", amount=1)], [pay])
    boss = agent_of([delegate], (), role="Boss", allow_delegation=True)
    crew = Crew(agents=[clerk], tasks=[job()], manager_agent=boss, process=Process.hierarchical)
    with Guard(f"sqlite:///{tmp_path}/ledger.db", tracer_provider=provider) as guard:
        guard.wrap(crew).kickoff()
    (paid,) = [path for path in tree(spans) if path.endswith("execute_tool pay")]
    assert "invoke_agent Boss > execute_tool delegate_work_to_coworker > " in paid
    assert paid.endswith("invoke_agent Clerk > execute_tool pay")


def test_a_kickoff_that_was_stopped_says_so_on_its_spans(
    tmp_path: Path, provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    with Guard(f"sqlite:///{tmp_path}/ledger.db", tracer_provider=provider) as guard, pytest.raises(BudgetExceeded):
        guard.wrap(crew_of([ask("pay", amount=1)], [pay]), budget="1 calls").kickoff()
    errors = {span.name: (span.attributes or {}).get("error.type") for span in spans.get_finished_spans()}
    assert errors["invoke_workflow crew"] == errors["sagaspan crew"] is not None


def test_nothing_of_ours_goes_through_crewais_own_providers(
    tmp_path: Path, provider: TracerProvider, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which reports of its own to its makers, unless that is turned off; the global provider is not ours to set."""
    sent = InMemorySpanExporter()
    its_own = TracerProvider(shutdown_on_exit=False)
    its_own.add_span_processor(SimpleSpanProcessor(sent))
    monkeypatch.delenv("CREWAI_DISABLE_TELEMETRY")
    for name, value in {"provider": its_own, "ready": True, "trace_set": True}.items():
        monkeypatch.setattr(Telemetry(), name, value, raising=False)
    before = trace.get_tracer_provider()
    with Guard(f"sqlite:///{tmp_path}/ledger.db", tracer_provider=provider) as guard:
        guard.wrap(crew_of([ask("pay", amount=1)], [pay])).kickoff()
    assert trace.get_tracer_provider() is before
    assert {scope_of(span) for span in spans.get_finished_spans()} == {"sagaspan"}
    reported = {scope_of(span) for span in sent.get_finished_spans()}
    assert reported
    assert "sagaspan" not in reported


def scope_of(span: ReadableSpan) -> str | None:
    return None if span.instrumentation_scope is None else span.instrumentation_scope.name
