"""What other budgets got wrong in public, as it goes here: caps that did not hold, false stops, leaks, double counts.

Each test names the thread it comes from (rule book, section 8).
"""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from sagaspan import BudgetExceeded, Guard, PolicyDenied
from tests.outages import Outage

CHEAP = {"cheap": {"input": 1, "output": 10}, "free": {"input": 0, "output": 0}}
USD_OF_ONE = Decimal("0.01")
"""1000 tokens out of ``cheap``."""


def _guard(store_url: str, **options: Any) -> Guard:
    return Guard(store_url, prices=CHEAP, **options)


def _call(guard: Guard, model: str = "cheap", most: int | None = 1000) -> Any:
    return guard.llm_call(model, max_output_tokens=most)


def _side_by_side(guard: Guard, calls: int, user: str, seconds: float = 0.02) -> int:
    """How many of so many calls at once are sent, each in a run of its own."""
    together = threading.Barrier(calls)

    def one(_: int) -> int:
        together.wait(60)
        with contextlib.suppress(BudgetExceeded), guard.run("r", user=user), _call(guard) as call:
            time.sleep(seconds)
            call.record_usage(output_tokens=1000)
            return 1
        return 0

    with ThreadPoolExecutor(calls) as pool:
        return sum(pool.map(one, range(calls)))


def test_calls_at_once_do_not_all_read_the_same_rest(store_url: str) -> None:
    """litellm#34732: the check and the reservation are one step, so that a crowd fits like a queue."""
    guard = _guard(store_url, budgets={"user:u": "0.03 USD"})
    assert _side_by_side(guard, 16, "u") == 3
    assert guard.usage(user="u").spent == 3 * USD_OF_ONE


def test_a_user_nobody_knew_has_a_budget_at_once(store_url: str) -> None:
    """litellm#40095: the first calls of a user, all at once, meet the default like every later one."""
    guard = _guard(store_url, budgets={"user:*": "0.02 USD/day"})
    assert _side_by_side(guard, 8, "new") == 2
    assert _side_by_side(guard, 8, "newer") == 2


def test_a_restart_forgets_nothing(store_url: str) -> None:
    """litellm#26672: what was spent is in the ledger, not in a process."""
    for _ in range(2):
        with (
            _guard(store_url, budgets={"tenant:t": "0.02 USD"}) as guard,
            guard.run("r", tenant="t"),
            _call(guard) as call,
        ):
            call.record_usage(output_tokens=1000)
    guard = _guard(store_url, budgets={"tenant:t": "0.02 USD"})
    with pytest.raises(BudgetExceeded), guard.run("r", tenant="t"), _call(guard):
        raise AssertionError("it was sent")


class Cancelled(BaseException):
    """As a client that goes away."""


@pytest.mark.parametrize("error", [None, ValueError("mine"), TimeoutError(), ConnectionRefusedError(), Cancelled()])
def test_however_a_call_ends_nothing_stays_reserved(store_url: str, error: BaseException | None) -> None:
    """litellm#27639, #38647: reservations of calls that failed or were cancelled added up until nothing was left."""
    guard = _guard(store_url, budget="1 USD")
    with contextlib.suppress(Exception, Cancelled), guard.run("r", id="r"), _call(guard) as call:
        if error is not None:
            raise error
        call.record_usage(output_tokens=1)
    (account,) = guard.budgets.list("run:r")
    assert account.reserved == 0
    assert list(guard.budgets.fsck()) == []


def test_a_generator_that_is_dropped_leaves_nothing_reserved(store_url: str) -> None:
    """litellm#27639: nor does a stream that nobody reads to its end."""
    guard = _guard(store_url, budget="1 USD")

    def stream() -> Any:
        with _call(guard):
            yield "a"
            yield "b"

    with guard.run("r", id="r"):
        chunks = stream()
        assert next(chunks) == "a"
        chunks.close()
    (account,) = guard.budgets.list("run:r")
    assert (account.reserved, account.spent) == (0, USD_OF_ONE)


def test_a_call_without_a_limit_leaves_room_for_others(store_url: str) -> None:
    """litellm#27509: it reserves what the model can answer at most, not all that is left."""
    guard = _guard(store_url, budgets={"user:u": "2000 USD"})
    with (
        guard.run("r", user="u"),
        guard.llm_call("gpt-4o", input_tokens=1000) as one,
        guard.llm_call("gpt-4o", input_tokens=1000) as other,
    ):
        assert guard.usage(user="u").reserved < 1
        one.record_usage(input_tokens=1000, output_tokens=10)
        other.record_usage(input_tokens=1000, output_tokens=10)
    assert guard.usage(user="u").remaining > Decimal("1999.9")


