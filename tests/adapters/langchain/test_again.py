"""A task that LangGraph runs again repeats nothing; what the model means twice is done twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, RetryPolicy, interrupt

from sagaspan import Guard, RunInProgress
from tests.adapters.langchain.scripts import ask, calls_of, model, on, states

World = list[Any]
LOOK = ("look", {"x": 1})


class Shaky:
    """A graph of one's own: all calls of a message are one task, which runs again if one of its tools fails."""

    def __init__(self, world: World, *steps: Any, failures: int = 0) -> None:
        self.failures = failures

        @tool
        def look(x: int) -> str:
            """Look: undeclared, so an equal call of the model's is a new call."""
            world.append(x)
            return str(x)

        @tool
        def shake() -> str:
            """Fail a few times."""
            self.failures -= 1
            if self.failures >= 0:
                raise ConnectionError("away")
            return "ok"

        @tool
        def confirm() -> str:
            """Ask a person."""
            return str(interrupt("sure?"))

        chat = model(*steps)
        graph: Any = StateGraph(MessagesState)
        graph.add_node("model", lambda state: {"messages": [chat.invoke(state["messages"])]})
        again = RetryPolicy(max_attempts=3, initial_interval=0.0, jitter=False, retry_on=ConnectionError)
        node = ToolNode([look, shake, confirm], handle_tool_errors=False)
        graph.add_node("tools", node, retry_policy=again)
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else "__end__")
        graph.add_edge("tools", "model")
        self.graph = graph.compile(checkpointer=InMemorySaver())


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_a_retry_policy_repeats_nothing_that_was_done(guard: Guard, world: World, way: str) -> None:
    """Two equal calls of one message are two; the attempts of their task after that do neither again."""
    agent = guard.wrap(Shaky(world, [LOOK, LOOK, ("shake", {})], LOOK, failures=2).graph)
    agent.invoke(ask(), on("t")) if way == "invoke" else await agent.ainvoke(ask(), on("t"))
    assert world == [1, 1, 1]  # the third is that of the next message
    assert [call.tool for call in calls_of(guard, "t/1")].count("look") == 3
    assert states(guard) == {"t/1": "completed"}


def test_an_answer_within_one_block_repeats_nothing(guard: Guard, world: World) -> None:
    """The task that asked runs again as a whole, in the same run: what was done beside the question is not."""
    agent = guard.wrap(Shaky(world, [LOOK, LOOK, ("confirm", {})], LOOK).graph)
    with guard.run("job", id="job"):
        agent.invoke(ask(), on("t"))
        assert world == [1, 1]
        agent.invoke(Command(resume="yes"), on("t"))
    assert world == [1, 1, 1]


def test_nor_does_one_in_another_block(guard: Guard, world: World) -> None:
    """Nor in a resume, where nobody remembers."""
    agent = guard.wrap(Shaky(world, [LOOK, LOOK, ("confirm", {})], LOOK).graph)
    agent.invoke(ask(), on("t"))
    agent.invoke(Command(resume="yes"), on("t"))
    assert world == [1, 1, 1]


async def test_two_answers_at_once_do_it_once(guard: Guard, world: World) -> None:
    """The second finds the run in the hands of the first."""
    agent = guard.wrap(Shaky(world, [LOOK, ("confirm", {})]).graph)
    await agent.ainvoke(ask(), on("t"))
    resumes = [agent.ainvoke(Command(resume="yes"), on("t")) for _ in range(2)]
    outcomes = await asyncio.gather(*resumes, return_exceptions=True)
    assert sum(isinstance(outcome, RunInProgress) for outcome in outcomes) == 1
    assert (world, states(guard)) == ([1], {"t/1": "completed"})
