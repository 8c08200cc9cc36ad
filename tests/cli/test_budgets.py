"""``sagaspan budgets`` and ``sagaspan usage``: what may be used, what is, and whether the books are right."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sagaspan import BudgetExceeded, Guard
from tests.cli.conftest import Sagaspan


@pytest.fixture
def buy(guard: Guard) -> Callable[..., Any]:
    """A tool of 2 USD."""

    @guard.tool(cost="2 USD", effect="write")
    def buy(thing: str) -> str:
        return thing

    return buy


@pytest.fixture
def spent(guard: Guard, buy: Callable[..., Any]) -> None:
    """User 42 has bought for 4 USD of 10 a day, user 7 for 2, and a model has answered."""
    guard.set_budget("user:*", "10 USD/day")
    for user, things in (("42", "ab"), ("7", "a")):
        with guard.run("shop", user=user, agent="clerk"):
            for thing in things:
                buy(thing)
    with guard.run("ask", user="42"), guard.llm_call("openai/gpt-4o", input_tokens=1000, max_output_tokens=100) as call:
        call.record_usage(input_tokens=1000, output_tokens=100)


def _scopes(answer: Any) -> dict[str, tuple[str, str, str | None]]:
    return {row["scope"]: (row["limit"], row["spent"], row["remaining"]) for row in answer.json}


@pytest.mark.usefixtures("spent")
def test_budgets_are_listed(sagaspan: Sagaspan) -> None:
    """Each with what is set, used and left; a glob shows what nobody has used yet."""
    answer = sagaspan("budgets", "list", "--json")
    assert answer.code == 0
    assert _scopes(answer) == {
        "user:42": ("10", "4.0035", "5.9965"), "user:7": ("10", "2", "8"), "user:*": ("10", "0", "10")
    }  # fmt: skip
    assert _scopes(sagaspan("budgets", "list", "user:7", "--json")) == {"user:7": ("10", "2", "8")}
    assert "10 USD/day" in sagaspan("budgets", "list").out


def test_nothing_is_listed(sagaspan: Sagaspan, guard: Guard, buy: Callable[..., Any]) -> None:
    """Of what has no budget; a scope that is none is a sentence."""
    buy("a")
    assert "No budgets" in sagaspan("budgets", "list").out
    assert sagaspan("budgets", "list", "--json").json == []
    answer = sagaspan("budgets", "list", "usr:1")
    assert (answer.code, "user:1" in answer.err) == (2, True)


@pytest.mark.parametrize("used_before", [True, False], ids=["used", "never used"])
def test_a_limit_holds_in_a_running_process(
    sagaspan: Sagaspan, guard: Guard, buy: Callable[..., Any], used_before: bool
) -> None:
    """At its next call, whether or not the scope was ever used; more of it at the next one again."""
    guard.tool("look", effect="read")(lambda: 1)()

    def job() -> None:
        with guard.run("shop", id="s", user="42", on_budget="hold"):
            buy("a")
            buy("b")

    limit = ("user:42", "1 USD", "--per", "day")
    if not used_before:
        assert sagaspan("budgets", "set", *limit).code == 0
    else:
        with guard.run("shop", user="42"):
            buy("c")
            assert sagaspan("budgets", "set", *limit).code == 0
    with pytest.raises(BudgetExceeded) as caught:
        job()
    assert (caught.value.scope, caught.value.limit) == ("user:42", 1)
    assert sagaspan("budgets", "set", "user:42", "6 USD", "--per", "day").code == 0
    job()


def test_setting_says_what_is_used(sagaspan: Sagaspan, guard: Guard, spent: None) -> None:
    """The answer has the limit, what is used of it, and who set it."""
    sagaspan("budgets", "set", "user:*", "100 calls, 10 USD/day", "--actor", "boss")
    answer = sagaspan("budgets", "set", "user:42", "20 USD", "--per", "day", "--actor", "ops\x1b[2J")
    assert answer.out == (
        "user:42: 20 USD/day from the next call on, 4.0035 USD of it used, set by ops\\u{1b}[2J; "
        "before: 10 USD/day, set by boss for user:*.\n  beside it holds: 100 calls, set by boss for user:*.\n"
    )
    assert "3 USD/day from the next call on, 4.0035 USD of it used, nothing is left, set by" in (
        sagaspan("budgets", "set", "user:42", "3 USD/day").out
    )
    (account,) = sagaspan("budgets", "set", "user:42", "5 USD/day", "--soft", "90", "--watch", "--json").json
    assert (account["hard"], account["limit"], account["remaining"]) == (False, "5", "0.9965")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(("user:42", "20"), "unit"), (("usr:42", "20 USD"), "user:42"), (("user:42", "0.5 calls"), "0.5"),
     (("user:42", "nan USD"), "nan"), (("user:42", "5 USD/day", "--per", "day"), "leave --per day out"),
     (("user:42", "10 min"), "wall clock"), (("user:42", "-1 USD"), "'-1 USD' is no amount"),
     (("user:42", "-.5 USD", "--per", "day"), "is no amount"), (("user:42", "-$1"), "is no amount"),
     (("user:42 ", "1 USD"), "write 'user:42'")],
)  # fmt: skip
def test_what_is_no_budget_is_refused(sagaspan: Sagaspan, guard: Guard, arguments: tuple[str, ...], says: str) -> None:
    """And nothing is set."""
    guard.tool("look", effect="read")(lambda: 1)()
    answer = sagaspan("budgets", "set", "--json", *arguments)
    assert (answer.code, answer.json["kind"]) == (2, "ConfigurationError")
    assert says in answer.json["error"]
    assert sagaspan("budgets", "list", "--json").json == []


def test_an_option_that_nobody_knows_is_still_one(sagaspan: Sagaspan, guard: Guard) -> None:
    """Only what looks like a number is taken for an amount."""
    answer = sagaspan("budgets", "set", "user:42", "1 USD", "--pre", "day")
    assert (answer.code, "--pre" in answer.err) == (2, True)


def test_what_was_set_is_taken_back(sagaspan: Sagaspan, guard: Guard, buy: Callable[..., Any]) -> None:
    """In a running process, at its next call; what is taken back is named, and nothing twice."""
    with guard.run("shop", user="42"):
        buy("a")
        for limit in ("2 USD", "9 calls", "8 USD/day"):
            assert sagaspan("budgets", "set", "user:42", limit, "--actor", "ops").code == 0
        (only,) = sagaspan("budgets", "unset", "user:42", "--unit", "calls", "--json").json
        assert (only["limit"], only["unit"], only["set_by"]) == ("9", "calls", "ops")
        answer = sagaspan("budgets", "unset", "user:42")
        assert "user:42: 2 USD is taken back, which ops had set." in answer.out
        buy("b")
    assert {(row["limit"], row["unit"]) for row in sagaspan("budgets", "list", "--json").json} == {
        (None, "USD"), (None, "calls")
    }  # fmt: skip
    again = sagaspan("budgets", "unset", "user:42")
    assert (again.code, "nobody has set" in again.err) == (1, True)
    assert [row["event"] for row in guard.audit.rows() if row["event"].startswith("limit")][-2:] == ["limit.unset"] * 2


def test_what_a_glob_was_set_is_taken_back(sagaspan: Sagaspan, guard: Guard, buy: Callable[..., Any]) -> None:
    """By the glob; what a program declares holds again."""
    guard.set_budget("user:*", "2 USD")
    with guard.run("shop", user="42"):
        buy("a")
    assert _scopes(sagaspan("budgets", "list", "user:42", "--json")) == {"user:42": ("2", "2", "0")}
    assert sagaspan("budgets", "unset", "user:*").code == 0
    assert _scopes(sagaspan("budgets", "list", "--json")) == {"user:42": (None, "2", None)}
    declaring = Guard(budgets={"user:*": "3 USD"})
    with pytest.raises(BudgetExceeded) as caught, declaring.run("shop", user="42"):
        declaring.tool("buy", cost="2 USD", effect="write")(lambda: None)()
    assert (caught.value.limit, caught.value.spent) == (3, 2)


def test_only_what_was_set_is_said_to_be_set(sagaspan: Sagaspan) -> None:
    """What a program declares is said to be that, and after it is taken back what holds then is named."""
    with Guard(budgets={"user:*": "50 USD/day, 100 calls"}) as declaring, declaring.run("shop", user="42"):
        declaring.tool("buy", cost="2 USD", effect="write")(lambda: None)()
    answer = sagaspan("budgets", "set", "user:42", "20 USD/day", "--actor", "ops")
    assert answer.out == (
        "user:42: 20 USD/day from the next call on, 2 USD of it used, set by ops; before: 50 USD/day, as a program "
        "declares.\n  beside it holds: 100 calls, as a program declares.\n"
    )
    (account,) = sagaspan("budgets", "set", "user:42", "21 USD/day", "--json").json
    assert (account["limit"], account["set_for"]) == ("21", "user:42")
    sagaspan("budgets", "set", "user:*", "60 USD/day", "--actor", "boss")
    assert sagaspan("budgets", "unset", "user:42").out.endswith(
        "  holds now: 60 USD/day, set by boss for user:*.\n  holds now: 100 calls, as a program declares.\n"
    )
    assert "none known, per day" not in sagaspan("budgets", "list").out
    sagaspan("budgets", "unset", "user:*")
    assert "none known, per day" in sagaspan("budgets", "list").out


def test_what_holds_of_a_scope_that_was_never_used(sagaspan: Sagaspan, guard: Guard) -> None:
    """The limit of the glob, and for what it was set."""
    guard.set_budget("user:*", "5 USD/day", actor="boss")
    guard.set_budget("user:4*", "9 USD/day", actor="boss")
    (account,) = sagaspan("budgets", "list", "user:42", "--json").json
    assert (account["scope"], account["limit"], account["set_for"]) == ("user:42", "9", "user:4*")
    assert "boss, for user:4*" in sagaspan("budgets", "list", "user:42").out


def test_the_time_of_a_run_is_used(sagaspan: Sagaspan, guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    """From its start on."""
    from sagaspan import _accounts

    later = _accounts.now_us() + 90_500_000
    with guard.run("shop", id="s"):
        guard.tool("look", effect="read")(lambda: 1)()
        monkeypatch.setattr(_accounts, "now_us", lambda: later)
        guard.set_budget("run:s", "10 min")
        (account,) = sagaspan("budgets", "list", "--json").json
        monkeypatch.undo()
    assert (account["limit"], account["spent"], account["remaining"]) == ("600", "90", "510")


def test_of_several_namespaces_one_is_named(sagaspan: Sagaspan, guard: Guard) -> None:
    """A limit is of one namespace."""
    guard.tool("look", effect="read")(lambda: 1)()
    with Guard(namespace="other") as other:
        other.tool("look", effect="read")(lambda: 1)()
    answer = sagaspan("budgets", "set", "user:42", "1 USD")
    assert (answer.code, "--namespace" in answer.err) == (2, True)
    assert sagaspan("budgets", "set", "user:42", "1 USD", "--namespace", "other").code == 0
    (account,) = sagaspan("budgets", "list", "--json").json
    assert account["namespace"] == "other"


@pytest.mark.usefixtures("spent")
def test_the_books_are_right(sagaspan: Sagaspan) -> None:
    """After calls that ended well."""
    assert sagaspan("budgets", "fsck", "--json").json == []
    answer = sagaspan("budgets", "fsck")
    assert (answer.code, "Every budget" in answer.out) == (0, True)


@pytest.mark.usefixtures("spent")
@pytest.mark.parametrize(
    ("damage", "what", "counted", "by_calls"),
    [("update budgets set reserved = 1000000000 where scope = 'user:7'", "reserved", "1", "0"),
     ("update budgets set spent = 0 where scope = 'user:7'", "spent", "0", "2"),
     ("delete from budgets where scope = 'user:7'", "spent", "0", "2"),
     ("delete from calls where run_id in (select id from runs where user = '7')", "spent", "2", "0")],
    ids=["reserved", "spent", "no row", "no calls"],
)  # fmt: skip
def test_books_that_were_changed_are_found(
    sagaspan: Sagaspan, home: Path, damage: str, what: str, counted: str, by_calls: str
) -> None:
    """Each difference with both numbers; exit code 4."""
    with sqlite3.connect(home / "ledger.db") as connection:
        connection.execute(damage)
    answer = sagaspan("budgets", "fsck", "--json")
    (found,) = answer.json
    assert answer.code == 4
    assert (found["scope"], found["what"], found["counted"], found["by_calls"]) == ("user:7", what, counted, by_calls)
    assert "user:7" in sagaspan("budgets", "fsck").out


DIES = """
import os, sys
from sagaspan import Guard
guard = Guard(sys.argv[1])
guard.set_budget("user:42", "10 USD")
@guard.tool(cost="3 USD", effect="write")
def buy():
    os._exit(9)
