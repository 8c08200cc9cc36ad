"""The functional API: an ``@task`` that returned is over; one that runs again repeats nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from sagaspan import Guard
from tests.adapters.langchain.scripts import ask, on, states

World = list[Any]
UNDECLARED: dict[str, Any] = {}
WRITE_ANEW = {"effect": "write", "repeat": "new"}


@pytest.fixture
def note(world: World) -> BaseTool:
    """A tool that is undeclared: an equal call that somebody means is a call of its own."""

    @tool
    def note(what: int) -> str:
        """Note."""
        world.append(what)
        return f"noted {len(world)}"

    return note


def _entry(note: BaseTool, middle: Callable[[], Any], way: str) -> Any:
    """Notes in a task, does ``middle``, and notes the same in another task and in its own code."""
    if way == "invoke":

        @task
        def notes(what: int) -> str:
            return str(note.invoke({"what": what}))

        @entrypoint(checkpointer=InMemorySaver())
        def entry(given: Any) -> list[str]:
            first = notes(1).result()
            middle()
            return [first, notes(1).result(), str(note.invoke({"what": 1}))]

        return entry

    @task
    async def anotes(what: int) -> str:
        return str(await note.ainvoke({"what": what}))

    @entrypoint(checkpointer=InMemorySaver())
    async def aentry(given: Any) -> list[str]:
        first = await anotes(1)
        middle()
        return [first, await anotes(1), str(await note.ainvoke({"what": 1}))]

    return aentry


async def _invoke(agent: Any, way: str, given: Any) -> Any:
    return agent.invoke(given, on("t")) if way == "invoke" else await agent.ainvoke(given, on("t"))


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
@pytest.mark.parametrize("policy", [UNDECLARED, WRITE_ANEW], ids=["undeclared", "write"])
async def test_what_a_task_did_that_returned_before_a_pause_is_over(
    guard: Guard, world: World, note: BaseTool, way: str, policy: Any
) -> None:
    """LangGraph answers for it, so an equal call after the pause is meant: of another task, or of the code around."""
    agent = guard.wrap(_entry(note, lambda: interrupt("?"), way), {"note": policy})
    await _invoke(agent, way, {})
    assert world == [1]
    assert await _invoke(agent, way, Command(resume="yes")) == ["noted 1", "noted 2", "noted 3"]
    assert (world, states(guard)) == ([1, 1, 1], {"t/1": "completed"})


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
def test_so_it_is_after_a_crash(guard: Guard, world: World, note: BaseTool, way: str) -> None:
    """What the task returned is saved beside the checkpoint before the process dies."""
    incarnations = count()

    def dies_once() -> None:
        if next(incarnations) == 0:
            raise KeyboardInterrupt

    agent = guard.wrap(_entry(note, dies_once, way))
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(_invoke(agent, way, {}))
    assert (world, states(guard)) == ([1], {"t/1": "held"})
    assert asyncio.run(_invoke(agent, way, None)) == ["noted 1", "noted 2", "noted 3"]
    assert (world, states(guard)) == ([1, 1, 1], {"t/1": "completed"})


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_what_a_task_did_that_paused_is_answered_once(
    guard: Guard, world: World, note: BaseTool, way: str
) -> None:
    """It runs again: what it did before its question is on record, and an equal call after that is a new one."""

    def works() -> list[str]:
        before = str(note.invoke({"what": 1}))
        interrupt("?")
        return [before, str(note.invoke({"what": 1}))]

    if way == "invoke":
        asks = task(works)

        @entrypoint(checkpointer=InMemorySaver())
        def entry(given: Any) -> list[str]:
            own = str(note.invoke({"what": 1}))
            return [own, *asks().result(), str(note.invoke({"what": 1}))]

        agent = guard.wrap(entry)
    else:

        @task
        async def aasks() -> list[str]:
            return await asyncio.to_thread(works)

        @entrypoint(checkpointer=InMemorySaver())
        async def aentry(given: Any) -> list[str]:
            own = str(await note.ainvoke({"what": 1}))
            return [own, *await aasks(), str(await note.ainvoke({"what": 1}))]

        agent = guard.wrap(aentry)
    await _invoke(agent, way, {})
    assert world == [1, 1]
    assert await _invoke(agent, way, Command(resume="yes")) == ["noted 1", "noted 2", "noted 3", "noted 4"]
    assert (world, states(guard)) == ([1, 1, 1, 1], {"t/1": "completed"})


def test_a_task_within_a_node_that_returned_is_over(guard: Guard, world: World, note: BaseTool) -> None:
    """As in an entry point: the node runs again, and is answered with what its task returned."""

    @task
    def notes() -> str:
        return str(note.invoke({"what": 1}))

    def node(state: Any) -> Any:
        notes().result()
        interrupt("?")
        note.invoke({"what": 1})

    graph: Any = StateGraph(MessagesState)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    agent = guard.wrap(graph.compile(checkpointer=InMemorySaver()))
    agent.invoke(ask(), on("t"))
    agent.invoke(Command(resume="yes"), on("t"))
    assert (world, states(guard)) == ([1, 1], {"t/1": "completed"})


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_so_is_one_of_an_entry_point_within_a_node(guard: Guard, world: World, note: BaseTool, way: str) -> None:
    """It goes on from a checkpoint of its own, beside which stands what its task returned."""
    inner = _entry(note, lambda: interrupt("?"), way)
    inner.checkpointer = None
    graph: Any = StateGraph(MessagesState)

    async def awork(state: Any) -> None:
        await inner.ainvoke({})

    graph.add_node("works", awork if way == "ainvoke" else lambda state: inner.invoke({}) and None)
    graph.add_edge(START, "works")
    agent = guard.wrap(graph.compile(checkpointer=InMemorySaver()))
    await _invoke(agent, way, ask())
    await _invoke(agent, way, Command(resume="yes"))
    assert (world, states(guard)) == ([1, 1, 1], {"t/1": "completed"})
