"""LangChain's own models of two providers, against a server that keeps true books of what it generated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from sagaspan import BudgetExceeded, Guard
from tests.adapters.langchain.scripts import ask, calls_of, model_calls_of
from tests.providers.replies import Reply, ToolCall
from tests.providers.server import ModelServer

World = list[Any]
SPOKEN = Reply(text="Good morning to you.", input_tokens=120, output_tokens=30)
CALLED = Reply(
    text="", tool_calls=(ToolCall(name="pay", arguments={"to": "A"}, id="call_7"),), input_tokens=90, output_tokens=20
)


def _openai(server: ModelServer) -> Any:
    return ChatOpenAI(
        model="gpt-4o", base_url=f"{server.url}/v1", api_key="test", max_retries=0, max_tokens=200, stream_usage=True
    )


def _responses(server: ModelServer) -> Any:
    return ChatOpenAI(
        model="gpt-5",
        base_url=f"{server.url}/v1",
        api_key="test",
        max_retries=0,
        max_tokens=200,
        use_responses_api=True,
    )


def _anthropic(server: ModelServer) -> Any:
    return ChatAnthropic(
        model_name="claude-sonnet-5", base_url=server.url, api_key="test", max_retries=0, max_tokens_to_sample=200
    )


MODELS = {"chat": _openai, "responses": _responses, "messages": _anthropic}
WAYS = ("invoke", "ainvoke", "stream", "astream")


@pytest.fixture(params=MODELS)
def made(request: Any) -> Callable[[ModelServer], Any]:
    return MODELS[request.param]


@pytest.fixture
def priced(tmp_path: Any) -> Any:
    """A guard with the prices that everybody has, and a budget."""
    with Guard(f"sqlite:///{tmp_path}/priced.db", budget="1 USD") as guard:
        yield guard


async def _asked(target: Any, way: str, given: Any) -> Any:
    match way:
        case "invoke":
            return target.invoke(given)
        case "ainvoke":
            return await target.ainvoke(given)
        case "stream":
            return list(target.stream(given))
        case _:
            return [chunk async for chunk in target.astream(given)]


@pytest.mark.parametrize("way", WAYS)
async def test_what_is_booked_is_what_the_server_counted(
    priced: Guard, model_server: ModelServer, made: Any, way: str
) -> None:
    """To the token, streamed or not, at the price of the table; what nobody says is booked as reserved, never as 0."""
    model_server.say(SPOKEN)
    chat = priced.wrap(made(model_server))
    async with priced.run("r", id="r"):
        await _asked(chat, way, "hi")
    (call,) = model_calls_of(priced, "r")
    spent = priced.usage(run="r")
    assert (model_server.input_tokens, model_server.output_tokens) == (120, 30)
    if made is _anthropic and "stream" in way:  # this server counts the input where LangChain does not look
        assert (spent.input_tokens > 120, spent.output_tokens) == (True, 30)
    else:
        assert (spent.input_tokens, spent.output_tokens) == (120, 30)
    assert spent.spent > 0
    assert (call.state, spent.reserved) == ("done", 0)


@pytest.mark.parametrize("way", WAYS)
async def test_an_agent_with_tools(priced: Guard, model_server: ModelServer, made: Any, world: World, way: str) -> None:
    """Its tool runs once with what the model said; both requests are booked."""

    @tool
    def pay(to: str) -> str:
        """Pay."""
        world.append(to)
        return "paid"

    model_server.say(CALLED, SPOKEN)
    agent = priced.wrap(create_agent(made(model_server), [pay]), {"pay": {"effect": "write"}}, run_id="r")
    await _asked(agent, way, ask())
    assert (world, [call.tool for call in calls_of(priced, "r")]) == (["A"], ["pay"])
    spent = priced.usage(run="r")
    assert (
        (spent.input_tokens, spent.output_tokens)
        == (model_server.input_tokens, model_server.output_tokens)
        == (210, 50)
    )


@pytest.mark.parametrize("way", WAYS)
async def test_nothing_is_sent_over_the_budget(priced: Guard, model_server: ModelServer, made: Any, way: str) -> None:
    """It is refused before the request leaves."""
    chat = priced.wrap(made(model_server))
    with pytest.raises(BudgetExceeded):
        async with priced.run("r", budget="0.0000001 USD"):
            await _asked(chat, way, "hi")
    assert model_server.requests == []


def test_a_stream_whose_usage_nobody_asked_for_is_booked_as_reserved(priced: Guard, model_server: ModelServer) -> None:
    """LangChain does not ask for it behind a ``base_url`` of one's own: the books err to the safe side."""
    model_server.say(SPOKEN)
    chat = ChatOpenAI(model="gpt-4o", base_url=f"{model_server.url}/v1", api_key="test", max_tokens=200)
    with priced.run("r", id="r"):
        list(priced.wrap(chat).stream("hi"))
    spent = priced.usage(run="r")
    assert spent.output_tokens == 200
    assert spent.input_tokens > model_server.input_tokens
