"""What ``guard.wrap`` takes: every way to build an agent with LangChain, guarded down to what only closures hold."""

from __future__ import annotations

import functools
import itertools
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core._api import LangChainBetaWarning
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import (
    RunnableBranch,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    RunnableSequence,
)
from langchain_core.tools import BaseTool, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from sagaspan import ConfigurationError, Guard
from sagaspan_langchain._marks import guard_of
from tests.adapters.langchain.scripts import ask, calls_of, model, model_calls_of, states
from tests.adapters.langchain.test_differential import SHAPES

World = list[Any]
BOOK = ("book", {"city": "Rome"})


class Declined(Exception):
    """No."""


def _tools(world: World) -> list[BaseTool]:
    @tool
    def book(city: str) -> str:
        """Book."""
        world.append(f"book {city}")
        return city

    @tool
    def fail() -> str:
        """Fail."""
        raise Declined("no")

    return [book, fail]


def _policies(world: World) -> dict[str, Any]:
    return {"book": {"compensate": lambda city: world.append(f"cancel {city}")}}


STEPS = (BOOK, ("fail", {}))


def created(world: World) -> Any:
    """``create_agent``."""
    return create_agent(model(*STEPS), _tools(world), name="agent")


def hand_built(world: World) -> Any:
    """A graph of one's own with a ``ToolNode``."""
    chat = model(*STEPS)
    graph: Any = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [chat.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode(_tools(world), handle_tool_errors=False))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else "__end__")
    graph.add_edge("tools", "model")
    return graph.compile()


def reacting(version: str, world: World) -> Any:
    """``create_react_agent``, which LangGraph deprecates and people have."""
    from langgraph import prebuilt

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return prebuilt.create_react_agent(
            model(*STEPS), ToolNode(_tools(world), handle_tool_errors=False), version=version
        )


def subgraph(world: World) -> Any:
    """An agent as a node."""
    graph: Any = StateGraph(MessagesState)
    graph.add_node("inner", created(world))
    graph.add_edge(START, "inner")
    return graph.compile()


def called_by_a_node(world: World) -> Any:
    """An agent in the closure of a node."""
    inner = created(world)
    graph: Any = StateGraph(MessagesState)
    graph.add_node("delegates", lambda state: inner.invoke(state))
    graph.add_edge(START, "delegates")
    return graph.compile()


def called_by_a_tool(world: World) -> Any:
    """An agent in the closure of a tool of another."""
    inner = created(world)

    @tool
    def delegate(task: str) -> str:
        """Delegate."""
        return str(inner.invoke(ask(task))["messages"][-1].content)

    return create_agent(model(("delegate", {"task": "go"})), [delegate], name="boss")


def tools_in_a_node(world: World) -> Any:
    """Tools that a node calls by itself."""
    book, fail = _tools(world)

    def work(state: Any) -> Any:
        book.invoke({"city": "Rome"})
        fail.invoke({})
        return {"messages": [AIMessage("done")]}

    graph: Any = StateGraph(MessagesState)
    graph.add_node("work", work)
    graph.add_edge(START, "work")
    return graph.compile()


def chain(world: World) -> Any:
    """A chain of LCEL, with a tool loop of one's own."""
    tools = {one.name: one for one in _tools(world)}
    chat = model([BOOK, ("fail", {})]).bind_tools(list(tools.values()))

    def act(message: Any) -> str:
        return " ".join(str(tools[call["name"]].invoke(call["args"])) for call in message.tool_calls)

    prompt = RunnableLambda(lambda given: [("user", str(given["messages"]))])
    return prompt | chat | act


def executor(world: World) -> Any:
    """``AgentExecutor`` of langchain-classic."""
    from langchain_classic.agents import AgentExecutor, create_tool_calling_agent

    prompt = ChatPromptTemplate.from_messages([("user", "{messages}"), ("placeholder", "{agent_scratchpad}")])
    tools = _tools(world)
    return AgentExecutor(agent=create_tool_calling_agent(model(*STEPS), tools, prompt), tools=tools)


