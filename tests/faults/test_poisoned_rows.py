"""A row that somebody damaged, or that a later version wrote: a dead letter or a clear error, and all others go on."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sagaspan import (
    ApprovalPending,
    CompensationFailed,
    Guard,
    OutcomeUnknown,
    RunClosed,
    RunError,
    SagaspanError,
    StoreError,
)
from sagaspan.cli import cli
from tests.conftest import Sql

DAMAGED = {
    "broken JSON": '{"order":',
    "unknown tag": '{"$type":"os.system","value":"echo planted"}',
    "constructor": '{"$type":"__reduce__","value":["os.system",["true"]]}',
    "tag without value": '{"$type":"int"}',
    "value of the wrong kind": '{"$type":"tuple","value":"abc"}',
    "unhashable": '{"$type":"set","value":[{"a":1}]}',
    "nested deeply": "[" * 500 + "]" * 500,
    "nested very deeply": "[" * 100_000,
    "a huge number": "9" * 5000,
    "no JSON": "\x00\x1b[31m",
}
_CHECKS = "select conname, pg_get_constraintdef(oid) from pg_constraint where contype = 'c' and conrelid = ?::regclass"


@pytest.fixture
def poison(store_url: str, sql: Sql) -> Callable[..., None]:
    """Change rows of the ledger behind the library's back, checks and all."""

    def on_sqlite(statement: str, values: Sequence[object]) -> None:
        with contextlib.closing(sqlite3.connect(store_url.removeprefix("sqlite:///"))) as connection, connection:
            connection.execute("pragma ignore_check_constraints = on")
            assert connection.execute(statement, values).rowcount >= 1

    def on_postgres(statement: str, values: Sequence[object]) -> None:
        table = statement.split()[1]
        checks = sql(_CHECKS, (table,))
        for name, _ in checks:
            sql(f"alter table {table} drop constraint {name}")
        readable = [value.replace("\x00", "") if isinstance(value, str) else value for value in values]
        assert sql(f"{statement} returning 1", readable)  # no text there has a NUL
        for name, definition in checks:
            sql(f"alter table {table} add constraint {name} {definition} not valid")

    def on_mariadb(statement: str, values: Sequence[object]) -> None:
        sql(f"set statement check_constraint_checks = 0 for {statement}", values)

    kinds = {"sqlite": on_sqlite, "postgresql": on_postgres, "mysql": on_mariadb}
    return lambda statement, *values: kinds[store_url.partition(":")[0]](statement, values)


class Shop:
    """Two runs, of which one will be poisoned; ``undone`` is the world."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.paid: list[str] = []
        self.undone: list[str] = []
        self.asked = 0

        @guard.tool(compensate=self.refund)
        def pay(order: str) -> dict[str, str]:
            self.paid.append(order)
            return {"receipt": f"r-{order}"}

        self.pay = pay
        for order in ("bad", "good"):
            with guard.run("shop", id=order):
                pay(order)

    def refund(self, order: str, result: dict[str, str]) -> None:
        self.asked += 1
        self.undone.append(f"{order} {result['receipt']}")


@pytest.fixture
def shop(guard: Guard) -> Shop:
    return Shop(guard)


@pytest.fixture
def program(store_url: str) -> Callable[..., Any]:
    """The command line on this test's ledger."""

    def program(*args: str) -> Any:
        done = CliRunner().invoke(cli, ["--store", store_url, *args])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done

    return program


def check_the_others_are_fine(program: Callable[..., Any]) -> None:
    """Every command still works, and shows the good run."""
    for command in (["runs", "list"], ["calls", "list", "--all"], ["show", "good"], ["runs", "show", "good"]):
        for json_too in ([], ["--json"]):
            done = program(*command, *json_too)
            assert done.exit_code == 0, done.output
            assert "good" in done.output
            if json_too:
                json.loads(done.output)
    assert program("status").exit_code in (0, 4)
    assert program("recover").exit_code in (0, 4)
    for name in ("bad", "good"):
        done = program("runs", "show", name)
        assert "\x1b" not in done.output
        assert done.exit_code == 0


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_arguments_that_cannot_be_read(
    guard: Guard, shop: Shop, poison: Callable[..., None], program: Callable[..., Any], text: str
) -> None:
    """The step becomes a dead letter instead of being undone with a guess; nothing stored is imported or run."""
    poison("update calls set arguments = ? where run_id = 'bad'", text)
    (call,) = guard.runs.get("bad").calls
    assert "cannot be read" in call.args[""]
    with pytest.raises(CompensationFailed):
        guard.compensate("bad")
    assert guard.runs.get("bad").status == "partially_compensated"
    assert guard.calls.get(call.id).state == "compensation_failed"
    assert "'refund' asks for the arguments, which cannot be read" in " ".join(program("show", call.id).output.split())
    assert shop.asked == 0
    guard.compensate("good")
    assert shop.undone == ["good r-good"]
    check_the_others_are_fine(program)


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_a_result_that_cannot_be_read(
    guard: Guard, shop: Shop, poison: Callable[..., None], program: Callable[..., Any], text: str
) -> None:
    """Done is done: the call is not run again, its caller is told, and a compensation that needs the result waits."""
    poison("update calls set result = ? where run_id = 'bad'", text)
    with pytest.raises(OutcomeUnknown, match="cannot be read") as caught, guard.run("shop", id="bad"):
        shop.pay("bad")
    assert caught.value.tool_ran == "yes"
    assert "cannot be read" in caught.value.call.result
    assert shop.paid == ["bad", "good"]
    with pytest.raises(CompensationFailed):
        guard.compensate("bad")
    assert shop.asked == 0
    check_the_others_are_fine(program)


