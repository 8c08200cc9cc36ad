"""Every durable step of an order, before and after, under every protection: at most one effect, and nothing lost.

The points x {no protection, downstream key, authoritative probe, lagging probe} x {played, SIGKILL} x {sync, async};
then the points of who goes on after a death, and of who recovers it. A killed child's effects are counted here, in
another process. The normal suite kills a sample of the children, and of the asynchronous callers, whose steps are the
same, dies at every other point, the others under the next protection; ``SAGASPAN_PROOFS=full`` leaves nothing out.

Each step costs something under a hard budget. The last one, a mail, is deferred, and its first sending is refused, so
that it is sent again. After a death another user tries to resume the run.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from sagaspan import (
    Applied,
    CallState,
    CompensationFailed,
    Guard,
    NotApplied,
    OutcomeUnknown,
    RunClosed,
    RunConflict,
    RunState,
)  # fmt: skip
from sagaspan.testing import (
    CrashPoint,
    World,
    assert_history,
    assert_settled,
    assert_undone,
    crash_points,
    frozen_clock,
)
from tests.conftest import Caller
from tests.proofs import FULL, ON_A_SERVER

Protection = Literal["none", "key", "probe", "lagging probe"]
PROTECTIONS: tuple[Protection, ...] = ("none", "key", "probe", "lagging probe")
LAG = 60.0
STEPS = ("charge", "pack", "ship", "mail")
BUDGETS = {"user:*": f"{len(STEPS)} USD"}
SAMPLE = 8  # of the children, every so many; and of all of them on a server

pytestmark = pytest.mark.of_every_store


class Declined(Exception):
    """The order fails, so that it is undone."""


@dataclass(frozen=True)
class Order:
    """The work of one process, under one protection, as one kind of caller; ``declined`` it ends in an error."""

    protection: Protection
    kind: Literal["sync", "async"]
    declined: bool = False
    on_interrupt: Literal["hold", "compensate"] = "hold"

    def __str__(self) -> str:
        return f"{self.protection}, {self.kind}"

    def __call__(self, world: World) -> None:
        """Look, charge (which is refused once, and tried again), ship; nested in between, pack. At the end, mail."""
        caller = Caller(self.kind)
        with Guard(world.store, budgets=BUDGETS) as guard:
            tools = self.tools(world, guard, caller)

            async def work() -> None:
                async with caller.run(guard, "order", id="o-1", user="ann", on_interrupt=self.on_interrupt):
                    await caller.call(tools["look"])
                    await caller.call(tools["mail"], 1)
                    await caller.call(tools["charge"], 1)
                    async with caller.run(guard, "packing"):
                        await caller.call(tools["pack"], 1)
                    await caller.call(tools["ship"], 1)
                    if self.declined:
                        raise Declined

            caller.play(work)

    def tools(self, world: World, guard: Guard, caller: Caller) -> dict[str, Any]:
        """The tools on a guard; each effect is named after its tool."""
        refused: list[int] = []

        def charge(n: int, idempotency_key: str) -> str:
            if not refused:
                refused.append(n)
                raise ConnectionRefusedError  # never sent: it is tried again
            return act("charge", idempotency_key)

        def mail(n: int, idempotency_key: str) -> str:
            if not world.happened("refuse the mail"):
                world.effect("refuse the mail")
                raise ConnectionRefusedError  # never sent: the run is held, and sends it when it is entered again
            return act("mail", idempotency_key)

        def act(what: str, key: str) -> str:
            world.effect(what, key=key if self.protection == "key" else None)
            return what

        def undo(what: str) -> Callable[..., Any]:
            def undo(n: int) -> None:
                world.effect(f"undo {what}")

            undo.__name__ = f"undo_{what}"
            return caller.body(undo)

        declared = {
            what: caller.tool(guard, what, cost="1 USD", **fields, **self._protected(world, what))
            for what, fields in (
                ("charge", {"compensate": undo("charge"), "retry": {"attempts": 2, "initial_delay": 0.0}}),
                ("pack", {"compensate": undo("pack")}),
                ("ship", {"compensate": undo("ship")}),
                ("mail", {"defer": True}),
            )
        }
        return {
            "look": caller.tool(guard, "look", effect="read")(lambda: "seen"),
            "charge": declared["charge"](charge),
            "pack": declared["pack"](lambda n, idempotency_key: act("pack", idempotency_key)),
            "ship": declared["ship"](lambda n, idempotency_key: act("ship", idempotency_key)),
            "mail": declared["mail"](mail),
        }

    def _protected(self, world: World, what: str) -> dict[str, Any]:
        if self.protection == "key":
            return {"downstream_dedupes_for": 86400.0}
        if self.protection == "none":
            return {}
        lag = LAG if self.protection == "lagging probe" else 0.0
        return {"probe": lambda n: Applied(what) if world.happened(what, lag=lag) else NotApplied(), "settle": lag}

    def recover(self, world: World) -> None:
        """A process that has the tools, and only recovers."""
        with Guard(world.store, budgets=BUDGETS) as guard:
            self.tools(world, guard, Caller(self.kind))
            guard.recover()

    def resume_as_another(self, world: World) -> None:
        """A process that resumes the order for another user: it is refused, and does nothing."""
        before = list(world.effects)
        with Guard(world.store, budgets=BUDGETS) as guard:
            tools = self.tools(world, guard, Caller("sync"))
            with pytest.raises(RunConflict), guard.run("order", id="o-1", user="bob"):
                tools["ship"](1)
        assert world.effects == before


@pytest.fixture(autouse=True)
def clock() -> Iterator[Any]:
    """A clock that is told when the lagging probe has caught up."""
    with frozen_clock() as clock:
        yield clock


def _matrix(**fields: Any) -> list[Any]:
    """Deaths that are played, then those by SIGKILL, at the points of one recording."""
    played, killed = [], []
    for number, protection in enumerate(PROTECTIONS):
        for kind in ("sync", "async"):
            order = Order(protection, kind, **fields)
            offset = 3 * number + (kind == "async")
            for at, crash in enumerate(crash_points(_quietly(order))):
                here = 3 * SAMPLE if ON_A_SERVER else 2 if kind == "async" else 1
                if FULL or (at + offset) % here == 0:
                    played.append(pytest.param(order, crash, id=f"{order}, {crash.__name__}"))
                if FULL or (at + offset) % (3 * SAMPLE if ON_A_SERVER else SAMPLE) == 0:
                    kill = CrashPoint(_quietly(order), crash.name, before=None, kill=True)
                    killed.append(pytest.param(order, kill, id=f"{order}, {kill.__name__}"))
    return played + killed


def _quietly(order: Order) -> Callable[[World], None]:
    """The order of an application that logs its errors, and exits."""

    def job(world: World) -> None:
        with contextlib.suppress(Declined, ConnectionRefusedError, OutcomeUnknown, RunClosed, CompensationFailed):
            order(world)

    return job


def _go_on(order: Order, world: World, clock: Any) -> None:
    """What people do after a crash: start it again, wait a minute, start it again, and let recovery look."""
    if world.runs.get("o-1") is not None:
        world.process(order.resume_as_another)
    for seconds in (0, LAG + 1):
        clock.advance(seconds)
        world.process(_quietly(order))
    world.process(order.recover)


def _check(order: Order, world: World) -> None:
    """The rules nobody may cross, whatever died where."""
    effects = Counter(world.effects)
    calls = [call for call in world.calls.list(open=False, limit=1000) if call.phase == "forward"]
    for call in calls:
        if call.tool == "look":
            continue
        happened = effects[call.tool]
        assert happened <= 1
        assert not (call.state == CallState.DONE and not happened), f"done, but it did not happen: {call}"
        assert not (call.state == CallState.FAILED and happened), f"failed, but it happened: {call}"
        assert not (call.state == CallState.COMPENSATED and not effects[f"undo {call.tool}"])
        if call.state not in (CallState.COMPENSATING, CallState.COMPENSATED):
            assert not effects[f"undo {call.tool}"], f"undone, but it is {call.state}"
    undos = [effect for effect in world.effects if effect.startswith("undo")]
    assert [*dict.fromkeys(undos)] == [f"undo {what}" for what in ("ship", "pack", "charge") if f"undo {what}" in undos]
    assert_history(world)
    with Guard(world.store, budgets=BUDGETS) as guard:
        assert list(guard.budgets.fsck()) == []
        [account] = guard.budgets.list("user:ann") or [None]
        counted = 0 if account is None else account.spent + account.reserved
        assert sum(effects[what] for what in STEPS) <= counted <= len(STEPS)
    going_on = [run for run in world.runs.list() if run.status in (RunState.RUNNING, RunState.COMPENSATING)]
    assert not going_on
    assert not world.calls.list(status=["running", "compensating"])


def _check_end(order: Order, world: World, *, deaths: int = 1) -> None:
    """With a key or a probe it ends without a person, and exactly once; without, it may be held, and says for what."""
    run = world.runs.get("o-1")
    if order.protection == "none" and run.status == RunState.HELD:
        assert {call.state for call in world.calls.list() if call.effect != "read"} <= {"unknown", "scheduled"}
        assert len(world.calls.list()) >= 1
        return
    assert_settled(world)
    effects = Counter(world.effects)
    if order.declined:
        assert_undone(run)
        assert all(1 <= effects[f"undo {what}"] <= deaths + 1 for what in ("charge", "pack", "ship") if effects[what])
    else:
        assert run.status == RunState.COMPLETED
        assert [effects[what] for what in STEPS] == [1, 1, 1, 1]


@pytest.mark.parametrize(("order", "crash"), _matrix())
def test_an_order_is_done_once_wherever_its_process_dies(order: Order, crash: CrashPoint, clock: Any) -> None:
    """Started again, it is completed and each effect came once; or it is in doubt, came at most once, and is held."""
    with crash as world:
        _go_on(order, world, clock)
        _check(order, world)
        _check_end(order, world)


@pytest.mark.parametrize(("order", "crash"), _matrix(declined=True))
def test_a_failed_order_is_undone_wherever_its_process_dies(order: Order, crash: CrashPoint, clock: Any) -> None:
    """Also in the middle of its rollback: everything that happened is undone, newest first, or it is held."""
    with crash as world:
        _go_on(order, world, clock)
        _check(order, world)
        _check_end(order, world)


DEATHS = {
    False: ("run order: after open", "charge: after claim", "charge: after effect", "pack: before settle"),
    True: ("run order: before rollback decision", "undo ship: after claim", "undo pack: before settle"),
}
"""Where the first process dies, before the one whose points are gone through; and whether the order is declined."""


def _twice(goes_on: Callable[[Order], Callable[[World], Any]], **fields: Any) -> list[Any]:
    cases = []
    for protection in PROTECTIONS:
        for kind in ("sync", "async") if FULL else ("sync",):
            for declined, deaths in DEATHS.items():
                order = Order(protection, kind, declined=declined, **fields)
                for death in deaths:

                    def die(world: World, order: Order = order, death: str = death) -> None:
                        world.process(_quietly(order), die_at=death)

                    with frozen_clock():
                        points = crash_points(goes_on(order), before=die)
                    cases += [pytest.param(order, crash, id=f"{order}, {death}, {crash.name}") for crash in points]
    return cases if FULL else cases[:: 32 if ON_A_SERVER else 4]


@pytest.mark.parametrize(("order", "crash"), _twice(_quietly))
def test_who_goes_on_may_die_too(order: Order, crash: CrashPoint, clock: Any) -> None:
    """The second process dies at each of its own points, and a third one finishes."""
    with crash as world:
        _go_on(order, world, clock)
        _check(order, world)
        _check_end(order, world, deaths=2)


@pytest.mark.parametrize(("order", "crash"), _twice(lambda order: order.recover, on_interrupt="compensate"))
def test_who_recovers_may_die_too(order: Order, crash: CrashPoint, clock: Any) -> None:
    """Recovery that dies is recovered: what was interrupted is undone, each step once it is known to have happened."""
    with crash as world:
        world.process(order.recover)
        clock.advance(LAG + 1)
        world.process(order.recover)
        _check(order, world)
        run = world.runs.get("o-1")
        if order.protection == "probe":
            assert_settled(world)
            assert_undone(run)
        assert run.status in (RunState.HELD, RunState.COMPENSATED, RunState.FAILED)
