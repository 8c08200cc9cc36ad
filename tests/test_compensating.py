"""Compensations that do not end: the caller waits for a bounded time, and nobody starts a second one meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sagaspan import CompensationFailed, Guard
from sagaspan import _backends as backends
from sagaspan import _owner as owner
from sagaspan import _retries as retries
from sagaspan import _rollback as rollback
from tests.conftest import Caller, Worker


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollback, "PATIENCE_SECONDS", 0.3)
    monkeypatch.setattr(rollback, "_LEAST_SECONDS", 0.1)
    monkeypatch.setattr(backends, "CANCEL_SECONDS", 0.05)


class Hanging:
    """A compensation that hangs until it is told to go on; asynchronous ones swallow their cancellation."""

    def __init__(self, caller: Caller) -> None:
        self.started: list[str] = []
        self.go_on = threading.Event()
        self.fails = False
        self._caller = caller

    def __call__(self, room: str) -> None:
        """As written by a synchronous program."""
        self.started.append(room)
        assert self.go_on.wait(60)
        self._end()

    async def anew(self, room: str) -> None:
        """As written by an asynchronous one."""
        self.started.append(room)
        deadline = time.monotonic() + 300
        while not self.go_on.is_set() and time.monotonic() < deadline:
            try:
                await asyncio.sleep(0.005)
            except asyncio.CancelledError:
                continue
        self._end()

    def _end(self) -> None:
        if self.fails:
            raise KeyError("no such room")

    @property
    def function(self) -> Callable[..., Any]:
        """The compensation."""
        return self.anew if self._caller.is_async else self.__call__


@pytest.fixture
def hanging(caller: Caller) -> Iterator[Hanging]:
    """A compensation that hangs, but not longer than its test."""
    hanging = Hanging(caller)
    yield hanging
    hanging.go_on.set()


class Trip:
    """A run of two steps, whose second one cannot be undone quickly."""

    def __init__(self, guard: Guard, caller: Caller, hanging: Hanging) -> None:
        self.guard, self.caller = guard, caller
        self.undone: list[str] = []

        def forget(city: str) -> None:
            self.undone.append(city)

        self.flight = caller.tool(guard, "flight", compensate=caller.body(forget))(lambda city: city)
        self.hotel = caller.tool(guard, "hotel", compensate=hanging.function)(lambda room: room)

    async def fail(self) -> CompensationFailed:
        """Play the run to its bad end."""
        with pytest.raises(CompensationFailed) as caught:
            async with self.caller.run(self.guard, id="trip"):
                await self.caller.call(self.flight, "Lisbon")
                await self.caller.call(self.hotel, "12")
                raise ValueError("no")
        return caught.value

    @property
    def states(self) -> dict[str, str]:
        """The state of the run and of its calls, compensations among them."""
        run = self.guard.runs.get("trip")
        names = {call.tool: call.state for call in run.calls if call.phase == "forward"}
        undo = [call.state for call in run.calls if call.tool in ("anew", "Hanging", "__call__")]
        return {"run": run.status, **names, "undo": undo[0]}

    async def until(self, **states: str) -> None:
        """Wait for states of calls or of the run, while the loop goes on if there is one."""

        def wait() -> None:
            deadline = time.monotonic() + 300
            while any(self.states[name] != state for name, state in states.items()):
                assert time.monotonic() < deadline, self.states
                time.sleep(0.01)

        if self.caller.is_async:
            await asyncio.to_thread(wait)
        else:
            wait()


@pytest.fixture
def trip(guard: Guard, caller: Caller, hanging: Hanging) -> Trip:
    """A run of two steps."""
    return Trip(guard, caller, hanging)


def test_the_caller_does_not_wait_for_ever(trip: Trip, hanging: Hanging, caller: Caller) -> None:
    """It is told that the step is not undone yet; the older ones are; the late end is evidence and closes the run."""
    held_before = set(owner._alive)

    async def job() -> None:
        error = await trip.fail()
        assert "NOT undone yet, because what undoes it still runs: hotel" in str(error)
        assert "a person must look" not in str(error)
        assert trip.undone == ["Lisbon"]
        assert trip.states == {
            "run": "partially_compensated", "flight": "compensated", "hotel": "compensation_failed", "undo": "running"
        }  # fmt: skip
        (row,) = [row for row in trip.guard._store.audit_of("default", "trip") if row.event == "compensation_failed"]
        assert row.detail is not None
        assert row.detail.endswith("did not end within 0.3 s; it still runs")
        hanging.go_on.set()
        await trip.until(run="compensated", hotel="compensated", undo="done")

    caller.play(job)
    assert hanging.started == ["12"]
    assert not [token for token in owner._alive if not token.startswith("run:") and token not in held_before]


def test_no_second_one_is_started_while_the_first_still_runs(
    trip: Trip, hanging: Hanging, caller: Caller, monkeypatch: pytest.MonkeyPatch, worker: Worker
) -> None:
    """Neither on request nor by recovery, here or elsewhere; once it has failed it is tried again."""
    monkeypatch.setattr(retries, "_FIRST_PAUSE_US", 0)
    hanging.fails = True

    async def job() -> None:
        await trip.fail()
        with pytest.raises(CompensationFailed, match="still runs"):
            await caller.call(trip.guard.acompensate if caller.is_async else trip.guard.compensate, "trip")
        recover = trip.guard.arecover if caller.is_async else trip.guard.recover
        assert [run.id for run in (await caller.call(recover)).waiting] == ["trip"]
        elsewhere = worker.run("""
        guard.tool("hotel", compensate=lambda room: effect("again"))(lambda room: room)
        for name in ("__call__", "anew"):
            guard._engine.known._compensations["hotel", name] = guard._engine.known._compensations["hotel", "<lambda>"]
        print([run.id for run in guard.recover().waiting])
        """)
        assert (elsewhere.stdout.strip(), elsewhere.stderr) == ("['trip']", "")
        assert hanging.started == ["12"]
        hanging.go_on.set()
        await trip.until(undo="unknown", hotel="compensation_failed")
        hanging.fails = False
        assert [run.id for run in (await caller.call(recover)).compensated] == ["trip"]

    caller.play(job)
    assert hanging.started == ["12", "12"]
    assert worker.effects == []


def test_an_end_while_the_older_steps_are_undone_still_counts(guard: Guard, caller: Caller, hanging: Hanging) -> None:
    """What was still running when its step was given up may end before the rollback does."""
    trip = Trip(guard, caller, hanging)

    def wait_for_the_newer(city: str) -> None:
        hanging.go_on.set()
        deadline = time.monotonic() + 300
        while guard.runs.get("trip").calls[1].state != "compensated":
            assert time.monotonic() < deadline
            time.sleep(0.005)

    async def await_the_newer(city: str) -> None:
        await asyncio.to_thread(wait_for_the_newer, city)

    undo = await_the_newer if caller.is_async else wait_for_the_newer
    slow = guard.tool("slow", effect="write", timeout=30)(undo)
    trip.flight = caller.tool(guard, "train", compensate=slow)(lambda city: city)
    caller.play(trip.fail)
    assert guard.runs.get("trip").status == "compensated"


def test_a_compensation_that_needs_longer_is_a_tool_that_says_so(guard: Guard, caller: Caller) -> None:
    """The ``timeout`` of a tool that is named as the compensation is how long its caller waits."""

    def slow(city: str) -> None:
        time.sleep(0.5)

    async def aslow(city: str) -> None:
        await asyncio.sleep(0.5)

    guard.tool("unbook", effect="idempotent", timeout=30)(aslow if caller.is_async else slow)
    book = caller.tool(guard, "book", compensate="unbook")(lambda city: city)

    async def job() -> None:
        with pytest.raises(ValueError, match="no"):
            async with caller.run(guard, id="trip"):
                await caller.call(book, "Lisbon")
                raise ValueError("no")

    caller.play(job)
    assert guard.runs.get("trip").status == "compensated"


async def test_an_undo_is_not_cancelled_by_a_second_cancellation(guard: Guard) -> None:
    """However often the task is cancelled, its rollback goes on to its end."""
    paid, began, undone = asyncio.Event(), asyncio.Event(), []

    async def refund(n: int) -> None:
        began.set()
        await asyncio.sleep(0.1)
        undone.append(n)

    @guard.tool("pay", compensate=refund)
    async def pay(n: int) -> int:
        return n

    async def job() -> None:
        async with guard.run(id="r", on_interrupt="compensate"):
            await pay(1)
            await pay(2)
            paid.set()
            await asyncio.sleep(60)

    task = asyncio.ensure_future(job())
    await paid.wait()
    task.cancel()
    await began.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.02)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert undone == [2, 1]
    assert guard.runs.get("r").status == "compensated"


def test_a_second_interrupt_leaves_the_rest_to_recovery(guard: Guard) -> None:
    """Ctrl-C in the middle of a compensation is no failure of it: the rollback stops, and somebody goes on with it."""
    interrupted: list[str] = []

    def undo(city: str) -> None:
        if not interrupted:
            interrupted.append(city)
            raise KeyboardInterrupt

    book = guard.tool("book", compensate=undo)(lambda city: city)
    with pytest.raises(KeyboardInterrupt), guard.run(id="trip"):
        book("Lisbon")
        book("Porto")
        raise ValueError("no")
    run = guard.runs.get("trip")
    assert (run.status, [call.state for call in run.calls[:2]]) == ("compensating", ["done", "compensating"])
    guard.compensate("trip")
    assert guard.runs.get("trip").status == "compensated"
