"""Reading ``Usage`` from what an SDK returned, or from a dict of the same shape.

The dialects are told apart by their fields, not by their classes, so that objects of any version of an SDK, plain
dicts and the answers of compatible servers all read the same:

===========================================  ================================================================
OpenAI chat completions, embeddings          ``prompt_tokens``, ``completion_tokens``; details below them
OpenAI responses                             ``input_tokens``, ``input_tokens_details``
Anthropic messages                           ``input_tokens`` *without* what the cache took and gave
Gemini                                       ``promptTokenCount`` or ``prompt_token_count``, thoughts beside the answer
Bedrock Converse                             ``inputTokens`` *without* what the cache took and gave
Ollama                                       ``prompt_eval_count``, ``eval_count`` in the response itself
Cohere                                       ``billed_units``, else ``tokens``; below ``usage``, or ``meta`` in v1
LangChain ``usage_metadata``, our own names  ``input_tokens``, ``input_token_details``
===========================================  ================================================================

Where a server contradicts itself the larger reading counts. What cannot be read is None, never a guess: the caller then
keeps what was reserved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from sagaspan.exceptions import ConfigurationError
from sagaspan.llm.usage import COUNTS, Usage


def read_usage(response: Any) -> Usage | None:
    """What the call that ``response`` ended used; None if it does not say so in a way that can be trusted.

    ``response`` is the SDK's object, LangChain's message, a dict of either, or the usage inside it.
    """
    if isinstance(response, Usage):
        return response
    counts = usage_of(response)
    if counts is None:
        return None
    try:
        return _normalised(counts, response)
    except (_Unreadable, ConfigurationError):
        return None


def usage_of(response: Any) -> Any:
    """The object with the counts: below ``usage`` or ``usage_metadata``, or ``response`` itself; None if neither."""
    for name in ("usage", "usage_metadata", "usageMetadata"):
        found = get(response, name)
        if found is not None:
            return found if _has_counts(found) else None
    meta = get(response, "meta")
    return next((one for one in (meta, response) if _has_counts(one)), None)


def get(source: Any, name: str) -> Any:
    """``source[name]`` or ``source.name``; None if there is none."""
    return source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)


class _Unreadable(ValueError):
    """A count that is no count."""


def _has_counts(source: Any) -> bool:
    return any(type(get(source, name)) is int for name in _COUNTED) or _of_cohere(source) is not None


_COUNTED: Final = (
    "prompt_tokens", "input_tokens", "prompt_token_count", "promptTokenCount", "inputTokens", "prompt_eval_count",
)  # fmt: skip


def _normalised(counts: Any, response: Any) -> Usage:
    found: dict[str, Any]
    if get(counts, "prompt_tokens") is not None:
        found = _openai(counts, "prompt", "completion")
    elif _names(counts, "cache_read_input_tokens", "cache_creation_input_tokens", "cache_creation"):
        found = _anthropic(counts)
    elif _names(counts, "input_tokens_details", "output_tokens_details"):
        found = _openai(counts, "input", "output")
    elif _names(counts, "prompt_token_count", "promptTokenCount"):
        found = _gemini(counts)
    elif _names(counts, "inputTokens"):
        found = _bedrock(counts)
    elif _names(counts, "prompt_eval_count"):
        found = {"input_tokens": _count(counts, "prompt_eval_count"), "output_tokens": _count(counts, "eval_count")}
    elif (billed := _of_cohere(counts)) is not None:
        found = {"input_tokens": _whole(billed, "input_tokens"), "output_tokens": _whole(billed, "output_tokens")}
    else:
        found = _plain(counts)
    _reconcile(found, max(_count(counts, name) for name in _TOTALS))
    for name, count in _searches(response).items():
        found[name] = max(found.get(name, 0), count)
    return Usage(**found | _served(counts, response))


def _openai(counts: Any, into: str, out: str) -> dict[str, int]:
    """What chat completions call ``prompt`` and ``completion``, and responses ``input`` and ``output``."""
    given, made = get(counts, f"{into}_tokens_details"), get(counts, f"{out}_tokens_details")
    return {
        "input_tokens": _count(counts, f"{into}_tokens"),
        "output_tokens": _count(counts, f"{out}_tokens"),
        "cache_read_tokens": _count(given, "cached_tokens"),
        "cache_write_tokens": _count(given, "cache_write_tokens"),
        "input_audio_tokens": _count(given, "audio_tokens"),
        "input_image_tokens": _count(given, "image_tokens"),
        "reasoning_tokens": _count(made, "reasoning_tokens"),
        "output_audio_tokens": _count(made, "audio_tokens"),
    }


def _anthropic(counts: Any) -> dict[str, int]:
    by_age = get(counts, "cache_creation")
    kept_1h = _count(by_age, "ephemeral_1h_input_tokens")
    written = max(_count(counts, "cache_creation_input_tokens"), kept_1h + _count(by_age, "ephemeral_5m_input_tokens"))
    read = _count(counts, "cache_read_input_tokens")
    found = {
        "input_tokens": _count(counts, "input_tokens") + written + read,
        "output_tokens": _count(counts, "output_tokens"),
        "cache_read_tokens": read,
        "cache_write_tokens": written,
        "cache_write_1h_tokens": kept_1h,
        "reasoning_tokens": _count(get(counts, "output_tokens_details"), "thinking_tokens"),
        "web_searches": _count(get(counts, "server_tool_use"), "web_search_requests"),
    }
    # Side inferences (a compaction, an advisor) are billed, and not in the totals.
    for side in _items(get(counts, "iterations")):
        if get(side, "type") in ("compaction", "advisor_message"):
            for name, count in _anthropic(side).items():
                found[name] += count
    return found


def _gemini(counts: Any) -> dict[str, int]:
    """REST has ``promptTokenCount``, the SDK ``prompt_token_count``; the cache is a part of it, thoughts are none."""

    def field(name: str) -> str:
        first, *rest = name.split("_")
        return name if get(counts, name) is not None else first + "".join(word.title() for word in rest)

    def of_kind(name: str, kind: str) -> int:
        details = _items(get(counts, field(name)))
        of_sdk = [_count(one, "token_count") for one in details if get(one, "modality") == kind]
        return sum(of_sdk) + sum(_count(one, "tokenCount") for one in details if get(one, "modality") == kind)

    thoughts = _count(counts, field("thoughts_token_count"))
    return {
        "input_tokens": _count(counts, field("prompt_token_count"))
        + _count(counts, field("tool_use_prompt_token_count")),
        "output_tokens": _count(counts, field("candidates_token_count")) + thoughts,
        "cache_read_tokens": _count(counts, field("cached_content_token_count")),
        "cache_audio_read_tokens": of_kind("cache_tokens_details", "AUDIO"),
        "input_audio_tokens": of_kind("prompt_tokens_details", "AUDIO"),
        "input_image_tokens": of_kind("prompt_tokens_details", "IMAGE"),
        "output_audio_tokens": of_kind("candidates_tokens_details", "AUDIO"),
        "reasoning_tokens": thoughts,
    }


def _bedrock(counts: Any) -> dict[str, int]:
    read = _count(counts, "cacheReadInputTokens")
    by_age = [one for one in _items(get(counts, "cacheDetails")) if get(one, "ttl") == "1h"]
    kept_1h = sum(_count(one, "inputTokens") for one in by_age)
    written = max(_count(counts, "cacheWriteInputTokens"), kept_1h)
    return {
        "input_tokens": _count(counts, "inputTokens") + written + read,
        "output_tokens": _count(counts, "outputTokens"),
        "cache_read_tokens": read,
        "cache_write_tokens": written,
        "cache_write_1h_tokens": kept_1h,
    }


def _of_cohere(counts: Any) -> Any:
    """What Cohere bills, else what it counted; both have numbers with a point. None if neither is there."""
    found = (get(counts, name) for name in ("billed_units", "tokens"))
    return next((one for one in found if isinstance(get(one, "input_tokens"), int | float)), None)


def _plain(counts: Any) -> dict[str, int]:
    """LangChain's ``UsageMetadata``, and dicts with our own names."""
    given, made = get(counts, "input_token_details"), get(counts, "output_token_details")
    found = {name: _count(counts, name) for name in COUNTS}
    kept_1h = _count(given, "ephemeral_1h_input_tokens")
    written = max(_count(given, "cache_creation"), kept_1h + _count(given, "ephemeral_5m_input_tokens"))
    details = {
        "cache_read_tokens": _count(given, "cache_read"),
        "cache_write_tokens": written,
        "cache_write_1h_tokens": kept_1h,
        "input_audio_tokens": _count(given, "audio"),
        "reasoning_tokens": _count(made, "reasoning"),
        "output_audio_tokens": _count(made, "audio"),
    }
    return {name: max(count, details.get(name, 0)) for name, count in found.items()}


