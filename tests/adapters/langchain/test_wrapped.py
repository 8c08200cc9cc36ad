"""Middleware that changes a call on its way to the tool: people are asked about the call that is made."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware, ToolRetryMiddleware
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from pydantic import ValidationError

from sagaspan import Guard, Policy
from tests.adapters.langchain.scripts import answers, ask, model, on, states, steps_of

World = list[Any]
GATED = Policy(effect="write", approve=True)
YES = {"type": "approve"}


@pytest.fixture
def pay(world: World) -> BaseTool:
    @tool
    def pay(to: str) -> str:
        """Pay."""
        world.append(f"paid {to}")
        return f"paid {to}"

    return pay


@pytest.fixture
def mail(world: World) -> BaseTool:
    @tool
    def mail(to: str) -> str:
        """Write to somebody."""
        world.append(f"mailed {to}")
        return f"mailed {to}"

    return mail


def _agent(guard: Guard, tools: list[BaseTool], *middleware: Any, asks: str = "pay") -> Any:
    made = create_agent(model((asks, {"to": "A"})), tools, middleware=middleware, checkpointer=InMemorySaver())
    return guard.wrap(made, {"pay": GATED})


def _asked(output: Any) -> list[tuple[str, Any]]:
    (question,) = output["__interrupt__"]
    return [(one["name"], one["args"]) for one in question.value["action_requests"]]


async def _given(agent: Any, way: str, answer: Any) -> Any:
    given = answer if isinstance(answer, dict) and "messages" in answer else Command(resume=answer)
    return agent.invoke(given, on("t")) if way == "invoke" else await agent.ainvoke(given, on("t"))


def _edit(name: str, to: str) -> dict[str, Any]:
    return {"decisions": [{"type": "edit", "edited_action": {"name": name, "args": {"to": to}}}]}


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
@pytest.mark.parametrize("first", ["pay", "mail"])
async def test_what_langchain_s_own_middleware_edits_is_what_we_ask_about(
    guard: Guard, world: World, pay: BaseTool, mail: BaseTool, way: str, first: str
) -> None:
    """Its edit is made on the way to the tool; nobody is asked about the call of before."""
    own = HumanInTheLoopMiddleware(interrupt_on={first: True})
    agent = _agent(guard, [pay, mail], own, asks=first)
    assert _asked(await _given(agent, way, ask())) == [(first, {"to": "A"})]
    assert _asked(await _given(agent, way, _edit("pay", "X"))) == [("pay", {"to": "X"})]
    assert world == []
    await _given(agent, way, {"decisions": [YES]})
    assert (world, states(guard)) == (["paid X"], {"t/1": "completed"})


@pytest.mark.skipif(
    "interrupt_mode" not in inspect.signature(HumanInTheLoopMiddleware).parameters,
    reason="this LangChain's own middleware asks once for all calls of a message",
)
@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_its_question_to_a_call_comes_before_ours(guard: Guard, world: World, pay: BaseTool, way: str) -> None:
    """``per_call`` asks within the same task: each answer is for its own question."""
    own = HumanInTheLoopMiddleware(interrupt_on={"pay": True}, interrupt_mode="per_call")
    agent = _agent(guard, [pay], own)
    assert (await _given(agent, way, ask()))["__interrupt__"][0].value["type"] == "tool_approval"
    assert _asked(await _given(agent, way, YES)) == [("pay", {"to": "A"})]
    assert world == []
    output = await _given(agent, way, {"decisions": [{"type": "reject", "message": "too dear"}]})
    assert (world, "too dear" in answers(output)[0].content) == ([], True)


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_our_edit_is_made_within_it(guard: Guard, world: World, pay: BaseTool, mail: BaseTool, way: str) -> None:
    """To another tool too, and the model's message names what really ran."""
    agent = _agent(guard, [pay, mail], ToolRetryMiddleware(max_retries=1))
    await _given(agent, way, ask())
    output = await _given(agent, way, _edit("mail", "B"))
    assert world == ["mailed B"]
    calls = [call for message in output["messages"] for call in getattr(message, "tool_calls", ())]
    assert [(call["name"], call["args"]) for call in calls] == [("mail", {"to": "B"})]


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_who_makes_messages_of_errors_makes_none_of_a_question(
    guard: Guard, world: World, pay: BaseTool, way: str
) -> None:
    """LangChain's own pages show such a middleware. A wrong answer is refused through it, too."""

    class Tells(AgentMiddleware):
        def wrap_tool_call(self, request: Any, handler: Any) -> Any:
            try:
                return handler(request)
            except Exception as error:
                return ToolMessage(f"it failed: {error}", tool_call_id=request.tool_call["id"])

        async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            try:
                return await handler(request)
            except Exception as error:
                return ToolMessage(f"it failed: {error}", tool_call_id=request.tool_call["id"])

    agent = _agent(guard, [pay], Tells())
    assert _asked(await _given(agent, way, ask())) == [("pay", {"to": "A"})]
    with pytest.raises(ValidationError):
        await _given(agent, way, {"decisions": []})
    assert (world, states(guard)) == ([], {"t/1": "paused"})
    await _given(agent, way, {"decisions": [YES]})
    assert (world, states(guard)) == (["paid A"], {"t/1": "completed"})


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_who_tries_again_asks_again(guard: Guard, world: World, way: str) -> None:
    """An approval is used once."""

    @tool
    def pay(to: str) -> str:
        """Pay, at the second attempt."""
        world.append(to)
        if len(world) < 2:
            raise ConnectionRefusedError("away")
        return "paid"

    agent = _agent(guard, [pay], ToolRetryMiddleware(max_retries=2, initial_delay=0, jitter=False))
    await _given(agent, way, ask())
    assert _asked(await _given(agent, way, {"decisions": [YES]})) == [("pay", {"to": "A"})]
    output = await _given(agent, way, {"decisions": [YES]})
    assert (world, answers(output)[0].content) == (["A", "A"], "paid")
    assert steps_of(guard, "t/1") == [("pay", "done")]


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_a_tool_that_is_added_on_the_way_is_asked_about(
    guard: Guard, world: World, pay: BaseTool, mail: BaseTool, way: str
) -> None:
    """The node does not know it before."""

    class Adds(AgentMiddleware):
        def wrap_tool_call(self, request: Any, handler: Any) -> Any:
            return handler(request.override(tool=request.tool or pay))

        async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            return await handler(request.override(tool=request.tool or pay))

        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            return handler(request.override(tools=[*request.tools, pay]))

        async def awrap_model_call(self, request: Any, handler: Any) -> Any:
            return await handler(request.override(tools=[*request.tools, pay]))

    made = create_agent(model(("pay", {"to": "A"})), [mail], middleware=[Adds()], checkpointer=InMemorySaver())
    agent = guard.wrap(made, {"pa*": GATED})
    assert _asked(await _given(agent, way, ask())) == [("pay", {"to": "A"})]
    assert world == []
    await _given(agent, way, {"decisions": [YES]})
    assert (world, states(guard)) == (["paid A"], {"t/1": "completed"})
