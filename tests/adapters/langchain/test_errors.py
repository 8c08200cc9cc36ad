"""What the guard refuses is told to the model; what ends a run leaves the agent as that very error."""

from __future__ import annotations

import contextlib
import json
import time
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ToolErrorMiddleware, ToolRetryMiddleware
from langchain_core.messages import ToolMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.tools import BaseTool, StructuredTool, ToolException, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphBubbleUp
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command

from sagaspan import (
    ApprovalDenied,
    ConfigurationError,
    Guard,
    KeyConflict,
    OutcomeUnknown,
    RateLimited,
    RunClosed,
    SagaspanError,
    ToolTimeout,
)
from sagaspan_langchain import _errors as errors
from tests.adapters.langchain.scripts import answers, ask, calls_of, model, on, states, steps_of

World = list[Any]


class Lost(Exception):
    """The connection went away."""


def lose(*_: Any) -> None:
    """Fail in another package's code, as a client library does: nobody knows what happened."""
    json.loads("{")


@pytest.fixture
def agent_with(world: World) -> Callable[..., Any]:
    """An agent of one tool ``pay``, whose body is given, that is called with each of the amounts."""

    def build(body: Callable[[float], Any], *amounts: float, **options: Any) -> Any:
        def pay(order: str, amount: float) -> Any:
            """Pay."""
            world.append(amount)
            return body(amount)

        steps = [("pay", {"order": "o1", "amount": amount}) for amount in amounts]
        return create_agent(model(*steps), [StructuredTool.from_function(pay)], **options)

    return build


def test_a_key_conflict_is_told_to_the_model(guard: Guard, world: World, agent_with: Any) -> None:
    """The same key with other arguments is answered as refused, with the record, and the agent goes on."""
    agent = guard.wrap(agent_with(lambda amount: "paid", 1.0, 2.0), {"pay": {"key": "order"}})
    output = agent.invoke(ask())
    first, second = answers(output)
    assert (first.content, first.status) == ("paid", "success")
    told = json.loads(second.content)
    assert second.status == "error"
    assert (told["status"], told["retry"], told["error"]) == ("refused", "forbidden", "KeyConflict")
    assert told["record"] == calls_of(guard, guard.runs.list()[0].id)[0].id
    assert output["messages"][-1].content == "done"
    assert world == [1.0]


async def test_the_same_is_told_asynchronously(guard: Guard, agent_with: Any) -> None:
    """``ainvoke`` tells the model the same."""
    agent = guard.wrap(agent_with(lambda amount: "paid", 1.0, 2.0), {"pay": {"key": "order"}})
    assert json.loads(answers(await agent.ainvoke(ask()))[1].content)["error"] == "KeyConflict"


def test_an_unknown_outcome_is_told_and_holds_the_run(guard: Guard, world: World, agent_with: Any) -> None:
    """A write whose outcome nobody knows is not repeated: the model is told so, and the run waits for a person."""
    agent = agent_with(lose, 1.0, 1.0, middleware=[ToolErrorMiddleware(on_error=lambda error, request: "sorry")])
    output = guard.wrap(agent, {"pay": {"effect": "write"}}, run_id="r").invoke(ask())
    first, second = answers(output)
    assert first.content == "sorry"
    told = json.loads(second.content)
    assert (told["status"], told["retry"]) == ("unknown", "forbidden")
    assert told["record"] == calls_of(guard, "r")[0].id
    assert told["next"] == f"sagaspan calls resolve {told['record']} OUTCOME --note WHY"
    assert world == [1.0]
    assert states(guard) == {"r": "held"}


def test_a_retry_layer_does_not_repeat_a_write(guard: Guard, world: World, agent_with: Any) -> None:
    """LangChain's retry middleware cannot do a write twice whose outcome is unknown."""
    agent = agent_with(lose, 1.0, middleware=[ToolRetryMiddleware(max_retries=3, initial_delay=0.0, jitter=False)])
    (message,) = answers(guard.wrap(agent, {"pay": {"effect": "write"}}).invoke(ask()))
    assert world == [1.0]
    assert json.loads(message.content)["status"] == "unknown"


