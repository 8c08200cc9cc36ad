"""OpenAI's wire format: chat completions, completions, responses, embeddings; whole and as server-sent events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.providers.replies import Answer, Reply, answer, count

Event = tuple[str | None, dict[str, Any] | str, int]
"""The event's name (None: it has none), its data, and how many tokens the model has made with it."""


def error(status: int, message: str, kind: str = "invalid_request_error") -> dict[str, Any]:
    """The body of an error."""
    kinds = {429: "rate_limit_exceeded", 500: "server_error", 401: "invalid_api_key"}
    return {"error": {"message": message, "type": kinds.get(status, kind), "param": None, "code": None}}


# -- chat completions ----------------------------------------------------------------------------------------


def chat_answer(body: dict[str, Any], reply: Reply) -> Answer:
    """The answer to a request for a chat completion."""
    return answer(
        reply,
        model=body["model"],
        request={name: body[name] for name in ("messages", "tools") if name in body},
        limit=body.get("max_completion_tokens", body.get("max_tokens")),
        choices=body.get("n") or 1,
    )


def chat(said: Answer) -> dict[str, Any]:
    """A chat completion."""
    message = {"role": "assistant", "content": said.text or None, "refusal": None, "annotations": []}
    if said.reply.tool_calls:
        message["tool_calls"] = [_chat_call(call) for call in said.reply.tool_calls]
    choices = [
        {"index": index, "message": message, "logprobs": None, "finish_reason": _finish(said)}
        for index in range(said.choices)
    ]
    body = {**_chat_head(said, "chat.completion"), "choices": choices}
    return body if said.reply.silent_usage else {**body, "usage": _chat_usage(said)}


def chat_events(said: Answer, body: dict[str, Any]) -> Iterator[Event]:
    """A chat completion, piece by piece; with the usage at the end only if it was asked for."""
    usage_asked = (body.get("stream_options") or {}).get("include_usage", False)
    head = {**_chat_head(said, "chat.completion.chunk"), **({"usage": None} if usage_asked else {})}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]}

    yield None, chunk({"role": "assistant", "content": ""}), len(said.thought)
    for piece in said.pieces:
        yield None, chunk({"content": piece}), 1
    for index, call in enumerate(said.reply.tool_calls):
        begin = {"index": index, "id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
        yield None, chunk({"tool_calls": [begin]}), count(call.name)
        for piece in quarters(call.arguments):
            yield None, chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]}), 1
    yield None, chunk({}, _finish(said)), 0
    if usage_asked and not said.reply.silent_usage:
        yield None, {**head, "choices": [], "usage": _chat_usage(said)}, 0
    yield None, "[DONE]", 0


def _chat_head(said: Answer, kind: str) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1", "object": kind, "created": 1_800_000_000, "model": said.model, "system_fingerprint": "fp_1",
        "service_tier": said.reply.service_tier or "default",
    }  # fmt: skip


