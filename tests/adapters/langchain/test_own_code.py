"""The code of a node that LangGraph runs again within a run: what it did is answered, what it means anew is made."""

from __future__ import annotations

import json
import operator
import threading
from collections.abc import Callable
from itertools import count
from typing import Annotated, Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, RetryPolicy, Send, interrupt

from sagaspan import Guard, LoopDetected
from tests.adapters.langchain.scripts import ask, calls_of, model, on, states

World = list[Any]
POLICIES: dict[str, dict[str, Any]] = {
    "undeclared": {},
    "write": {"effect": "write"},
    "repeated write": {"effect": "write", "repeat": "new"},
    "keyed": {"key": "string(what)"},
    "idempotent": {"effect": "idempotent"},
    "irreversible": {"effect": "irreversible", "approve": False},
}


class State(TypedDict):
    """What came of it."""

    said: Annotated[list[str], operator.add]


@pytest.fixture
def note(world: World) -> BaseTool:
    """A tool whose every effect is seen."""

    @tool
    def note(what: int) -> str:
        """Note."""
        world.append(what)
        return f"noted {len(world)}"

    return note


def _again(attempts: int = 3) -> RetryPolicy:
    return RetryPolicy(max_attempts=attempts, initial_interval=0.0, jitter=False, retry_on=ConnectionError)


def _failing(times: int) -> Callable[[], None]:
    """Fails so many times."""
    begun = count()

    def fail() -> None:
        if next(begun) < times:
            raise ConnectionError("away")

    return fail


def _node(work: Callable[[], list[str]], way: str) -> Any:
    """``work`` as the code of a node, awaited or not."""

    async def awork(state: Any) -> Any:
        return {"said": work()}

    return (lambda state: {"said": work()}) if way == "invoke" else awork


def _chain(steps: dict[str, Any], checkpointer: Any = None, attempts: int = 3) -> Any:
    graph: Any = StateGraph(State)
    for before, (name, step) in zip([START, *steps], steps.items(), strict=False):
        graph.add_node(name, step, retry_policy=_again(attempts))
        graph.add_edge(before, name)
    return graph.compile(checkpointer=checkpointer)


async def _invoke(agent: Any, way: str, given: Any) -> Any:
    return agent.invoke(given, on("t")) if way == "invoke" else await agent.ainvoke(given, on("t"))


# -- a retry policy ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
@pytest.mark.parametrize("saves", [True, False], ids=["saved", "not saved"])
@pytest.mark.parametrize("kind", POLICIES)
async def test_a_retry_repeats_nothing_that_its_node_had_done(
    guard: Guard, world: World, note: BaseTool, kind: str, saves: bool, way: str
) -> None:
    """The third attempt is answered with what the first did, and does what none had come to."""
    fail = _failing(2)

    def work() -> list[str]:
        done = [str(note.invoke({"what": 1}))]
        fail()
        return [*done, str(note.invoke({"what": 2}))]

    agent = guard.wrap(_chain({"work": _node(work, way)}, InMemorySaver() if saves else None), {"note": POLICIES[kind]})
    assert (await _invoke(agent, way, {"said": []}))["said"] == ["noted 1", "noted 2"]
    assert world == [1, 2]
    (run,) = guard.runs.list()
    assert str(run.status) == "completed"
    assert [str(call.state) for call in calls_of(guard, run.id)] == ["done", "done"]


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_nor_what_it_had_done_with_a_function_of_the_guard(guard: Guard, world: World, way: str) -> None:
    """A ``@guard.tool`` that the code of the node calls is one of its calls."""
    fail = _failing(2)

    @guard.tool
    def book(what: int) -> str:
        world.append(what)
        return f"booked {len(world)}"

    def work() -> list[str]:
        done = [book(1), book(1)]
        fail()
        return [*done, book(1)]

    agent = guard.wrap(_chain({"work": _node(work, way)}))
    said = (await _invoke(agent, way, {"said": []}))["said"]
    assert (said, world) == (["booked 1", "booked 2", "booked 3"], [1, 1, 1])


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_what_it_means_twice_is_done_twice(guard: Guard, world: World, note: BaseTool, way: str) -> None:
    """In one attempt, in what an attempt adds to the one before, and in the next step."""
    fail, attempts = _failing(1), count()

    def work() -> list[str]:
        said = [str(note.invoke({"what": 1})) for _ in range(2 + next(attempts))]
        fail()
        return said

    steps = {"work": _node(work, way), "later": _node(lambda: [str(note.invoke({"what": 1}))], way)}
    agent = guard.wrap(_chain(steps))
    said = (await _invoke(agent, way, {"said": []}))["said"]
    assert (said, world) == (["noted 1", "noted 2", "noted 3", "noted 4"], [1, 1, 1, 1])


