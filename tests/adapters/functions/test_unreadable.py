"""Answers that do not say what they used: they may be billed, so they are booked with all that was reserved."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from sagaspan import Guard
from tests.providers.apis import CHAT, MESSAGE
from tests.providers.server import ModelServer

FLAT = {model: {"input": 0, "output": 10, "max_output": 5000} for model in ("gpt-4o", "claude-sonnet-5")}
"""Ten dollars for a million tokens out: the hundred that are asked for are a tenth of a cent."""
ALL = Decimal("0.001")
WHOLE = json.dumps(
    {"id": "1", "object": "chat.completion", "created": 1, "model": "gpt-4o", "usage": {"prompt_tokens": 9,
     "completion_tokens": 20}, "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi."},
     "finish_reason": "stop"}]}
).encode()  # fmt: skip
KINDS = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])


@pytest.fixture
def guard(tmp_path: Path) -> Iterator[Guard]:
    with Guard(f"sqlite:///{tmp_path / 'ledger.db'}", prices=FLAT, budgets={"model:*": "1 USD"}) as guard:
        yield guard


def chunk(text: str = "", *, finish: str | None = None, used: int | None = None, empty: bool = False) -> bytes:
    """One event of a stream of chat completions."""
    choices = [] if empty else [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]
    usage = None if used is None else {"prompt_tokens": 9, "completion_tokens": used, "total_tokens": 9 + used}
    head = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o"}
    return b"data: " + json.dumps({**head, "choices": choices, "usage": usage}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


class Body(httpx.SyncByteStream, httpx.AsyncByteStream):
    """Pieces on the wire; an exception among them breaks it."""

    def __init__(self, *pieces: bytes | Exception) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece


Serve = Callable[[httpx.Request], httpx.Response]


def serving(*pieces: bytes | Exception, label: str = "application/json", status: int = 200) -> Serve:
    """A provider that always answers so."""
    return lambda request: httpx.Response(status, headers={"content-type": label}, stream=Body(*pieces))


def client_of(guard: Guard, serve: Serve) -> Any:
    """A guarded client of OpenAI's, of a provider that is a function."""
    transport = httpx.Client(transport=httpx.MockTransport(serve))
    return guard.wrap(openai.OpenAI(api_key="test", max_retries=0, http_client=transport))


def _async_client_of(guard: Guard, serve: Serve) -> Any:
    transport = httpx.AsyncClient(transport=httpx.MockTransport(serve))
    return guard.wrap(openai.AsyncOpenAI(api_key="test", max_retries=0, http_client=transport))