BUILDERS: dict[str, Callable[[World], Any]] = {
    "create_agent": created, "StateGraph": hand_built, "react v1": functools.partial(reacting, "v1"),
    "react v2": functools.partial(reacting, "v2"), "subgraph": subgraph, "node's closure": called_by_a_node,
    "tool's closure": called_by_a_tool, "node's tools": tools_in_a_node, "LCEL": chain, "AgentExecutor": executor,
}  # fmt: skip
WAYS = ("invoke", "ainvoke", "stream", "astream", "batch", "abatch")


async def _run(target: Any, way: str) -> None:
    match way:
        case "invoke":
            target.invoke(ask())
        case "ainvoke":
            await target.ainvoke(ask())
        case "stream":
            list(target.stream(ask()))
        case "astream":
            [chunk async for chunk in target.astream(ask())]
        case "batch":
            target.batch([ask()])
        case "abatch":
            await target.abatch([ask()])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", BUILDERS)
async def test_a_failure_undoes_what_the_agent_did(guard: Guard, world: World, shape: str, way: str) -> None:
    """However it is built and invoked: its steps and model calls are one run's, and undone with it."""
    original = BUILDERS[shape](world)
    agent = guard.wrap(original, _policies(world))
    with pytest.raises(Declined) as caught:
        await _run(agent, way)
    assert type(caught.value) is Declined
    assert world == ["book Rome", "cancel Rome"]
    (run,) = guard.runs.list()
    assert run.status == "compensated"
    assert [call.tool for call in calls_of(guard, run.id) if call.tool in ("book", "fail")] == ["book", "fail"]
    assert bool(model_calls_of(guard, run.id)) is (shape != "node's tools")


def test_the_table_in_the_docs_is_what_is_tested() -> None:
    """Each row is an agent of the test above, or of the one of ``GuardMiddleware``; each column a way to invoke it."""
    text = (Path(__file__).parents[3] / "docs/langchain.md").read_text("utf-8")
    header, _, *rows = re.findall(r"^\| (.*) \|$", text[text.index("## What is tested") :], re.MULTILINE)
    assert header.split(" | ") == ["agent", *WAYS]
    assert [row.split(" | ") for row in rows] == [
        [shape, *["✓"] * len(WAYS)] for shape in (*BUILDERS, "GuardMiddleware")
    ]
    assert f"{len(SHAPES)} shapes of tools" in text


@pytest.mark.parametrize("shape", BUILDERS)
def test_the_original_is_as_it_was(guard: Guard, world: World, shape: str) -> None:
    """It stays unguarded, and the copy is of the same type with the same name, schema and drawing."""
    original = BUILDERS[shape](world)
    agent = guard.wrap(original, _policies(world))
    assert isinstance(agent, type(original))
    assert (type(agent).__name__, agent.get_name()) == (type(original).__name__, original.get_name())
    assert agent.get_input_jsonschema() == original.get_input_jsonschema()
    nodes = [(node.name, type(node.data).__name__) for node in agent.get_graph().nodes.values()]
    assert nodes == [(node.name, type(node.data).__name__) for node in original.get_graph().nodes.values()]
    with pytest.raises(Declined):
        original.invoke(ask())
    assert (world, guard.runs.list()) == (["book Rome"], [])


@pytest.mark.parametrize("shape", BUILDERS)
def test_its_tools_are_known_before_it_runs(guard: Guard, world: World, shape: str) -> None:
    """So that a policy with a typo is refused, and ``coverage`` can say what is guarded."""
    agent = BUILDERS[shape](world)
    with pytest.raises(ConfigurationError, match="did you mean book"):
        guard.wrap(agent, {"bok": {"effect": "write"}})
    found = guard.coverage(agent)
    assert {"book", "fail"} <= set(found.tools)
    assert found.models == (() if shape == "node's tools" else ("scripted",))
    assert guard.coverage(guard.wrap(agent)).guarded == found.guarded


def test_what_nobody_sees_into_is_said(guard: Guard, world: World) -> None:
    """Code of a node's own, and tools that the provider runs, are no tools of the guard's."""
    coverage = guard.coverage(tools_in_a_node(world))
    assert coverage.opaque == ("the node 'work': code of its own; the tools and models that it calls are guarded",)
    coverage = guard.coverage([*_tools(world), {"type": "web_search"}])
    assert coverage.opaque == ("web_search: a tool that the provider runs",)


