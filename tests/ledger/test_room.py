"""What only calls in flight stand in the way of is waited for, and never ends the run (rule book (c) 5)."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import pytest

from sagaspan import BudgetExceeded, Guard, RunClosed
from sagaspan.ledger import waiters
from sagaspan.testing import frozen_clock


class Desk:
    """Work that goes on until somebody lets it end."""

    def __init__(self, guard: Guard) -> None:
        self.began, self.may_end = threading.Event(), threading.Event()
        self.work = guard.tool("work", effect="read", cost=lambda n, result: "1 USD" if result is None else "0.1 USD")(
            self._work
        )

    def _work(self, n: int) -> int:
        self.began.set()
        assert self.may_end.wait(60)
        return n

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Work goes on in another thread of the run, within the block."""
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(copy_context().run, self.work, 0)
            assert self.began.wait(60)
            try:
                yield
            finally:
                self.may_end.set()
                done.result(30)


@pytest.fixture
def guard(store_url: str) -> Iterator[Guard]:
    """Each run has 1 USD."""
    with Guard(store_url, budget="1 USD") as guard:
        yield guard


_COSTS_LESS: Any = {"effect": "read", "cost": lambda n, result: "0.5 USD" if result is None else "0.1 USD"}


def test_calls_at_once_go_one_after_the_other(guard: Guard) -> None:
    """Two fit beside each other, and all six one after the other: all threads run, and the run completes."""

    @guard.tool(**_COSTS_LESS)
    def work(n: int) -> int:
        threading.Event().wait(0.02)  # else each may have ended before the next begins
        return n

    with guard.run("r", id="r"), ThreadPoolExecutor(6) as pool:
        calls = [pool.submit(copy_context().run, work, n) for n in range(6)]
        assert [call.result(30) for call in calls] == list(range(6))
    assert (guard.runs.get("r").status, guard.usage(run="r").spent * 10) == ("completed", 6)


async def test_tasks_at_once_go_one_after_the_other(guard: Guard) -> None:
    """The same on one loop."""

    @guard.tool(**_COSTS_LESS)
    async def work(n: int) -> int:
        await asyncio.sleep(0)
        return n

    async with guard.run("r", id="r"):
        assert await asyncio.gather(*map(work, range(6))) == list(range(6))
    assert guard.runs.get("r").status == "completed"


def test_a_wait_in_vain_ends_no_run(guard: Guard) -> None:
    """It is refused when its time is over; the run goes on, and so does the call, later."""
    desk, patient = Desk(guard), guard.tool("patient", effect="read", cost="0.5 USD")(lambda n: n)
    hasty = guard.tool("hasty", effect="read", cost="0.5 USD", timeout=0.05)(lambda n: n)
    with guard.run("r", id="r"):
        with desk.at_work(), pytest.raises(BudgetExceeded, match="The run goes on: call again when") as caught:
            hasty(1)
        assert (caught.value.in_flight, caught.value.spent, caught.value.reserved) == (True, 0, 1)
        assert patient(1) == 1
    assert guard.runs.get("r").status == "completed"


def test_what_does_not_fit_beside_what_was_spent_is_refused_at_once(guard: Guard) -> None:
    """Nothing that ends could make room for it, so the run stops."""
    desk, buy = Desk(guard), guard.tool("buy", effect="read", cost=lambda usd: usd)(lambda usd: usd)
    with pytest.raises(BudgetExceeded) as caught, guard.run("r", budget="1.6 USD"):
        buy(0.6)
        with desk.at_work():
            buy(1.2)
    assert not caught.value.in_flight


