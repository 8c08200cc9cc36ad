"""``pivot``: the point of no return, which starts with nothing open, and after which a run only goes forward
(rule book (b) 6)."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any

import pytest

from sagaspan import (
    Applied,
    CallInProgress,
    ConfigurationError,
    Guard,
    NotApplied,
    OutcomeUnknown,
    RunClosed,
    Unsure,
)
from sagaspan.ledger.store import Barrier, Store
from tests.conftest import Caller, Worker


class Declined(Exception):
    """What a service says no with."""


class Order:
    """``reserve`` can be undone, ``ship`` is the pivot, ``invoice`` can be undone and may fail."""

    def __init__(self, guard: Guard, caller: Caller | None = None, **fields: Any) -> None:
        self.guard, self.caller = guard, caller or Caller("sync")
        self.log: list[str] = []
        self.fails: set[str] = set()
        tool = self.caller.tool
        self.reserve = tool(guard, "reserve", compensate=self.undo)(self.does("reserve"))
        self.ship = tool(guard, "ship", effect="irreversible", pivot=True, **fields)(self.does("ship"))
        self.invoice = tool(guard, "invoice", compensate=self.undo)(self.does("invoice"))
        self.ask = tool(guard, "ask", effect="write")(self.does("ask"))

    def does(self, what: str) -> Callable[[str], str]:
        """A body that says what it did, fails if it is to fail, and is in doubt if it is lost."""

        def body(order: str = "") -> str:
            self.log.append(what)
            if what in self.fails:
                raise Declined
            if f"{what} lost" in self.fails:
                raise TimeoutError
            return what

        return body

    def undo(self, result: str) -> None:
        self.log.append(f"undo {result}")

    async def handle(self, run_id: str = "r", **fields: Any) -> None:
        """Reserve, ship, invoice."""
        async with self.caller.run(self.guard, id=run_id, **fields):
            for tool in (self.reserve, self.ship, self.invoice):
                await self.caller.call(tool, run_id)


@pytest.fixture
def order(guard: Guard, caller: Caller) -> Order:
    return Order(guard, caller)


def states(guard: Guard, run_id: str = "r") -> list[str]:
    """The states of a run's forward calls."""
    run = guard.runs.get(run_id)
    assert run is not None
    return [str(call.state) for call in run.calls if call.phase == "forward"]


async def undone(order: Order, **fields: Any) -> Any:
    """What ``guard.compensate`` says of the run, for both kinds of caller."""
    if order.caller.is_async:
        return await order.guard.acompensate("r", **fields)
    return order.guard.compensate("r", **fields)


# -- after it --------------------------------------------------------------------------------------------------------


def test_after_its_pivot_a_run_only_goes_forward(guard: Guard, order: Order) -> None:
    """A failure undoes nothing: the run is held, and entered again it goes on where it was."""
    order.fails.add("invoice")
    with pytest.raises(Declined) as left:
        order.caller.play(order.handle)
    run = guard.runs.get("r")
    assert (run.status, run.reason) == ("held", "pivot")
    assert "its pivot is done, so it only goes forward" in left.value.__notes__[-1]
    assert order.log == ["reserve", "ship", "invoice"]
    order.fails.clear()
    order.caller.play(order.handle)
    assert order.log == ["reserve", "ship", "invoice", "invoice"]
    assert guard.runs.get("r").status == "completed"


@pytest.mark.parametrize("failing", ["ship", "reserve"])
def test_before_its_pivot_a_run_is_undone(guard: Guard, order: Order, failing: str) -> None:
    """A pivot that provably did not happen is none."""
    order.fails.add(failing)
    with pytest.raises(Declined):
        order.caller.play(order.handle)
    assert order.log == (["reserve", "ship", "undo reserve"] if failing == "ship" else ["reserve"])
    assert guard.runs.get("r").status == ("compensated" if failing == "ship" else "failed")