@pytest.fixture
def ship(world: World) -> BaseTool:
    """A tool whose answer is lost for the order "lost"."""

    @tool
    def ship(order: str, city: str) -> str:
        """Ship an order."""
        world.append(city)
        return "shipped" if order != "lost" else str(lose())

    return ship


def _node_calling(ship: BaseTool, *calls: dict[str, str], way: str) -> Any:
    """A graph whose node calls ``ship`` in its own code, and then writes that the order is on its way."""

    def act(state: Any) -> Any:
        for call in calls[:-1]:
            with contextlib.suppress(ValueError):
                ship.invoke(call)
        ship.invoke(calls[-1])
        return {"messages": [("ai", "on its way")]}

    async def aact(state: Any) -> Any:
        for call in calls[:-1]:
            with contextlib.suppress(ValueError):
                await ship.ainvoke(call)
        await ship.ainvoke(calls[-1])
        return {"messages": [("ai", "on its way")]}

    graph: Any = StateGraph(MessagesState)
    graph.add_node("act", act if way == "invoke" else aact)
    graph.add_edge(START, "act")
    return graph.compile(checkpointer=InMemorySaver())


REFUSED: dict[str, tuple[Any, list[dict[str, str]], type[SagaspanError]]] = {
    "conflict": ({"key": "order"}, [{"order": "o", "city": "A"}, {"order": "o", "city": "B"}], KeyConflict),
    "doubt": ({"effect": "write"}, [{"order": "lost", "city": "A"}] * 2, OutcomeUnknown),
    "rate": ({"rate": "1/hour"}, [{"order": "o", "city": "A"}, {"order": "o", "city": "B"}], RateLimited),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_the_code_of_a_node_gets_a_refusal_as_an_exception(
    guard: Guard, world: World, ship: BaseTool, way: str, kind: str
) -> None:
    """No model asked, so nothing is returned that the code could take for a result; the node is not done."""
    policy, calls, expected = REFUSED[kind]
    agent = guard.wrap(_node_calling(ship, *calls, way=way), {"ship": policy})
    with pytest.raises(expected):
        agent.invoke(ask(), on("t")) if way == "invoke" else await agent.ainvoke(ask(), on("t"))
    assert world == ["A"]
    state = agent.get_state(on("t"))
    assert (state.next, [message.content for message in state.values["messages"]]) == (("act",), ["go"])


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_the_code_of_a_node_gets_a_denial_as_an_exception(
    guard: Guard, world: World, ship: BaseTool, way: str
) -> None:
    agent = guard.wrap(_node_calling(ship, {"order": "o", "city": "A"}, way=way), {"ship": {"approve": True}})

    async def go(given: Any) -> Any:
        return agent.invoke(given, on("t")) if way == "invoke" else await agent.ainvoke(given, on("t"))

    assert (await go(ask()))["__interrupt__"]
    with pytest.raises(ApprovalDenied, match="too far"):
        await go(Command(resume={"decisions": [{"type": "reject", "message": "too far"}]}))
    assert (world, agent.get_state(on("t")).next) == ([], ("act",))


def test_code_that_hands_on_the_call_of_a_model_gets_a_message(guard: Guard, world: World, ship: BaseTool) -> None:
    """The id of the tool call is the model's, so the answer is for the model."""
    steps = [("ship", {"order": "o", "city": city}) for city in "AB"]
    chat = model(*steps)
    graph: Any = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [chat.invoke(state["messages"])]})
    graph.add_node("act", lambda state: {"messages": [ship.invoke(state["messages"][-1].tool_calls[0])]})
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", lambda state: "act" if state["messages"][-1].tool_calls else "__end__")
    graph.add_edge("act", "model")
    agent = guard.wrap(graph.compile(checkpointer=InMemorySaver()), {"ship": {"key": "order"}})
    first, second = answers(agent.invoke(ask(), on("t")))
    assert (first.content, first.status, second.status) == ("shipped", "success", "error")
    assert (json.loads(second.content)["error"], world) == ("KeyConflict", ["A"])


