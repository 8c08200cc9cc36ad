"""Deferred calls: scheduled in the run, sent when it completes, dropped when it fails (rule book (b) 7)."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from sagaspan import (
    ApprovalDenied,
    ApprovalPending,
    BudgetExceeded,
    CallInProgress,
    ConfigurationError,
    Guard,
    KeyConflict,
    NotApplied,
    OutcomeUnknown,
    PolicyDenied,
    RateLimited,
    RunClosed,
    RunError,
    Unsure,
)
from sagaspan.ledger.store import Store
from sagaspan.testing import World
from tests.conftest import Caller, Sql


class Declined(Exception):
    """What a service says no with."""


class Post:
    """An outbox over one list of effects: ``mail`` is deferred and can be recalled, ``book`` is a step like others."""

    def __init__(self, guard: Guard, caller: Caller) -> None:
        self.guard, self.caller = guard, caller
        self.log: list[str] = []
        self.problems: dict[str, BaseException] = {}

        def mail(to: str) -> str:
            problem = self.problems.get(to)
            if problem is not None:
                raise problem
            self.log.append(f"mail {to}")
            return f"sent to {to}"

        def recall(result: str) -> None:
            self.log.append(f"recall {result.removeprefix('sent to ')}")

        def book(what: str) -> str:
            self.log.append(f"book {what}")
            return what

        def cancel(what: str) -> None:
            self.log.append(f"cancel {what}")

        self.mail = caller.tool(guard, defer=True, compensate=recall, not_applied=(Declined,))(mail)
        self.book = caller.tool(guard, compensate=cancel)(book)

    async def play(self, *steps: str, run_id: str = "a", **options: Any) -> None:
        """A run whose steps are ``book WHAT``, ``mail TO``, ``commit``, ``busy`` or ``fail``."""
        async with self.caller.run(self.guard, "post", id=run_id, **options) as run:
            for step in steps:
                verb, _, what = step.partition(" ")
                if verb == "fail":
                    raise KeyError(what)
                if verb == "busy":
                    raise CallInProgress(what)
                if verb == "commit":
                    await (run.acommit() if self.caller.is_async else _nothing(run.commit()))
                else:
                    await self.caller.call({"mail": self.mail, "book": self.book}[verb], what)


async def _nothing(_: None) -> None: ...


@pytest.fixture
def post(guard: Guard, caller: Caller) -> Post:
    """A post for each kind of caller."""
    return Post(guard, caller)


def states(guard: Guard, run_id: str = "a") -> list[str]:
    """Tool, argument and state of each call of a run."""
    info = guard.runs.get(run_id)
    assert info is not None
    return [f"{call.tool} {next(iter(call.args.values()), '')} {call.state}" for call in info.calls]


# -- sent at the end -----------------------------------------------------------------------------------------------


def test_it_is_sent_when_the_run_completes(guard: Guard, caller: Caller, post: Post) -> None:
    """The body does not run before; the caller gets data that says so; the order of scheduling is that of sending."""

    async def job() -> None:
        async with caller.run(guard, id="a") as run:
            answer = await caller.call(post.mail, "ann")
            assert json.loads(json.dumps(answer)) == answer
            assert (answer["status"], answer["tool"], answer["record"]) == ("scheduled", "mail", run.calls[0].id)
            assert (run.calls[0].state, run.calls[0].attempts) == ("scheduled", 0)
            await caller.call(post.book, "room")
            await caller.call(post.mail, "bob")
            assert post.log == ["book room"]
        assert (run.status, run.reason) == ("completed", None)

    caller.play(job)
    assert post.log == ["book room", "mail ann", "mail bob"]
    ann = next(call for call in guard.runs.get("a").calls if call.args == {"to": "ann"})
    assert (ann.state, ann.result, ann.attempts) == ("done", "sent to ann", 1)


def test_what_is_on_disk_before_the_first_is_sent(
    guard: Guard, caller: Caller, post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The schedule, then the decision to complete, then each claim: all of them synced."""
    save = type(guard._store).commit

    def commit(store: Store, changes: Any, *, synced: bool) -> Any:
        seen.append((changes[-1].audit.event, synced))
        return save(store, changes, synced=synced)

    seen: list[tuple[str, bool]] = []
    monkeypatch.setattr(type(guard._store), "commit", commit)
    caller.play(post.play, "mail ann", "mail bob")
    synced = [event for event, to_disk in seen if to_disk]
    assert synced == ["schedule", "schedule", "run.finish", "claim", "claim", "run.complete"]


def test_a_worker_that_was_taken_over_sends_nothing_more(guard: Guard, caller: Caller, sql: Sql) -> None:
    """Its run has another owner since the first call: the second is that one's to send."""
    sent: list[int] = []

    @caller.tool(guard, defer=True)
    def send(n: int) -> None:
        sent.append(n)
        sql("update runs set epoch = epoch + 1, version = version + 1")

    async def job() -> None:
        async with caller.run(guard, id="a"):
            await caller.call(send, 1)
            await caller.call(send, 2)

    with pytest.raises(RunClosed, match="was taken over"):
        caller.play(job)
    assert sent == [1]
    assert states(guard) == ["send 2 scheduled", "send 1 done"]
    assert (guard.runs.get("a").status, guard.runs.get("a").completing) == ("running", True)


