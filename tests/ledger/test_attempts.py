"""Retries: only where they are safe, with bounded delays, all recorded (rule book (g) 1)."""

from __future__ import annotations

import time
from typing import Any

import pytest

from sagaspan import Guard, NotApplied, OutcomeUnknown
from tests.conftest import Caller


class Declined(Exception):
    """Raised by the tool itself: it did not happen."""


def attempts_of(guard: Guard, caller: Caller, errors: list[BaseException | None], **policy: Any) -> tuple[int, str]:
    """How often a body ran that fails with ``errors`` in turn, and the state of its call."""
    ran: list[int] = []
    raised: list[BaseException] = []

    @caller.tool(guard, **{"retry": {"attempts": 3, "initial_delay": 0}, **policy})
    def act() -> int:
        ran.append(1)
        if error := errors[len(ran) - 1]:
            raise error
        return 7

    async def job() -> tuple[int, str]:
        async with caller.run(guard) as run:
            try:
                assert await caller.call(act) == 7
            except BaseException as problem:
                raised.append(problem)
            (call,) = run.calls
            assert call.attempts == len(ran)
            assert raised == [error for error in errors[len(ran) - 1 : len(ran)] if error]
            return len(ran), str(call.state)

    result: tuple[int, str] = caller.play(job)
    return result


LOST = ConnectionResetError()


@pytest.mark.parametrize(
    ("policy", "errors", "ran", "state"),
    [
        ({"effect": "read"}, [LOST, LOST, None], 3, "done"),
        ({"effect": "idempotent"}, [LOST, Declined(), None], 3, "done"),
        ({"effect": "read"}, [LOST] * 3, 3, "unknown"),
        ({"effect": "write"}, [Declined(), NotApplied(), None], 3, "done"),
        ({"effect": "write"}, [Declined(), LOST], 2, "unknown"),
        ({}, [LOST], 1, "unknown"),
        ({}, [Declined(), None], 2, "done"),
        ({"effect": "write", "retry": {"attempts": 3, "initial_delay": 0, "on": (OSError,)}}, [LOST, None], 2, "done"),
        ({"effect": "read", "retry": {"attempts": 3, "initial_delay": 0, "on": (OSError,)}}, [Declined()], 1, "failed"),
        ({"effect": "write", "retry": {"attempts": 2, "initial_delay": 0, "on": (Exception,)}}, [LOST, Declined()], 2,
         "unknown"),
        ({"effect": "read"}, [KeyboardInterrupt()], 1, "unknown"),
        ({"effect": "read", "retry": 1}, [LOST], 1, "unknown"),
    ],
)  # fmt: skip
def test_what_is_repeated(
    guard: Guard, caller: Caller, policy: dict[str, Any], errors: list[BaseException | None], ran: int, state: str
) -> None:
    """Reads and idempotent tools always, writes only when it provably did not happen or by ``on=``.

    Once an attempt may have applied, a clean failure of a later one does not make the call ``failed``.
    """
    assert attempts_of(guard, caller, errors, **policy) == (ran, state)


def test_delays(guard: Guard, caller: Caller) -> None:
    """Between attempts the delays double; the last failure waits for nothing."""
    times: list[float] = []

    @caller.tool(guard, effect="read", retry={"attempts": 3, "initial_delay": 0.2, "jitter": False})
    def act() -> None:
        times.append(time.monotonic())
        raise Declined

    async def job() -> float:
        async with caller.run(guard):
            with pytest.raises(Declined):
                await caller.call(act)
            return time.monotonic()

    end = caller.play(job)
    assert times[1] - times[0] >= 0.2
    assert times[2] - times[1] >= 0.4
    assert end - times[2] < 0.8  # what a next delay would be; a busy machine takes its time too


def test_interrupted_between_attempts(guard: Guard, caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interruption while waiting for the next attempt settles by what the attempts proved, and is raised."""

    async def interrupt(_: object, __: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sagaspan._backends.SyncBackend.sleep", interrupt)
    monkeypatch.setattr("sagaspan._backends.AsyncioBackend.sleep", interrupt)

    @caller.tool(guard, effect="read", retry={"attempts": 3})
    def act(error: str) -> None:
        raise Declined if error == "clean" else ConnectionResetError

    async def job() -> list[str]:
        async with caller.run(guard) as run:
            for error in ("clean", "lost"):
                with pytest.raises(KeyboardInterrupt):
                    await caller.call(act, error)
            return [str(call.state) for call in run.calls]

    assert caller.play(job) == ["failed", "unknown"]


def test_a_write_that_timed_out_is_not_repeated(guard: Guard) -> None:
    """A timeout proves nothing: no second attempt, unless the type is named."""
    ran = []

    @guard.tool(effect="write", timeout=0.02, retry={"attempts": 2, "initial_delay": 0})
    def slow() -> None:
        ran.append(1)
        time.sleep(0.05)

    with pytest.raises(OutcomeUnknown), guard.run():
        slow()
    time.sleep(0.06)
    assert ran == [1]
