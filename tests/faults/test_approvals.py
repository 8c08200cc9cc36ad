"""Processes that die around an approval: it is used with its call or not at all, and never for a second one."""

from __future__ import annotations

import pytest

from sagaspan import ApprovalDenied, ApprovalPending, Guard, OutcomeUnknown, SagaspanError
from sagaspan.testing import CrashPoint, World, crash_points


def _guard(world: World) -> Guard:
    return Guard(world.store, approver="inbox")


def pay(world: World) -> None:
    """Pay once, and say so on the way out."""
    guard = _guard(world)

    @guard.tool(effect="write", approve=True)
    def pay(amount: int) -> str:
        world.effect(f"paid {amount}")
        return "paid"

    try:
        with guard.run("order", id="order"):
            pay(5)
    except ApprovalPending:
        pass


def approve(world: World) -> None:
    """Somebody says yes to what waits."""
    guard = _guard(world)
    for request in guard.approvals.list():
        guard.approvals.approve(request.id, by="alice")


def asked_and_approved(world: World) -> None:
    """What was before the process that is to pay."""
    world.process(pay)
    world.process(approve)


def asked(world: World) -> None:
    """What was before somebody decides."""
    world.process(pay)


def _goes_on(world: World) -> None:
    """Processes and the person go on until nothing changes any more."""
    for _ in range(3):
        for job in (approve, pay):
            try:
                world.process(job)
            except (OutcomeUnknown, ApprovalDenied):
                pass
            except SagaspanError as error:
                raise AssertionError from error


@pytest.mark.parametrize("crash", crash_points(pay), ids=lambda crash: crash.__name__)
def test_who_asks_dies(crash: CrashPoint) -> None:
    """The question is there or it is not; the answer is used once."""
    with crash as world:
        _goes_on(world)
        assert list(world.effects) == ["paid 5"]
        assert [one.state for one in _guard(world).approvals.list(status=())] == ["consumed"]


@pytest.mark.parametrize("crash", crash_points(approve, before=asked), ids=lambda crash: crash.__name__)
def test_who_decides_dies(crash: CrashPoint) -> None:
    """It is decided or it is not."""
    with crash as world:
        _goes_on(world)
        assert list(world.effects) == ["paid 5"]


@pytest.mark.parametrize("crash", crash_points(pay, before=asked_and_approved), ids=lambda crash: crash.__name__)
def test_who_pays_dies(crash: CrashPoint) -> None:
    """Paid at most once, and as often as approvals were used up, but for what died between them in doubt."""
    with crash as world:
        _goes_on(world)
        states = [one.state for one in _guard(world).approvals.list(status=())]
        assert len(world.effects) <= 1
        assert states.count("consumed") == 1
        assert len(states) == 1
