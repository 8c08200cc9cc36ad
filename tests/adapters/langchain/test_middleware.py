"""``GuardMiddleware``: the same guard, put into an agent where it is built, with the runs of a wrapped one."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ToolRetryMiddleware
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command

from sagaspan import BudgetExceeded, ConfigurationError, Guard
from sagaspan_langchain import GuardMiddleware
from tests.adapters.langchain.scripts import answers, ask, calls_of, model, model_calls_of, on, states
from tests.adapters.langchain.test_models import Counted
from tests.adapters.langchain.test_shapes import WAYS
from tests.adapters.langchain.test_shapes import _run as run

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

    @tool
    def fail() -> str:
        """Fail."""
        raise ValueError("no")

    return [pay, send, take_back, fail]


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


@pytest.mark.parametrize("way", WAYS)
async def test_an_invocation_is_a_run_of_its_own(guard: Guard, world: World, way: str) -> None:
    """However the agent is invoked: where it fails, what it did is undone, and its requests are that run's."""
    agent = _agent(guard, world, {"pay": {"compensate": "take_back"}}, PAY, ("fail", {}), name="payer")
    with pytest.raises(ValueError, match="no"):
        await run(agent, way)
    assert world == ["pay A", "back from A"]
    (made,) = guard.runs.list()
    assert (made.name, made.status) == ("payer", "compensated")
    assert [call.tool for call in calls_of(guard, made.id)] == ["pay", "fail", "take_back"]
    assert len(model_calls_of(guard, made.id)) == 2


@pytest.mark.parametrize("way", ["invoke", "astream"])
async def test_a_turn_of_a_thread_pauses_and_goes_on(guard: Guard, world: World, way: str) -> None:
    """Its runs are ``THREAD/n``; a pause undoes nothing, new input is the next turn, and a failure undoes only that."""
    policies = {"pay": {"approve": True, "compensate": "take_back"}}
    agent = _agent(guard, world, policies, PAY, checkpointer=InMemorySaver())

    async def go(given: Any) -> None:
        if way == "invoke":
            agent.invoke(given, on("t"))
        else:
            [chunk async for chunk in agent.astream(given, on("t"))]

    await go(ask())
    assert (world, states(guard)) == ([], {"t/1": "paused"})
    await go(Command(resume={"decisions": [{"type": "approve"}]}))
    assert (world, states(guard)) == (["pay A"], {"t/1": "completed"})
    await go(ask("again"))
    edited = {"edited_action": {"name": "fail", "args": {}}}
    with pytest.raises(ValueError, match="no"):
        await go(Command(resume={"decisions": [{"type": "edit", **edited}]}))
    assert (world, states(guard)) == (["pay A"], {"t/1": "completed", "t/2": "failed"})


def test_its_options_are_those_of_wrap(guard: Guard, world: World) -> None:
    """A name, an id and a budget of its runs; wrong ones are refused where they are written."""
    chat = Counted(model="gpt-4o")
    middleware = [GuardMiddleware(guard, name="refunds", run_id="r", budget="0.000001 USD")]
    with pytest.raises(BudgetExceeded):
        create_agent(chat, _tools(world), middleware=middleware).invoke(ask())
    assert [(one.id, one.name, one.reason) for one in guard.runs.list()] == [("r", "refunds", "budget")]
    assert chat.requests == 0
    with pytest.raises(ConfigurationError, match="GuardMiddleware"):
        GuardMiddleware(guard, {"pay": {"efect": "write"}})


def test_as_a_node_it_pauses_with_the_graph_around_it(guard: Guard, world: World) -> None:
    """Nobody guards that one; its agent still goes on with its own run, and none of another task."""
    inner = _agent(guard, world, {"pay": {"approve": True}}, PAY, name="inner")
    graph: Any = StateGraph(MessagesState)
    graph.add_node("inner", inner)
    graph.add_edge(START, "inner")
    outer = graph.compile(checkpointer=InMemorySaver())
    assert "__interrupt__" in outer.invoke(ask(), on("t"))
    (paused,) = guard.runs.list()
    assert (world, paused.status, paused.id.rpartition(":")[0]) == ([], "paused", "t/inner")
    outer.invoke(Command(resume={"decisions": [{"type": "approve"}]}), on("t"))
    assert (world, states(guard)) == (["pay A"], {paused.id: "completed"})


def test_it_guards_its_agent_and_no_other(guard: Guard, world: World) -> None:
    """A graph that is compiled without it stays what it is; one that has it is not wrapped again."""
    agent = _agent(guard, world, None, PAY)
    assert type(agent).__name__ == "CompiledStateGraph"
    with pytest.raises(ConfigurationError, match="guarded already"):
        guard.wrap(agent)
    create_agent(model(PAY), _tools(world)).invoke(ask())
    assert (world, guard.runs.list()) == (["pay A"], [])


def test_where_it_could_not_guard_nothing_runs(guard: Guard, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that was built past it is refused at its first request."""
    middleware = [GuardMiddleware(guard)]
    monkeypatch.setattr(StateGraph, "compile", StateGraph.compile.__wrapped__)  # type: ignore[attr-defined]
    chat = Counted()
    with pytest.raises(ConfigurationError, match="would run unguarded"):
        create_agent(chat, _tools(world), middleware=middleware).invoke(ask())
    assert chat.requests == 0


def test_retries_of_other_middleware_do_not_repeat_a_write(guard: Guard, world: World) -> None:
    """What was done once is answered from the ledger."""
    retry = ToolRetryMiddleware(max_retries=2, initial_delay=0.0, jitter=False)
    agent = _agent(guard, world, {"pay": {"effect": "write"}}, PAY, PAY, others=[retry])
    with guard.run("r", id="r"):
        agent.invoke(ask())
    assert world == ["pay A"]


def test_a_policy_for_a_tool_that_the_agent_does_not_have(guard: Guard, world: World) -> None:
    """It is an error where the agent is built."""
    with pytest.raises(ConfigurationError, match="did you mean pay"):
        _agent(guard, world, {"pya": {"effect": "write"}}, PAY)
