"""What a model was asked and what it answered, in the JSON shape of OpenTelemetry's GenAI conventions.

A message is ``{"role", "parts"}``, of an answer also ``finish_reason``; parts are ``text``, ``reasoning``,
``tool_call`` and ``tool_call_response``. What has no text (images, audio, files, tools that a provider runs) is told by
its type only. The three APIs are told apart by their fields: objects of an SDK and plain dicts read the same.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from sagaspan.llm.responses import get

Part = dict[str, Any]
Message = dict[str, Any]


def asked(request: Any) -> tuple[list[Message], list[Part]]:
    """The messages and the system instructions of a request: the arguments of an SDK's call, messages, or one text.

    Instructions that are a message of the chat stay there, as the conventions want it.
    """
    if not isinstance(request, Mapping) or "role" in request:
        return _messages(request), []
    instructions = request.get("system") if request.get("instructions") is None else request.get("instructions")
    said = request.get("input") if request.get("messages") is None else request.get("messages")
    return _messages(said), _parts(instructions)


def answered(response: Any) -> list[Message]:
    """The answers in a response, one a choice; or of messages that the caller has put together, or of a text."""
    if isinstance(response, str | list | tuple):
        return [_ended({**message, "role": "assistant"}, None) for message in _messages(response)]
    reasons = finish_reasons(response)
    first = reasons[0] if reasons else None
    if isinstance(choices := get(response, "choices"), list | tuple):
        return [_ended(_message(get(choice, "message")), get(choice, "finish_reason")) for choice in choices]
    for items in (get(response, "output"), get(response, "content")):
        if isinstance(items, str | list | tuple):
            return [_ended({"role": "assistant", "parts": _parts(items)}, first)]
    return []


def finish_reasons(response: Any) -> tuple[str, ...]:
    """Why the model stopped, one a choice, in the provider's words; empty if it does not say so."""
    if isinstance(choices := get(response, "choices"), list | tuple):
        found = [get(choice, "finish_reason") for choice in choices]
    elif get(response, "object") == "response":
        incomplete = get(get(response, "incomplete_details"), "reason")
        status = get(response, "status")
        found = [incomplete or (_STATUS.get(status, status) if isinstance(status, str) else None)]
    else:
        found = [get(response, "stop_reason")]
    return tuple(reason for reason in found if isinstance(reason, str))


_STATUS: Final = {"completed": "stop", "failed": "error"}
"""OpenAI's responses have a status instead."""


def _ended(message: Message, reason: Any) -> Message:
    return {"finish_reason": reason if isinstance(reason, str) else "unknown", **message}


def _messages(said: Any) -> list[Message]:
    if said is None:
        return []
    if isinstance(said, str) or not isinstance(said, Iterable) or isinstance(said, Mapping):
        return [_message(said)]
    return [_message(one) for one in said]


def _message(said: Any) -> Message:
    if isinstance(said, str):
        return {"role": "user", "parts": _parts(said)}
    if isinstance(get(said, "parts"), list):
        return {"role": "user", **said}  # in this shape already
    role, kind = get(said, "role"), str(get(said, "type"))
    if not isinstance(role, str):  # OpenAI's responses have items beside messages
        return {"role": "tool" if kind.endswith("_output") else "assistant", "parts": _part(said)}
    if role in ("tool", "function"):
        id_ = get(said, "tool_call_id")
        return {"role": "tool", "parts": [_tool_response(id_, get(said, "content"))]}
    parts = [*_reasoning(said), *_parts(get(said, "content")), *_of_chat(said)]
    answers = parts and all(part["type"] == "tool_call_response" for part in parts)
    return {"role": "tool" if answers else role, "parts": parts}


def _reasoning(said: Any) -> list[Part]:
    """What servers compatible with OpenAI's show of it."""
    text = get(said, "reasoning_content") or get(said, "reasoning")
    return [{"type": "reasoning", "content": text}] if isinstance(text, str) and text else []


def _of_chat(said: Any) -> list[Part]:
    refusal, transcript = get(said, "refusal"), get(get(said, "audio"), "transcript")
    calls = [*(get(said, "tool_calls") or ()), *([said] if get(said, "function_call") is not None else [])]
    return [
        *([{"type": "refusal", "content": refusal}] if isinstance(refusal, str) else []),
        *([{"type": "text", "content": transcript}] if isinstance(transcript, str) else []),
        *(_chat_call(call) for call in calls),
    ]


def _chat_call(call: Any) -> Part:
    function = get(call, "function") or get(call, "custom") or get(call, "function_call")
    arguments = get(function, "arguments")
    return tool_call(get(call, "id"), get(function, "name"), get(function, "input") if arguments is None else arguments)


def tool_call(id_: Any, name: Any, arguments: Any) -> Part:
    """A tool that a model asks for; its arguments as they came, or what their JSON says."""
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError, RecursionError):  # cut off, or no JSON at all: as it came
            arguments = json.loads(arguments)
    return {"type": "tool_call", "id": id_, "name": str(name or ""), "arguments": arguments}


def _tool_response(id_: Any, content: Any) -> Part:
    parts = _parts(content)
    texts = [part["content"] for part in parts if part["type"] == "text"]
    return {
        "type": "tool_call_response", "id": id_, "response": "".join(texts) if len(texts) == len(parts) else parts,
    }  # fmt: skip


def _parts(content: Any) -> list[Part]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "content": content}]
    if isinstance(content, Mapping) or not isinstance(content, Iterable):
        return _part(content)
    return [part for block in content for part in ([*_parts(block)] if isinstance(block, str) else _part(block))]


def _part(block: Any) -> list[Part]:
    """A block of a message, or an item of OpenAI's responses."""
    kind = get(block, "type")
    if kind in _TEXTS or (kind is None and isinstance(get(block, "text"), str)):
        return [{"type": "text", "content": str(get(block, "text"))}]
    if kind == "message":
        return _parts(get(block, "content"))
    if kind == "thinking":
        return [{"type": "reasoning", "content": str(get(block, "thinking"))}]
    if kind == "reasoning":
        shown = [*(get(block, "summary") or ()), *(get(block, "content") or ())]
        return [{"type": "reasoning", "content": text} for one in shown if isinstance(text := get(one, "text"), str)]
    if kind == "refusal":
        return [{"type": "refusal", "content": str(get(block, "refusal"))}]
    if kind in _CALLS:
        arguments = next((found for name in _ARGUMENTS if (found := get(block, name)) is not None), None)
        return [tool_call(get(block, "call_id") or get(block, "id"), get(block, "name"), arguments)]
    if kind in _ANSWERS:
        answer = get(block, "output") if get(block, "content") is None else get(block, "content")
        return [_tool_response(get(block, "call_id") or get(block, "tool_use_id"), answer)]
    return [{"type": str(kind or "unknown")}]


_TEXTS: Final = ("text", "input_text", "output_text")
_CALLS: Final = ("tool_use", "function_call", "custom_tool_call")
_ARGUMENTS: Final = ("arguments", "input")
_ANSWERS: Final = ("tool_result", "function_call_output", "custom_tool_call_output")