def test_what_a_run_says_of_itself(
    guard: Guard, shop: Shop, poison: Callable[..., None], program: Callable[..., Any]
) -> None:
    """What cannot be read is shown as such; a completed run is not replayed without its output."""
    poison("update runs set tags = 'x', input = '{', output = '{', traceparent = 'no' where id = 'bad'")
    run = guard.runs.get("bad")
    assert all("cannot be read" in value for value in (run.tags[""], run.input, run.output))
    with pytest.raises(StoreError, match="output cannot be read"):
        guard.run("shop", id="bad").__enter__()
    check_the_others_are_fine(program)


def test_a_call_in_a_state_that_nobody_knows(
    guard: Guard, shop: Shop, poison: Callable[..., None], program: Callable[..., Any]
) -> None:
    """It may have happened: it is not run again, its run is not undone around it, and a person can decide it."""
    poison("update calls set state = 'frozen' where run_id = 'bad'")
    poison("update runs set state = 'held' where id = 'bad'")
    (call,) = guard.runs.get("bad").calls
    assert call.state == "needs_human"
    assert "'frozen'" in call.error
    with pytest.raises(OutcomeUnknown), guard.run("shop", id="bad"):
        shop.pay("bad")
    with pytest.raises(OutcomeUnknown):
        guard.compensate("bad")
    assert (shop.paid, shop.undone) == (["bad", "good"], [])
    check_the_others_are_fine(program)
    guard.calls.resolve(call.id, "happened", result={"receipt": "r-1"}, note="asked the bank")
    guard.compensate("bad")
    assert shop.undone == ["bad r-1"]


def test_a_call_in_a_phase_that_nobody_knows(
    guard: Guard, shop: Shop, poison: Callable[..., None], program: Callable[..., Any]
) -> None:
    """Whether it went forward or undid something is unknown, so nothing is undone around it."""
    poison("update calls set phase = 'sideways' where run_id = 'bad'")
    assert "'sideways'" in guard.runs.get("bad").calls[0].error
    with pytest.raises(OutcomeUnknown):
        guard.compensate("bad")
    assert shop.undone == []
    check_the_others_are_fine(program)


def test_a_run_in_a_state_that_nobody_knows(
    guard: Guard, shop: Shop, poison: Callable[..., None], program: Callable[..., Any]
) -> None:
    """Nobody enters or undoes it: a later version may have meant anything by it."""
    poison("update runs set state = 'frozen' where id = 'bad'")
    assert guard.runs.get("bad").status == "frozen"
    for reopen in (False, True):
        with pytest.raises(StoreError, match=r"state 'frozen', which this sagaspan does not know"):
            guard.run("shop", id="bad", reopen=reopen).__enter__()
    with pytest.raises(StoreError, match="frozen"):
        guard.compensate("bad")
    assert shop.undone == []
    check_the_others_are_fine(program)