@pytest.mark.parametrize(("outcome", "log"), [("happened", []), ("did-not-happen", ["undo reserve"])])
def test_a_pivot_in_doubt_holds_the_run(guard: Guard, order: Order, outcome: str, log: list[str]) -> None:
    """Until it is decided; only if it did not happen is anything undone, by recovery too."""
    order.fails.add("ship lost")
    with pytest.raises(TimeoutError):
        order.caller.play(order.handle)
    assert guard.runs.get("r").status == "held"
    assert not guard.recover().compensated
    guard.calls.resolve(guard.runs.get("r").calls[1].id, outcome, note="looked")
    assert [run.id for run in guard.recover(dry_run=True).compensated] == (["r"] if log else [])
    assert [run.id for run in guard.recover().compensated] == (["r"] if log else [])
    assert order.log[2:] == log
    assert guard.runs.get("r").status == ("compensated" if log else "held")


@pytest.mark.parametrize("on_interrupt", ["hold", "compensate"])
def test_interruptions_undo_nothing_after_a_pivot(guard: Guard, order: Order, on_interrupt: str) -> None:
    """Whatever was to be done with an interrupted run."""

    async def job() -> None:
        async with order.caller.run(guard, id="r", on_interrupt=on_interrupt):
            await order.caller.call(order.reserve, "r")
            await order.caller.call(order.ship, "r")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        order.caller.play(job)
    run = guard.runs.get("r")
    assert (run.status, run.reason) == ("held", "pivot" if on_interrupt == "compensate" else "interrupted")
    assert not guard.recover().compensated
    assert order.log == ["reserve", "ship"]


def test_a_critical_failure_after_a_pivot_stops_the_run_and_undoes_nothing(guard: Guard, caller: Caller) -> None:
    """Also if somebody swallows it."""
    order = Order(guard, caller)
    check = caller.tool(guard, "check", effect="write", critical=True)(order.does("check"))
    order.fails.add("check")

    async def job() -> None:
        async with caller.run(guard, id="r"):
            await caller.call(order.reserve, "r")
            await caller.call(order.ship, "r")
            with pytest.raises(Declined):
                await caller.call(check)
            with pytest.raises(RunClosed):
                await caller.call(order.invoice, "r")

    with pytest.raises(Declined):
        caller.play(job)
    assert (guard.runs.get("r").reason, order.log) == ("pivot", ["reserve", "ship", "check"])


def test_a_commit_after_the_pivot_begins_a_new_unit(guard: Guard, order: Order) -> None:
    """Of an agent that handles order after order, the one that fails is undone."""

    async def job() -> None:
        async with order.caller.run(guard, id="r") as run:
            await order.caller.call(order.reserve, "1")
            await order.caller.call(order.ship, "1")
            await (run.acommit() if order.caller.is_async else _now(run.commit))
            await order.caller.call(order.reserve, "2")
            raise Declined

    with pytest.raises(Declined):
        order.caller.play(job)
    assert order.log == ["reserve", "ship", "reserve", "undo reserve"]
    assert guard.runs.get("r").status == "compensated"


async def _now(step: Callable[[], None]) -> None:
    step()


# -- who asks for it by name -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["abort", "compensate", "abort inside"])
def test_undone_by_name_it_goes_back_to_the_pivot(guard: Guard, order: Order, by: str) -> None:
    """What came after it is undone; it and what was before stay, and the report says so."""

    async def job() -> None:
        async with order.caller.run(guard, id="r") as run:
            for tool in (order.reserve, order.ship, order.invoice):
                await order.caller.call(tool, "r")
            if by == "abort inside":
                run.abort("no more")
            else:
                raise Declined

    async def ask() -> None:
        if by == "compensate":
            report = await undone(order)
            assert [step.tool for step in report.undone] == ["invoice"]
            assert [step.tool for step in report.kept] == ["reserve"]
            assert not report.complete
            assert "not undone any more, because a pivot after them is done: reserve" in report.sentence("r")
        elif by == "abort":
            run = guard.run(id="r")
            await (run.aabort() if order.caller.is_async else _now(run.abort))

    if by == "abort inside":
        order.caller.play(job)
    else:
        with pytest.raises(Declined):
            order.caller.play(job)
        plan = guard.compensate("r", dry_run=True)
        assert [[step.tool for step in steps] for steps in (plan.undone, plan.kept)] == [["invoice"], ["reserve"]]
    order.caller.play(ask)
    assert order.log == ["reserve", "ship", "invoice", "undo invoice"]
    assert guard.runs.get("r").status == "partially_compensated"