def _chat_usage(said: Answer) -> dict[str, Any]:
    return {
        "prompt_tokens": said.input_tokens, "completion_tokens": said.output_tokens,
        "total_tokens": said.input_tokens + said.output_tokens,
        "prompt_tokens_details": {"cached_tokens": said.reply.cache_read_tokens, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": said.reasoning_tokens, "audio_tokens": 0,
                                      "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0},
    }  # fmt: skip


def _chat_call(call: Any) -> dict[str, Any]:
    return {"id": call.id, "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))}}  # fmt: skip


def _finish(said: Answer) -> str:
    return "length" if said.cut else "tool_calls" if said.reply.tool_calls else "stop"


def quarters(arguments: Any) -> list[str]:
    """Arguments as they stream: JSON, four characters at a time."""
    text = json.dumps(dict(arguments))
    return [text[start : start + 4] for start in range(0, len(text), 4)]


# -- responses -----------------------------------------------------------------------------------------------


def response_answer(body: dict[str, Any], reply: Reply) -> Answer:
    """The answer to a request for a response."""
    request = {name: body[name] for name in ("input", "instructions", "tools") if name in body}
    return answer(reply, model=body["model"], request=request, limit=body.get("max_output_tokens"))


def response(said: Answer, *, status: str | None = None, output: list[Any] | None = None) -> dict[str, Any]:
    """A response; ``status`` and ``output`` as it streams."""
    done = status is None
    usage = _response_usage(said) if done and not said.reply.silent_usage else None
    return {
        "id": "resp_1", "object": "response", "created_at": 1_800_000_000, "model": said.model,
        "status": status or ("incomplete" if said.cut else "completed"), "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if done and said.cut else None,
        "instructions": None, "metadata": {}, "parallel_tool_calls": True, "temperature": 1.0, "tool_choice": "auto",
        "tools": [], "top_p": 1.0, "service_tier": said.reply.service_tier or "default",
        "output": _output(said) if output is None else output, "usage": usage,
    }  # fmt: skip


def _output(said: Answer) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if said.thought:
        items.append({"type": "reasoning", "id": "rs_1", "summary": []})
    if said.pieces:
        items.append(_message([{"type": "output_text", "text": said.text, "annotations": []}], "completed"))
    return items + [_function_call(call, "completed") for call in said.reply.tool_calls]


def _message(content: list[Any], status: str) -> dict[str, Any]:
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": status, "content": content}


def _function_call(call: Any, status: str, arguments: str | None = None) -> dict[str, Any]:
    text = json.dumps(dict(call.arguments)) if arguments is None else arguments
    return {"type": "function_call", "id": f"fc_{call.id}", "call_id": call.id, "name": call.name, "status": status,
            "arguments": text}  # fmt: skip


def _response_usage(said: Answer) -> dict[str, Any]:
    return {
        "input_tokens": said.input_tokens, "output_tokens": said.output_tokens,
        "total_tokens": said.input_tokens + said.output_tokens,
        "input_tokens_details": {"cached_tokens": said.reply.cache_read_tokens,
                                 "cache_write_tokens": said.reply.cache_write_tokens},
        "output_tokens_details": {"reasoning_tokens": said.reasoning_tokens},
    }  # fmt: skip


def response_events(said: Answer) -> Iterator[Event]:
    """A response, event by event."""
    for number, (data, tokens) in enumerate(_response_events(said)):
        yield data["type"], {**data, "sequence_number": number}, tokens


def _response_events(said: Answer) -> Iterator[tuple[dict[str, Any], int]]:
    running = response(said, status="in_progress", output=[])
    yield {"type": "response.created", "response": running}, 0
    yield {"type": "response.in_progress", "response": running}, len(said.thought)
    index = 0
    if said.pieces:
        yield from _text_events(said, index)
        index += 1
    for number, call in enumerate(said.reply.tool_calls, start=index):
        item = {"item_id": f"fc_{call.id}", "output_index": number}
        yield {"type": "response.output_item.added", "output_index": number,
               "item": _function_call(call, "in_progress", "")}, count(call.name)  # fmt: skip
        for piece in quarters(call.arguments):
            yield {"type": "response.function_call_arguments.delta", **item, "delta": piece}, 1
        done = _function_call(call, "completed")
        yield {"type": "response.function_call_arguments.done", **item, "name": call.name,
               "arguments": done["arguments"]}, 0  # fmt: skip
        yield {"type": "response.output_item.done", "output_index": number, "item": done}, 0
    whole = response(said)
    yield {"type": f"response.{whole['status']}", "response": whole}, 0


def _text_events(said: Answer, index: int) -> Iterator[tuple[dict[str, Any], int]]:
    place = {"item_id": "msg_1", "output_index": index, "content_index": 0}
    part = {"type": "output_text", "text": said.text, "annotations": []}
    added = {"type": "response.output_item.added", "output_index": index, "item": _message([], "in_progress")}
    yield added, 0
    yield {"type": "response.content_part.added", **place, "part": {**part, "text": ""}}, 0
    for piece in said.pieces:
        yield {"type": "response.output_text.delta", **place, "delta": piece, "logprobs": []}, 1
    yield {"type": "response.output_text.done", **place, "text": said.text, "logprobs": []}, 0
    yield {"type": "response.content_part.done", **place, "part": part}, 0
    yield {"type": "response.output_item.done", "output_index": index, "item": _message([part], "completed")}, 0


# -- completions of texts ------------------------------------------------------------------------------------


def completion_answer(body: dict[str, Any], reply: Reply) -> Answer:
    """The answer to a request for completions: one of each prompt, and of each as many as are asked for."""
    prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
    choices = len(prompts) * (body.get("n") or 1)
    return answer(reply, model=body["model"], request=prompts, limit=body.get("max_tokens", 16), choices=choices)


def completion(said: Answer) -> dict[str, Any]:
    """Completions of texts."""
    choices = [
        {"index": index, "text": said.text, "logprobs": None, "finish_reason": _finish(said)}
        for index in range(said.choices)
    ]
    body = {**_chat_head(said, "text_completion"), "choices": choices}
    return body if said.reply.silent_usage else {**body, "usage": _chat_usage(said)}


def completion_events(said: Answer, body: dict[str, Any]) -> Iterator[Event]:
    """A completion, piece by piece; with the usage at the end only if it was asked for."""
    head = _chat_head(said, "text_completion")
    for piece in said.pieces:
        yield None, {**head, "choices": [{"index": 0, "text": piece, "logprobs": None, "finish_reason": None}]}, 1
    last = {"index": 0, "text": "", "logprobs": None, "finish_reason": _finish(said)}
    yield None, {**head, "choices": [last]}, 0
    if (body.get("stream_options") or {}).get("include_usage", False):
        yield None, {**head, "choices": [], "usage": _chat_usage(said)}, 0
    yield None, "[DONE]", 0


# -- embeddings ----------------------------------------------------------------------------------------------


def embeddings_answer(body: dict[str, Any], reply: Reply) -> Answer:
    """The answer to a request for embeddings: no output at all."""
    return answer(Reply(text="", input_tokens=reply.input_tokens, model=reply.model), model=body["model"],
                  request=body["input"], limit=0)  # fmt: skip


def embeddings(said: Answer, body: dict[str, Any]) -> dict[str, Any]:
    """Embeddings: base64 of two floats, which the SDK asks for and decodes, or a list."""
    texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
    vector = "zczMPc3MTD4=" if body.get("encoding_format") == "base64" else [0.1, 0.2]
    data = [{"object": "embedding", "index": index, "embedding": vector} for index in range(len(texts))]
    usage = {"prompt_tokens": said.input_tokens, "total_tokens": said.input_tokens}
    return {"object": "list", "model": said.model, "data": data, "usage": usage}