with guard.run("shop", id="s", user="42"):
    buy()
"""


def test_a_crash_is_no_difference(sagaspan: Sagaspan, guard: Guard, home: Path) -> None:
    """What a dead process had reserved stays with its record, and the books agree."""
    url = f"sqlite:///{home}/ledger.db"
    done = subprocess.run([sys.executable, "-c", DIES, url], timeout=60, check=False)
    assert done.returncode == 9
    (account,) = sagaspan("budgets", "list", "--json").json
    assert (account["spent"], account["reserved"], account["remaining"]) == ("0", "3", "7")
    assert sagaspan("budgets", "fsck").code == 0


@pytest.mark.usefixtures("spent")
@pytest.mark.parametrize(
    ("by", "lines"),
    [("user", {"42": "4.0035", "7": "2"}), ("tool", {"buy": "6", "chat openai/gpt-4o": "0.0035"}),
     ("agent", {"clerk": "6", None: "0.0035"}), ("model", {None: "6", "openai/gpt-4o": "0.0035"})],
)  # fmt: skip
def test_usage(sagaspan: Sagaspan, by: str, lines: dict[str | None, str]) -> None:
    """By agent, user, model or tool, the most expensive first."""
    answer = sagaspan("usage", "--by", by, "--since", "1h", "--json")
    assert {line["key"]: line["spent"] for line in answer.json} == lines
    assert [line["key"] for line in answer.json] == list(lines)
    assert sagaspan("usage", "--by", by).code == 0


@pytest.mark.usefixtures("spent")
def test_usage_of_one_scope(sagaspan: Sagaspan) -> None:
    """All together, of what fits every scope that is named."""
    (all_,) = sagaspan("usage", "--json").json
    assert (all_["spent"], all_["calls"], all_["input_tokens"], all_["output_tokens"]) == ("6.0035", 4, 1000, 100)
    (some,) = sagaspan("usage", "--scope", "user:42", "--scope", "tool:buy", "--json").json
    assert (some["spent"], some["calls"]) == ("4", 2)
    assert sagaspan("usage", "--scope", "user:1", "--scope", "user:2").code == 2
    assert "No calls" in sagaspan("usage", "--scope", "user:1").out


def test_a_limit_that_is_set_before_the_first_call_makes_the_ledger(sagaspan: Sagaspan, home: Path) -> None:
    """With ``--create``; without, and where nobody can be asked, the error names it, and nothing is made."""
    refused = sagaspan("budgets", "set", "tool:pay", "1 calls")
    assert refused.code == 1
    assert "add --create" in refused.err
    assert sagaspan("budgets", "set", "tol:pay", "1 calls", "--create").code != 0
    assert not (home / "ledger.db").exists()
    assert sagaspan("budgets", "set", "tool:pay", "1 calls", "--create").code == 0
    with Guard() as guard:
        pay = guard.tool("pay", effect="write", repeat="new")(lambda: "paid")
        assert pay() == "paid"
        with pytest.raises(BudgetExceeded):
            pay()
