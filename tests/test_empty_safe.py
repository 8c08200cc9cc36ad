"""``empty_safe``: a call in doubt is undone although nobody knows whether it happened (rule book (b) 2)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from sagaspan import (
    Applied,
    CompensationFailed,
    ConfigurationError,
    Guard,
    NotApplied,
    OutcomeUnknown,
    ToolTimeout,
    Unsure,
)
from sagaspan.ledger.in_doubt import record_late_result
from sagaspan.stores import connect
from tests.conftest import Caller, Worker


class Declined(Exception):
    """What a service says no with."""


class Shop:
    """``reserve`` is in doubt whenever it is asked for something lost, and can be undone nevertheless."""

    def __init__(self, guard: Guard, caller: Caller, **fields: Any) -> None:
        self.guard, self.caller = guard, caller
        self.log: list[Any] = []
        self.answers = True
        self.take = caller.tool(guard, "take", compensate=self.put_back)(self.taken)
        self.reserve = caller.tool(guard, "reserve", compensate=self.free, empty_safe=True, **fields)(self.reserved)

    def taken(self, what: str) -> str:
        self.log.append(f"take {what}")
        return what

    def reserved(self, what: str) -> str:
        self.log.append(f"reserve {what}")
        if what == "lost":
            raise TimeoutError("no answer")
        return f"r-{what}"

    def put_back(self, result: str) -> None:
        self.log.append(f"put back {result}")

    def free(self, what: str, call: Any, result: str | None = None) -> None:
        if not self.answers:
            raise ConnectionResetError("no answer")
        assert call.idempotency_key
        self.log.append(("free", what, result))

    async def run(self, *what: str, run_id: str = "r", error: BaseException | None = None) -> None:
        """A run that takes something, reserves what it is told to, takes something else, and may fail."""
        async with self.caller.run(self.guard, id=run_id):
            await self.caller.call(self.take, "first")
            for one in what:
                try:
                    await self.caller.call(self.reserve, one)
                except TimeoutError:
                    self.log.append("?")
            await self.caller.call(self.take, "last")
            if error is not None:
                raise error


UNDONE = ["put back last", ("free", "lost", None), "put back first"]


@pytest.fixture
def shop(guard: Guard, caller: Caller) -> Shop:
    return Shop(guard, caller)


def states(guard: Guard, run_id: str = "r") -> list[str]:
    """The states of a run's forward calls."""
    run = guard.runs.get(run_id)
    assert run is not None
    return [str(call.state) for call in run.calls if call.phase == "forward"]


def test_a_failing_run_undoes_what_is_in_doubt_too(guard: Guard, caller: Caller, shop: Shop) -> None:
    """In its place among the others, without a result; the run is compensated and needs nobody."""
    with pytest.raises(Declined) as left:
        caller.play(lambda: shop.run("lost", error=Declined()))
    assert shop.log[-3:] == UNDONE
    assert states(guard) == ["compensated"] * 3
    assert guard.runs.get("r").status == "compensated"
    assert "undone take, reserve, take" in left.value.__notes__[-1]
    assert guard.calls.list() == []


def test_a_run_that_ends_well_is_held_all_the_same(guard: Guard, caller: Caller, shop: Shop) -> None:
    """Whether it happened matters to whoever goes on; to whoever undoes it, it does not."""
    caller.play(lambda: shop.run("lost"))
    assert guard.runs.get("r").status == "held"
    assert [call.tool for call in guard.compensate("r", dry_run=True).undone] == ["take", "reserve", "take"]
    assert states(guard) == ["done", "unknown", "done"]
    caller.play(lambda: _compensate(guard, caller))
    assert shop.log[-3:] == UNDONE
    assert guard.runs.get("r").status == "compensated"


async def _compensate(guard: Guard, caller: Caller, call: str | None = None) -> None:
    await guard.acompensate("r", call=call) if caller.is_async else guard.compensate("r", call=call)


def test_one_call_in_doubt_can_be_undone_alone(guard: Guard, caller: Caller, shop: Shop) -> None:
    """The run, which was held for it, goes on."""
    caller.play(lambda: shop.run("lost"))
    call = guard.calls.list()[0].id
    assert [step.id for step in guard.compensate("r", call=call, dry_run=True).undone] == [call]
    caller.play(lambda: _compensate(guard, caller, call))
    assert shop.log[-1] == ("free", "lost", None)
    assert states(guard) == ["done", "compensated", "done"]


