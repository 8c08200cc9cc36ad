"""Usage from streams, as the SDKs hand out their events."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic.types import RawMessageStreamEvent
from langchain_core.messages import AIMessageChunk
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from sagaspan.llm.responses import read_usage
from sagaspan.llm.streams import StreamUsage
from sagaspan.llm.usage import Usage
from tests.llm.payloads import ANTHROPIC_MESSAGE, OPENAI_CHAT, OPENAI_RESPONSE


def _chunk(delta: dict[str, Any] | None, usage: dict[str, Any] | None = None) -> dict[str, Any]:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": None}]
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o-2024-08-06",
            "service_tier": "default", "choices": choices, "usage": usage}  # fmt: skip


CHAT = [
    _chunk({"role": "assistant", "content": ""}),
    _chunk({"content": "Héllo"}),
    _chunk({"tool_calls": [{"index": 0, "id": "t", "type": "function", "function": {"name": "pay", "arguments": ""}}]}),
    _chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a":1}'}}]}),
    _chunk(None, OPENAI_CHAT["usage"]),
]

RESPONSES = [
    {"type": "response.created", "sequence_number": 0, "response": {**OPENAI_RESPONSE, "usage": None, "output": []}},
    {"type": "response.output_text.delta", "sequence_number": 1, "item_id": "m", "output_index": 0, "content_index": 0,
     "delta": "Hello", "logprobs": []},
    {"type": "response.function_call_arguments.delta", "sequence_number": 2, "item_id": "f", "output_index": 1,
     "delta": '{"a":1}'},
    {"type": "response.completed", "sequence_number": 3, "response": OPENAI_RESPONSE},
]  # fmt: skip

START = {
    "input_tokens": 50, "cache_read_input_tokens": 1000, "cache_creation_input_tokens": 700, "output_tokens": 1,
    "cache_creation": ANTHROPIC_MESSAGE["usage"]["cache_creation"], "service_tier": "standard", "inference_geo": "us",
}  # fmt: skip
MESSAGES = [
    {"type": "message_start", "message": {**ANTHROPIC_MESSAGE, "content": [], "stop_reason": None, "usage": START}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "Hm"}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"a":1}'}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None},
     "usage": {"output_tokens": 300, "server_tool_use": {"web_search_requests": 2, "web_fetch_requests": 0}}},
    {"type": "message_stop"},
]  # fmt: skip

STREAMS = [
    (TypeAdapter(ChatCompletionChunk), CHAT, read_usage(OPENAI_CHAT), len("Héllo".encode()) + len('pay{"a":1}')),
    (TypeAdapter(ResponseStreamEvent), RESPONSES, read_usage(OPENAI_RESPONSE), len('Hello{"a":1}')),
    (TypeAdapter(RawMessageStreamEvent), MESSAGES, read_usage(ANTHROPIC_MESSAGE), len('HelloHm{"a":1}')),
]


def _told(events: list[Any]) -> list[StreamUsage]:
    states = [StreamUsage()]
    for event in events:
        states.append(states[-1].after(event))
    return states


@pytest.mark.parametrize(("kind", "events", "usage", "visible"), STREAMS, ids=["chat", "responses", "messages"])
@pytest.mark.parametrize("as_objects", [True, False], ids=["objects", "dicts"])
def test_a_whole_stream_says_what_the_response_would_have(
    kind: TypeAdapter[Any], events: list[Any], usage: Usage, visible: int, as_objects: bool
) -> None:
    """Usage is as exact as without streaming, known only once it was said, and what was seen was counted."""
    states = _told([kind.validate_python(event) for event in events] if as_objects else events)
    assert states[-1].usage == usage
    assert states[-1].visible_bytes == visible
    assert states[1].usage is None
    assert states[2].usage is None


def test_a_dropped_stream_of_anthropic_has_told_its_input() -> None:
    """The input counts of the start hold, whatever follows."""
    state = _told(MESSAGES[:4])[-1]
    assert state.usage is None
    assert state.started is not None
    assert state.started.input_tokens == 1750
    assert state.started.model == "claude-sonnet-4-5-20250929"


def test_the_last_counts_of_anthropic_win() -> None:
    """With tools of the provider the input grows while it streams: counts are cumulative."""
    later = {"type": "message_delta", "delta": {}, "usage": {"input_tokens": 9000, "output_tokens": 10}}
    usage = _told([MESSAGES[0], later])[-1].usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.cache_write_1h_tokens) == (10_700, 10, 200)


def test_a_server_that_repeats_the_usage_is_counted_once() -> None:
    """Some compatible servers send the running total with every chunk."""
    chunks = [
        _chunk({"content": "a"}, {"prompt_tokens": 5, "completion_tokens": made, "total_tokens": 5 + made})
        for made in (1, 2, 3)
    ]
    usage = _told(chunks)[-1].usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens) == (5, 3)


def test_langchain_chunks_add_up() -> None:
    """Chunks of LangChain say what came since the last one."""
    chunks = [
        AIMessageChunk("He", usage_metadata={"input_tokens": 5, "output_tokens": 0, "total_tokens": 5}),
        AIMessageChunk("llo"),
        AIMessageChunk(
            "", tool_call_chunks=[{"name": "pay", "args": '{"a"', "id": "t", "index": 0, "type": "tool_call_chunk"}]
        ),
        AIMessageChunk("", usage_metadata={"input_tokens": 0, "output_tokens": 7, "total_tokens": 7}),
    ]
    state = _told(chunks)[-1]
    assert state.usage == Usage(input_tokens=5, output_tokens=7)
    assert state.visible_bytes == len('Hello{"a"')


@pytest.mark.parametrize("event", [None, {}, "text", 3, {"type": "ping"}, {"type": "error", "error": {}}, object()])
def test_events_that_say_nothing_change_nothing(event: Any) -> None:
    """Pings, errors and what nobody knows are passed over."""
    assert StreamUsage().after(event) == StreamUsage()


def test_a_running_count_is_not_final() -> None:
    """Only with the end of every choice, or of the stream, does it stand for what the call used."""
    used = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    ended = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    running, whole = _chunk({"content": "a"}, used), _chunk(None, used)
    assert _told([running])[-1].final() is None
    assert _told([running, ended])[-1].final() is None
    assert _told([ended, whole])[-1].final() == Usage(
        input_tokens=5, output_tokens=3, model="gpt-4o-2024-08-06", service_tier="default"
    )
    assert _told([{**ended, "usage": used}])[-1].final() is not None
    assert _told([{**ended, "usage": used}])[-1].final(choices=2) is None
    assert _told([ended, whole])[-1].final(choices=2) is None


def test_a_running_count_of_anthropic_is_not_final() -> None:
    """``message_delta`` may come more than once; the last has the reason why it stopped."""
    later = {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 10}}
    assert _told([MESSAGES[0], later])[-1].final() is None
    assert _told([MESSAGES[0], later, {"type": "message_stop"}])[-1].final() is not None
    assert _told([MESSAGES[0], later, MESSAGES[-2]])[-1].final() is not None


@pytest.mark.parametrize("events", [RESPONSES, MESSAGES], ids=["responses", "messages"])
def test_the_count_at_the_end_is_final(events: list[Any]) -> None:
    """Of every API."""
    assert _told(events)[-1].final() == _told(events)[-1].usage is not None
