"""The scripted provider is one: the real SDKs talk to it, and its books are true."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from sagaspan.llm.demands import embeddings_demand
from sagaspan.llm.prices import Prices
from sagaspan.llm.responses import read_usage
from sagaspan.llm.streams import StreamUsage
from sagaspan.llm.usage import Usage
from tests.providers.apis import CHAT, MESSAGE, PAY, SAY, TOOLS, Api
from tests.providers.replies import Reply, never
from tests.providers.server import ModelServer

# Which models are near their end is the SDK's to say, and changes.
pytestmark = pytest.mark.filterwarnings("ignore:The model .* is deprecated:DeprecationWarning")


@pytest.fixture(params=["chat", "responses", "messages"])
def api(request: pytest.FixtureRequest, model_server: ModelServer) -> Api:
    """Each of the three ways to talk to a model."""
    return Api(request.param, model_server)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_the_sdks_get_an_answer(api: Api, is_async: bool) -> None:
    """Text, model and usage come through, the books agree, and the demand and its price bound what it cost."""
    response = asyncio.run(api.acreate()) if is_async else api.create()
    assert api.text(response) == "Hello there."
    usage = read_usage(response)
    assert usage is not None
    assert usage.model == api.arguments["model"]
    assert (usage.input_tokens, usage.output_tokens) == (api.server.input_tokens, api.server.output_tokens)
    assert usage.output_tokens == 2
    demand = api.demand(api.arguments)
    assert usage.input_tokens <= demand.input_tokens
    prices, model = Prices(), api.arguments["model"]
    assert 0 < prices.price_of(model, usage).nano_usd <= prices.bound(model, demand).nano_usd
    (bill,) = api.server.bills
    assert bill.delivered


def _read(stream: Any) -> tuple[StreamUsage, int]:
    state, events = StreamUsage(), 0
    for event in stream:
        state, events = state.after(event), events + 1
    return state, events


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_the_sdks_stream_an_answer(api: Api, is_async: bool) -> None:
    """The stream says what the answer would have said, and is as exact."""
    api.server.default = Reply(text="One two three.", reasoning="Well now.", tool_calls=(PAY,), cache_read_tokens=3)

    async def read() -> StreamUsage:
        state = StreamUsage()
        async with api.client(is_async=True) as client:
            async for event in await api.resource(client).create(**api.arguments, **api.streamed()):
                state = state.after(event)
        return state

    state = asyncio.run(read()) if is_async else _read(api.create(**api.streamed()))[0]
    whole = read_usage(api.create())
    assert state.usage == whole
    assert state.usage is not None
    assert state.usage.output_tokens == api.server.bills[0].output_tokens
    assert state.visible_bytes >= len('One two three.{"amount": 20, "card": "c1"}')
    assert api.server.bills[0].delivered


def test_helpers_of_the_sdks_stream_too(model_server: ModelServer) -> None:
    """``stream()`` and ``parse`` of both SDKs understand what is sent."""
    client = model_server.openai()
    with client.chat.completions.stream(model="gpt-4o", messages=SAY) as stream:
        assert "".join(event.delta for event in stream if event.type == "content.delta") == "Hello there."
    with client.responses.stream(model="gpt-5", input=SAY) as responses:
        assert responses.until_done().get_final_response().output_text == "Hello there."
    with model_server.anthropic().messages.stream(**MESSAGE) as messages:
        assert "".join(messages.text_stream) == "Hello there."
        assert messages.get_final_message().usage.output_tokens == 2
    raw = client.chat.completions.with_raw_response.create(**CHAT)
    assert raw.parse().choices[0].message.content == "Hello there."
    assert read_usage(raw.parse()) is not None


def test_tools_are_called(api: Api) -> None:
    """A tool call comes through whole and in pieces."""
    api.server.default = Reply(text="", tool_calls=(PAY,))
    name, arguments = api.called(api.create(tools=TOOLS[api.name]))
    assert name == "pay"
    assert arguments in ({"amount": 20, "card": "c1"}, '{"amount": 20, "card": "c1"}')
    pieces = []
    for event in api.create(tools=TOOLS[api.name], **api.streamed()):
        if api.name == "chat":
            pieces += [call.function.arguments for choice in event.choices for call in choice.delta.tool_calls or ()]
        elif event.type in ("response.function_call_arguments.delta", "content_block_delta"):
            pieces.append(event.delta if api.name == "responses" else event.delta.partial_json)
    assert "".join(piece or "" for piece in pieces) == '{"amount": 20, "card": "c1"}'
    assert api.server.requests[0].body["tools"] == TOOLS[api.name]


def test_embeddings(model_server: ModelServer) -> None:
    """Vectors, and a bill for the input alone."""
    arguments = {"model": "text-embedding-3-small", "input": ["one two", "three"]}
    response = model_server.openai().embeddings.create(**arguments)
    assert len(response.data) == 2
    assert response.data[0].embedding == pytest.approx([0.1, 0.2])
    usage = read_usage(response)
    assert usage == Usage(input_tokens=model_server.input_tokens, model="text-embedding-3-small")
    assert usage.input_tokens <= embeddings_demand(arguments).input_tokens
    assert model_server.output_tokens == 0


def test_the_request_s_limit_is_kept(api: Api) -> None:
    """No answer is longer than what was asked for, and it says that it was cut."""
    api.server.default = Reply(text="word " * 1000)
    response = api.create()
    usage = read_usage(response)
    assert usage is not None
    assert usage.output_tokens == api.server.output_tokens == 100
    assert len(api.text(response).split()) == 100
    said = response.choices[0].finish_reason if api.name == "chat" else getattr(response, "stop_reason", response)
    assert said in ("length", "max_tokens") or response.incomplete_details.reason == "max_output_tokens"


def test_counts_can_be_scripted(api: Api) -> None:
    """What the provider says it used is what the script says; reasoning is output, within the limit."""
    api.server.say(Reply(input_tokens=5000, output_tokens=90, reasoning_tokens=64, model="served-model"))
    usage = read_usage(api.create())
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.model) == (5000, 90, "served-model")
    api.server.say(Reply(output_tokens=9000))
    usage = read_usage(api.create())
    assert usage is not None
    assert usage.output_tokens == 100
    assert api.server.output_tokens == 190
    api.server.say(Reply(silent_usage=True))
    assert read_usage(api.create()) is None if api.name != "responses" else True


def test_several_choices_are_several_answers(model_server: ModelServer) -> None:
    """``n`` multiplies what is generated."""
    response = model_server.openai().chat.completions.create(**CHAT, n=3)
    assert len(response.choices) == 3
    assert response.usage.completion_tokens == model_server.output_tokens == 6


@pytest.mark.parametrize(("status", "error"), [(429, "RateLimitError"), (500, "InternalServerError")])
def test_errors_are_the_sdks_own(api: Api, status: int, error: str) -> None:
    """A refusal of the provider is raised with its status; nothing is on the bill."""
    api.server.say(Reply(status=status))
    with pytest.raises(getattr(api.errors, error)) as refused:
        api.create()
    assert refused.value.status_code == status
    assert api.server.bills == []


def test_the_sdks_try_again(api: Api) -> None:
    """Their own retries arrive as requests of their own; only the last one costs."""
    api.server.say(
        Reply(status=429, headers={"retry-after-ms": "1"}), Reply(status=500, headers={"retry-after-ms": "1"})
    )
    response = api.resource(api.client(max_retries=2)).create(**api.arguments)
    assert api.text(response) == "Hello there."
    assert len(api.server.requests) == 3
    assert len(api.server.bills) == 1


def test_a_provider_that_hangs(api: Api) -> None:
    """The client gives up; the request was made, and what the provider does with it nobody knows."""
    api.server.default = Reply(until=never)
    with pytest.raises(api.errors.APITimeoutError):
        api.resource(api.client(timeout=0.2)).create(**api.arguments)
    assert len(api.server.requests) == 1


def test_a_line_that_breaks_before_the_answer(api: Api) -> None:
    """The answer was generated and is on the bill; the client only sees a lost connection."""
    api.server.default = Reply(drop_after=0)
    with pytest.raises(api.errors.APIConnectionError):
        api.create()
    assert api.server.output_tokens == 2
    assert not api.server.bills[0].delivered


def test_a_stream_that_breaks(api: Api) -> None:
    """What was generated until then is on the bill, and the stream never said what it used."""
    api.server.default = Reply(text="word " * 50, drop_after=10)
    state = StreamUsage()

    def read() -> None:
        nonlocal state
        for event in api.create(**api.streamed()):
            state = state.after(event)

    with pytest.raises(Exception, match=r"(?i)connection|peer|incomplete"):
        read()
    assert state.usage is None
    api.server.wait_for(lambda server: bool(server.bills) and server.output_tokens > 0)
    assert 0 < api.server.output_tokens < 50
    assert not api.server.bills[0].delivered


def test_a_stream_that_fails_in_the_middle(api: Api) -> None:
    """The provider says in the stream that it failed: the SDK raises its error."""
    api.server.default = Reply(text="word " * 50, error_after=8)
    stream = api.create(**api.streamed())
    if api.name == "responses":
        assert [event.type for event in stream][-1] == "error"
    else:
        with pytest.raises(api.errors.APIError):
            list(stream)
    assert 0 < api.server.output_tokens < 50


def test_a_stream_that_is_left(api: Api) -> None:
    """A client that goes away has what was made until then on its bill, and no more."""
    pace = threading.Semaphore(8)
    api.server.default = Reply(text="word " * 90, paced_by=pace)
    stream = api.create(**api.streamed())
    for _ in range(5):
        next(stream)
    stream.close()
    for _ in range(200):
        pace.release()
    api.server.wait_for(lambda server: server._at_once == 0)
    assert 0 < api.server.output_tokens < 90
    assert not api.server.bills[0].delivered


def test_many_callers_at_once(api: Api) -> None:
    """Every request is counted once, however many come together."""
    together = threading.Event()
    api.server.default = Reply(until=together)
    with ThreadPoolExecutor(16) as pool:
        client = api.client()
        calls = [pool.submit(lambda: api.resource(client).create(**api.arguments)) for _ in range(16)]
        api.server.wait_for(lambda server: len(server.requests) == 16)
        together.set()
        assert all(api.text(call.result()) == "Hello there." for call in calls)
    assert api.server.most_at_once == 16
    assert len(api.server.bills) == 16
    assert api.server.output_tokens == 32


def test_what_the_providers_refuse(model_server: ModelServer) -> None:
    """An answer longer than the model can give, a request without messages, an address that is none, no key."""
    model_server.output_limits["gpt-4o"] = 16_384
    client = model_server.openai()
    with pytest.raises(openai.BadRequestError, match="max_tokens is too large"):
        client.chat.completions.create(model="gpt-4o", messages=SAY, max_tokens=100_000)
    with pytest.raises(openai.BadRequestError, match="Missing required parameter"):
        client.post("/chat/completions", body={"model": "gpt-4o"}, cast_to=object)
    with pytest.raises(openai.NotFoundError):
        client.post("/nowhere", body={}, cast_to=object)
    assert model_server.bills == []


def test_answers_can_follow_the_request(model_server: ModelServer) -> None:
    """A function of the request, for agents whose questions come in no fixed order."""
    model_server.answers = lambda request: Reply(text=request.body["messages"][-1]["content"].upper())
    said = model_server.openai().chat.completions.create(**CHAT)
    assert said.choices[0].message.content.startswith("SAY HELLO")