def test_one_call_can_be_undone_all_the_same(guard: Guard, order: Order) -> None:
    """A person who names a step before the pivot means it."""
    order.caller.play(order.handle)
    order.caller.play(lambda: undone(order, call=guard.runs.get("r").calls[0].id))
    assert order.log[3:] == ["undo reserve"]


def test_a_pivot_undone_by_hand_is_none_any_more(guard: Guard, order: Order) -> None:
    """Then what was before it can be undone too."""
    order.caller.play(order.handle)
    order.caller.play(lambda: undone(order))
    guard.calls.resolve(guard.runs.get("r").calls[1].id, "compensated", note="the parcel came back")
    order.caller.play(lambda: undone(order))
    assert order.log[3:] == ["undo invoice", "undo reserve"]
    assert guard.runs.get("r").status == "compensated"


# -- nested runs -----------------------------------------------------------------------------------------------------


def test_a_pivot_in_a_nested_run_counts_for_the_outer_one(guard: Guard, order: Order) -> None:
    """An error that leaves the outer run undoes nothing of what was done before it."""

    async def job() -> None:
        async with order.caller.run(guard, id="outer"):
            await order.caller.call(order.reserve, "outer")
            await order.handle("inner")
            if order.fails:
                raise Declined

    order.fails.add("later")
    with pytest.raises(Declined):
        order.caller.play(job)
    assert [(run.id, run.status, run.reason) for run in guard.runs.list()] == [
        ("inner", "completed", None), ("outer", "held", "pivot"),
    ]  # fmt: skip
    order.fails.clear()
    order.caller.play(job)
    assert order.log == ["reserve", "reserve", "ship", "invoice"]
    assert {run.status for run in guard.runs.list()} == {"completed"}


def test_a_nested_run_after_the_pivot_of_the_outer_one_is_undone_by_itself(guard: Guard, order: Order) -> None:
    """It is a unit of its own, of which nothing was before the pivot; what it failed at can be done in another way."""

    async def job() -> None:
        async with order.caller.run(guard, id="r"):
            await order.caller.call(order.reserve, "r")
            await order.caller.call(order.ship, "r")
            with pytest.raises(Declined):
                async with order.caller.run(guard, "inner"):
                    await order.caller.call(order.reserve, "inner")
                    raise Declined
            await order.caller.call(order.invoice, "r")

    order.caller.play(job)
    assert order.log == ["reserve", "ship", "reserve", "undo reserve", "invoice"]
    assert guard.runs.get("r/inner#1").status == "compensated"
    assert guard.runs.get("r").status == "completed"


def test_what_a_nested_run_did_before_the_pivot_stays(guard: Guard, order: Order) -> None:
    """The pivot of the outer run, done meanwhile, covers it."""

    async def job() -> None:
        async with order.caller.run(guard, id="r") as outer:
            with pytest.raises(Declined):
                async with order.caller.run(guard, "inner"):
                    await order.caller.call(order.reserve, "inner")
                    outer.activate()
                    await order.caller.call(order.ship, "r")
                    outer.deactivate()
                    await order.caller.call(order.invoice, "inner")
                    raise Declined

    order.caller.play(job)
    assert order.log == ["reserve", "ship", "invoice", "undo invoice"]
    assert guard.runs.get("r/inner#1").status == "partially_compensated"


