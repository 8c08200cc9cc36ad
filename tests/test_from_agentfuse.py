"""docs/from-agentfuse.md: every snippet runs, in order, and does what it says; the functions that are for its users."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from sagaspan import ConfigurationError, Guard, calculate_cost, estimate_tokens
from tests.providers.server import ModelServer

PAGE = Path(__file__).parents[1] / "docs" / "from-agentfuse.md"


def test_every_snippet_of_the_page_runs(
    model_server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As one program, against a provider that keeps books."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_BASE_URL", f"{model_server.url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "test")
    there: dict[str, Any] = {}
    for snippet in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(compile(snippet, str(PAGE), "exec"), there)
    guard: Guard = there["guard"]
    guard.close()
    with Guard(f"sqlite:///{tmp_path / 'agent.db'}") as guard:
        assert guard.usage(run="my-agent-run-123").calls == 1
        assert guard.usage(run="by-hand").input_tokens == 1900
        assert guard.runs.get("small").reason == "budget"
        assert guard.runs.get("stuck").status == "completed"
        assert guard.runs.get("fresh").status == "completed"
        assert guard.usage().calls == 1 + 2 + 1 + 1 + 5  # streamed, by hand, decorated, by LangChain, searches
    assert len(model_server.requests) == 3
    assert capsys.readouterr().out.startswith("Spent: $")


def test_what_a_call_costs() -> None:
    """From the table, or from rows of one's own; exactly, and never a number out of the air."""
    assert calculate_cost("gpt-4o", 1_000_000) == Decimal("2.5")
    assert calculate_cost("gpt-4o", 1000, 500) == Decimal("0.0075")
    assert calculate_cost("openai/gpt-4o-2024-08-06", output_tokens=1_000_000) == 10
    assert calculate_cost("gpt-4o", 1000, cache_read_tokens=1000) < calculate_cost("gpt-4o", 1000)
    rows = {"my-model": {"input": 3, "output": 12}}
    assert calculate_cost("my-model", 1000, 500, prices=rows) == Decimal("0.009")
    with Guard("sqlite:///never-opened.db", prices=rows) as guard:
        assert calculate_cost("my-model", 1000, 500, prices=guard.prices) == Decimal("0.009")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("my-model", 1), "no price is known for the model 'my-model'; give it a row"),
        (("gpt-4o", -1), "input_tokens is -1"),
        (("gpt-4o", 1.5), "input_tokens is 1.5"),
        (("gpt-4o", True), "input_tokens is True"),
        (("gpt-4o", 10**30), "input_tokens is 1000"),
        ((None,), "model=None is None, not a text"),
    ],
)
def test_what_cannot_be_said_is_an_error(arguments: tuple[Any, ...], said: str) -> None:
    """Of a model that nobody prices, and of counts that are none."""
    with pytest.raises(ConfigurationError, match=said):
        calculate_cost(*arguments)
    with pytest.raises(ConfigurationError, match="tokens_in"):
        calculate_cost("gpt-4o", tokens_in=1)


def test_how_many_tokens_it_can_be() -> None:
    """An upper bound: of a text, of messages in parts, of all arguments of a call."""
    assert estimate_tokens("Hello!") == 6
    assert estimate_tokens("字") == 3
    messages = [{"role": "user", "content": [{"type": "text", "text": "x" * 100_000}]}]
    assert estimate_tokens(messages) > 100_000
    assert estimate_tokens({"messages": messages, "tools": [{"type": "function"}]}) > estimate_tokens(messages)
    for asked in ({"messages": [], "system": "x" * 5000}, {"input": "x" * 5000}, {"instructions": "x" * 5000}):
        assert estimate_tokens(asked) > 5000
    with pytest.raises(ConfigurationError, match="have messages, or input; these have prompt"):
        estimate_tokens({"prompt": "x"})
    for nothing in (None, 5, b"bytes"):
        with pytest.raises(ConfigurationError, match="takes a text"):
            estimate_tokens(nothing)  # type: ignore[arg-type]
