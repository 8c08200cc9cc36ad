"""Runs: what is undone, what is resumed, and how a run ends (rule book (b); design, section 3, "Runs")."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import multiprocessing
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sagaspan import (
    ApprovalPending,
    CompensationFailed,
    ConfigurationError,
    Guard,
    KeyConflict,
    OutcomeUnknown,
    PolicyDenied,
    RunClosed,
    RunConflict,
    RunInProgress,
    StoreUnavailable,
    ToolTimeout,
)
from sagaspan.ledger.store import Store
from tests.cancelling import was_cancelled
from tests.conftest import Caller


class Declined(Exception):
    """What a service says no with."""


class Trip:
    """Three tools over one list of effects: ``flight`` and ``hotel`` can be undone, ``charge`` may fail."""

    def __init__(self, guard: Guard, caller: Caller, *, async_undo: bool = False) -> None:
        self.guard, self.caller = guard, caller
        self.log: list[Any] = []
        self.fail = True
        undo = Caller("async").body if async_undo else (lambda body: body)

        def cancel_flight(result: dict[str, Any]) -> None:
            self.log.append(("cancel_flight", result["id"]))

        def cancel_hotel(result: dict[str, Any], city: str) -> None:
            self.log.append(("cancel_hotel", result["id"], city))

        def flight(city: str) -> dict[str, Any]:
            self.log.append("flight")
            return {"id": "F", "city": city}

        def hotel(city: str) -> dict[str, Any]:
            self.log.append("hotel")
            return {"id": "H"}

        def charge(amount: float) -> str:
            self.log.append("charge")
            if self.fail:
                raise Declined("no money")
            return "paid"

        self.flight = caller.tool(guard, compensate=undo(cancel_flight))(flight)
        self.hotel = caller.tool(guard, compensate=undo(cancel_hotel))(hotel)
        self.charge = caller.tool(guard, effect="write")(charge)

    async def book(self) -> None:
        await self.caller.call(self.flight, "Paris")
        await self.caller.call(self.hotel, city="Paris")
        await self.caller.call(self.charge, 12.5)


UNDONE = [("cancel_hotel", "H", "Paris"), ("cancel_flight", "F")]


@pytest.fixture(params=[False, True], ids=["sync-undo", "async-undo"])
def trip(guard: Guard, caller: Caller, request: pytest.FixtureRequest) -> Trip:
    """A trip for each kind of caller, with each kind of compensation."""
    return Trip(guard, caller, async_undo=request.param)


def states(guard: Guard, run_id: str) -> dict[str, str]:
    """The state of each call of a run, by tool."""
    info = guard.runs.get(run_id)
    assert info is not None
    return {call.tool: str(call.state) for call in info.calls}


def _calling(caller: Caller, tool: Callable[..., Any]) -> Callable[..., Any]:
    """A body that calls ``tool``, of this kind of caller."""
    if not caller.is_async:
        return lambda n: tool(n)

    async def body(n: int) -> Any:
        return await tool(n)

    return body


async def _acting(caller: Caller, run: Any, verb: str) -> None:
    """``run.commit()`` or ``run.abort()``, as this kind of caller does it."""
    if caller.is_async:
        await getattr(run, f"a{verb}")()
    else:
        getattr(run, verb)()


def test_rollback_in_reverse_start_order(guard: Guard, caller: Caller, trip: Trip) -> None:
    """An error that leaves a run undoes what is done, newest first, once, with results; it is raised with a note."""

    async def job() -> None:
        with pytest.raises(Declined) as caught:
            async with caller.run(guard, "trip", id="a"):
                await trip.book()
        assert caught.value.__notes__ == ["sagaspan: run 'a': undone hotel, flight"]

    caller.play(job)
    assert trip.log == ["flight", "hotel", "charge", *UNDONE]
    assert states(guard, "a") == {
        "flight": "compensated", "hotel": "compensated", "charge": "failed",
        "cancel_flight": "done", "cancel_hotel": "done",
    }  # fmt: skip
    info = guard.runs.get("a")
    assert (info.status, info.reason, info.error) == ("compensated", "error", f"{Declined.__name__}: no money")


def test_a_completed_run_replays_whole(guard: Guard, caller: Caller, trip: Trip) -> None:
    """The same id again answers everything from the ledger, also the output, and takes no new calls."""
    trip.fail = False

    async def job() -> Any:
        async with caller.run(guard, "trip", id="a") as run:
            assert not run.resumed or trip.log == ["flight", "hotel", "charge"]
            await trip.book()
            run.commit()
            assert run.output in (None, {"ok": True})
            run.output = {"ok": True}
            if run.resumed:
                with pytest.raises(RunClosed, match="only replayed") as caught:
                    await caller.call(trip.charge, 99)
                assert (caught.value.status, caught.value.tool_ran) == ("completed", "no")
        assert (run.status, run.reason) == ("completed", None)
        return run

    assert not caller.play(job).resumed
    assert caller.play(job).resumed
    assert trip.log == ["flight", "hotel", "charge"]
    assert guard.runs.get("a").output == {"ok": True}


def test_nothing_to_undo_is_failed_and_goes_on(guard: Guard, caller: Caller, trip: Trip) -> None:
    """A run that did nothing that counts ends ``failed``; the same id goes on, and the failed step runs again."""

    @caller.tool(guard, effect="read")
    def look() -> int:
        trip.log.append("look")
        return 1

    async def job() -> None:
        async with caller.run(guard, id="a"):
            await caller.call(look)
            await caller.call(trip.charge, 1)

    with pytest.raises(Declined):
        caller.play(job)
    info = guard.runs.get("a")
    assert (info.status, info.reason) == ("failed", "error")
    trip.fail = False
    caller.play(job)
    assert trip.log == ["look", "charge", "charge"]
    assert guard.runs.get("a").status == "completed"


def test_writes_without_compensation_are_listed(guard: Guard, caller: Caller, trip: Trip) -> None:
    """A declared write that nothing undoes makes the run ``partially_compensated``, and the note names it."""
    trip.fail = False

    async def job() -> None:
        async with caller.run(guard, id="a"):
            await trip.book()
            raise Declined

    with pytest.raises(Declined) as caught:
        caller.play(job)
    assert "without compensate, so still in force: charge" in caught.value.__notes__[0]
    assert trip.log[3:] == UNDONE
    assert guard.runs.get("a").status == "partially_compensated"


def test_a_compensation_that_fails_does_not_stop_the_others(guard: Guard, caller: Caller) -> None:
    """It has three attempts; older steps are undone all the same; ``CompensationFailed`` comes from the error."""
    log: list[str] = []

    def cancel(result: str) -> None:
        log.append(f"undo-{result}")
        if result == "b":
            raise ConnectionResetError("gone")

    @caller.tool(guard, compensate=cancel)
    def act(name: str) -> str:
        log.append(name)
        return name

    async def job() -> None:
        async with caller.run(guard, id="a"):
            for name in "abc":
                await caller.call(act, name)
            raise Declined

    with pytest.raises(CompensationFailed, match=r"undone act, act; NOT undone.*act.*sagaspan show a") as caught:
        caller.play(job)
    assert isinstance(caught.value.__cause__, Declined)
    assert (caught.value.tool_ran, caught.value.call.args) == ("yes", {"name": "b"})
    assert log == ["a", "b", "c", "undo-c", "undo-b", "undo-b", "undo-b", "undo-a"]
    info = guard.runs.get("a")
    assert [str(call.state) for call in info.calls if call.phase == "forward"] == [
        "compensated", "compensation_failed", "compensated",
    ]  # fmt: skip
    assert info.status == "partially_compensated"
    with pytest.raises(RunClosed, match="cannot be reopened while 'act'"):
        guard.run(id="a", reopen=True).__enter__()


def test_a_compensation_gets_more_than_one_attempt(guard: Guard, caller: Caller) -> None:
    """A compensation that succeeds the second time has undone its step."""
    attempts = []

    def cancel(idempotency_key: str) -> None:
        attempts.append(idempotency_key)
        if len(attempts) == 1:
            raise ConnectionResetError

    act = caller.tool(guard, "act", compensate=cancel)(lambda: 1)

    async def job() -> None:
        async with caller.run(guard, id="a") as run:
            await caller.call(act)
            run.abort()

    caller.play(job)
    assert len(attempts) == 2
    assert len(set(attempts)) == 1
    assert guard.runs.get("a").status == "compensated"


def test_what_a_compensation_can_ask_for(guard: Guard) -> None:
    """Forward arguments, the result, ``compensation_data`` of it, its own key, and the call itself."""
    seen: dict[str, Any] = {}

    def cancel(
        city: str, result: Any, compensation_data: Any, idempotency_key: str, call: Any, extra: int = 3, **rest: Any
    ) -> None:
        seen.update(
            city=city, result=result, data=compensation_data, key=idempotency_key, call=call, extra=extra, rest=rest
        )

    @guard.tool(compensate=cancel)
    def book(city: str, nights: int = 2) -> dict[str, Any]:
        return {"id": 1, "compensation_data": {"token": "t"}}

    with guard.run() as run:
        book("Rome")
        run.abort()
    call = seen.pop("call")
    key = seen.pop("key")
    assert seen == {
        "city": "Rome", "result": {"id": 1, "compensation_data": {"token": "t"}}, "data": {"token": "t"}, "extra": 3,
        "rest": {"nights": 2},
    }  # fmt: skip
    assert (call.tool, call.args) == ("book", {"city": "Rome", "nights": 2})
    assert key != call.idempotency_key


def test_a_compensation_by_name(guard: Guard, caller: Caller) -> None:
    """``compensate="refund"`` is the tool of that name, also if it is declared later; its body runs unguarded."""
    log = []
    pay = caller.tool(guard, "pay", compensate="refund")(lambda order: log.append(("pay", order)))
    caller.tool(guard, "refund", effect="write")(lambda order: log.append(("refund", order)))

    async def job() -> None:
        async with caller.run(guard, id="a") as run:
            await caller.call(pay, 1)
            run.abort()

    caller.play(job)
    assert log == [("pay", 1), ("refund", 1)]


@pytest.mark.parametrize("lost", ["result", "client"])
def test_a_compensation_is_not_called_with_a_stand_in(guard: Guard, lost: str) -> None:
    """What could not be recorded cannot be handed to a compensation: the step needs a person instead."""
    undo = {"result": lambda result: pytest.fail("called"), "client": lambda client: pytest.fail("called")}[lost]
    tool = guard.tool("act", key="order", compensate=undo)(lambda order, client: object())
    with pytest.raises(CompensationFailed), guard.run(id="a"):
        tool(1, object())
        raise Declined
    assert states(guard, "a") == {"act": "compensation_failed"}


def test_a_compensation_that_forgets_to_await_has_not_undone(guard: Guard) -> None:
    """A sync function that returns a coroutine has done nothing: the step is not called compensated."""

    async def cancel() -> None: ...

    act = guard.tool("act", compensate=lambda: cancel())(lambda: 1)
    with pytest.raises(CompensationFailed), guard.run(id="a"):
        act()
        raise Declined
    assert states(guard, "a")["act"] == "compensation_failed"


def test_a_tool_that_forgets_to_await_has_not_run(guard: Guard) -> None:
    """A sync tool that returns a coroutine would have its effect after its claim: refused, and provably not applied."""

    async def send() -> None:
        pytest.fail("ran")

    act = guard.tool("act", effect="write")(lambda: send())
    with guard.run() as run:
        with pytest.raises(ConfigurationError, match="not async but returned an awaitable"):
            act()
        assert run.calls[0].state == "failed"


def test_a_rollback_waits_for_a_process_that_has_the_handler(guard: Guard, store_url: str) -> None:
    """A step whose compensation is not registered here is queued with the older ones; one that has it goes on."""
    log = []
    old = guard.tool("old", compensate=lambda: log.append("undo-old"))(lambda: 1)
    new = guard.tool("new", compensate=lambda: log.append("undo-new"))(lambda: 1)
    with guard.run(id="a"):
        old()
        new()
    with Guard(store_url) as other:
        other.tool("new", compensate=lambda: log.append("undo-new"))(lambda: 1)
        other.tool("odd", compensate="nobody")(lambda: 1)
        with pytest.raises(CompensationFailed, match="not registered in this process") as failure:
            other.run(id="a").abort()
        assert failure.value.call.tool == "old"
        with pytest.raises(RunClosed, match="waits for one that has it"), other.run(id="a"):
            pass
    assert log == ["undo-new"]
    assert states(guard, "a")["old"] == "done"
    guard.compensate("a")
    assert log == ["undo-new", "undo-old"]
    assert guard.runs.get("a").status == "compensated"


# -- abort, commit, pause ------------------------------------------------------------------------------------------


def test_abort_inside(guard: Guard, caller: Caller, trip: Trip) -> None:
    """``abort`` refuses further calls; leaving the block undoes and raises nothing."""

    async def job() -> None:
        async with caller.run(guard, id="a") as run:
            await caller.call(trip.flight, "Paris")
            run.abort("changed my mind")
            with pytest.raises(RunClosed, match=r"was aborted \(changed my mind\)") as caught:
                await caller.call(trip.hotel, "Paris")
            assert caught.value.tool_ran == "no"
        assert (run.status, run.reason) == ("compensated", "aborted")

    caller.play(job)
    assert trip.log == ["flight", ("cancel_flight", "F")]


@pytest.mark.parametrize("again", [False, True], ids=["same-object", "by-id"])
def test_abort_outside(guard: Guard, caller: Caller, trip: Trip, again: bool) -> None:
    """Outside its block a completed run is undone at once, also by id; a second abort finds nothing to do."""
    trip.fail = False

    async def job() -> None:
        async with caller.run(guard, id="a") as run:
            await caller.call(trip.flight, "Paris")
        run = guard.run(id="a") if again else run
        for _ in range(2):
            if caller.is_async:
                await run.aabort()
            else:
                run.abort()
        assert (run.status, run.reason) == ("compensated", "aborted")

    caller.play(job)
    assert trip.log == ["flight", ("cancel_flight", "F")]


def test_abort_of_a_replayed_run(guard: Guard, caller: Caller, trip: Trip) -> None:
    """Aborting inside the block of a run that is only replayed undoes it like any other."""

    async def job(abort: bool) -> Any:
        async with caller.run(guard, id="a") as run:
            await caller.call(trip.flight, "Paris")
            if abort:
                run.abort()
        return run

    assert caller.play(job, False).status == "completed"
    assert caller.play(job, True).status == "compensated"
    assert trip.log == ["flight", ("cancel_flight", "F")]


def test_abort_of_a_paused_run(guard: Guard, caller: Caller, trip: Trip) -> None:
    """A paused run is undone by an abort outside its block."""

    async def job() -> Any:
        async with caller.run(guard, id="a") as run:
            await caller.call(trip.flight, "Paris")
            run.pause()
        assert (run.status, run.reason) == ("paused", "interrupt")
        return run

    run = caller.play(job)
    run.abort()
    assert run.status == "compensated"
    assert trip.log == ["flight", ("cancel_flight", "F")]


def test_two_aborts_at_once_undo_once(guard: Guard) -> None:
    """While one thread undoes a completed run, another can neither undo nor enter it."""
    undone, started, go_on = [], threading.Event(), threading.Event()

    def cancel() -> None:
        undone.append(1)
        started.set()
        go_on.wait(60)

    act = guard.tool("act", compensate=cancel)(lambda: 1)
    with guard.run(id="a"):
        act()
    thread = threading.Thread(target=guard.run(id="a").abort)
    thread.start()
    assert started.wait(60)
    with pytest.raises(RunInProgress):
        guard.run(id="a").abort()
    with pytest.raises(RunInProgress):
        guard.run(id="a").__enter__()
    go_on.set()
    thread.join(60)
    assert undone == [1]
    assert guard.runs.get("a").status == "compensated"


def test_commit_protects_what_was_done(guard: Guard, caller: Caller, trip: Trip) -> None:
    """What was done before ``commit()`` is not undone by a later error, also in a nested run."""

    async def job() -> None:
        async with caller.run(guard, id="a") as run:
            await caller.call(trip.flight, "Paris")
            async with caller.run(guard, "inner"):
                await caller.call(trip.flight, "Rome")
            if caller.is_async:
                await run.acommit()
            else:
                run.commit()
            await caller.call(trip.hotel, "Paris")
            raise Declined

    with pytest.raises(Declined):
        caller.play(job)
    assert trip.log == ["flight", "flight", "hotel", ("cancel_hotel", "H", "Paris")]


@pytest.mark.parametrize("inside", [True, False])
def test_an_abort_keeps_what_was_committed(guard: Guard, caller: Caller, trip: Trip, inside: bool) -> None:
    """``abort`` undoes as an error would: what was done before ``commit()`` stays, in the block and after it."""

    async def job() -> None:
        async with caller.run(guard, id="a") as run:
            await caller.call(trip.flight, "Paris")
            await _acting(caller, run, "commit")
            await caller.call(trip.hotel, "Paris")
            if inside:
                await _acting(caller, run, "abort")
        if not inside:
            await _acting(caller, run, "abort")

    caller.play(job)
    assert trip.log == ["flight", "hotel", ("cancel_hotel", "H", "Paris")]
    assert states(guard, "a")["flight"] == "done"


def test_a_commit_that_is_passed_again_draws_its_line_at_the_same_place(
    guard: Guard, caller: Caller, trip: Trip
) -> None:
    """A resume comes by ``commit()`` again: what the earlier incarnation did after it is still undone by an error.

    What this one did before it is not, whatever the ledger already has.
    """

    async def job(incarnation: int) -> None:
        async with caller.run(guard, id="a") as run:
            await caller.call(trip.flight, "Paris")
            if incarnation == 2:
                await caller.call(trip.hotel, "Rome")
            await _acting(caller, run, "commit")
            async with caller.run(guard, "inner"):
                await caller.call(trip.hotel, "Paris")
            if incarnation == 1:
                await caller.call(trip.flight, "Oslo")
                run.pause()
                return
            raise Declined

    caller.play(job, 1)
    with pytest.raises(Declined):
        caller.play(job, 2)
    undone = [call.args for call in guard.runs.get("a").calls if call.state == "compensated"]
    assert undone == [{"city": "Oslo"}]
    assert trip.log == ["flight", "hotel", "flight", "hotel", ("cancel_flight", "F"), ("cancel_hotel", "H", "Paris")]


def test_a_commit_covers_what_was_done_inside_a_call_that_is_only_replayed(guard: Guard, caller: Caller) -> None:
    """Its own calls are not asked for again, but they came with it, before the commit."""
    undone: list[int] = []
    inner = caller.tool(guard, "inner", compensate=lambda n: undone.append(n))(lambda n: n)
    outer = guard.tool("outer", effect="idempotent")(_calling(caller, inner))

    async def job(end: bool) -> None:
        async with caller.run(guard, id="a") as run:
            await caller.call(outer, 1)
            await _acting(caller, run, "commit")
            await caller.call(inner, 2)
            if end:
                raise Declined
            run.pause()

    caller.play(job, False)
    with pytest.raises(Declined):
        caller.play(job, True)
    assert undone == [2]


def test_commit_outside_the_block_is_refused(guard: Guard) -> None:
    """A run that has ended has nothing to commit."""
    with guard.run() as run:
        pass
    with pytest.raises(RunClosed, match="nothing to commit"):
        run.commit()


@pytest.mark.parametrize("grouped", [False, True])
def test_a_pending_approval_pauses(guard: Guard, caller: Caller, trip: Trip, grouped: bool) -> None:
    """``ApprovalPending``, alone or out of a task group, pauses the run: nothing is undone, the same id goes on."""
    pending = ApprovalPending("ask", approval_id="x")
    error = ExceptionGroup("tasks", [pending]) if grouped else pending

    async def job(ask: bool) -> None:
        async with caller.run(guard, id="a"):
            await caller.call(trip.flight, "Paris")
            if ask:
                raise error

    with pytest.raises((ApprovalPending, ExceptionGroup)):
        caller.play(job, True)
    assert (guard.runs.get("a").status, guard.runs.get("a").reason) == ("paused", "approval")
    caller.play(job, False)
    assert (guard.runs.get("a").status, trip.log) == ("completed", ["flight"])


@pytest.mark.parametrize("critical", [None, True, False])
def test_a_body_that_suspends_is_asked_again(guard: Guard, caller: Caller, critical: bool | None) -> None:
    """``ApprovalPending`` leaving a body settles ``failed`` and claimable, whatever ``critical`` says."""
    asked = []

    @caller.tool(guard, effect="write", critical=critical)
    def act() -> str:
        asked.append(1)
        if len(asked) == 1:
            raise ApprovalPending("ask", approval_id="x")
        return "done"

    async def job() -> Any:
        async with caller.run(guard, id="a"):
            return await caller.call(act)

    with pytest.raises(ApprovalPending):
        caller.play(job)
    assert guard.runs.get("a").status == "paused"
    assert caller.play(job) == "done"


# -- identity, resume, reopen ---------------------------------------------------------------------------------------


def test_name_and_input_belong_to_an_id(guard: Guard, caller: Caller) -> None:
    """The same id with another name or input is a ``RunConflict``; order inside the input does not matter."""

    async def enter(name: str, value: Any) -> None:
        async with caller.run(guard, name, id="a", input=value):
            pass

    caller.play(enter, "trip", {"x": 1, "y": 2})
    caller.play(enter, "trip", {"y": 2, "x": 1})
    with pytest.raises(RunConflict, match="named 'trip', not 'other'"):
        caller.play(enter, "other", {"x": 1, "y": 2})
    with pytest.raises(RunConflict, match="another input"):
        caller.play(enter, "trip", {"x": 1})
    with pytest.raises(RunConflict, match="another input"):
        caller.play(enter, "trip", None)


@pytest.mark.parametrize("what", ["user", "tenant"])
@pytest.mark.parametrize("state", ["paused", "completed", "compensated"])
def test_a_run_is_not_resumed_for_another_user_or_tenant(
    guard: Guard, caller: Caller, trip: Trip, what: str, state: str
) -> None:
    """The error names the recorded one and the given one, whatever became of the run; who names none resumes it."""

    async def enter(who: str | None, **fields: Any) -> None:
        async with caller.run(guard, "trip", id="a", **{what: who}, **fields) as run:
            await trip.book()
            if state == "paused" and not run.resumed:
                run.pause()

    trip.fail = state == "compensated"
    with pytest.raises(Declined) if trip.fail else contextlib.nullcontext():
        caller.play(enter, "ada")
    assert guard.runs.get("a").status == state
    done = list(trip.log)
    for fields in ({}, {"reopen": True}):
        with pytest.raises(RunConflict, match=rf"for the {what} 'ada', not for 'bob'; nothing ran.*{what}='ada'"):
            caller.play(lambda given=fields: enter("bob", **given))
    assert trip.log == done
    if state != "compensated":
        caller.play(enter, None)
        caller.play(enter, "ada")
    assert (getattr(guard.runs.get("a"), what), trip.log) == ("ada", done)


def test_a_run_for_nobody_is_not_resumed_for_somebody(guard: Guard, caller: Caller) -> None:
    """Its budgets and approvals are not those of the user who is named later."""

    async def enter(who: str | None) -> None:
        async with caller.run(guard, "trip", id="a", user=who):
            pass

    caller.play(enter, None)
    with pytest.raises(RunConflict, match=r"for no user, not for 'bob'; nothing ran.*leave user= out"):
        caller.play(enter, "bob")


def test_a_nested_run_is_not_resumed_from_a_run_of_another_user(guard: Guard, caller: Caller) -> None:
    """It works for the user of the run around it, which is another one now."""

    async def enter(outer: str, who: str) -> None:
        async with caller.run(guard, "outer", id=outer, user=who), caller.run(guard, "inner", id="inner"):
            pass

    caller.play(enter, "one", "ada")
    with pytest.raises(RunConflict, match="the run id 'inner' belongs to a run for the user 'ada', not for 'bob'"):
        caller.play(enter, "two", "bob")
    caller.play(enter, "one", "ada")


@pytest.mark.parametrize(
    "fields", [{"id": "\ud800"}, {"user": "\ud800"}, {"input": object()}, {"tags": {"a": object()}}]
)
def test_what_cannot_be_recorded_is_refused_at_once(guard: Guard, fields: dict[str, Any]) -> None:
    """An identity or input without encoding is a ``ConfigurationError`` before anything is opened."""
    with pytest.raises(ConfigurationError, match="cannot be recorded"):
        guard.run("trip", **fields)


def test_a_rolled_back_run_is_closed_until_reopened(guard: Guard, caller: Caller, trip: Trip) -> None:
    """After a rollback the id is closed; ``reopen=True`` starts it over, with other downstream keys."""

    async def job(reopen: bool = False) -> None:
        async with caller.run(guard, id="a", reopen=reopen):
            await trip.book()

    with pytest.raises(Declined):
        caller.play(job)
    with pytest.raises(RunClosed, match="it is compensated; use a new id, or reopen=True") as caught:
        caller.play(job)
    assert caught.value.status == "compensated"
    trip.fail = False
    trip.log.clear()
    caller.play(job, True)
    assert trip.log == ["flight", "hotel", "charge"]
    calls = [call for call in guard.runs.get("a").calls if call.tool == "flight"]
    assert [str(call.state) for call in calls] == ["compensated", "done"]
    assert calls[0].idempotency_key != calls[1].idempotency_key


def test_a_reopened_run_undoes_only_what_it_did_itself(guard: Guard, caller: Caller, trip: Trip) -> None:
    """The failure of a second incarnation leaves the completed first one alone."""
    trip.fail = False

    async def job(reopen: bool) -> None:
        async with caller.run(guard, id="a", reopen=reopen) as run:
            run.output = 1 if not reopen else None
            await caller.call(trip.flight, "Paris")
            if reopen:
                raise Declined

    caller.play(job, False)
    with pytest.raises(Declined):
        caller.play(job, True)
    assert trip.log == ["flight", "flight", ("cancel_flight", "F")]
    assert guard.runs.get("a").status == "compensated"
    assert guard.runs.get("a").output is None


def test_a_second_worker_in_a_run(guard: Guard, caller: Caller, trip: Trip) -> None:
    """A second worker is refused at entry, or waits ``wait`` seconds and then resumes."""
    entered, leave = threading.Event(), threading.Event()
    trip.fail = False

    def first() -> None:
        with guard.run(id="a"):
            entered.set()
            leave.wait(60)

    async def enter(wait: float) -> Any:
        async with caller.run(guard, id="a", wait=wait) as run:
            return run

    thread = threading.Thread(target=first)
    thread.start()
    assert entered.wait(60)
    for wait in (0, 0.1):
        with pytest.raises(RunInProgress, match="in progress elsewhere"):
            caller.play(enter, wait)
    threading.Timer(0.2, leave.set).start()
    assert caller.play(enter, 10).resumed
    thread.join(60)


def test_a_second_process_in_a_run(guard: Guard, worker: Any) -> None:
    """A run that another process is inside of is in progress, and free once that process is dead."""
    holder = worker.start("with guard.run(id='a'):\n    print('in', flush=True)\n    time.sleep(30)")
    try:
        assert holder.stdout.readline() == "in\n"
        with pytest.raises(RunInProgress):
            guard.run(id="a").__enter__()
    finally:
        holder.kill()
        holder.communicate()
    with guard.run(id="a") as run:
        assert run.resumed


def test_runs_of_different_ledgers_do_not_meet(guard: Guard, tmp_path: Path) -> None:
    """Two guards with a ledger each may be inside runs of the same id at the same time."""
    with Guard(f"sqlite:///{tmp_path}/other.db") as other, guard.run(id="a"), other.run(id="a") as run:
        assert not run.resumed


@pytest.mark.of_sqlite("its paths")
def test_two_guards_of_one_ledger_do_meet(guard: Guard, tmp_path: Path) -> None:
    """Two guards on one file see one another's runs, however the path is spelt."""
    (tmp_path / "link").symlink_to(tmp_path)
    for url in ("sqlite:///ledger.db", f"sqlite:///{tmp_path}/link/ledger.db"):
        with Guard(url) as other, guard.run(id=url), pytest.raises(RunInProgress):
            other.run(id=url).__enter__()


