"""Budgets from text, their windows, and the marks at which they speak up."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sagaspan import Budget, ConfigurationError
from sagaspan.amounts import MAX_AMOUNT, NANO, Unit
from sagaspan.budget import Window, budgets_of, window_end, window_start


@pytest.mark.parametrize(
    ("text", "limit", "unit", "window"),
    [
        ("2 USD", 2 * NANO, Unit.USD, None),
        ("20 USD/day", 20 * NANO, Unit.USD, Window.DAY),
        ("$20 / day", 20 * NANO, Unit.USD, Window.DAY),
        ("20 USD per Month", 20 * NANO, Unit.USD, Window.MONTH),
        ("100k tokens/hour", 100_000, Unit.TOKENS, Window.HOUR),
        ("50 calls", 50, Unit.CALLS, None),
        ("10 min", 600_000_000, Unit.TIME, None),
    ],
)
def test_a_budget_is_written_as_text(text: str, limit: int, unit: Unit, window: Window | None) -> None:
    """An amount, a unit, and a window if any."""
    budget = Budget(text)
    assert (budget.limit, budget.unit, budget.window) == (limit, unit, window)
    assert budget.soft == (50, 80, 95)
    assert budget.hard


@given(
    st.builds(
        lambda limit, unit, window: Budget(limit=limit, unit=unit, window=None if unit is Unit.TIME else window),
        st.integers(0, MAX_AMOUNT),
        st.sampled_from(Unit),
        st.sampled_from([None, *Window]),
    )
)
def test_a_budget_reads_back_as_it_is_shown(budget: Budget) -> None:
    """``str`` of a budget is text that makes an equal one."""
    assert Budget(str(budget)) == budget


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, []),
        ("2 USD, 50 calls", ["2 USD", "50 calls"]),
        (["20 USD/day", "2 USD", Budget("50 calls")], ["20 USD/day", "2 USD", "50 calls"]),
        ({"limit": "20 USD/day", "soft": [90], "hard": False}, ["20 USD/day"]),
        ([{"limit": "20 USD/day"}, "50 calls"], ["20 USD/day", "50 calls"]),
    ],
)
def test_several_budgets(value: Any, shown: list[str]) -> None:
    """Text with commas, lists and tables all say several budgets."""
    assert [str(budget) for budget in budgets_of(value)] == shown


def test_a_table_carries_the_options() -> None:
    """What a policy file says of a budget is what the constructor says."""
    assert budgets_of({"limit": "20 USD/day", "soft": [90], "hard": False}) == (
        Budget("20 USD/day", soft=(90,), hard=False),
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (2, "a budget is text with its unit"),
        (2.0, "a budget is text with its unit"),
        (True, "a budget is text with its unit"),
        (Decimal(2), "a budget is text with its unit"),
        (float("nan"), "a budget is text with its unit"),
        ("2", "has no unit"),
        ("", "is no amount"),
        ("2 USD,", "is no amount"),
        ("-2 USD", "is no amount"),
        ("2 USD/week", "an hour, a day or a month"),
        ("10 calls/minute", "use rate="),
        ("10 min/day", "has no window"),
        ("1000000001 USD", "out of range"),
        (["2 USD", "3 USD"], "two budgets for the same"),
        (["2 USD/day", "3 USD/day"], "two budgets for the same"),
        ([["2 USD"]], "a budget is text with its unit"),
        ({"limit": 2}, "as text"),
        ({"limit": "2 USD", "unit": "calls"}, "leave unit= out"),
        ({"limit": "2 USD", "sofd": [1]}, "did you mean soft"),
        ({"limit": "2 USD", "soft": [0]}, "soft"),
        ({"limit": "2 USD", "soft": [101]}, "soft"),
        ({"limit": "2 USD", "soft": [0.5]}, "soft"),
        ({"limit": "2 USD", "soft": [True]}, "soft"),
        ({"limit": "2 USD", "hard": "no"}, "hard"),
    ],
)
def test_what_is_no_budget_is_refused_with_its_place(value: Any, message: str) -> None:
    """One error that says where and what; a number without a unit is never guessed to be dollars."""
    with pytest.raises(ConfigurationError, match=message) as refused:
        budgets_of(value, where="budgets, 'user:*'")
    assert str(refused.value).startswith("budgets, 'user:*'")


@pytest.mark.parametrize(
    "fields",
    [
        {"limit": -1, "unit": Unit.USD},
        {"limit": 1.5, "unit": Unit.USD},
        {"limit": 10**19, "unit": Unit.USD},
        {"limit": True, "unit": Unit.USD},
        {"limit": 1, "unit": "USD"},
        {},
    ],
)
def test_fields_are_as_strict_as_text(fields: dict[str, Any]) -> None:
    """A budget rebuilt from a store is checked like one that was typed."""
    with pytest.raises(ConfigurationError):
        Budget(**fields)


@pytest.mark.parametrize(
    ("before", "after", "crossed"),
    [
        (0, 49, ()),
        (0, 50, (50,)),
        (50, 79, ()),
        (50, 80, (80,)),
        (0, 100, (50, 80, 95)),
        (94, 95, (95,)),
        (95, 95, ()),
        (100, 0, ()),
    ],
)
def test_a_soft_limit_is_crossed_once(before: int, after: int, crossed: tuple[int, ...]) -> None:
    """Each mark speaks when it is reached, not before and not again."""
    assert Budget("100 calls").soft_limits_crossed(before, after) == crossed


def test_soft_limits_are_exact() -> None:
    """No binary fraction moves a mark: 95 percent of a nano-dollar budget is where it is."""
    budget = Budget("0.000000007 USD", soft=(50,))
    assert budget.soft_limits_crossed(3, 3) == ()
    assert budget.soft_limits_crossed(3, 4) == (50,)


def _us(*parts: int) -> int:
    return int(datetime(*parts, tzinfo=UTC).timestamp()) * 1_000_000  # type: ignore[misc] # year, month, ...


@pytest.mark.parametrize(
    ("window", "at", "start", "end"),
    [
        (Window.HOUR, _us(2026, 3, 1, 12, 59, 59) + 999_999, _us(2026, 3, 1, 12), _us(2026, 3, 1, 13)),
        (Window.HOUR, _us(2026, 3, 1, 13), _us(2026, 3, 1, 13), _us(2026, 3, 1, 14)),
        (Window.DAY, _us(2026, 12, 31, 23, 59, 59), _us(2026, 12, 31), _us(2027, 1, 1)),
        (Window.MONTH, _us(2024, 2, 29, 23), _us(2024, 2, 1), _us(2024, 3, 1)),
        (Window.MONTH, _us(2026, 12, 31, 23), _us(2026, 12, 1), _us(2027, 1, 1)),
        (Window.MONTH, _us(2026, 2, 1), _us(2026, 2, 1), _us(2026, 3, 1)),
    ],
)
def test_windows_are_of_utc(window: Window, at: int, start: int, end: int) -> None:
    """A window begins at the full hour, at midnight or on the first, and ends where the next begins."""
    assert window_start(window, at) == start
    assert window_end(window, at) == end


@given(st.sampled_from(Window), st.integers(0, _us(2200, 1, 1)))
def test_every_moment_lies_in_one_window(window: Window, at: int) -> None:
    """Windows neither overlap nor leave a gap, for any time."""
    start, end = window_start(window, at), window_end(window, at)
    assert end is not None
    assert start <= at < end
    assert window_start(window, start) == start
    assert window_start(window, end - 1) == start
    assert window_start(window, end) == end
    assert end - start <= timedelta(days=31) / timedelta(microseconds=1)


def test_no_window_lasts_for_ever() -> None:
    """A budget without a window has one account, and is never whole again."""
    assert window_start(None, 123) == 0
    assert window_end(None, 123) is None