def test_the_code_of_a_tool_gets_a_refusal_as_an_exception(guard: Guard, world: World, ship: BaseTool) -> None:
    """The model asked for the tool around it; what that tool calls is its own code's question."""
    caught: list[str] = []

    @tool
    def fulfil(city: str) -> str:
        """Fulfil an order."""
        try:
            return str(ship.invoke({"order": "o", "city": city}))
        except KeyConflict as conflict:
            caught.append(type(conflict).__name__)
            return "shipped before"

    agent = create_agent(model(("fulfil", {"city": "A"}), ("fulfil", {"city": "B"})), [fulfil])
    output = guard.wrap(agent, {"ship": {"key": "order"}, "fulfil": {"effect": "idempotent"}}).invoke(ask())
    assert [answer.content for answer in answers(output)] == ["shipped", "shipped before"]
    assert (world, caught) == (["A"], ["KeyConflict"])


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_the_model_of_an_executor_is_told(guard: Guard, world: World, ship: BaseTool, way: str) -> None:
    """``AgentExecutor`` calls tools for its model, but hands on no tool call id."""
    from langchain_classic.agents import AgentExecutor, create_tool_calling_agent

    prompt = ChatPromptTemplate.from_messages([("user", "{input}"), MessagesPlaceholder("agent_scratchpad")])
    chat = model(*[("ship", {"order": "o", "city": city}) for city in "AB"])
    executor = AgentExecutor(
        agent=create_tool_calling_agent(chat, [ship], prompt), tools=[ship], return_intermediate_steps=True
    )
    agent = guard.wrap(executor, {"ship": {"key": "order"}})
    output = agent.invoke({"input": "go"}) if way == "invoke" else await agent.ainvoke({"input": "go"})
    first, second = [observation for _, observation in output["intermediate_steps"]]
    assert (output["output"], first, second["error"], world) == ("done", "shipped", "KeyConflict", ["A"])


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_code_that_calls_a_tool_alone_gets_a_refusal_as_an_exception(
    guard: Guard, ship: BaseTool, way: str
) -> None:
    """Also where only the tool is wrapped; what its policy wants as data (``critical=False``) stays data."""
    guarded = guard.wrap(ship, {"ship": {"key": "order"}})
    with guard.run("r"):
        guarded.invoke({"order": "o", "city": "A"})
        with pytest.raises(KeyConflict):
            given = {"order": "o", "city": "B"}
            guarded.invoke(given) if way == "invoke" else await guarded.ainvoke(given)
        quiet = guard.wrap(ship.model_copy(update={"name": "quiet"}), {"quiet": {"critical": False}})
        assert set(quiet.invoke({"order": "lost", "city": "C"})) == {"status", "error", "call"}


def test_a_timeout_is_told_as_unknown(guard: Guard, agent_with: Any) -> None:
    """A write that did not answer in time is unknown, not failed."""
    agent = agent_with(lambda amount: time.sleep(0.5), 1.0)
    wrapped = guard.wrap(agent, {"pay": {"effect": "write", "timeout": 0.05}}, run_id="r")
    (message,) = answers(wrapped.invoke(ask()))
    told = json.loads(message.content)
    (call,) = calls_of(guard, "r")
    assert (told["status"], told["error"], told["record"]) == ("unknown", "ToolTimeout", call.id)
    assert told["next"].startswith(f"sagaspan calls resolve {call.id} ")
    assert message.status == "error"


