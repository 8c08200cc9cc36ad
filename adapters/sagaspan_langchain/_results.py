"""What a tool's body returns, as plain data for the ledger and back.

Messages, ``Command`` and ``Send`` are rebuilt on a replay; nothing is imported by a stored name. An artifact that has
no encoding is dropped: a replay without it is better than none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from langchain_core.messages import BaseMessage, ToolMessage, message_to_dict, messages_from_dict
from langgraph.types import Command, Send

from sagaspan import codecs
from sagaspan.adapters import beside

TAG: Final = "$langchain"


def to_record(value: Any, *, has_artifact: bool) -> Any:
    """``value`` as the ledger shall keep it; the same object if there is nothing to change."""
    if has_artifact and isinstance(value, tuple) and len(value) == 2:
        content, artifact = (to_record(part, has_artifact=False) for part in value)
        kept = artifact if _encodes(artifact) else None
        return value if content is value[0] and kept is value[1] else (content, kept)
    return _plain(value) if _holds_framework(value) else value


def from_record(value: Any, tool_call_id: str | None) -> Any:
    """What ``to_record`` was given. A message that answered the recorded call answers ``tool_call_id``."""
    if isinstance(value, list | tuple):
        return type(value)(from_record(item, tool_call_id) for item in value)
    if not isinstance(value, dict):
        return value
    if TAG not in value:
        return {key: from_record(item, tool_call_id) for key, item in value.items()}
    build = _BUILDERS.get(value[TAG])
    return value if build is None else build(value["value"], tool_call_id)


def remarked(value: Any, remarks: Sequence[str]) -> Any:
    """``value`` with ``remarks`` for the model; a ``Command`` or ``Send`` is none for it and stays as it is."""
    if isinstance(value, ToolMessage):
        content = remarked(value.content, remarks)
        return value.model_copy(update={"content": json.dumps(content) if isinstance(content, dict) else content})
    if _holds_framework(value):
        return value
    if isinstance(value, list) and value and all(isinstance(part, dict) and "type" in part for part in value):
        return [*value, {"type": "text", "text": ". ".join(remarks)}]
    return beside(value, remarks)


def _encodes(value: Any) -> bool:
    try:
        codecs.to_json(value)
    except codecs.Unencodable:
        return False
    return True


def _holds_framework(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_holds_framework(item) for item in value.values())
    if isinstance(value, list | tuple):
        return any(_holds_framework(item) for item in value)
    return isinstance(value, BaseMessage | Command | Send)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseMessage):
        return {TAG: "message", "value": _message_data(value)}
    if isinstance(value, Command):
        parts = {"graph": value.graph, "update": value.update, "resume": value.resume, "goto": value.goto}
        return {TAG: "command", "value": {name: _plain(part) for name, part in parts.items()}}
    if isinstance(value, Send):
        return {TAG: "send", "value": {"node": value.node, "arg": _plain(value.arg)}}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(item) for item in value)
    return value


def _message_data(message: BaseMessage) -> dict[str, Any]:
    plain = message_to_dict(message)
    # The id is dropped: the same id in a later turn would replace the earlier message (langchain.md, section 2).
    data = {**plain["data"], "id": None}
    if not _encodes(data.get("artifact")):
        data["artifact"] = None
    return {"type": plain["type"], "data": data}


def _message(data: dict[str, Any], tool_call_id: str | None) -> BaseMessage:
    (message,) = messages_from_dict([data])
    if isinstance(message, ToolMessage) and tool_call_id is not None:
        return message.model_copy(update={"tool_call_id": tool_call_id})
    return message


def _command(data: dict[str, Any], tool_call_id: str | None) -> Command[Any]:
    return Command(**{name: from_record(part, tool_call_id) for name, part in data.items()})


def _send(data: dict[str, Any], tool_call_id: str | None) -> Send:
    return Send(data["node"], from_record(data["arg"], tool_call_id))


_BUILDERS: Final[dict[str, Callable[[dict[str, Any], str | None], Any]]] = {
    "message": _message,
    "command": _command,
    "send": _send,
}
