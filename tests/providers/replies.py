"""What the scripted provider is told to say, and what that counts: a word is a token, and every one is on the bill."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """A tool that the model asks for."""

    name: str
    arguments: Mapping[str, Any]
    id: str = "call_1"


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One answer. Without counts, words are counted; with them, they are what the provider says and bills.

    =================  =============================================================================================
    ``status``         an HTTP error instead of an answer, with ``headers`` (``{"retry-after-ms": "1"}``)
    ``until``          wait for this event before the first byte; ``never`` for a provider that hangs
    ``drop_after``     cut the line after so many events of a stream, or (0) before the body of an answer
    ``error_after``    say after so many events of a stream that it failed
    ``paced_by``       acquired before each event: the test decides how fast it streams
    ``silent_usage``   leave the usage out of the answer, as some servers do
    =================  =============================================================================================
    """

    text: str = "Hello there."
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int | None = None
    service_tier: str | None = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    until: threading.Event | None = None
    drop_after: int | None = None
    error_after: int | None = None
    paced_by: threading.Semaphore | None = None
    silent_usage: bool = False


never = threading.Event()
"""An event that nobody sets: the provider hangs until the client gives up, or the test is over."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A ``Reply`` to one request: cut at the request's limit, and counted."""

    reply: Reply
    model: str
    choices: int
    pieces: tuple[str, ...]
    thought: tuple[str, ...]
    cut: bool
    input_tokens: int
    output_tokens: int
    reasoning_tokens: int

    @property
    def text(self) -> str:
        """What is said of the reply's text."""
        return "".join(self.pieces)


def answer(reply: Reply, *, model: str, request: Any, limit: int | None, choices: int = 1) -> Answer:
    """``reply`` to ``request``, of at most ``limit`` output tokens a choice."""
    room = limit if limit is not None else 10**9
    thought = _words(reply.reasoning)[:room]
    pieces = _words(reply.text)[: room - len(thought)]
    calls = sum(count(call.name) + count(json.dumps(dict(call.arguments))) for call in reply.tool_calls)
    reasoning = len(thought) if reply.reasoning_tokens is None else min(reply.reasoning_tokens, room)
    made = len(thought) + len(pieces) + calls if reply.output_tokens is None else reply.output_tokens
    return Answer(
        reply=reply,
        model=reply.model or model,
        choices=choices,
        pieces=tuple(pieces),
        thought=tuple(thought),
        cut=made > room or len(pieces) < len(_words(reply.text)),
        input_tokens=count(request) if reply.input_tokens is None else reply.input_tokens,
        output_tokens=min(max(made, reasoning), room) * choices,
        reasoning_tokens=reasoning * choices,
    )


def count(value: Any) -> int:
    """The tokens of ``value``: words and signs in all its strings, and a few around each of its parts."""
    if isinstance(value, str):
        return len(re.findall(r"\w+|[^\w\s]", value))
    if isinstance(value, Mapping):
        return sum(1 + count(name) + count(item) for name, item in value.items())
    if isinstance(value, Iterable):
        return sum(1 + count(item) for item in value)
    return 1


def _words(text: str) -> list[str]:
    return re.findall(r"\S+\s*", text)
