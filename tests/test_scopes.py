"""Scopes, and the budgets declared for them by name or glob."""

from __future__ import annotations

from typing import Any

import pytest

from sagaspan import ConfigurationError
from sagaspan.scopes import BudgetBook, check_scope, scope


@pytest.mark.parametrize(
    "text",
    [
        "run:r-1",
        "agent:a b",
        "user:42",
        "tenant:acme:eu",
        "tool:billing.pay",
        "model:gpt-4o",
        "user:東京　駅",
        "user:*",
    ],
)
def test_scopes(text: str) -> None:
    """A kind, a colon and any name a person can read."""
    assert check_scope(text) == text
    assert scope(*text.split(":", 1)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("users:42", "did you mean 'user:42'"),
        ("user", "did you mean 'user:NAME'"),
        ("*", "write KIND:NAME"),
        ("*:42", "write KIND:NAME"),
        ("", "write KIND:NAME"),
        ("user:", "1 to 255 characters"),
        ("user:a\nb", "control characters"),
        ("user:42 ", "begins or ends with a space; write 'user:42'"),
        ("user:\x1b[31m", "control characters"),
        ("user:\ud800", "control characters"),
        ("user:" + "x" * 300, "1 to 255 characters"),
        (42, "not a int"),
    ],
)
def test_what_is_no_scope_is_refused(text: Any, message: str) -> None:
    """A typo is answered with the nearest kind; a name cannot break a table or a key."""
    with pytest.raises(ConfigurationError, match=message) as refused:
        check_scope(text)
    assert "\n" not in str(refused.value)


def _shown(book: BudgetBook, name: str) -> list[str]:
    return [str(budget) for budget in book.of(name)]


def test_an_exact_scope_wins_over_globs_and_the_first_glob_over_the_next() -> None:
    """As with policies: what is said of one name is what holds for it."""
    book = BudgetBook({
        "user:*": "20 USD/day", "user:42": ["50 USD/day", "1k calls"], "user:v*": "99 USD", "run:*": "2 USD, 10 min",
    })  # fmt: skip
    assert _shown(book, "user:7") == ["20 USD/day"]
    assert _shown(book, "user:42") == ["50 USD/day", "1k calls"]
    assert _shown(book, "user:vip") == ["20 USD/day"]
    assert _shown(book, "run:any") == ["2 USD", "10 min"]
    assert _shown(book, "tenant:acme") == []
    assert _shown(book, "user:a/b:c") == ["20 USD/day"]
    assert list(book) == ["user:42", "user:*", "user:v*", "run:*"]
    assert len(book) == 4


@pytest.mark.parametrize(
    ("budgets", "message"),
    [
        ({"usr:*": "2 USD"}, "budgets: 'usr:"),
        ({"user:*": "2"}, "budgets, 'user:\\*': '2' has no unit"),
        ({"user:*": "10 min"}, "only a run has a wall clock"),
        ({3: "2 USD"}, "a scope is text"),
        (["2 USD"], "a mapping of scopes"),
    ],
)
def test_a_wrong_table_is_refused_when_it_is_written_down(budgets: Any, message: str) -> None:
    """The error names the table, the scope and what is wrong with it."""
    with pytest.raises(ConfigurationError, match=message):
        BudgetBook(budgets)


def test_nothing_declared_is_nothing_limited() -> None:
    """No table, no budgets."""
    assert BudgetBook(None).of("user:42") == ()
