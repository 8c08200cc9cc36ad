"""``GuardMiddleware``: the same guard, put into an agent where it is built."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ToolRetryMiddleware
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from sagaspan import BudgetExceeded, ConfigurationError, Guard
from sagaspan_langchain import GuardMiddleware
from tests.adapters.langchain.scripts import answers, ask, calls_of, model, model_calls_of, on
from tests.adapters.langchain.test_models import Counted

World = list[Any]
PAY = ("pay", {"to": "A"})


def _tools(world: World) -> list[Any]:
    @tool
    def pay(to: str) -> str:
        """Pay."""
        world.append(f"pay {to}")
        return f"paid {to}"

    @tool
    async def send(to: str) -> str:
        """Send."""
        world.append(f"send {to}")
        return "sent"

    @tool
    def take_back(to: str) -> str:
        """Take a payment back."""
        world.append(f"back from {to}")
        return "ok"

    return [pay, send, take_back]


def _agent(guard: Guard, world: World, policies: Any, *steps: Any, **options: Any) -> Any:
    others = options.pop("others", [])
    middleware = [*others, GuardMiddleware(guard, policies)]
    return create_agent(options.pop("chat", model(*steps)), _tools(world), middleware=middleware, **options)


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_its_steps_belong_to_the_run_in_force(guard: Guard, world: World, way: str) -> None:
    """They are recorded, and undone with it, by a tool of the agent too."""
    agent = _agent(guard, world, {"pay": {"compensate": "take_back"}}, PAY)
    with pytest.raises(ValueError, match="later"):
        async with guard.run("r", id="r"):
            agent.invoke(ask()) if way == "invoke" else await agent.ainvoke(ask())
            raise ValueError("later")
    assert world == ["pay A", "back from A"]
    assert calls_of(guard, "r")[0].tool == "pay"
    assert len(model_calls_of(guard, "r")) == 2


async def test_an_awaited_tool(guard: Guard, world: World) -> None:
    """Tools that are only asynchronous run alike."""
    agent = _agent(guard, world, None, ("send", {"to": "A"}))
    async with guard.run("r", id="r"):
        (told,) = answers(await agent.ainvoke(ask()))
    assert (told.text, world) == ("sent", ["send A"])
    assert [call.tool for call in calls_of(guard, "r")] == ["send"]


def test_the_budget_of_the_run_holds_for_its_model(guard: Guard, world: World) -> None:
    """Nothing is sent that it cannot pay for."""
    chat = Counted(model="gpt-4o")
    agent = _agent(guard, world, None, chat=chat)
    with pytest.raises(BudgetExceeded), guard.run("r", budget="0.000001 USD"):
        agent.invoke(ask())
    assert chat.requests == 0


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
@pytest.mark.parametrize("decision", ["approve", "reject", "edit"])
async def test_approvals_pause_the_agent(guard: Guard, world: World, way: str, decision: str) -> None:
    """Under a checkpointer it asks through ``interrupt()``, as a wrapped agent does."""
    agent = _agent(guard, world, {"pay": {"approve": True}}, PAY, checkpointer=InMemorySaver())

    async def go(given: Any) -> Any:
        async with guard.run("r", id="r", nested=False) as run:
            output = agent.invoke(given, on("t")) if way == "invoke" else await agent.ainvoke(given, on("t"))
            if "__interrupt__" in output:
                run.pause()
            return output

    assert "__interrupt__" in await go(ask())
    assert world == []
    edited = {"edited_action": {"name": "take_back", "args": {"to": "B"}}} if decision == "edit" else {}
    output = await go(Command(resume={"decisions": [{"type": decision, **edited}]}))
    (called,) = [call["name"] for one in output["messages"] for call in getattr(one, "tool_calls", ())]
    assert called == ("take_back" if decision == "edit" else "pay")
    assert world == {"approve": ["pay A"], "reject": [], "edit": ["back from B"]}[decision]


def test_retries_of_other_middleware_do_not_repeat_a_write(guard: Guard, world: World) -> None:
    """What was done once is answered from the ledger."""
    retry = ToolRetryMiddleware(max_retries=2, initial_delay=0.0, jitter=False)
    agent = _agent(guard, world, {"pay": {"effect": "write"}}, PAY, PAY, others=[retry])
    with guard.run("r", id="r"):
        agent.invoke(ask())
    assert world == ["pay A"]


def test_a_policy_for_a_tool_that_the_agent_does_not_have(guard: Guard, world: World) -> None:
    """It is an error before the first request."""
    chat = Counted()
    with pytest.raises(ConfigurationError, match="did you mean pay"):
        _agent(guard, world, {"pya": {"effect": "write"}}, chat=chat).invoke(ask())
    assert chat.requests == 0
