"""What CrewAI's events say that a request used: the class of each provider hands on the words of its own API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

_NAMES: Final = {
    "input_tokens": ("prompt_tokens", "prompt_token_count", "input_tokens", "inputTokens"),
    "output_tokens": ("completion_tokens", "candidates_token_count", "output_tokens", "outputTokens"),
    "cache_read_tokens": (
        "cached_prompt_tokens", "cached_tokens", "cache_read_input_tokens", "cacheReadInputTokens",
        "cacheReadInputTokenCount",
    ),
    "cache_write_tokens": (
        "cache_creation_tokens", "cache_creation_input_tokens", "cacheWriteInputTokens", "cacheWriteInputTokenCount",
    ),
    "reasoning_tokens": ("reasoning_tokens",),
    "total": ("total_tokens", "totalTokens"),
}  # fmt: skip
"""Of OpenAI and LiteLLM, Gemini, Anthropic, Bedrock."""
_WITHOUT_CACHE: Final = "inputTokens"
"""Bedrock's name for what went in, which leaves out what the cache gave and took."""


_DETAILS: Final = (
    ("prompt_tokens_details", "cached_tokens", "cache_read_tokens"),
    ("completion_tokens_details", "reasoning_tokens", "reasoning_tokens"),
)
"""What LiteLLM has below its counts, and what it is there."""


def counts_of(usage: Any) -> dict[str, int] | None:
    """The counts of ``usage`` by the names that ``LlmCall.settle`` takes; None if it does not say them."""
    said = _as_dict(usage)
    counts = {ours: _first(said, theirs) for ours, theirs in _NAMES.items()}
    for below, theirs, ours in _DETAILS:
        counts[ours] = counts[ours] or _first(_as_dict(said.get(below)), (theirs,))
    total, cached = counts.pop("total"), counts["cache_read_tokens"] + counts["cache_write_tokens"]
    if not counts["input_tokens"] and not counts["output_tokens"]:
        return None
    if _WITHOUT_CACHE in said or cached > counts["input_tokens"]:
        counts["input_tokens"] += cached
    # What is in no count but in the sum (the prompts of Gemini's own tools) was billed as well.
    counts["output_tokens"] = max(counts["output_tokens"], total - counts["input_tokens"])
    counts["reasoning_tokens"] = min(counts["reasoning_tokens"], counts["output_tokens"])
    return counts


def _as_dict(usage: Any) -> Mapping[str, Any]:
    if isinstance(usage, BaseModel):
        return usage.model_dump()
    return usage if isinstance(usage, Mapping) else {}


def _first(usage: Mapping[str, Any], names: tuple[str, ...]) -> int:
    found = (usage.get(name) for name in names)
    return next((count for count in found if type(count) is int and count > 0), 0)