@pytest.mark.of_sqlite("a folder in the place of its file")
def test_a_run_whose_entry_failed_can_be_entered(guard: Guard, store_url: str, tmp_path: Path) -> None:
    """An entry that the store refused leaves nothing behind in this process."""
    ledger = tmp_path / "ledger.db"
    ledger.unlink()
    ledger.mkdir()
    with pytest.raises(StoreUnavailable):
        guard.run(id="a").__enter__()
    ledger.rmdir()
    with guard.run(id="a") as run:
        assert not run.resumed


async def test_an_entry_that_was_cancelled_can_be_repeated(guard: Guard) -> None:
    """Cancelled while it enters, a run is not left in progress."""
    with guard.run():
        pass
    for _ in range(5):
        task = asyncio.create_task(guard.run(id="a").__aenter__())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    async with guard.run(id="a"):
        pass


async def test_nor_is_a_resume_that_was_cancelled(guard: Guard) -> None:
    """Wherever it was cancelled, whoever comes next enters."""
    held = guard.run(id="a", on_interrupt="hold")
    with pytest.raises(KeyboardInterrupt), held:
        raise KeyboardInterrupt
    waits = itertools.count(1)
    while await was_cancelled(guard.run(id="a").__aenter__(), next(waits)):
        pass
    assert next(waits) > 4


