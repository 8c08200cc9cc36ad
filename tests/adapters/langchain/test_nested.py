"""Guarded agents within a graph that nobody guards: a run for each task of that, and each goes on with its own."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain_core.tools import BaseTool, tool
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


def _paying(world: World) -> BaseTool:
    @tool
    def pay(to: str) -> str:
        """Pay."""
        if to == "nobody":
            raise Declined(to)
        world.append(f"pay {to}")
        return f"paid {to}"

    return pay


def _payer(guard: Guard, world: World, *to: str, **policy: Any) -> Any:
    """A guarded agent that pays each of ``to``, one after the other; who is called "nobody" is refused."""
    agent = create_agent(model(*(("pay", {"to": one}) for one in to)), [_paying(world)], name="payer")
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


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
@pytest.mark.parametrize("guards", ["the agent", "the graph"])
async def test_an_intended_repeat_after_a_pause_is_made(guard: Guard, world: World, guards: str, way: str) -> None:
    """What the inner checkpoint answers is not asked again, so an equal call is a new one."""
    tools = [_paying(world)]
    inner: Any = create_agent(model(*(("pay", {"to": one}) for one in ("A", "nobody?", "A"))), tools)
    policies = {"pay": {"approve": "to == 'nobody?'"}}
    inner = guard.wrap(inner, policies) if guards == "the agent" else inner

    async def awork(_: Any) -> Any:
        return {"said": [str(len((await inner.ainvoke(ask()))["messages"]))]}

    def work(_: Any) -> Any:
        return {"said": [str(len(inner.invoke(ask())["messages"]))]}

    outer = _around(work if way == "invoke" else awork)
    outer = guard.wrap(outer, policies) if guards == "the graph" else outer
    for given in ({"to": [], "said": []}, Command(resume=APPROVED)):
        outer.invoke(given, on("t")) if way == "invoke" else await outer.ainvoke(given, on("t"))
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


@pytest.mark.parametrize("within", ["as a node", "called by one"])
@pytest.mark.parametrize("blocks", [0, 1, 2])
def test_what_earlier_steps_of_a_graph_within_had_done_is_over(
    guard: Guard, world: World, within: str, blocks: int
) -> None:
    """An equal undeclared call of a later step is a new one, and what the paused step had done is answered."""

    @tool
    def note(what: int) -> str:
        """Note."""
        world.append(what)
        return "noted"

    def ask_in_between(state: Any) -> None:
        note.invoke({"what": 2})
        interrupt("?")
        note.invoke({"what": 1})

    steps = {"a": lambda state: note.invoke({"what": 1}) and None, "b": ask_in_between}
    steps["c"] = steps["a"]
    inner = _chain(steps)
    around = inner if within == "as a node" else lambda state: inner.invoke(state) and None
    agent = guard.wrap(_chain({"inner": around}, InMemorySaver()))

    def go() -> None:
        agent.invoke({"to": [], "said": []}, on("t"))
        agent.invoke(Command(resume="yes"), on("t"))

    if blocks == 1:
        with guard.run("r", id="r"):
            go()
    elif blocks == 2:
        with guard.run("r", id="r"):
            agent.invoke({"to": [], "said": []}, on("t"))
        with guard.run("r", id="r"):
            agent.invoke(Command(resume="yes"), on("t"))
    else:
        go()
    assert world == [1, 2, 1, 1]


def _chain(steps: dict[str, Any], checkpointer: Any = None) -> Any:
    graph: Any = StateGraph(State)
    for before, (name, step) in zip([START, *steps], steps.items(), strict=False):
        graph.add_node(name, step)
        graph.add_edge(before, name)
    return graph.compile(checkpointer=checkpointer)
