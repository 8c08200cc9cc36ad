"""Features of CrewAI's that call models and tools in ways of their own: each is guarded, and counted once a request."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from crewai import Agent, BaseLLM, Crew, Memory, Process
from crewai.agent.planning_config import PlanningConfig
from crewai.flow.flow import Flow, start
from crewai.flow.human_feedback import human_feedback
from crewai.tools import tool

from sagaspan import BudgetExceeded, Guard, Policy
from tests.adapters.crewai.entries import DELEGATE
from tests.adapters.crewai.scripts import Say, Scripted, agent_of, ask, crew_of
from tests.adapters.crewai.test_models import Silent, job, of_openai
from tests.adapters.crewai.test_tools import pay_tool, states
from tests.providers.replies import Reply, ToolCall
from tests.providers.server import ModelServer, Request

WRITE = {"pay": Policy(effect="write")}
PAY = Reply(tool_calls=(ToolCall(name="pay", arguments={"amount": 1}),))


def agrees(guard: Guard, server: ModelServer) -> bool:
    """Whether our books are those of the provider."""
    used = guard.usage(model="gpt-4o-mini")
    ours = (used.input_tokens, used.output_tokens)
    return ours == (server.input_tokens, server.output_tokens) and used.calls == len(server.requests)


def crew_at(server: ModelServer, tools: list[Any], *, task: dict[str, Any] | None = None, **agent: Any) -> Crew:
    """A crew whose model answers over a socket."""
    clerk = Agent(role="Clerk", goal="g", backstory="b", llm=of_openai(server), tools=tools, **agent)
    return Crew(agents=[clerk], tasks=[job(clerk, **(task or {}))])


def test_our_total_is_the_sum_of_the_requests_where_that_of_crewai_is_not(
    guard: Guard, model_server: ModelServer, world: list[object]
) -> None:
    delegation = Reply(tool_calls=(ToolCall(name=DELEGATE[0].name, arguments=json.loads(DELEGATE[0].arguments)),))
    model_server.say(delegation, PAY, Reply(text="paid"), Reply(text="all done"))
    llm = of_openai(model_server)
    clerk = Agent(role="Clerk", goal="g", backstory="b", llm=llm, tools=[pay_tool(world)])
    boss = Agent(role="Boss", goal="g", backstory="b", llm=llm, allow_delegation=True)
    crew = Crew(agents=[clerk], tasks=[job()], manager_agent=boss, process=Process.hierarchical)
    output = guard.wrap(crew).kickoff()
    assert world == [1]
    assert agrees(guard, model_server)
    assert output.token_usage.total_tokens != model_server.input_tokens + model_server.output_tokens


def test_an_agent_that_plans_is_counted_with_its_plans(
    guard: Guard, model_server: ModelServer, world: list[object]
) -> None:
    ready = json.dumps({"plan": "just pay", "steps": [], "ready": True})
    model_server.say(Reply(text=ready), PAY, Reply(text="paid"))
    planning = PlanningConfig(llm=of_openai(model_server), max_attempts=1)
    assert guard.wrap(crew_at(model_server, [pay_tool(world)], planning_config=planning), WRITE).kickoff().raw == "paid"
    assert len(model_server.requests) == 3
    assert agrees(guard, model_server)
    assert world == [1]


def test_an_agent_that_plans_is_stopped_before_its_plan(guard: Guard, world: list[object]) -> None:
    planner = Scripted([Say()] * 4)
    agent = agent_of([ask("pay", amount=1)], [pay_tool(world)], planning_config=PlanningConfig(llm=planner))
    with pytest.raises(BudgetExceeded):
        guard.wrap(Crew(agents=[agent], tasks=[job(agent)]), budget="0.00001 USD").kickoff()
    assert (planner.seen, world) == ([], [])


def test_a_model_that_only_calls_functions_is_counted(
    guard: Guard, model_server: ModelServer, world: list[object]
) -> None:
    """CrewAI asks it for the arguments of what another one wrote as text."""
    wanted = json.dumps({"tool_name": "pay", "arguments": {"amount": 1}})
    model_server.default = Reply(text=wanted)
    caller = of_openai(model_server)
    crew = crew_of([ask("pay", amount=1)], [pay_tool(world)], False, agent={"function_calling_llm": caller})
    guard.wrap(crew, WRITE).kickoff()
    assert world == [1]
    assert agrees(guard, model_server)


def test_a_guardrail_that_asks_again_is_counted_and_repeats_nothing(
    guard: Guard, model_server: ModelServer, world: list[object]
) -> None:
    verdicts = [(False, "longer"), (False, "longer"), (True, "fine")]
    model_server.say(PAY, Reply(text="one"), PAY, Reply(text="two"), PAY, Reply(text="three"))
    crew = crew_at(model_server, [pay_tool(world)], task={"guardrail": lambda _output: verdicts.pop(0)})
    assert guard.wrap(crew).kickoff().raw == "fine"
    assert world == [1]
    assert agrees(guard, model_server)


def test_a_guardrail_of_words_is_counted(guard: Guard, model_server: ModelServer) -> None:
    model_server.say(Reply(text="a haiku"), Reply(text=json.dumps({"valid": True, "feedback": None})))
    guard.wrap(crew_at(model_server, [], task={"guardrail": "it is a haiku"})).kickoff()
    assert len(model_server.requests) >= 2
    assert agrees(guard, model_server)


def test_items_of_a_batch_are_separate_and_their_books_agree(
    guard: Guard, model_server: ModelServer, world: list[object]
) -> None:
    model_server.say(PAY, Reply(text="one"), PAY, Reply(text="two"))
    outputs = guard.wrap(crew_at(model_server, [pay_tool(world)]), WRITE).kickoff_for_each([{"n": 1}, {"n": 2}])
    assert [output.raw for output in outputs] == ["one", "two"]
    assert world == [1, 1]
    assert agrees(guard, model_server)
    assert len(guard.runs.list()) == 2


def test_the_memory_of_a_crew_is_guarded_and_counted(guard: Guard, model_server: ModelServer, tmp_path: Path) -> None:
    """CrewAI's own, in a folder: what it is asked for is a call; what it asks models for is counted, also beside."""
    analysis = {"suggested_scope": "/", "categories": [], "importance": 0.5, "extracted_metadata": {}}

    def answer(request: Request) -> Reply:
        if not request.body.get("tools"):  # of the memory itself
            return Reply(text=json.dumps({"memories": []} if "ExtractedMemories" in str(request.body) else analysis))
        said = [message["content"] for message in request.body["messages"] if message["role"] == "tool"]
        asked = [("save_to_memory", {"contents": ["the sky is blue"]})] * 2 + [("search_memory", {"queries": ["sky"]})]
        if len(said) == len(asked):
            return Reply(text=said[-1])
        name, arguments = asked[len(said)]
        return Reply(tool_calls=(ToolCall(name=name, arguments=arguments),))

    model_server.answers = answer
    folder, llm = str(tmp_path / "memory"), of_openai(model_server)
    memory = Memory(llm=llm, storage=folder, embedder=lambda texts: [[0.1] * 8 for _ in texts])
    clerk = Agent(role="Clerk", goal="g", backstory="b", llm=of_openai(model_server))
    wrapped = guard.wrap(Crew(agents=[clerk], tasks=[job(clerk)], memory=memory), {"save_*": Policy(effect="write")})
    assert "the sky is blue" in wrapped.kickoff().raw
    memory.drain_writes()
    assert [record.content for record in memory.list_records()] == ["the sky is blue"]
    assert states(guard) == [("save_to_memory", "done"), ("search_memory", "done")]
    assert agrees(guard, model_server)


