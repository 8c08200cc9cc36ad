"""Models that never say what they used, and requests without a limit: what is booked then, and how it is marked."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from sagaspan import Budget, Guard
from tests.adapters.functions.test_unreadable import DONE, Body, chunk

ASK: dict[str, Any] = {"model": "local", "messages": [{"role": "user", "content": "word " * 80}]}
"""About a hundred tokens."""


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def guard(ledger: Path) -> Iterator[Guard]:
    with Guard(f"sqlite:///{ledger}", prices={"local": {"input": 1, "output": 10}}) as guard:
        yield guard


def _local(request: httpx.Request) -> httpx.Response:
    """A server compatible with OpenAI's that counts nothing."""
    if b'"stream":true' in request.content.replace(b" ", b""):
        pieces = [*[chunk("word ")] * 80, chunk(finish="stop"), DONE]
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Body(*pieces))
    message = {"role": "assistant", "content": "word " * 80}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    return httpx.Response(200, json={"id": "x", "object": "chat.completion", "model": "local", "choices": choices})


def _client(guard: Guard) -> Any:
    transport = httpx.Client(transport=httpx.MockTransport(_local))
    return guard.wrap(openai.OpenAI(api_key="test", http_client=transport, base_url="http://local/v1"))


def _sources(ledger: Path) -> list[str]:
    with sqlite3.connect(ledger) as connection:
        return [source for (source,) in connection.execute("select prices from usage order by at_us")]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_what_nobody_reports_is_estimated(
    guard: Guard, ledger: Path, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """By what was sent and what came, and marked as that: not by the million tokens that could have come."""
    answer = _client(guard).chat.completions.create(**ASK, stream=stream)
    if stream:
        list(answer)
    used = guard.usage()
    assert 80 <= used.input_tokens <= 150
    assert 80 <= used.output_tokens <= 120
    assert used.spent == Decimal(used.input_tokens + 10 * used.output_tokens) / 1_000_000
    assert [source.endswith(", estimated") for source in _sources(ledger)] == [True]
    assert "It is booked as its text looks" in caplog.text


def test_a_stream_that_is_left_is_estimated_by_what_came(guard: Guard) -> None:
    """The provider may have billed more; nobody can say it."""
    with _client(guard).chat.completions.create(**ASK, stream=True) as stream:
        for _, _ in zip(range(40), stream, strict=False):
            pass
    assert 40 <= guard.usage().output_tokens <= 60


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("budget", ["1000 USD", "10M tokens"])
def test_under_a_hard_budget_all_is_booked_that_was_reserved(
    guard: Guard, ledger: Path, budget: str, stream: bool
) -> None:
    """It is no estimate that a limit hangs on, but a bound."""
    with guard.run("r", budget=budget):
        answer = _client(guard).chat.completions.create(**ASK, stream=stream)
        if stream:
            list(answer)
    assert guard.usage().output_tokens == 1_000_000
    assert [source.endswith(", as reserved") for source in _sources(ledger)] == [True]


def test_a_soft_budget_counts_the_estimate(guard: Guard) -> None:
    """What only speaks up is told what it looks like, and nothing stays reserved."""
    with guard.run("r", id="r", budget=Budget("1000 USD", hard=False)):
        _client(guard).chat.completions.create(**ASK)
    [account] = guard.budgets.list("run:r")
    assert (account.spent, account.reserved) == (guard.usage(run="r").spent, 0)
    assert account.spent < Decimal("0.01")


def test_a_limit_of_the_request_is_booked_as_ever(guard: Guard) -> None:
    """It bounds what nobody counted, and is near enough."""
    _client(guard).chat.completions.create(**ASK, max_tokens=300)
    assert guard.usage().output_tokens == 300


def test_an_unpriced_model_stays_flagged(ledger: Path) -> None:
    """What is estimated twice is still counted among what has no price."""
    with Guard(f"sqlite:///{ledger}") as guard:
        _client(guard).chat.completions.create(**{**ASK, "model": "nobody/knows-this"})
        assert guard.usage().unpriced == 1
    assert _sources(ledger)[0].endswith(", estimated, assumed")


def test_by_hand_what_came_is_booked(guard: Guard) -> None:
    """As it was said piece by piece, with the input that was declared."""
    with guard.llm_call("local", input_tokens=500) as call:
        call.streams()
        call.cover(70)
    used = guard.usage()
    assert (used.input_tokens, used.output_tokens) == (500, 70)


def test_a_decorated_function_that_returns_the_text_keeps_it(guard: Guard) -> None:
    """As many are written: the answer is there, so it is returned, and booked as it looks, or as reserved."""

    @guard.llm("local", input_tokens=100)
    def ask() -> str:
        return "word " * 80

    assert ask() == "word " * 80
    assert (guard.usage().input_tokens, guard.usage().output_tokens) == (100, 100)
    with guard.run("r", id="r", budget="1000 USD"):
        ask()
    assert guard.usage(run="r").output_tokens == 1_000_000
