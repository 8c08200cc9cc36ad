"""What models were asked and answered, on spans: under OpenTelemetry's opt-in, and nowhere without it."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sagaspan import Guard
from tests.providers.apis import CHAT, PAY, SAY, TOOLS, Api
from tests.providers.replies import Reply
from tests.providers.server import ModelServer

pytestmark = pytest.mark.filterwarnings("ignore:The model .* is deprecated:DeprecationWarning")

CANARY = "canary-4111-1111"
KINDS = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
STREAMS = pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
INPUT, OUTPUT, SYSTEM = "gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions"
STOPPED = {"chat": ("stop",), "responses": ("stop",), "messages": ("end_turn",)}
CALLED = {"chat": ("tool_calls",), "responses": ("stop",), "messages": ("tool_use",)}


@pytest.fixture
def guard(store_url: str, provider: TracerProvider) -> Iterator[Guard]:
    with Guard(store_url, tracer_provider=provider) as guard:
        yield guard


@pytest.fixture(params=["chat", "responses", "messages"])
def api(request: pytest.FixtureRequest, model_server: ModelServer) -> Api:
    """Each of the three ways to talk to a model."""
    return Api(request.param, model_server)


@pytest.fixture
def opted_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user wants content on spans."""
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY")


def ask(guard: Guard, api: Api, *, is_async: bool = False, streams: bool = False, **more: Any) -> None:
    """Ask by the SDK's client, and read the answer to its end."""
    arguments = {**api.arguments, **({"stream": True} if streams else {}), **more}

    async def asynchronously() -> None:
        async with guard.wrap(api.client(is_async=True)) as client:
            answer = await api.resource(client).create(**arguments)
            if streams:
                _ = [event async for event in answer]

    if is_async:
        asyncio.run(asynchronously())
    else:
        answer = api.resource(guard.wrap(api.client())).create(**arguments)
        if streams:
            list(answer)


def told(api: Api, text: str) -> dict[str, Any]:
    """How each API is told its instructions."""
    if api.name == "chat":
        return {"messages": [{"role": "system", "content": text}, *SAY]}
    return {"instructions" if api.name == "responses" else "system": text}


def only(spans: InMemorySpanExporter) -> ReadableSpan:
    [span] = [span for span in spans.get_finished_spans() if span.name.startswith("chat ")]
    return span


def read(span: ReadableSpan, name: str) -> Any:
    return json.loads(str((span.attributes or {})[name]))


@KINDS
@STREAMS
@pytest.mark.usefixtures("opted_in")
def test_what_was_said_is_on_the_span(
    guard: Guard, api: Api, spans: InMemorySpanExporter, is_async: bool, streams: bool
) -> None:
    """Instructions, messages, reasoning and why it ended, the same whether it streams or not."""
    api.server.default = Reply(reasoning="Well now.")
    ask(guard, api, is_async=is_async, streams=streams, **told(api, "Be kind."))
    span = only(spans)
    *first, last = read(span, INPUT)
    assert last == {"role": "user", "parts": [{"type": "text", "content": SAY[0]["content"]}]}
    kind = [{"type": "text", "content": "Be kind."}]
    if api.name == "chat":
        assert first == [{"role": "system", "parts": kind}]
        assert SYSTEM not in (span.attributes or {})
    else:
        assert read(span, SYSTEM) == kind
    [message] = read(span, OUTPUT)
    assert message["role"] == "assistant"
    assert message["parts"][-1] == {"type": "text", "content": "Hello there."}
    if api.name == "messages":
        assert message["parts"][0] == {"type": "reasoning", "content": "Well now."}
    assert (span.attributes or {})["gen_ai.response.finish_reasons"] == STOPPED[api.name] == (message["finish_reason"],)


@KINDS
@STREAMS
@pytest.mark.usefixtures("opted_in")
def test_tools_that_were_asked_for(
    guard: Guard, api: Api, spans: InMemorySpanExporter, is_async: bool, streams: bool
) -> None:
    """Name, id and arguments of each call."""
    api.server.default = Reply(text="", tool_calls=(PAY,))
    ask(guard, api, is_async=is_async, streams=streams, tools=TOOLS[api.name])
    [message] = read(only(spans), OUTPUT)
    arguments = {"amount": 20, "card": "c1"}
    assert message["parts"] == [{"type": "tool_call", "id": "call_7", "name": "pay", "arguments": arguments}]
    assert (message["finish_reason"],) == CALLED[api.name]


