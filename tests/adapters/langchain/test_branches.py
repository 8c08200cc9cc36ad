"""What is a loop where agents ask agents: what each of those side by side asks once is none."""

from __future__ import annotations

import asyncio
import operator
import threading
from typing import Annotated, Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, Send, interrupt

from sagaspan import Guard, LoopDetected
from tests.adapters.langchain.scripts import ask, calls_of, model, on, states

READS = {"tables": {"effect": "read"}}


class State(TypedDict):
    """What came of it."""

    said: Annotated[list[str], operator.add]


@pytest.fixture
def tables() -> BaseTool:
    """A tool that always answers the same."""

    @tool
    def tables() -> str:
        """List the tables."""
        return "a, b"

    return tables


@pytest.mark.parametrize("side_by_side", [True, False])
def test_what_workers_side_by_side_each_ask_once_is_no_loop(guard: Guard, tables: BaseTool, side_by_side: bool) -> None:
    """None of them knows the others' answers; one that is sent off again and again is in a circle all the same."""
    worker = create_agent(model(("tables", {})), [tables])
    graph: Any = StateGraph(State)
    graph.add_node("work", lambda state: {"said": [worker.invoke(ask())["messages"][-1].text]})
    if side_by_side:
        graph.add_conditional_edges(START, lambda state: [Send("work", state)] * 12)
    else:
        graph.add_edge(START, "work")
        graph.add_conditional_edges("work", lambda state: "work" if len(state["said"]) < 12 else "__end__")
    agent = guard.wrap(graph.compile(), run_id="r")
    if side_by_side:
        assert agent.invoke({"said": []}) == {"said": ["done"] * 12}
    else:
        with pytest.raises(LoopDetected):
            agent.invoke({"said": []})
    assert states(guard) == {"r": "completed" if side_by_side else "failed"}


# -- one agent that is asked again and again --------------------------------------------------------------------


def _one_by_one(worker: Any, times: int) -> None:
    for _ in range(times):
        worker.invoke(ask())


def _at_once(worker: Any, times: int) -> None:
    worker.batch([ask()] * times, {"max_concurrency": times})


def _around_in(place: str, work: Any, worker: Any) -> Any:
    """An agent whose code asks ``worker`` as ``work`` does: in a node, in a tool, or all of it at the top."""
    if place == "tool":

        @tool
        def consult() -> str:
            """Ask the worker."""
            work(worker, 12)
            return "done"

        return create_agent(model(("consult", {})), [consult])
    graph: Any = StateGraph(MessagesState)
    graph.add_node("work", lambda state: work(worker, 12))
    graph.add_edge(START, "work")
    return graph.compile()


@pytest.mark.parametrize("place", ["node", "tool"])
@pytest.mark.parametrize("work", [_one_by_one, _at_once])
def test_what_code_asks_of_a_worker_in_turn_is_a_loop(guard: Guard, place: str, work: Any) -> None:
    """An agent that code asks for the same again and again goes in a circle; agents that it asks side by side do not.

    Those side by side are all at work before one of them ends.
    """
    together = threading.Barrier(12, timeout=60)

    @tool
    def tables() -> str:
        """List the tables."""
        if work is _at_once:
            together.wait()
        return "a, b"

    worker = create_agent(model(("tables", {})), [tables])
    agent = guard.wrap(_around_in(place, work, worker), READS, run_id="r")
    if work is _at_once:
        agent.invoke(ask())
    else:
        with pytest.raises(LoopDetected):
            agent.invoke(ask())
    made = [call for call in calls_of(guard, "r") if call.tool == "tables" and str(call.state) == "done"]
    assert len(made) == (12 if work is _at_once else 5)


async def test_workers_that_are_awaited_together_are_side_by_side(guard: Guard) -> None:
    """``gather`` in a node, with more of them than may run at once: the next begins while others are at work."""

    @tool
    async def tables() -> str:
        """List the tables."""
        await asyncio.sleep(0)
        return "a, b"

    worker = create_agent(model(("tables", {})), [tables])
    few = asyncio.Semaphore(4)

    async def one() -> None:
        async with few:
            await worker.ainvoke(ask())

    async def work(state: Any) -> None:
        await asyncio.gather(*(one() for _ in range(12)))

    graph: Any = StateGraph(MessagesState)
    graph.add_node("work", work)
    graph.add_edge(START, "work")
    await guard.wrap(graph.compile(), READS, run_id="r").ainvoke(ask())
    assert len(calls_of(guard, "r")) == 12


def test_an_agent_that_is_invoked_in_turn_in_one_run_is_a_loop(guard: Guard, tables: BaseTool) -> None:
    """Where the agents it asks are numbered anew each time."""
    worker = create_agent(model(("tables", {})), [tables])
    agent = guard.wrap(_around_in("node", lambda worker, _: worker.invoke(ask()), worker), READS)
    with pytest.raises(LoopDetected), guard.run("r", id="r"):
        for _ in range(12):
            agent.invoke(ask())
    assert len([call for call in calls_of(guard, "r") if str(call.state) == "done"]) == 5


@pytest.mark.parametrize("side_by_side", [True, False])
def test_a_resumed_run_knows_the_branches_of_before(guard: Guard, tables: BaseTool, side_by_side: bool) -> None:
    """What workers side by side asked before a pause is no loop after it; what one asked in turn goes on being one."""
    worker = create_agent(model(("tables", {})), [tables])
    graph: Any = StateGraph(State)
    graph.add_node("work", lambda state: {"said": [worker.invoke(ask())["messages"][-1].text]})
    graph.add_node("pause", lambda state: {"said": [interrupt("go on?")] if len(state["said"]) < 7 else []})
    if side_by_side:
        graph.add_conditional_edges(START, lambda state: [Send("work", state)] * 6)
        graph.add_edge("work", "pause")
        graph.add_conditional_edges("pause", lambda state: [Send("work", state)] * 6 * (len(state["said"]) == 7))
    else:
        graph.add_edge(START, "work")
        ways = {5: "pause", 10: "__end__"}
        graph.add_conditional_edges("work", lambda state: ways.get(len(state["said"]), "work"))
        graph.add_edge("pause", "work")
    agent = guard.wrap(graph.compile(checkpointer=InMemorySaver()), READS)
    agent.invoke({"said": []}, on("t"))
    assert states(guard) == {"t/1": "paused"}
    if side_by_side:
        assert len(agent.invoke(Command(resume="yes"), on("t"))["said"]) == 13
        assert len(calls_of(guard, "t/1")) == 12
    else:
        with pytest.raises(LoopDetected):
            agent.invoke(Command(resume="yes"), on("t"))
        assert len([call for call in calls_of(guard, "t/1") if str(call.state) == "done"]) <= 6
