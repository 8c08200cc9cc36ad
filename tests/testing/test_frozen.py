"""Time that moves only when it is told to: leases, windows and settle times without waiting for any of them."""

from __future__ import annotations

import ast
import datetime as dt
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sagaspan import Applied, ConfigurationError, Guard, NotApplied, OutcomeUnknown, Retry, RunInProgress
from sagaspan.testing import FrozenClock, World, assert_settled, frozen_clock, temporary_store
from tests.conftest import Caller

SOURCE = Path(__file__).parents[2] / "src" / "sagaspan"
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


@pytest.fixture
def clock() -> Iterator[FrozenClock]:
    """Noon, until somebody says otherwise."""
    with frozen_clock(NOON) as clock:
        yield clock


def test_time_stands_still_until_it_is_told(clock: FrozenClock, guard: Guard) -> None:
    """Everything on record has the time of the clock."""
    act = guard.tool("act")(lambda n: clock.advance(dt.timedelta(minutes=5)))
    with guard.run(id="a"):
        act(1)
        clock.advance(60)
        act(2)
    first, second = guard.runs.get("a").calls
    assert (first.started, first.ended) == (NOON, NOON + dt.timedelta(minutes=5))
    assert second.started == NOON + dt.timedelta(minutes=6)
    assert guard.runs.get("a").ended == clock.now == NOON + dt.timedelta(minutes=11)


def test_a_wait_shorter_than_the_clock_can_tell_ends_too(clock: FrozenClock) -> None:
    """Who waits for a moment waits again while it is not there: the last piece may be less than a microsecond."""
    before = clock.now
    clock.advance(1e-11)
    assert clock.now > before


def test_the_real_clock_is_back_at_the_end(guard: Guard) -> None:
    """Also for a guard that was used before, inside and after."""
    act = guard.tool("act")(lambda: None)
    with guard.run(id="before"):
        act()
    with frozen_clock(NOON) as clock, guard.run(id="inside"):
        act()
        clock.advance(dt.timedelta(days=1000))
    with guard.run(id="after"):
        act()
    assert abs(guard.runs.get("after").started.timestamp() - time.time()) < 60
    lease = guard._store.lease_of(guard.runs.get("after").owner)
    assert lease is not None
    assert lease.until_us < (time.time() + 3600) * 1e6


@pytest.mark.parametrize("by", [-1, float("nan"), float("inf"), dt.timedelta(seconds=-1)])
def test_time_does_not_go_back(clock: FrozenClock, by: Any) -> None:
    """An interval that is none is refused."""
    with pytest.raises(ConfigurationError, match="does not advance"):
        clock.advance(by)


def test_a_time_without_a_zone_is_refused() -> None:
    """It would be another moment on another machine."""
    with pytest.raises(ConfigurationError, match="no time zone"), frozen_clock(NOON.replace(tzinfo=None)):
        pass


def test_a_retry_waits_without_waiting(clock: FrozenClock, guard: Guard, caller: Caller) -> None:
    """Its delay passes on the clock, in no time; so it does for both kinds of caller."""
    at: list[dt.datetime] = []

    @caller.tool(guard, retry=Retry(attempts=3, initial_delay=600, max_delay=3600, jitter=False))
    def act() -> None:
        at.append(clock.now)
        if len(at) < 3:
            raise NotApplied

    async def job() -> None:
        async with caller.run(guard):
            await caller.call(act)

    caller.play(job)
    assert [moment - NOON for moment in at] == [dt.timedelta(minutes=minutes) for minutes in (0, 10, 30)]


def test_waiting_for_another_worker_takes_no_time(clock: FrozenClock, store_url: str) -> None:
    """``wait=60`` has waited a minute."""
    with Guard(store_url) as one, Guard(store_url) as other, one.run(id="a"):
        started = clock.now
        with pytest.raises(RunInProgress), other.run(id="a", wait=60):
            pass
        assert clock.now - started >= dt.timedelta(minutes=1)


def test_the_window_of_the_service_closes(clock: FrozenClock) -> None:
    """``downstream_dedupes_for``: the same key again while the service knows it, and then no more."""

    def pay(world: World) -> str:
        @Guard(world.store).tool(key="order", downstream_dedupes_for=3600)
        def charge(order: str, idempotency_key: str) -> str:
            world.effect("charge", key=idempotency_key)
            return "paid"

        return charge("o-1")

    for minutes, resends in ((50, True), (70, False)):
        with World() as world:
            world.process(pay, die_at="charge: before settle")
            clock.advance(dt.timedelta(minutes=minutes))
            if resends:
                assert world.process(pay) == "paid"
            else:
                with pytest.raises(OutcomeUnknown):
                    world.process(pay)
            assert world.effects == ["charge"]


def test_a_probe_that_lags_is_believed_after_its_settle_time(clock: FrozenClock) -> None:
    """``settle``: "not there" counts so long after the end of the attempt, and not a second before."""

    def pay(world: World) -> str:
        guard = Guard(world.store)

        @guard.tool(key="order", probe=lambda order: NotApplied(), settle=60)
        def charge(order: str) -> str:
            world.effect("charge")
            return "paid"

        return charge("o-1")

    with World() as world:
        world.process(pay, die_at="charge: before effect")
        with pytest.raises(OutcomeUnknown):
            world.process(pay)
        clock.advance(59)
        with pytest.raises(OutcomeUnknown):
            world.process(pay)
        clock.advance(1)
        assert world.process(pay) == "paid"
        assert world.effects == ["charge"]