class Odd(Exception):
    """An error whose constructor takes something else than its arguments."""

    def __init__(self, code: int, *, hint: str) -> None:
        super().__init__(f"code {code}")
        self.code, self.hint = code, hint


@pytest.mark.parametrize(
    "error",
    [RunClosed("ended", status="held"), KeyConflict("k"), Odd(3, hint="h"), FileNotFoundError(2, "no such", "f")],
)
def test_a_leaving_error_is_still_itself(error: Exception) -> None:
    """On its way out an error passes every handler of LangGraph and keeps type, text and attributes."""
    carrier = errors.leaving(error)
    assert isinstance(carrier, type(error))
    assert isinstance(carrier, GraphBubbleUp)
    assert (str(carrier), carrier.args) == (str(error), error.args)
    assert {name: getattr(carrier, name) for name in vars(error)} == vars(error)
    assert type(carrier).__name__ == type(error).__name__
    assert errors.original(carrier) is error
    assert errors.leaving(carrier) is carrier


def _swallowing(tools: list[Any], *steps: Any) -> Any:
    """A graph that makes a message of every error of its tools, and goes on."""
    chat = model(*steps)
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [chat.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode(tools, handle_tool_errors=True))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else "__end__")
    graph.add_edge("tools", "model")
    return graph.compile()


def test_a_closed_run_ends_an_agent_that_swallows_errors(guard: Guard, world: World) -> None:
    """``RunClosed`` leaves ``invoke`` as itself, whatever the graph does with the errors of its tools."""

    @tool
    def stop() -> str:
        """Abort the run in force."""
        run = guard.current_run()
        assert run is not None
        run.abort("enough")
        return "ok"

    @tool
    def pay(amount: float) -> str:
        """Pay."""
        world.append(amount)
        return "paid"

    agent = guard.wrap(_swallowing([stop, pay], ("stop", {}), ("pay", {"amount": 1.0})))
    with pytest.raises(RunClosed) as caught:
        agent.invoke(ask())
    assert type(caught.value) is RunClosed
    assert world == []


def test_a_closed_run_leaves_an_agent_of_guarded_tools(guard: Guard) -> None:
    """Also where only the tools are guarded, ``except RunClosed`` around ``invoke`` works."""

    @tool
    def pay(amount: float) -> str:
        """Pay."""
        return "paid"

    agent = _swallowing(guard.wrap([pay]), ("pay", {"amount": 1.0}))
    with guard.run("r", id="r") as run:
        run.abort("enough")
        with pytest.raises(RunClosed):
            agent.invoke(ask())


@pytest.mark.parametrize("mode", ["invoke", "ainvoke"])
async def test_a_critical_failure_is_not_swallowed(guard: Guard, world: World, mode: str) -> None:
    """``critical=True``: the failure passes every handler, the run is undone, the caller gets the very error."""
    raised = ToolException("the ledger of the bank is on fire")

    @tool
    def book(city: str) -> str:
        """Book."""
        world.append(city)
        return city

    def broken() -> str:
        """Break."""
        raise raised

    critical = StructuredTool.from_function(broken, handle_tool_error=True)
    policies = {"book": {"compensate": lambda result: world.append(f"cancel {result}")}, "broken": {"critical": True}}
    agent = guard.wrap(_swallowing([book, critical], ("book", {"city": "A"}), ("broken", {})), policies)
    with pytest.raises(ToolException) as caught:
        agent.invoke(ask()) if mode == "invoke" else await agent.ainvoke(ask())
    assert caught.value is raised
    assert world == ["A", "cancel A"]


def test_a_critical_failure_of_a_single_tool_is_raised(guard: Guard) -> None:
    """The tool's own ``handle_tool_error`` makes no message of a critical failure, and a timeout is no data."""

    def broken() -> str:
        """Break."""
        raise ToolException("no")

    def slow() -> str:
        """Slow."""
        time.sleep(0.5)
        return "late"

    for body, fields in ((broken, {}), (slow, {"timeout": 0.05})):
        critical = StructuredTool.from_function(body, handle_tool_error=True)
        guarded = guard.wrap(critical, {body.__name__: {"critical": True, **fields}})
        with pytest.raises((ToolException, ToolTimeout)):
            guarded.invoke({"name": body.__name__, "args": {}, "id": "c", "type": "tool_call"})


