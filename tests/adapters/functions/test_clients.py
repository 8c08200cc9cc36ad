"""``guard.wrap(OpenAI())`` and its three sisters: the real SDKs, talking to a provider that keeps true books."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from sagaspan import BudgetExceeded, ConfigurationError, Guard, PolicyDenied
from tests.providers.apis import CHAT, MESSAGE, PAY, RESPONSE, SAY, TOOLS, Api
from tests.providers.replies import Reply, never
from tests.providers.server import ModelServer

pytestmark = pytest.mark.filterwarnings("ignore:The model .* is deprecated:DeprecationWarning")

_MODELS = ("gpt-4o", "gpt-5", "claude-sonnet-5", "text-embedding-3-small")
FLAT = {model: {"input": 1, "output": 10, "max_output": 5000} for model in _MODELS}
"""A dollar for a million tokens in, ten out."""
KINDS = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def guard(ledger: str) -> Iterator[Guard]:
    with Guard(ledger, prices=FLAT, budgets={"model:*": "1 USD"}) as guard:
        yield guard


@pytest.fixture(params=["chat", "responses", "messages"])
def api(request: pytest.FixtureRequest, model_server: ModelServer) -> Api:
    """Each of the three ways to talk to a model."""
    return Api(request.param, model_server)


class Guarded:
    """A guarded client of one API: asked, streamed, and its stream read, by either kind of caller."""

    def __init__(self, guard: Guard, api: Api, *, is_async: bool = False, **options: Any) -> None:
        self.api, self.guard, self.is_async, self.options = api, guard, is_async, options
        self.client = None if is_async else guard.wrap(api.client(**options))

    def ask(self, work: Callable[[Any], Any] | None = None, **more: Any) -> Any:
        """``create`` with the usual arguments; ``work`` gets what it returns while the client is open."""
        if self.is_async:
            return asyncio.run(self._ask(work, more))
        response = self.api.resource(self.client).create(**{**self.api.arguments, **more})
        return response if work is None else work(response)

    async def _ask(self, work: Callable[[Any], Any] | None, more: dict[str, Any]) -> Any:
        async with self.guard.wrap(self.api.client(is_async=True, **self.options)) as client:
            response = await self.api.resource(client).create(**{**self.api.arguments, **more})
            return response if work is None else await work(response)

    def read(self, count: int | None = None, **more: Any) -> list[Any]:
        """The first ``count`` events of a stream (None: all), which is closed then."""

        def some(stream: Any) -> list[Any]:
            with stream:
                return [event for _, event in zip(range(count or 10**9), stream, strict=False)]

        async def asome(stream: Any) -> list[Any]:
            events = []
            async with stream:
                async for event in stream:
                    events.append(event)
                    if len(events) == count:
                        break
            return events

        return self.ask(asome if self.is_async else some, stream=True, **more)


def _agrees(guard: Guard, server: ModelServer) -> bool:
    used = guard.usage()
    return (used.input_tokens, used.output_tokens) == (server.input_tokens, server.output_tokens)


def _reserved(guard: Guard, api: Api) -> Decimal:
    return guard.usage(model=api.arguments["model"]).reserved


def _states(guard: Guard) -> list[str]:
    return [call.state for call in guard.calls.list(open=False)]


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.01)


# -- what is metered -------------------------------------------------------------------------------------------------


@KINDS
def test_a_call_is_settled_with_what_it_used(guard: Guard, api: Api, is_async: bool) -> None:
    """The books are the provider's: reserved before, exact after, on the record of the run."""
    api.server.default = Reply(reasoning="Well now.", cache_read_tokens=3)
    with guard.run("desk", id="r", user="u"):
        response = Guarded(guard, api, is_async=is_async).ask()
    assert api.text(response) == "Hello there."
    assert _agrees(guard, api.server)
    assert guard.usage(user="u").cached_tokens == 3
    assert _reserved(guard, api) == 0
    [call] = guard.runs.get("r").calls
    assert (call.tool, call.state) == (f"chat {api.arguments['model']}", "done")


@KINDS
def test_it_is_reserved_while_it_runs(guard: Guard, api: Api, is_async: bool) -> None:
    """The most that it can cost is held until the answer says what it did cost."""
    answer = threading.Event()
    api.server.default = Reply(until=answer)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(Guarded(guard, api, is_async=is_async).ask)
        api.server.wait_for(lambda server: len(server.requests) == 1)
        held = _reserved(guard, api)
        answer.set()
        asked.result()
    assert held >= Decimal("0.001")  # its limit of 100 tokens alone
    assert _reserved(guard, api) == 0


