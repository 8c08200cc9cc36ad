"""Anthropic's wire format: messages, whole and as server-sent events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.providers.openai_wire import Event, quarters
from tests.providers.replies import Answer, Reply, answer, count


def error(status: int, message: str) -> dict[str, Any]:
    """The body of an error."""
    kinds = {
        400: "invalid_request_error",
        401: "authentication_error",
        429: "rate_limit_error",
        529: "overloaded_error",
    }
    return {
        "type": "error",
        "error": {"type": kinds.get(status, "api_error"), "message": message},
        "request_id": "req_1",
    }


def message_answer(body: dict[str, Any], reply: Reply) -> Answer:
    """The answer to a request for a message."""
    request = {name: body[name] for name in ("messages", "system", "tools") if name in body}
    return answer(reply, model=body["model"], request=request, limit=body["max_tokens"])


def message(said: Answer) -> dict[str, Any]:
    """A message."""
    return {**_head(said), "content": _content(said), "stop_reason": _stop(said),
            "usage": {} if said.reply.silent_usage else _usage(said, said.output_tokens)}  # fmt: skip


def message_events(said: Answer) -> Iterator[Event]:
    """A message, event by event: the input counts come first, the output counts last."""
    start = {**_head(said), "content": [], "stop_reason": None, "usage": _usage(said, 1)}
    yield "message_start", {"type": "message_start", "message": start}, 0
    yield "ping", {"type": "ping"}, 0
    for index, block in enumerate(_content(said)):
        empty, deltas = _deltas(block, said)
        yield "content_block_start", {"type": "content_block_start", "index": index, "content_block": empty}, 0
        for delta, tokens in deltas:
            yield "content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta}, tokens
        yield "content_block_stop", {"type": "content_block_stop", "index": index}, 0
    delta = {"stop_reason": _stop(said), "stop_sequence": None}
    usage = {"output_tokens": said.output_tokens}
    yield "message_delta", {"type": "message_delta", "delta": delta, "usage": usage}, 0
    yield "message_stop", {"type": "message_stop"}, 0


def _head(said: Answer) -> dict[str, Any]:
    return {"id": "msg_1", "type": "message", "role": "assistant", "model": said.model, "stop_sequence": None}


def _content(said: Answer) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if said.thought:
        blocks.append({"type": "thinking", "thinking": "".join(said.thought), "signature": "c2ln"})
    if said.pieces:
        blocks.append({"type": "text", "text": said.text})
    return blocks + [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": dict(call.arguments)}
        for call in said.reply.tool_calls
    ]


def _deltas(block: dict[str, Any], said: Answer) -> tuple[dict[str, Any], list[tuple[dict[str, Any], int]]]:
    """A block as it starts, and what follows, with the tokens of each."""
    if block["type"] == "text":
        return {**block, "text": ""}, [({"type": "text_delta", "text": piece}, 1) for piece in said.pieces]
    if block["type"] == "thinking":
        thought = [({"type": "thinking_delta", "thinking": piece}, 1) for piece in said.thought]
        signature = {"type": "signature_delta", "signature": block["signature"]}
        return {**block, "thinking": "", "signature": ""}, [*thought, (signature, 0)]
    pieces = [({"type": "input_json_delta", "partial_json": piece}, 1) for piece in quarters(block["input"])]
    return {**block, "input": {}}, [({"type": "input_json_delta", "partial_json": ""}, count(block["name"])), *pieces]


def _usage(said: Answer, output_tokens: int) -> dict[str, Any]:
    reply = said.reply
    return {
        "input_tokens": said.input_tokens - reply.cache_read_tokens - reply.cache_write_tokens,
        "output_tokens": output_tokens, "cache_read_input_tokens": reply.cache_read_tokens,
        "cache_creation_input_tokens": reply.cache_write_tokens,
        "cache_creation": {"ephemeral_5m_input_tokens": reply.cache_write_tokens, "ephemeral_1h_input_tokens": 0},
        "service_tier": reply.service_tier or "standard",
    }  # fmt: skip


def _stop(said: Answer) -> str:
    return "max_tokens" if said.cut else "tool_use" if said.reply.tool_calls else "end_turn"