@pytest.mark.parametrize(
    ("how", "ends"),
    [("hold", {"fresh": "held", "resumed": "held"}), ("compensate", {"fresh": "failed", "resumed": "compensated"})],
)
async def test_who_is_cancelled_while_a_run_is_entered_leaves_it(guard: Guard, how: Any, ends: dict[str, str]) -> None:
    """It ends as if it had been cancelled in its first line: nobody has to find it, and no lease is kept for it."""
    undone: list[str] = []
    act = guard.tool("act", compensate=lambda: undone.append("act"))(lambda: "done")
    async with guard.run(id="resumed", on_interrupt="hold") as run:
        act()
        run.pause()
    for name, status in ends.items():
        waits, seen = itertools.count(1), set()
        while await was_cancelled(guard.run(id=name, on_interrupt=how, reopen=True).__aenter__(), next(waits)):
            seen |= {str(info.status) for info in guard.runs.list() if info.id == name}
        assert status in seen
        assert "running" not in seen
    assert undone == ["act"] * (how == "compensate")


def test_one_object_one_entry(guard: Guard) -> None:
    """A run that is entered cannot be entered again."""
    with guard.run() as run, pytest.raises(ConfigurationError, match="entered already"):
        run.__enter__()


def test_a_run_left_in_another_context(guard: Guard) -> None:
    """Fixtures and web frameworks enter and leave in different contexts: the run ends all the same."""
    undone = []
    act = guard.tool("act", compensate=lambda: undone.append(1))(lambda: 1)
    run = guard.run(id="a")
    inside = contextvars.copy_context()
    inside.run(run.__enter__)
    inside.run(act)
    contextvars.copy_context().run(run.__exit__, Declined, Declined(), None)
    assert (run.status, undone) == ("compensated", [1])


