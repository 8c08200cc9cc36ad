"""Calls of models by hand: reserved before, recorded after, in the same ledger as tools."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import threading
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

from sagaspan import BudgetExceeded, ConfigurationError, Guard, PolicyDenied

CHEAP = {"cheap": {"input": 1, "output": 10}}


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def guard(ledger: Path) -> Guard:
    return Guard(f"sqlite:///{ledger}", prices=CHEAP, budgets={"model:cheap": ["1 USD", "1M tokens"]})


def _rows(ledger: Path, query: str) -> list[Any]:
    with sqlite3.connect(ledger) as connection:
        return connection.execute(query).fetchall()


def test_a_call_is_settled_with_what_it_used(guard: Guard, ledger: Path) -> None:
    """Reserved at most, booked exactly."""
    with (
        guard.run("r", id="r", user="u", agent="a"),
        guard.llm_call("cheap", input_tokens=1000, max_output_tokens=500) as call,
    ):
        assert guard.usage(model="cheap").reserved == Decimal("0.006")
        call.record_usage(input_tokens=950, output_tokens=480, reasoning_tokens=80, cache_read_tokens=100)
    found = guard.usage(run="r")
    assert found.spent == Decimal("0.00575")
    assert (found.calls, found.input_tokens, found.output_tokens) == (1, 950, 480)
    assert (found.cached_tokens, found.reasoning_tokens, found.unpriced) == (100, 80, 0)
    assert (
        guard.usage(user="u").spent == guard.usage(agent="a").spent == guard.usage(model="cheap").spent == found.spent
    )
    assert _rows(ledger, "select unit, spent, reserved from budgets order by unit") == [
        ("USD", 5_750_000, 0), ("tokens", 1430, 0)
    ]  # fmt: skip
    [record] = guard.runs.get("r").calls
    assert (record.tool, record.state) == ("chat cheap", "done")


def test_a_call_that_is_entered_again_in_its_block_is_still_booked(guard: Guard) -> None:
    with guard.run("r", id="r"), guard.llm_call("cheap", input_tokens=1000, max_output_tokens=500) as call:
        with pytest.raises(ConfigurationError, match="was made already"), call:
            pytest.fail("entered twice")
        call.record_usage(input_tokens=1000, output_tokens=500)
    assert guard.usage(run="r").spent == Decimal("0.006")


async def test_an_async_call_that_is_entered_again_in_its_block_is_still_booked(guard: Guard) -> None:
    async with guard.run("r", id="r"), guard.llm_call("cheap", input_tokens=1000, max_output_tokens=500) as call:
        with pytest.raises(ConfigurationError, match="was made already"):
            async with call:
                pytest.fail("entered twice")
    assert guard.usage(run="r").spent == Decimal("0.006")


def test_a_run_knows_what_it_used(guard: Guard) -> None:
    """So far, with what is left of the budget that it was given."""
    with guard.run("r", budget="0.01 USD") as run:
        with guard.llm_call("cheap", input_tokens=1000, max_output_tokens=500) as call:
            call.record_usage(input_tokens=1000, output_tokens=500)
        assert (run.usage.spent, run.usage.calls, run.usage.output_tokens) == (Decimal("0.006"), 1, 500)
        assert (run.usage.limit, run.usage.remaining) == (Decimal("0.01"), Decimal("0.004"))


def test_a_replay_of_a_completed_run_is_paid_for_by_the_same_people(ledger: Path) -> None:
    """Its model is asked again, outside of the run, which is over; but the budget of its user still holds."""
    with Guard(f"sqlite:///{ledger}", prices=CHEAP, budgets={"user:u": "2000 tokens"}) as guard:

        def job() -> None:
            with (
                guard.run("r", id="r", user="u"),
                guard.llm_call("cheap", input_tokens=500, max_output_tokens=500) as call,
            ):
                call.record_usage(input_tokens=500, output_tokens=500)

        job()
        job()
        assert _rows(ledger, "select scope, spent from budgets") == [("user:u", 2000)]
        with pytest.raises(BudgetExceeded):
            job()
        assert len(guard.runs.get("r").calls) == 1


async def test_asynchronously(guard: Guard) -> None:
    """The same with async with."""
    async with guard.llm_call("cheap", input_tokens=10, max_output_tokens=10) as call:
        call.record_usage({"usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}})
    assert (await guard.ausage(model="cheap")).output_tokens == 5


def test_what_does_not_fit_is_not_sent(guard: Guard) -> None:
    """The upper bound counts, not what it would have used; the run is stopped."""
    with (
        pytest.raises(BudgetExceeded) as caught,
        guard.run("r", id="r"),
        guard.llm_call("cheap", input_tokens=1000, max_output_tokens=200_000),
    ):
        raise AssertionError("it was sent")
    assert caught.value.scope == "model:cheap"
    assert guard.runs.get("r").reason == "budget"


@pytest.mark.parametrize(
    ("error", "state", "spent"),
    [(TimeoutError("read"), "unknown", "0.006"), (ConnectionRefusedError(), "failed", "0"), ("429", "failed", "0"),
     ("500", "failed", "0")],
)  # fmt: skip
def test_an_error_costs_what_it_may_have_cost(guard: Guard, error: Any, state: str, spent: str) -> None:
    """What was never answered is not billed; what may have been is booked as reserved, and nothing stays reserved."""
    import httpx

    if isinstance(error, str):
        request = httpx.Request("POST", "http://localhost")
        error = httpx.HTTPStatusError("no", request=request, response=httpx.Response(int(error), request=request))
    with (
        pytest.raises(type(error)),
        guard.run("r", id="r"),
        guard.llm_call("cheap", input_tokens=1000, max_output_tokens=500),
    ):
        raise error
    [record] = guard.runs.get("r").calls
    assert record.state == state
    found = guard.usage(model="cheap")
    assert (found.spent, found.reserved) == (Decimal(spent), 0)
    assert guard.runs.get("r").status == "failed"  # nothing to undo, and nobody is waited for


def test_an_answer_that_has_begun_costs_whatever_ends_it(guard: Guard) -> None:
    """A refusal in the middle of a stream is of something else."""
    with (
        pytest.raises(ConnectionRefusedError),
        guard.llm_call("cheap", input_tokens=1000, max_output_tokens=500) as call,
    ):
        call.streams()
        raise ConnectionRefusedError
    assert guard.usage(model="cheap").spent == Decimal("0.006")


@pytest.mark.parametrize("error", [ValueError("whatever"), httpx.DecodingError("whatever")])
def test_what_was_handled_before_is_no_proof(guard: Guard, error: Exception) -> None:
    """What an error of the user's own, or of a client, was raised in the handling of is no evidence."""

    def ask() -> None:
        with guard.llm_call("cheap", input_tokens=1000, max_output_tokens=500):
            raise error

    with pytest.raises(type(error), match="whatever"):
        try:
            raise ConnectionRefusedError
        except ConnectionRefusedError:
            ask()
    assert guard.usage(model="cheap").spent == Decimal("0.006")


