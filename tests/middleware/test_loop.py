"""Loops: refused where they lead nowhere, durable with the run, and never mistaken for polling."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import itertools
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from sagaspan import ConfigurationError, Guard, LoopDetected, NotApplied, RunClosed
from sagaspan.testing import frozen_clock
from tests.conftest import Caller, Sql


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


def test_calls_outside_a_run_have_no_loop_rule(guard: Guard, caller: Caller) -> None:
    """Six users may ask one process the same; polls are not slowed, failures not counted, either."""
    look = caller.tool(guard, "look", effect="read")(lambda: "same")
    numbers = itertools.count()
    poll = caller.tool(guard, "poll", effect="read")(lambda: next(numbers))

    def fail() -> None:
        raise NotApplied("nothing to do")

    broken = caller.tool(guard, "broken", effect="read")(fail)

    async def job() -> None:
        for _ in range(12):
            assert await caller.call(look) == "same"
            await caller.call(poll)
        for _ in range(12):
            with pytest.raises(NotApplied):
                await caller.call(broken)

    with frozen_clock() as clock:
        before = clock.now
        caller.play(job)
        assert clock.now == before


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


def test_what_check_loop_counted_counts_after_a_restart(guard: Guard, store_url: str) -> None:
    """Calls and refusals: whoever resumes the run, in another process, goes on counting, and it is stopped.

    As of guarded tools: the calls that it made before are come by once more, and count once.
    """
    search = functools.partial(_check, "search", {"q": "x"})
    with pytest.raises(KeyboardInterrupt), guard.run("r", id="r", on_interrupt="hold"):
        for _ in range(4):
            search(guard)
        raise KeyboardInterrupt
    assert [_in_another_process(store_url) for _ in range(2)] == ["5 calls, call 6 refused"] * 2
    with pytest.raises(LoopDetected, match="third time, so the run stops"), guard.run("r", id="r"):
        for _ in range(6):
            search(guard)
    assert guard.runs.get("r").reason == "loop"


def test_a_resumed_run_counts_what_it_checks_again_once(guard: Guard) -> None:
    """A job of three equal calls that crashes and crashes is no loop, and nothing is rolled back."""
    search = functools.partial(_check, "search", {"q": "x"}, guard)
    for _ in range(4):
        assert _interrupted(guard, *[search] * 3) == [None] * 3
    assert _interrupted(guard, *[search] * 6) == [None] * 5 + [6]


def test_a_reopened_run_begins_anew(guard: Guard) -> None:
    """Of what was counted, and of what its calls brought."""
    look = guard.tool("look", effect="read")(lambda: "same")
    for reopen in (False, True):
        with guard.run("r", id="r", reopen=reopen):
            for _ in range(5):
                look()
                guard.check_loop("search")


def _check(tool: str, args: dict[str, str], guard: Guard) -> None:
    guard.check_loop(tool, args)


RESUMES = """
import os, sys
from sagaspan import Guard, LoopDetected
guard = Guard(sys.argv[1])
guard.run("r", id="r", on_interrupt="hold").__enter__()
calls = 0
try:
    while True:
        guard.check_loop("search", {"q": "x"})
        calls += 1
except LoopDetected as error:
    print(f"{calls} calls, call {error.count} refused", flush=True)