def test_a_read_is_made_anew(guard: Guard, world: World, note: BaseTool) -> None:
    """A retry may wait for what it reads to change; nothing is lost by reading it again."""

    def work() -> list[str]:
        said = str(note.invoke({"what": 1}))
        if said != "noted 8":
            raise ConnectionError("not yet")
        return [said]

    agent = guard.wrap(_chain({"work": _node(work, "invoke")}, attempts=8), {"note": {"effect": "read"}})
    assert agent.invoke({"said": []})["said"] == ["noted 8"]


def test_what_failed_is_made_again(guard: Guard, world: World) -> None:
    """An undeclared call of which nobody knows is no more forbidden to a retry than it is to any other code."""

    @tool
    def shake(what: int) -> str:
        """Shake."""
        world.append(what)
        if len(world) < 3:
            raise ConnectionResetError("away")
        return "shaken"

    agent = guard.wrap(_chain({"work": _node(lambda: [str(shake.invoke({"what": 1}))], "invoke")}))
    assert agent.invoke({"said": []})["said"] == ["shaken"]
    assert world == [1, 1, 1]


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
@pytest.mark.parametrize("memory", [None, False], ids=["with memory", "without"])
async def test_a_graph_that_the_node_asks_repeats_nothing_either(
    guard: Guard, world: World, note: BaseTool, memory: Any, way: str
) -> None:
    """It begins anew, in tasks with other ids; each is answered with what its like had done."""
    fail = _failing(1)
    inner = create_agent(model(("note", {"what": 1}), ("note", {"what": 1})), [note], checkpointer=memory)

    def work(state: Any) -> Any:
        said = str(len(inner.invoke(ask())["messages"]))
        fail()
        return {"said": [said, str(note.invoke({"what": 1}))]}

    async def awork(state: Any) -> Any:
        said = str(len((await inner.ainvoke(ask()))["messages"]))
        fail()
        return {"said": [said, str(note.invoke({"what": 1}))]}

    agent = guard.wrap(_chain({"work": work if way == "invoke" else awork}, InMemorySaver()))
    assert (await _invoke(agent, way, {"said": []}))["said"] == ["6", "noted 3"]
    assert (world, states(guard)) == ([1, 1, 1], {"t/1": "completed"})


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
@pytest.mark.parametrize("retries", ["the task", "what calls it"])
async def test_nor_does_a_task_that_it_calls(
    guard: Guard, world: World, note: BaseTool, retries: str, way: str
) -> None:
    """Whether it is retried itself, or called again by code that is: LangGraph gives it another id then."""
    fail = _failing(2)
    policy = {"retry_policy": _again()}
    inner, outer = (policy, {}) if retries == "the task" else ({}, policy)

    def work() -> str:
        said = str(note.invoke({"what": 1}))
        if retries == "the task":
            fail()
        return said

    if way == "invoke":
        works: Any = task(work, **inner)  # type: ignore[call-overload]

        @entrypoint(checkpointer=InMemorySaver(), **outer)
        def entry(given: Any) -> list[str]:
            said = works().result()
            if retries == "what calls it":
                fail()
            return [said, works().result(), str(note.invoke({"what": 1}))]

        agent = guard.wrap(entry)
    else:

        @task(**inner)
        async def aworks() -> str:
            return work()

        @entrypoint(checkpointer=InMemorySaver(), **outer)
        async def aentry(given: Any) -> list[str]:
            said = await aworks()
            if retries == "what calls it":
                fail()
            return [said, await aworks(), str(note.invoke({"what": 1}))]

        agent = guard.wrap(aentry)
    assert await _invoke(agent, way, {}) == ["noted 1", "noted 2", "noted 3"]
    assert (world, states(guard)) == ([1, 1, 1], {"t/1": "completed"})


