"""Budgets and loops of a wrapped agent: what ends it, and what the model is told."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.tools import tool

from sagaspan import BudgetExceeded, ConfigurationError, Guard, LoopDetected
from tests.adapters.langchain.scripts import answers, ask, calls_of, model

World = list[Any]


@pytest.fixture
def world() -> World:
    return []


def _agent(world: World, *cities: str) -> Any:
    @tool
    def book(city: str) -> str:
        """Book a flight."""
        world.append(city)
        return "booked"

    return create_agent(model(*[("book", {"city": city}) for city in cities]), [book], name="trip")


def _policies(world: World) -> dict[str, Any]:
    return {"book": {"compensate": lambda city: world.append(f"not {city}"), "cost": "1 USD"}}


def test_a_budget_of_each_run(guard: Guard, world: World) -> None:
    """``wrap(budget=...)`` ends an invocation that needs more, and undoes it; the next one has a budget of its own."""
    agent = guard.wrap(_agent(world, "Rome", "Oslo", "Bonn"), _policies(world), budget="2 USD")
    for _ in range(2):
        world.clear()
        with pytest.raises(BudgetExceeded) as caught:
            agent.invoke(ask())
        assert type(caught.value) is BudgetExceeded
        assert world == ["Rome", "Oslo", "not Oslo", "not Rome"]
    assert {(run.status, run.reason) for run in guard.runs.list()} == {("compensated", "budget")}


async def test_of_an_awaited_agent(guard: Guard, world: World) -> None:
    """It holds alike."""
    agent = guard.wrap(_agent(world, "Rome", "Oslo"), _policies(world), budget="1 USD")
    with pytest.raises(BudgetExceeded):
        await agent.ainvoke(ask())
    assert world == ["Rome", "not Rome"]


def test_within_a_run(guard: Guard, world: World) -> None:
    """An agent with a budget of its own has a run of its own there; without one it joins the run in force."""
    policies = _policies(world)
    with guard.run("outer", id="o", budget="9 USD"):
        guard.wrap(_agent(world, "Rome"), policies, budget="1 USD").invoke(ask())
        guard.wrap(_agent(world, "Oslo"), policies).invoke(ask())
        with pytest.raises(BudgetExceeded) as caught:
            guard.wrap(_agent(world, "Bonn", "Kiel"), policies, budget="1 USD").invoke(ask())
    assert caught.value.scope == "run:o/trip#2"
    assert world == ["Rome", "Oslo", "Bonn", "not Bonn"]
    assert [call.tool for call in calls_of(guard, "o")] == ["book"]
    assert {account.scope: int(account.spent) for account in guard.budgets.list()} == {
        "run:o": 3, "run:o/trip#1": 1, "run:o/trip#2": 1
    }  # fmt: skip


def test_a_tool_has_no_run_to_give_it_to(guard: Guard, world: World) -> None:
    """A budget that nothing would look at is refused."""
    for target in (_tool(), [_tool()]):
        with pytest.raises(ConfigurationError, match="budget"):
            guard.wrap(target, budget="1 USD")
    with pytest.raises(ConfigurationError, match="wrap\\(budget\\)"):
        guard.wrap(_agent(world, "Rome"), budget="2")


def _tool() -> Any:
    @tool
    def look(city: str) -> str:
        """Look."""
        return city

    return look


def test_a_loop_is_told_and_then_ends_the_agent(guard: Guard) -> None:
    """The first two refusals are data for the model; the third is the error of the agent."""

    def agent(name: str, calls: int) -> Any:
        made = create_agent(model(*[("look", {"city": "Rome"})] * calls), [_tool()], name=name)
        return guard.wrap(made, {"look": {"effect": "read"}})

    told: list[Any] = []
    with pytest.raises(LoopDetected) as caught:
        for chunk in agent("loops", 9).stream(ask(), stream_mode="updates"):
            told += chunk.get("tools", {}).get("messages", [])
    assert caught.value.stops
    assert [message.status for message in told] == ["success"] * 5 + ["error"] * 2
    told = answers(agent("looks", 7).invoke(ask()))
    assert [message.status for message in told] == ["success"] * 5 + ["error"] * 2
    assert "call 6 of look" in str(told[5].content)
    assert {(run.name, run.status, run.reason) for run in guard.runs.list()} == {
        ("loops", "failed", "loop"), ("looks", "completed", None)
    }  # fmt: skip
