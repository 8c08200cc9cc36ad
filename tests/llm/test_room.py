"""Calls of models beside each other: what another one has reserved cuts no answer that could have it a little later,
and nobody waits for what can only end after him (rule book (c) 5, 6)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from typing import Any

import pytest

from sagaspan import BudgetExceeded, Guard, StoreUnavailable


@pytest.fixture
def guard(store_url: str) -> Iterator[Guard]:
    """Each run has 4000 tokens."""
    with Guard(store_url, budget="4000 tokens") as guard:
        yield guard


@contextlib.contextmanager
def _another(guard: Guard, tokens: int) -> Iterator[Callable[[], None]]:
    """A call in another thread of the run has reserved so much, until it is told to end."""
    began, may_end = threading.Event(), threading.Event()

    def ask() -> None:
        with guard.llm_call("gpt-4o", input_tokens=0, max_output_tokens=tokens) as call:
            began.set()
            assert may_end.wait(60)
            call.record_usage(output_tokens=10)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(copy_context().run, ask)
        assert began.wait(60)
        try:
            yield may_end.set
        finally:
            may_end.set()
            done.result(30)


def test_an_answer_is_not_cut_to_what_others_have_left(guard: Guard) -> None:
    """It waits for what they give back, and then has what there is."""
    with guard.run("r"), _another(guard, 3900) as end:
        threading.Timer(0.05, end).start()
        with guard.llm_call("gpt-4o", input_tokens=10, limit_output=True) as call:
            assert call.output_limit is not None
            assert call.output_limit > 1500
            call.record_usage(input_tokens=10, output_tokens=1)


def test_an_answer_is_cut_to_what_is_left_for_good(guard: Guard) -> None:
    """Nobody waits for what was spent, or for what is held around him."""
    with guard.run("r"):
        with guard.llm_call("gpt-4o", input_tokens=0, max_output_tokens=3600) as call:
            with guard.llm_call("gpt-4o", input_tokens=10, limit_output=True) as inner:
                assert inner.output_limit == 190
                inner.record_usage(input_tokens=10, output_tokens=1)
            call.record_usage(output_tokens=3600)
        with guard.llm_call("gpt-4o", input_tokens=10, limit_output=True) as last:
            assert last.output_limit == 184
            last.record_usage(input_tokens=10, output_tokens=1)


def test_a_request_without_a_limit_is_sent_in_an_outage(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one with a limit is, where ``fail_open`` lets it by: nobody can read what is left."""

    def down(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("the ledger cannot be read")

    with Guard(store_url, fail_open=True) as guard:
        for name in ("commit", "controls_of"):
            monkeypatch.setattr(guard._store, name, down)
        with guard.llm_call("gpt-4o", input_tokens=10, limit_output=True) as call:
            assert call.output_limit is None
            call.record_usage(input_tokens=10, output_tokens=1)
        monkeypatch.undo()


def test_a_stream_waits_for_what_another_call_gives_back(guard: Guard) -> None:
    """It goes on past its limit, and is not cut for what is only reserved."""
    with (
        guard.run("r", id="r"),
        _another(guard, 3700) as end,
        guard.llm_call("gpt-4o", input_tokens=10, max_output_tokens=100) as call,
    ):
        call.streams()
        threading.Timer(0.05, end).start()
        call.cover(1500)
        call.record_usage(input_tokens=10, output_tokens=1500)
    assert guard.runs.get("r").status == "completed"


def test_a_stream_that_waits_in_vain_ends_no_run(guard: Guard) -> None:
    """What stands in its way ends only after it: it is cut at once, and the run goes on."""
    with guard.run("r", id="r"):
        with guard.llm_call("gpt-4o", input_tokens=0, max_output_tokens=3800) as outer:
            with guard.llm_call("gpt-4o", input_tokens=10, max_output_tokens=100) as call:
                call.streams()
                with pytest.raises(
                    BudgetExceeded, match="held by 'chat gpt-4o', which can only end after it"
                ) as caught:
                    call.cover(500)
                call.record_usage(input_tokens=10, output_tokens=500)
            outer.record_usage(output_tokens=10)
        with guard.llm_call("gpt-4o", input_tokens=10, max_output_tokens=1000) as call:
            call.record_usage(input_tokens=10, output_tokens=10)
    assert (caught.value.in_flight, caught.value.tool_ran) == (True, "yes")
    assert guard.runs.get("r").status == "completed"


def test_a_limit_below_what_a_stream_holds_itself_ends_the_run(guard: Guard) -> None:
    """Nothing beside it stands in its way."""
    with (
        pytest.raises(BudgetExceeded) as caught,
        guard.run("r", id="r"),
        guard.llm_call("gpt-4o", input_tokens=10, max_output_tokens=100) as call,
    ):
        call.streams()
        guard.set_budget("run:r", "105 tokens")
        call.cover(101)
    assert not caught.value.in_flight
    assert guard.runs.get("r").reason == "budget"


def test_two_streams_that_wait_for_each_other(guard: Guard) -> None:
    """The one that came last is cut, and the other one goes on with what that gives back."""
    both, cut = threading.Barrier(2), []

    def ask() -> None:
        with guard.llm_call("gpt-4o", input_tokens=0, max_output_tokens=1900) as call:
            call.streams()
            both.wait(60)
            try:
                call.cover(2200)
                call.record_usage(output_tokens=1500)
            except BudgetExceeded as error:
                cut.append(error)
                call.record_usage(output_tokens=1000)

    with guard.run("r", id="r"), ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(copy_context().run, ask) for _ in range(2)]:
            done.result(60)
    (error,) = cut
    assert error.in_flight
    assert "would wait for this one, as it for them" in str(error)
    assert guard.runs.get("r").status == "completed"


async def test_nobody_waits_for_an_answer_that_was_opened_in_a_task_of_its_own(guard: Guard) -> None:
    """Once that task is over nobody reads on, and once this one reads it can only end after it."""
    look = guard.tool("look", effect="read", cost="0.5 USD", timeout=5)(_look)
    async with guard.run("r", budget="1 USD, 1M tokens"):
        call = guard.llm_call("gpt-4o", input_tokens=0, max_output_tokens=90_000)

        async def open_it() -> None:
            await call.__aenter__()
            call.streams()

        await asyncio.create_task(open_it())
        for _ in range(2):
            with pytest.raises(BudgetExceeded, match="which can only end after it"):
                await look()
            call.reads()
        call.record_usage(output_tokens=1)
        await call.__aexit__(None, None, None)


async def test_an_answer_that_another_task_reads_is_waited_for(guard: Guard) -> None:
    """Whoever opened it."""
    waits, may_end = guard.llm_call("gpt-4o", input_tokens=0, max_output_tokens=1000), asyncio.Event()
    async with guard.run("r"):
        call = guard.llm_call("gpt-4o", input_tokens=0, max_output_tokens=3800)

        async def read() -> None:
            call.reads()
            await may_end.wait()
            call.record_usage(output_tokens=1)
            await call.__aexit__(None, None, None)

        async def ask() -> None:
            asyncio.get_running_loop().call_later(0.05, may_end.set)
            async with waits:
                waits.record_usage(output_tokens=1)

        await call.__aenter__()
        call.streams()
        reader = asyncio.create_task(read())
        await asyncio.sleep(0)
        # Not in this context, which opened it and would be what it ends after.
        await asyncio.create_task(ask(), context=_outside())
        await reader


async def _look() -> int:
    return 1


def _outside() -> Context:
    from sagaspan._context import calls_held

    context = copy_context()
    context.run(calls_held.set, ())
    return context
