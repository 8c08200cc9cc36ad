"""How each API writes a tool, the calls that its model asks for, and the answers it wants back.

Three dialects, told apart by the fields of what came: ``chat`` (OpenAI's chat completions, and servers compatible with
it), ``responses`` (OpenAI's responses) and ``messages`` (Anthropic's). Objects of any version of an SDK, and plain
dicts, read the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from sagaspan import ConfigurationError
from sagaspan.llm.responses import get

Dialect = Literal["chat", "responses", "messages"]
DIALECTS: Final = ("chat", "responses", "messages")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One call that a model asks for: the ``id`` its answer must name, and ``arguments`` as they came."""

    id: str
    name: str
    arguments: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a call came to, as text for the model."""

    asked: Asked
    text: str
    is_error: bool


def schema(dialect: str, name: str, description: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A tool as the API wants it declared; raises ``ConfigurationError`` for a dialect that is none."""
    if dialect == "chat":
        return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}
    if dialect == "responses":
        return {
            "type": "function", "name": name, "description": description, "parameters": parameters, "strict": False,
        }  # fmt: skip
    if dialect == "messages":
        return {"name": name, "description": description, "input_schema": parameters}
    raise ConfigurationError(f"{dialect!r} is none of the APIs {', '.join(DIALECTS)}")


def read(response: Any) -> tuple[Dialect, list[Asked]]:
    """The dialect of ``response`` (or of the message in it) and the calls it asks for; ``ConfigurationError``."""
    if (choices := get(response, "choices")) is not None:
        response = get(choices[0], "message") if choices else {}
        return "chat", _of_chat(get(response, "tool_calls"))
    output = response if isinstance(response, list | tuple) else get(response, "output")
    if isinstance(output, list | tuple):
        return "responses", [_of_responses(item) for item in output if get(item, "type") == "function_call"]
    if get(response, "tool_calls") is not None:
        return "chat", _of_chat(get(response, "tool_calls"))
    content = get(response, "content")
    if isinstance(content, list | tuple) and any(get(block, "type") in _BLOCKS for block in content):
        return "messages", [_of_messages(block) for block in content if get(block, "type") == "tool_use"]
    if get(response, "role") == "assistant":
        return "chat", []
    raise ConfigurationError(
        f"a {type(response).__name__} is no answer of chat completions, responses or messages that could ask for tools"
    )


_BLOCKS: Final = ("text", "tool_use", "thinking", "redacted_thinking", "server_tool_use")


def _of_chat(calls: Sequence[Any] | None) -> list[Asked]:
    return [_of_chat_call(call, get(call, "function") or get(call, "custom")) for call in calls or ()]


def _of_chat_call(call: Any, function: Any) -> Asked:
    arguments = get(function, "arguments")
    return Asked(
        id=get(call, "id"), name=get(function, "name"),
        arguments=get(function, "input") if arguments is None else arguments,
    )  # fmt: skip


def _of_responses(item: Any) -> Asked:
    return Asked(id=get(item, "call_id"), name=get(item, "name"), arguments=get(item, "arguments"))


def _of_messages(block: Any) -> Asked:
    return Asked(id=get(block, "id"), name=get(block, "name"), arguments=get(block, "input"))


def write(dialect: Dialect, answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """What to append to the conversation so that the model sees ``answers``."""
    if dialect == "chat":
        return [{"role": "tool", "tool_call_id": answer.asked.id, "content": answer.text} for answer in answers]
    if dialect == "responses":
        return [
            {"type": "function_call_output", "call_id": answer.asked.id, "output": answer.text} for answer in answers
        ]
    # Anthropic takes the answers to one turn in one message, or refuses the next request.
    return [{"role": "user", "content": [_block(answer) for answer in answers]}] if answers else []


def _block(answer: Answer) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": answer.asked.id, "content": answer.text}
    return {**block, "is_error": True} if answer.is_error else block