# -- before it: the barrier ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nested", [False, True])
def test_it_does_not_start_while_an_earlier_step_is_in_doubt(guard: Guard, order: Order, nested: bool) -> None:
    """Of the whole saga: after it that step could not be undone. The error names the step; the run is held."""

    async def job() -> None:
        async with order.caller.run(guard, id="r"):
            with pytest.raises(TimeoutError):
                if nested:
                    async with order.caller.run(guard, "inner"):
                        await order.caller.call(order.ask)
                else:
                    await order.caller.call(order.ask)
            await order.handle("inside") if nested else await order.caller.call(order.ship)

    order.fails.add("ask lost")
    with pytest.raises(OutcomeUnknown, match=r"the pivot 'ship' did not run: nobody knows whether 'ask'") as refused:
        order.caller.play(job)
    assert refused.value.tool_ran == "no"
    assert refused.value.call.tool == "ask"
    assert "ship" not in order.log
    assert guard.runs.get("r").status == "held"


@pytest.mark.parametrize("answer", [Applied("asked"), NotApplied(), Unsure("down")])
def test_the_probe_is_asked_first(guard: Guard, caller: Caller, answer: Any) -> None:
    """What it decides is open no more."""
    order = Order(guard, caller)
    probe = caller.body(lambda: answer)
    lost = caller.tool(guard, "lost", effect="write", probe=probe)(order.does("lost"))
    order.fails.add("lost lost")

    async def job() -> None:
        async with caller.run(guard, id="r"):
            with pytest.raises(TimeoutError):
                await caller.call(lost)
            await caller.call(order.ship)

    if isinstance(answer, Unsure):
        with pytest.raises(OutcomeUnknown):
            caller.play(job)
    else:
        caller.play(job)
    assert order.log == ["lost", *([] if isinstance(answer, Unsure) else ["ship"])]


def test_doubts_that_nothing_rests_on_do_not_count(guard: Guard, caller: Caller) -> None:
    """Reads, idempotent and undeclared calls hold nothing up, nor does a write of another run."""
    order = Order(guard, caller)
    order.fails.add("it lost")
    tools = [
        caller.tool(guard, name, **fields)(order.does("it"))
        for name, fields in {"read": {"effect": "read"}, "set": {"effect": "idempotent"}, "what": {}}.items()
    ]
    write = caller.tool(guard, "write", effect="write")(order.does("it"))

    async def job() -> None:
        with pytest.raises(TimeoutError):
            async with caller.run(guard, id="other"):
                await caller.call(write)
        async with caller.run(guard, id="r"):
            for tool in tools:
                with pytest.raises(TimeoutError):
                    await caller.call(tool)
            await caller.call(order.ship)

    caller.play(job)
    assert order.log[-1] == "ship"
    assert guard.runs.get("r").status == "completed"


def test_it_waits_for_steps_that_run_beside_it(guard: Guard) -> None:
    """In other threads and in nested runs; a step that starts later is none of its business."""
    order, began, go_on = Order(guard), threading.Event(), threading.Event()

    def slow(n: int) -> int:
        began.set()
        assert go_on.wait(60)
        order.log.append("slow")
        return n

    tool = guard.tool("slow", compensate=lambda result: None)(slow)

    def beside() -> None:
        with guard.run("inner"):
            tool(1)

    with guard.run(id="r"):
        thread = threading.Thread(target=contextvars.copy_context().run, args=(beside,))
        thread.start()
        assert began.wait(60)
        timer = threading.Timer(0.2, go_on.set)
        timer.start()
        order.ship("r")
        thread.join(60)
    assert order.log == ["slow", "ship"]


async def test_it_waits_for_tasks_too(guard: Guard) -> None:
    """Two pivots at once are one after the other."""
    order = Order(guard, Caller("async"))
    inside: list[int] = []
    began = asyncio.Event()

    async def slow(n: int) -> int:
        inside.append(n)
        began.set()
        await asyncio.sleep(0.05)
        assert inside.pop() == n
        return n

    step = guard.tool("step", compensate=lambda result: None)(slow)
    pivot = guard.tool("pivot", effect="write", pivot=True)(slow)
    async with guard.run(id="r"):
        first = asyncio.create_task(step(1))
        await began.wait()
        await asyncio.gather(first, pivot(2), pivot(3), order.ship("x"))
    assert states(guard) == ["done"] * 4


