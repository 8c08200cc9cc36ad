"""Leaving a run while something in it still goes on: no undo comes before its action, and nothing begins after it."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

from sagaspan import Applied, Guard, OutcomeUnknown, RunClosed, ToolTimeout
from sagaspan import _backends as backends
from sagaspan import _leaving as leaving
from sagaspan.testing import frozen_clock


def until(true: Callable[[], Any]) -> None:
    """Wait for a condition; other threads bring it about."""
    deadline = time.monotonic() + 300
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def thread(job: Callable[[], Any]) -> threading.Thread:
    """A thread that is in the run of its maker."""
    worker = threading.Thread(target=contextvars.copy_context().run, args=(job,), daemon=True)
    worker.start()
    return worker


class Shop:
    """A shop whose payments take until they are told to go on, and which writes down what happens."""

    def __init__(self, guard: Guard, **policy: Any) -> None:
        self.log: list[str] = []
        self.go_on = threading.Event()
        self.started = threading.Event()
        self.pay = guard.tool("pay", compensate=self._refund, **policy)(self._pay)
        self.apay = guard.tool("apay", compensate=self._refund, **policy)(self._apay)
        self.look = guard.tool("look", compensate=self._refund)(self._look)

    def _pay(self, order: str) -> str:
        self.started.set()
        assert self.go_on.wait(60)
        self.log.append(f"paid {order}")
        return order

    async def _apay(self, order: str) -> str:
        self.started.set()
        deadline = time.monotonic() + 300
        while not self.go_on.is_set() and time.monotonic() < deadline:
            with contextlib.suppress(asyncio.CancelledError):  # it has its own mind
                await asyncio.sleep(0.005)
        self.log.append(f"paid {order}")
        return order

    def _look(self, order: str) -> str:
        self.log.append(f"paid {order}")
        return order

    def _refund(self, order: str) -> None:
        self.log.append(f"refunded {order}")


async def test_a_cancelled_run_waits_for_the_thread_of_its_tool(guard: Guard) -> None:
    """Cancelling does not stop a thread: it is waited for, and what it did is undone."""
    shop = Shop(guard)

    async def job() -> None:
        async with guard.run(id="r", on_interrupt="compensate"):
            await asyncio.to_thread(shop.pay, "1")

    task = asyncio.ensure_future(job())
    await asyncio.to_thread(shop.started.wait, 20)
    task.cancel()
    await asyncio.sleep(0.05)
    shop.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert shop.log == ["paid 1", "refunded 1"]
    assert guard.runs.get("r").status == "compensated"


async def test_so_it_does_where_the_tool_is_awaited(guard: Guard) -> None:
    """A synchronous body that an asynchronous caller gave up is watched, and waited for before its step is undone."""
    shop = Shop(guard)
    tool = guard.define(shop._pay, name="pay", policy=guard._engine.known.tools["pay"].policy)

    async def job() -> None:
        async with guard.run(id="r", on_interrupt="compensate"):
            await guard.acall_tool(tool, {"order": "1"}, lambda given: shop._pay(**given))

    task = asyncio.ensure_future(job())
    await asyncio.to_thread(shop.started.wait, 20)
    task.cancel()
    await asyncio.sleep(0.05)
    assert not task.done()
    shop.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert shop.log == ["paid 1", "refunded 1"]
    assert guard.runs.get("r").status == "compensated"


@pytest.mark.parametrize("timed_out", [False, True])
def test_after_the_grace_nothing_is_undone_whose_body_still_runs(
    guard: Guard, monkeypatch: pytest.MonkeyPatch, timed_out: bool
) -> None:
    """The run is held; once the body has ended, recovery undoes what it did."""
    monkeypatch.setattr(leaving, "GRACE_SECONDS", 0.1)
    shop = Shop(guard, timeout=0.05 if timed_out else None)

    def job() -> None:
        with contextlib.suppress(ToolTimeout):
            shop.pay("1")

    with pytest.raises(ValueError, match="no"), guard.run(id="r"):
        shop.look("0")
        worker = thread(job)
        assert shop.started.wait(60)
        if timed_out:
            worker.join()
        raise ValueError("no")
    assert shop.log == ["paid 0"]
    assert guard.runs.get("r").status == "held"
    with pytest.raises(OutcomeUnknown):
        guard.compensate("r")
    assert not guard.recover().compensated
    shop.go_on.set()
    until(lambda: guard.runs.get("r").calls[-1].state == "done")
    assert [run.id for run in guard.recover().compensated] == ["r"]
    assert shop.log == ["paid 0", "paid 1", "refunded 1", "refunded 0"]


async def test_nor_by_an_asynchronous_run(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that goes on beside the block, and swallows its cancellation, is a call in flight like others."""
    monkeypatch.setattr(leaving, "GRACE_SECONDS", 0.1)
    monkeypatch.setattr(backends, "CANCEL_SECONDS", 0.02)
    shop = Shop(guard, timeout=20)
    with pytest.raises(ValueError, match="no"):
        async with guard.run(id="r"):
            task = asyncio.ensure_future(shop.apay("1"))
            await asyncio.to_thread(shop.started.wait, 20)
            raise ValueError("no")
    assert (shop.log, guard.runs.get("r").status) == ([], "held")
    task.cancel()
    await asyncio.wait([task])
    assert guard.runs.get("r").calls[0].state == "unknown"
    with pytest.raises(OutcomeUnknown):
        await guard.acompensate("r")
    shop.go_on.set()
    await asyncio.to_thread(until, lambda: guard.runs.get("r").calls[0].state == "done")
    assert [run.id for run in (await guard.arecover()).compensated] == ["r"]
    assert shop.log == ["paid 1", "refunded 1"]


