"""A provider that fails within an agent in an agent: under a checkpointer nothing is undone, and ``None`` goes on."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ToolRetryMiddleware
from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool, StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from sagaspan import ConfigurationError, Guard
from tests.adapters.langchain.scripts import (
    ForgetfulSaver,
    ScriptedModel,
    Step,
    answers,
    ask,
    calls_of,
    on,
    states,
)

World = list[Any]
BOOK, LOOK, CHARGE = ("book", {"city": "A"}), ("look", {"city": "A"}), ("charge", {"amount": 1.0})
POLICIES = {"book": {"effect": "write"}, "charge": {"effect": "write"}}


class Flaky(ScriptedModel):
    """Follows its script, but its provider is away for the request after so many answers."""

    away_at: int = -1

    def _generate(self, messages: list[Any], *args: Any, **options: Any) -> Any:
        if sum(isinstance(message, AIMessage) for message in messages) == self.away_at:
            self.away_at = -1
            raise ConnectionResetError("the provider is away")
        return super()._generate(messages, *args, **options)


def flaky(*steps: Step, away_at: int) -> Flaky:
    return Flaky(script=[[step] for step in steps], away_at=away_at)


@pytest.fixture
def tools(world: World) -> list[BaseTool]:
    @tool
    def book(city: str) -> str:
        """Book."""
        world.append(f"book {city}")
        return "booked"

    @tool
    def look(city: str) -> str:
        """Look: undeclared, so an equal call that is meant is a new one."""
        world.append(f"look {city}")
        return "seen"

    @tool
    def charge(amount: float) -> str:
        """Charge."""
        world.append(f"charge {amount}")
        return "charged"

    return [book, look, charge]


def _consulting(inner: Any) -> BaseTool:
    """A tool that asks an agent."""

    def consult() -> str:
        """Consult."""
        return str(inner.invoke(ask())["messages"][-1].content)

    async def aconsult() -> str:
        return str((await inner.ainvoke(ask()))["messages"][-1].content)

    return StructuredTool.from_function(consult, aconsult)


def _in_node(inner: Any, saver: Any = None) -> Any:
    graph: Any = StateGraph(MessagesState)
    graph.add_node("inner", inner)
    graph.add_edge(START, "inner")
    return graph.compile(checkpointer=saver or InMemorySaver())


def _built(guard: Guard, shape: str, inner: Any, *, outer_away: bool = False, **policies: Any) -> Any:
    policies = {**POLICIES, **policies}
    if shape == "as a tool":
        chat = flaky(("consult", {}), away_at=1 if outer_away else -1)
        return guard.wrap(create_agent(chat, [_consulting(inner)], checkpointer=InMemorySaver()), policies)
    if shape == "as a subgraph":
        return guard.wrap(_in_node(inner), policies)
    guarded = guard.wrap(inner, policies)
    return guard.wrap(_in_node(guarded)) if shape == "guarded, in one that is" else _in_node(guarded)


SHAPES = ["as a tool", "as a subgraph", "guarded, in one that is", "guarded, in one that is not"]


async def _fails_and_goes_on(agent: Any, way: str) -> Any:
    with pytest.raises(ConnectionResetError) as caught:
        agent.invoke(ask(), on("t")) if way == "invoke" else await agent.ainvoke(ask(), on("t"))
    assert type(caught.value) is ConnectionResetError
    return caught


async def _go_on(agent: Any, way: str) -> Any:
    return agent.invoke(None, on("t")) if way == "invoke" else await agent.ainvoke(None, on("t"))


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
@pytest.mark.parametrize("shape", SHAPES)
async def test_the_inner_one_goes_on(guard: Guard, world: World, tools: list[BaseTool], shape: str, way: str) -> None:
    """What it had done is done once, and what it means twice twice; one run has it all."""
    inner = create_agent(flaky(BOOK, LOOK, LOOK, CHARGE, away_at=2), tools)
    agent = _built(guard, shape, inner)
    await _fails_and_goes_on(agent, way)
    assert (world, [*states(guard).values()]) == (["book A", "look A"], ["held"])
    await _go_on(agent, way)
    assert world == ["book A", "look A", "look A", "charge 1.0"]
    (run,) = guard.runs.list()
    assert str(run.status) == "completed"
    made = [call for call in calls_of(guard, run.id) if call.tool != "consult"]
    assert [(call.tool, str(call.state)) for call in made] == [
        ("book", "done"), ("look", "done"), ("look", "done"), ("charge", "done")
    ]  # fmt: skip


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_the_outer_one_goes_on(guard: Guard, world: World, tools: list[BaseTool], way: str) -> None:
    """After the inner one had ended, its tool is answered from the checkpoint."""
    agent = _built(guard, "as a tool", create_agent(flaky(BOOK, CHARGE, away_at=-1), tools), outer_away=True)
    await _fails_and_goes_on(agent, way)
    assert states(guard) == {"t/1": "held"}
    await _go_on(agent, way)
    assert (world, states(guard)) == (["book A", "charge 1.0"], {"t/1": "completed"})


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_whoever_retries_it_meanwhile_repeats_nothing(
    guard: Guard, world: World, tools: list[BaseTool], way: str
) -> None:
    """Begun anew in the same run, the agent would do again what is undeclared; only the run that goes on runs it."""
    inner = create_agent(flaky(LOOK, CHARGE, away_at=1), tools)
    retry = ToolRetryMiddleware(max_retries=2, initial_delay=0.0, jitter=False, on_failure="error")
    outer = create_agent(
        flaky(("consult", {}), away_at=-1), [_consulting(inner)], middleware=[retry], checkpointer=InMemorySaver()
    )
    agent = guard.wrap(outer, POLICIES)
    await _fails_and_goes_on(agent, way)
    assert world == ["look A"]
    await _go_on(agent, way)
    assert (world, states(guard)) == (["look A", "charge 1.0"], {"t/1": "completed"})


@pytest.mark.parametrize("policy", [{"effect": "write"}, {"compensate": lambda: None}, {"error_means": "unknown"}])
def test_a_write_that_asks_a_model_is_in_doubt(
    guard: Guard, world: World, tools: list[BaseTool], policy: dict[str, Any]
) -> None:
    """Its body may have done what is on no record: it is not run again, and the model is told so."""
    agent = _built(guard, "as a tool", create_agent(flaky(BOOK, CHARGE, away_at=1), tools), consult=policy)
    with pytest.raises(ConnectionResetError):
        agent.invoke(ask(), on("t"))
    (answer,) = answers(agent.invoke(None, on("t")))
    assert (json.loads(str(answer.content))["status"], world) == ("unknown", ["book A"])


def test_without_a_checkpointer_nobody_goes_on(guard: Guard, world: World, tools: list[BaseTool]) -> None:
    """The run ends in the error, and is undone."""
    inner = create_agent(flaky(BOOK, CHARGE, away_at=1), tools)
    outer = create_agent(flaky(("consult", {}), away_at=-1), [_consulting(inner)])
    agent = guard.wrap(outer, {"book": {"compensate": lambda city: world.append(f"cancel {city}")}})
    with pytest.raises(ConnectionResetError):
        agent.invoke(ask(), on("t"))
    assert (world, states(guard)) == (["book A", "cancel A"], {"t/1": "compensated"})


def test_a_guarded_agent_in_one_of_another_guard_is_refused(guard: Guard, tools: list[BaseTool], tmp_path: Any) -> None:
    """Two ledgers would each know half."""
    with Guard(f"sqlite:///{tmp_path}/other.db") as other:
        inner = other.wrap(create_agent(flaky(away_at=-1), tools, name="inner"))
        with pytest.raises(ConfigurationError, match="guarded by another guard"):
            guard.wrap(_in_node(inner))


# -- in a run that the caller opened ---------------------------------------------------------------------------


CANCELLED = {"book": {"compensate": lambda city: None}, "charge": {"effect": "write"}}


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
@pytest.mark.parametrize("fails", ["the agent's own", "that of one within"])
async def test_a_run_of_the_callers_goes_on_too(
    guard: Guard, world: World, tools: list[BaseTool], fails: str, way: str
) -> None:
    """The error that leaves its block is the one after which the graph goes on, in the same run."""
    if fails == "that of one within":
        agent = _built(guard, "as a tool", create_agent(flaky(BOOK, CHARGE, away_at=1), tools), **CANCELLED)
    else:
        chat = flaky(BOOK, CHARGE, away_at=1)
        agent = guard.wrap(create_agent(chat, tools, checkpointer=InMemorySaver()), CANCELLED)
    if way == "invoke":
        with pytest.raises(ConnectionResetError), guard.run("job", id="job"):
            agent.invoke(ask(), on("t"))
        assert (world, states(guard)) == (["book A"], {"job": "held"})
        with guard.run("job", id="job"):
            agent.invoke(None, on("t"))
    else:
        with pytest.raises(ConnectionResetError):
            async with guard.run("job", id="job"):
                await agent.ainvoke(ask(), on("t"))
        assert (world, states(guard)) == (["book A"], {"job": "held"})
        async with guard.run("job", id="job"):
            await agent.ainvoke(None, on("t"))
    assert (world, states(guard)) == (["book A", "charge 1.0"], {"job": "completed"})


def _as_it_is(run: Any) -> None:
    run()


def _as_another(run: Any) -> None:
    try:
        run()
    except ConnectionResetError as error:
        raise RuntimeError("given up") from error


@pytest.mark.parametrize(
    ("leaves", "details"),
    [(_as_it_is, {}), (_as_it_is, {"id": "job", "on_interrupt": "compensate"}), (_as_another, {"id": "job"})],
    ids=["nobody knows its id", "the caller wants it undone", "another error"],
)
def test_unless_nobody_can_or_wants_to(
    guard: Guard, world: World, tools: list[BaseTool], leaves: Any, details: Any
) -> None:
    """Then the error ends the run, and what it did is undone."""
    agent = guard.wrap(
        create_agent(flaky(BOOK, away_at=1), tools, checkpointer=InMemorySaver()),
        {"book": {"compensate": lambda city: world.append(f"cancel {city}")}},
    )
    with pytest.raises((ConnectionResetError, RuntimeError)), guard.run("job", **details):
        leaves(lambda: agent.invoke(ask(), on("t")))
    assert (world, [*states(guard).values()]) == (["book A", "cancel A"], ["compensated"])


def test_nor_where_a_call_of_the_run_asked_the_agent(guard: Guard, world: World, tools: list[BaseTool]) -> None:
    """That call's body does not go on where the graph stopped: it failed, as it does for any error."""
    agent = guard.wrap(
        create_agent(flaky(BOOK, away_at=1), tools, checkpointer=InMemorySaver()),
        {"book": {"compensate": lambda city: world.append(f"cancel {city}")}},
    )
    consult = guard.tool("consult")(lambda: str(agent.invoke(ask(), on("t"))))
    with pytest.raises(ConnectionResetError), guard.run("job", id="job"):
        consult()
    assert (world, states(guard)) == (["book A", "cancel A"], {"job": "compensated"})


