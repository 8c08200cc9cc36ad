"""Reading ``Usage`` from a stream, event by event, without keeping any of its text.

OpenAI's chat completions say it in the last chunk (with ``stream_options={"include_usage": True}``), its responses in
``response.completed``, Anthropic's messages at the start and in ``message_delta``, LangChain's chunks in pieces that
add up. Until then the bytes of what came bound the *visible* tokens from above; what a dropped stream cost beyond that
nobody knows, since reasoning is hidden.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from sagaspan.llm.messages import finish_reasons
from sagaspan.llm.responses import get, read_usage
from sagaspan.llm.usage import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamUsage:
    """What a stream has told so far.

    ``usage`` is what the stream says that it used, None as long as it did not. ``started`` is what Anthropic says
    first: its input counts hold even if nothing follows. ``visible_bytes`` is the length of what the model wrote.
    """

    usage: Usage | None = None
    started: Usage | None = None
    visible_bytes: int = 0
    start: Any = None
    ended: tuple[tuple[int, str], ...] = ()

    @property
    def finish_reasons(self) -> tuple[str, ...]:
        """Why the model stopped, one a choice, as far as the stream said it."""
        return tuple(reason for _, reason in sorted(dict(self.ended).items()))

    def after(self, event: Any) -> StreamUsage:
        """This, and what ``event`` says: a chunk or event of an SDK, or a dict of its shape."""
        kind = get(event, "type")
        if kind == "chunk":  # OpenAI's stream helper wraps them
            event = get(event, "chunk")
        elif kind == "message_start":
            message = get(event, "message")
            return replace(self, start=message, started=read_usage(message))
        elif kind == "message_delta":
            usage = read_usage(_completed(self.start, get(event, "usage"))) or self.usage
            return replace(self, usage=usage, ended=self._ended(finish_reasons(get(event, "delta"))))
        elif kind in _ENDS:
            response = get(event, "response")
            return replace(self, usage=read_usage(response) or self.usage, ended=self._ended(finish_reasons(response)))
        visible = self.visible_bytes + sum(len(text.encode(errors="replace")) for text in _texts(event, kind))
        ended = [(get(one, "index") or 0, get(one, "finish_reason")) for one in get(event, "choices") or ()]
        said = tuple((index, reason) for index, reason in ended if isinstance(reason, str))
        return replace(self, usage=self._with(event), visible_bytes=visible, ended=(*self.ended, *said))

    def _ended(self, reasons: tuple[str, ...]) -> tuple[tuple[int, str], ...]:
        return tuple(enumerate(reasons)) or self.ended

    def _with(self, event: Any) -> Usage | None:
        said = read_usage(event)
        if said is None or self.usage is None:
            return said or self.usage
        # OpenAI repeats the whole, LangChain says what came since.
        return self.usage + said if get(event, "usage_metadata") is not None else said


_ENDS: Final = ("response.completed", "response.incomplete", "response.failed")


def _completed(start: Any, counts: Any) -> dict[str, Any]:
    """Anthropic's message with its last counts: these are cumulative, and leave out what has not changed."""
    first = get(start, "usage")
    last = {name: get(counts, name) for name in _ANTHROPIC}
    usage = {name: get(first, name) if value is None else value for name, value in last.items()}
    return {"usage": usage, "model": get(start, "model")}


_ANTHROPIC: Final = (
    "input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "cache_creation",
    "output_tokens_details", "server_tool_use", "iterations", "service_tier", "speed", "inference_geo",
)  # fmt: skip


def _texts(event: Any, kind: Any) -> Iterator[str]:
    """What the model wrote in this event: text, refusals, tool arguments, reasoning that is shown."""
    delta = get(event, "delta")
    found: list[Any] = [delta] if type(kind) is str and kind.endswith(".delta") else []
    if kind == "content_block_delta":
        found += [get(delta, name) for name in ("text", "partial_json", "thinking")]
    for choice in get(event, "choices") or ():
        found += _of_choice(get(choice, "delta"))
    if get(event, "tool_call_chunks") is not None:
        found += [get(event, "content"), *(get(call, "args") for call in get(event, "tool_call_chunks"))]
    return (text for text in found if type(text) is str)


def _of_choice(delta: Any) -> list[Any]:
    pieces = [get(delta, name) for name in ("content", "refusal", "reasoning_content", "reasoning")]
    for call in (*(get(delta, "tool_calls") or ()), delta):
        function = get(call, "function") or get(call, "function_call")
        pieces += [get(function, "name"), get(function, "arguments")]
    return pieces
