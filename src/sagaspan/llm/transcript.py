"""An answer put together from the events of its stream, for whoever opted in to content; bounded, however long it is.

Of each part the beginning is kept, as much as a span can take and enough more that a redacted value is found whole.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Final

from sagaspan.llm.messages import Message, Part, tool_call
from sagaspan.llm.responses import get

LONGEST: Final = 16_384
"""Characters that are kept of a part."""
MOST: Final = 64
"""Parts that are kept."""


@dataclass(slots=True)
class _Piece:
    """A part that is still coming."""

    type: str
    choice: int
    id: Any = None
    name: Any = None
    texts: list[str] = field(default_factory=list)
    length: int = 0

    def add(self, text: Any) -> None:
        if isinstance(text, str) and self.length < LONGEST:
            self.texts.append(text[: LONGEST - self.length])
            self.length += len(self.texts[-1])

    @property
    def part(self) -> Part:
        text = "".join(self.texts)
        return tool_call(self.id, self.name, text) if self.type == "tool_call" else {"type": self.type, "content": text}


class Transcript:
    """What a stream has said so far."""

    def __init__(self) -> None:
        self._pieces: dict[Hashable, _Piece] = {}

    def add(self, event: Any) -> None:
        """Note what ``event`` brings: a chunk or an event as an API sends it."""
        kind = get(event, "type")
        if kind == "content_block_start":
            self._block(get(event, "index"), get(event, "content_block"))
        elif kind == "content_block_delta":
            delta = get(event, "delta")
            name = next((name for name in _DELTAS if get(delta, name) is not None), "")
            self._piece(get(event, "index"), _DELTAS.get(name, "")).add(get(delta, name))
        elif kind == "response.output_item.added":
            self._item(get(event, "output_index"), get(event, "item"))
        elif kind in _RESPONSES:
            type_ = _RESPONSES[kind]
            at = get(event, "output_index")
            nth = get(event, "content_index") or get(event, "summary_index") or 0
            self._piece(at if type_ == "tool_call" else (at, nth, type_), type_).add(get(event, "delta"))
        for choice in get(event, "choices") or ():
            self._choice(get(choice, "index") or 0, get(choice, "delta"))

    def messages(self, reasons: tuple[str, ...] = ()) -> list[Message]:
        """The answers so far, one a choice, with why they ended as far as that is known."""
        by_choice: dict[int, list[Part]] = {}
        for piece in self._pieces.values():
            if piece.type and (piece.texts or piece.name):
                by_choice.setdefault(piece.choice, []).append(piece.part)
        return [
            {
                "role": "assistant",
                "parts": parts,
                "finish_reason": reasons[choice] if choice < len(reasons) else "unknown",
            }
            for choice, parts in sorted(by_choice.items())
        ]

    def _piece(self, key: Hashable, type_: str, choice: int = 0) -> _Piece:
        found = self._pieces.get(key)
        if found is None:
            found = _Piece(type_, choice)
            if len(self._pieces) < MOST:
                self._pieces[key] = found
        return found

    def _block(self, index: Any, block: Any) -> None:
        """A block of Anthropic's begins."""
        type_ = _BLOCKS.get(get(block, "type"), "")
        piece = self._piece(index, type_)
        piece.id, piece.name = get(block, "id"), get(block, "name")
        piece.add(get(block, "text") or get(block, "thinking"))

    def _item(self, index: Any, item: Any) -> None:
        """An item of OpenAI's responses begins; those of text say all with what follows."""
        if get(item, "type") in ("function_call", "custom_tool_call"):
            piece = self._piece(index, "tool_call")
            piece.id, piece.name = get(item, "call_id"), get(item, "name")

    def _choice(self, index: int, delta: Any) -> None:
        """What a chunk brings of one choice of a chat completion."""
        for name, type_ in _CHUNKS.items():
            if text := get(delta, name):
                self._piece((index, type_), type_, index).add(text)
        for call in get(delta, "tool_calls") or ():
            function = get(call, "function") or get(call, "custom")
            piece = self._piece((index, "tool_call", get(call, "index")), "tool_call", index)
            piece.id, piece.name = piece.id or get(call, "id"), piece.name or get(function, "name")
            piece.add(get(function, "arguments") or get(function, "input"))


_BLOCKS: Final = {"text": "text", "thinking": "reasoning", "tool_use": "tool_call"}
_DELTAS: Final = {"text": "text", "thinking": "reasoning", "partial_json": "tool_call"}
_CHUNKS: Final = {"reasoning_content": "reasoning", "reasoning": "reasoning", "content": "text", "refusal": "refusal"}
_RESPONSES: Final = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "refusal",
    "response.reasoning_text.delta": "reasoning",
    "response.reasoning_summary_text.delta": "reasoning",
    "response.function_call_arguments.delta": "tool_call",
    "response.custom_tool_call_input.delta": "tool_call",
}