# -- nesting ---------------------------------------------------------------------------------------------------------


def test_an_inner_run_is_undone_with_the_outer(guard: Guard, caller: Caller, trip: Trip) -> None:
    """An inner run that completed is undone with the outer one, its steps in their place of the order."""

    async def job() -> None:
        async with caller.run(guard, "trip", id="a"):
            await caller.call(trip.flight, "Paris")
            async with caller.run(guard, "stay") as inner:
                await caller.call(trip.hotel, "Paris")
            assert (inner.id, inner.status) == ("a/stay#1", "completed")
            await caller.call(trip.flight, "Rome")
            async with caller.run(guard, "stay") as inner:
                assert inner.id == "a/stay#2"
            await caller.call(trip.charge, 1)

    with pytest.raises(Declined):
        caller.play(job)
    assert trip.log[4:] == [("cancel_flight", "F"), *UNDONE]
    assert {info.id: str(info.status) for info in guard.runs.list()} == {
        "a": "compensated", "a/stay#1": "compensated", "a/stay#2": "compensated",
    }  # fmt: skip


def test_an_inner_failure_that_is_handled(guard: Guard, caller: Caller, trip: Trip) -> None:
    """An inner run that fails is undone by itself; the outer goes on, and a resume passes there again."""

    async def job(crash: bool) -> None:
        async with caller.run(guard, "trip", id="a") as run:
            await caller.call(trip.flight, "Paris")
            with pytest.raises(Declined):
                async with caller.run(guard, "stay"):
                    await caller.call(trip.hotel, "Paris")
                    raise Declined
            if crash:
                run.pause()

    caller.play(job, True)
    assert trip.log == ["flight", "hotel", UNDONE[0]]
    caller.play(job, False)
    assert trip.log == ["flight", "hotel", UNDONE[0], "hotel", UNDONE[0]]
    assert {info.id: str(info.status) for info in guard.runs.list()} == {"a": "completed", "a/stay#1": "compensated"}


