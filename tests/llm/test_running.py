"""Counting an answer while it comes: never ahead of what the provider will say, and not far behind it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sagaspan.llm.running import Running, likely_output


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
        ([_chat(letter) for letter in "word " * 100], 100, 100),  # a proxy that sends letter by letter
        ([_chat("word " * 100)], 100, 100),  # one that sends whole pages
        ([_chat("字")] * 100, 100, 50),
        ([_chat("字" * 100)], 100, 4),
        ([_chat("")] * 100 + [{"choices": []}], 0, 0),
        ([_chat("", tool_calls=[{"function": {"arguments": '{"amount":'}}])] * 10, 30, 10),
        ([{"choices": [{"delta": {"reasoning": "hmm so ", "reasoning_content": "hmm so "}}]}] * 10, 20, 10),
        ([{"type": "response.output_text.delta", "delta": "word "}] * 10, 10, 10),
        ([{"type": "response.output_text.done", "text": "word " * 10}], 0, 0),
        ([{"type": "content_block_delta", "delta": {"type": "text_delta", "text": "word " * 5}}] * 10, 50, 50),
        ([{"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "word "}}] * 10, 10, 10),
        ([_chat("-" * 80 + "\n")] * 100, 200, 100),  # a rule is one token, and so is a row of blanks
        ([_chat(("-" * 80 + "\n") * 100)], 200, 0),
        ([_chat(" " * 99 + "x")] * 10, 20, 10),
        ([_chat("responsibilities ") for _ in range(100)], 100, 100),
        ([_chat(letter) for letter in " responsibilities" * 100], 101, 100),
        ([_chat(piece) for piece in ["don", "'t ", "don'", "t"]], 2, 2),  # "don't" may be one
        ([_chat("हिन्दी ")] * 10, 10, 10),
        ([_chat("x" * 12_800)], 12_800, 100),
    ],
)
def test_the_count_is_what_can_be_sure(events: list[Any], most: int, least: int) -> None:
    """Of every API, whatever the size of the pieces."""
    assert least <= _count(*events) <= most


_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SPLITS = (
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+$|\s+(?!\S)|\s",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+$|\s*[\r\n]|\s",
    (
        rf"[^\r\n\p{{L}}\p{{N}}]?(?:{_UPPER}*{_LOWER}+|{_UPPER}+{_LOWER}*)(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
)
"""By what GPT-2, GPT-4 and GPT-4o split a text before anything is merged: a token at least for each part, for each 24
letters of it, and for each two of a script without blanks."""
_PARTS = [*"abZ9_ \n\t-=.,'(/*{}\"é字のнิह।—…😀", "word", "the ", "don't", "foo.bar", "==", "\r\n", "ि", "x́"]


def _least_of(part: str) -> int:
    letters = sum(12 if letter >= "\u0e00" else 1 for letter in part if letter.isalnum())
    return max(1, -(-letters // 24))


@example(parts=["字"] * 4, size=1)
@example(parts=["word"] * 14, size=4)
@given(st.lists(st.sampled_from(_PARTS), max_size=14), st.integers(1, 5))
def test_no_tokenizer_needs_fewer_tokens(parts: list[str], size: int) -> None:
    """Of any text, cut into pieces anyhow."""
    regex = pytest.importorskip("regex")  # it comes with what counts tokens
    text = "".join(parts)
    least = min(sum(map(_least_of, regex.findall(split, text))) for split in _SPLITS)
    assert _count(*(_chat(text[start : start + size]) for start in range(0, len(text), size))) <= least


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        ({"choices": [{"message": {"role": "assistant", "content": "word " * 40}}]}, 50),
        ({"output": [{"type": "message", "content": [{"type": "output_text", "text": "字" * 40}]}]}, 40),
        ({"content": [{"type": "tool_use", "name": "pay", "input": {"a": 1}}]}, 3),
        ({"choices": []}, 0),
        (None, 0),
        ([], 0),
    ],
)
def test_what_an_answer_mostly_comes_to(answer: Any, tokens: int) -> None:
    """For where nobody says it: four letters a token, or one that is not ASCII."""
    assert likely_output(answer) == tokens
