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
    ``is_over``: the stream said that it is complete. ``told_after`` is how many choices had ended when it said its use.
    """

    usage: Usage | None = None
    started: Usage | None = None
    visible_bytes: int = 0
    start: Any = None
    ended: tuple[tuple[int, str], ...] = ()
    is_over: bool = False
    told_after: int = 0

    def final(self, choices: int = 1) -> Usage | None:
        """``usage`` once nothing can follow it, None before: of a stream that broke it was a running count.

        That is when the stream said that it is over, or all its ``choices`` had ended when it said what it used.
        """
        return self.usage if self.is_over or self.told_after >= choices else None

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
            stopped = self._ended(finish_reasons(get(event, "delta")))
            return replace(self, usage=usage, ended=stopped, is_over=self.is_over or bool(stopped))
        elif kind == "message_stop":
            return replace(self, is_over=True)
        elif kind in _ENDS:
            response = get(event, "response")
            usage = read_usage(response) or self.usage
            return replace(self, usage=usage, ended=self._ended(finish_reasons(response)), is_over=True)
        visible = self.visible_bytes + sum(len(text.encode(errors="replace")) for text in texts_of(event))
        ended = [(get(one, "index") or 0, get(one, "finish_reason")) for one in get(event, "choices") or ()]
        said = tuple((index, reason) for index, reason in ended if isinstance(reason, str))
        usage, all_ended = self._with(event), (*self.ended, *said)
        told_after = len(dict(all_ended)) if read_usage(event) is not None else self.told_after
        return replace(self, usage=usage, visible_bytes=visible, ended=all_ended, told_after=told_after)

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


def texts_of(event: Any) -> Iterator[str]:
    """What the model wrote in this event: text, refusals, tool arguments, reasoning that is shown."""
    kind, delta = get(event, "type"), get(event, "delta")
    found: list[Any] = [delta] if type(kind) is str and kind.endswith(".delta") else []
    if kind == "content_block_delta":
        found += [get(delta, name) for name in ("text", "partial_json", "thinking")]
    for choice in get(event, "choices") or ():
        found += _of_choice(get(choice, "delta"))
    if get(event, "tool_call_chunks") is not None:
        found += [*_blocks(get(event, "content")), *(get(call, "args") for call in get(event, "tool_call_chunks"))]
    return (text for text in found if type(text) is str)


def _blocks(content: Any) -> list[Any]:
    """The texts of a message's content, whole or in blocks."""
    if not isinstance(content, list):
        return [content]
    return [get(block, name) for block in content for name in ("text", "thinking", "reasoning")]


def _of_choice(delta: Any) -> list[Any]:
    thought = get(delta, "reasoning_content")  # some servers say it twice, under both names
    pieces = [get(delta, "content"), get(delta, "refusal"), get(delta, "reasoning") if thought is None else thought]
    for call in (*(get(delta, "tool_calls") or ()), delta):
        function = get(call, "function") or get(call, "function_call")
        pieces += [get(function, "name"), get(function, "arguments")]
    return pieces
