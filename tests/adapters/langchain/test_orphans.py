"""What an agent that goes on does not ask for again: an orphan, unless its checkpoint answers for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt

from sagaspan import Guard
from tests.adapters.langchain.scripts import Step, ask, model, on

World = list[Any]


@pytest.fixture
def tools(world: World) -> list[BaseTool]:
    """A booking, something undeclared, and a question that a person answers."""

    @tool
    def book(city: str) -> str:
        """Book."""
        world.append(f"book {city}")
        return city

    @tool
    def look(city: str) -> str:
        """Look: undeclared, so an equal call is a new one."""
        world.append(f"look {city}")
        return str(len(world))

    @tool
    def confirm(question: str) -> str:
        """Ask a person."""
        return str(interrupt(question))

    return [book, look, confirm]


ASK: Step = ("confirm", {"question": "sure?"})


def policies(world: World) -> dict[str, Any]:
    """Bookings can be cancelled."""
    return {"book": {"compensate": lambda city: world.append(f"cancel {city}")}}


def test_an_agent_that_takes_another_path_leaves_orphans(guard: Guard, tools: list[BaseTool], world: World) -> None:
    """Without a checkpoint the whole agent runs again, and its model may decide otherwise."""

    def run_with(*steps: Any, pause: bool) -> Any:
        agent = guard.wrap(create_agent(model(*steps), tools), policies(world))
        with guard.run("trip", id="a", orphans="compensate") as run:
            agent.invoke(ask())
            if pause:
                run.pause()
        return run

    run_with(("book", {"city": "Rome"}), ("look", {"city": "Rome"}), pause=True)
    run = run_with(("book", {"city": "Oslo"}), pause=False)
    assert [call.args for call in run.orphans] == [{"city": "Rome"}]
    assert world == ["book Rome", "look Rome", "book Oslo", "cancel Rome"]


@pytest.mark.parametrize("steps", [
    (("book", {"city": "Rome"}), ASK),
    ([("book", {"city": "Rome"}), ASK],),
    ([("book", {"city": "Rome"}), ASK], ("book", {"city": "Oslo"})),
], ids=["before", "beside", "and-on"])  # fmt: skip
def test_what_the_checkpoint_answers_is_none(
    guard: Guard, tools: list[BaseTool], world: World, steps: Any, warnings_of_sagaspan: Callable[[], list[str]]
) -> None:
    """Neither what was done in steps before the one that was interrupted, nor what had ended beside it in that step."""
    agent = guard.wrap(create_agent(model(*steps), tools, checkpointer=InMemorySaver()), policies(world))
    agent.invoke(ask(), on("t"))
    agent.invoke(Command(resume="yes"), on("t"))
    info = guard.runs.get("t/1")
    assert (info.status, info.orphans, warnings_of_sagaspan()) == ("completed", (), [])
    assert world[0] == "book Rome"
    assert not [what for what in world if what.startswith("cancel")]


def test_nor_what_a_graph_within_had_done(
    guard: Guard, tools: list[BaseTool], world: World, warnings_of_sagaspan: Callable[[], list[str]]
) -> None:
    """A subgraph goes on from a checkpoint of its own, whatever of it the outer state has."""
    inner = create_agent(model(("book", {"city": "Rome"}), ASK, ("book", {"city": "Oslo"})), tools)
    graph: Any = StateGraph(MessagesState)
    graph.add_node("inner", inner)
    graph.add_edge(START, "inner")
    agent = guard.wrap(graph.compile(checkpointer=InMemorySaver()), policies(world))
    agent.invoke(ask(), on("t"))
    assert world == ["book Rome"]
    agent.invoke(Command(resume="yes"), on("t"))
    info = guard.runs.get("t/1")
    assert (info.status, info.orphans, warnings_of_sagaspan()) == ("completed", (), [])
    assert world == ["book Rome", "book Oslo"]


def test_nor_what_a_node_beside_had_done(
    guard: Guard, tools: list[BaseTool], world: World, warnings_of_sagaspan: Callable[[], list[str]]
) -> None:
    """A node of one's own that ended before its neighbour asked is not run again."""
    book = guard.tool("reserve", effect="write")(lambda: world.append("reserve"))
    graph: Any = StateGraph(MessagesState)
    graph.add_node("reserves", lambda _: book() or {"messages": []})
    graph.add_node("asks", lambda _: {"messages": [("user", interrupt("sure?"))]})
    graph.add_edge(START, "reserves")
    graph.add_edge(START, "asks")
    graph.add_node("tools", ToolNode(tools))
    agent = guard.wrap(graph.compile(checkpointer=InMemorySaver()))
    agent.invoke(ask(), on("t"))
    agent.invoke(Command(resume="yes"), on("t"))
    info = guard.runs.get("t/1")
    assert (info.status, info.orphans, warnings_of_sagaspan(), world) == ("completed", (), [], ["reserve"])


@pytest.mark.parametrize("way", ["a thread", "a pool"])
def test_nor_what_a_thread_of_a_node_beside_had_done(
    guard: Guard, tools: list[BaseTool], world: World, warnings_of_sagaspan: Callable[[], list[str]], way: str
) -> None:
    """A thread without a context does not know in which task it is, so nothing on record says that this had ended."""

    def books(_: Any) -> dict[str, Any]:
        if way == "a thread":
            thread = threading.Thread(target=tools[0].invoke, args=({"city": "Rome"},))
            thread.start()
            thread.join()
        else:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(tools[0].invoke, {"city": "Rome"}).result()
        return {"messages": []}

    graph: Any = StateGraph(MessagesState)
    graph.add_node("books", books)
    graph.add_node("asks", lambda _: {"messages": [("user", interrupt("sure?"))]})
    graph.add_edge(START, "books")
    graph.add_edge(START, "asks")
    agent = guard.wrap(graph.compile(checkpointer=InMemorySaver()), policies(world))
    agent.invoke(ask(), on("t"))
    agent.invoke(Command(resume="yes"), on("t"))
    info = guard.runs.get("t/1")
    assert (info.status, info.orphans, warnings_of_sagaspan(), world) == ("completed", (), [], ["book Rome"])


def test_a_call_that_ended_beside_a_question_is_not_the_next_equal_one(
    guard: Guard, tools: list[BaseTool], world: World
) -> None:
    """It is saved beside the checkpoint and not asked again, so an equal call later is a new call."""
    steps = [("look", {"city": "Rome"}), ASK], ("look", {"city": "Rome"})
    agent = guard.wrap(create_agent(model(*steps), tools, checkpointer=InMemorySaver()), policies(world))
    agent.invoke(ask(), on("t"))
    agent.invoke(Command(resume="yes"), on("t"))
    assert world == ["look Rome", "look Rome"]
