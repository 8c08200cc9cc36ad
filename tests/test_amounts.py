"""Amounts: text to exact integers and back, and what is refused at the door."""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sagaspan import ConfigurationError
from sagaspan.amounts import MAX_AMOUNT, NANO, Unit, count_of, in_units, nano_usd, parse_amount, show_amount


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [
        ("2 USD", 2 * NANO, Unit.USD),
        ("0.05 usd", 50_000_000, Unit.USD),
        ("$2.50", 2_500_000_000, Unit.USD),
        ("0.000000001 USD", 1, Unit.USD),
        ("0 USD", 0, Unit.USD),
        ("100k tokens", 100_000, Unit.TOKENS),
        ("1.5M tokens", 1_500_000, Unit.TOKENS),
        ("1 token", 1, Unit.TOKENS),
        ("50 calls", 50, Unit.CALLS),
        ("50calls", 50, Unit.CALLS),
        ("10 min", 600_000_000, Unit.TIME),
        ("1.5 hours", 5_400_000_000, Unit.TIME),
        ("90s", 90_000_000, Unit.TIME),
    ],
)
def test_text_says_an_exact_amount(text: str, amount: int, unit: Unit) -> None:
    """Each spelling of the docs is the integer it looks like."""
    assert parse_amount(text) == (amount, unit)


@pytest.mark.parametrize(
    "text",
    [
        "", "2", "USD", "2 EUR", "-2 USD", "+2 USD", "nan USD", "inf USD", "1e3 USD", "2,000 USD", "2_000 USD",
        "0x1 USD", "$2 USD", "٣ USD", "2 USD; drop", "2 USD\n3 USD", "0.5 calls", "0.0001k tokens", "0.0000000001 USD",
        ". USD", "2. USD", "1000000001 USD", "9" * 40 + " calls", "9" * 29 + "M tokens", "9" * 1_000_000 + " USD",
    ],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_what_says_no_exact_amount_is_refused(text: str) -> None:
    """One clear error, whatever is wrong: nothing is rounded, guessed or read half."""
    with pytest.raises(ConfigurationError) as refused:
        parse_amount(text)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 200


@given(st.integers(0, MAX_AMOUNT), st.sampled_from(Unit))
def test_what_is_shown_reads_back(amount: int, unit: Unit) -> None:
    """An amount survives being shown to a person and typed in again."""
    assert parse_amount(show_amount(amount, unit)) == (amount, unit)


@pytest.mark.parametrize(
    ("text", "shown"),
    [("20.00 USD", "20 USD"), ("100000 tokens", "100k tokens"), ("1500 calls", "1500 calls"), ("600 s", "10 min"),
     ("0 USD", "0 USD"), ("0.5 s", "0.5 s"), ("1 day", "24 h")],
)  # fmt: skip
def test_amounts_are_shown_short(text: str, shown: str) -> None:
    """People read the shortest spelling."""
    assert show_amount(*parse_amount(text)) == shown


@given(st.decimals(0, 10**9, places=12))
def test_a_cost_is_rounded_up(value: Decimal) -> None:
    """Never less than the cost, and less than a nano-dollar more; whatever the caller's decimal context."""
    with localcontext() as context:
        context.prec = 3
        nano = nano_usd(value)
    assert 0 <= nano - Fraction(value) * NANO < 1


@pytest.mark.parametrize(
    ("value", "nano"),
    [("0.05 USD", 50_000_000), (0.1, 100_000_000), (1, NANO), (0, 0), (-0.0, 0), (Decimal("0.05"), 50_000_000),
     (Decimal("1E-400"), 1), (1e-300, 1), (10**9, 10**18)],
)  # fmt: skip
def test_a_cost_can_be_text_or_a_plain_number(value: Any, nano: int) -> None:
    """A float is what it prints as; what is too small to count still counts."""
    assert nano_usd(value) == nano


class float64(float):  # what numpy's scalar is: a subclass of float
    """A float that is not one."""


class int64:
    """An integer by its methods only, as numpy's is."""

    def __index__(self) -> int:
        return 1

    __int__ = __index__


HOSTILE = [
    -1, -0.01, Decimal("-1"), float("nan"), float("inf"), -float("inf"), Decimal("NaN"), Decimal("sNaN"),
    Decimal("Infinity"), 10**9 + 1, 10**400, 1e300, Decimal("1E+999999"), True, False, None, "1", "free", "-1 USD",
    "nan USD", "50 calls", float64(0.5), int64(), Fraction(1, 2), 1 + 0j, [1], {"usd": 1}, b"1 USD",
]  # fmt: skip


@pytest.mark.parametrize(
    "value",
    HOSTILE,
    ids=lambda value: f"{type(value).__name__} {str(value)[:12]}" if not isinstance(value, int) else "int",
)
def test_hostile_costs_are_refused(value: Any) -> None:
    """No cost can lower what was spent, stop the arithmetic or mean two things; the error names the field."""
    with pytest.raises(ConfigurationError, match=r"the cost of 'pay' is |is no amount|has no unit"):
        nano_usd(value, what="the cost of 'pay'")


@pytest.mark.parametrize("value", [-1, True, 1.0, float("nan"), "1", Decimal(1), 10**18 + 1, int64(), None])
def test_hostile_counts_are_refused(value: Any) -> None:
    """A number of tokens is a plain int that is not negative."""
    with pytest.raises(ConfigurationError, match="tokens"):
        count_of(value, what="tokens")


def test_amounts_as_people_count() -> None:
    """Exact decimals without trailing zeros, for errors and reports."""
    assert str(in_units(3_500_000, Unit.USD)) == "0.0035"
    assert str(in_units(20 * NANO, Unit.USD)) == "20"
    assert str(in_units(-NANO, Unit.USD)) == "-1"
    assert in_units(90_500_000, Unit.TIME) == Decimal("90.5")
    assert in_units(7, Unit.CALLS) == 7