def test_what_a_task_beside_it_means_is_its_own(guard: Guard, world: World, note: BaseTool) -> None:
    """Each of two that are retried side by side is answered with its own, and a third is not answered with theirs."""
    fails = {1: _failing(1), 2: _failing(2), 3: _failing(0)}

    def work(which: int) -> Any:
        said = str(note.invoke({"what": 1}))
        fails[which]()
        return {"said": [f"{which} {said}"]}

    graph: Any = StateGraph(State)
    graph.add_node("work", work, retry_policy=_again())
    graph.add_conditional_edges(START, lambda state: [Send("work", which) for which in fails])
    said = guard.wrap(graph.compile()).invoke({"said": []})["said"]
    assert (world, len({one.partition(" ")[2] for one in said})) == ([1, 1, 1], 3)


def test_whose_call_it_was_is_who_is_answered(guard: Guard, world: World, note: BaseTool) -> None:
    """What an agent had done that the node asked is no answer to the code of the node, nor the other way round."""
    inner = create_agent(model(("note", {"what": 1})), [note])
    attempts = count()

    def work() -> list[str]:
        own = [str(note.invoke({"what": 1}))] if next(attempts) else []
        said = str(inner.invoke(ask())["messages"][-2].content)
        if not own:
            raise ConnectionError("away")
        return [*own, said]

    agent = guard.wrap(_chain({"work": _node(work, "invoke")}))
    assert (agent.invoke({"said": []})["said"], world) == (["noted 2", "noted 1"], [1, 1])


@pytest.mark.parametrize("config", [None, {"callbacks": [BaseCallbackHandler()]}], ids=["plain", "its own callbacks"])
def test_what_the_code_invokes_on_its_way_begins_nothing_anew(
    guard: Guard, world: World, note: BaseTool, config: Any
) -> None:
    """Also where it has the name of the node: the calls after it are no repeats of those before."""
    inner = _chain({"work": lambda state: None})
    inner.name = "work"

    def work() -> list[str]:
        said = [str(note.invoke({"what": 1}))]
        inner.invoke({"said": []}, config)
        RunnableLambda(lambda given: given, name="work").invoke(1, config)
        return [*said, str(note.invoke({"what": 1}))]

    agent = guard.wrap(_chain({"work": _node(work, "invoke")}))
    assert (agent.invoke({"said": []})["said"], world) == (["noted 1", "noted 2"], [1, 1])


def test_of_a_message_nothing_is_made_again_of_which_nobody_knows(guard: Guard, world: World) -> None:
    """The calls of a message are those of before, whatever became of them: the model is told, and may call anew."""

    @tool
    def pay() -> str:
        """Pay: undeclared, and the answer is lost."""
        world.append("pay")
        raise ConnectionResetError("away")

    chat = model(("pay", {}))
    graph: Any = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [chat.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([pay], handle_tool_errors=False), retry_policy=_again())
    graph.add_edge(START, "model")
    graph.add_edge("model", "tools")
    said = guard.wrap(graph.compile()).invoke(ask())["messages"]
    assert (json.loads(said[-1].content)["status"], world) == ("unknown", ["pay"])


def test_in_a_run_that_goes_on_too(guard: Guard, world: World, note: BaseTool) -> None:
    """The attempts after a pause are answered with what those before it did, and with what they did themselves."""
    fail = _failing(1)

    def work() -> list[str]:
        done = [str(note.invoke({"what": 1}))]
        interrupt("?")
        done.append(str(note.invoke({"what": 1})))
        fail()
        return [*done, str(note.invoke({"what": 1}))]

    agent = guard.wrap(_chain({"work": _node(work, "invoke")}, InMemorySaver()))
    said = agent.invoke({"said": []}, on("t"))
    while "__interrupt__" in said:  # an older LangGraph asks the next attempt once more
        said = agent.invoke(Command(resume="yes"), on("t"))
    assert (said["said"], world) == (["noted 1", "noted 2", "noted 3"], [1, 1, 1])


