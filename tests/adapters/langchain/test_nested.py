"""Guarded agents within a graph that nobody guards: a run for each task of that, and each goes on with its own."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, RetryPolicy, Send, interrupt

from sagaspan import Guard, RunClosed
from tests.adapters.langchain.scripts import ask, calls_of, model, on, states

World = list[Any]
APPROVED = {"decisions": [{"type": "approve"}]}


class State(TypedDict):
    """Whom to pay, and what came of it."""

    to: list[str]
    said: Annotated[list[str], operator.add]


class Declined(Exception):
    """No."""


def _payer(guard: Guard, world: World, *to: str, **policy: Any) -> Any:
    """A guarded agent that pays each of ``to``, one after the other; who is called "nobody" is refused."""

    @tool
    def pay(to: str) -> str:
        """Pay."""
        if to == "nobody":
            raise Declined(to)
        world.append(f"pay {to}")
        return f"paid {to}"

    agent = create_agent(model(*(("pay", {"to": one}) for one in to)), [pay], name="payer")
    return guard.wrap(agent, {"pay": policy})


def _around(work: Any, *, fans_out: bool = False, **options: Any) -> Any:
    """An unguarded graph of one node, or of one for each of ``to`` side by side."""
    graph: Any = StateGraph(State)
    graph.add_node("work", work, **options)
    if fans_out:
        graph.add_conditional_edges(START, lambda state: [Send("work", one) for one in state["to"]])
    else:
        graph.add_edge(START, "work")
    return graph.compile(checkpointer=InMemorySaver())


def test_tasks_side_by_side_are_runs_of_their_own(guard: Guard, world: World) -> None:
    """Each pauses for itself, and an answer to one is not for the other."""
    agents = {one: _payer(guard, world, one, approve=True, effect="write") for one in ("A", "B")}

    def work(to: str) -> Any:
        return {"said": [str(agents[to].invoke(ask())["messages"][-2].content)]}

    outer = _around(work, fans_out=True)
    asked = outer.invoke({"to": ["A", "B"], "said": []}, on("t"))["__interrupt__"]
    assert [*states(guard).values()] == ["paused", "paused"]
    by_person = {one.value["action_requests"][0]["args"]["to"]: one.id for one in asked}
    outer.invoke(Command(resume={by_person["B"]: APPROVED}), on("t"))
    assert (world, sorted(states(guard).values())) == (["pay B"], ["completed", "paused"])
    assert outer.invoke(Command(resume={by_person["A"]: APPROVED}), on("t"))["said"] == ["paid A", "paid B"]
    assert (world, [*states(guard).values()]) == (["pay B", "pay A"], ["completed", "completed"])


async def test_agents_that_a_node_asks_one_after_the_other(guard: Guard, world: World) -> None:
    """The node runs again as a whole; the first is done by then, and only the second goes on."""
    first, second = (_payer(guard, world, one, approve=True, effect="write") for one in ("A", "B"))

    async def work(state: Any) -> Any:
        await first.ainvoke(ask())
        await second.ainvoke(ask())
        return {"said": ["done"]}

    outer = _around(work)
    await outer.ainvoke({"to": [], "said": []}, on("t"))
    await outer.ainvoke(Command(resume=APPROVED), on("t"))
    assert (world, sorted(states(guard).values())) == (["pay A"], ["completed", "paused"])
    await outer.ainvoke(Command(resume=APPROVED), on("t"))
    assert (world, [*states(guard).values()]) == (["pay A", "pay B"], ["completed", "completed"])


@pytest.mark.parametrize("guards", ["the agent", "the graph"])
def test_an_agent_that_asks_twice_gets_both_answers(guard: Guard, world: World, guards: str) -> None:
    """The second question comes where LangGraph still shows the answer to the first: it is not taken for its own."""

    @tool
    def pay(to: str) -> str:
        """Pay."""
        world.append(f"pay {to}")
        return f"paid {to}"

    policies = {"pay": {"approve": True, "effect": "write"}}
    inner: Any = create_agent(model(("pay", {"to": "A"}), ("pay", {"to": "B"})), [pay])
    inner = guard.wrap(inner, policies) if guards == "the agent" else inner
    outer = _around(lambda state: {"said": [str(inner.invoke(ask())["messages"][-1].content)]})
    outer = guard.wrap(outer, policies) if guards == "the graph" else outer
    outer.invoke({"to": [], "said": []}, on("t"))
    (asked,) = outer.invoke(Command(resume=APPROVED), on("t"))["__interrupt__"]
    assert (asked.value["action_requests"][0]["args"], world) == ({"to": "B"}, ["pay A"])
    assert outer.invoke(Command(resume=APPROVED), on("t"))["said"] == ["done"]
    assert (world, [*states(guard).values()]) == (["pay A", "pay B"], ["completed"])


def test_an_intended_repeat_after_a_pause_is_made(guard: Guard, world: World) -> None:
    """What the inner checkpoint answers is not asked again, so an equal call is a new one."""
    inner = _payer(guard, world, "A", "nobody?", "A", approve="to == 'nobody?'")
    outer = _around(lambda state: {"said": [str(len(inner.invoke(ask())["messages"]))]})
    outer.invoke({"to": [], "said": []}, on("t"))
    outer.invoke(Command(resume=APPROVED), on("t"))
    assert world == ["pay A", "pay nobody?", "pay A"]
    (run,) = guard.runs.list()
    assert len(calls_of(guard, run.id)) == 3


def test_the_next_turn_is_a_run_of_its_own(guard: Guard, world: World) -> None:
    """It is another task of the graph around it, also where that has paused before it came to the agent."""
    inner = _payer(guard, world, "A", effect="write")

    def work(state: Any) -> Any:
        interrupt("sure?")
        inner.invoke(ask())
        return {"said": ["done"]}

    outer = _around(work)
    for turn in (1, 2):
        outer.invoke({"to": [], "said": []}, on("t"))
        outer.invoke(Command(resume="yes"), on("t"))
        assert (world, [*states(guard).values()]) == (["pay A"] * turn, ["completed"] * turn)


def test_what_was_undone_is_not_gone_on_with(guard: Guard, world: World) -> None:
    """Its checkpoint stands behind that. A retry policy around it begins from the beginning, in a new run."""
    inner = _payer(guard, world, "A", "nobody", compensate=lambda to: world.append(f"back from {to}"))
    policy = RetryPolicy(max_attempts=2, initial_interval=0.0, retry_on=Declined)
    outer = _around(lambda state: inner.invoke(ask()), retry_policy=policy)
    with pytest.raises(Declined):
        outer.invoke({"to": [], "said": []}, on("t"))
    assert (world, [*states(guard).values()]) == (["pay A", "back from A"] * 2, ["compensated"] * 2)
    with pytest.raises(RunClosed):
        outer.invoke(None, on("t"))
    assert world == ["pay A", "back from A"] * 2