@pytest.mark.parametrize("meanwhile", ["unknown", "done"])
def test_a_worker_that_was_taken_over_gives_up_nothing(guard: Guard, caller: Caller, sql: Sql, meanwhile: str) -> None:
    """Somebody else judged or sent its call meanwhile: ``critical=False`` makes that no failure."""

    @caller.tool(guard, defer=True, critical=False, marks_sending=True)
    def send(n: int) -> None:
        sql("update calls set state = ?, version = version + 1", (meanwhile,))
        guard.current_call().sending()
        pytest.fail("sent")

    async def job() -> None:
        async with caller.run(guard, id="a"):
            await caller.call(send, 1)

    doubt = pytest.raises(OutcomeUnknown, match="taken over by another worker")
    with doubt if meanwhile == "unknown" else contextlib.nullcontext():
        caller.play(job)
    assert states(guard) == [f"send 1 {meanwhile}"]


def test_a_run_that_fails_drops_it(guard: Guard, caller: Caller, post: Post) -> None:
    """Nothing is sent and nothing of it needs an undo; the audit says why, the note on the error what."""
    with pytest.raises(KeyError) as caught:
        caller.play(post.play, "book room", "mail ann", "fail")
    assert post.log == ["book room", "cancel room"]
    assert "mail ann refused" in states(guard)
    assert guard.runs.get("a").status == "compensated"
    assert caught.value.__notes__ == ["sagaspan: run 'a': undone book; deferred and not sent: mail"]
    mail = guard.runs.get("a").calls[1]
    (row,) = [row for row in guard._store.audit_of("default", "a") if row.call_id == mail.id and row.event == "drop"]
    assert (row.from_state, row.to_state, row.detail) == ("scheduled", "refused", "run a was undone: error")


def test_a_run_that_only_scheduled_has_nothing_to_undo(guard: Guard, caller: Caller, post: Post) -> None:
    """It ends ``failed``, so that the same id goes on, and schedules again what was dropped."""
    with pytest.raises(KeyError):
        caller.play(post.play, "mail ann", "fail")
    assert guard.runs.get("a").status == "failed"
    caller.play(post.play, "mail ann")
    assert post.log == ["mail ann"]
    assert states(guard) == ["mail ann done"]


def test_an_abort_drops_it(guard: Guard, caller: Caller, post: Post) -> None:
    """Inside the block, and outside of a run that is held."""

    async def job(abort: bool) -> Any:
        async with caller.run(guard, id="a" if abort else "b") as run:
            await caller.call(post.mail, "ann")
            if abort:
                run.abort()
                return run
            raise OutcomeUnknown("elsewhere")

    caller.play(job, True)
    with pytest.raises(OutcomeUnknown):
        caller.play(job, False)
    assert (guard.runs.get("b").status, states(guard, "b")) == ("held", ["mail ann scheduled"])
    guard.run(id="b").abort()
    assert states(guard, "a") == states(guard, "b") == ["mail ann refused"]
    assert post.log == []


def test_a_paused_or_held_run_keeps_it(guard: Guard, caller: Caller, post: Post) -> None:
    """It waits; asked again in the resumed run it is answered as before, and scheduled once."""

    async def job(pause: bool) -> Any:
        async with caller.run(guard, id="a") as run:
            answer = await caller.call(post.mail, "ann")
            if pause:
                run.pause()
        return answer

    first = caller.play(job, True)
    assert states(guard) == ["mail ann scheduled"]
    assert caller.play(job, False) == first
    assert post.log == ["mail ann"]
    assert caller.play(job, False) == first  # a completed run replays whole
    assert post.log == ["mail ann"]
    assert states(guard) == ["mail ann done"]


def test_a_doubt_holds_it_back(guard: Guard, caller: Caller, post: Post) -> None:
    """A run that ends with a write in doubt is held, and sends nothing."""

    @caller.tool(guard, effect="write")
    def pay() -> None:
        raise ConnectionResetError

    async def job() -> None:
        async with caller.run(guard, id="a"):
            await caller.call(post.mail, "ann")
            with contextlib.suppress(ConnectionResetError):
                await caller.call(pay)

    caller.play(job)
    assert (guard.runs.get("a").status, post.log) == ("held", [])


def test_an_equal_call_is_scheduled_once(
    guard: Guard, caller: Caller, post: Post, warnings_of_sagaspan: Callable[[], list[str]]
) -> None:
    """It is a write, so it is done once a run, and the log says so; ``repeat="new"`` sends each."""
    again = caller.tool(guard, "again", defer=True, repeat="new")(lambda to: post.log.append(f"again {to}"))

    async def job() -> None:
        async with caller.run(guard, id="a"):
            one, two = [await caller.call(post.mail, "ann") for _ in range(2)]
            assert one == two
            one, two = [await caller.call(again, "ann") for _ in range(2)]
            assert one["record"] != two["record"]

    caller.play(job)
    assert post.log == ["mail ann", "again ann", "again ann"]
    (warning,) = warnings_of_sagaspan()
    assert "'mail' was already scheduled" in warning


def test_an_irreversible_tool_may_be_deferred(guard: Guard, caller: Caller) -> None:
    """It needs no ``approve=`` then; an equal call is asked about, and scheduled again if somebody agrees."""
    wiped: list[int] = []
    wipe = caller.tool(guard, "wipe", effect="irreversible", defer=True)(lambda n: wiped.append(n))

    async def job() -> None:
        async with caller.run(guard):
            await caller.call(wipe, 1)
            with contextlib.suppress(ApprovalDenied):
                await caller.call(wipe, 1)

    with guard.override(approver=lambda _: False):
        caller.play(job)
    assert wiped == [1]
    with guard.override(approver=lambda _: True):
        caller.play(job)
    assert wiped == [1, 1, 1]