def test_an_inner_run_resumes_with_the_outer(guard: Guard, caller: Caller, trip: Trip) -> None:
    """Inner runs have their ids by place, so that a resume answers them from the ledger."""

    async def job(pause: bool) -> None:
        async with caller.run(guard, "trip", id="a") as run:
            async with caller.run(guard, "stay") as inner:
                await caller.call(trip.hotel, "Paris")
            assert inner.resumed is not pause
            async with caller.run(guard, "alone", nested=False) as alone:
                assert "/" not in alone.id
            if pause:
                run.pause()

    caller.play(job, True)
    caller.play(job, False)
    assert trip.log == ["hotel"]


def test_an_inner_doubt_holds_the_outer(guard: Guard, caller: Caller) -> None:
    """An unresolved write of an inner run holds the outer one, even if its error was handled."""

    @caller.tool(guard, effect="write")
    def act() -> None:
        raise TimeoutError

    async def job() -> None:
        async with caller.run(guard, id="a"):
            with pytest.raises(TimeoutError):
                async with caller.run(guard, "inner"):
                    await caller.call(act)

    caller.play(job)
    assert {info.id: str(info.status) for info in guard.runs.list()} == {"a": "held", "a/inner#1": "held"}


def test_a_done_parent_undoes_for_its_children(guard: Guard, caller: Caller) -> None:
    """A done step with a compensation covers the calls inside it; one without leaves each to itself."""
    log: list[str] = []
    child = caller.tool(guard, "child", compensate=lambda: log.append("undo-child"))(lambda: 1)

    def parent() -> Any:
        return child()

    async def async_parent() -> Any:
        return await child()

    body = async_parent if caller.is_async else parent
    covering = guard.tool("covering", compensate=lambda: log.append("undo-parent"))(body)
    plain = guard.tool("plain")(body)

    async def job(tool: Callable[[], Any]) -> None:
        async with caller.run(guard) as run:
            await caller.call(tool)
            assert [call.tool for call in run.calls][1] == "child"
            run.abort()

    caller.play(job, covering)
    assert log == ["undo-parent"]
    caller.play(job, plain)
    assert log == ["undo-parent", "undo-child"]


def test_a_parent_that_failed_and_ran_again_still_covers(guard: Guard) -> None:
    """A step claimed again keeps its id, so that its children know it and are not undone twice."""
    log: list[str] = []
    child = guard.tool("child", compensate=lambda: log.append("undo-child"))(lambda n: 1)
    tries = []

    @guard.tool(compensate=lambda: log.append("undo-parent"))
    def parent() -> None:
        tries.append(guard.current_call().id)
        if len(tries) == 1:
            raise Declined
        child(len(tries))

    with guard.run() as run:
        with pytest.raises(Declined):
            parent()
        parent()
        run.abort()
    assert log == ["undo-parent"]
    assert tries[0] == tries[1] == run.calls[0].id


# -- doubt, interruption, timeouts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("handled", [False, True])
def test_an_unknown_write_holds_the_run(guard: Guard, caller: Caller, trip: Trip, handled: bool) -> None:
    """A declared write in doubt holds the run, well or badly ended: nothing is compensated by a guess."""

    @caller.tool(guard, effect="write")
    def send() -> None:
        trip.log.append("send")
        raise ConnectionResetError

    async def job() -> None:
        async with caller.run(guard, id="a"):
            await caller.call(trip.flight, "Paris")
            try:
                await caller.call(send)
            except ConnectionResetError:
                if not handled:
                    raise

    if handled:
        caller.play(job)
    else:
        with pytest.raises(ConnectionResetError):
            caller.play(job)
    assert trip.log == ["flight", "send"]
    assert guard.runs.get("a").status == "held"
    with pytest.raises(OutcomeUnknown, match="started before") as caught:
        caller.play(job)
    assert (caught.value.tool_ran, caught.value.call.tool) == ("unknown", "send")
    assert trip.log == ["flight", "send"]
    with pytest.raises(OutcomeUnknown, match="not undone"):
        guard.run(id="a").abort()


