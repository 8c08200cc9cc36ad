"""Names of models, as frameworks and providers write them."""

from __future__ import annotations

import pytest

from sagaspan.llm.models import output_limit, readings, undated


@pytest.mark.parametrize(
    ("model", "provider", "expected"),
    [
        ("gpt-4o", None, [(None, "gpt-4o")]),
        ("gpt-4o", "azure", [("azure", "gpt-4o"), (None, "gpt-4o")]),
        ("openai/gpt-4o", None, [("openai", "gpt-4o")]),
        ("openai/gpt-4o", "openai", [("openai", "openai/gpt-4o"), ("openai", "gpt-4o")]),
        ("anthropic:claude-sonnet-4-5", None, [("anthropic", "claude-sonnet-4-5")]),
        ("bedrock/anthropic.claude-3-haiku-20240307-v1:0", None, [("aws", "anthropic.claude-3-haiku-20240307-v1:0")]),
        ("us.anthropic.claude-sonnet-4-20250514-v1:0", None, [("aws", "us.anthropic.claude-sonnet-4-20250514-v1:0")]),
        ("vertex_ai/claude-sonnet-4@20250514", None, [("google", "claude-sonnet-4@20250514")]),
        ("google-vertex:gemini-2.5-pro", None, [("google", "gemini-2.5-pro")]),
        ("models/gemini-2.5-pro", None, [(None, "gemini-2.5-pro")]),
        ("openrouter/anthropic/claude-sonnet-4", None, [("openrouter", "anthropic/claude-sonnet-4")]),
        ("litellm_proxy/azure/gpt-4o", None, [("azure", "gpt-4o")]),
        ("text-embedding-3-small", None, [("openai", "text-embedding-3-small")]),
        ("ft:gpt-4o-2024-08-06:org::id", None, [("openai", "ft:gpt-4o-2024-08-06:org::id")]),
        ("llama3:8b", None, [(None, "llama3:8b")]),
        ("meta-llama/Llama-3.3-70B", "together", [("together", "meta-llama/Llama-3.3-70B")]),
        ("meta-llama/Llama-3.3-70B", None, []),
        ("my-proxy/gpt-4o", None, []),
        ("gpt-4o", "my-gateway", []),
    ],
)
def test_what_a_name_can_mean(model: str, provider: str | None, expected: list[tuple[str | None, str]]) -> None:
    """A known provider in front is taken off; a stranger's name, or a stranger, is in no table."""
    assert list(readings(model, provider)) == expected


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("gpt-4o-2024-08-06", "gpt-4o"),
        ("claude-sonnet-4-20250514", "claude-sonnet-4"),
        ("claude-sonnet-4@20250514", "claude-sonnet-4"),
        ("gpt-4o", None),
        ("gpt-3.5-turbo-0613", None),
        ("model-20251399", None),
        ("gpt-4o-2024-08-06-preview", None),
    ],
)
def test_dates_come_off_the_end(name: str, base: str | None) -> None:
    """Only a date, and only at the end."""
    assert undated(name) == base


def test_limits_of_openai_s_models() -> None:
    """The most specific beginning counts; what is not known has no limit."""
    assert output_limit("gpt-4o-2024-05-13") == 4096
    assert output_limit("gpt-4o-2024-08-06") == 16_384
    assert output_limit("gpt-4") == 8192
    assert output_limit("gpt-5-mini") == 128_000
    assert output_limit("gpt-99") is None