# -- commit --------------------------------------------------------------------------------------------------------


def test_a_commit_sends_what_was_scheduled_so_far(guard: Guard, caller: Caller, post: Post) -> None:
    """What it sent is not undone by a later error, and what was scheduled after it is dropped."""
    with pytest.raises(KeyError):
        caller.play(post.play, "mail ann", "book room", "commit", "book car", "mail bob", "fail")
    assert post.log == ["book room", "mail ann", "book car", "cancel car"]
    assert [state for state in states(guard) if state.startswith("mail")] == ["mail ann done", "mail bob refused"]
    assert guard.runs.get("a").status == "compensated"


def test_a_commit_that_is_passed_again_sends_nothing_more(guard: Guard, caller: Caller, post: Post) -> None:
    """What was scheduled after it waits for the end of the run, in the incarnation after a crash as before it."""
    with pytest.raises(CallInProgress):
        caller.play(post.play, "mail ann", "commit", "mail bob", "busy")
    assert post.log == ["mail ann"]
    with pytest.raises(KeyError):
        caller.play(post.play, "mail ann", "commit", "fail")
    assert post.log == ["mail ann"]
    assert states(guard) == ["mail ann done", "mail bob refused"]


def test_after_a_commit_the_same_call_is_answered_as_before(guard: Guard, caller: Caller, post: Post) -> None:
    """It was scheduled, and is not scheduled again."""

    async def job() -> None:
        async with caller.run(guard, id="a") as run:
            first = await caller.call(post.mail, "ann")
            run.commit()
            assert post.log == ["mail ann"]
            assert await caller.call(post.mail, "ann") == first

    caller.play(job)
    assert post.log == ["mail ann"]


def test_a_commit_that_cannot_send_says_so(guard: Guard, caller: Caller, post: Post) -> None:
    """Its error reaches the block; if it leaves it, the run is held, and entering it again tries again."""
    post.problems["ann"] = Declined("mailbox full")
    with pytest.raises(Declined, match="mailbox full") as caught:
        caller.play(post.play, "book room", "mail ann", "mail bob", "commit")
    assert "failed, so it was not sent, and 1 deferred after it wait" in caught.value.__notes__[0]
    assert (guard.runs.get("a").status, guard.runs.get("a").reason) == ("held", "unsent")
    assert post.log == ["book room"]
    with pytest.raises(Declined):
        caller.play(post.play, "book room", "mail ann", "mail bob", "commit", "mail cid")
    assert (guard.runs.get("a").status, guard.runs.get("a").reason) == ("held", "unsent")
    post.problems.clear()
    caller.play(post.play, "book room", "mail ann", "mail bob", "commit", "mail cid")
    assert post.log == ["book room", "mail ann", "mail bob", "mail cid"]
    assert guard.runs.get("a").status == "completed"


def test_a_commit_that_failed_and_was_handled(guard: Guard, caller: Caller, post: Post) -> None:
    """The run may go on; its end tries again, in the order of scheduling. An abort gives it up."""
    post.problems["ann"] = Declined()

    async def job(run_id: str, abort: bool) -> None:
        async with caller.run(guard, id=run_id) as run:
            await caller.call(post.mail, "ann")
            with pytest.raises(Declined):
                run.commit()
            await caller.call(post.mail, "bob")
            if abort:
                run.abort()
            else:
                post.problems.clear()

    caller.play(job, "aborted", True)
    assert post.log == []
    assert states(guard, "aborted") == ["mail ann failed", "mail bob refused"] or states(guard, "aborted") == [
        "mail bob refused", "mail ann failed"
    ]  # fmt: skip
    caller.play(job, "kept", False)
    assert post.log == ["mail ann", "mail bob"]


# -- what cannot be sent -------------------------------------------------------------------------------------------


def test_a_send_that_fails_holds_the_run(guard: Guard, caller: Caller, post: Post) -> None:
    """The block has ended well, so nothing is undone; its own error is raised, what comes after it waits.

    Entering the run again sends it, without running the block's steps again.
    """
    post.problems["bob"] = Declined("no such mailbox")
    steps = ("book room", "mail ann", "mail bob", "mail cid")
    with pytest.raises(Declined, match="no such mailbox") as caught:
        caller.play(post.play, *steps)
    (note,) = caught.value.__notes__
    assert "its deferred call 'mail'" in note
    assert "failed, so it was not sent, and 1 deferred after it wait; enter the run again" in note
    info = guard.runs.get("a")
    assert (info.status, info.reason, info.error) == ("held", "unsent", "Declined: no such mailbox")
    assert info.completing
    assert post.log == ["book room", "mail ann"]
    with pytest.raises(Declined):
        caller.play(post.play, *steps)
    assert guard.runs.get("a").status == "held"
    post.problems.clear()
    caller.play(post.play, *steps)
    assert post.log == ["book room", "mail ann", "mail bob", "mail cid"]
    assert guard.runs.get("a").status == "completed"