def test_a_compensation_that_nobody_registered(
    guard: Guard, shop: Shop, poison: Callable[..., None], program: Callable[..., Any], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A stored name is looked up among the registered ones and never imported: the step waits for who has it."""
    (tmp_path / "planted.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef undo(): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("planted", "planted:undo", "planted.undo", "os.system", "__import__('planted')"):
        poison("update calls set compensate = ? where run_id = 'bad' and state in ('done', 'compensating')", name)
        with Guard(guard._store.url) as other:  # it never made the call, so it has only the name
            with pytest.raises(CompensationFailed, match="not registered"):
                other.compensate("bad")
            assert "bad" in [run.id for run in other.recover(dry_run=True).queued]
    assert not (tmp_path / "ran").exists()
    check_the_others_are_fine(program)


def test_a_request_in_a_state_that_nobody_knows(store_url: str, poison: Callable[..., None]) -> None:
    """It permits nothing, and the audit names it."""
    guard = Guard(store_url, approver="inbox")
    pay = guard.tool("pay", approve=True)(lambda: None)
    with pytest.raises(ApprovalPending), guard.run(id="a"):
        pay()
    poison("update approvals set state = 'bogus'")
    (finding,) = guard.audit.verify().findings
    assert "it is bogus, and its history ends with pending" in str(finding)
    with pytest.raises(SagaspanError), guard.run(id="a"):
        pay()


@pytest.mark.of_sqlite("a server has no text that is none")
def test_text_that_is_no_utf_8(
    guard: Guard, shop: Shop, poison: Callable[..., None], program: Callable[..., Any]
) -> None:
    """One row of bytes that are no text hides no other."""
    poison("update calls set error_message = cast(x'fffe41' as text), error_type = 'E' where run_id = 'bad'")
    poison("update runs set error = cast(x'c328' as text) where id = 'bad'")
    assert "\\xff" in guard.runs.get("bad").calls[0].error
    check_the_others_are_fine(program)


@pytest.mark.parametrize("at_us", [-1, 2**62, 253_402_300_800_000_000])
def test_times_that_no_calendar_has(
    guard: Guard, shop: Shop, poison: Callable[..., None], program: Callable[..., Any], at_us: int
) -> None:
    """A clock that was far off when a row was written breaks no list."""
    poison("update calls set started_us = ?, ended_us = ? where run_id = 'bad'", at_us, at_us)
    poison("update runs set started_us = ?, ended_us = ? where id = 'bad'", at_us, at_us)
    poison("update audit set at_us = ? where run_id = 'bad'", at_us)
    assert guard.runs.get("bad").started.year in (1970, 9998, 9999)
    check_the_others_are_fine(program)


def test_owners_that_are_no_processes(
    guard: Guard, shop: Shop, poison: Callable[..., None], program: Callable[..., Any]
) -> None:
    """Whoever is said to be inside, nothing is run again for it, and the rest is recovered."""
    poison("update runs set state = 'running', owner = 'x:y' where id = 'bad'")
    poison("update calls set state = 'running', owner = '::::' where run_id = 'bad'")
    check_the_others_are_fine(program)
    assert shop.paid == ["bad", "good"]


def test_an_undone_call_of_an_ended_run_is_not_run_again(guard: Guard, shop: Shop) -> None:
    """The control: what is not poisoned behaves as ever."""
    guard.compensate("good")
    with pytest.raises(RunClosed), guard.run("shop", id="good"):
        shop.pay("good")


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_a_deferred_call_that_cannot_be_read(
    guard: Guard, shop: Shop, poison: Callable[..., None], program: Callable[..., Any], text: str
) -> None:
    """It is not sent and its run is held, until a person says what became of it; what comes after it waits."""
    sent = []
    mail = guard.tool("mail", effect="write", defer=True)(sent.append)
    with pytest.raises(RunError, match="cannot be read") as told, guard.run("shop", id="mails"):
        mail("first")
        mail("second")
        poison("update calls set arguments = ? where tool = 'mail' and arguments like '%first%'", text)
    first, second = guard.runs.get("mails").calls
    assert f"sagaspan calls resolve {first.id}" in "".join(told.value.__notes__)
    assert guard.runs.get("mails").status == "held"
    assert not guard.recover()  # nothing is different yet
    check_the_others_are_fine(program)
    guard.calls.resolve(first.id, "happened", note="sent by hand")
    assert [run.id for run in guard.recover().completed] == ["mails"]
    assert sent == ["second"]
    assert guard.calls.get(second.id).state == "done"


def test_a_run_that_breaks_its_recovery_keeps_nobody_from_the_others(
    guard: Guard, shop: Shop, poison: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is wrong with it, it is told of with a command, and the next one is recovered."""
    poison("update runs set state = 'running', owner = 'x:y:1:1:1', on_interrupt = 'compensate'")
    poison("update runs set epoch = 9223372036854775807 where id = 'bad'")
    recovered = guard.recover()
    assert [run.id for run in recovered.compensated] == ["good"]
    assert [run.id for run in recovered.needs_human] == ["bad"]
    assert shop.undone == ["good r-good"]
    assert "run 'bad' could not be recovered" in caplog.text
    assert "sagaspan show bad" in caplog.text