ANALYSIS = '{"suggested_scope": "/", "categories": [], "importance": 0.5, "extracted_metadata": {}}'


def kept_with(llm: BaseLLM, folder: Path) -> Memory:
    """A memory in ``folder`` that asks ``llm`` what to keep, and where."""
    return Memory(llm=llm, storage=str(folder), embedder=lambda texts: [[0.1] * 8 for _ in texts])


def test_what_an_agent_alone_keeps_in_its_memory_is_there_at_its_end(guard: Guard, tmp_path: Path) -> None:
    """The memory asks its model in a thread, which an agent does not wait for, and a run that is over would refuse."""

    def late(_messages: Any) -> str:
        threading.Event().wait(0.1)  # which nobody sets: the agent would be done by then
        return ANALYSIS

    llm = Scripted(["no list", late, ANALYSIS])
    memory = kept_with(llm, tmp_path / "memory")
    assert guard.wrap(agent_of([], memory=memory)).kickoff("go").raw == "done"
    assert len(memory.list_records()) == 1
    assert guard.usage(model="gpt-4o").calls == 1 + len(llm.seen)


@pytest.mark.parametrize("part", [None, "/desk"], ids=["whole", "scope"])
def test_a_memory_whose_model_tells_nothing_is_counted(guard: Guard, tmp_path: Path, part: str | None) -> None:
    llm = Silent(model="gpt-4o-mini", lines=["no list", *[ANALYSIS] * 2])
    memory = kept_with(llm, tmp_path / "memory")
    crew = crew_of([], agent={"memory": memory if part is None else memory.scope(part)})
    assert "gpt-4o-mini" in guard.coverage(crew).models
    guard.wrap(crew).kickoff()
    asked = 3 - len(llm.lines)
    assert asked >= 1
    assert guard.usage(model="gpt-4o-mini").calls == asked


def test_a_model_that_sorts_what_a_human_says_is_counted(guard: Guard) -> None:
    llm = Silent(model="gpt-4o", lines=["yes"] * 3)

    class Human:
        def request_feedback(self, *_: Any) -> str:
            return "fine with me"

    class Asking(Flow[Any]):
        @start()
        @human_feedback(message="well?", emit=["yes", "no"], llm=llm, provider=Human())
        def ask(self) -> str:
            return "so it is"

    guard.wrap(Asking()).kickoff()
    assert guard.usage(model="gpt-4o").calls == 3 - len(llm.lines) == 1


def test_a_limit_of_uses_counts_a_denied_call_as_crewai_does(guard: Guard, world: list[object]) -> None:
    @tool("pay", max_usage_count=2)
    def pay(amount: int) -> str:
        """Pay."""
        world.append(amount)
        return "paid"

    crew = crew_of([ask("pay", amount=n) for n in range(4)], [pay])
    with guard.override(approver=lambda request: request.args["amount"] != 0):
        guard.wrap(crew, {"pay": Policy(approve=True)}).kickoff()
    assert world == [1]