def test_a_send_in_doubt_holds_the_run(guard: Guard, caller: Caller, post: Post) -> None:
    """Nobody knows whether it was sent: it is not sent again by a guess, and what comes after it waits."""
    post.problems["ann"] = ConnectionResetError()
    with pytest.raises(ConnectionResetError) as caught:
        caller.play(post.play, "mail ann", "mail bob")
    assert "may or may not have been sent" in caught.value.__notes__[0]
    assert (guard.runs.get("a").status, guard.runs.get("a").reason) == ("held", "unresolved")
    with pytest.raises(OutcomeUnknown, match="nobody knows if it happened"):
        caller.play(post.play, "mail ann", "mail bob")
    assert (guard.runs.get("a").status, guard.runs.get("a").reason) == ("held", "unresolved")
    (ann,) = [call for call in guard.runs.get("a").calls if call.state == "unknown"]
    guard.calls.resolve(ann.id, "happened", note="ann has it")
    caller.play(post.play, "mail ann", "mail bob")
    assert (guard.runs.get("a").status, post.log) == ("completed", ["mail bob"])


def test_an_uncritical_send_stops_nothing(
    guard: Guard, caller: Caller, post: Post, warnings_of_sagaspan: Callable[[], list[str]]
) -> None:
    """``critical=False``: its failure is in the log and on the record, the others are sent, the run completes."""

    @caller.tool(guard, defer=True, critical=False, not_applied=(Declined,))
    def note(to: str) -> None:
        raise post.problems[to]

    post.problems = {"x": Declined("no"), "y": ConnectionResetError()}

    async def job(to: str) -> None:
        async with caller.run(guard, id=to):
            assert (await caller.call(note, to))["status"] == "scheduled"
            await caller.call(post.mail, "ann")

    caller.play(job, "x")
    assert (guard.runs.get("x").status, post.log) == ("completed", ["mail ann"])
    assert states(guard, "x")[0] == "note x failed"
    (warning,) = warnings_of_sagaspan()
    assert "of tool 'note' failed and is not sent (critical=False): no" in warning
    caller.play(job, "x")  # it replays, and tries nothing again
    assert post.log == ["mail ann"]
    with pytest.raises(ConnectionResetError):  # a doubt is a doubt
        caller.play(job, "y")
    assert (guard.runs.get("y").status, post.log) == ("held", ["mail ann", "mail ann"])


def test_a_failed_send_can_be_given_up_or_tried_again_by_a_person(guard: Guard, caller: Caller, post: Post) -> None:
    """``did-not-happen`` gives it up, ``happened``: somebody did it, ``retry`` is what entering does anyway."""
    post.problems["ann"] = Declined()
    for outcome, log, state in (
        ("did-not-happen", ["mail bob"], "failed"), ("happened", ["mail bob"], "done"),
        ("retry", ["mail ann", "mail bob"], "done"),
    ):  # fmt: skip
        post.log.clear()
        post.problems["ann"] = Declined()
        with pytest.raises(Declined):
            caller.play(functools.partial(post.play, run_id=outcome), "mail ann", "mail bob")
        (ann,) = [call for call in guard.runs.get(outcome).calls if call.state == "failed"]
        post.problems.clear()
        guard.calls.resolve(ann.id, outcome, note="by hand")
        caller.play(functools.partial(post.play, run_id=outcome), "mail ann", "mail bob")
        assert post.log == log
        assert (guard.calls.get(ann.id).state, guard.runs.get(outcome).status) == (state, "completed")
    assert guard.calls.late() == []


def test_a_scheduled_call_can_be_given_up(guard: Guard, caller: Caller, post: Post) -> None:
    """By a person, or by undoing just it: it is not sent, and the others are."""

    async def job() -> None:
        async with caller.run(guard, id="a") as run:
            for to in ("ann", "bob", "cid", "dan"):
                await caller.call(post.mail, to)
            calls = run.calls
            guard.calls.resolve(calls[0].id, "did-not-happen", note="ann said no")
            guard.calls.resolve(calls[2].id, "happened", result="sent to cid", note="told her myself")
            assert guard.compensate("a", call=calls[1].id, dry_run=True).unsent[0].id == calls[1].id
            assert guard.compensate("a", call=calls[1].id).unsent[0].state == "refused"
            assert guard.compensate("a", call=calls[1].id).unsent == ()

    caller.play(job)
    assert post.log == ["mail dan"]
    assert states(guard) == ["mail ann refused", "mail bob refused", "mail cid done", "mail dan done"]
    guard.compensate("a")
    assert post.log == ["mail dan", "recall dan", "recall cid"]


def test_the_probe_of_a_send_in_doubt_is_asked(guard: Guard, caller: Caller) -> None:
    """As for every other call: it may find that it was not sent, and then it is."""
    sent: list[str] = []
    answers: list[Any] = [Unsure("busy"), NotApplied()]

    @caller.tool(guard, defer=True, probe=lambda to: answers.pop(0))
    def mail(to: str) -> None:
        sent.append(to)
        if len(sent) == 1:
            raise ConnectionResetError

    async def job() -> None:
        async with caller.run(guard, id="a"):
            await caller.call(mail, "ann")

    with pytest.raises(ConnectionResetError):
        caller.play(job)
    with pytest.raises(OutcomeUnknown):
        caller.play(job)
    caller.play(job)
    assert (sent, answers) == (["ann", "ann"], [])
    assert guard.runs.get("a").status == "completed"