def test_a_resume_on_another_path_starts_no_write_on_a_doubt(guard: Guard, caller: Caller, trip: Trip) -> None:
    """A write that is not on record is refused while one of the run is in doubt; reads go on."""
    look = caller.tool(guard, "look", effect="read")(lambda: 7)
    free = caller.tool(guard, "free")(lambda: 8)

    @caller.tool(guard, effect="write")
    def send(n: int) -> None:
        trip.log.append(n)
        raise ConnectionResetError

    async def job(n: int) -> None:
        async with caller.run(guard, id="a"):
            await caller.call(look)
            await caller.call(send, n)

    with pytest.raises(ConnectionResetError):
        caller.play(job, 1)

    async def another() -> None:
        async with caller.run(guard, id="a"):
            assert await caller.call(look) == 7
            assert await caller.call(free) == 8
            await caller.call(send, 2)

    with pytest.raises(OutcomeUnknown, match="did not run: nobody knows whether 'send'") as caught:
        caller.play(another)
    assert (caught.value.tool_ran, caught.value.call.args) == ("no", {"n": 1})
    assert trip.log == [1]


def test_a_resume_starts_no_write_on_the_doubt_of_a_run_inside(guard: Guard, caller: Caller) -> None:
    """Nor does a nested run on one of the run it is in, or of its sibling: they are undone together."""
    sent: list[int] = []

    @caller.tool(guard, effect="write")
    def send(n: int) -> None:
        sent.append(n)
        raise ConnectionResetError

    async def first() -> None:
        async with caller.run(guard, id="a"), caller.run(guard, "inner"):
            await caller.call(send, 1)

    async def another(name: str | None) -> None:
        async with caller.run(guard, id="a"):
            if name is None:
                await caller.call(send, 2)
            else:
                async with caller.run(guard, name):
                    await caller.call(send, 2)

    with pytest.raises(ConnectionResetError):
        caller.play(first)
    for name in (None, "other", "inner"):
        with pytest.raises(OutcomeUnknown, match="did not run: nobody knows whether 'send'"):
            caller.play(another, name)
    assert sent == [1]


def test_a_commit_does_not_end_a_doubt(guard: Guard, caller: Caller) -> None:
    """What was committed stays, whatever it is; a run with a write in doubt is held all the same."""

    @caller.tool(guard, effect="write")
    def send() -> None:
        raise ConnectionResetError

    async def job() -> None:
        async with caller.run(guard, id="a") as run:
            with pytest.raises(ConnectionResetError):
                await caller.call(send)
            run.commit()

    caller.play(job)
    assert (guard.runs.get("a").status, guard.runs.get("a").reason) == ("held", "unresolved")


def test_an_unknown_call_of_an_undeclared_tool(guard: Guard, caller: Caller) -> None:
    """It holds no run and forbids no new equal call; only its own record stays refused on a resume."""
    ran = []

    @caller.tool(guard)
    def act() -> int:
        ran.append(1)
        if len(ran) == 1:
            raise ConnectionResetError
        return len(ran)

    async def job(pause: bool) -> None:
        async with caller.run(guard, id="a") as run:
            with pytest.raises(ConnectionResetError if pause else OutcomeUnknown):
                await caller.call(act)
            assert await caller.call(act) == 2
            if pause:
                run.pause()

    caller.play(job, True)
    caller.play(job, False)
    assert (ran, guard.runs.get("a").status) == ([1, 1], "completed")


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit])
@pytest.mark.parametrize(("run_id", "on_interrupt", "status"), [
    ("mine", None, "held"), (None, None, "compensated"), ("mine", "compensate", "compensated"), (None, "hold", "held"),
])  # fmt: skip
def test_interruptions(
    guard: Guard, trip: Trip, caller: Caller, interruption: type[BaseException], run_id: str | None,
    on_interrupt: Any, status: str,
) -> None:  # fmt: skip
    """An interruption holds a run whose id is the caller's and undoes one of ours, unless declared otherwise."""

    async def job() -> None:
        async with caller.run(guard, id=run_id, on_interrupt=on_interrupt):
            await caller.call(trip.flight, "Paris")
            raise interruption

    with pytest.raises(interruption):
        caller.play(job)
    (info,) = guard.runs.list()
    assert (info.status, info.reason) == (status, "interrupted")
    assert trip.log == ["flight"] + ([("cancel_flight", "F")] if status == "compensated" else [])


@pytest.mark.parametrize("error", [
    RunInProgress("x"), RunClosed("x", status="completed"), StoreUnavailable("x"), OutcomeUnknown("x"),
    ExceptionGroup("g", [OutcomeUnknown("x"), ExceptionGroup("h", [StoreUnavailable("y")])]),
])  # fmt: skip
def test_errors_that_never_undo(guard: Guard, trip: Trip, caller: Caller, error: Exception) -> None:
    """Errors that say "not now" or "nobody knows" hold a run; nothing is compensated."""

    async def job() -> None:
        async with caller.run(guard, id="a"):
            await caller.call(trip.flight, "Paris")
            raise error

    with pytest.raises(type(error)):
        caller.play(job)
    assert (guard.runs.get("a").status, trip.log) == ("held", ["flight"])


@pytest.mark.parametrize(
    "error", [KeyConflict("x"), RunConflict("x"), ExceptionGroup("g", [OutcomeUnknown("x"), ValueError()])]
)
def test_other_refusals_undo(guard: Guard, trip: Trip, caller: Caller, error: Exception) -> None:
    """Any other error that leaves the run undoes it, also among errors of a group that would wait."""

    async def job() -> None:
        async with caller.run(guard, id="a"):
            await caller.call(trip.flight, "Paris")
            raise error

    with pytest.raises(type(error)):
        caller.play(job)
    assert guard.runs.get("a").status == "compensated"


def test_a_timeout_and_its_late_result(guard: Guard, caller: Caller) -> None:
    """``ToolTimeout`` is also a ``TimeoutError``; the result that comes later turns the record done."""
    go_on = threading.Event()

    @guard.tool(effect="write", timeout=0.05)
    def slow() -> str:
        go_on.wait(60)
        return "late"

    with pytest.raises(ToolTimeout, match=r"did not answer within 0.05 s") as caught, guard.run(id="a"):
        slow()
    assert isinstance(caught.value, TimeoutError)
    assert caught.value.tool_ran == "unknown"
    assert states(guard, "a") == {"slow": "unknown"}
    assert (guard.runs.get("a").status, guard.runs.get("a").reason) == ("held", "unresolved")
    go_on.set()
    _until(lambda: states(guard, "a") == {"slow": "done"})
    with guard.run(id="a") as run:
        assert slow() == "late"
    assert run.status == "completed"


def _until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_results_around_the_timeout_are_never_lost(guard: Guard) -> None:
    """A body that ends at about its timeout ends up done, whether in time or late, also while it is settled."""

    @guard.tool(effect="write", timeout=0.01)
    def close(n: int) -> int:
        time.sleep(0.008 + n % 5 * 0.001)
        return n

    with guard.run(id="a") as run:
        for n in range(20):
            with contextlib.suppress(ToolTimeout):
                assert close(n) == n
        _until(lambda: all(call.state == "done" for call in run.calls))
    assert run.status == "completed"