@pytest.mark.parametrize(
    ("answer", "undone"),
    [
        (Applied("r-found"), [("free", "lost", "r-found")]),
        (Applied(), [("free", "lost", None)]),
        (NotApplied(), []),
        (Unsure(), [("free", "lost", None)]),
    ],
)
def test_the_probe_is_asked_first(guard: Guard, caller: Caller, answer: Any, undone: list[Any]) -> None:
    """What it finds is undone with its result, what did not happen is left alone; only the rest is undone in doubt."""
    shop = Shop(guard, caller, probe=caller.body(lambda what: answer))
    with pytest.raises(Declined):
        caller.play(lambda: shop.run("lost", error=Declined()))
    assert shop.log[4:] == ["put back last", *undone, "put back first"]


def test_what_else_is_in_doubt_holds_the_run(guard: Guard, caller: Caller, shop: Shop) -> None:
    """Nothing is undone by a guess: one write that is not ``empty_safe`` is enough."""

    async def job() -> None:
        async with caller.run(guard, id="r"):
            for tool in (shop.reserve, pay):
                with pytest.raises(TimeoutError):
                    await caller.call(tool, "lost")
            raise Declined

    pay = caller.tool(guard, "pay", effect="write")(shop.reserved)
    with pytest.raises(Declined):
        caller.play(job)
    assert guard.runs.get("r").status == "held"
    with pytest.raises(OutcomeUnknown, match="'pay' happened"):
        caller.play(lambda: _compensate(guard, caller))
    guard.calls.resolve(guard.runs.get("r").calls[1].id, "did-not-happen", note="looked")
    report = guard.recover()
    assert [run.id for run in report.compensated] == ["r"]
    assert shop.log[2:] == [("free", "lost", None)]


def test_an_undo_in_doubt_that_fails_is_tried_again(guard: Guard, caller: Caller, shop: Shop) -> None:
    """Without a result again: nobody has found one meanwhile."""
    shop.answers = False
    with pytest.raises(CompensationFailed):
        caller.play(lambda: shop.run("lost", error=Declined()))
    assert states(guard) == ["compensated", "compensation_failed", "compensated"]
    shop.answers = True
    caller.play(lambda: _compensate(guard, caller))
    assert shop.log[-1] == ("free", "lost", None)
    assert guard.runs.get("r").status == "compensated"


def test_a_nested_run_in_doubt_is_undone_with_the_outer(guard: Guard, caller: Caller, shop: Shop) -> None:
    """By an error of the outer run, and by its own."""

    async def job(error: BaseException | None) -> None:
        async with caller.run(guard, "outer", id="o"):
            await caller.call(shop.take, "outer")
            with pytest.raises(Declined):
                await shop.run("lost", run_id="r", error=Declined())
            await shop.run("lost", run_id="s")
            raise Declined

    with pytest.raises(Declined):
        caller.play(job, None)
    assert shop.log.count(("free", "lost", None)) == 2
    assert {guard.runs.get(name).status for name in "ors"} == {"compensated"}


# -- an undo must not come before its action -------------------------------------------------------------------------


class Slow:
    """A tool whose body goes on in its thread after the timeout, until it is let go."""

    def __init__(self, guard: Guard) -> None:
        self.undone: list[str | None] = []
        self.go = threading.Event()
        self.reserve = guard.tool("reserve", compensate=self.free, empty_safe=True, timeout=0.05)(self._reserve)

    def _reserve(self) -> str:
        assert self.go.wait(60)
        return "late"

    def free(self, result: str | None = None) -> None:
        self.undone.append(result)


def test_a_body_that_still_runs_is_waited_for(guard: Guard) -> None:
    """Its late result tells what to undo; nothing was undone while it ran."""
    slow = Slow(guard)
    timer = threading.Timer(0.3, slow.go.set)
    timer.start()
    with pytest.raises(ToolTimeout), guard.run(id="r"):
        slow.reserve()
    assert slow.undone == ["late"]
    assert guard.runs.get("r").status == "compensated"


