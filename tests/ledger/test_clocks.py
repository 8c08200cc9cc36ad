"""Windows and settle times hold, whatever the clocks of the machines say, and whatever they pass in between."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Iterator

import pytest

from sagaspan import Applied, Guard, NotApplied, OutcomeUnknown, Retry
from sagaspan.testing import FrozenClock, World, frozen_clock

HOUR = 3600.0


@pytest.fixture
def clock() -> Iterator[FrozenClock]:
    """A clock that moves when it is told to."""
    with frozen_clock() as clock:
        yield clock


def _searched(*, lost: bool) -> Callable[[World], str]:
    """A job that pays; its service's search lags behind by a minute."""

    def job(world: World) -> str:
        def search(n: int) -> Applied | NotApplied:
            return Applied("paid") if world.happened("pay", lag=60) else NotApplied()

        @Guard(world.store).tool(key="n", probe=search, settle=60)
        def pay(n: int) -> str:
            world.effect("pay")
            if lost:
                raise ConnectionResetError
            return "paid"

        return pay(1)

    return job


@pytest.mark.parametrize("hours", [-1, 0, 1])
def test_a_settle_time_counts_from_a_clock_that_may_be_wrong(clock: FrozenClock, hours: int) -> None:
    """An end that another machine's clock dates says nothing for as long as clocks may differ: it is not run again."""
    with World() as world:
        with clock.skewed(hours * HOUR), pytest.raises(ConnectionResetError):
            world.process(_searched(lost=True), where="machine")
        for minutes in (0, 0.5):
            clock.advance(dt.timedelta(minutes=minutes))
            with pytest.raises(OutcomeUnknown):
                world.process(_searched(lost=False))
        clock.advance(dt.timedelta(minutes=1))
        assert world.process(_searched(lost=False)) == "paid"
        assert world.effects == ["pay"]


def test_a_search_that_lags_on_this_machine_is_believed_after_its_settle_time(clock: FrozenClock) -> None:
    """Here the clock is ours, and the minute is a minute."""

    def job(world: World) -> str:
        @Guard(world.store).tool(key="n", probe=lambda n: NotApplied(), settle=60)
        def pay(n: int) -> str:
            if not world.effect("pay", key="first"):
                return "paid"
            raise ConnectionResetError

        return pay(1)

    for where, seconds in (("here", 61.0), ("machine", 2 * HOUR + 61.0)):
        with World() as world:
            with pytest.raises(ConnectionResetError):
                world.process(job, where=where)  # type: ignore[arg-type] # one of them
            clock.advance(seconds - 2)
            with pytest.raises(OutcomeUnknown):
                world.process(job)
            clock.advance(2)
            assert world.process(job) == "paid"


def _deduped(world: World) -> str:
    @Guard(world.store).tool("pay", key="n", downstream_dedupes_for=24 * HOUR)
    def pay(n: int, idempotency_key: str) -> str:
        if world.effect("pay", key=idempotency_key):
            raise ConnectionResetError
        return "paid"

    return pay(1)


@pytest.mark.parametrize(("where", "hours", "resends"), [
    ("here", 21, True), ("here", 22, False), ("machine", 19, True), ("machine", 20, False),
])  # fmt: skip
def test_a_window_that_another_machine_dates_closes_earlier(
    clock: FrozenClock, where: str, hours: float, resends: bool
) -> None:
    """The same key is sent again only while the service surely knows it, even if the clocks are two hours apart."""
    with World() as world:
        with pytest.raises(ConnectionResetError):
            world.process(_deduped, where=where)  # type: ignore[arg-type] # one of them
        clock.advance(hours * HOUR)
        if resends:
            assert world.process(_deduped) == "paid"
        else:
            with pytest.raises(OutcomeUnknown):
                world.process(_deduped)


def test_a_retry_does_not_wait_until_the_window_is_over(clock: FrozenClock, guard: Guard) -> None:
    """Its delay counts: what would be sent too late is not sent."""
    attempts: list[float] = []

    @guard.tool(downstream_dedupes_for=100.0, retry=Retry(attempts=5, initial_delay=60, max_delay=60, jitter=False))
    def pay(idempotency_key: str) -> None:
        attempts.append(clock.monotonic_us() / 1e6)
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError), guard.run(id="a"):
        pay()
    assert [at - attempts[0] for at in attempts] == pytest.approx([0.0, 60.0])


@pytest.mark.parametrize("how", ["in one run", "over runs", "deferred"])
@pytest.mark.parametrize(("where", "hours"), [("here", 2.8), ("machine", 0.8)])
def test_a_worker_stopped_before_the_wire_sends_nothing_too_late(
    clock: FrozenClock, where: str, hours: float, how: str
) -> None:
    """``sending()`` looks at the window once more: who was stopped for longer than it must not send."""

    def job(hours: float, *, lost: bool = False) -> Callable[[World], None]:
        def job(world: World) -> None:
            guard = Guard(world.store)

            @guard.tool(key="n", downstream_dedupes_for=3 * HOUR, marks_sending=True, defer=how == "deferred")
            def pay(n: int, idempotency_key: str) -> str:
                clock.advance(hours * HOUR)
                guard.current_call().sending()
                world.effect("pay")
                if lost:
                    raise ConnectionResetError
                return "paid"

            with contextlib.nullcontext() if how == "over runs" else guard.run(id="one"):
                pay(1)

        return job

    with World() as world:
        with pytest.raises(ConnectionResetError):
            world.process(job(0, lost=True), where=where)  # type: ignore[arg-type] # one of them
        with pytest.raises(OutcomeUnknown, match="may have forgotten its key"):
            world.process(job(hours))
        assert world.effects == ["pay"]
        (call,) = world.calls.list()
        world.calls.resolve(call.id, "retry", note="it is safe")
        world.process(job(hours))
        assert world.effects == ["pay", "pay"]  # what a person permits is sent


def test_the_clock_of_the_first_sending_counts_however_many_runs_send_again(clock: FrozenClock) -> None:
    """A run of this machine sent the same key again meanwhile: it is still another machine that dates the first."""
    with World() as world:
        for where, hours in (("machine", 0), ("here", 1)):
            clock.advance(hours * HOUR)
            with pytest.raises(ConnectionResetError):
                world.process(_always_lost, where=where)  # type: ignore[arg-type] # one of them
        clock.advance(19 * HOUR)
        with pytest.raises(OutcomeUnknown):
            world.process(_deduped)


def _always_lost(world: World) -> str:
    @Guard(world.store).tool("pay", key="n", downstream_dedupes_for=24 * HOUR)
    def pay(n: int, idempotency_key: str) -> str:
        world.effect("pay", key=idempotency_key)
        raise ConnectionResetError

    return pay(1)
