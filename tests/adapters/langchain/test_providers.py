"""LangChain's own models of two providers, against a server that keeps true books of what it generated."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import httpx
import pytest
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

from sagaspan import BudgetExceeded, Guard
from tests.adapters.langchain.scripts import ask, calls_of, model_calls_of
from tests.providers.replies import Reply, ToolCall
from tests.providers.server import ModelServer

World = list[Any]
SPOKEN = Reply(text="Good morning to you.", input_tokens=120, output_tokens=30)
CALLED = Reply(
    text="", tool_calls=(ToolCall(name="pay", arguments={"to": "A"}, id="call_7"),), input_tokens=90, output_tokens=20
)


def _openai(server: ModelServer, limit: int | None = 200) -> Any:
    return ChatOpenAI(
        model="gpt-4o", base_url=f"{server.url}/v1", api_key="test", max_retries=0, max_tokens=limit, stream_usage=True
    )


def _responses(server: ModelServer, limit: int | None = 200) -> Any:
    return ChatOpenAI(
        model="gpt-5",
        base_url=f"{server.url}/v1",
        api_key="test",
        max_retries=0,
        max_tokens=limit,
        use_responses_api=True,
    )


def _anthropic(server: ModelServer, limit: int | None = 200) -> Any:
    return ChatAnthropic(
        model_name="claude-sonnet-5", base_url=server.url, api_key="test", max_retries=0, max_tokens_to_sample=limit
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


@pytest.mark.parametrize("way", WAYS)
async def test_a_model_without_a_limit_gets_one_that_a_small_budget_can_pay_for(
    priced: Guard, model_server: ModelServer, made: Any, way: str
) -> None:
    """Each request is sent with a limit of its own; the model of the user is left alone."""
    model_server.say(SPOKEN, SPOKEN)
    own = made(model_server, None)
    before = own.max_tokens
    chat = priced.wrap(own)
    async with priced.run("r", id="r", budget="0.05 USD"):
        await _asked(chat, way, "hi")
        await _asked(chat, way, "and now?")
    sent = [_limit_of(request.body) for request in model_server.requests]
    assert len(sent) == 2
    assert all(16 <= limit <= 5000 for limit in sent)
    assert own.max_tokens == chat.max_tokens == before
    assert 0 < priced.usage(run="r").spent < Decimal("0.05")


def _limit_of(body: dict[str, Any]) -> int:
    names = ("max_completion_tokens", "max_output_tokens", "max_tokens")
    (limit,) = (body[name] for name in names if name in body)
    return int(limit)


async def test_a_limit_of_the_users_own_is_never_changed(priced: Guard, model_server: ModelServer, made: Any) -> None:
    """What it asks for does not fit: the error names ``max_tokens``, and no scope that no later run has."""
    own = made(model_server, 60_000)
    for chat in (priced.wrap(own), priced.wrap(made(model_server, None).bind(max_tokens=60_000))):
        with pytest.raises(BudgetExceeded, match="With a smaller max_tokens") as caught:
            async with priced.run("r", budget="0.05 USD"):
                await chat.ainvoke("hi")
        assert "budget= in code" in str(caught.value)
        assert "budgets set" not in str(caught.value)
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


# -- texts and vectors -----------------------------------------------------------------------------------------


@pytest.fixture
async def clients() -> Any:
    """What these two classes would else leave open."""
    async with httpx.AsyncClient() as awaited:
        with httpx.Client() as client:
            yield {"http_client": client, "http_async_client": awaited}


def _texts(server: ModelServer, options: Any) -> Any:
    return OpenAI(
        model="gpt-3.5-turbo-instruct", base_url=f"{server.url}/v1", api_key="test", max_retries=0, max_tokens=200,
        **options,
    )  # fmt: skip


def _vectors(server: ModelServer, options: Any) -> Any:
    return OpenAIEmbeddings(
        model="text-embedding-3-small", base_url=f"{server.url}/v1", api_key="test", max_retries=0,
        check_embedding_ctx_length=False, **options,
    )  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
async def test_a_completion_model_is_booked_too(
    priced: Guard, model_server: ModelServer, clients: Any, way: str
) -> None:
    """To the token; of a stream whose usage nobody sends, what was reserved."""
    model_server.say(SPOKEN)
    texts = priced.wrap(_texts(model_server, clients))
    async with priced.run("r", id="r"):
        await _asked(texts, way, "Say good morning.")
    spent = priced.usage(run="r")
    assert (model_server.input_tokens, model_server.output_tokens) == (120, 30)
    if "stream" in way:
        assert (spent.input_tokens > 0, spent.output_tokens) == (True, 200)
    else:
        assert (spent.input_tokens, spent.output_tokens) == (120, 30)
    assert (spent.spent > 0, spent.reserved) == (True, 0)


async def test_prompts_that_are_sent_together_are_one_request(
    priced: Guard, model_server: ModelServer, clients: Any
) -> None:
    """As the provider bills them."""
    model_server.say(Reply(text="Yes.", input_tokens=40, output_tokens=2))
    texts = priced.wrap(_texts(model_server, clients))
    with priced.run("r", id="r"):
        assert texts.batch(["one?", "two?"]) == ["Yes.", "Yes."]
    spent = priced.usage(run="r")
    assert len(model_server.requests) == 1
    assert (spent.calls, spent.input_tokens, spent.output_tokens) == (1, 40, 4)


@pytest.mark.parametrize("way", ["embed_documents", "embed_query", "aembed_documents", "aembed_query"])
async def test_embeddings_are_booked_too(priced: Guard, model_server: ModelServer, clients: Any, way: str) -> None:
    """With no less than the server counted; LangChain does not hand on what it says."""
    vectors = priced.wrap(_vectors(model_server, clients))
    given: Any = "a text of some words" if "query" in way else ["a text", "and another one"]
    async with priced.run("r", id="r"):
        found = getattr(vectors, way)(given)
        found = await found if way.startswith("a") else found
    assert found
    spent = priced.usage(run="r")
    assert (spent.calls, spent.input_tokens >= model_server.input_tokens > 0, spent.spent > 0) == (1, True, True)


@pytest.mark.parametrize("ask_it", [
    lambda guard, server, clients: guard.wrap(_texts(server, clients)).invoke("hi"),
    lambda guard, server, clients: list(guard.wrap(_texts(server, clients)).stream("hi")),
    lambda guard, server, clients: guard.wrap(_vectors(server, clients)).embed_query("hi"),
], ids=["completion", "stream", "embedding"])  # fmt: skip
async def test_nor_are_they_sent_over_the_budget(
    priced: Guard, model_server: ModelServer, clients: Any, ask_it: Any
) -> None:
    """They are refused before the request leaves."""
    with pytest.raises(BudgetExceeded), priced.run("r", budget="0.000000001 USD"):
        ask_it(priced, model_server, clients)
    assert model_server.requests == []