@pytest.mark.parametrize("kind", ["undeclared", "write"])
@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_a_run_within_the_code_is_gone_on_with(
    guard: Guard, world: World, note: BaseTool, way: str, kind: str
) -> None:
    """One that completed is answered as a whole, and a second one of its name is another."""
    fail = _failing(2)

    def work() -> list[str]:
        said = []
        for what in (1, 1):
            with guard.run("part"):
                said.append(str(note.invoke({"what": what})))
        fail()
        return said

    async def awork(state: Any) -> Any:
        said = []
        for what in (1, 1):
            async with guard.run("part"):
                said.append(str(await note.ainvoke({"what": what})))
        fail()
        return {"said": said}

    node = awork if way == "ainvoke" else _node(work, way)
    agent = guard.wrap(_chain({"work": node}, InMemorySaver()), {"note": POLICIES[kind]})
    assert (await _invoke(agent, way, {"said": []}))["said"] == ["noted 1", "noted 2"]
    assert (world, [*states(guard).values()]) == ([1, 1], ["completed"] * 3)


def test_one_that_was_undone_begins_anew(guard: Guard, world: World, note: BaseTool) -> None:
    """The next attempt may do what the failed one took back."""
    fail = _failing(1)

    def work() -> list[str]:
        with guard.run("part"):
            said = str(note.invoke({"what": 1}))
            fail()
        return [said]

    policies = {"note": {"compensate": lambda what: world.append(-what)}}
    agent = guard.wrap(_chain({"work": _node(work, "invoke")}), policies)
    assert agent.invoke({"said": []})["said"] == ["noted 3"]
    assert (world, sorted(states(guard).values())) == ([1, -1, 1], ["compensated", "completed", "completed"])


@pytest.mark.parametrize("config", [None, on("t")], ids=["no thread", "in a thread"])
def test_an_agent_with_a_budget_of_its_own_begins_anew(guard: Guard, world: World, note: BaseTool, config: Any) -> None:
    """Its run had completed, and its model may do otherwise now, which a run that is replayed does not let it."""
    fail = _failing(1)
    workers = iter([create_agent(model(("note", {"what": what})), [note], name="worker") for what in (1, 2)])

    def work() -> list[str]:
        guard.wrap(next(workers), budget="1 USD").invoke(ask())
        fail()
        return []

    guard.wrap(_chain({"work": _node(work, "invoke")}, InMemorySaver() if config else None)).invoke(
        {"said": []}, config
    )
    assert (world, [*states(guard).values()]) == ([1, 2], ["completed"] * 3)


# -- an answer within one block ----------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
@pytest.mark.parametrize("kind", POLICIES)
async def test_an_answer_in_the_same_block_repeats_nothing(
    guard: Guard, world: World, note: BaseTool, kind: str, way: str
) -> None:
    """Nobody enters the run again; still the node runs again as a whole, and is answered with what it did."""

    def work() -> list[str]:
        done = [str(note.invoke({"what": 1}))]
        interrupt("?")
        return [*done, str(note.invoke({"what": 2}))]

    agent = guard.wrap(_chain({"work": _node(work, way)}, InMemorySaver()), {"note": POLICIES[kind]})
    async with guard.run("job", id="job"):
        await _invoke(agent, "ainvoke", {"said": []})
        assert world == [1]
        said = (await _invoke(agent, "ainvoke", Command(resume="yes")))["said"]
    assert (said, world, states(guard)) == (["noted 1", "noted 2"], [1, 2], {"job": "completed"})


def test_what_ended_in_the_block_is_over(guard: Guard, world: World, note: BaseTool) -> None:
    """A task beside the one that asked, one that returned in it, and an earlier step: what equals theirs is new."""

    @task
    def notes() -> str:
        return str(note.invoke({"what": 1}))

    def asks(state: Any) -> Any:
        notes().result()
        interrupt("?")
        return {"said": [notes().result(), str(note.invoke({"what": 1}))]}

    graph: Any = StateGraph(State)
    for name in ("first", "beside", "later"):
        graph.add_node(name, lambda state: note.invoke({"what": 1}) and None)
    graph.add_node("asks", asks)
    graph.add_edge(START, "first")
    graph.add_edge("first", "beside")
    graph.add_edge("first", "asks")
    graph.add_edge(["beside", "asks"], "later")
    agent = guard.wrap(graph.compile(checkpointer=InMemorySaver()))
    with guard.run("job", id="job"):
        agent.invoke({"said": []}, on("t"))
        assert world == [1] * 3
        agent.invoke(Command(resume="yes"), on("t"))
    assert (world, states(guard)) == ([1] * 6, {"job": "completed"})


