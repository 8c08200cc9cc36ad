"""Counting an answer while it comes: never ahead of what the provider will say, and not far behind it."""

from __future__ import annotations

from typing import Any

import pytest

from sagaspan.llm.running import Running


def _chat(text: str, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text, **more}}]}


def _count(*events: Any) -> int:
    running = Running()
    for event in events:
        running.add(event)
    return running.tokens


@pytest.mark.parametrize(
    ("events", "most", "least"),
    [
        ([_chat("word ")] * 100, 100, 100),
        ([_chat(letter) for letter in "word " * 100], 125, 100),  # a proxy that sends letter by letter
        ([_chat("word " * 100)], 100, 60),  # one that sends whole pages
        ([_chat("字")] * 100, 100, 100),
        ([_chat("")] * 100 + [{"choices": []}], 0, 0),
        ([_chat("", tool_calls=[{"function": {"arguments": '{"amount":'}}])] * 10, 30, 10),
        ([{"choices": [{"delta": {"reasoning": "hmm so ", "reasoning_content": "hmm so "}}]}] * 10, 10, 10),
        ([{"type": "response.output_text.delta", "delta": "word "}] * 10, 10, 10),
        ([{"type": "response.output_text.done", "text": "word " * 10}], 0, 0),
        ([{"type": "content_block_delta", "delta": {"type": "text_delta", "text": "word " * 5}}] * 10, 50, 30),
        ([{"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "word "}}] * 10, 10, 10),
    ],
)
def test_the_count_is_what_can_be_sure(events: list[Any], most: int, least: int) -> None:
    """Of every API, whatever the size of the pieces."""
    assert least <= _count(*events) <= most
