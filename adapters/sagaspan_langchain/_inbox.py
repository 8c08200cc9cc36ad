"""Answers as Agent Inbox sends them, read as LangChain's decisions: what its buttons say, and nothing beyond that.

A question in LangChain's format it answers with ``{"decisions": [{"type": ..., "args": ...}]}``, where ``args`` is what
its own, older format has there; a question in that older format with a list of those (``HumanResponse``). Its "respond"
says why not: it sends that as a rejection. "Ignore" makes no call. What is in neither form stays as it is, and is
refused as such.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

_OLDER: Final = {"accept": "approve", "edit": "edit", "response": "reject", "ignore": "ignore"}
_FIELDS: Final = {"type", "args"}


def as_decisions(answer: Any, shown: Sequence[Mapping[str, Any]]) -> Any:
    """``answer`` as ``{"decisions": [...]}`` if Agent Inbox says it so; ``shown``: the arguments of each call."""
    given = _given(answer)
    if given is None:
        return answer
    known = [*shown, *({} for _ in given[len(shown) :])]
    read = [_decision(one, args) for one, args in zip(given, known, strict=False)]
    return {**(answer if isinstance(answer, dict) else {}), "decisions": read}


def check_accepted(answer: Any, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Raise ``ValueError`` for a yes to other ``calls`` (names and arguments) than these: it repeats what it was shown.

    A page that was left open, say, or a number that JavaScript cannot hold.
    """
    for one, (name, args) in zip(_given(answer) or (), calls, strict=False):
        accepted: Any = one["args"] if _is_response(one) and one["type"] == "approve" else None
        if _is_action(accepted) and not (accepted["action"] == name and _is_same(accepted["args"], args)):
            raise ValueError(f"this accepts {accepted!r}, but {name!r} is asked about with {dict(args)!r}")


def _given(answer: Any) -> list[Any] | None:
    """What it says of each call, in the words of the newer format; None if it is in neither."""
    if isinstance(answer, list):
        is_older = bool(answer) and all(_is_response(one) and _is_older(one) for one in answer)
        return [{**one, "type": _OLDER[one["type"]]} for one in answer] if is_older else None
    given = answer.get("decisions") if isinstance(answer, dict) else None
    return given if isinstance(given, list) else None


def _is_response(one: Any) -> bool:
    return isinstance(one, dict) and one.keys() == _FIELDS and isinstance(one["type"], str)


def _is_older(response: Mapping[str, Any]) -> bool:
    args = response["args"]
    match response["type"]:
        case "accept":
            return args is None or _is_action(args)
        case "edit":
            return _is_action(args)
        case "response":
            return isinstance(args, str)
    return response["type"] == "ignore" and args is None


def _decision(one: Any, shown: Mapping[str, Any]) -> Any:
    if not _is_response(one):
        return one
    args = one["args"]
    match one["type"]:
        case "approve" if args is None or _is_action(args):
            return {"type": "approve"}
        case "edit" if _is_action(args):
            values = {name: _value(value, shown.get(name)) for name, value in args["args"].items()}
            return {"type": "edit", "edited_action": {"name": args["action"], "args": values}}
        case "reject" if isinstance(args, str):
            return {"type": "reject", "message": args}
        case "ignore" if args is None:
            return {"type": "reject"}
    return one


def _is_action(args: Any) -> bool:
    return isinstance(args, dict) and isinstance(args.get("action"), str) and isinstance(args.get("args"), dict)


def _is_same(given: Mapping[str, Any], shown: Mapping[str, Any]) -> bool:
    return given.keys() == shown.keys() and all(_value(given[name], shown[name]) == shown[name] for name in shown)


def _value(given: Any, shown: Any) -> Any:
    """A field that somebody was in is sent as text: that of what is no text is its JSON."""
    if not isinstance(given, str) or isinstance(shown, str) or (shown is None and given != "null"):
        return given
    try:
        return json.loads(given)
    except ValueError:  # the tool's schema says what it makes of it
        return given