def test_an_absurd_limit_is_refused_and_blocks_nobody(store_url: str) -> None:
    """litellm#27509: what asks for a billion tokens does not take the rest of the budget from all others.

    It is not counted as less either: that the model cannot answer so much is a table's word, and no bound.
    """
    guard = _guard(store_url, budgets={"user:u": "20 USD"})
    with guard.run("r", user="u"), guard.llm_call("gpt-4o", max_output_tokens=100) as call:
        with pytest.raises(BudgetExceeded), guard.run("other", nested=False, user="u"):
            guard.llm_call("gpt-4o", max_output_tokens=999_999_999).__enter__()
        assert guard.usage(user="u").reserved < 1
        call.record_usage(output_tokens=10)


def test_what_cannot_be_estimated_is_not_let_by(store_url: str) -> None:
    """litellm#35524: without an estimate there was no reservation, and so no limit."""
    guard = _guard(store_url, budget="1 USD, 10k tokens")
    with pytest.raises(PolicyDenied), guard.run("r"), guard.llm_call("nobody/knows-it", max_output_tokens=1):
        raise AssertionError("it was sent")
    with pytest.raises(BudgetExceeded), guard.run("r"), guard.llm_call("free", input_tokens=1):
        raise AssertionError("a free model without a limit has no bound in tokens")


def test_a_settle_that_cannot_be_written_is_written_once(outage: Outage) -> None:
    """litellm#35569: a failed settle was counted as reserved and again as spent."""
    guard = _guard(outage.url, budgets={"model:cheap": "1 USD"})
    with _call(guard) as call:
        call.record_usage(output_tokens=500)
        with outage.down():
            call.__exit__(None, None, None)
    with _call(guard) as call:  # the next claim writes what could not be written
        call.record_usage(output_tokens=500)
    (account,) = guard.budgets.list("model:cheap")
    assert (account.reserved, account.spent) == (0, USD_OF_ONE)
    assert list(guard.budgets.fsck()) == []


def test_the_last_word_counts_once(store_url: str) -> None:
    """litellm#35569: nor is a call counted twice that says twice what it used."""
    guard = _guard(store_url, budgets={"model:cheap": "1 USD"})
    with _call(guard) as call:
        call.record_usage(output_tokens=900)
        call.record_usage(output_tokens=1000)
    assert guard.usage(model="cheap").spent == USD_OF_ONE


def test_a_cache_is_no_second_input(store_url: str) -> None:
    """litellm#40050: tokens from a cache were counted beside the input that they are part of."""
    guard = Guard(store_url, budgets={"model:*": "1 USD"})
    usage = {"input_tokens": 10, "cache_read_input_tokens": 1000, "cache_creation_input_tokens": 0, "output_tokens": 1}
    with guard.llm_call("claude-sonnet-4-5", input_tokens=2000, max_output_tokens=10) as call:
        cost = call.record_usage({"type": "message", "model": "claude-sonnet-4-5", "usage": usage})
    (account,) = guard.budgets.list("model:claude-sonnet-4-5")
    assert account.spent == Decimal(cost.nano_usd) / 10**9 == guard.usage().spent < Decimal("0.001")


def test_under_load_what_is_counted_is_what_was_spent(store_url: str) -> None:
    """litellm#36926: after hours of traffic the counter was twice the spending, and stopped everybody."""
    guard = _guard(store_url, budgets={"user:*": "1 USD", "model:*": "100 USD/month"})
    sent = sum(_side_by_side(guard, 8, user, seconds=0) for user in "abc" for _ in range(3))
    assert sent == 72
    assert guard.usage().spent == 72 * USD_OF_ONE
    assert {account.spent for account in guard.budgets.list() if account.scope != "model:cheap"} == {24 * USD_OF_ONE}
    assert list(guard.budgets.fsck()) == []


def test_a_resumed_run_counts_what_it_spent_once(store_url: str) -> None:
    """agenticos#1218: what a paused run had spent was added again when it went on."""
    guard = _guard(store_url)

    def job(calls: int) -> None:
        with guard.run("r", id="r", budget="0.03 USD", on_interrupt="hold"):
            for _ in range(calls):
                with _call(guard) as call:
                    call.record_usage(output_tokens=1000)
            if calls == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job(2)
    job(1)
    (account,) = guard.budgets.list("run:r")
    assert (account.spent, account.remaining) == (3 * USD_OF_ONE, 0)


def test_a_limit_below_what_is_spent_and_back(store_url: str, tmp_path: Path) -> None:
    """litellm#40050: lowering a limit and raising it again changes no count."""
    guard = _guard(store_url)
    guard.set_budget("user:u", "1 USD")
    assert _side_by_side(guard, 4, "u") == 4
    guard.set_budget("user:u", "0.01 USD")
    assert _side_by_side(guard, 2, "u") == 0
    guard.set_budget("user:u", "0.05 USD")
    assert _side_by_side(guard, 4, "u") == 1
    assert guard.usage(user="u").spent == 5 * USD_OF_ONE
