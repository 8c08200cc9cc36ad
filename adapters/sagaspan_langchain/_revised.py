"""The model's message after an edit: it names the call that was really made, or the model would wonder at its answer.

The message is given back under its own id, which replaces it in a state that merges messages by their ids; in any other
state it would stand there twice, so nothing is given back there.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

from langchain_core.messages import AIMessage
from langgraph.prebuilt import ToolNode
from langgraph.types import Command

from sagaspan import Run
from sagaspan_langchain import _compat

_of_runs: Final[WeakKeyDictionary[Run, dict[str, Any]]] = WeakKeyDictionary()
_given: Final[WeakKeyDictionary[Run, dict[str, AIMessage]]] = WeakKeyDictionary()
_lock: Final = threading.Lock()


def with_message(
    node: ToolNode, given: Any, config: Any, output: Any, edited: Mapping[str, Any], run: Run | None
) -> Any:
    """``output`` of a node, with the message of ``given`` as it would be had the model made the ``edited`` calls."""
    if not edited:
        return output
    message = next((one for one in _compat.messages_in(node, given, config) if has_one_of(one, edited)), None)
    if message is None or not message.id:
        return output
    revised = as_made(message, edited) if run is None else _of_all_tasks(run, message, edited)
    if isinstance(output, dict):
        return {name: [revised, *value] for name, value in output.items()}
    if any(isinstance(one, Command | list | dict) for one in output):
        return [Command(update=_compat.update_of(node, given, [revised])), *output]
    return [revised, *output]


def as_made(message: AIMessage, edited: Mapping[str, Any]) -> AIMessage:
    """``message`` as it would be had the model made the ``edited`` calls, by their ids."""
    content = message.content
    if isinstance(content, list):  # some providers repeat the calls there
        content = [_block(block, edited) for block in content]
    calls = [{**call, **edited.get(call["id"] or "", {})} for call in message.tool_calls]
    return message.model_copy(update={"tool_calls": calls, "content": content})


def _of_all_tasks(run: Run, message: AIMessage, edited: Mapping[str, Any]) -> AIMessage:
    """The one object for a message: tasks side by side edit each a call of it, and the last to end must not win."""
    with _lock:
        known = _of_runs.setdefault(run, {})
        known.update(edited)
        revised = as_made(message, known)
        given = _given.setdefault(run, {}).setdefault(str(message.id), revised)
        given.tool_calls, given.content = revised.tool_calls, revised.content
        return given


def has_one_of(message: Any, edited: Mapping[str, Any]) -> bool:
    """Whether ``message`` made one of the ``edited`` calls."""
    return isinstance(message, AIMessage) and any(call["id"] in edited for call in message.tool_calls)


def _block(block: Any, edited: Mapping[str, Any]) -> Any:
    is_call = isinstance(block, dict) and block.get("type") == "tool_use"
    call = edited.get(str(block.get("id"))) if is_call else None
    return block if call is None else {**block, "name": call["name"], "input": call["args"]}