def test_retries_and_keys_are_as_usual(guard: Guard, caller: Caller) -> None:
    """A send is tried as often as its policy says, under the key that the call was scheduled with."""
    keys: list[Any] = []

    @caller.tool(guard, defer=True, retry=3, not_applied=(Declined,))
    def mail(to: str, idempotency_key: str = "") -> str:
        keys.append((idempotency_key, guard.current_call().idempotency_key))
        if len(keys) < 3:
            raise Declined
        return to

    async def job() -> Any:
        async with caller.run(guard, id="a") as run:
            await caller.call(mail, "ann")
            return run

    run = caller.play(job)
    (call,) = run.calls
    assert (call.state, call.attempts, len(keys)) == ("done", 3, 3)
    assert set(keys) == {(call.idempotency_key, call.idempotency_key)}


def test_the_window_of_a_key_starts_when_it_is_sent(guard: Guard, caller: Caller, monkeypatch: Any) -> None:
    """``downstream_dedupes_for`` counts from the first sending, not from the scheduling, which may be long ago."""
    sent: list[str] = []

    @caller.tool(guard, defer=True, downstream_dedupes_for=100)
    def mail(to: str) -> None:
        sent.append(to)
        if len(sent) == 1:
            raise ConnectionResetError

    late = [0]
    import sagaspan._clock as clock

    true_time = clock.time.time_ns
    monkeypatch.setattr(clock.time, "time_ns", lambda: true_time() + late[0] * 10**9)

    async def job(wait: int) -> None:
        async with caller.run(guard, id="a"):
            await caller.call(mail, "ann")
            late[0] += wait

    with pytest.raises(ConnectionResetError):
        caller.play(job, 1000)
    late[0] += 50
    caller.play(job, 0)
    assert sent == ["ann", "ann"]
    assert guard.runs.get("a").status == "completed"


# -- nesting -------------------------------------------------------------------------------------------------------


def test_a_nested_run_waits_for_the_outermost(guard: Guard, caller: Caller, post: Post) -> None:
    """Neither its completion nor its commit sends anything; ``nested=False`` does at once."""

    async def job() -> None:
        async with caller.run(guard, id="a"):
            await caller.call(post.mail, "one")
            async with caller.run(guard, "inner") as inner:
                await caller.call(post.mail, "two")
                inner.commit()
            assert inner.status == "completed"
            async with caller.run(guard, "alone", nested=False):
                await caller.call(post.mail, "alone")
            assert post.log == ["mail alone"]
            await caller.call(post.mail, "three")

    caller.play(job)
    assert post.log == ["mail alone", "mail one", "mail two", "mail three"]
    assert states(guard, "a/inner#1") == ["mail two done"]


def test_what_a_nested_run_committed_waits_when_it_is_entered_again(guard: Guard, caller: Caller, post: Post) -> None:
    """The run around it may yet fail: then nothing of it was sent."""

    async def job(*, resumed: bool) -> None:
        async with caller.run(guard, id="a"), caller.run(guard, "inner", id="b") as inner:
            if resumed:
                raise Declined
            await caller.call(post.mail, "one")
            inner.commit()
            inner.pause()
            raise KeyboardInterrupt

    for resumed, error in ((False, KeyboardInterrupt), (True, Declined)):
        with pytest.raises(error):
            caller.play(functools.partial(job, resumed=resumed))
    assert (post.log, states(guard, "b")) == ([], ["mail one refused"])


def test_what_a_nested_run_committed_waits_in_recovery() -> None:
    """Its process died; the run around it is undone, so nothing of it is sent."""

    def job(world: World) -> None:
        guard = Guard(world.store)
        mail = guard.tool("mail", defer=True)(lambda: world.effect("mail"))
        with guard.run(id="a", on_interrupt="compensate"), guard.run(id="b") as inner:
            mail()
            inner.commit()
            world.effect("last")

    def recover(world: World) -> None:
        guard = Guard(world.store)
        guard.tool("mail", defer=True)(lambda: world.effect("mail"))
        guard.recover()

    with World() as world:
        world.process(job, die_at="last: after effect")
        world.process(recover)
        assert world.effects == ["last"]
        assert [call.state for call in world.calls.list(open=False)] == ["refused"]


def test_the_failure_of_the_outer_run_drops_it(guard: Guard, caller: Caller, post: Post) -> None:
    """Also what a nested run scheduled that has completed; a nested run that fails drops only its own."""

    async def job(outer_fails: bool, run_id: str) -> None:
        async with caller.run(guard, id=run_id):
            await caller.call(post.mail, "one")
            with contextlib.suppress(Declined):
                async with caller.run(guard, "inner", id=f"{run_id}-inner"):
                    await caller.call(post.mail, "two")
                    if not outer_fails:
                        raise Declined
            if outer_fails:
                raise Declined

    with pytest.raises(Declined):
        caller.play(job, True, "a")
    assert states(guard, "a") + states(guard, "a-inner") == ["mail one refused", "mail two refused"]
    caller.play(job, False, "b")
    assert states(guard, "b") + states(guard, "b-inner") == ["mail one done", "mail two refused"]
    assert post.log == ["mail one"]