def _reconcile(found: dict[str, Any], total: int) -> None:
    """Make the whole as large as its parts: some servers leave reasoning out of the output, or the cache out."""
    cached = found.get("cache_read_tokens", 0) + found.get("cache_write_tokens", 0)
    if cached > found["input_tokens"]:
        found["input_tokens"] += cached
    if found.get("reasoning_tokens", 0) > found["output_tokens"]:
        found["output_tokens"] += found["reasoning_tokens"]
    found["output_tokens"] = max(found["output_tokens"], total - found["input_tokens"])


def _searches(response: Any) -> dict[str, int]:
    """What OpenAI bills by the search and reports only as items of the output, or as citations."""
    items = list(_items(get(response, "output")))
    web = sum(1 for item in items if get(item, "type") == "web_search_call" and _is_search(get(item, "action")))
    files = sum(1 for item in items if get(item, "type") == "file_search_call")
    cited = any(get(get(choice, "message"), "annotations") for choice in _items(get(response, "choices")))
    return {"web_searches": web or int(cited), "file_searches": files}


def _is_search(action: Any) -> bool:
    return get(action, "type") in (None, "search")


def _items(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list | tuple) else ()


_TOTALS: Final = ("total_tokens", "total_token_count", "totalTokenCount", "totalTokens")
_SERVED: Final = {"service_tier": "service_tier", "speed": "speed", "geo": "inference_geo"}