def test_each_of_two_within_is_answered_with_its_own(guard: Guard, world: World, note: BaseTool) -> None:
    """Whichever of them comes first then: both run again from the checkpoint of their own graph."""
    other_came_first, said = threading.Event(), set()

    def work(which: int) -> Any:
        _ = which == 2 or other_came_first.wait(60)
        said.add((which, note.invoke({"what": 1})))
        other_came_first.set()
        return {"said": [str(interrupt(f"{which}?"))]}

    inner: Any = StateGraph(State)
    inner.add_node("work", work)
    inner.add_conditional_edges(START, lambda state: [Send("work", which) for which in (1, 2)])
    agent = guard.wrap(_chain({"inner": inner.compile()}, InMemorySaver()))
    with guard.run("job", id="job"):
        asked = agent.invoke({"said": []}, on("t"))["__interrupt__"]
        one_by_one = {**on("t"), "max_concurrency": 1}
        agent.invoke(Command(resume={one.id: "yes" for one in asked}), one_by_one)
    assert (said, world) == ({(1, "noted 2"), (2, "noted 1")}, [1, 1])


def test_so_is_the_body_of_a_tool_that_asks(guard: Guard, world: World, note: BaseTool) -> None:
    """It runs again as a whole, within the task that calls it: what it had called is answered, in its own place."""

    @tool
    def confirm() -> str:
        """Note, ask a person, and note the same."""
        before = str(note.invoke({"what": 1}))
        interrupt("?")
        return f"{before}, {note.invoke({'what': 1})}"

    work = _node(lambda: [str(confirm.invoke({})), str(note.invoke({"what": 1}))], "invoke")
    agent = guard.wrap(_chain({"work": work}, InMemorySaver()))
    with guard.run("job", id="job"):
        agent.invoke({"said": []}, on("t"))
        said = agent.invoke(Command(resume="yes"), on("t"))["said"]
    assert (said, world) == (["noted 1, noted 2", "noted 3"], [1, 1, 1])


def test_what_the_body_of_a_call_had_called_is_no_answer_to_the_code_around_it(
    guard: Guard, world: World, note: BaseTool
) -> None:
    """The call itself is answered, so its body does not ask again; the same in the code of the node is another."""
    fail = _failing(1)

    @tool
    def notes() -> str:
        """Note."""
        return str(note.invoke({"what": 1}))

    def work() -> list[str]:
        said = str(notes.invoke({}))
        fail()
        return [said, str(note.invoke({"what": 1}))]

    agent = guard.wrap(_chain({"work": _node(work, "invoke")}))
    assert (agent.invoke({"said": []})["said"], world) == (["noted 1", "noted 2"], [1, 1])


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_nobody_is_asked_again_about_what_is_done(guard: Guard, world: World, note: BaseTool, way: str) -> None:
    """The attempt after the approved call is answered; what it adds is asked about."""
    fail = _failing(1)

    def work() -> list[str]:
        said = [str(note.invoke({"what": 1}))]
        fail()
        return [*said, str(note.invoke({"what": 2}))]

    agent = guard.wrap(_chain({"work": _node(work, way)}, InMemorySaver()), {"note": {"approve": True}})
    approved = Command(resume={"decisions": [{"type": "approve"}]})
    await _invoke(agent, way, {"said": []})
    assert "__interrupt__" in await _invoke(agent, way, approved)
    assert world == [1]
    assert (await _invoke(agent, way, approved))["said"] == ["noted 1", "noted 2"]
    assert (world, states(guard)) == ([1, 2], {"t/1": "completed"})


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
@pytest.mark.parametrize("blocks", [1, 2])
async def test_so_is_a_step_of_a_graph_within_that_is_come_to_again(
    guard: Guard, world: World, note: BaseTool, blocks: int, way: str
) -> None:
    """It goes on from its own checkpoint: its node is that of before, the step and what it means are not."""
    inner: Any = StateGraph(State)
    inner.add_node("notes", _node(lambda: [str(note.invoke({"what": 1}))], way))
    inner.add_node("asks", _node(lambda: [str(interrupt("?"))], way))
    inner.add_edge(START, "notes")
    inner.add_conditional_edges("notes", lambda state: "asks" if len(state["said"]) < 3 else "__end__")
    inner.add_edge("asks", "notes")
    agent = guard.wrap(_chain({"inner": inner.compile()}, InMemorySaver()))
    given = [{"said": []}, Command(resume="yes")]
    for several in [given] if blocks == 1 else [[one] for one in given]:
        async with guard.run("job", id="job"):
            for one in several:
                await _invoke(agent, "ainvoke", one)
    assert (world, states(guard)) == ([1, 1], {"job": "completed"})


