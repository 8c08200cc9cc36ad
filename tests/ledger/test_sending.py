"""The second mark: what died before ``sending()`` has provably not happened (rule book (a) 7)."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from sagaspan import ConfigurationError, Guard, OutcomeUnknown, ToolTimeout
from tests.conftest import Caller, Worker
from tests.ledger.test_transitions import replayed


@pytest.mark.parametrize(("marked", "state", "status"), [(False, "failed", "failed"), (True, "unknown", "held")])
def test_an_error_before_the_mark_is_proof(guard: Guard, caller: Caller, marked: bool, state: str, status: str) -> None:
    """Whatever is raised before the mark, nothing was sent; after it the rule for exceptions decides."""

    if caller.is_async:

        async def pay() -> None:
            if marked:
                await guard.current_call().asending()
            raise ConnectionResetError

        tool: Any = guard.tool(effect="write", marks_sending=True)(pay)
    else:

        def pay_sync() -> None:
            if marked:
                guard.current_call().sending()
            raise ConnectionResetError

        tool = guard.tool(effect="write", marks_sending=True)(pay_sync)

    async def job() -> None:
        async with caller.run(guard, id="a"):
            await caller.call(tool)

    with pytest.raises(ConnectionResetError):
        caller.play(job)
    assert (guard.runs.get("a").calls[0].state, guard.runs.get("a").status) == (state, status)
    rows = guard._store.audit_of("default", "a")
    assert sum(row.event == "sending" for row in rows) == marked
    assert replayed(rows, guard.runs.get("a").calls[0].id) == state


SCRIPT = """
@guard.tool(effect="write"%s)
def pay():
    if os.environ.get("KILL") == "before":
        die()
    if %d:
        guard.current_call().sending()
    if os.environ.get("KILL") == "between":
        die()
    effect("pay")
    if os.environ.get("KILL") == "after":
        die()
    return "paid"
try:
    with guard.run(id="a", on_interrupt="hold"):
        print(pay())
except OutcomeUnknown:
    print("unknown")
print(guard.runs.get("a").status)
"""


@pytest.mark.parametrize(
    ("fields", "kill", "out", "effects"),
    [
        (", marks_sending=True", "before", ["paid", "completed"], 1),
        (", marks_sending=True", "between", ["unknown", "held"], 0),
        (", marks_sending=True", "after", ["unknown", "held"], 1),
        ("", "before", ["unknown", "held"], 0),
    ],
)
def test_killed_around_the_mark(worker: Worker, fields: str, kill: str, out: list[str], effects: int) -> None:
    """Before the mark the next process runs it without asking anybody; after it the call is in doubt."""
    script = SCRIPT % (fields, bool(fields))
    assert worker.run(script, KILL=kill).returncode == -9
    again = worker.run(script)
    assert again.stdout.split() == out, again.stderr
    assert len(worker.effects) == effects


def test_the_mark_is_on_disk_before_it_returns(guard: Guard) -> None:
    """It is one synced commit, and a second mark of the same attempt is none."""
    seen: list[Any] = []
    commit = guard._store.commit

    def watch(changes: Any, *, synced: bool) -> bool:
        seen.append((changes[-1].audit.event, synced))
        return commit(changes, synced=synced)

    guard._store.commit = watch  # type: ignore[method-assign]

    @guard.tool(effect="write", marks_sending=True)
    def pay() -> None:
        guard.current_call().sending()
        guard.current_call().sending()

    with guard.run():
        pay()
    assert [event for event in seen if event[0] in ("claim", "sending", "succeed")] == [
        ("claim", True), ("sending", True), ("succeed", False),
    ]  # fmt: skip


def test_an_attempt_that_was_given_up_must_not_send(guard: Guard) -> None:
    """A body that timed out before its mark is failed, may run again, and cannot send any more."""
    go_on, told = threading.Event(), []
    sent: list[int] = []

    @guard.tool(effect="write", marks_sending=True, timeout=0.1, retry={"attempts": 2, "initial_delay": 0})
    def pay() -> str:
        number = len(told) + len(sent)
        if not go_on.is_set() and not sent:
            go_on.set()
            time.sleep(0.4)
        try:
            guard.current_call().sending()
        except OutcomeUnknown as refusal:
            told.append((number, refusal.tool_ran))
            raise
        sent.append(number)
        return "paid"

    with guard.run(id="a"):
        assert pay() == "paid"
    time.sleep(0.5)
    assert sent == [0]
    assert [ran for _, ran in told] == ["no"]
    assert guard.runs.get("a").calls[0].state == "done"


def test_a_timeout_after_the_mark_is_in_doubt(guard: Guard) -> None:
    """It was sent: nobody knows, and it is not repeated."""
    ran: list[int] = []

    @guard.tool(effect="write", marks_sending=True, timeout=0.05, retry=3)
    def pay() -> None:
        ran.append(1)
        guard.current_call().sending()
        time.sleep(0.2)

    with pytest.raises(ToolTimeout), guard.run(id="a"):
        pay()
    assert (len(ran), guard.runs.get("a").calls[0].state) == (1, "unknown")


def test_a_mark_that_proves_nothing_is_refused(guard: Guard, caplog: pytest.LogCaptureFixture) -> None:
    """``sending()`` without the declaration is an error; the declaration without ``sending()`` is logged loudly."""

    @guard.tool(effect="write")
    def undeclared() -> None:
        guard.current_call().sending()

    with pytest.raises(ConfigurationError, match="marks_sending=True"), guard.run():
        undeclared()

    @guard.tool(effect="write", marks_sending=True)
    def forgetful() -> None:
        pass

    with guard.run():
        forgetful()
    assert "without calling current_call().sending()" in caplog.text


def test_a_missing_mark_of_a_second_run_proves_nothing_of_the_first(worker: Worker) -> None:
    """Sent once and in doubt, permitted again and killed before the mark: still in doubt."""
    script = SCRIPT % (", marks_sending=True", 1)
    worker.run(script, KILL="after")
    worker.run("guard.calls.resolve(guard.runs.get('a').calls[0].id, 'retry', note='n')")
    worker.run(script, KILL="before")
    assert worker.run(script).stdout.split() == ["unknown", "held"]
    assert worker.effects == ["pay"]