def test_nobody_has_to_decide_about_a_model_s_call(guard: Guard, ledger: Path) -> None:
    """In doubt is how it ended, not what to do: it is on record and booked, not open, and asks nobody anything."""
    from click.testing import CliRunner

    from sagaspan.cli import cli

    with (
        pytest.raises(TimeoutError),
        guard.run("r", id="r"),
        guard.llm_call("cheap", input_tokens=1000, max_output_tokens=500) as call,
    ):
        raise TimeoutError
    assert guard.calls.list() == []
    assert [found.id for found in guard.calls.list(status="unknown")] == [call.id]
    store = ["--store", f"sqlite:///{ledger}"]
    status = CliRunner().invoke(cli, [*store, "status"])
    assert (status.exit_code, status.output) == (0, "Nothing needs you.\n")
    assert "next" not in CliRunner().invoke(cli, [*store, "show", call.id]).output
    assert guard.usage(model="cheap").spent == Decimal("0.006")


def test_a_call_says_what_it_asks_for(guard: Guard) -> None:
    """Its name, in the ledger as on the span; a word that OpenTelemetry has not is refused."""
    with guard.llm_call("cheap", input_tokens=10, max_output_tokens=0, operation="embeddings") as call:
        call.record_usage(input_tokens=10)
    assert guard.calls.get(call.id).tool == "embeddings cheap"
    with pytest.raises(ConfigurationError, match="operation='embed'"):
        guard.llm_call("cheap", operation="embed")