@KINDS
@STREAMS
@pytest.mark.parametrize("opt_in", [None, "EVENT_ONLY", "NO_CONTENT"])
def test_without_the_opt_in_nothing_is_told(
    guard: Guard, api: Api, spans: InMemorySpanExporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, is_async: bool, streams: bool, opt_in: str | None,
) -> None:  # fmt: skip
    """A canary in all that is said is on no span, in no log and not in the ledger; why it ended is no content."""
    if opt_in is not None:
        monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", opt_in)
    caplog.set_level("DEBUG", logger="sagaspan")
    api.server.default = Reply(text=CANARY, reasoning=CANARY, tool_calls=(PAY,))
    ask(guard, api, is_async=is_async, streams=streams, **told(api, CANARY))
    guard.close()
    span = only(spans)
    assert CANARY not in span.to_json()
    assert {INPUT, OUTPUT, SYSTEM}.isdisjoint(span.attributes or {})
    assert (span.attributes or {})["gen_ai.response.finish_reasons"] == CALLED[api.name]
    assert CANARY not in caplog.text
    assert not [path.name for path in tmp_path.rglob("ledger*") if CANARY.encode() in path.read_bytes()]


@STREAMS
@pytest.mark.usefixtures("opted_in")
def test_the_ledger_never_keeps_what_was_said(
    guard: Guard, api: Api, spans: InMemorySpanExporter, tmp_path: Path, streams: bool
) -> None:
    """The opt-in is for spans."""
    api.server.default = Reply(text=CANARY)
    ask(guard, api, streams=streams)
    guard.close()
    assert CANARY in only(spans).to_json()
    assert not [path.name for path in tmp_path.rglob("ledger*") if CANARY.encode() in path.read_bytes()]


@STREAMS
@pytest.mark.usefixtures("opted_in")
def test_what_is_redacted_in_a_run_is_redacted_of_what_is_said_in_it(
    guard: Guard, api: Api, spans: InMemorySpanExporter, streams: bool
) -> None:
    """A card that a tool got is in no question and no answer, not even of a stream that is read after the run."""

    @guard.tool(redact=["card"])
    def look(card: str) -> str:
        return "ok"

    api.server.default = Reply(text=f"It is {CANARY} , yes.", reasoning=CANARY)
    client = guard.wrap(api.client())
    with guard.run("r"):
        look(card=CANARY)
        arguments = {**api.arguments, **told(api, f"The card is {CANARY}.")}
        answer = api.resource(client).create(**arguments, **({"stream": True} if streams else {}))
    if streams:
        list(answer)
    span = only(spans)
    assert CANARY not in span.to_json()
    assert "It is <redacted> , yes." in str(read(span, OUTPUT))
    assert "The card is <redacted>." in str((span.attributes or {}).get(SYSTEM) or read(span, INPUT))


@STREAMS
@pytest.mark.usefixtures("opted_in")
def test_long_conversations_stay_json(guard: Guard, api: Api, spans: InMemorySpanExporter, streams: bool) -> None:
    """Texts are cut at their end, and then the oldest messages are left out; a span takes 4096 characters."""
    turns = [{"role": "user", "content": f"{number}: {'x' * 500}"} for number in range(100)]
    api.server.default = Reply(text="word " * 4000)
    api.arguments = {**api.arguments, "max_output_tokens" if api.name == "responses" else "max_tokens": 5000}
    ask(guard, api, streams=streams, **{"input" if api.name == "responses" else "messages": turns})
    span = only(spans)
    asked, [answer] = read(span, INPUT), read(span, OUTPUT)
    assert all(len(str((span.attributes or {})[name])) <= 4096 for name in (INPUT, OUTPUT))
    assert asked[-1]["parts"][0]["content"].startswith("99: x")
    assert asked[0]["parts"][0]["content"] == f"{101 - len(asked)} earlier ones are left out"
    assert answer["parts"][0]["content"].startswith("word word")


