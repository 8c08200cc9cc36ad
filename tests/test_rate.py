"""Rates from text, and the one step of GCRA."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sagaspan import ConfigurationError
from sagaspan.rate import Rate, rate_step

SECOND = 10**9
START = 1_800_000_000 * SECOND


@pytest.mark.parametrize(
    ("text", "interval", "burst"),
    [
        ("10/minute", 6 * SECOND, 10),
        ("10 per minute", 6 * SECOND, 10),
        ("3/second", 333_333_334, 3),
        ("600/hour burst 5", 6 * SECOND, 5),
        ("1/day", 86_400 * SECOND, 1),
    ],
)
def test_a_rate_is_written_as_text(text: str, interval: int, burst: int) -> None:
    """So many a period, all at once after a pause unless a burst is said."""
    rate = Rate(text)
    assert (rate.interval_ns, rate.burst) == (interval, burst)
    assert Rate(str(rate)) == rate


@pytest.mark.parametrize(
    "text",
    [
        "10",
        "10/week",
        "0/minute",
        "-1/minute",
        "1.5/minute",
        "10/minute burst 0",
        "inf/day",
        "1000001/second",
        10,
        None,
        True,
    ],
)
def test_what_is_no_rate_is_refused(text: Any) -> None:
    """One clear error when it is written down."""
    with pytest.raises(ConfigurationError):
        Rate(text)


def test_after_the_burst_one_call_an_interval() -> None:
    """``10/minute``: ten at once, then one every six seconds; the wait that is told is exactly long enough."""
    rate, arrival = Rate("10/minute"), None
    for _ in range(10):
        step = rate_step(rate, arrival, START)
        assert step.allowed
        arrival = step.arrival_ns
    refused = rate_step(rate, arrival, START)
    assert not refused.allowed
    assert refused.wait_ns == 6 * SECOND
    assert not rate_step(rate, arrival, START + refused.wait_ns - 1).allowed
    assert rate_step(rate, arrival, START + refused.wait_ns).allowed


def test_a_refused_call_does_not_push_the_next_one_back() -> None:
    """Asking too early, however often, costs nothing."""
    rate = Rate("1/minute")
    arrival = rate_step(rate, None, START).arrival_ns
    for second in range(60):
        step = rate_step(rate, arrival, START + second * SECOND)
        assert not step.allowed
        arrival = step.arrival_ns
    assert rate_step(rate, arrival, START + 60 * SECOND).allowed


@given(
    st.integers(1, 50),
    st.sampled_from(["second", "minute", "hour", "day"]),
    st.integers(1, 50),
    st.lists(st.integers(0, 3 * SECOND), max_size=200),
)
def test_no_period_sees_more_than_the_burst_and_the_count(count: int, period: Any, burst: int, gaps: list[int]) -> None:
    """Whatever the arrivals: in any stretch of time at most ``burst`` calls and one for each interval in it."""
    rate = Rate(count=count, period=period, burst=burst)
    now, arrival, gone = START, None, []
    for gap in gaps:
        now += gap
        step = rate_step(rate, arrival, now)
        arrival = step.arrival_ns
        if step.allowed:
            gone.append(now)
    for first in range(len(gone)):
        for last in range(first, len(gone)):
            assert last - first + 1 <= burst + (gone[last] - gone[first]) // rate.interval_ns


@given(st.integers(-(10**18), 10**18), st.integers(1, 100))
def test_a_clock_that_was_set_back_blocks_nobody_for_long(jump: int, burst: int) -> None:
    """Wherever the kept time lies, the wait is one interval at most, and following it lets the call go."""
    rate = Rate(count=10, period="minute", burst=burst)
    step = rate_step(rate, START + jump, START)
    assert 0 <= step.wait_ns <= rate.interval_ns
    assert step.allowed or rate_step(rate, step.arrival_ns, START + step.wait_ns).allowed