def test_a_nested_run_that_outlives_the_outer_one_sends_itself(guard: Guard, caller: Caller, post: Post) -> None:
    """Paused while the outer run completed, it keeps what it scheduled, and sends it when it completes."""

    async def outer() -> None:
        async with caller.run(guard, id="a"), caller.run(guard, "inner", id="b") as inner:
            await caller.call(post.mail, "ann")
            inner.pause()

    async def inner() -> None:
        async with caller.run(guard, "inner", id="b"):
            await caller.call(post.mail, "ann")

    caller.play(outer)
    assert (guard.runs.get("a").status, post.log) == ("completed", [])
    caller.play(inner)
    assert (guard.runs.get("b").status, post.log) == ("completed", ["mail ann"])


def test_what_a_deferred_body_calls_is_a_step_of_the_run(guard: Guard, caller: Caller) -> None:
    """With its own numbers, so that an equal call of the block is another one; deferred calls in it are sent too."""
    log: list[str] = []
    look = caller.tool(guard, "look")(lambda n: log.append(f"look {n}") or len(log))
    last = caller.tool(guard, "last", defer=True)(lambda n: log.append(f"last {n}"))
    step = caller.tool(guard, "step", compensate=lambda n: log.append(f"undo {n}"))(lambda n: log.append(f"step {n}"))

    def body(n: int) -> Any:
        with guard.run("inside"):
            step(n)
        last(n)
        return look(n)

    async def async_body(n: int) -> Any:
        async with guard.run("inside"):
            await step(n)
        await last(n)
        return await look(n)

    send = guard.tool("send", defer=True)(async_body if caller.is_async else body)

    async def job() -> None:
        async with caller.run(guard, id="a"):
            await caller.call(look, 1)
            async with caller.run(guard, "inside"):
                await caller.call(step, 1)
            await caller.call(send, 1)

    caller.play(job)
    assert log == ["look 1", "step 1", "step 1", "look 1", "last 1"]
    info = guard.runs.get("a")
    sent = next(call for call in info.calls if call.tool == "send")
    assert (info.status, sent.result) == ("completed", 4)
    inside = next(run for run in guard.runs.list() if sent.id in run.id)
    assert (inside.id, inside.parent_id) == (f"a/{sent.id}/inside#1", "a")
    guard.compensate("a")
    assert log[5:] == ["undo 1", "undo 1"]


# -- keys of other runs --------------------------------------------------------------------------------------------


def test_a_business_key_of_another_run(guard: Guard, caller: Caller) -> None:
    """What another run has scheduled may yet be dropped; what it sent is done; what it dropped is free."""
    paid: list[int] = []

    @caller.tool(guard, key="order", defer=True, compensate=lambda order: paid.append(-order))
    def pay(order: int, amount: int = 1) -> None:
        paid.append(order)

    async def first(run_id: str, fail: bool) -> None:
        async with caller.run(guard, id=run_id, nested=False):
            answer = await caller.call(pay, 7)
            async with caller.run(guard, "inner"):
                assert await caller.call(pay, 7) == answer
            with pytest.raises(CallInProgress, match="is scheduled under this key"):
                async with caller.run(guard, "other", id=f"{run_id}-other", nested=False):
                    await caller.call(pay, 7)
            with pytest.raises(KeyConflict):
                await caller.call(pay, 7, 2)
            if fail:
                raise Declined

    with pytest.raises(Declined):
        caller.play(first, "a", True)
    assert guard.runs.get("a-other").status == "held"
    caller.play(first, "b", False)
    assert paid == [7]

    async def last() -> Any:
        async with caller.run(guard, id="c"):
            return await caller.call(pay, 7)

    answer = caller.play(last)
    assert (answer["status"], guard.calls.get(answer["record"]).run_id, paid) == ("done", "b", [7])
    guard.compensate("b")
    assert paid == [7, -7]


# -- undone afterwards ---------------------------------------------------------------------------------------------


def test_a_sent_call_is_undone_like_any_other(guard: Guard, caller: Caller, post: Post) -> None:
    """By request, first of all: it happened last. What held the run is dropped with it."""
    caller.play(post.play, "mail ann", "book room")
    guard.compensate("a")
    assert post.log == ["book room", "mail ann", "recall ann", "cancel room"]
    post.log.clear()
    post.problems["bob"] = Declined()
    with pytest.raises(Declined):
        caller.play(lambda: post.play("mail ann", "mail bob", "mail cid", "book room", run_id="b"))
    assert [call.args["to"] for call in guard.compensate("b", dry_run=True).unsent] == ["cid", "bob"]
    report = guard.compensate("b")
    assert sorted(call.args["to"] for call in report.unsent) == ["bob", "cid"]
    assert post.log == ["book room", "mail ann", "recall ann", "cancel room"]
    assert guard.runs.get("b").status == "compensated"


def test_a_reopened_run_schedules_anew(guard: Guard, caller: Caller, post: Post) -> None:
    """Nothing of the earlier incarnation is sent by the new one."""
    post.problems["bob"] = Declined()
    with pytest.raises(Declined):
        caller.play(post.play, "mail ann", "mail bob")
    guard.compensate("a")
    post.problems.clear()
    post.log.clear()
    caller.play(lambda: post.play("mail cid", reopen=True))
    assert post.log == ["mail cid"]
    assert not guard.runs.get("a").completing


# -- refused -------------------------------------------------------------------------------------------------------


