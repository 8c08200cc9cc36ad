"""What was asked of a model and answered by it, on its span: only under OpenTelemetry's content opt-in.

Redacted values are taken out of whole texts, before these are cut. What is cut stays JSON: long texts lose their end,
and of long conversations the latest messages are kept.
"""

from __future__ import annotations

import json
from typing import Any, Final

from opentelemetry.trace import Span

from sagaspan import _live as live
from sagaspan import _spans as spans
from sagaspan import semconv
from sagaspan.llm.messages import answered, asked, finish_reasons

_NONE: Final[tuple[str, ...]] = ()
_LONGEST_TEXTS: Final = (spans.MAX_CONTENT, 1024, 256, 64)


@spans.harmless(None)
def record_input(span: Span, request: Any) -> None:
    """Put what ``request`` asks on ``span``."""
    messages, instructions = asked(request)
    _record(span, semconv.GEN_AI_INPUT_MESSAGES, messages)
    _record(span, semconv.GEN_AI_SYSTEM_INSTRUCTIONS, instructions)


@spans.harmless(None)
def record_output(span: Span, response: Any) -> None:
    """Put what ``response`` answers on ``span``."""
    _record(span, semconv.GEN_AI_OUTPUT_MESSAGES, answered(response))


@spans.harmless(_NONE)
def reasons(response: Any) -> tuple[str, ...]:
    """Why the model stopped, as far as ``response`` says it: no content."""
    return finish_reasons(response)


def _record(span: Span, name: str, data: list[Any]) -> None:
    if data:
        span.set_attribute(name, spans.content(_fitting(live.scrubbed_data(_plain(data)))))


def _fitting(data: list[Any]) -> str:
    """``data`` as JSON that fits on a span, as far as cutting texts and leaving out the oldest can do that."""
    shortest = data
    for longest in _LONGEST_TEXTS:
        shortest = [_cut(item, longest) for item in data]
        text = _dump(shortest)
        if len(text) <= spans.MAX_CONTENT:
            return text
    room = spans.MAX_CONTENT - 100
    kept: list[Any] = []
    for item in reversed(shortest):
        room -= len(_dump(item)) + 1
        if room < 0:
            break
        kept.insert(0, item)
    note = {"type": "text", "content": f"{len(data) - len(kept)} earlier ones are left out"}
    left_out = {"role": "omitted", "parts": [note]} if "parts" in data[0] else note
    return _dump([left_out, *kept])


def _plain(data: Any) -> Any:
    return json.loads(json.dumps(data, default=str, ensure_ascii=True))


def _dump(data: Any) -> str:
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace").decode()  # a lone surrogate, as JSON escapes it


def _cut(data: Any, longest: int) -> Any:
    if isinstance(data, str):
        return data if len(data) <= longest else data[: longest - 1] + "…"
    if isinstance(data, list):
        return [_cut(item, longest) for item in data]
    if isinstance(data, dict):
        return {name: _cut(item, longest) for name, item in data.items()}
    return data
