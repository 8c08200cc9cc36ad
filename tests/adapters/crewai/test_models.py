"""Models of a wrapped crew: every request is reserved before it is sent and counted once; one trace shows it all."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from crewai import LLM, Agent, BaseLLM, Crew, Process, Task
from crewai.events import crewai_event_bus
from crewai.llms.base_llm import llm_call_context
from crewai.telemetry import Telemetry
from crewai.tools import tool
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import BaseModel

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


ALL_WELL = "Thought: x\nFinal Answer: all well"


class Tracking(Silent):
    """One that adds up what it used, as ``BaseLLM`` offers, and emits nothing."""

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> str:
        self._track_token_usage_internal(USAGE)
        return super().call(messages)


class Beginning(Silent):
    """One that tells of what it asks, and not of what it is answered."""

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> str:
        with llm_call_context():
            self._emit_call_started_event(messages=messages)
            return super().call(messages)


def crew_with(llm: BaseLLM, **options: Any) -> Crew:
    agent = Agent(role="R", goal="g", backstory="b", llm=llm)
    return Crew(agents=[agent], tasks=[job(agent)], **options)


def prices_of(folder: Path) -> list[str]:
    """By what each call of a model was paid for: the row of the price, and how its counts were found."""
    with sqlite3.connect(folder / "ledger.db") as connection:
        return [source for (source,) in connection.execute("select prices from usage order by at_us")]


@pytest.mark.parametrize("kind", [Silent, Beginning])
def test_a_model_that_tells_nothing_is_booked_as_its_text_looks_and_marked(
    guard: Guard, tmp_path: Path, kind: type[Silent]
) -> None:
    assert guard.wrap(crew_with(kind(model="gpt-4o", lines=[ALL_WELL]))).kickoff().raw == "all well"
    used = guard.usage(model="gpt-4o")
    assert used.calls == 1
    assert used.output_tokens == -(-len(ALL_WELL) // 4)
    assert used.input_tokens > 50
    assert used.reserved == 0
    assert [source.endswith(", estimated") for source in prices_of(tmp_path)] == [True]


@pytest.mark.parametrize(("options", "budget"), [({"max_tokens": 100}, None), ({}, "5 USD")])
def test_one_that_has_a_limit_or_a_budget_is_booked_as_reserved(
    guard: Guard, tmp_path: Path, options: dict[str, Any], budget: str | None
) -> None:
    """What it could have used at most: such a budget is not to be overshot."""
    crew = crew_with(Silent(model="gpt-4o", lines=[ALL_WELL], **options))
    guard.wrap(crew, budget=budget).kickoff()
    assert guard.usage(model="gpt-4o").output_tokens >= 100
    assert [source.endswith(", as reserved") for source in prices_of(tmp_path)] == [True]


def test_what_a_model_adds_up_is_what_it_used(guard: Guard) -> None:
    guard.wrap(crew_with(Tracking(model="gpt-4o", lines=[ALL_WELL]))).kickoff()
    used = guard.usage(model="gpt-4o")
    assert (used.input_tokens, used.output_tokens) == (USAGE["prompt_tokens"], USAGE["completion_tokens"])


def test_an_answer_of_a_provider_without_usage_is_estimated_too(
    guard: Guard, model_server: ModelServer, tmp_path: Path
) -> None:
    model_server.say(Reply(text="all done now", silent_usage=True))
    guard.wrap(crew_with(of_openai(model_server, max_tokens=None))).kickoff()
    assert [source.endswith(", estimated") for source in prices_of(tmp_path)] == [True]
    assert guard.usage(model="gpt-4o-mini").output_tokens == 3


def test_a_copy_of_a_model_is_metered_by_itself(guard: Guard) -> None:
    """As agents are copied for each item of a batch."""
    llm = Silent(model="gpt-4o", lines=[ALL_WELL] * 2)
    outputs = guard.wrap(crew_with(llm)).kickoff_for_each([{}, {}])
    assert [output.raw for output in outputs] == ["all well"] * 2
    assert guard.usage(model="gpt-4o").calls == 2


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


def test_nothing_of_ours_is_in_the_traces_that_crewai_keeps_itself(
    tmp_path: Path, provider: TracerProvider, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``tracing=True``: they stay in the process until somebody agrees to send them."""
    ephemeral = pytest.importorskip("crewai.telemetry.tracing.ephemeral", reason="crewai before it traced so")
    kept: list[ReadableSpan] = []
    monkeypatch.setattr(
        ephemeral.EphemeralSpanBuffer, "export",
        lambda _buffer, spans: kept.extend(spans) or SpanExportResult.SUCCESS,
    )  # fmt: skip
    with Guard(f"sqlite:///{tmp_path}/ledger.db", tracer_provider=provider) as guard:
        with ephemeral.trace_consent(lambda: False):
            guard.wrap(crew_of([ask("pay", amount=1)], [pay], tracing=True)).kickoff()
        crewai_event_bus.flush()
    assert {scope_of(span) for span in spans.get_finished_spans()} == {"sagaspan"}
    assert {scope_of(span) for span in kept} == {"crewai"}
    theirs = {span.context.trace_id for span in kept}
    assert not theirs & {span.context.trace_id for span in spans.get_finished_spans()}
    assert len(tree(spans)) == 7