# -- a crash of which no checkpoint knows ----------------------------------------------------------------------


def _dying(world: World, saver: ForgetfulSaver) -> BaseTool:
    saver.down = True  # as with durability="exit", whose checkpoint is made at the end

    @tool
    def look_up(city: str) -> str:
        """Look up: the process dies in it, once."""
        if saver.down:
            raise KeyboardInterrupt
        world.append(f"look up {city}")
        return "known"

    return look_up


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
@pytest.mark.parametrize("shape", ["as a tool", "as a subgraph"])
def test_the_same_input_again_repeats_nothing(
    guard: Guard, world: World, tools: list[BaseTool], shape: str, way: str
) -> None:
    """The task of the agent within is another one, with another id; the run around it is the same turn's, and knows."""
    saver = ForgetfulSaver()
    inner = create_agent(
        flaky(BOOK, LOOK, ("look_up", {"city": "A"}), CHARGE, away_at=-1), [*tools, _dying(world, saver)]
    )
    if shape == "as a tool":
        around = create_agent(flaky(("consult", {}), away_at=-1), [_consulting(inner)], checkpointer=saver)
    else:
        around = _in_node(inner, saver)
    policies = {**POLICIES, "look_up": {"effect": "read"}}
    if shape == "as a tool":  # undeclared it would be in doubt: its body could do what is on no record
        policies["consult"] = {"effect": "idempotent"}
    agent = guard.wrap(around, policies)
    with pytest.raises(KeyboardInterrupt):
        agent.invoke(ask(), on("t"), durability="exit")
    assert (world, states(guard)) == (["book A", "look A"], {"t/1": "held"})
    saver.down = False
    agent.invoke(ask(), on("t"), durability="exit") if way == "invoke" else asyncio.run(
        agent.ainvoke(ask(), on("t"), durability="exit")
    )
    assert states(guard) == {"t/1": "completed"}
    assert world == ["book A", "look A", "look up A", "charge 1.0"]


def test_where_nobody_guards_the_graph_around_it_only_a_key_does(
    guard: Guard, world: World, tools: list[BaseTool]
) -> None:
    """Its run is that of a task, and the task is a new one: the old run is held, and says what it had done."""
    saver = ForgetfulSaver()
    steps = (BOOK, LOOK, ("look_up", {"city": "A"}), CHARGE)
    inner = create_agent(flaky(*steps, away_at=-1), [*tools, _dying(world, saver)])
    policies = {"book": {"key": "'order-7 ' + city"}, "charge": {"effect": "write"}, "look_up": {"effect": "read"}}
    outer = _in_node(guard.wrap(inner, policies), saver)
    with pytest.raises(KeyboardInterrupt):
        outer.invoke(ask(), on("t"), durability="exit")
    saver.down = False
    outer.invoke(ask(), on("t"), durability="exit")
    assert world == ["book A", "look A", "look A", "look up A", "charge 1.0"]
    assert sorted(states(guard).values()) == ["completed", "held"]
    (held,) = (run for run in guard.runs.list() if str(run.status) == "held")
    assert [(call.tool, str(call.state)) for call in calls_of(guard, held.id)][:2] == [
        ("book", "done"),
        ("look", "done"),
    ]
