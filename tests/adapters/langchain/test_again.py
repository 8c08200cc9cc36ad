"""A task that LangGraph runs again repeats nothing; what the model means twice is done twice."""

from __future__ import annotations

import asyncio
import threading
from itertools import count
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.tools import BaseTool, tool
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


# -- what steps before a pause had done ------------------------------------------------------------------------


@pytest.fixture
def look(world: World) -> BaseTool:
    """A tool that is undeclared: an equal call that somebody means is a call of its own."""

    @tool
    def look(x: int) -> str:
        """Look."""
        world.append(x)
        return str(x)

    return look


def _in_node(look: BaseTool) -> Any:
    return lambda state: look.invoke({"x": 1}) and None


def _in_worker(look: BaseTool) -> Any:
    worker = create_agent(model(LOOK), [look])
    return lambda state: worker.invoke(ask()) and None


@pytest.mark.parametrize("makes", [_in_node, _in_worker])
def test_what_code_means_again_after_a_pause_is_done_again(
    guard: Guard, world: World, look: BaseTool, makes: Any
) -> None:
    """No message of the checkpoint tells of it; still its step had ended, and is not done again."""
    graph: Any = StateGraph(MessagesState)
    graph.add_sequence(
        [("first", makes(look)), ("asks", lambda state: interrupt("?") and None), ("again", makes(look))]
    )
    graph.add_edge(START, "first")
    agent = guard.wrap(graph.compile(checkpointer=InMemorySaver()))
    agent.invoke(ask(), on("t"))
    assert world == [1]
    agent.invoke(Command(resume="yes"), on("t"))
    assert world == [1, 1]


@pytest.mark.parametrize("makes", [_in_node, _in_worker])
def test_what_the_paused_step_had_done_is_not(guard: Guard, world: World, look: BaseTool, makes: Any) -> None:
    """Its node runs again as a whole, also where a person has changed the state meanwhile."""
    made = makes(look)
    graph: Any = StateGraph(MessagesState)
    graph.add_sequence(
        [("first", lambda state: None), ("asks", lambda state: made(state) or (interrupt("?") and None))]
    )
    graph.add_edge(START, "first")
    agent = guard.wrap(graph.compile(checkpointer=InMemorySaver()))
    agent.invoke(ask(), on("t"))
    agent.update_state(on("t"), {"messages": [("user", "hurry")]}, as_node="first")
    agent.invoke(None, on("t"))
    agent.invoke(Command(resume="yes"), on("t"))
    assert (world, states(guard)) == ([1], {"t/1": "completed"})


@pytest.mark.parametrize("makes", [_in_node, _in_worker])
@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_a_resume_repeats_nothing_whenever_the_checkpoint_was_saved(
    guard: Guard, world: World, look: BaseTool, makes: Any, way: str, durability: str
) -> None:
    """With ``durability="exit"`` the time of a checkpoint is later than the calls of the step that runs again."""
    made = makes(look)

    def asks(state: Any) -> None:
        made(state)
        interrupt("?")

    steps: list[tuple[str, Any]] = [("first", made), ("asks", asks), ("again", made)]
    if way == "ainvoke":
        steps = [(name, _awaited(work)) for name, work in steps]
    graph: Any = StateGraph(MessagesState)
    graph.add_sequence(steps)
    graph.add_edge(START, "first")
    agent = guard.wrap(graph.compile(checkpointer=InMemorySaver()))

    async def go(given: Any) -> None:
        options: dict[str, Any] = {"durability": durability}
        if way == "invoke":
            agent.invoke(given, on("t"), **options)
        else:
            await agent.ainvoke(given, on("t"), **options)

    await go(ask())
    assert (world, states(guard)) == ([1, 1], {"t/1": "paused"})
    await go(Command(resume="yes"))
    assert (world, states(guard)) == ([1, 1, 1], {"t/1": "completed"})