def test_a_doubt_may_be_over_while_the_run_waits(guard: Guard) -> None:
    """A body that outlived its timeout ends within the grace: nothing is in doubt any more, so the run is undone."""
    shop = Shop(guard, timeout=0.05)
    with pytest.raises(ValueError, match="no"), guard.run(id="r"):
        with pytest.raises(ToolTimeout):
            shop.pay("1")
        threading.Timer(0.1, shop.go_on.set).start()
        raise ValueError("no")
    assert shop.log == ["paid 1", "refunded 1"]
    assert guard.runs.get("r").status == "compensated"


def test_a_timeout_itself_is_not_waited_for(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that ``ToolTimeout`` leaves is held at once: its caller set the time that he is ready to wait."""
    monkeypatch.setattr(leaving, "GRACE_SECONDS", 3600.0)
    shop = Shop(guard, timeout=0.05)
    with pytest.raises(ToolTimeout), guard.run(id="r"):
        shop.pay("1")
    assert guard.runs.get("r").status == "held"
    shop.go_on.set()


def test_what_a_probe_has_seen_is_not_undone_while_its_body_still_runs(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It happened, but it may not be all of it: the undo waits for the end of the body, here and on request."""
    monkeypatch.setattr(leaving, "GRACE_SECONDS", 0.1)
    shop = Shop(guard, timeout=0.05, probe=lambda order: Applied(order))
    with pytest.raises(ValueError, match="no"), guard.run(id="r"):
        with pytest.raises(ToolTimeout):
            shop.pay("1")
        raise ValueError("no")
    run = guard.runs.get("r")
    assert (run.status, run.calls[0].state, shop.log) == ("held", "done", [])
    with pytest.raises(OutcomeUnknown, match="its body still runs"):
        guard.compensate("r")
    assert not guard.recover().compensated
    shop.go_on.set()
    until(lambda: guard.recover().compensated)
    assert shop.log == ["paid 1", "refunded 1"]


@pytest.mark.parametrize("nested", [False, True])
def test_nothing_begins_once_a_run_is_left_to_be_undone(
    guard: Guard, nested: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that goes on calling, also in a nested run, is refused from then on; what it did is undone."""
    monkeypatch.setattr(leaving, "GRACE_SECONDS", 2.0)
    shop = Shop(guard)
    refused: list[Exception] = []
    busy = threading.Event()

    def work() -> None:
        for number in range(3_000):
            try:
                shop.look(str(number))
            except RunClosed as error:
                refused.append(error)
                return
            busy.set()

    def work_inside() -> None:
        with contextlib.suppress(Exception), guard.run("inner", id="inner"):
            work()

    with pytest.raises(ValueError, match="no"), guard.run(id="r"):
        worker = thread(work_inside if nested else work)
        assert busy.wait(60)
        raise ValueError("no")
    worker.join(60)
    assert refused
    assert "ends and is undone; tool 'look' did not run" in str(refused[0])
    paid = [entry for entry in shop.log if entry.startswith("paid")]
    assert [entry.replace("refunded", "paid") for entry in reversed(shop.log[len(paid) :])] == paid
    assert guard.runs.get("r").status == "compensated"


async def test_so_are_the_tasks_beside_the_one_that_failed(guard: Guard) -> None:
    """``gather`` does not stop the others: they are refused, and what they did is undone."""
    shop, outcomes, began = Shop(guard), [], asyncio.Event()

    async def fails() -> None:
        await began.wait()
        raise ValueError("no")

    async def goes_on() -> None:
        try:
            for number in range(3_000):
                shop.look(str(number))
                began.set()
                await asyncio.sleep(0)
        except RunClosed as error:
            outcomes.append(error)

    async def agent() -> None:
        with contextlib.suppress(Exception):
            async with guard.run("inner"):
                await goes_on()

    with pytest.raises(ValueError, match="no"):
        async with guard.run(id="r"):
            others = [asyncio.ensure_future(goes_on()), asyncio.ensure_future(agent())]
            await asyncio.gather(fails(), *others)
    await asyncio.wait(others)
    assert len(outcomes) == 2
    assert sum(entry.startswith("refunded") for entry in shop.log) * 2 == len(shop.log)


def test_a_nested_run_is_not_entered_once_the_outer_one_is_undone(guard: Guard) -> None:
    """It would go on by itself, and nobody would undo it."""
    shop = Shop(guard)
    with guard.run(id="r") as run:
        shop.look("1")
        run.abort("enough")
        with pytest.raises(RunClosed, match="the run 'inner' was not entered"):
            guard.run("inner", id="inner").__enter__()
    assert guard.runs.get("r").status == "compensated"


def test_a_nested_run_that_rolls_back_is_waited_for(guard: Guard) -> None:
    """Two rollbacks of one step never meet: that of the outer run begins when the inner one is over."""
    log: list[str] = []
    undoing, go_on = threading.Event(), threading.Event()

    def undo(order: str) -> None:
        undoing.set()
        go_on.wait(4)
        log.append(f"undone {order}")

    book = guard.tool("book", compensate=undo)(lambda order: order)

    def inner() -> None:
        with contextlib.suppress(ValueError), guard.run("inner", id="inner"):
            book("1")
            raise ValueError("inner")

    with pytest.raises(ValueError, match="outer"), guard.run(id="r"):
        worker = thread(inner)
        assert undoing.wait(60)
        threading.Timer(0.1, go_on.set).start()
        raise ValueError("outer")
    worker.join()
    assert log == ["undone 1"]
    assert guard.runs.get("inner").status == "compensated"


def test_a_nested_run_whose_end_is_interrupted_is_not_waited_for(store_url: str) -> None:
    """Ctrl-C while the exporter sends its span: the run around it is left at once, not after the grace."""

    class Exporter(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            if span.name == "sagaspan inner":
                raise KeyboardInterrupt

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Exporter())
    with Guard(store_url, tracer_provider=provider) as guard, frozen_clock() as clock:
        began = clock.now
        with pytest.raises(KeyboardInterrupt), guard.run("outer", id="r"), guard.run("inner"):
            pass
        assert clock.now == began


def test_a_rollback_two_runs_deeper_is_waited_for(guard: Guard) -> None:
    """However deep it is nested."""
    log: list[str] = []
    undoing, go_on = threading.Event(), threading.Event()

    def undo(order: str) -> None:
        undoing.set()
        go_on.wait(4)
        log.append(f"undone {order}")

    book = guard.tool("book", compensate=undo)(lambda order: order)

    def inner() -> None:
        with contextlib.suppress(ValueError), guard.run("middle"), guard.run("inner"):
            book("1")
            raise ValueError("inner")

    with pytest.raises(ValueError, match="outer"), guard.run(id="r") as run:
        worker = thread(inner)
        assert undoing.wait(60)
        threading.Timer(0.1, go_on.set).start()
        raise ValueError("outer")
    worker.join()
    assert log == ["undone 1"]
    assert [(one.name, one.status) for one in guard.runs.list() if one.id != run.id] == [
        ("inner", "compensated"), ("middle", "failed")
    ]  # fmt: skip