def _served(counts: Any, response: Any) -> dict[str, Any]:
    metadata = get(response, "response_metadata")
    named = [(response, "model"), (response, "model_version"), (response, "modelVersion")]
    model = _first_text(*(get(*one) for one in [*named, (metadata, "model_name"), (metadata, "model")]))
    said = {
        ours: _first_text(get(counts, theirs), get(response, theirs), get(metadata, theirs))
        for ours, theirs in _SERVED.items()
    }
    return {"model": model, **said}


def _first_text(*values: Any) -> str | None:
    return next((value for value in values if type(value) is str and value), None)


def _names(source: Any, *names: str) -> bool:
    """Whether ``source`` has one of the fields, None or not: an SDK's object has those of its dialect."""
    if isinstance(source, Mapping):
        return any(name in source for name in names)
    return any(hasattr(source, name) for name in names)


def _count(source: Any, name: str) -> int:
    value = get(source, name) if source is not None else None
    if value is None:
        return 0
    if type(value) is not int or value < 0:
        raise _Unreadable(f"{name} is {value!r:.40}")
    return value


def _whole(source: Any, name: str) -> int:
    """As ``_count``, of a whole number that may have a point."""
    value = get(source, name)
    if type(value) is float and value.is_integer() and value >= 0:
        return int(value)
    return _count(source, name)
