"""Names of models: who provides them, and which name a price table can know them by.

Frameworks put the provider in front (``openai/gpt-4o``, ``anthropic:claude-sonnet-4-5``, ``bedrock/...``), providers
put a date behind (``gpt-4o-2024-08-06``, ``claude-sonnet-4-20250514``). No price is matched by the beginning of a name:
what only looks like a cheap model must not be priced as one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

PROVIDERS: Final = {
    "openai": "openai", "azure": "azure", "azure_ai": "azure", "azure_openai": "azure", "anthropic": "anthropic",
    "bedrock": "aws", "bedrock_converse": "aws", "aws": "aws", "amazon": "aws", "amazon_bedrock": "aws",
    "google": "google", "google_genai": "google", "google_vertexai": "google", "google_gla": "google",
    "google_vertex": "google", "gemini": "google", "vertex": "google", "vertex_ai": "google", "mistral": "mistral",
    "mistralai": "mistral", "groq": "groq", "xai": "x-ai", "x_ai": "x-ai", "deepseek": "deepseek", "cohere": "cohere",
    "together": "together", "together_ai": "together", "togetherai": "together", "fireworks": "fireworks",
    "fireworks_ai": "fireworks", "openrouter": "openrouter", "perplexity": "perplexity", "moonshot": "moonshotai",
    "moonshotai": "moonshotai", "cerebras": "cerebras", "voyage": "voyageai", "voyageai": "voyageai", "zai": "zai",
}  # fmt: skip
"""The words that frameworks use, and the provider of the price table each stands for; ``-`` reads as ``_``."""

_GATEWAYS: Final = ("litellm_proxy", "litellm")
_OPENAI_ONLY: Final = ("text-embedding-", "ft:gpt-", "chatgpt-", "codex-mini", "computer-use-preview")
"""Names of OpenAI's own by which the price table does not know the provider."""
_BEDROCK: Final = re.compile(
    r"arn:aws|(?:[a-z]{2,6}(?:-gov)?\.)?(?:anthropic|amazon|meta|mistral|cohere|ai21|deepseek|openai|qwen)\."
)
"""Names of Amazon Bedrock: an ARN, or the maker before a dot, after a region."""
_PREFIX: Final = re.compile(r"([A-Za-z][A-Za-z0-9_.-]*)[/:](.+)", re.DOTALL)
_DATE: Final = re.compile(r"[-@](20[0-9]{2})-?(0[1-9]|1[0-2])-?(0[1-9]|[12][0-9]|3[01])$")


def provider_of(word: str) -> str | None:
    """The price table's provider that ``word`` stands for; None if it is nobody's name."""
    return PROVIDERS.get(word.lower().replace("-", "_"))


def readings(model: str, provider: str | None = None) -> Iterator[tuple[str | None, str]]:
    """What ``model`` can mean, the surest first: (provider of the price table or None, name there).

    ``provider`` is who the caller says it is. A provider that nobody knows has no readings: what a stranger charges is
    in no table.
    """
    name = model.strip()
    said = provider_of(provider) if provider else None
    if provider and said is None:
        return
    prefix, rest = _split(name)
    if prefix in _GATEWAYS:
        yield from readings(rest, provider)
        return
    if said is not None:
        yield said, _bare(name)
    by_prefix = provider_of(prefix) if prefix else None
    if by_prefix is not None:
        yield by_prefix, _bare(rest)
    elif name.lower().startswith(_OPENAI_ONLY):
        yield "openai", name
    elif _BEDROCK.match(name):
        yield "aws", name
    elif "/" not in name or prefix == "models":
        yield None, _bare(name)


def undated(name: str) -> str | None:
    """``name`` without the date at its end; None if it has none."""
    found = _DATE.search(name)
    return name[: found.start()] if found else None


def _split(name: str) -> tuple[str | None, str]:
    found = _PREFIX.fullmatch(name)
    return (found[1].lower().replace("-", "_"), found[2]) if found else (None, name)


def _bare(name: str) -> str:
    return name.removeprefix("models/")  # as Google writes them


OUTPUT_LIMITS: Final = (
    ("gpt-3.5-turbo", 4096), ("gpt-4-turbo", 4096), ("gpt-4o-2024-05-13", 4096), ("gpt-4o", 16_384),
    ("chatgpt-4o", 16_384), ("gpt-4.1", 32_768), ("gpt-4.5", 16_384), ("gpt-4-32k", 8192), ("gpt-4", 8192),
    ("o1-mini", 65_536), ("o1-preview", 32_768), ("o1", 100_000), ("o3", 100_000), ("o4-mini", 100_000),
    ("gpt-5-chat", 16_384), ("gpt-5", 128_000), ("gpt-6", 128_000),
)  # fmt: skip
"""The most tokens OpenAI's models answer with, by the beginning of the name: asking for more is an error of the API."""


def output_limit(name: str) -> int | None:
    """The model's limit of output tokens, where it is known: a limit may be guessed by the beginning, a price not."""
    bare = name.lower()
    return next((limit for beginning, limit in OUTPUT_LIMITS if bare.startswith(beginning)), None)