@KINDS
def test_a_stream_is_metered_to_its_end(guard: Guard, api: Api, is_async: bool) -> None:
    """The user sees the same events as without the guard, and the books are exact."""
    api.server.default = Reply(text="One two three.", reasoning="Well now.", tool_calls=(PAY,))
    seen = Guarded(guard, api, is_async=is_async).read(tools=TOOLS[api.name])
    assert _agrees(guard, api.server)
    assert _reserved(guard, api) == 0
    assert _states(guard) == ["done"]
    plain = list(api.create(stream=True, tools=TOOLS[api.name]))
    assert [event.model_dump() for event in seen] == [event.model_dump() for event in plain]


def test_who_asks_for_the_usage_gets_it(guard: Guard, model_server: ModelServer) -> None:
    """And who refuses it is not overruled: then all that was reserved is booked."""
    client = guard.wrap(model_server.openai())
    events = list(client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True}))
    assert events[-1].usage.completion_tokens == 2
    assert _agrees(guard, model_server)
    list(client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": False}))
    assert model_server.requests[-1].body["stream_options"] == {"include_usage": False}
    assert guard.usage().output_tokens == 2 + 100


def test_options_of_a_stream_in_the_extra_body(guard: Guard, model_server: ModelServer) -> None:
    """The SDK lays them over the rest, so the wish to be told the usage goes there too."""
    client = guard.wrap(model_server.openai())
    extra = {"stream_options": {"include_obfuscation": False}}
    list(client.chat.completions.create(**CHAT, stream=True, extra_body=extra))
    assert model_server.requests[-1].body["stream_options"] == {"include_obfuscation": False, "include_usage": True}
    assert _agrees(guard, model_server)
    assert extra == {"stream_options": {"include_obfuscation": False}}


def test_a_limit_in_the_extra_body_is_the_limit(guard: Guard, model_server: ModelServer) -> None:
    """It is reserved and sent as it stands: a second one would be another limit."""
    client = guard.wrap(model_server.openai())
    with guard.run("r", budget="1500 tokens"):
        client.chat.completions.create(model="gpt-4o", messages=SAY, extra_body={"max_tokens": 50})
    body = model_server.requests[-1].body
    assert {name: value for name, value in body.items() if "max" in name} == {"max_tokens": 50}
    with pytest.raises(BudgetExceeded), guard.run("r", budget="1500 tokens"):
        client.chat.completions.create(model="gpt-4o", messages=SAY, extra_body={"max_tokens": 5000})
    assert len(model_server.requests) == 1


def test_a_slash_at_the_end_is_no_way_out(guard: Guard, model_server: ModelServer) -> None:
    """Servers take it for the same address: it is metered, or refused, as that."""
    client = guard.wrap(model_server.openai())
    for path in ("/chat/completions/", "/chat/completions/?x=1", "/chat/completions//"):
        with contextlib.suppress(openai.NotFoundError):
            client.post(path, body=CHAT, cast_to=object)
    assert guard.usage().calls == 3
    with pytest.raises(PolicyDenied, match="/images/generations"):
        client.post("/images/generations/", body={}, cast_to=object)


def test_an_address_that_nobody_knows_is_named(
    guard: Guard, model_server: ModelServer, caplog: pytest.LogCaptureFixture
) -> None:
    """It is sent, and what it costs is in no budget: the log says so, once; what the SDK knows to be free is silent."""
    client = guard.wrap(model_server.openai())
    for path in ("/rerank-of-this-test", "/rerank-of-this-test", "/moderations", "/files"):
        with contextlib.suppress(openai.NotFoundError):
            client.post(path, body={}, cast_to=object)
    [said] = [record.getMessage() for record in caplog.records if "counted in no budget" in record.getMessage()]
    assert "/rerank-of-this-test" in said


class Greeting(BaseModel):
    """What ``parse`` is to make of an answer."""

    text: str


def test_everything_else_that_asks_a_model(guard: Guard, model_server: ModelServer) -> None:
    """Helpers, raw responses, responses read by hand, parsing, embeddings, copies: all are booked, each once."""
    client, claude = guard.wrap(model_server.openai()), guard.wrap(model_server.anthropic())
    with client.chat.completions.stream(**CHAT) as stream:
        assert stream.get_final_completion().choices[0].message.content == "Hello there."
    with client.responses.stream(**RESPONSE) as responses:
        assert responses.until_done().get_final_response().output_text == "Hello there."
    with claude.messages.stream(**MESSAGE) as messages:
        assert "".join(messages.text_stream) == "Hello there."
    assert client.chat.completions.with_raw_response.create(**CHAT).parse().usage.completion_tokens == 2
    with client.chat.completions.with_streaming_response.create(**CHAT) as response:
        assert b"Hello there." in b"".join(response.iter_bytes(7))
    with client.chat.completions.with_streaming_response.create(**CHAT, stream=True) as response:
        assert any("Hello" in line for line in list(response.iter_lines()))
    assert client.embeddings.create(model="text-embedding-3-small", input=["one two"]).data
    assert client.with_options(timeout=9).with_options(max_retries=1).responses.create(**RESPONSE).output_text
    assert claude.copy(timeout=9).messages.create(**MESSAGE).content
    assert client.post("/chat/completions", body=CHAT, cast_to=object)
    model_server.default = Reply(text='{"text":"hi"}')
    assert client.chat.completions.parse(**CHAT, response_format=Greeting).choices[0].message.parsed == Greeting(
        text="hi"
    )
    assert client.responses.parse(**RESPONSE, text_format=Greeting).output_parsed == Greeting(text="hi")
    assert len(model_server.requests) == guard.usage().calls == 12
    assert _agrees(guard, model_server)
    assert set(_states(guard)) == {"done"}


@KINDS
def test_the_class_of_a_guarded_client_makes_no_client(guard: Guard, model_server: ModelServer, is_async: bool) -> None:
    """It would have no guard, and whoever makes it so is told at once how to get one that has."""
    client = guard.wrap(model_server.async_openai() if is_async else model_server.openai())
    with pytest.raises(ConfigurationError, match=r"guard\.wrap\((Async)?OpenAI\(\.\.\.\)\)"):
        type(client)(api_key="test")


def test_a_compressed_answer_is_read_too(guard: Guard, model_server: ModelServer) -> None:
    """Where the provider compresses a stream, its decoded bytes count."""
    model_server.compresses = True
    client = guard.wrap(model_server.openai())
    assert len(list(client.chat.completions.create(**CHAT, stream=True))) == 4
    assert _agrees(guard, model_server)


def test_what_is_no_question_to_a_model_passes(guard: Guard, model_server: ModelServer) -> None:
    """Other addresses are sent as they are."""
    with pytest.raises(openai.NotFoundError):
        guard.wrap(model_server.openai()).post("/nowhere", body={}, cast_to=object)
    assert guard.usage().calls == 0


def test_embeddings_are_called_so(ledger: str, model_server: ModelServer, provider: Any, spans: Any) -> None:
    """In the ledger, on the span and in the books of tools."""
    with Guard(ledger, prices=FLAT, tracer_provider=provider) as guard:
        client = guard.wrap(model_server.openai())
        client.embeddings.create(model="text-embedding-3-small", input=["a", "b"])
        [call] = guard.calls.list(open=False)
    assert call.tool == "embeddings text-embedding-3-small"
    [span] = spans.get_finished_spans()
    assert span.name == call.tool
    assert span.attributes["gen_ai.operation.name"] == "embeddings"
    assert span.attributes["openinference.span.kind"] == "EMBEDDING"


UNCOUNTED: dict[str, Callable[[Any], Any]] = {
    "/images/generations": lambda client: client.images.generate(prompt="a cat"),
    "/images/edits": lambda client: client.images.edit(image=b"png", prompt="a cat"),
    "/audio/speech": lambda client: client.audio.speech.create(model="tts-1", voice="alloy", input="Hello."),
    "/audio/transcriptions": lambda client: client.audio.transcriptions.create(model="whisper-1", file=b"mp3"),
    "/completions": lambda client: client.completions.create(model="davinci-002", prompt="Once"),
    "/batches": lambda client: client.batches.create(
        completion_window="24h", endpoint="/v1/chat/completions", input_file_id="f"
    ),
    "/threads/*/runs": lambda client: client.post("/threads/thread_1/runs", body={}, cast_to=object),
    "/realtime/client_secrets": lambda client: client.post("/realtime/client_secrets", body={}, cast_to=object),
    "/chat/completions with a body that is not read": lambda client: client.post("/chat/completions", cast_to=object),
}


@KINDS
@pytest.mark.parametrize("where", UNCOUNTED)
def test_what_is_not_counted_does_not_pass_a_hard_budget_of_money(
    ledger: str, model_server: ModelServer, where: str, is_async: bool
) -> None:
    """It would be spent beside the books; the refusal says what to do. Without such a budget it is sent."""

    async def send(guard: Guard) -> None:
        async with guard.wrap(model_server.async_openai()) as client:
            await UNCOUNTED[where](client)

    def ask(guard: Guard) -> None:
        asyncio.run(send(guard)) if is_async else UNCOUNTED[where](guard.wrap(model_server.openai()))

    with Guard(ledger) as guard:
        with (
            pytest.raises(PolicyDenied, match=r"are not sent.*hard budget of money.*not guarded.*llm_call") as caught,
            guard.run("r", budget="1 USD"),
        ):
            ask(guard)
        assert where in str(caught.value)
        assert caught.value.tool_ran == "no"
        assert not model_server.requests
        # The server knows some of these addresses and not others: either is an answer to what was sent.
        with contextlib.suppress(openai.APIStatusError), guard.run("free", budget="10 calls"):
            ask(guard)
        assert len(model_server.requests) == 1


def test_a_budget_that_somebody_sets_meanwhile_holds_for_what_is_not_counted_too(
    ledger: str, model_server: ModelServer
) -> None:
    """No claim notices it, so the limits are looked up."""
    with Guard(ledger) as guard, Guard(ledger) as operator:
        client = guard.wrap(model_server.openai())
        with pytest.raises(openai.NotFoundError):
            client.images.generate(prompt="a cat", model="painter")
        operator.set_budget("model:painter", "1 USD")
        with pytest.raises(PolicyDenied):
            client.images.generate(prompt="a cat", model="painter")
        with pytest.raises(openai.NotFoundError):
            client.images.generate(prompt="a cat", model="other")


def test_a_refusal_of_what_is_not_counted_can_be_seen(
    ledger: str, model_server: ModelServer, provider: Any, spans: Any
) -> None:
    """A span says that it was not sent."""
    with Guard(ledger, budget="1 USD", tracer_provider=provider) as guard, pytest.raises(PolicyDenied):
        guard.wrap(model_server.openai()).images.generate(prompt="a cat", model="painter")
    [span] = spans.get_finished_spans()
    assert (span.name, span.attributes["error.type"]) == ("generate_content painter", "policy_denied")
    assert span.attributes["sagaspan.call.executed"] is False


def test_a_websocket_is_not_opened_under_a_hard_budget_of_money(ledger: str, model_server: ModelServer) -> None:
    """What a realtime model says nobody counts; copies of the client are no way around that."""
    pytest.importorskip("websockets")
    client = openai.OpenAI(
        base_url=f"{model_server.url}/v1", api_key="test", websocket_base_url="ws://127.0.0.1:9"
    )  # fmt: skip
    with Guard(ledger) as guard, client:
        guarded = guard.wrap(client)
        for one in (guarded, guarded.with_options(timeout=3)):
            with pytest.raises(PolicyDenied, match="WebSocket"), guard.run("r", budget="1 USD"):
                one.realtime.connect(model="gpt-realtime").enter()
            with pytest.raises(OSError):
                one.realtime.connect(model="gpt-realtime").enter()


def test_anthropic_s_batches_are_not_counted(ledger: str, model_server: ModelServer) -> None:
    """They cost money, and counting tokens does not."""
    anthropic = pytest.importorskip("anthropic")
    with Guard(ledger, budget="1 USD") as guard:
        client = guard.wrap(model_server.anthropic())
        with pytest.raises(PolicyDenied, match="/batches are not sent"):
            client.messages.batches.create(requests=[])
        with pytest.raises(anthropic.NotFoundError):
            client.messages.count_tokens(model="claude-sonnet-5", messages=SAY)


def test_what_costs_money_and_is_not_counted_is_said(
    ledger: str, model_server: ModelServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Once: a budget that does not hold must not look as if it did."""
    with Guard(ledger, budgets={"user:*": "1 USD"}) as guard:
        client = guard.wrap(model_server.openai())
        for _ in range(2):
            with pytest.raises(openai.NotFoundError):
                client.vector_stores.create()
    said = [record.getMessage() for record in caplog.records if record.name == "sagaspan"]
    assert len(said) == 1
    assert "/vector_stores are sent, and counted in no budget" in said[0]


def test_azure_s_client_over_a_transport_of_the_user_s_own(guard: Guard) -> None:
    """Its addresses are its own, and so is who serves the model."""
    httpx = pytest.importorskip("httpx")
    sent = []

    def serve(request: Any) -> Any:
        sent.append(request)
        message = {"role": "assistant", "content": "Hi."}
        usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        body = {"id": "1", "object": "chat.completion", "created": 1, "model": "gpt-4o", "choices": choices}
        return httpx.Response(200, json={**body, "usage": usage})

    with httpx.Client(transport=httpx.MockTransport(serve)) as transport:
        azure = openai.AzureOpenAI(
            azure_endpoint="https://desk.example", api_version="2024-10-21", api_key="k", http_client=transport
        )
        client = guard.wrap(azure)
        assert isinstance(client, openai.AzureOpenAI)
        guard.set_budget("model:gpt-4o", "0.02 USD")
        answer = client.with_options(timeout=5).chat.completions.create(model="gpt-4o", messages=SAY)
    assert answer.choices[0].message.content == "Hi."
    assert sent[0].url.path.endswith("/deployments/gpt-4o/chat/completions")
    assert b"max_completion_tokens" in sent[0].content
    assert guard.usage(model="gpt-4o").output_tokens == 2


# -- budgets ---------------------------------------------------------------------------------------------------------


@KINDS
def test_a_refused_call_is_never_sent(guard: Guard, api: Api, is_async: bool) -> None:
    """The error is the guard's own, whatever the SDK makes of others, and the provider hears nothing."""
    guard.set_budget(f"model:{api.arguments['model']}", "0.0001 USD")
    with pytest.raises(BudgetExceeded), guard.run("desk", id="r"):
        Guarded(guard, api, is_async=is_async, max_retries=3).ask()
    assert api.server.requests == []
    assert guard.runs.get("r").reason == "budget"


def test_a_model_without_a_price_is_not_sent(guard: Guard, model_server: ModelServer) -> None:
    """Under a hard budget of money nobody spends what nobody can count."""
    with pytest.raises(PolicyDenied, match="no price is known"):
        guard.wrap(model_server.openai()).chat.completions.create(model="nobody-knows", messages=SAY, max_tokens=5)
    assert model_server.requests == []


def test_no_number_of_threads_goes_over(
    ledger: str, model_server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cap for ten calls: ten of 32 concurrent ones reach the provider, and the others wait for room in vain."""
    monkeypatch.setattr("sagaspan.ledger.claiming.JOIN_SECONDS", 0.2)
    together = threading.Event()
    model_server.default = Reply(until=together)
    arguments = {**CHAT, "messages": [{"role": "user", "content": "a"}]}
    with Guard(ledger, prices=FLAT) as guard:
        client = guard.wrap(model_server.openai())
        client.chat.completions.create  # noqa: B018 - made once, before the threads
        most = _bound(guard, arguments)
        guard.set_budget("model:gpt-4o", f"{most * 10} USD")

        def ask() -> bool:
            try:
                return bool(client.chat.completions.create(**arguments))
            except BudgetExceeded:
                return False

        with ThreadPoolExecutor(32) as pool:
            asked = [pool.submit(ask) for _ in range(32)]
            _until(lambda: sum(call.done() for call in asked) == 22 and len(model_server.requests) == 10)
            assert guard.usage(model="gpt-4o").remaining == 0
            together.set()
            assert sum(call.result() for call in asked) == 10
        assert _agrees(guard, model_server)


def _bound(guard: Guard, arguments: dict[str, Any]) -> Decimal:
    from sagaspan.llm.demands import chat_demand

    return Decimal(guard.prices.bound("gpt-4o", chat_demand(arguments)).nano_usd).scaleb(-9)


@KINDS
def test_an_answer_without_a_limit_gets_one_that_can_be_paid(guard: Guard, api: Api, is_async: bool) -> None:
    """Half of what is left, so that others may ask too; the user's own arguments stay as they are."""
    if api.name == "messages":
        pytest.skip("Anthropic's requests always have a limit")
    limit = "max_output_tokens" if api.name == "responses" else "max_tokens"
    api.arguments = {name: value for name, value in api.arguments.items() if name != limit}
    guard.set_budget(f"model:{api.arguments['model']}", "0.02 USD")
    api.server.default = Reply(text="word " * 5000)
    response = Guarded(guard, api, is_async=is_async).ask()
    sent = api.server.requests[0].body[limit]
    assert 500 < sent < 1000
    assert len(api.text(response).split()) == sent
    assert guard.usage(model=api.arguments["model"]).spent <= Decimal("0.02")
    assert limit not in api.arguments


def test_nothing_is_limited_that_can_be_paid(guard: Guard, model_server: ModelServer) -> None:
    """A request that fits as it is goes out as it is; a limit of the user's own too, and embeddings have none."""
    client = guard.wrap(model_server.openai())
    client.chat.completions.create(model="gpt-4o", messages=SAY)
    client.embeddings.create(model="text-embedding-3-small", input="one")
    guard.set_budget("model:gpt-4o", "0.02 USD")
    client.chat.completions.create(**CHAT)
    bodies = [request.body for request in model_server.requests]
    assert [set(body) & {"max_tokens", "max_completion_tokens"} for body in bodies] == [set(), set(), {"max_tokens"}]
    assert bodies[2]["max_tokens"] == 100


@pytest.mark.parametrize("stream", [False, True])
def test_who_only_observes_limits_nothing(ledger: str, model_server: ModelServer, stream: bool) -> None:
    """The answer is what it would be without the guard, and the budget that it breaks is noted."""
    with Guard(ledger, prices=FLAT, mode="observe", budget="0.0001 USD") as guard, guard.run("r", id="r"):
        answer = guard.wrap(model_server.openai()).chat.completions.create(model="gpt-4o", messages=SAY, stream=stream)
        assert not stream or list(answer)
    assert not {"max_tokens", "max_completion_tokens"} & set(model_server.requests[0].body)
    [call] = guard.runs.get("r").calls
    assert call.observed


def test_a_budget_of_tokens_limits_too(guard: Guard, model_server: ModelServer) -> None:
    """What is left of it, less the question."""
    guard.set_budget("model:gpt-4o", "4k tokens")
    guard.wrap(model_server.openai()).chat.completions.create(model="gpt-4o", messages=SAY)
    assert 16 <= model_server.requests[0].body["max_tokens"] < 1000


# -- streams that do not end well ------------------------------------------------------------------------------------


@KINDS
def test_a_stream_that_is_left_is_settled(guard: Guard, api: Api, is_async: bool) -> None:
    """What it cost nobody knows, so all that was reserved is booked; what Anthropic said went in counts exactly."""
    api.server.default = Reply(text="word " * 90, paced_by=threading.Semaphore(8))
    assert len(Guarded(guard, api, is_async=is_async).read(4)) == 4
    assert _reserved(guard, api) == 0
    used = guard.usage()
    assert used.output_tokens == 100
    assert used.input_tokens == api.server.input_tokens if api.name == "messages" else used.input_tokens > 100
    assert _states(guard) == ["done"]


@KINDS
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_stream_that_is_dropped_is_settled(guard: Guard, api: Api, is_async: bool) -> None:
    """Nobody closes it; the collector does, and what it held comes back."""

    async def look(stream: Any) -> None:
        await anext(aiter(stream))

    stream = Guarded(guard, api, is_async=is_async).ask(look if is_async else next, stream=True)
    del stream
    gc.collect()
    _until(lambda: _reserved(guard, api) == 0)
    assert guard.usage().output_tokens in (2, 100)


@KINDS
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_stream_that_nobody_reads_is_settled(guard: Guard, api: Api, is_async: bool) -> None:
    """Not even its first event."""

    async def ignore(stream: Any) -> None:
        del stream

    made = Guarded(guard, api, is_async=is_async).ask(ignore if is_async else None, stream=True)
    del made
    gc.collect()
    _until(lambda: _reserved(guard, api) == 0)
    assert guard.usage().output_tokens == 100


def test_the_collector_settles_nothing_in_its_own_place(guard: Guard, model_server: ModelServer) -> None:
    """It may come while this very thread holds the lock of the store: another thread does the work."""
    threads: list[str] = []
    store = guard._store
    commit = store.commit

    def watch(*args: Any, **kwargs: Any) -> Any:
        threads.append(threading.current_thread().name)
        return commit(*args, **kwargs)

    stream = guard.wrap(model_server.openai()).chat.completions.create(**CHAT, stream=True)
    next(stream)
    store.commit = watch  # type: ignore[method-assign]
    gc.disable()
    try:
        del stream
        assert threads == []
        gc.collect()
        _until(lambda: bool(threads))
    finally:
        gc.enable()
    assert threads == ["sagaspan-reaper"]


@KINDS
def test_a_stream_that_breaks_is_settled(guard: Guard, api: Api, is_async: bool) -> None:
    """The provider may bill all of it."""
    api.server.default = Reply(text="word " * 50, drop_after=10)
    with pytest.raises(Exception, match=r"(?i)connection|peer|incomplete"):
        Guarded(guard, api, is_async=is_async).read()
    assert _reserved(guard, api) == 0
    assert guard.usage().output_tokens == 100


def test_a_run_does_not_wait_for_a_stream_somebody_holds(guard: Guard, api: Api) -> None:
    """A model's answer is nothing to undo: a run that fails in the middle of one rolls back at once."""
    undone = []

    @guard.tool(compensate=lambda: undone.append(1))
    def book() -> str:
        return "booked"

    pace = threading.Semaphore(4)
    api.server.default = Reply(text="word " * 90, paced_by=pace)
    client = guard.wrap(api.client())
    began = time.monotonic()
    with pytest.raises(ZeroDivisionError), guard.run("desk", id="r"):
        book()
        stream = api.resource(client).create(**api.arguments, stream=True)
        next(stream)
        raise ZeroDivisionError
    assert time.monotonic() - began < 20
    assert undone == [1]
    assert _reserved(guard, api) > 0
    pace.release(1000)
    list(stream)
    assert _agrees(guard, api.server)
    assert _reserved(guard, api) == 0


# -- errors and retries ----------------------------------------------------------------------------------------------

SOON = {"retry-after-ms": "1"}


@KINDS
def test_every_attempt_of_the_sdk_is_a_call_of_its_own(guard: Guard, api: Api, is_async: bool) -> None:
    """Two refusals cost nothing, the answer costs once."""
    api.server.say(Reply(status=429, headers=SOON), Reply(status=500, headers=SOON))
    response = Guarded(guard, api, is_async=is_async, max_retries=2).ask()
    assert api.text(response) == "Hello there."
    assert sorted(_states(guard)) == ["done", "failed", "failed"]
    assert _agrees(guard, api.server)
    assert _reserved(guard, api) == 0


@KINDS
def test_an_attempt_that_timed_out_may_be_billed(guard: Guard, api: Api, is_async: bool) -> None:
    """It is booked as reserved beside the one that was answered."""
    api.server.say(Reply(until=never))
    Guarded(guard, api, is_async=is_async, max_retries=1, timeout=0.5).ask()
    assert sorted(_states(guard)) == ["done", "unknown"]
    assert guard.usage().output_tokens == 2 + 100
    assert _reserved(guard, api) == 0


@KINDS
def test_an_attempt_that_does_not_fit_any_more_is_not_sent(guard: Guard, api: Api, is_async: bool) -> None:
    """A retry is under the budget as the first attempt was."""
    most = guard.prices.bound(api.arguments["model"], api.demand(api.arguments)).nano_usd
    guard.set_budget(f"model:{api.arguments['model']}", f"{Decimal(most).scaleb(-9) * Decimal('1.5')} USD")
    api.server.default = Reply(drop_after=0)
    with pytest.raises(BudgetExceeded):
        Guarded(guard, api, is_async=is_async, max_retries=5).ask()
    assert len(api.server.requests) == 1


@KINDS
def test_a_provider_that_cannot_be_reached_costs_nothing(guard: Guard, api: Api, is_async: bool) -> None:
    """Nor does a request that cannot be built; the errors are the SDK's."""
    guarded = Guarded(guard, api, is_async=is_async)
    with pytest.raises(api.errors.APIConnectionError):
        asyncio.run(_unreachable(guard, api)) if is_async else _ask_nobody(guard, api)
    with pytest.raises(TypeError):
        guarded.ask(extra_body={"when": object()})
    assert _states(guard) == ["failed", "failed"]
    assert guard.usage().spent == 0
    assert _reserved(guard, api) == 0


def _ask_nobody(guard: Guard, api: Api) -> None:
    api.resource(guard.wrap(api.client()).with_options(base_url="http://127.0.0.1:9")).create(**api.arguments)


async def _unreachable(guard: Guard, api: Api) -> None:
    async with guard.wrap(api.client(is_async=True)) as client:
        await api.resource(client.with_options(base_url="http://127.0.0.1:9")).create(**api.arguments)


async def test_a_cancelled_call_is_settled(guard: Guard, model_server: ModelServer) -> None:
    """It was sent, and may be billed."""
    model_server.default = Reply(until=never)
    async with guard.wrap(model_server.async_openai()) as client:
        asked = asyncio.ensure_future(client.chat.completions.create(**CHAT))
        await asyncio.to_thread(model_server.wait_for, lambda server: bool(server.requests))
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
    assert _states(guard) == ["unknown"]
    assert guard.usage(model="gpt-4o").reserved == 0
    assert guard.usage().output_tokens == 100


def test_an_answer_that_does_not_say_what_it_used(guard: Guard, model_server: ModelServer) -> None:
    """All that was reserved is booked."""
    model_server.default = Reply(silent_usage=True)
    client = guard.wrap(model_server.openai())
    client.chat.completions.create(**CHAT)
    list(client.chat.completions.create(**CHAT, stream=True))
    assert guard.usage().output_tokens == 200
    assert guard.usage(model="gpt-4o").reserved == 0


# -- the object ------------------------------------------------------------------------------------------------------


def test_the_client_is_what_it_was(guard: Guard, model_server: ModelServer) -> None:
    """The same type, the same settings, the same connections; and the original stays unguarded."""
    original = model_server.openai(max_retries=7, default_headers={"x-team": "blue"})
    resource = original.chat.completions  # made before, and kept by the SDK
    client = guard.wrap(original)
    assert isinstance(client, openai.OpenAI)
    assert type(client).__name__ == "OpenAI"
    assert (client.max_retries, client.base_url, client.api_key) == (7, original.base_url, "test")
    assert isinstance(client.with_options(timeout=1), openai.OpenAI)
    assert client.user_agent == original.user_agent
    original.chat.completions.create(**CHAT)
    resource.create(**CHAT)
    original.with_options(timeout=9).chat.completions.create(**CHAT)
    assert guard.usage().calls == 0
    client.chat.completions.create(**CHAT)
    assert model_server.requests[-1].headers["x-team"] == "blue"
    assert guard.usage().calls == 1


def test_the_original_may_be_forgotten(guard: Guard, model_server: ModelServer) -> None:
    """Its connections live as long as the guarded one; dropping that closes nothing of the original."""
    client = guard.wrap(openai.OpenAI(base_url=f"{model_server.url}/v1", api_key="test"))
    gc.collect()
    assert client.chat.completions.create(**CHAT).choices
    original = model_server.openai()
    guard.wrap(original).with_options(timeout=3).chat.completions.create(**CHAT)
    gc.collect()
    assert not original.is_closed()
    assert original.chat.completions.create(**CHAT).choices
    client.close()
    assert client.is_closed()


def test_a_subclass_of_the_user_s_own(guard: Guard, model_server: ModelServer) -> None:
    """Its methods and attributes are there, and what they send is guarded."""

    class Desk(openai.OpenAI):
        team = "blue"

        def greet(self) -> Any:
            return self.chat.completions.create(**CHAT)

    client = guard.wrap(Desk(base_url=f"{model_server.url}/v1", api_key="test"))
    assert isinstance(client, Desk)
    assert client.greet().choices
    assert client.team == "blue"
    assert guard.usage().calls == 1
    client.close()


def test_anthropic_s_middleware_is_inside(guard: Guard, model_server: ModelServer) -> None:
    """A client with layers of the SDK's own is guarded too."""
    anthropic = pytest.importorskip("anthropic")
    if not hasattr(anthropic.Anthropic, "_build_middleware_chain"):
        pytest.skip("this version has no middleware")
    seen = []

    def layer(request: Any, call_next: Any) -> Any:
        seen.append(request)
        return call_next(request)

    client = guard.wrap(model_server.anthropic(middleware=[layer]))
    assert client.messages.create(**MESSAGE).content
    assert len(seen) == 1
    assert _agrees(guard, model_server)


def test_two_guards_do_not_count_one_call_twice(guard: Guard, model_server: ModelServer) -> None:
    """What is guarded is not wrapped again, and what makes no sense for a client is refused."""
    client = guard.wrap(model_server.openai())
    with pytest.raises(ConfigurationError, match="guarded already"):
        guard.wrap(client)
    with pytest.raises(ConfigurationError, match="guarded already"):
        guard.wrap(client.with_options(timeout=1))
    with pytest.raises(ConfigurationError, match="opens no run"):
        guard.wrap(model_server.openai(), run_id="r")
    with pytest.raises(ConfigurationError, match="no tool"):
        guard.wrap(model_server.openai(), name="model")
    with pytest.raises(ConfigurationError, match="has no tools"):
        guard.wrap(model_server.openai(), {"pay": {"effect": "write"}})