@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.parametrize("where", ["container", "machine"])
def test_a_lease_elsewhere_runs_out(clock: FrozenClock, where: Any, kill: bool) -> None:
    """Of a process whose death cannot be proved the lease decides: left alone before, taken over after."""

    def trip(world: World) -> None:
        guard = Guard(world.store)
        book = guard.tool("book", compensate=lambda: world.effect("cancel"))(lambda: world.effect("book"))
        with guard.run("trip", id="a", on_interrupt="compensate"):
            book()
            guard.tool("look", effect="read")(lambda: None)()

    def recover(world: World) -> bool:
        guard = Guard(world.store)
        guard.tool("book", compensate=lambda: world.effect("cancel"))(lambda: world.effect("book"))
        return bool(guard.recover())

    with World() as world:
        world.process(trip, die_at="look: after claim", kill=kill, where=where)
        clock.advance(29)
        assert not world.process(recover)
        clock.advance(2)
        assert world.process(recover)  # of another machine it watches the lease for 40 s more, which takes no time
        assert world.effects == ["book", "cancel"]
        assert_settled(world)


def test_a_worker_that_was_stopped_past_its_lease_is_fenced(clock: FrozenClock) -> None:
    """It goes on after it was taken over: what it returns late is evidence, and it changes nothing more."""
    taken: list[str] = []

    def job(world: World) -> None:
        guard = Guard(world.store)

        @guard.tool(key="n")
        def act(n: int) -> str:
            world.effect("act")
            clock.advance(31)  # stopped here, and all the world goes on
            taken.append(world.process(recover))
            return "late"

        with guard.run(id="a", on_interrupt="hold"):
            assert act(1) == "late"

    def recover(world: World) -> str:
        report = Guard(world.store).recover()
        assert [run.id for run in report.needs_human] == ["a"]
        return str(world.runs.get("a").calls[0].state)

    with World() as world:
        with pytest.raises(Exception, match="taken over by another worker"):
            world.process(job, where="container")
        assert taken == ["unknown"]
        assert [call.state for call in world.runs.get("a").calls] == ["done"]
        assert world.runs.get("a").status == "held"
        assert world.effects == ["act"]


@pytest.mark.parametrize("hours", [-1, 1])
def test_clocks_that_differ(clock: FrozenClock, hours: int) -> None:
    """A process whose wall clock is an hour off writes its own time, and intervals are right there."""
    with temporary_store() as store, Guard(store) as guard:
        with clock.skewed(dt.timedelta(hours=hours)):
            act = guard.tool("act")(lambda: clock.advance(60))
            with guard.run(id="a"):
                act()
        run = guard.runs.get("a")
        assert run.started == NOON + dt.timedelta(hours=hours)
        assert run.calls[0].ended - run.calls[0].started == dt.timedelta(seconds=60)
        assert clock.now == NOON + dt.timedelta(seconds=60)


def test_a_lease_passes_on_the_clock_alone(clock: FrozenClock) -> None:
    """It is on disk before what it covers, and renewed by the next claim once half of it is over."""
    with temporary_store() as store, Guard(store) as guard:
        act = guard.tool("act")(lambda: None)
        with guard.run(id="a"):
            act()
            owner = guard.runs.get("a").owner
            beats = []
            for seconds in (14, 2, 1, 100):
                clock.advance(seconds)
                act()
                beats.append(store.lease_of(owner).beats)  # type: ignore[union-attr]
    assert beats == [1, 2, 2, 3]


def test_nothing_but_the_clock_reads_the_time() -> None:
    """What decides anything by time asks ``sagaspan._clock``, so that it can be stopped."""
    shown = {"cli", "telemetry", "index", "testing"}  # what people see, and the harness
    allowed = {"_clock.py", "ledger/attempts.py"}  # the spans of attempts, like all spans, have the SDK's time
    readers = []
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).as_posix()
        if name.partition("/")[0] in shown or name in allowed:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            imported = isinstance(node, ast.ImportFrom) and node.module == "time"
            imported |= isinstance(node, ast.Import) and any(alias.name == "time" for alias in node.names)
            called = isinstance(node, ast.Attribute) and node.attr in ("now", "utcnow", "today")
            if imported or called:
                readers.append(f"{name}:{node.lineno}")
    assert readers == []


def test_applied_is_believed_at_once(clock: FrozenClock) -> None:
    """``settle`` is for "not there" alone."""

    def pay(world: World) -> str:
        guard = Guard(world.store)
        pay = guard.tool("charge", key="order", probe=lambda order: Applied("found"), settle=60)
        return pay(lambda order: world.effect("charge"))("o-1")

    with World() as world:
        world.process(pay, die_at="charge: after effect")
        assert world.process(pay) == "found"
        assert world.effects == ["charge"]