def test_what_is_not_asked_for_again_is_an_orphan_whenever_the_checkpoint_was_saved(guard: Guard, world: World) -> None:
    """A write of the step that runs again is no answer of the checkpoint, though that was saved later."""

    @tool
    def pay(to: str) -> str:
        """Pay."""
        world.append(to)
        return "paid"

    customers = iter("AB")

    def asks(state: Any) -> None:
        pay.invoke({"to": next(customers)})
        interrupt("?")

    graph: Any = StateGraph(MessagesState)
    graph.add_node("asks", asks)
    graph.add_edge(START, "asks")
    agent = guard.wrap(graph.compile(checkpointer=InMemorySaver()), {"pay": {"effect": "write"}})
    for given in (ask(), Command(resume="yes")):
        with guard.run("job", id="job") as run:
            agent.invoke(given, on("t"), durability="exit")
    assert (world, [call.args for call in run.orphans]) == (["A", "B"], [{"to": "A"}])


# -- what tasks beside the one that paused had done ------------------------------------------------------------


def _by_worker_without_memory(look: BaseTool) -> Any:
    worker = create_agent(model(LOOK), [look], checkpointer=False)
    return lambda state: worker.invoke(ask()) and None


def _awaited(makes: Any) -> Any:
    async def node(state: Any) -> None:
        await asyncio.to_thread(makes, state)

    return node


def _beside(looks: Any, asks: Any, *, later: Any, saver: Any) -> Any:
    """``looks`` and ``asks`` side by side in one step, and ``later`` after both."""
    graph: Any = StateGraph(MessagesState)
    graph.add_node("looks", looks)
    graph.add_node("asks", asks)
    graph.add_node("later", later)
    graph.add_edge(START, "looks")
    graph.add_edge(START, "asks")
    graph.add_edge(["looks", "asks"], "later")
    return graph.compile(checkpointer=saver)


def _asks(state: Any) -> None:
    interrupt("?")


@pytest.mark.parametrize("makes", [_in_node, _in_worker, _by_worker_without_memory])
@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
@pytest.mark.parametrize("policy", [{}, {"effect": "write", "repeat": "new"}], ids=["undeclared", "write"])
async def test_what_a_task_beside_a_question_had_done_is_over(
    guard: Guard, world: World, look: BaseTool, makes: Any, way: str, policy: Any
) -> None:
    """It is saved beside the checkpoint, and not done again: an equal call of a later step is meant."""
    make = makes(look) if way == "invoke" else _awaited(makes(look))
    agent = guard.wrap(_beside(make, _asks, later=make, saver=InMemorySaver()), {"look": policy})
    for given in (ask(), Command(resume="yes")):
        agent.invoke(given, on("t")) if way == "invoke" else await agent.ainvoke(given, on("t"))
    assert (world, states(guard)) == ([1, 1], {"t/1": "completed"})


@pytest.mark.parametrize("makes", [_in_node, _in_worker])
def test_what_asks_may_mean_it_too(guard: Guard, world: World, look: BaseTool, makes: Any) -> None:
    """What the other task had done is no answer for the one that asked and calls the same after that."""
    made = makes(look)
    agent = guard.wrap(
        _beside(made, lambda state: _asks(state) or made(state), later=lambda state: None, saver=InMemorySaver())
    )
    agent.invoke(ask(), on("t"))
    agent.invoke(Command(resume="yes"), on("t"))
    assert (world, states(guard)) == ([1, 1], {"t/1": "completed"})


@pytest.mark.parametrize("first", ["looks", "asks"])
def test_the_task_that_runs_again_is_answered_with_its_own(guard: Guard, world: World, first: str) -> None:
    """Whichever of the two called first: what the one that asked had done is on record, and not done again."""
    begun, got = threading.Event(), []

    @tool
    def draw() -> str:
        """Draw a number: undeclared."""
        world.append(len(world))
        return str(world[-1])

    def looks(state: Any) -> None:
        _ = first == "looks" or begun.wait(60)
        draw.invoke({})
        begun.set()

    def asks(state: Any) -> None:
        _ = first == "asks" or begun.wait(60)
        got.append(draw.invoke({}))
        begun.set()
        _asks(state)

    agent = guard.wrap(_beside(looks, asks, later=lambda state: draw.invoke({}) and None, saver=InMemorySaver()))
    agent.invoke(ask(), on("t"))
    agent.invoke(Command(resume="yes"), on("t"))
    own = "0" if first == "asks" else "1"
    assert (got, world, states(guard)) == ([own, own], [0, 1, 2], {"t/1": "completed"})