def test_a_body_that_does_not_end_holds_the_run(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may still have its effect; recovery undoes the run once it is over."""
    monkeypatch.setattr("sagaspan._leaving.GRACE_SECONDS", 0.1)
    slow = Slow(guard)
    with pytest.raises(Declined), guard.run(id="r") as run:
        with pytest.raises(ToolTimeout):
            slow.reserve()
        raise Declined
    assert guard.runs.get("r").status == "held"
    with pytest.raises(OutcomeUnknown):
        guard.compensate("r", call=run.calls[0].id)
    assert not guard.recover(dry_run=True)
    slow.go.set()
    _until(lambda: guard.runs.get("r").calls[0].state == "done")
    assert [run.id for run in guard.recover().compensated] == ["r"]
    assert slow.undone == ["late"]


def test_a_late_result_of_what_was_undone_in_doubt_is_logged(
    guard: Guard, store_url: str, warnings_of_sagaspan: Callable[[], list[str]]
) -> None:
    """Of a worker elsewhere that was taken for dead: nothing runs again, and whoever reads the log can look."""
    shop = Shop(guard, Caller("sync"))
    with pytest.raises(Declined), guard.run(id="r"):
        with pytest.raises(TimeoutError):
            shop.reserve("lost")
        raise Declined
    store = connect(store_url)
    (record, _) = store.calls_of("default", "r")
    assert record_late_result(store, record, "r-late", given_up=True, dedupes=False) is None
    store.close()
    assert states(guard) == ["compensated"]
    assert any("returned after it was undone in doubt" in message for message in warnings_of_sagaspan())


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# -- death -----------------------------------------------------------------------------------------------------------

DIES = """
def free(result=None, call=None):
    if os.environ.get("DIE_UNDOING"): die()
    effect(f"free-{result}")
@guard.tool(compensate=lambda result: effect(f"back-{result}"))
def take(what): return what
@guard.tool(compensate=free, empty_safe=True)
def reserve():
    effect("reserve")
    die()
"""
RUN = (
    DIES
    + """
with guard.run(id="o", on_interrupt="compensate"):
    take("a")
    with guard.run("inner"):
        reserve()
"""
)
RECOVER = (
    DIES
    + """
report = guard.recover()
print(*[run.status for run in (*report.compensated, *report.needs_human, *report.queued)])
"""
)


def test_killed_in_its_body_it_is_undone_by_recovery(worker: Worker) -> None:
    """Nobody knows whether it happened, and nobody need be asked."""
    assert worker.run(RUN).returncode == -9
    planned = worker.run(DIES + "print([run.id for run in guard.recover(dry_run=True).compensated])")
    assert planned.stdout == "['o/inner#1', 'o']\n"
    after = worker.run(RECOVER)
    assert (after.returncode, after.stdout) == (0, "compensated compensated\n"), after.stderr
    assert worker.effects == ["reserve", "free-None", "back-a"]


def test_killed_while_it_was_undone_it_is_undone_again(worker: Worker) -> None:
    """Under the same key, still without a result."""
    assert worker.run(RUN).returncode == -9
    assert worker.run(RECOVER, DIE_UNDOING="1").returncode == -9
    assert worker.run(RECOVER).returncode == 0
    assert worker.effects == ["reserve", "free-None", "back-a"]


def test_a_process_without_the_tools_leaves_it(worker: Worker) -> None:
    """It neither undoes in doubt nor holds the run: whoever has the tools asks the probe and undoes it."""
    assert worker.run(RUN).returncode == -9
    after = worker.run("print(*[run.id for run in guard.recover().queued])")
    assert after.stdout == "o/inner#1 o\n", after.stderr
    assert worker.run(RECOVER).stdout == "compensated compensated\n"
    assert worker.effects == ["reserve", "free-None", "back-a"]


PROBED = DIES.replace("empty_safe=True", "empty_safe=True, probe=lambda: NotApplied()")


def test_queued_for_another_process_its_probe_is_asked_there(worker: Worker) -> None:
    """Who asks for the undo may not have the probe; whoever undoes it has."""
    assert worker.run(RUN.replace("'compensate'", "'hold'").replace('"compensate"', '"hold"')).returncode == -9
    asked = worker.run("guard.recover()\ntry: guard.compensate('o')\nexcept CompensationFailed as error: print(error)")
    assert "is not registered in this process" in asked.stdout, asked.stderr
    assert worker.run(PROBED + "print([run.id for run in guard.recover().compensated])").stdout == "['o']\n"
    assert worker.effects == ["reserve", "back-a"]


# -- declarations ----------------------------------------------------------------------------------------------------


def test_it_is_checked_at_the_definition(guard: Guard) -> None:
    """It is said of a compensation, which must be able to do without a result."""
    with pytest.raises(ConfigurationError, match="empty_safe=True but no compensate="):
        guard.tool("act", effect="write", empty_safe=True)(lambda: None)
    with pytest.raises(ConfigurationError, match="needs 'result', which nobody knows of a call in doubt"):
        guard.tool("act", compensate=lambda result: None, empty_safe=True)(lambda: None)
    with pytest.raises(ConfigurationError, match="empty_safe"):
        guard.tool("act", compensate=lambda: None, empty_safe=1)(lambda: None)
    guard.tool("act", compensate="undo_it", empty_safe=True)(lambda: None)
    undo = guard.tool("undo_it")(lambda compensation_data: None)
    with pytest.raises(ConfigurationError, match="needs 'compensation_data'"):
        undo({})
