"""Worlds: one ledger, an outside, and processes that come and die; a played death lasts like a real one."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import pytest

from sagaspan import ConfigurationError, Guard, OutcomeUnknown
from sagaspan.testing import (
    Crash,
    World,
    assert_history,
    assert_settled,
    assert_undone,
    crash_points,
    frozen_clock,
)  # fmt: skip
from tests.conftest import Caller


class Declined(Exception):
    """The card is declined."""


def book(world: World) -> None:
    """A job: books a flight in the run ``a``."""
    with Guard(world.store) as guard:
        act = guard.tool("book", effect="write")(lambda: world.effect("book"))
        with guard.run("trip", id="a", on_interrupt="hold"):
            act()


POINTS = [
    f"{subject}: {side} {what}"
    for subject, what in (
        ("process", "lease"), ("run trip", "open"), ("book", "claim"), ("book", "effect"), ("book", "settle"),
        ("run trip", "end"),
    )
    for side in ("before", "after")
]  # fmt: skip


@pytest.mark.parametrize("kill", [False, True])
def test_the_points_of_a_job_have_names(kill: bool) -> None:
    """Before and after each step that lasts, in their order, whichever way the process dies there."""
    points = crash_points(book, kill=kill)
    assert [point.name for point in points] == POINTS
    assert [point.__name__ for point in points] == [f"{name}, SIGKILL" if kill else name for name in POINTS]


@pytest.mark.parametrize("crash", [*crash_points(book), *crash_points(book, kill=True)])
def test_what_was_before_the_point_lasts_and_nothing_after_it(crash: Any) -> None:
    """Dead means: the effect is there if its point was passed, the record says how far it came, a new process goes on
    or is told that nobody knows."""
    with crash as world:
        passed = POINTS[: POINTS.index(crash.name) + 1]
        claimed, happened, settled = (f"book: after {what}" in passed for what in ("claim", "effect", "settle"))
        assert world.effects == ["book"] * happened
        assert len(world.calls.list(open=False)) == claimed
        if claimed and not settled:
            with pytest.raises(OutcomeUnknown):
                world.resume()
            assert world.runs.get("a").status == "held"
        else:
            world.resume()
            assert world.effects == ["book"]
            assert_settled(world)
        assert_history(world)


def test_what_the_dead_do_does_not_last() -> None:
    """Neither in handlers and ``finally``, nor in other threads, nor by swallowing the death."""
    reached: list[str] = []

    def job(world: World) -> None:
        died, looked = threading.Event(), threading.Event()
        guard = Guard(world.store)
        act = guard.tool("act", effect="write")(lambda n: world.effect(f"act-{n}"))

        def in_a_thread() -> None:
            died.wait(60)
            with contextlib.suppress(BaseException):
                world.effect("by a thread")
            with contextlib.suppress(BaseException):
                act(3)
            looked.set()

        thread = threading.Thread(target=in_a_thread)
        thread.start()
        try:
            act(1)
        except BaseException as death:
            reached.append(type(death).__name__)
            with contextlib.suppress(BaseException):
                world.effect("by a handler")
            with contextlib.suppress(BaseException):
                act(2)
            with contextlib.suppress(BaseException):
                guard.calls.list()
                reached.append("read")
        finally:
            died.set()
            looked.wait(60)
            thread.join()
        with contextlib.suppress(BaseException):
            guard.close()
        raise ValueError("what it makes of its death is nobody's business")

    with World() as world:
        assert world.process(job, die_at="act-1: after effect") is None
        assert world.effects == ["act-1"]
        assert [call.state for call in world.calls.list(open=False)] == ["running"]
    assert reached == ["Crash"]


def test_the_dead_hold_nothing(caller: Caller) -> None:
    """A process that died in a run, in a body or in a rollback is dead for the next one, at once."""

    def trip(world: World) -> None:
        async def job() -> None:
            guard = Guard(world.store)
            undo = caller.body(lambda: world.effect("cancel"))
            act = caller.tool(guard, "book", compensate=undo)(lambda: world.effect("book"))
            async with caller.run(guard, "trip", id="a", on_interrupt="compensate"):
                await caller.call(act)
                raise Declined

        with contextlib.suppress(Declined):
            caller.play(job)

    def recover(world: World) -> None:
        guard = Guard(world.store)
        caller.tool(guard, "book", compensate=caller.body(lambda: world.effect("cancel")))(lambda: None)
        guard.recover()

    points = crash_points(trip)
    assert "undo book: after claim" in [point.name for point in points]
    for crash in points:
        with crash as world:
            world.process(recover)
            assert world.effects.count("book") <= 1
            in_doubt = crash.name in ("book: after claim", "book: before effect", "book: after effect",
                                      "book: before settle")  # fmt: skip
            if in_doubt:
                assert world.runs.get("a").status == "held"
            else:
                assert_settled(world)
                assert world.effects.count("cancel") >= world.effects.count("book")
            if world.runs.get("a") is not None and not in_doubt:
                assert_undone(world.runs.get("a"))


def test_the_dead_are_not_waited_for(caller: Caller) -> None:
    """Who died inside a nested run waits for nobody on its way out: the next process comes at once."""

    def job(world: World) -> None:
        with Guard(world.store) as guard:
            act = caller.tool(guard, "act", effect="write")(lambda: world.effect("act"))

            async def work() -> None:
                async with caller.run(guard, "outer", id="a"), caller.run(guard, "inner"):
                    await caller.call(act)

            caller.play(work)

    with frozen_clock() as clock, World() as world:
        began = clock.now
        world.process(job, die_at="act: before claim")
        assert clock.now == began
        world.process(job)
        assert world.effects == ["act"]


def test_a_point_that_is_not_reached_fails_the_test() -> None:
    """Played or killed: the message names the points that were."""
    for kill in (False, True):
        with World() as world, pytest.raises(AssertionError) as caught:
            world.process(book, die_at="charge: after claim", kill=kill)
        assert str(caught.value).startswith("the point 'charge: after claim' was never reached; this process passed:")
        assert "book: after settle" in str(caught.value)


def test_a_job_that_fails_in_a_child_says_so() -> None:
    """What it raised is in the message."""

    def broken(world: World) -> None:
        raise ZeroDivisionError("oh")

    with World() as world, pytest.raises(AssertionError, match="ZeroDivisionError: oh"):
        world.process(broken, die_at="x", kill=True)
    with pytest.raises(ZeroDivisionError):
        crash_points(broken)


def test_a_guard_on_another_ledger_passes_no_point(store_url: str) -> None:
    """The mistake that everybody makes once is named."""

    def elsewhere(world: World) -> None:
        Guard(store_url).tool("act")(lambda: None)()

    with pytest.raises(ConfigurationError, match=r"does its guard use world\.store\?"):
        crash_points(elsewhere)


def test_some_points_only() -> None:
    """By name or pattern; one that names none is refused."""
    assert [point.name for point in crash_points(book, only="book: * claim")] == [
        "book: before claim", "book: after claim",
    ]  # fmt: skip
    assert len(crash_points(book, only=["book: *", "run trip: after end"])) == 7
    with pytest.raises(ConfigurationError, match="there is no point 'pay: "):
        crash_points(book, only=["book: *", "pay: *"])


def test_the_points_after_a_crash() -> None:
    """``before``: what goes on after a death can die too, at every one of its own points."""

    def die(world: World) -> None:
        world.process(book, die_at="book: before claim")

    points = crash_points(book, before=die)
    names = [point.name for point in points]
    assert "run trip: after resume" in names
    for crash in points:
        with crash as world:
            with contextlib.suppress(OutcomeUnknown):
                world.resume()
                assert_settled(world)
            assert world.effects.count("book") <= 1
            assert_history(world)


def test_the_second_of_its_kind_is_numbered() -> None:
    """So that every point has a name of its own."""

    def twice(world: World) -> None:
        act = Guard(world.store).tool("act")(lambda: world.effect("act"))
        act()
        act()

    assert [p.name for p in crash_points(twice, only="act: after*")] == [
        "act: after claim", "act: after effect", "act: after settle",
        "act: after claim (2)", "act: after effect (2)", "act: after settle (2)",
    ]  # fmt: skip


def test_another_attempt_and_the_mark_are_points() -> None:
    """Every durable step has its words."""

    def pay(world: World) -> None:
        guard = Guard(world.store)
        tries: list[int] = []

        @guard.tool(effect="write", marks_sending=True, retry={"attempts": 2, "initial_delay": 0.0})
        def pay() -> None:
            tries.append(1)
            if len(tries) == 1:
                raise ConnectionRefusedError
            guard.current_call().sending()
            world.effect("pay")

        pay()

    names = [point.name for point in crash_points(pay)]
    assert [name for name in names if name.startswith("pay: after")] == [
        "pay: after claim", "pay: after attempt", "pay: after sending mark", "pay: after effect", "pay: after settle",
    ]  # fmt: skip


async def test_in_an_asynchronous_test() -> None:
    """A process has a loop of its own, also where one is running."""

    async def job(world: World) -> str:
        async with Guard(world.store) as guard:

            @guard.tool(effect="write", marks_sending=True)
            async def act() -> str:
                await guard.current_call().asending()
                await asyncio.sleep(0)
                return "done"

            async with guard.run("trip", id="a", on_interrupt="hold"):
                return await act()

    for kill in (False, True):
        for crash in crash_points(job, kill=kill, only="act: * sending mark"):
            with crash as world:
                if "before" in crash.name:
                    assert world.resume() == "done"
                else:
                    with pytest.raises(OutcomeUnknown):
                        world.resume()


def test_a_world_is_entered_first() -> None:
    """Each mistake in its use is a sentence."""
    with pytest.raises(ConfigurationError, match="entered with `with`"):
        World().effect("x")
    with pytest.raises(ConfigurationError, match="entered with `with`"):
        _ = World().store
    with World() as world:
        with pytest.raises(ConfigurationError, match="no job to resume"):
            world.resume()
        with pytest.raises(ConfigurationError, match="say die_at="):
            world.process(book, kill=True)


def test_effects_under_a_key_happen_once() -> None:
    """As in a service that knows idempotency keys; without one every effect counts."""
    with World(lambda world: world.effect("pay")) as world:
        assert [world.effect("pay", key="k"), world.effect("pay", key="k"), world.effect("pay", key="l")] == [
            True, False, True,
        ]  # fmt: skip
        assert (world.happened("pay"), world.happened("pay", key="k"), world.happened("pay", key="m")) == (
            True, True, False,
        )  # fmt: skip
        world.resume()
        assert world.effects == ["pay", "pay", "pay"]
        with frozen_clock() as clock:
            world.effect("ship")
            assert [world.happened("ship", lag=lag) for lag in (0, 10)] == [True, False]
            clock.advance(10)
            assert world.happened("ship", lag=10)


def test_a_guard_of_the_module_is_put_on_the_world(guard: Guard) -> None:
    """``guard.override(store=...)``: an application's own guard, with its tools, in another ledger for a while."""
    act = guard.tool("act", key="n")(lambda n: n)
    act(0)

    def job(world: World) -> list[int]:
        with guard.override(store=world.store), guard.run("trip", id="a", on_interrupt="hold"):
            return [act(n) for n in (1, 2)]

    for crash in crash_points(job, only="act: after settle*"):
        with crash as world:
            assert world.resume() == [1, 2]
            assert_settled(world)
            assert len(world.calls.list(open=False)) == 2
    assert [call.args for call in guard.calls.list(open=False)] == [{"n": 0}]
    assert act(3) == 3
    refused = pytest.raises(ConfigurationError, match="while a run of it is open")
    with World() as world, guard.run(), refused, guard.override(store=world.store):
        pass


def test_what_is_declared_on_another_store_holds_on_the_guards_own(guard: Guard) -> None:
    """What a tool that is declared within ``override`` redacts is taken out of its calls after that, too."""
    with World() as world, guard.override(store=world.store):
        act = guard.tool("act", effect="write", redact=["card"])(lambda card: None)
    act("4242")
    (call,) = guard.calls.list(open=False)
    assert "4242" not in str(call.args)


def test_a_crash_is_no_exception() -> None:
    """No ``except Exception`` of an agent survives its own death."""
    assert not issubclass(Crash, Exception)