def test_a_crash_beside_a_task_that_ended_repeats_nothing_else(guard: Guard, world: World, look: BaseTool) -> None:
    """A task that failed runs again, the other does not: of the two only the first is answered from the record."""
    looked, incarnations = threading.Event(), count()

    def looks(state: Any) -> None:
        look.invoke({"x": 1})
        looked.set()

    def asks(state: Any) -> None:
        look.invoke({"x": 1})
        look.invoke({"x": 1})
        if next(incarnations) == 0:
            looked.wait(60)
            raise KeyboardInterrupt
        look.invoke({"x": 1})

    agent = guard.wrap(_beside(looks, asks, later=_in_node(look), saver=InMemorySaver()))
    with pytest.raises(KeyboardInterrupt):
        agent.invoke(ask(), on("t"))
    assert states(guard) == {"t/1": "held"}
    before = len(world)
    agent.invoke(None, on("t"))
    assert (before, len(world), states(guard)) == (3, 5, {"t/1": "completed"})


def test_a_second_pause_in_another_run_of_the_program_still_knows(
    guard: Guard, world: World, look: BaseTool, tmp_path: Any
) -> None:
    """Each process learns from the record which task had called what."""
    saver = InMemorySaver()

    def asks(state: Any) -> None:
        look.invoke({"x": 1})
        interrupt("?")
        interrupt("again?")

    for given in (ask(), Command(resume="yes"), Command(resume="yes")):
        graph = _beside(_in_node(look), asks, later=_in_node(look), saver=saver)
        with Guard(f"sqlite:///{tmp_path}/ledger.db") as process:
            process.wrap(graph).invoke(given, on("t"))
    assert (world, states(guard)) == ([1, 1, 1], {"t/1": "completed"})


def test_a_task_that_was_answered_and_has_ended_is_over(guard: Guard, world: World, look: BaseTool) -> None:
    """Of two that ask, the one whose answer came first."""

    def looks(state: Any) -> Any:
        return {"messages": [("user", f"{interrupt('first?')} {look.invoke({'x': 1})}")]}

    agent = guard.wrap(_beside(looks, _asks, later=_in_node(look), saver=InMemorySaver()))
    asked = agent.invoke(ask(), on("t"))["__interrupt__"]
    first, other = sorted(asked, key=lambda one: str(one.value), reverse=True)
    for one in (first, other):
        agent.invoke(Command(resume={one.id: "yes"}), on("t"))
    assert (first.value, world, states(guard)) == ("first?", [1, 1], {"t/1": "completed"})


def test_a_joined_run_knows_too(guard: Guard, world: World, look: BaseTool) -> None:
    """Which task made a call is no matter of whose run it is."""
    agent = guard.wrap(_beside(_in_node(look), _asks, later=_in_node(look), saver=InMemorySaver()))
    for given in (ask(), Command(resume="yes")):
        with guard.run("job", id="job"):
            agent.invoke(given, on("t"))
    assert (world, states(guard)) == ([1, 1], {"job": "completed"})


def test_so_does_a_graph_within_one(guard: Guard, world: World, look: BaseTool) -> None:
    """The tasks side by side may be those of a graph in a node's closure, which goes on from its own checkpoint."""
    inner = _beside(_in_node(look), _asks, later=_in_node(look), saver=None)
    graph: Any = StateGraph(MessagesState)
    graph.add_node("works", lambda state: inner.invoke(state) and None)
    graph.add_edge(START, "works")
    agent = guard.wrap(graph.compile(checkpointer=InMemorySaver()))
    agent.invoke(ask(), on("t"))
    agent.invoke(Command(resume="yes"), on("t"))
    assert (world, states(guard)) == ([1, 1], {"t/1": "completed"})


def test_from_an_earlier_checkpoint_nothing_is_done_again(guard: Guard, world: World, look: BaseTool) -> None:
    """Whoever goes back to it has all tasks of its step run again: what they had done is on record."""
    agent = guard.wrap(_beside(_in_node(look), _asks, later=lambda state: None, saver=InMemorySaver()))
    agent.invoke(ask(), on("t"))
    at = agent.get_state(on("t")).config
    agent.invoke(None, at)
    assert world == [1]