def test_waiting_for_a_step_ends(guard: Guard) -> None:
    """After the pivot's ``timeout`` (or 30 s) it is refused, and has not run."""
    order, began, go_on = Order(guard, timeout=0.05), threading.Event(), threading.Event()

    def slow() -> None:
        began.set()
        assert go_on.wait(60)

    tool = guard.tool("slow", effect="write")(slow)
    with guard.run(id="r"):
        thread = threading.Thread(target=contextvars.copy_context().run, args=(tool,))
        thread.start()
        assert began.wait(60)
        with pytest.raises(CallInProgress, match="the pivot 'ship' did not run: 'slow'"):
            order.ship("r")
        go_on.set()
        thread.join(60)
        order.ship("r")
    assert order.log == ["ship"]


def test_a_step_that_starts_at_the_same_moment_is_seen(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    """The barrier is part of the claim: what is claimed before that commit holds it up."""
    order, began, go_on = Order(guard), threading.Event(), threading.Event()

    def slow() -> None:
        began.set()
        assert go_on.wait(60)
        order.log.append("slow")

    tool = guard.tool("slow", effect="write")(slow)
    save = type(guard._store).commit
    context = contextvars.copy_context

    def commit(self: Store, changes: Any, *, synced: bool) -> Any:
        if any(isinstance(change, Barrier) for change in changes):
            if not began.is_set():
                thread.start()
                assert began.wait(60)
            elif len(refused) == 1:
                go_on.set()
            saved = save(self, changes, synced=synced)
            refused.append(saved.refused)
            if isinstance(saved.refused, Barrier):
                go_on.set()
            return saved
        return save(self, changes, synced=synced)

    refused: list[Any] = []
    with guard.run(id="r"):
        thread = threading.Thread(target=context().run, args=(tool,), daemon=True)
        monkeypatch.setattr(type(guard._store), "commit", commit)
        order.ship("r")
        thread.join(60)
    assert isinstance(refused[0], Barrier)
    assert order.log == ["slow", "ship"]


def test_what_it_is_called_by_does_not_count(guard: Guard, caller: Caller) -> None:
    """A tool that calls the pivot is not over before it; it stays, although it began before."""
    order = Order(guard, caller)

    async def fulfil(order_id: str) -> str:
        await caller.call(order.ship, order_id)
        return "fulfil"

    body = fulfil if caller.is_async else lambda order_id: order.ship(order_id) and "fulfil"
    tool = guard.tool("fulfil", compensate=order.undo)(body)

    async def job() -> None:
        async with caller.run(guard, id="r"):
            await caller.call(order.reserve, "r")
            await caller.call(tool, "r")
            raise Declined

    with pytest.raises(Declined):
        caller.play(job)
    assert (guard.runs.get("r").reason, order.log) == ("pivot", ["reserve", "ship"])
    report = guard.compensate("r")
    assert [step.tool for step in report.kept] == ["fulfil", "reserve"]


def test_outside_a_run_it_is_a_write_like_others(guard: Guard, caller: Caller) -> None:
    """There is no saga that it could be the pivot of; a doubt of another call there is no business of it."""
    order = Order(guard, caller)
    order.fails.add("ask lost")

    async def job() -> None:
        with pytest.raises(TimeoutError):
            await caller.call(order.ask)
        await caller.call(order.ship, "x")

    caller.play(job)
    assert order.log == ["ask", "ship"]


def test_what_is_answered_from_the_ledger_needs_no_barrier(guard: Guard, order: Order) -> None:
    """The same pivot again in its run is the one that is done, whatever is in doubt meanwhile."""

    async def job() -> None:
        async with order.caller.run(guard, id="r"):
            assert await order.caller.call(order.reserve, "r") == "reserve"
            assert await order.caller.call(charge, "r") == "charge"
            with pytest.raises(TimeoutError):
                await order.caller.call(order.ask)
            assert await order.caller.call(charge, "r") == "charge"

    charge = order.caller.tool(guard, "charge", effect="write", pivot=True)(order.does("charge"))
    order.fails.add("ask lost")
    order.caller.play(job)
    assert order.log == ["reserve", "charge", "ask"]


# -- death -----------------------------------------------------------------------------------------------------------

SHOP = """
class Declined(Exception): ...
@guard.tool(compensate=lambda result: effect(f"undo-{result}"))
def reserve(n):
    effect(f"reserve-{n}")
    return n
@guard.tool(effect="irreversible", pivot=True)
def ship():
    effect("ship")
    if os.environ.get("DIE") == "in": die()
@guard.tool(compensate=lambda result: effect(f"undo-{result}"))
def invoice(n):
    effect(f"invoice-{n}")
    if os.environ.get("DIE") == "after": die()
    return n
def trip():
    with guard.run(id="r", on_interrupt="compensate"):
        reserve(1)
        with guard.run("inner"):
            reserve(2)
            ship()
        if os.environ.get("DIE") == "between": die()
        reserve(3)
        if os.environ.get("DIE") == "later": die()
"""
RECOVER = """
report = guard.recover(dry_run=True)
plan = [run.id for run in (*report.held, *report.needs_human, *report.compensated)]
report = guard.recover()
assert plan == [run.id for run in (*report.held, *report.needs_human, *report.compensated)], plan
print(*(f"{run.id}:{run.status}:{run.reason}" for run in (*report.held, *report.needs_human, *report.compensated)))
"""


@pytest.mark.parametrize("died", ["between", "later"])
def test_killed_after_its_pivot_a_run_goes_forward(worker: Worker, died: str) -> None:
    """Recovery holds it, though it was to be undone when interrupted; entered again it goes on where it was."""
    assert worker.run(SHOP + "trip()", DIE=died).returncode == -9
    after = worker.run(SHOP + RECOVER)
    assert after.stdout.split() == ["r:held:pivot"], after.stderr
    assert worker.run(SHOP + "trip()\nprint(guard.runs.get('r').status)").stdout == "completed\n"
    assert worker.effects == ["reserve-1", "reserve-2", "ship", "reserve-3"]


@pytest.mark.parametrize("outcome", ["happened", "did-not-happen"])
def test_killed_in_its_pivot_a_person_is_asked(worker: Worker, outcome: str) -> None:
    """Then the run goes forward, or is undone."""
    assert worker.run(SHOP + "trip()", DIE="in").returncode == -9
    after = worker.run(SHOP + RECOVER)
    assert after.stdout.split() == ["r/inner#1:held:interrupted", "r:held:interrupted"], after.stderr
    result = ", result=None" if outcome == "happened" else ""
    decided = worker.run(SHOP + f"guard.calls.resolve(guard.calls.list()[0].id, {outcome!r}{result}, note='looked')")
    assert decided.returncode == 0, decided.stderr
    assert worker.run(SHOP + "guard.recover()").returncode == 0
    if outcome == "happened":
        assert worker.effects == ["reserve-1", "reserve-2", "ship"]
        assert worker.run(SHOP + "trip()").returncode == 0
        assert worker.effects == ["reserve-1", "reserve-2", "ship", "reserve-3"]
    else:
        assert worker.effects == ["reserve-1", "reserve-2", "ship", "undo-2", "undo-1"]


# -- declarations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"compensate": print}, r"run.commit\(\) draws a line"),
        ({"effect": "read"}, "what changes nothing"),
        ({"effect": "write", "defer": True}, "needs no pivot"),
        ({"pivot": 1}, "field 'pivot'"),
    ],
)
def test_it_is_checked_at_the_definition(guard: Guard, fields: dict[str, Any], sentence: str) -> None:
    """What can be undone, changes nothing or waits for the end is no point of no return."""
    with pytest.raises(ConfigurationError, match=sentence):
        guard.tool("act", **{"pivot": True, **fields})(lambda: None)
    assert guard.tool("ship", effect="irreversible", pivot=True)(lambda: 1)() == 1  # nobody need be asked
    assert guard.tool("mark", pivot=True)(lambda: 1)() == 1
