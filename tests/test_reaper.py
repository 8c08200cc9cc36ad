"""What somebody drops in the middle of a run is closed by the garbage collector, in the middle of anything."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sagaspan import ConfigurationError, Guard
from sagaspan._context import current_run
from sagaspan.stores import sqlite


@pytest.fixture(autouse=True)
def _nothing_is_collected_by_chance() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What finalizers raised."""
    raised: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: raised.append(found.exc_value))
    return raised


@pytest.fixture
def world() -> list[object]:
    """What happened."""
    return []


class Dropped:
    """Lies in a cycle, so that its reference count does not say that nobody has it."""

    def __init__(self, what: Any) -> None:
        self.itself, self.what = self, what


def drop_in_the_middle(steps: Iterator[Any]) -> None:
    next(steps)
    Dropped(steps)


def until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + 300
    while not happened() and time.monotonic() < end:
        time.sleep(0.001)
    assert happened()


def shop(guard: Guard, world: list[object]) -> Callable[[str], str]:
    @guard.tool("book", compensate=lambda room: world.append(f"cancel {room}"))
    def book(room: str) -> str:
        world.append(f"book {room}")
        return room

    return book


def booking(guard: Guard, book: Callable[[str], str]) -> Iterator[None]:
    with guard.run("dropped", id="dropped", on_interrupt="compensate"):
        book("a")
        yield


@pytest.mark.of_sqlite("a thread of another store has a connection of its own")
def test_a_run_is_not_left_by_the_thread_that_writes(
    guard: Guard, world: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait for itself, and whoever writes next for both."""
    book, write = shop(guard, world), sqlite._write
    drop_in_the_middle(booking(guard, book))

    def written(*args: Any) -> None:
        gc.collect()
        write(*args)

    def work() -> None:
        with guard.run("other"):
            book("b")

    monkeypatch.setattr(sqlite, "_write", written)
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    until(lambda: str(guard.runs.get("dropped").status) == "compensated")
    assert world == ["book a", "book b", "cancel a"]


def test_a_call_stays_in_its_run_when_an_earlier_one_is_closed(guard: Guard, world: list[object]) -> None:
    book = shop(guard, world)
    drop_in_the_middle(booking(guard, book))
    with guard.run("other", id="other"):
        gc.collect()
        book("b")
    assert [call.tool for call in guard.runs.get("other").calls] == ["book"]
    assert current_run.get() is None
    until(lambda: str(guard.runs.get("dropped").status) == "compensated")
    assert world == ["book a", "book b", "cancel b", "cancel a"]


def test_a_run_of_a_coroutine_that_nobody_awaits_is_left(guard: Guard, world: list[object]) -> None:
    async def work() -> None:
        async with guard.run("dropped", id="dropped", on_interrupt="compensate"):
            await book("a")
            await asyncio.sleep(60)

    @guard.tool("book", compensate=lambda room: world.append(f"cancel {room}"))
    async def book(room: str) -> None:
        world.append(f"book {room}")

    loop = asyncio.new_event_loop()
    working = loop.create_task(work())
    loop.run_until_complete(asyncio.wait([working], timeout=0.5))
    loop.close()
    Dropped(working)
    del working
    gc.collect()
    until(lambda: str(guard.runs.get("dropped").status) == "compensated")
    assert world == ["book a", "cancel a"]


def test_what_the_collector_would_begin_is_refused(guard: Guard, world: list[object], unraisable: list[Any]) -> None:
    """The rest of a generator may run at any line of any thread."""
    book = shop(guard, world)

    def steps() -> Iterator[None]:
        try:
            yield
        finally:
            book("late")

    drop_in_the_middle(steps())
    with guard.run("other"):
        gc.collect()
    assert world == []
    (error,) = unraisable
    assert isinstance(error, ConfigurationError)
    assert "closing" in str(error)