def scope_of(span: ReadableSpan) -> str | None:
    return None if span.instrumentation_scope is None else span.instrumentation_scope.name


class Told(Silent):
    """One that keeps what it was asked."""

    seen: list[Any] = []  # noqa: RUF012 - pydantic copies it

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> str:
        self.seen.append(messages)
        return super().call(messages, *args, **kwargs)


class Answer(BaseModel):
    """What a task is to end with."""

    value: int


PLAN = '{"list_of_plans_per_task": [{"task_number": 1, "task": "do", "plan": "just do"}]}'
VALID = '{"valid": true, "feedback": null}'
FINAL = "Thought: x\nFinal Answer: "


def planned(llm: Told) -> Crew:
    llm.lines += [FINAL + PLAN]
    return crew_of([], planning=True, planning_llm=llm)


def managed(llm: Told) -> Crew:
    llm.lines += [ALL_WELL]
    return Crew(agents=[agent_of([])], tasks=[job()], manager_llm=llm, process=Process.hierarchical)


def converted(llm: Told) -> Crew:
    llm.lines += [FINAL + "no data", '{"value": 5}']
    agent = Agent(role="R", goal="g", backstory="b", llm=llm)
    return Crew(agents=[agent], tasks=[job(agent, output_pydantic=Answer)])


def checked(llm: Told) -> Crew:
    llm.lines += [ALL_WELL, FINAL + VALID, VALID, VALID]
    agent = Agent(role="R", goal="g", backstory="b", llm=llm)
    return Crew(agents=[agent], tasks=[job(agent, guardrail="it says that all is well")])


@pytest.mark.parametrize("make", [planned, managed, converted, checked])
def test_a_model_that_tells_nothing_is_counted_whatever_a_crew_asks_it_for(guard: Guard, make: Any) -> None:
    """As planner, manager, converter and guardrail it is asked in places of CrewAI's own."""
    llm = Told(model="gpt-4o-mini")
    guard.wrap(make(llm)).kickoff()
    assert len(llm.seen) >= (1 if make in (planned, managed) else 2)
    assert guard.usage(model="gpt-4o-mini").calls == len(llm.seen)


@pytest.mark.parametrize("make", [planned, managed, converted, checked])
def test_nor_is_it_asked_for_any_of_these_over_a_budget(guard: Guard, make: Any) -> None:
    llm = Told(model="gpt-4o-mini")
    with pytest.raises(BudgetExceeded):
        guard.wrap(make(llm), budget="0.0000001 USD").kickoff()
    assert llm.seen == []