def test_a_call_does_not_wait_for_the_call_it_is_in(guard: Guard) -> None:
    """Its own reservation is in the way: refused at once, and the outer body may handle it."""
    inner = guard.tool("inner", effect="read", cost="0.5 USD", timeout=5)(lambda: 1)

    @guard.tool(effect="read", cost="0.8 USD")
    def outer() -> str:
        with pytest.raises(BudgetExceeded, match="held by 'outer', which can only end after it") as caught:
            inner()
        assert caught.value.in_flight
        return "without"

    with guard.run("r", id="r"):
        assert outer() == "without"
    assert guard.runs.get("r").status == "completed"


def test_a_call_does_not_wait_for_the_model_it_is_made_beside(guard: Guard) -> None:
    """A model's call that is open around a tool ends only after it."""
    look = guard.tool("look", effect="read", cost="0.999 USD")(lambda n: n)
    with guard.run("r", id="r"):
        with guard.llm_call("gpt-4o", input_tokens=1000, max_output_tokens=100) as call:
            with pytest.raises(BudgetExceeded) as caught:
                look(1)
            assert caught.value.in_flight
            call.record_usage(input_tokens=10, output_tokens=1)
        assert look(1) == 1


def test_what_a_call_in_doubt_keeps_is_not_waited_for(guard: Guard) -> None:
    """Nobody knows when somebody decides it: the run stops."""

    @guard.tool(effect="write", cost="0.9 USD")
    def buy() -> None:
        raise TimeoutError

    look = guard.tool("look", effect="read", cost="0.2 USD", timeout=0.2)(lambda: 1)
    with pytest.raises(BudgetExceeded) as caught, guard.run("r"):
        with contextlib.suppress(TimeoutError):
            buy()
        look()
    assert (caught.value.in_flight, caught.value.reserved * 10) == (False, 9)


def test_calls_are_counted_whatever_becomes_of_them(guard: Guard) -> None:
    """What is reserved as a call never comes back."""
    desk, short = Desk(guard), guard.tool("short", effect="read")(lambda n: n)
    with pytest.raises(BudgetExceeded) as caught, guard.run("r", budget="1 calls"), desk.at_work():
        short(1)
    assert not caught.value.in_flight


def test_who_waits_over_the_end_of_a_window_has_the_next_one(store_url: str) -> None:
    """The next hour has room, however long the call of the last one takes."""
    with (
        frozen_clock(dt.datetime(2026, 1, 1, 10, 59, 59, tzinfo=dt.UTC)),
        Guard(store_url, budgets={"user:*": "1 USD/hour"}) as guard,
    ):
        desk, look = Desk(guard), guard.tool("look", effect="read", cost="0.5 USD")(lambda: guard.budgets.list())
        with guard.run("r", user="1"), desk.at_work():
            (account,) = look()  # waiting lets the clock go on
    assert (account.begins.hour, account.reserved * 10) == (11, 5)


def test_a_person_is_asked_though_another_call_has_reserved_it(guard: Guard) -> None:
    """By the time of the answer that call is over."""
    asked: list[Any] = []
    with guard.override(approver=lambda request: not asked.append(request.tool)):
        desk = Desk(guard)
        buy = guard.tool("buy", cost="0.5 USD", approve=True, timeout=30)(lambda: 1)
        with guard.run("r"), desk.at_work():
            threading.Timer(0.05, desk.may_end.set).start()
            assert buy() == 1
    assert asked == ["buy"]


@pytest.mark.parametrize("how", ["aborted", "doomed"])
def test_who_waits_in_a_run_that_stops_does_not_begin(guard: Guard, how: str) -> None:
    """It was let in when the run went on; what it would do is not wanted any more, and it is told so at once."""
    desk, done = Desk(guard), list[int]()
    write = guard.tool("write", effect="write", cost="0.5 USD", timeout=10)(done.append)
    dear = guard.tool("dear", effect="read", cost="5 USD")(lambda: 1)
    run = guard.run("r", id="r")
    with ThreadPoolExecutor(1) as pool, contextlib.suppress(BudgetExceeded), run, desk.at_work():
        waits = pool.submit(copy_context().run, write, 1)
        _until(lambda: len(waiters._waiters) == 1)
        if how == "aborted":
            run.abort()
        else:
            with contextlib.suppress(BudgetExceeded):
                dear()
        error = waits.exception(30)
    assert isinstance(error, RunClosed)
    assert done == []


