"""What a crew, an agent or a flow has, as far as it can be known, and policies that name something else."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from crewai import Agent, Crew, Process, Task
from crewai.flow.flow import Flow, start
from crewai.tools import tool

from sagaspan import ConfigurationError, Guard, Policy
from tests.adapters.crewai.entries import delegated
from tests.adapters.crewai.scripts import Scripted, agent_of, ask, crew_of
from tests.adapters.crewai.test_tools import pay_tool, states

PAID: list[object] = []


@tool("pay")
def pay(amount: int) -> str:
    """Pay."""
    PAID.append(amount)
    return f"paid {amount}"


@tool("refund")
def refund(amount: int) -> str:
    """Refund."""
    PAID.append(-amount)
    return "refunded"


def make_clerk() -> Agent:
    return agent_of([ask("refund", amount=1)], [refund])


class Till(Flow[Any]):
    """A flow that calls a tool itself, and makes an agent with another."""

    @start()
    def open(self) -> Any:
        pay.run(amount=5)
        pay.run(amount=5)
        return make_clerk().kickoff("go").raw


def test_the_tools_and_models_of_a_crew_are_covered(guard: Guard, world: list[object]) -> None:
    crew = crew_of(
        [], [pay_tool(world), pay_tool(world, "Pay a bill")], planning=True, planning_llm=Scripted([], model="gpt-4")
    )
    found = guard.coverage(crew)
    assert (found.tools, found.models, found.opaque) == (("pay", "pay_a_bill"), ("gpt-4", "gpt-4o"), ())
    assert guard.coverage(guard.wrap(crew)) == found


def test_managers_workers_and_tasks_are_read(guard: Guard, world: list[object]) -> None:
    crew = delegated([], [pay_tool(world)])
    crew.tasks[0].tools = [pay_tool(world, "extra")]
    assert guard.coverage(crew).tools == ("extra", "pay")
    job = Task(description="do", expected_output="x", tools=[pay_tool(world, "own")])
    boss = agent_of([], role="Boss")
    crew = Crew(agents=[agent_of([])], tasks=[job], manager_agent=boss, process=Process.hierarchical)
    assert guard.coverage(crew).tools == ("own",)


def test_what_comes_later_is_said(guard: Guard) -> None:
    agent = agent_of([], [], mcps=["https://mcp.example/mcp"])
    (said,) = guard.coverage(agent).opaque
    assert "the agent 'Clerk' gets tools of MCP servers when it starts" in said


def test_the_code_of_a_flow_is_read(guard: Guard) -> None:
    found = guard.coverage(Till())
    assert found.tools == ("pay", "refund")
    assert "the flow 'Till'" in found.opaque[0]


def test_a_tool_that_a_flow_calls_itself_is_guarded(guard: Guard) -> None:
    PAID.clear()
    write = Policy(effect="write")
    assert guard.wrap(Till(), {"pay": write, "refund": write}).kickoff() == "done"
    assert PAID == [5, -1]
    assert sorted(states(guard)) == [("pay", "done"), ("refund", "done")]


def test_a_compensation_can_be_a_tool_of_the_flows_code(guard: Guard) -> None:
    PAID.clear()

    class Broken(Till):
        @start()
        def open(self) -> Any:
            pay.run(amount=5)
            raise ZeroDivisionError(refund.name)

    with pytest.raises(ZeroDivisionError):
        guard.wrap(Broken(), {"pay": Policy(compensate="refund")}).kickoff()
    assert PAID == [5, -5]


def test_a_misspelt_name_is_refused_for_a_flow_too(guard: Guard) -> None:
    with pytest.raises(ConfigurationError, match=r"the flow 'Till' does not have; did you mean refund\?"):
        guard.wrap(Till(), {"refunds": Policy(effect="write")})


def test_a_name_that_may_come_later_is_taken_and_said(guard: Guard, caplog: pytest.LogCaptureFixture) -> None:
    agent = agent_of([], [], mcps=["https://mcp.example/mcp"])
    with caplog.at_level(logging.WARNING):
        guard.wrap(agent, {"open_ticket": Policy(effect="write")})
    assert "'open_ticket', which the agent 'Clerk' does not have yet" in caplog.text