@KINDS
@pytest.mark.parametrize("how", ["unread", "partly", "raw"])
def test_an_answer_that_nobody_read_to_its_end_is_booked_as_reserved(
    guard: Guard, how: str, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Looking at the headers is no way around a budget."""
    serve = serving(WHOLE[:30], WHOLE[30:])

    async def look() -> None:
        async with (
            _async_client_of(guard, serve) as client,
            client.chat.completions.with_streaming_response.create(**CHAT) as response,
        ):
            if how == "partly":
                await anext(aiter(response.iter_bytes(7)))
            elif how == "raw":
                assert [piece async for piece in response.http_response.aiter_raw()]

    if is_async:
        asyncio.run(look())
    else:
        with client_of(guard, serve).chat.completions.with_streaming_response.create(**CHAT) as response:
            if how == "partly":
                next(iter(response.iter_bytes(7)))
            elif how == "raw":
                assert list(response.http_response.iter_raw())
    assert (guard.usage().spent, guard.usage().reserved) == (ALL, 0)
    assert "No usage recorded for call" in caplog.text


def test_anthropic_s_answer_that_nobody_read_is_booked_as_reserved(guard: Guard, model_server: ModelServer) -> None:
    """As OpenAI's."""
    with guard.wrap(model_server.anthropic()).messages.with_streaming_response.create(**MESSAGE):
        pass
    assert guard.usage().spent == ALL


@pytest.mark.parametrize(
    "body", [b"<html>", WHOLE[:-3], b"null", b"[]", b""], ids=["html", "cut", "null", "list", "empty"]
)
def test_an_answer_that_is_not_what_was_asked_for_is_booked_as_reserved(
    guard: Guard, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The page of a proxy says nothing of what the provider behind it bills."""
    client_of(guard, serving(body)).post("/chat/completions", body=CHAT, cast_to=httpx.Response)
    assert guard.usage().spent == ALL
    assert "No usage recorded for call" in caplog.text


@KINDS
@pytest.mark.parametrize("label", ["text/plain", "Text/Event-Stream", "application/octet-stream", "application/json"])
def test_a_stream_is_told_by_its_bytes(guard: Guard, label: str, is_async: bool) -> None:
    """Whatever a proxy calls it: it is metered exactly, and the event that was asked for is hidden."""
    serve = serving(chunk("Hi"), chunk(finish="stop"), chunk(used=20, empty=True), DONE, label=label)

    async def read() -> list[Any]:
        async with _async_client_of(guard, serve) as client:
            return [event async for event in await client.chat.completions.create(**CHAT, stream=True)]

    if is_async:
        seen = asyncio.run(read())
    else:
        seen = list(client_of(guard, serve).chat.completions.create(**CHAT, stream=True))
    assert [bool(event.choices) for event in seen] == [True, True]
    assert guard.usage().spent == ALL / 5


def test_a_server_that_does_not_stream_is_metered_too(guard: Guard) -> None:
    """It answers as a whole what was asked for as a stream."""
    client = client_of(guard, serving(b" \n", WHOLE[:30], WHOLE[30:]))
    with client.chat.completions.with_streaming_response.create(**CHAT, stream=True) as response:
        assert json.loads(response.read()) == json.loads(WHOLE)
    assert guard.usage().spent == ALL / 5


# -- errors that prove nothing ---------------------------------------------------------------------------------------

TIMEOUT = httpx.ReadTimeout("too long")
LOST = httpx.RemoteProtocolError("the line is cut")


def _refused_then(error: Exception | None) -> Serve:
    """A provider that refuses the first request, and loses the next, or breaks its stream."""
    answers = [httpx.Response(429, json={})]

    def serve(request: httpx.Request) -> httpx.Response:
        if answers:
            return answers.pop()
        if error is not None:
            raise error
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Body(chunk("Hi"), LOST))

    return serve


@KINDS
@pytest.mark.parametrize("error", [TIMEOUT, LOST, None], ids=["timeout", "cut", "stream"])
def test_what_is_being_handled_proves_nothing_for_the_next_request(
    guard: Guard, error: Exception | None, is_async: bool
) -> None:
    """A refusal of one model says nothing of the one that is asked instead of it."""
    serve, more = _refused_then(error), {"stream": error is None}

    async def fall_back() -> None:
        async with _async_client_of(guard, serve) as client:
            try:
                await client.chat.completions.create(**CHAT)
            except openai.RateLimitError:
                stream = await client.chat.completions.create(**CHAT, **more)
                assert [event async for event in stream]

    def fall_back_now() -> None:
        client = client_of(guard, serve)
        try:
            client.chat.completions.create(**CHAT)
        except openai.RateLimitError:
            assert list(client.chat.completions.create(**CHAT, **more))

    with pytest.raises((openai.APIConnectionError, httpx.RemoteProtocolError)):
        asyncio.run(fall_back()) if is_async else fall_back_now()
    assert (guard.usage().spent, guard.usage().reserved) == (ALL, 0)
    assert sorted(call.state for call in guard.calls.list(open=False)) == ["failed", "unknown"]


def test_a_retry_in_the_block_of_a_call_may_be_billed(guard: Guard) -> None:
    """The error that left decides, not the one before it."""
    with (
        pytest.raises(httpx.RemoteProtocolError),
        guard.llm_call("gpt-4o", input_tokens=1, max_output_tokens=100),
    ):
        try:
            raise ConnectionRefusedError
        except ConnectionRefusedError:
            raise LOST  # noqa: B904 - as a retry raises
    assert guard.usage().spent == ALL


@pytest.mark.parametrize(
    ("status", "spent"), [(408, ALL), (502, ALL), (504, ALL), (524, ALL), (401, 0), (429, 0), (500, 0), (503, 0)]
)
def test_a_gateway_s_timeout_is_no_refusal(guard: Guard, status: int, spent: Decimal) -> None:
    """The provider behind it may go on, and bill."""
    with pytest.raises(openai.APIStatusError):
        client_of(guard, serving(b"{}", status=status)).chat.completions.create(**CHAT)
    assert (guard.usage().spent, guard.usage().reserved) == (spent, 0)


# -- streams that do not end -----------------------------------------------------------------------------------------

RUNNING = (chunk("a", used=1), chunk("b", used=2), chunk("c", used=3))


@KINDS
@pytest.mark.parametrize("how", ["closed", "broken"])
def test_a_running_count_of_a_stream_that_did_not_end_is_not_what_it_cost(
    guard: Guard, how: str, is_async: bool
) -> None:
    """Servers that say with each chunk what was used so far bill for what nobody read, too."""
    serve = serving(*RUNNING, LOST if how == "broken" else DONE, label="text/event-stream")

    def read() -> None:
        stream = client_of(guard, serve).chat.completions.create(**CHAT, stream=True)
        if how == "closed":
            next(stream)
            stream.close()
        else:
            list(stream)

    async def aread() -> None:
        async with _async_client_of(guard, serve) as client:
            stream = await client.chat.completions.create(**CHAT, stream=True)
            if how == "closed":
                await anext(stream)
                await stream.close()
            else:
                assert [event async for event in stream]

    try:
        asyncio.run(aread()) if is_async else read()
    except httpx.RemoteProtocolError:
        assert how == "broken"
    assert (guard.usage().spent, guard.usage().reserved) == (ALL, 0)


@pytest.mark.parametrize(
    "end",
    [(chunk(finish="stop", used=20),), (chunk(finish="stop"), chunk(used=20, empty=True)), (chunk(used=20), DONE)],
)
def test_the_last_count_of_a_stream_that_ended_is_what_it_cost(guard: Guard, end: tuple[bytes, ...]) -> None:
    """Whichever way the server says that this is all."""
    serve = serving(*RUNNING, *end, label="text/event-stream")
    list(client_of(guard, serve).chat.completions.create(**CHAT, stream=True))
    assert guard.usage().spent == ALL / 5


def test_more_than_was_reserved_is_booked_as_it_was_said(guard: Guard) -> None:
    """A server that pays no heed to the limit, and breaks."""
    serve = serving(chunk("a", used=900), LOST, label="text/event-stream")
    with pytest.raises(httpx.RemoteProtocolError):
        list(client_of(guard, serve).chat.completions.create(**CHAT, stream=True))
    assert guard.usage().spent == ALL * 9