def test_outside_a_run_it_is_refused(guard: Guard, caller: Caller, post: Post) -> None:
    """There is nothing whose end it could wait for; a compensation is outside of any run."""
    with pytest.raises(
        PolicyDenied, match="is deferred until its run completes, and was called outside a run"
    ) as caught:
        caller.play(caller.call, post.mail, "ann")
    assert caught.value.tool_ran == "no"
    assert post.log == []
    with pytest.raises(RunClosed):
        caller.play(self_closed, guard, caller, post)


async def self_closed(guard: Guard, caller: Caller, post: Post) -> None:
    """A call in a run that was aborted."""
    async with caller.run(guard) as run:
        run.abort()
        await caller.call(post.mail, "ann")


@dataclasses.dataclass
class Letter:
    """Plain data to us, but not to a record."""

    to: str


@pytest.mark.parametrize(("argument", "says"), [
    (object(), "argument mail is of the type object, which cannot be recorded"),
    (Letter("ann"), "argument mail is a Letter"),
    ({"one": [Letter("ann")]}, r"argument mail.one\[0\]"),
])  # fmt: skip
@pytest.mark.parametrize("key", [None, "'k'"])
def test_what_a_record_would_give_back_as_something_else(
    guard: Guard, caller: Caller, argument: Any, says: str, key: str | None
) -> None:
    """It is sent from its record: an argument that would not come back as it is is refused at once, also with a key."""
    send = caller.tool(guard, "send", defer=True, **({"key": key} if key else {}))(lambda mail: None)

    async def job() -> None:
        async with caller.run(guard) as run:
            with pytest.raises(ConfigurationError, match=says):
                await caller.call(send, argument)
            assert run.calls == ()

    caller.play(job)


@pytest.mark.parametrize(
    "value", [None, 1.5, float("nan"), {"a": [(1, "x"), {2, 3}]}, b"x", 2**60, {1: "one"}, [], "\u00e9"]
)
def test_what_comes_back_as_it_is(guard: Guard, value: Any) -> None:
    """The body gets what the call was made with."""
    got: list[Any] = []
    send = guard.tool("send", defer=True)(got.append)
    with guard.run():
        send(value)
    assert got == [value] or got[0] != got[0]


def test_declarations_that_cannot_be(guard: Guard) -> None:
    """A deferred read, a method without its object, and a value that is no boolean."""
    with pytest.raises(ConfigurationError, match="effect='read' and defer=True"):
        guard.tool("x", effect="read", defer=True)(lambda: 1)
    with pytest.raises(ConfigurationError, match="where nobody fills 'self'"):

        class _Shop:
            @guard.tool(defer=True)
            def send(self, to: str) -> None: ...

    with pytest.raises(ConfigurationError, match="defer"):
        guard.tool("x", defer="later")(lambda: 1)


# -- which function sends ------------------------------------------------------------------------------------------


def test_each_call_is_sent_by_the_function_it_was_made_with(guard: Guard) -> None:
    """Two of one name, as agents made for each request have, do not send for one another."""
    log: list[str] = []

    def declare(user: str) -> Callable[[int], Any]:
        def send(n: int) -> None:
            log.append(f"{user} {n}")

        return guard.tool("send", defer=True)(send)

    ann, bob = declare("ann"), declare("bob")
    with guard.run(id="a") as a:
        ann(1)
        with guard.run(id="b", nested=False):
            bob(2)
    assert log == ["bob 2", "ann 1"]
    assert a.status == "completed"


def test_without_its_tool_it_is_queued(guard: Guard, store_url: str, caller: Caller, post: Post) -> None:
    """A process that has no such tool leaves the run to one that has, and says so; nothing is sent by a guess."""

    async def pause() -> None:
        async with caller.run(guard, id="a") as run:
            await caller.call(post.mail, "ann")
            run.pause()

    async def go_on(other: Guard) -> None:
        async with caller.run(other, id="a"):
            pass

    caller.play(pause)
    with Guard(store_url) as other:
        with pytest.raises(RunError, match="no tool 'mail' with defer=True in this process"):
            caller.play(go_on, other)
        assert (other.runs.get("a").status, other.runs.get("a").completing) == ("running", True)
        with pytest.raises(RunError, match="no tool 'mail'"):
            caller.play(go_on, other)
    caller.play(go_on, guard)
    assert (guard.runs.get("a").status, post.log) == ("completed", ["mail ann"])


# -- sent again ----------------------------------------------------------------------------------------------------


def _fails_first(problems: list[BaseException], sent: list[str]) -> Callable[[str], str]:
    """A body that raises what is left of ``problems``, and then sends."""

    def mail(to: str) -> str:
        if problems:
            raise problems.pop()
        sent.append(to)
        return to

    return mail


def test_each_second_sending_is_reserved(store_url: str, caller: Caller, sql: Sql) -> None:
    """A failed sending gives its reservation back: of six mails of 0.80 USD one fits under a cap of 1 USD."""
    guard, sent = Guard(store_url, budgets={"user:ann": "1 USD"}), []
    problems: list[BaseException] = [Declined() for _ in range(6)]
    mail = caller.tool(guard, defer=True, cost="0.80 USD", not_applied=(Declined,))(_fails_first(problems, sent))

    async def job(number: int) -> None:
        async with caller.run(guard, id=f"r{number}", user="ann"):
            await caller.call(mail, f"to {number}")

    for number in range(6):
        with pytest.raises(Declined):
            caller.play(job, number)
    caller.play(job, 0)
    for number in range(1, 6):
        with pytest.raises(BudgetExceeded, match="user:ann") as caught:
            caller.play(job, number)
        assert "is not sent again; enter the run again when it may be" in caught.value.__notes__[0]
        assert (guard.runs.get(f"r{number}").status, guard.runs.get(f"r{number}").reason) == ("held", "unsent")
    assert sent == ["to 0"]
    assert sql("select spent, reserved, overdraft from budgets") == [(800_000_000, 0, 0)]
    assert guard.usage(user="ann").spent == Decimal("0.8")
    assert list(guard.budgets.fsck()) == []
    guard.set_budget("user:ann", "2 USD")
    caller.play(job, 1)
    assert sent == ["to 0", "to 1"]


