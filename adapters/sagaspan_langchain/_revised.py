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
    revised = as_made(message, _known(run, edited))
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


def _known(run: Run | None, edited: Mapping[str, Any]) -> Mapping[str, Any]:
    """All edits of the run so far: several tasks may each have edited a call of the same message."""
    if run is None:
        return edited
    with _lock:
        known = _of_runs.setdefault(run, {})
        known.update(edited)
        return dict(known)


def note(run: Run | None, edited: Mapping[str, Any]) -> None:
    """Let tasks beside this one know what is made of its calls."""
    _known(run, edited)


def has_one_of(message: Any, edited: Mapping[str, Any]) -> bool:
    """Whether ``message`` made one of the ``edited`` calls."""
    return isinstance(message, AIMessage) and any(call["id"] in edited for call in message.tool_calls)


def _block(block: Any, edited: Mapping[str, Any]) -> Any:
    is_call = isinstance(block, dict) and block.get("type") == "tool_use"
    call = edited.get(str(block.get("id"))) if is_call else None
    return block if call is None else {**block, "name": call["name"], "input": call["args"]}