def test_but_not_where_a_person_changed_the_state_meanwhile(guard: Guard, world: World, note: BaseTool) -> None:
    """Then LangGraph's task is another one; whoever leaves the block and enters the run again repeats nothing."""

    def work() -> list[str]:
        return [str(note.invoke({"what": 1})), str(interrupt("?"))]

    agent = guard.wrap(_chain({"first": lambda state: None, "work": _node(work, "invoke")}, InMemorySaver()))
    with guard.run("job", id="job"):
        agent.invoke({"said": []}, on("t"))
        agent.update_state(on("t"), {"said": ["hurry"]}, as_node="first")
        agent.invoke(None, on("t"))
        assert world == [1, 1]
    with guard.run("job", id="job"):
        agent.invoke(Command(resume="yes"), on("t"))
    assert (world, states(guard)) == ([1, 1], {"job": "completed"})


# -- no loop -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", ["the code", "the tool"])
@pytest.mark.parametrize("kind", ["undeclared", "keyed", "repeated write"])
def test_the_attempts_of_a_retry_policy_are_no_loop(
    guard: Guard, world: World, note: BaseTool, kind: str, fails: str
) -> None:
    """They have a bound of their own, however many they are."""
    fail = _failing(14)

    @tool
    def shake() -> str:
        """Shake."""
        fail()
        return "shaken"

    def work() -> list[str]:
        said = [str(note.invoke({"what": 1}))]
        shake.invoke({}) if fails == "the tool" else fail()
        return said

    agent = guard.wrap(_chain({"work": _node(work, "invoke")}, attempts=15), {"note": POLICIES[kind]})
    assert (agent.invoke({"said": []})["said"], world) == (["noted 1"], [1])


def test_nor_are_the_answers_within_one_block(guard: Guard, world: World, note: BaseTool) -> None:
    """A node that asks ten questions runs eleven times."""

    def work() -> list[str]:
        said = [str(note.invoke({"what": 1}))]
        return [*said, *(str(interrupt(f"{number}?")) for number in range(10))]

    agent = guard.wrap(_chain({"work": _node(work, "invoke")}, InMemorySaver()))
    with guard.run("job", id="job"):
        said = agent.invoke({"said": []}, on("t"))
        while "__interrupt__" in said:
            said = agent.invoke(Command(resume="yes"), on("t"))
    assert (len(said["said"]), world) == (11, [1])


def test_what_a_model_repeats_in_an_attempt_is_a_loop(guard: Guard, world: World) -> None:
    """The agent that the node asks begins anew with it; what it asks for beyond what it had asked for is counted."""
    fail = _failing(1)

    @tool
    def look() -> str:
        """Look, and see always the same."""
        world.append("look")
        return "nothing"

    workers = iter([create_agent(model(*[("look", {})] * times), [look]) for times in (3, 12)])

    def work() -> list[str]:
        next(workers).invoke(ask())
        fail()
        return []

    agent = guard.wrap(_chain({"work": _node(work, "invoke")}))
    with pytest.raises(LoopDetected):
        agent.invoke({"said": []})
    assert world == ["look"] * 5