def test_a_call_nobody_settled_is_booked_as_reserved(guard: Guard, caplog: pytest.LogCaptureFixture) -> None:
    """And the log says so."""
    with guard.llm_call("cheap", input_tokens=1000, max_output_tokens=500):
        pass
    assert guard.usage(model="cheap").spent == Decimal("0.006")
    assert "No usage recorded for call" in caplog.text


def test_a_model_that_never_says_what_it_used_is_named_once(guard: Guard, caplog: pytest.LogCaptureFixture) -> None:
    """A local model may never tell; an agent of a thousand calls does not log it a thousand times."""
    for _ in range(3):
        with guard.llm_call("cheap", input_tokens=1, max_output_tokens=1):
            pass
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


def test_a_model_without_a_price(ledger: Path) -> None:
    """Refused under a hard budget of money; else counted as the dearest known, and flagged."""
    guard = Guard(f"sqlite:///{ledger}")
    with guard.llm_call("nobody/knows-this", input_tokens=1000, max_output_tokens=1) as call:
        call.record_usage(input_tokens=1000, output_tokens=1)
    found = guard.usage()
    assert found.unpriced == 1
    assert found.spent > 0
    with (
        pytest.raises(PolicyDenied, match="no price is known"),
        guard.run("r", budget="1 USD"),
        guard.llm_call("nobody/knows-this", input_tokens=1, max_output_tokens=1),
    ):
        raise AssertionError("it was sent")


def test_known_prices_come_along(ledger: Path) -> None:
    """Offline; with the provider in front, and dated."""
    guard = Guard(f"sqlite:///{ledger}")
    for model in ("gpt-4o", "openai/gpt-4o", "gpt-4o-2024-08-06"):
        with guard.llm_call(model, input_tokens=10, max_output_tokens=10) as call:
            cost = call.record_usage(input_tokens=1_000_000, output_tokens=0)
        assert cost is not None
        assert cost.missing is None
        assert cost.nano_usd > 10**9


class Unreadable:
    """An answer whose properties raise."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"{name} was not loaded")


@pytest.mark.parametrize(
    ("said", "counts"),
    [
        ((), {}),
        ((None,), {}),
        ((object(),), {}),
        ((Unreadable(),), {}),
        (({"usage": {"prompt_tokens": -1}},), {}),
        ((), {"input_tokens": None}),
        ((), {"input_tokens": 10, "cache_read_tokens": 11}),
        ((), {"prompt_tokens": 10}),
    ],
)
def test_an_answer_that_is_paid_for_is_never_lost_to_its_bookkeeping(
    guard: Guard, caplog: pytest.LogCaptureFixture, said: tuple[Any, ...], counts: dict[str, Any]
) -> None:
    """What cannot be read is no error, and not nothing: all is booked that was reserved, and the log says why."""
    with guard.llm_call("cheap", input_tokens=1000, max_output_tokens=500) as call:
        assert call.record_usage(*said, **counts) is None
    assert guard.usage(model="cheap").spent == Decimal("0.006")
    assert "No usage recorded for call" in caplog.text


def test_the_last_word_that_can_be_read_counts(guard: Guard) -> None:
    """An answer that says nothing takes nothing back, and does not stop the next one."""
    with guard.llm_call("cheap", input_tokens=1000, max_output_tokens=500) as call:
        call.record_usage(object())
        call.record_usage(input_tokens=1, output_tokens=1)
        call.record_usage(None)
    assert guard.usage(model="cheap").output_tokens == 1


def test_a_decorated_function_that_returns_nothing_readable_loses_no_answer(guard: Guard) -> None:
    """Its answer reaches the caller; all is booked that was reserved."""
    assert guard.llm("cheap", input_tokens=1000, max_output_tokens=500)(lambda: None)() is None
    assert guard.usage(model="cheap").spent == Decimal("0.006")


def test_a_decorated_function(guard: Guard) -> None:
    """What it returns says what it used."""

    @guard.llm("cheap", input_tokens=100, max_output_tokens=100)
    def ask(question: str) -> dict[str, Any]:
        return {"answer": question, "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}}

    assert ask("why?")["answer"] == "why?"
    assert guard.usage(model="cheap").input_tokens == 7


def test_a_generator_is_no_function_that_asks_a_model(guard: Guard) -> None:
    """It returns before the model has answered: refused where it is written, with what to write instead."""

    def pieces() -> Any:
        yield 1

    async def apieces() -> Any:
        yield 1

    for function in (pieces, apieces):
        with pytest.raises(ConfigurationError, match=r"cannot meter the generator .*pieces.*guard\.llm_call"):
            guard.llm("cheap", max_output_tokens=100)(function)
    with pytest.raises(ConfigurationError, match="for a function that asks a model"):
        guard.llm("cheap")("cheap")  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_function_that_returns_what_is_to_be_awaited(guard: Guard) -> None:
    """It is metered to the end of that; one that nobody awaits is booked as reserved."""

    async def ask() -> dict[str, int]:
        return {"prompt_tokens": 7, "completion_tokens": 3}

    asked = guard.llm("cheap", max_output_tokens=100)(lambda: ask())
    assert asyncio.run(asked()) == {"prompt_tokens": 7, "completion_tokens": 3}
    assert guard.usage(model="cheap").output_tokens == 3
    dropped = ask()
    waiting = guard.llm("cheap", max_output_tokens=100)(lambda: dropped)()
    del waiting
    dropped.close()
    while guard.usage(model="cheap").reserved:
        gc.collect()
        time.sleep(0.001)
    assert guard.usage(model="cheap").output_tokens == 103


def test_a_dead_process_leaves_nothing_reserved(tmp_path: Path) -> None:
    """Nobody decides about a model's call: recovery books what it had reserved."""
    from sagaspan.testing import World

    def job(world: Any) -> None:
        guard = Guard(world.store, prices=CHEAP, budgets={"model:cheap": "1 USD"})
        with guard.run("r", id="r"), guard.llm_call("cheap", input_tokens=1000, max_output_tokens=500) as call:
            world.effect("asked")
            call.record_usage(input_tokens=1, output_tokens=1)

    with World(job) as world:
        world.process(job, die_at="asked: after effect")
        guard = Guard(world.store, prices=CHEAP, budgets={"model:cheap": "1 USD"})
        assert guard.usage(model="cheap").reserved == Decimal("0.006")
        guard.recover()
        assert guard.usage(model="cheap").reserved == 0
        assert guard.usage(model="cheap").remaining == Decimal("0.994")


