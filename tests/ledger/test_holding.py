"""Which of several limits of one scope hold: none takes one of another kind back, and no part of a program loosens what
another one refuses (rule book (c))."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sagaspan import BudgetExceeded, Guard

Spend = Callable[..., tuple[float, str]]


@pytest.fixture
def spend(store_url: str) -> Iterator[Spend]:
    """How many calls of 1 USD the user 42 may make in a run, of at most twelve, and the limit that ends it."""
    guards: list[Guard] = []

    def spend(*limits: tuple[str, str], own: str | None = None, **options: object) -> tuple[float, str]:
        guard = Guard(store_url, **options)  # type: ignore[arg-type]
        guards.append(guard)
        for scope, limit in limits:
            guard.set_budget(scope, limit)
        buy, bought = guard.tool("buy", effect="read", cost="1 USD")(lambda n: n), 0
        try:
            with guard.run("r", id="r", user="42", budget=own):
                for n in range(12):
                    buy(n)
                    bought += 1
        except BudgetExceeded as error:
            return bought, f"{error.scope} {error.limit}"
        return bought, ""

    yield spend
    for guard in guards:
        guard.close()


_SET = (
    ((("user:*", "5 USD/day"), ("user:42", "100 calls")), (5, "user:42 5")),
    ((("user:42", "9 USD/day"), ("user:*", "5 USD")), (5, "user:42 5")),
    ((("user:*", "5 USD/day"), ("user:42", "9 USD/day")), (9, "user:42 9")),
    ((("user:*", "5 USD"), ("user:4*", "3 calls")), (3, "user:42 3")),
    ((("user:4*", "7 USD"), ("user:*", "5 USD")), (7, "user:42 7")),
    ((("user:4*", "2 USD"), ("user:*", "5 USD")), (2, "user:42 2")),
)


@pytest.mark.parametrize(("limits", "expected"), _SET, ids=["; ".join(map(" ".join, one)) for one, _ in _SET])
def test_limits_that_are_set_add_up(
    spend: Spend, limits: tuple[tuple[str, str], ...], expected: tuple[int, str]
) -> None:
    """Of one unit and window the most specific holds, whatever came first; those of others hold beside it."""
    assert spend(*limits) == expected


@pytest.mark.parametrize("set_", ["user:*", "user:42"])
def test_what_is_set_takes_no_declared_limit_of_another_kind_back(spend: Spend, set_: str) -> None:
    """Money that a program declares goes on to hold beside a number of calls."""
    assert spend((set_, "100 calls"), budgets={"user:*": "5 USD/day"}) == (5, "user:42 5")


@pytest.mark.parametrize("declared", ["user:*", "user:42"])
def test_what_is_set_of_the_same_scope_replaces_what_is_declared(spend: Spend, declared: str) -> None:
    """Or of a glob that fits more: it is how an operator gives somebody more."""
    assert spend(("user:42", "8 USD"), budgets={declared: "5 USD"}) == (8, "user:42 8")


@pytest.mark.parametrize(("set_", "bought"), [("9 USD", 5), ("2 USD", 2)])
def test_a_broad_limit_that_is_set_loosens_nothing_more_specific(spend: Spend, set_: str, bought: int) -> None:
    """A cap for everybody gives nobody more than his program does, and holds for all."""
    assert spend(("user:*", set_), budgets={"user:42": "5 USD"}) == (bought, f"user:42 {bought}")


@pytest.mark.parametrize(
    ("limit", "own", "bought"),
    [("run:*", None, 8), ("run:r", None, 8), ("run:*", "6 USD", 6), ("run:r", "6 USD", 8), ("run:*", "100 calls", 8)],
)
def test_what_is_set_of_runs(spend: Spend, limit: str, own: str | None, bought: int) -> None:
    """It replaces what the guard gives every run; what one run is given only if it is set of that one."""
    assert spend((limit, "8 USD"), own=own, budget="5 USD") == (bought, f"run:r {bought}")


@pytest.mark.parametrize(("own", "bought"), [("4 USD", 4), ("9 USD", 7), ("100 calls", 7)])
def test_what_a_run_is_given_loosens_nothing_that_is_declared_of_runs(spend: Spend, own: str, bought: int) -> None:
    """Both hold."""
    assert spend(own=own, budgets={"run:*": "7 USD"}) == (bought, f"run:r {bought}")


def test_a_run_with_calls_of_its_own_keeps_the_money_of_every_run(spend: Spend) -> None:
    """What it is given replaces the guard's of the same unit alone."""
    assert spend(own="100 calls", budget="5 USD") == (5, "run:r 5")
    assert spend(own="7 USD", budget="5 USD, 100 calls")[1] == "run:r 7"


def test_a_policy_file_takes_no_limit_of_another_kind_back(spend: Spend, tmp_path: Path) -> None:
    """What it says of a scope goes before what the code says of the same unit and window."""
    path = tmp_path / "sagaspan.toml"
    path.write_text('[budgets]\n"user:*" = "100 calls, 4 USD"\n')
    assert spend(policies=str(path), budgets={"user:*": "5 USD, 3 USD/day"}) == (3, "user:42 3")
