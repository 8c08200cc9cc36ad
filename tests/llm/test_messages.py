"""What was asked and answered, from every dialect, in the shape of OpenTelemetry's conventions."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic.types import Message
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from sagaspan.llm.messages import answered, asked, finish_reasons
from sagaspan.llm.transcript import LONGEST, MOST, Transcript
from tests.llm.payloads import ANTHROPIC_MESSAGE, OPENAI_CHAT, OPENAI_RESPONSE
from tests.llm.test_streams import CHAT, MESSAGES, RESPONSES


def _text(content: str) -> dict[str, Any]:
    return {"type": "text", "content": content}


CALL = {"type": "tool_call", "id": "c1", "name": "pay", "arguments": {"amount": 20}}
ANSWER = {"type": "tool_call_response", "id": "c1", "response": "paid"}
THOUGHT = {"type": "reasoning", "content": "Hm."}
CONVERSATION = [
    {"role": "user", "parts": [_text("Pay.")]},
    {"role": "assistant", "parts": [THOUGHT, _text("Yes."), CALL]},
    {"role": "tool", "parts": [ANSWER]},
]
REQUESTS: dict[str, dict[str, Any]] = {
    "chat": {"messages": [
        {"role": "user", "content": "Pay."},
        {"role": "assistant", "content": [{"type": "text", "text": "Yes."}], "reasoning_content": "Hm.", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "pay", "arguments": '{"amount": 20}'}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "paid"},
    ]},
    "messages": {"system": [{"type": "text", "text": "Be kind."}], "messages": [
        {"role": "user", "content": "Pay."},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}, {"type": "text", "text": "Yes."},
            {"type": "tool_use", "id": "c1", "name": "pay", "input": {"amount": 20}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "paid"}]}]},
    ]},
    "responses": {"instructions": "Be kind.", "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Pay."}]},
        {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]},
        {"type": "function_call", "call_id": "c1", "name": "pay", "arguments": '{"amount": 20}'},
        {"type": "function_call_output", "call_id": "c1", "output": "paid"},
    ]},
}  # fmt: skip


@pytest.mark.parametrize("api", REQUESTS)
def test_a_request_reads_the_same_in_every_dialect(api: str) -> None:
    """Roles, texts, reasoning, tool calls and their answers; what is told apart from the chat are the instructions."""
    messages, instructions = asked(REQUESTS[api])
    if api == "responses":  # items, each a message of its own
        spoken = [part for message in messages[1:4] for part in message["parts"]]
        messages = [messages[0], {"role": "assistant", "parts": spoken}, *messages[4:]]
    assert messages == CONVERSATION
    assert instructions == ([] if api == "chat" else [_text("Be kind.")])


def test_a_text_or_messages_alone() -> None:
    """What a caller by hand may give."""
    assert asked("Hi.") == ([{"role": "user", "parts": [_text("Hi.")]}], [])
    assert (
        asked([{"role": "user", "content": "Hi."}])[0]
        == asked("Hi.")[0]
        == asked({"role": "user", "content": "Hi."})[0]
    )
    assert answered("Ho.") == [{"role": "assistant", "parts": [_text("Ho.")], "finish_reason": "unknown"}]
    assert asked(None) == ([], [])


def test_what_is_no_text_is_told_by_its_type_only() -> None:
    """No picture goes on a span."""
    content = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, {"type": "text", "text": "?"}]
    [message], _ = asked([{"role": "user", "content": content}])
    assert message["parts"] == [{"type": "image_url"}, _text("?")]


@pytest.mark.parametrize(
    ("payload", "kind"),
    [(OPENAI_CHAT, ChatCompletion), (OPENAI_RESPONSE, Response), (ANTHROPIC_MESSAGE, Message)],
    ids=["chat", "responses", "messages"],
)
@pytest.mark.parametrize("as_object", [True, False], ids=["object", "dict"])
def test_a_response_reads_the_same_in_every_dialect(payload: Any, kind: Any, as_object: bool) -> None:
    """The text of the answer, and why it ended in the provider's words."""
    response = kind.model_validate(payload) if as_object else payload
    [message] = answered(response)
    assert message["role"] == "assistant"
    assert message["parts"][-1] == _text("Hello.")
    assert (message["finish_reason"],) == finish_reasons(response)
    assert message["finish_reason"] == ("end_turn" if kind is Message else "stop")


@pytest.mark.parametrize(
    ("events", "text", "arguments"),
    [(CHAT, "Héllo", {"a": 1}), (RESPONSES, "Hello", {"a": 1}), (MESSAGES, "HelloHm", {"a": 1})],
    ids=["chat", "responses", "messages"],
)
def test_a_stream_is_put_together(events: list[Any], text: str, arguments: Any) -> None:
    """The same as the whole answer would say."""
    transcript = Transcript()
    for event in events:
        transcript.add(event)
    [message] = transcript.messages(("stop",))
    assert message["finish_reason"] == "stop"
    assert message["parts"][0] == _text(text)
    assert message["parts"][1]["arguments"] == arguments


def test_a_stream_without_end_takes_no_memory_without_end() -> None:
    """Of each part the beginning is kept, and of so many parts."""
    transcript = Transcript()
    for index in range(MOST * 2):
        for _ in range(3):
            piece = {"id": "c", "index": index, "function": {"name": "pay", "arguments": "x" * LONGEST}}
            transcript.add({"choices": [{"index": 0, "delta": {"tool_calls": [piece]}}]})
    [message] = transcript.messages()
    assert len(message["parts"]) == MOST
    assert {len(part["arguments"]) for part in message["parts"]} == {LONGEST}