def test_a_result_that_arrives_during_the_settle(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the timeout and its record on disk a result is kept, and is evidence a moment later."""
    go_on = threading.Event()
    save = type(guard._store).commit

    def slowly(store: Store, changes: Any, *, synced: bool) -> bool:
        if changes[0].record.state == "unknown":
            go_on.set()
            time.sleep(0.1)
        return save(store, changes, synced=synced)

    monkeypatch.setattr(type(guard._store), "commit", slowly)

    @guard.tool(effect="write", timeout=0.05)
    def slow() -> str:
        go_on.wait(60)
        return "late"

    with guard.run() as run:
        with pytest.raises(ToolTimeout):
            slow()
        assert (run.calls[0].state, run.calls[0].result) == ("done", "late")
    assert run.status == "completed"


async def test_async_timeouts(guard: Guard) -> None:
    """An async body is cancelled at its timeout; a ``TimeoutError`` of its own is its own."""
    cancelled = []

    @guard.tool(effect="write", timeout=0.05)
    async def slow(own: bool) -> None:
        if own:
            raise TimeoutError("mine")
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            cancelled.append(1)
            raise

    async with guard.run(id="a") as run:
        with pytest.raises(ToolTimeout):
            await slow(False)
        with pytest.raises(TimeoutError, match="mine") as caught:
            await slow(True)
        assert not isinstance(caught.value, ToolTimeout)
    assert cancelled == [1]
    assert run.status == "held"


def test_an_own_timeout_error_of_a_sync_body(guard: Guard) -> None:
    """A ``TimeoutError`` that the body raises itself is no ``ToolTimeout``."""

    @guard.tool(timeout=5)
    def own() -> None:
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine") as caught, guard.run():
        own()
    assert not isinstance(caught.value, ToolTimeout)


async def test_a_sync_body_under_async(guard: Guard) -> None:
    """A sync tool called in a loop runs on a thread with the context, times out, and its late result counts."""
    go_on = threading.Event()

    def body(n: int) -> tuple[int, str]:
        if n:
            go_on.wait(60)
        return n, guard.current_call().tool.name

    from sagaspan import Policy

    tool = guard.define(body, name="body", policy=Policy(effect="write", timeout=0.1))
    async with guard.run(id="a") as run:
        assert await guard.acall_tool(tool, {"n": 0}, tool.invoke) == (0, "body")
        with pytest.raises(ToolTimeout):
            await guard.acall_tool(tool, {"n": 1}, tool.invoke)
        go_on.set()
        await asyncio.to_thread(_until, lambda: run.calls[1].state == "done")
        assert run.calls[1].result == (1, "body")


async def test_cancelling_a_call(guard: Guard) -> None:
    """A cancelled body is ``unknown``: the run is held, nothing is undone, and the cancellation goes on."""
    undone = []

    inside = asyncio.Event()

    @guard.tool(compensate=lambda: undone.append(1))
    async def act(seconds: float) -> None:
        if seconds:
            inside.set()
        await asyncio.sleep(seconds)

    async def job() -> None:
        async with guard.run(id="a"):
            await act(0)
            await act(600)

    task = asyncio.create_task(job())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    info = guard.runs.get("a")
    assert [str(call.state) for call in info.calls] == ["done", "unknown"]
    assert (info.status, undone) == ("held", [])
    (note,) = caught.value.__notes__
    assert "is held (interrupted): nothing was undone; nobody knows whether 'act' happened" in note
    assert f"sagaspan calls resolve {info.calls[1].id} OUTCOME --note WHY" in note


def test_a_run_held_at_its_end_says_what_it_waits_for(guard: Guard, caplog: pytest.LogCaptureFixture) -> None:
    """Where no error leaves it there is nobody but the log to tell; an error that names the call is not repeated."""

    @guard.tool(effect="write")
    def pay() -> None:
        raise TimeoutError

    def job() -> None:
        with guard.run(id="a"), contextlib.suppress(TimeoutError):
            pay()

    job()
    (call,) = guard.runs.get("a").calls
    assert (
        f"nobody knows whether 'pay' happened; find out, then say so: sagaspan calls resolve {call.id}" in caplog.text
    )
    with pytest.raises(OutcomeUnknown, match=call.id) as caught:
        job()
    assert "nobody knows" not in caught.value.__notes__[0]


async def test_a_rollback_is_not_cancelled_halfway(guard: Guard) -> None:
    """A second cancellation waits until everything is undone; a compensation is never broken off by it."""
    undone = []

    async def cancel(result: int) -> None:
        await asyncio.sleep(0.05)
        undone.append(result)

    act = guard.tool("act", compensate=cancel)(Caller("async").body(lambda n: n))

    async def job() -> None:
        async with guard.run(id="a", on_interrupt="compensate"):
            await act(1)
            await act(2)
            done.set()
            await asyncio.sleep(60)

    done = asyncio.Event()
    task = asyncio.create_task(job())
    await done.wait()
    for _ in range(5):
        task.cancel()
        await asyncio.sleep(0.01)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert undone == [2, 1]
    assert guard.runs.get("a").status == "compensated"


def test_calls_in_flight_are_awaited_before_the_undo(guard: Guard) -> None:
    """Leaving a run waits for calls of other threads: an undo never comes before its action."""
    log, started = [], threading.Event()

    @guard.tool(compensate=lambda: log.append("undo"))
    def slow() -> None:
        started.set()
        time.sleep(0.2)
        log.append("act")

    with pytest.raises(Declined), guard.run(id="a"):
        thread = threading.Thread(target=contextvars.copy_context().run, args=(slow,))
        thread.start()
        assert started.wait(60)
        raise Declined
    thread.join()
    assert log == ["act", "undo"]
    assert guard.runs.get("a").status == "compensated"


async def test_parallel_calls_belong_to_the_run(guard: Guard) -> None:
    """``gather``, task groups and ``to_thread`` inherit the run; their steps are undone in reverse start order."""
    log: list[str] = []
    act = guard.tool("act", compensate=lambda n: log.append(f"undo-{n}"))(lambda n: n)

    @guard.tool(compensate=lambda n: log.append(f"undo-{n}"))
    async def aact(n: int) -> int:
        await asyncio.sleep(0.01)
        return n

    async with guard.run() as run:
        await asyncio.gather(aact(1), aact(2))
        await asyncio.to_thread(act, 3)
        async with asyncio.TaskGroup() as group:
            group.create_task(aact(4))
        order = [call.args["n"] for call in run.calls]
        run.abort()
    assert log == [f"undo-{n}" for n in reversed(order)]
    assert len(log) == 4


async def test_an_async_tool_in_a_sync_block_is_refused(guard: Guard) -> None:
    """Inside a running loop a synchronous ``with`` would block it to undo: refused before the claim."""

    @guard.tool
    async def act() -> None:
        pytest.fail("ran")

    with guard.run() as run:
        with pytest.raises(ConfigurationError, match="use `async with`"):
            await act()
        assert run.calls == ()


# -- critical, require_run, the session --------------------------------------------------------------------------------


def test_a_critical_failure_stops_the_run(guard: Guard, caller: Caller, trip: Trip) -> None:
    """``critical=True``: swallowed or not, the failure refuses further calls, undoes, and is raised at the end."""

    @caller.tool(guard, critical=True)
    def check() -> None:
        raise Declined("critical")

    async def job() -> None:
        async with caller.run(guard, id="a"):
            await caller.call(trip.flight, "Paris")
            with contextlib.suppress(Declined):
                await caller.call(check)
            with pytest.raises(RunClosed, match="a critical step failed"):
                await caller.call(trip.hotel, "Paris")

    with pytest.raises(Declined, match="critical"):
        caller.play(job)
    assert trip.log == ["flight", ("cancel_flight", "F")]


def test_an_uncritical_failure_is_data(guard: Guard, caller: Caller, trip: Trip) -> None:
    """``critical=False``: the failure is returned as data, and the run goes on."""

    @caller.tool(guard, critical=False, effect="read")
    def check() -> None:
        raise Declined("no")

    async def job() -> None:
        async with caller.run(guard, id="a") as run:
            answer = await caller.call(check)
            assert answer == {"status": "failed", "error": "Declined: no", "call": run.calls[0].id}

    caller.play(job)
    assert guard.runs.get("a").status == "completed"


def test_require_run(store_url: str, caller: Caller) -> None:
    """``require_run=True`` refuses calls outside a run; inside they go."""
    with Guard(store_url, require_run=True) as guard:
        act = caller.tool(guard, "act")(lambda: 1)
        with pytest.raises(PolicyDenied, match="outside a run") as caught:
            caller.play(caller.call, act)
        assert caught.value.tool_ran == "no"

        async def job() -> int:
            async with caller.run(guard):
                return int(await caller.call(act))

        assert caller.play(job) == 1


def test_calls_outside_a_run_share_a_session(guard: Guard, caller: Caller) -> None:
    """Outside a run every call is recorded as a new one, in one session run, and nothing is undone."""
    ran = []

    @caller.tool(guard, compensate=lambda: pytest.fail("undone"))
    def act(n: int) -> int:
        ran.append(n)
        if n == 2:
            raise Declined
        return n

    async def job() -> None:
        await caller.call(act, 1)
        await caller.call(act, 1)
        with pytest.raises(Declined):
            await caller.call(act, 2)

    caller.play(job)
    assert ran == [1, 1, 2]
    (session,) = guard.runs.list()
    assert (session.name, session.status) == ("session", "running")
    assert [str(call.state) for call in guard.runs.get(session.id).calls] == ["done", "done", "failed"]
    guard.close()
    caller.play(job)
    assert sorted(str(info.status) for info in guard.runs.list()) == ["completed", "running"]


def test_a_business_key_counts_outside_a_run_too(guard: Guard, caller: Caller) -> None:
    """In the session, between it and a run, and in a later session: the recorded result comes back."""
    ran = []

    @caller.tool(guard, key="order")
    def pay(order: int) -> int:
        ran.append(order)
        return len(ran)

    async def job() -> list[int]:
        answers = [await caller.call(pay, 1), await caller.call(pay, 1)]
        async with caller.run(guard):
            answers.append(await caller.call(pay, 1))
        return answers

    assert caller.play(job) == [1, 1, 1]
    guard.close()
    assert caller.play(job) == [1, 1, 1]
    assert ran == [1]


def test_an_independent_run_is_left_alone(guard: Guard, caller: Caller, trip: Trip) -> None:
    """``nested=False``: the failure of the run it was made in does not undo it, nor its own failure that one."""

    async def job() -> None:
        async with caller.run(guard, "trip", id="a"):
            await caller.call(trip.flight, "Paris")
            async with caller.run(guard, "stay", id="b", nested=False):
                await caller.call(trip.hotel, "Paris")
            with pytest.raises(Declined):
                async with caller.run(guard, "stay", id="c", nested=False):
                    await caller.call(trip.hotel, "Rome")
                    raise Declined
            assert trip.log[-1][2] == "Rome"
            await caller.call(trip.charge, 1)

    with pytest.raises(Declined):
        caller.play(job)
    assert trip.log[-1] == ("cancel_flight", "F")
    assert ("cancel_hotel", "H", "Paris") not in trip.log
    assert {info.id: (str(info.status), info.parent_id) for info in guard.runs.list()} == {
        "a": ("compensated", None), "b": ("completed", None), "c": ("compensated", None),
    }  # fmt: skip


def test_the_nearest_done_ancestor_undoes(guard: Guard) -> None:
    """Of steps inside one another, the outermost done one with a compensation undoes; one that failed does not."""
    log: list[str] = []

    def undo(name: str) -> Callable[[], None]:
        return lambda: log.append(f"undo-{name}")

    leaf = guard.tool("leaf", compensate=undo("leaf"))(lambda: 1)
    middle = guard.tool("middle")(lambda: leaf())
    inner = guard.tool("inner", compensate=undo("inner"))(lambda: middle())

    @guard.tool(compensate=undo("outer"))
    def outer(fail: bool) -> None:
        inner()
        if fail:
            raise Declined

    with guard.run() as run:
        with pytest.raises(Declined):
            outer(True)
        run.abort()
    assert log == ["undo-inner"]
    log.clear()
    with guard.run() as run:
        outer(False)
        run.abort()
    assert log == ["undo-outer"]


def test_a_step_inside_a_committed_one_is_undone_by_itself(guard: Guard) -> None:
    """Its parent stays, so that it undoes for nobody."""
    log: list[str] = []
    leaf = guard.tool("leaf", compensate=lambda: log.append("undo-leaf"))(lambda: 1)

    @guard.tool(compensate=lambda: log.append("undo-parent"))
    def parent() -> None:
        guard.current_run().commit()
        leaf()

    with pytest.raises(Declined), guard.run():
        parent()
        raise Declined
    assert log == ["undo-leaf"]


def test_a_run_inside_a_step_is_undone_by_the_step(guard: Guard) -> None:
    """A nested run that a tool opens belongs to the step of that tool."""
    log: list[str] = []
    leaf = guard.tool("leaf", compensate=lambda: log.append("undo-leaf"))(lambda: 1)

    @guard.tool(compensate=lambda: log.append("undo-parent"))
    def parent() -> None:
        with guard.run("inner"):
            leaf()

    with guard.run(id="a") as run:
        parent()
        run.abort()
    assert log == ["undo-parent"]
    assert guard.runs.get("a/inner#1").status == "compensated"


def test_a_plain_thread_does_not_inherit_the_run(guard: Guard, warnings_of_sagaspan: Callable[[], list[str]]) -> None:
    """A call from a plain thread while a run is open is not rolled back with it, and the log says so once."""
    undone = []
    act = guard.tool("act", compensate=lambda: undone.append(1))(lambda: 1)
    with guard.run() as run:
        for _ in range(2):
            thread = threading.Thread(target=act)
            thread.start()
            thread.join()
        run.abort()
    assert undone == []
    (warning,) = warnings_of_sagaspan()
    assert "'act' was called outside a run" in warning


def test_calls_after_the_end_are_refused(guard: Guard, caller: Caller) -> None:
    """A task or thread that outlives its run starts nothing in it."""
    act = caller.tool(guard, "act")(lambda: pytest.fail("ran"))
    kept: list[contextvars.Context] = []

    async def job() -> None:
        async with caller.run(guard):
            kept.append(contextvars.copy_context())

    caller.play(job)
    with pytest.raises(RunClosed, match="has ended"):
        kept[0].run(caller.play, caller.call, act)


def test_namespaces_keep_runs_apart(guard: Guard, store_url: str) -> None:
    """The same run id and business key in another namespace are others."""
    ran = []
    with Guard(store_url, namespace="other") as other:
        for one in (guard, other):
            pay = one.tool("pay", key="order")(lambda order: ran.append(order))
            with one.run(id="a") as run:
                assert not run.resumed
                pay(1)
    assert ran == [1, 1]


def _child(url: str, results: Any) -> None:
    with Guard(url) as guard:
        act = guard.tool("act", effect="write")(lambda: 1)
        with guard.run(id="a", wait=200):
            results.put(act())


def test_many_processes_wait_for_one_run(store_url: str) -> None:
    """Processes that wait for the same run go through it one after the other, and its write runs once."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=_child, args=(store_url, results)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(240)
        assert process.exitcode == 0
    with Guard(store_url) as guard:
        assert [call.attempts for call in guard.runs.get("a").calls] == [1]
