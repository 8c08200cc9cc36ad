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
    return [str(placed.budget) for placed in book.of(name)]


def test_of_budgets_of_one_kind_the_most_specific_holds() -> None:
    """Whatever their order: the scope itself, then the glob that names the most of it, then the tighter one."""
    book = BudgetBook({
        "user:*": "20 USD/day", "user:42": ["50 USD/day", "1k calls"], "user:v*": "99 USD/day", "user:*p": "98 USD/day",
        "user:?": "30 USD/day", "user:[xy]": "40 USD/day", "run:*": "2 USD, 10 min",
    })  # fmt: skip
    assert _shown(book, "user:77") == ["20 USD/day"]
    assert _shown(book, "user:42") == ["50 USD/day", "1k calls"]
    assert _shown(book, "user:vip") == ["98 USD/day"]
    assert _shown(book, "user:7") == ["30 USD/day"]
    assert _shown(book, "user:x") == ["30 USD/day"]
    assert _shown(book, "run:any") == ["2 USD", "10 min"]
    assert _shown(book, "tenant:acme") == []
    assert _shown(book, "user:a/b:c") == ["20 USD/day"]
    assert list(book) == ["user:*", "user:42", "user:v*", "user:*p", "user:?", "user:[xy]", "run:*"]
    assert len(book) == 7


def test_budgets_of_several_kinds_all_hold() -> None:
    """What is said of one unit or window takes nothing back of another, however specific it is."""
    book = BudgetBook({"user:*": "5 USD/day, 10 USD", "user:4*": "100 calls", "user:42": "9 USD/hour, 1 calls"})
    assert sorted(_shown(book, "user:42")) == ["1 calls", "10 USD", "5 USD/day", "9 USD/hour"]
    assert sorted(_shown(book, "user:4")) == ["10 USD", "100 calls", "5 USD/day"]


def test_a_name_with_the_characters_of_a_glob_names_itself() -> None:
    """A model or tool may be called so."""
    assert _shown(BudgetBook({"model:ft[x]": "5 USD"}), "model:ft[x]") == ["5 USD"]


@pytest.mark.parametrize(
    ("budgets", "message"),
    [
        ({"usr:*": "2 USD"}, "budgets: 'usr:"),
        ({"user:*": "2"}, "budgets, 'user:\\*': '2' has no unit"),
        ({"user:*": "10 min"}, "only a run has a wall clock"),
        ({3: "2 USD"}, "a scope is text"),
        (["2 USD"], "a mapping of scopes"),
        ({"user:*": "2 USD", "user:root": []}, "'user:root': no budget, which exempts nobody"),
    ],
)
def test_a_wrong_table_is_refused_when_it_is_written_down(budgets: Any, message: str) -> None:
    """The error names the table, the scope and what is wrong with it."""
    with pytest.raises(ConfigurationError, match=message):
        BudgetBook(budgets)


def test_nothing_declared_is_nothing_limited() -> None:
    """No table, no budgets."""
    assert BudgetBook(None).of("user:42") == ()