def test_an_uncritical_failure_is_data(guard: Guard, world: World) -> None:
    """``critical=False``: an agent that would have ended on the error is told of it instead, and goes on."""

    @tool(response_format="content_and_artifact")
    def broken() -> tuple[str, Any]:
        """Break."""
        raise Lost("gone")

    agent = create_agent(model(("broken", {})), [broken])
    with pytest.raises(Lost):
        agent.invoke(ask())
    output = guard.wrap(agent, {"broken": {"critical": False}}, run_id="r").invoke(ask())
    (message,) = answers(output)
    assert message.status == "error"
    assert json.loads(message.content)["error"] == "Lost: gone"
    assert output["messages"][-1].content == "done"
    assert steps_of(guard, "r") == [("broken", "failed")]


def test_a_handled_failure_undoes_nothing(guard: Guard, world: World) -> None:
    """An error that the graph gave to the model is the model's business: the run completes."""

    @tool
    def book(city: str) -> str:
        """Book."""
        world.append(city)
        return city

    @tool
    def broken() -> str:
        """Break."""
        raise Lost("gone")

    agent = _swallowing([book, broken], ("book", {"city": "A"}), ("broken", {}))
    policies = {"book": {"compensate": lambda result: world.append(f"cancel {result}")}}
    guard.wrap(agent, policies, run_id="r").invoke(ask())
    assert world == ["A"]
    assert states(guard) == {"r": "completed"}


def test_arguments_that_cannot_be_recorded_end_the_agent(guard: Guard) -> None:
    """A mistake in the setup is raised where the developer sees it, not told to the model."""

    @tool
    def take(thing: Any) -> str:
        """Take."""
        return "ok"

    with pytest.raises(ConfigurationError, match="thing"):
        guard.wrap(take).invoke({"thing": object()})


def test_a_refusal_is_an_error_for_langchains_callbacks(guard: Guard) -> None:
    """The answer has the name of the tool and the status of an error, so tracers and middleware read it right."""

    @tool
    def pay(order: str, amount: float) -> str:
        """Pay."""
        return "paid"

    guarded = guard.wrap(pay, {"pay": {"key": "order"}})
    with guard.run("r"):
        guarded.invoke({"order": "o", "amount": 1.0})
        message = guarded.invoke(
            {"name": "pay", "args": {"order": "o", "amount": 2.0}, "id": "c9", "type": "tool_call"}
        )
    assert isinstance(message, ToolMessage)
    assert (message.name, message.status, message.tool_call_id) == ("pay", "error", "c9")


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_a_failure_shows_the_code_of_the_agent_and_the_tool(
    guard: Guard, agent_with: Any, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """And not the fifty frames of ours and the framework's between them, which SAGASPAN_TRACEBACKS=full keeps."""

    def body(amount: float) -> None:
        raise Lost

    agent = guard.wrap(agent_with(body, 1.0), {"pay": {"effect": "write"}})
    shown = []
    for kept in ("", "full"):
        monkeypatch.setenv("SAGASPAN_TRACEBACKS", kept)
        with pytest.raises(Lost) as raised:
            await agent.ainvoke(ask()) if way == "ainvoke" else agent.invoke(ask())
        shown.append([frame.name for frame in traceback.extract_tb(raised.value.__traceback__)])
    short, full = shown
    assert short[0] == full[0] == "test_a_failure_shows_the_code_of_the_agent_and_the_tool"
    assert short[-2:] == full[-2:] == ["pay", "body"]
    assert len(short) < 10 < 30 < len(full)