@KINDS
@pytest.mark.usefixtures("opted_in")
def test_a_stream_that_breaks_says_what_came(
    guard: Guard, api: Api, spans: InMemorySpanExporter, is_async: bool
) -> None:
    """As far as it came."""
    api.server.default = Reply(text="Hello there, all of you who are here.", drop_after=5)
    with pytest.raises(Exception, match=r"incomplete|closed|peer|Connection"):
        ask(guard, api, is_async=is_async, streams=True)
    [message] = read(only(spans), OUTPUT)
    assert message["parts"][0]["content"].startswith("Hello ")
    assert message["finish_reason"] == "unknown"


@pytest.mark.usefixtures("opted_in")
def test_a_stream_that_is_dropped_says_what_came(guard: Guard, api: Api, spans: InMemorySpanExporter) -> None:
    """Told by another thread, for a collector may come where a lock is held."""
    stream = api.resource(guard.wrap(api.client())).create(**api.arguments, stream=True)
    for event in stream:
        if "Hello" in str(event):
            break
    del stream, event
    gc.collect()
    end = time.monotonic() + 300
    while not spans.get_finished_spans():
        assert time.monotonic() < end, "it was never settled"
        time.sleep(0.01)
    [message] = read(only(spans), OUTPUT)
    assert message["parts"][0]["content"].startswith("Hello")


@pytest.mark.usefixtures("opted_in")
def test_every_choice_is_a_message(guard: Guard, model_server: ModelServer, spans: InMemorySpanExporter) -> None:
    """With a reason of its own."""
    guard.wrap(model_server.openai()).chat.completions.create(**CHAT, n=2)
    span = only(spans)
    assert [message["parts"][0]["content"] for message in read(span, OUTPUT)] == ["Hello there."] * 2
    assert (span.attributes or {})["gen_ai.response.finish_reasons"] == ("stop", "stop")


@pytest.mark.usefixtures("opted_in")
def test_embeddings_have_no_messages(guard: Guard, model_server: ModelServer, spans: InMemorySpanExporter) -> None:
    """What is embedded is no conversation."""
    guard.wrap(model_server.openai()).embeddings.create(model="text-embedding-3-small", input=CANARY)
    [span] = spans.get_finished_spans()
    assert CANARY not in span.to_json()


# -- by hand -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("opted_in")
def test_a_call_by_hand_says_what_it_asks(guard: Guard, spans: InMemorySpanExporter) -> None:
    """What ``settle`` sees it says itself; the rest is said by ``messages``."""
    response = {"choices": [{"message": {"role": "assistant", "content": "Ho."}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1}}  # fmt: skip
    with guard.llm_call("gpt-4o", max_output_tokens=9) as call:
        assert call.tells
        call.messages(input=SAY)
        call.record_usage(response)
    with guard.llm_call("gpt-4o", max_output_tokens=9) as call:
        call.messages(input={"system": "Be kind.", "messages": SAY}, output="Ho.", finish_reasons=["length"])
        call.record_usage(input_tokens=1, output_tokens=1)
    for span, reason in zip(spans.get_finished_spans(), ("stop", "unknown"), strict=True):
        assert read(span, INPUT)[0]["parts"][0]["content"] == SAY[0]["content"]
        assert read(span, OUTPUT) == [
            {"role": "assistant", "parts": [{"type": "text", "content": "Ho."}], "finish_reason": reason}
        ]
    assert read(spans.get_finished_spans()[1], SYSTEM) == [{"type": "text", "content": "Be kind."}]
    assert (spans.get_finished_spans()[1].attributes or {})["gen_ai.response.finish_reasons"] == ("length",)


class _Touchy:
    """Breaks when somebody looks at it."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


def test_nothing_is_read_without_the_opt_in(guard: Guard, spans: InMemorySpanExporter) -> None:
    """Nor can it break anything."""
    with guard.llm_call("gpt-4o", max_output_tokens=9) as call:
        assert not call.tells
        call.messages(input=_Touchy(), output=CANARY)
        call.record_usage(input_tokens=1, output_tokens=1)
    assert CANARY not in only(spans).to_json()


@pytest.mark.usefixtures("opted_in")
def test_what_cannot_be_read_breaks_nothing(guard: Guard, spans: InMemorySpanExporter) -> None:
    """Telemetry never changes a result."""
    with guard.llm_call("gpt-4o", max_output_tokens=9) as call:
        call.messages(input=_Touchy(), output=[_Touchy()])
        call.record_usage(input_tokens=1, output_tokens=1)
    assert {INPUT, OUTPUT}.isdisjoint(only(spans).attributes or {})