def test_recovery_reserves_in_the_budget_that_the_run_was_given(store_url: str, caller: Caller, sql: Sql) -> None:
    """Only the process that entered the run knows ``budget=``, but its cap is on record."""
    guard, sent = Guard(store_url), []
    tool = caller.tool(guard, defer=True, cost="0.80 USD")(_fails_first([ConnectionResetError()], sent))

    async def job() -> None:
        async with caller.run(guard, id="r", agent="clerk", budget="1 USD"):
            await caller.call(tool, "ann")

    with pytest.raises(ConnectionResetError):
        caller.play(job)
    guard.calls.resolve(guard.runs.get("r").calls[0].id, "did-not-happen", note="asked them")
    assert [run.id for run in guard.recover().completed] == ["r"]
    assert sent == ["ann"]
    assert sql("select scope, spent, reserved from budgets") == [("run:r", 800_000_000, 0)]
    assert guard.usage(agent="clerk").spent == Decimal("0.8")


def test_a_second_sending_obeys_the_rules_of_now(store_url: str, caller: Caller, tmp_path: Path) -> None:
    """A rule that denies by then holds it back; when it is lifted, the call is sent."""
    file, sent = tmp_path / "sagaspan.toml", []
    deny = '[[rules]]\ntools = "mail"\naction = "deny"\nreason = "mails are off"\n'

    def play(rules: str, *problems: BaseException) -> None:
        file.write_text(rules)
        with Guard(store_url, policies=str(file)) as guard:
            body = _fails_first(list(problems), sent)
            mail = caller.tool(guard, defer=True, critical=False, not_applied=(Declined,))(body)
            step = caller.tool(guard, defer=True, not_applied=(Declined,))(_named("step", body))

            async def job() -> None:
                async with caller.run(guard, id="r"):
                    await caller.call(step, "first")
                    await caller.call(mail, "ann")

            caller.play(job)

    with pytest.raises(Declined):
        play("", Declined())
    with pytest.raises(PolicyDenied, match="mails are off"):
        play(deny.replace('mail"', 'step"'))
    assert sent == []
    play(deny)  # the mail was never sent: it was judged when it was scheduled
    assert sent == ["first", "ann"]


def _named(name: str, body: Callable[..., Any]) -> Callable[..., Any]:
    def named(to: str) -> Any:
        return body(to)

    named.__name__ = name
    return named


def test_a_second_sending_needs_an_approval_of_its_own(store_url: str, caller: Caller) -> None:
    """The first one used its approval up, as every claim does. A no holds the run, and nothing is sent."""
    sent: list[str] = []
    said: list[bool] = [True, False]
    guard = Guard(store_url, approver=lambda _: said.pop(0))
    mail = caller.tool(guard, defer=True, approve=True, not_applied=(Declined,))(_fails_first([Declined()], sent))

    async def job() -> None:
        async with caller.run(guard, id="r"):
            await caller.call(mail, "ann")

    with pytest.raises(Declined):
        caller.play(job)
    assert said == [False]
    with pytest.raises(ApprovalDenied):
        caller.play(job)
    assert (sent, said, guard.runs.get("r").status) == ([], [], "held")


def test_a_second_sending_waits_for_its_approval(store_url: str, caller: Caller) -> None:
    """The run is held meanwhile; an answer lets it go on, and is used once."""
    sent: list[str] = []
    guard = Guard(store_url, approver="inbox")
    mail = caller.tool(guard, defer=True, approve=True, not_applied=(Declined,))(_fails_first([Declined()], sent))

    async def job() -> None:
        async with caller.run(guard, id="r"):
            await caller.call(mail, "ann")

    for error in (ApprovalPending, Declined, ApprovalPending):
        with pytest.raises(error):
            caller.play(job)
        for request in guard.approvals.list():
            guard.approvals.approve(request.id, by="bob")
    caller.play(job)
    assert sent == ["ann"]
    assert [row["event"] for row in guard.audit.rows()].count("approval.consume") == 2


def test_a_rate_is_taken_when_it_is_scheduled_and_at_each_later_sending(store_url: str, caller: Caller) -> None:
    """The first sending was counted with the schedule."""
    sent: list[str] = []
    guard = Guard(store_url)
    tool = caller.tool(guard, defer=True, rate="2/hour", not_applied=(Declined,))(_fails_first([Declined()], sent))

    async def job(*names: str) -> None:
        async with caller.run(guard, id="r"):
            for name in names:
                await caller.call(tool, name)

    with pytest.raises(Declined):
        caller.play(job, "ann", "bob")
    with pytest.raises(RateLimited):
        caller.play(job, "ann", "bob")
    assert sent == []
