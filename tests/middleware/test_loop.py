"""Loops: refused where they lead nowhere, durable with the run, and never mistaken for polling."""

from __future__ import annotations

import contextlib
import itertools

import pytest

from sagaspan import ConfigurationError, Guard, LoopDetected, RunClosed
from sagaspan.testing import frozen_clock
from tests.conftest import Caller


def test_the_sixth_equal_call_is_refused(guard: Guard, caller: Caller) -> None:
    """Five equal calls with equal results are allowed; the error has the count and the signature."""
    ran: list[int] = []

    @caller.tool(guard, effect="read")
    def look(n: int) -> str:
        ran.append(n)
        return "same"

    async def job() -> None:
        async with caller.run(guard):
            for _ in range(6):
                await caller.call(look, 1)

    with pytest.raises(LoopDetected) as caught:
        caller.play(job)
    assert (caught.value.count, len(ran)) == (6, 5)
    assert caught.value.signature.startswith("look|")


def test_the_third_refusal_stops_the_run(guard: Guard) -> None:
    """Two refusals can be handled; the third ends the run, with reason loop, and undoes it."""
    undone: list[int] = []
    book = guard.tool("book", compensate=lambda n: undone.append(n))(lambda n: n)
    look = guard.tool("look", effect="read")(lambda: "same")

    def job() -> None:
        with guard.run("r", id="r"):
            book(1)
            for _ in range(5):
                look()
            for _ in range(3):
                with pytest.raises(LoopDetected):
                    look()
            with pytest.raises(RunClosed):
                book(2)

    with pytest.raises(LoopDetected):
        job()
    assert undone == [1]
    assert (guard.runs.get("r").status, guard.runs.get("r").reason) == ("compensated", "loop")


def test_polling_is_slowed_and_never_refused(guard: Guard) -> None:
    """Equal arguments with changing results; the pauses grow to five seconds."""
    numbers = itertools.count()
    with frozen_clock() as clock:
        poll = guard.tool("poll", effect="read")(lambda: next(numbers))
        with guard.run("r"):
            before = clock.now
            assert [poll() for _ in range(20)] == list(range(20))
            assert (clock.now - before).total_seconds() > 5


@pytest.mark.parametrize("loop", [False, 50])
def test_a_tool_may_say_otherwise(guard: Guard, loop: int | bool) -> None:
    """A poller of equal results says so."""
    look = guard.tool("look", effect="read", loop=loop)(lambda: "pending")
    with guard.run("r"):
        assert {look() for _ in range(20)} == {"pending"}


def test_a_loop_goes_on_after_a_crash(guard: Guard) -> None:
    """What was counted before a run was interrupted counts after it was resumed; what is replayed counts once."""
    look = guard.tool("look", effect="read")(lambda: "same")
    with pytest.raises(KeyboardInterrupt), guard.run("r", id="r", on_interrupt="hold"):
        for _ in range(4):
            look()
        raise KeyboardInterrupt
    with pytest.raises(LoopDetected), guard.run("r", id="r"):
        for _ in range(4):
            look()
        look()
        look()


def test_repeats_that_the_ledger_answers_count(guard: Guard) -> None:
    """A write done once and asked for again and again is a loop too."""
    pay = guard.tool("pay", effect="write")(lambda n: "paid")
    with pytest.raises(LoopDetected), guard.run("r"):
        for _ in range(6):
            assert pay(1) == "paid"


def test_the_third_refusal_of_check_loop_stops_the_run(guard: Guard) -> None:
    """Whoever swallows the error: the next call does not run, and the run is not completed."""
    look = guard.tool("look", effect="read")(lambda: "seen")
    run = guard.run("r", id="r")
    with pytest.raises(LoopDetected, match="so the run stops"), run:
        guard.check_loop("search", {"q": "x"}, allowed=1)
        for _ in range(3):
            with contextlib.suppress(LoopDetected):
                guard.check_loop("search", {"q": "x"}, allowed=1)
        look()
    assert (guard.runs.get("r").status, guard.runs.get("r").reason) == ("failed", "loop")
    assert not [call for call in guard.runs.get("r").calls if call.state == "done"]


def test_check_loop_refuses_arguments_without_names(guard: Guard) -> None:
    """As what they are: an error of the one who wrote it."""
    with pytest.raises(ConfigurationError, match=r"check_loop\('t'\): its arguments are a list; pass a mapping"):
        guard.check_loop("t", ["x"])  # type: ignore[arg-type]


def test_check_loop_counts_calls_made_elsewhere(guard: Guard) -> None:
    """AgentFuse's check: the sixth identical call fails, whatever else was called between."""
    for n in range(5):
        guard.check_loop("search", {"q": "x"})
        guard.check_loop("search", {"q": f"other {n}"})
    with pytest.raises(LoopDetected) as caught:
        guard.check_loop("search", {"q": "x"})
    assert caught.value.count == 6
    with guard.run("r"):
        guard.check_loop("search", {"q": "x"})