def test_a_limit_that_is_raised_reaches_who_waits(guard: Guard, store_url: str) -> None:
    """At once, though what stands in the way goes on."""
    desk, look = Desk(guard), guard.tool("look", effect="read", cost="0.5 USD", timeout=10)(lambda: 1)

    def raise_it() -> None:
        with Guard(store_url) as operator:
            operator.set_budget("run:r", "5 USD")

    with guard.run("r", id="r"), desk.at_work():
        threading.Timer(0.05, raise_it).start()
        assert look() == 1
        assert not desk.may_end.is_set()


def test_of_two_that_would_wait_for_each_other_one_is_refused(guard: Guard) -> None:
    """Each is made in a call that holds what the other one needs: the last is told so, and the first has its room."""
    both, inner = threading.Barrier(2), guard.tool("inner", effect="read", cost="0.5 USD", timeout=10)(lambda n: n)

    @guard.tool(effect="read", cost=lambda n, result: "0.4 USD" if result is None else "0.1 USD")
    def outer(n: int) -> str:
        both.wait(60)
        try:
            return f"with {inner(n)}"
        except BudgetExceeded as error:
            return str(error)

    with guard.run("r", id="r"), ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(copy_context().run, outer, n) for n in range(2)]
        first, last = sorted((call.result(60) for call in calls), reverse=True)
    assert first.startswith("with")
    assert "would wait for this one, as it for them. The run goes on: reserve less" in last
    assert guard.runs.get("r").status == "completed"


def test_calls_of_two_guards_that_would_wait_for_each_other(guard: Guard, store_url: str) -> None:
    """As of one guard: it is one ledger."""
    both = threading.Barrier(2)

    def work(guard: Guard, n: int) -> str:
        inner = guard.tool("inner", effect="read", cost="0.5 USD", timeout=10)(lambda n: "with")

        @guard.tool(effect="read", cost=lambda n, result: "0.4 USD" if result is None else "0.1 USD")
        def outer(n: int) -> str:
            both.wait(60)
            try:
                return inner(n)
            except BudgetExceeded as error:
                return str(error)

        with guard.run(f"r{n}", user="42"):
            return outer(n)

    guard.set_budget("user:42", "1 USD")
    with Guard(store_url) as other, ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(work, each, n) for n, each in enumerate((guard, other))]
        first, last = sorted((call.result(60) for call in calls), reverse=True)
    assert first == "with"
    assert "would wait for this one, as it for them" in last


def test_who_waits_beside_a_call_that_waits_is_not_refused(guard: Guard) -> None:
    """As long as that one may win: what it holds up comes back too."""
    desk, inner = Desk(guard), guard.tool("inner", effect="read", cost="0.1 USD", timeout=20)(lambda: "with")
    outer = guard.tool("outer", effect="read", cost=_a_tenth_of("0.1 USD"))(lambda n: inner())
    late = guard.tool("late", effect="read", cost=_a_tenth_of("0.85 USD"), timeout=20)(lambda n: "late")
    with guard.run("r", id="r", budget="1.1 USD"), ThreadPoolExecutor(2) as pool, desk.at_work():
        first = pool.submit(copy_context().run, outer, 1)
        _until(lambda: len(waiters._waiters) == 1)
        last = pool.submit(copy_context().run, late, 1)
        _until(lambda: len(waiters._waiters) == 2 or last.done())
        with contextlib.suppress(TimeoutError):
            last.result(0.05)
        desk.may_end.set()
        assert (first.result(60), last.result(60)) == ("with", "late")


def _a_tenth_of(most: str) -> Any:
    return lambda n, result: most if result is None else "0.01 USD"


def _until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 300
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.002)