def test_the_collector_does_not_settle_in_its_own_place(guard: Guard) -> None:
    """It comes in the middle of any line, one that holds the lock of the store too: another thread does the work."""
    threads: list[str] = []

    class Answer:
        """Lies in a cycle, as the streams of SDKs do, and is closed by its finalizer."""

        def __init__(self, call: Any) -> None:
            self.itself, self.call = self, call

        def __del__(self) -> None:
            self.call.__exit__(None, None, None)

    call = guard.llm_call("cheap", input_tokens=10, max_output_tokens=10).__enter__()
    call.streams()
    end = call.end

    async def watched(error: BaseException | None) -> None:
        await end(error)
        threads.append(threading.current_thread().name)

    call.end = watched  # type: ignore[method-assign]
    Answer(call)
    gc.collect()
    while not threads:
        time.sleep(0.001)
    assert threads == ["sagaspan-reaper"]
    assert guard.usage(model="cheap").reserved == 0


@pytest.mark.parametrize("model", [None, "", 5, lambda question: question])
def test_what_is_no_name_of_a_model_is_refused(guard: Guard, model: Any) -> None:
    """Where it is written, also of a decorator that was not called."""
    for wrong in (guard.llm_call, guard.llm):
        with pytest.raises(ConfigurationError, match=r"model=.* is "):
            wrong(model)


def test_what_is_said_outside_the_block_does_not_count(
    guard: Guard, warnings_of_sagaspan: Callable[[], list[str]]
) -> None:
    """Before it nothing is reserved, so it is an error; after it all is booked that was reserved, which is logged."""
    call = guard.llm_call("cheap", input_tokens=10, max_output_tokens=10)
    with pytest.raises(ConfigurationError, match="was not begun; record its usage in its block"):
        call.record_usage(input_tokens=1, output_tokens=1)
    with call:
        pass
    assert call.record_usage(input_tokens=1, output_tokens=1) is None
    assert "was booked when its block was left" in warnings_of_sagaspan()[-1]
    assert guard.usage(model="cheap").output_tokens == 10