os._exit(9)
"""


def _in_another_process(store_url: str) -> str:
    ran = subprocess.run([sys.executable, "-c", RESUMES, store_url], capture_output=True, text=True, check=False)
    assert ran.returncode == 9, ran.stderr
    return ran.stdout.strip()


def _interrupted(guard: Guard, *calls: Callable[[], Any]) -> list[Any]:
    """What calls of one incarnation of the run come to; then it is interrupted."""
    come: list[Any] = []
    with contextlib.suppress(KeyboardInterrupt), guard.run("r", id="r", on_interrupt="hold"):
        for call in calls:
            try:
                come.append(call())
            except LoopDetected as error:
                come.append(error.count)
        raise KeyboardInterrupt
    return come


def test_what_the_ledger_answers_again_counts_after_a_restart(guard: Guard) -> None:
    """A write that was done once and is asked for again and again is a loop of all incarnations; replays are not."""
    pay = guard.tool("pay", effect="write")(lambda n: "paid")
    once = functools.partial(pay, 1)
    assert _interrupted(guard, *[once] * 3) == ["paid"] * 3
    assert _interrupted(guard, *[once] * 3) == ["paid"] * 3
    assert _interrupted(guard, *[once] * 6) == ["paid"] * 5 + [6]
    assert _interrupted(guard, *[once] * 6) == ["paid"] * 5 + [6]


def test_what_is_replayed_is_never_refused(guard: Guard) -> None:
    """Five calls were allowed, so five are replayed; the sixth is refused, in each incarnation."""
    with frozen_clock() as clock:
        look = guard.tool("look", effect="read")(lambda: "same")
        assert _interrupted(guard, *[look] * 5) == ["same"] * 5
        clock.advance(1)
        assert _interrupted(guard, *[look] * 6) == ["same"] * 5 + [6]
        clock.advance(1)
        numbers = itertools.count()
        poll = guard.tool("poll", effect="read")(lambda: next(numbers))
        assert _interrupted(guard, *[look] * 5, *[poll] * 9)[5:] == list(range(9))
        clock.advance(1)
        before = clock.now
        assert _interrupted(guard, *[look] * 5, *[poll] * 9)[5:] == list(range(9))
        assert (clock.now - before).total_seconds() < 0.1  # nor is what is replayed slowed


def test_calls_of_models_hide_no_loop_after_a_restart(guard: Guard) -> None:
    """An agent asks its model before each call; a resumed run sees the same tail as one that went on."""
    look = guard.tool("look", effect="read")(lambda: "same")

    def ask() -> None:
        with guard.llm_call("gpt-4o", input_tokens=10, max_output_tokens=10) as call:
            call.record_usage(input_tokens=1, output_tokens=1)

    assert _interrupted(guard, *[ask, look] * 5)[1::2] == ["same"] * 5
    assert _interrupted(guard, *[ask, look] * 6)[1::2] == ["same"] * 5 + [6]


def test_refusals_of_all_incarnations_stop_the_run(guard: Guard) -> None:
    """Two before a restart and one after it are three."""
    look = guard.tool("look", effect="read")(lambda: "same")
    assert _interrupted(guard, *[look] * 7) == ["same"] * 5 + [6, 6]
    with pytest.raises(LoopDetected, match="third time"), guard.run("r", id="r"):
        for _ in range(6):
            look()
    assert guard.runs.get("r").reason == "loop"


def test_a_tool_that_may_repeat_itself_may_after_a_restart(guard: Guard) -> None:
    """What its calls brought is no stall of others."""
    wait = guard.tool("wait", effect="read", loop=False)(lambda: "pending")
    look = guard.tool("look", effect="read")(lambda: "same")
    assert _interrupted(guard, look, *[wait] * 40) == ["same"] + ["pending"] * 40
    assert _interrupted(guard, look, *[wait] * 40, look) == ["same"] + ["pending"] * 40 + ["same"]


def test_what_is_pruned_is_forgotten(guard: Guard, sql: Sql) -> None:
    """What a run remembered of loops goes with it."""
    with guard.run("r", id="r"):
        guard.check_loop("search")
    guard.prune(older_than=dt.timedelta(seconds=0))
    assert sql("select count(*) from loops") == [(0,)]


class _Order:
    def __init__(self, number: int) -> None:
        self.number = number

    def look(self) -> str:
        return "ok"


@pytest.mark.parametrize("key", [None, lambda self: f"order-{self.number}"], ids=["object", "key"])
def test_a_method_of_many_objects_is_no_loop(guard: Guard, key: Any) -> None:
    """Ten orders are looked at, each once; one of them over and over is a loop."""
    look = guard.tool("look", effect="read", key=key)(_Order.look)
    with guard.run("ten"):
        assert [look(_Order(number)) for number in range(10)] == ["ok"] * 10
    order = _Order(11)
    with pytest.raises(LoopDetected), guard.run("one"):
        for _ in range(9):
            look(order)