def test_a_runnable_as_a_tool(guard: Guard, world: World) -> None:
    """``as_tool`` makes a tool, which is guarded as such; one of a guarded agent keeps that agent's guard."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LangChainBetaWarning)
        made = RunnableLambda(lambda given: world.append(given["x"])).as_tool(name="r", arg_types={"x": int})
        whole = guard.wrap(created(world), _policies(world)).as_tool(name="whole", arg_types={"messages": list})
    with guard.run("r", id="r"):
        guard.wrap(made).invoke({"x": 1})
    assert [call.tool for call in calls_of(guard, "r")] == ["r"]
    with pytest.raises(Declined):
        whole.invoke({"messages": [("user", "go")]})
    assert world == [1, "book Rome", "cancel Rome"]


def test_a_chain_that_grows_is_still_one_run(guard: Guard, world: World) -> None:
    """What is added to a guarded chain, on either side, is inside its run."""
    guarded = guard.wrap(RunnableLambda(lambda x: x + 1) | (lambda x: x * 2), name="chain")
    assert (guarded | (lambda x: -x)).invoke(1) == -4
    assert (RunnableLambda(lambda x: x) | guarded).invoke(1) == 4
    assert RunnableParallel(a=guarded, b=guarded).invoke(1) == {"a": 4, "b": 4}
    assert {run.name for run in guard.runs.list()} == {"chain"}


def test_each_item_of_a_batch_is_a_run(guard: Guard) -> None:
    """They fail apart from each other."""
    guarded = guard.wrap(RunnableLambda(lambda x: 1 / x) | (lambda x: x), name="chain")
    first, second = guarded.batch([0, 1], return_exceptions=True)
    assert isinstance(first, ZeroDivisionError)
    assert second == 1.0
    assert sorted(states(guard).values()) == ["completed", "failed"]


def test_a_tool_that_two_agents_share_is_guarded_in_one(guard: Guard, world: World) -> None:
    """Within the guarded agent, not beside it: the same object keeps its two lives apart."""
    book, fail = _tools(world)
    guarded = guard.wrap(create_agent(model(BOOK), [book, fail]), run_id="r")
    guarded.invoke(ask())
    create_agent(model(BOOK), [book, fail]).invoke(ask())
    book.invoke({"city": "Oslo"})
    assert world == ["book Rome", "book Rome", "book Oslo"]
    assert len(calls_of(guard, "r")) == 1


COMPOSED: dict[str, Callable[[Any], Any]] = {
    "behind": lambda chain: PROMPT | chain,
    "between": lambda chain: PROMPT | chain | StrOutputParser(),
    "grouped": lambda chain: PROMPT | (chain | StrOutputParser()),
    "sequence": lambda chain: RunnableSequence(PROMPT, chain, StrOutputParser()),
    "pipe": lambda chain: PROMPT.pipe(chain, StrOutputParser()),
    "function": lambda chain: (lambda given: PROMPT.invoke(given)) | chain,
    "behind a chain": lambda chain: (PROMPT | RunnableLambda(lambda x: x)) | chain,
    "parallel": lambda chain: PROMPT | RunnableParallel(one=chain),
    "dict": lambda chain: PROMPT | {"one": chain},
    "assign": lambda chain: RunnablePassthrough.assign(one=PROMPT | chain),
    "branch": lambda chain: PROMPT | RunnableBranch((lambda _: True, chain), chain),
    "map": lambda chain: PROMPT | (lambda value: [value]) | chain.map(),
    "with_config": lambda chain: PROMPT | chain.with_config(tags=["x"]),
    "with_retry": lambda chain: PROMPT | chain.with_retry(stop_after_attempt=1),
    "with_fallbacks": lambda chain: PROMPT | chain.with_fallbacks([PROMPT], exceptions_to_handle=(KeyError,)),
    "bind": lambda chain: PROMPT | chain.bind(),
    "behind another guarded one": lambda chain: _guard_of(chain).wrap(RunnableLambda(lambda x: x) | PROMPT) | chain,
}  # fmt: skip


def _guard_of(chain: Any) -> Guard:
    found = guard_of(chain)
    assert found is not None
    return found


PROMPT = ChatPromptTemplate.from_messages([("user", "{messages}")])


@pytest.mark.parametrize("way", ["invoke", "astream"])
@pytest.mark.parametrize("composed", COMPOSED)
async def test_a_guarded_chain_is_guarded_in_what_is_made_of_it(
    guard: Guard, world: World, composed: str, way: str
) -> None:
    """LangChain takes a chain's steps out when it puts it into another: its policies and its run must survive."""
    book, fail = _tools(world)

    def act(message: Any) -> str:
        book.invoke({"city": "Rome"})
        return str(fail.invoke({}))

    chain = guard.wrap(model([BOOK]) | RunnableLambda(act), _policies(world), name="chain")
    with pytest.raises(Declined):
        await _run(COMPOSED[composed](chain), way)
    assert world == ["book Rome", "cancel Rome"]
    (run,) = [run for run in guard.runs.list() if run.status == "compensated"]
    assert len(model_calls_of(guard, run.id)) == 1


@pytest.mark.parametrize("wrapped", ["the chain", "the retry"])
@pytest.mark.parametrize("way", ["invoke", "ainvoke", "batch", "abatch"])
async def test_attempts_of_a_chain_are_one_run(guard: Guard, world: World, wrapped: str, way: str) -> None:
    """A write is done once, whichever of the two is wrapped; if all attempts fail it is undone."""
    book, fail = _tools(world)
    attempts = itertools.count(1)

    def then(last: int) -> Any:
        return RunnableLambda(lambda output: fail.invoke({}) if next(attempts) < last else output)

    def made(last: int) -> Any:
        chain: Any = RunnableLambda(lambda _: {"city": "Rome"}) | book | then(last)
        again: Any = {"stop_after_attempt": 3, "wait_exponential_jitter": False}
        if wrapped == "the retry":
            return guard.wrap(chain.with_retry(**again), _policies(world), name="chain")
        return guard.wrap(chain, _policies(world), name="chain").with_retry(**again)

    await _run(made(last=3), way)
    assert (world, [*states(guard).values()]) == (["book Rome"], ["completed"])
    with pytest.raises(Declined):
        await _run(made(last=99), way)
    assert world == ["book Rome", "book Rome", "cancel Rome"]


@pytest.mark.parametrize("way", ["iter", "aiter"])
async def test_an_executor_is_guarded_step_by_step(guard: Guard, world: World, way: str) -> None:
    """``AgentExecutor.iter`` gives the steps one by one: all of them are one run, which is undone if one fails."""
    steps = guard.wrap(executor(world), _policies(world)).iter(ask())
    with pytest.raises(Declined):
        list(steps) if way == "iter" else [step async for step in steps]
    assert world == ["book Rome", "cancel Rome"]
    ((run_id, state),) = states(guard).items()
    assert state == "compensated"
    assert len(model_calls_of(guard, run_id)) == 2


def test_steps_that_are_dropped_are_undone(guard: Guard, world: World) -> None:
    """As a stream that is closed; between them the code is the caller's."""
    steps = iter(guard.wrap(executor(world), _policies(world)).iter(ask()))
    next(steps)
    assert guard.current_run() is None
    steps.close()
    assert world == ["book Rome", "cancel Rome"]


@pytest.mark.parametrize("made", ["itself", "bind_tools", "with_retry", "with_fallbacks", "with_config", "bind"])
def test_a_guarded_model_is_metered_in_what_is_made_of_it(guard: Guard, made: str) -> None:
    """Alone, it is a call of the run in force."""
    chat: Any = guard.wrap(model())
    one = {
        "itself": lambda: chat,
        "bind_tools": lambda: chat.bind_tools([]),
        "with_retry": lambda: chat.with_retry(),
        "with_fallbacks": lambda: chat.with_fallbacks([model()]),
        "with_config": lambda: chat.with_config(tags=["x"]),
        "bind": lambda: chat.bind(),
    }[made]()
    with guard.run("r", id="r"):
        assert (PROMPT | one | StrOutputParser()).invoke({"messages": "go"}) == "done"
    assert len(model_calls_of(guard, "r")) == 1
