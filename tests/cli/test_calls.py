"""``sagaspan calls``: what is in doubt is listed, and a person says what became of it."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sagaspan import Guard, OutcomeUnknown, ToolTimeout
from tests.cli.conftest import Sagaspan
from tests.cli.test_status import DIES_IN_A_WRITE


@pytest.fixture
def doubt(guard: Guard) -> str:
    """The id of a call whose connection went dead, in the run ``held-1``."""

    @guard.tool(effect="write")
    def pay(order: str) -> str:
        raise ConnectionResetError("gone\x1b[31m")

    with pytest.raises(ConnectionResetError), guard.run("trip", id="held-1"):
        pay("o-17")
    (call,) = guard.runs.get("held-1").calls
    return call.id


def test_open_calls_are_listed(sagaspan: Sagaspan, guard: Guard, doubt: str) -> None:
    """Without options those that are not settled; ``--all`` and ``--status`` widen it."""
    guard.tool("look", effect="read")(lambda: 1)()
    assert [call["id"] for call in sagaspan("calls", "list", "--json").json] == [doubt]
    assert len(sagaspan("calls", "list", "--all", "--json").json) == 2
    assert [call["tool"] for call in sagaspan("calls", "list", "-s", "done", "--json").json] == ["look"]
    out = sagaspan("calls", "list").out
    assert doubt[:14] in out
    assert "\x1b" not in out


def test_one_call_with_its_history(sagaspan: Sagaspan, doubt: str) -> None:
    """By a unique prefix; exit code 3 if there is none."""
    answer = sagaspan("calls", "show", doubt[:20], "--json")
    assert (answer.code, answer.json["id"], answer.json["state"]) == (0, doubt, "unknown")
    assert "history" in sagaspan("calls", "show", doubt).out
    assert sagaspan("calls", "show", "nothing").code == 3
    assert sagaspan("calls", "resolve", "nothing", "happened", "--note", "n").code == 3


@pytest.mark.parametrize(
    ("outcome", "more", "state"),
    [("happened", ["--result", '{"id": 5}'], "done"), ("happened", [], "done"), ("did-not-happen", [], "failed"),
     ("compensated", [], "compensated"), ("retry", [], "unknown")],
)  # fmt: skip
def test_a_person_says_what_became_of_it(
    sagaspan: Sagaspan, guard: Guard, doubt: str, outcome: str, more: list[str], state: str
) -> None:
    """The decision, who made it and why are on record."""
    answer = sagaspan("calls", "resolve", doubt, outcome, "--note", "in the books", "--actor", "ada", *more, "--json")
    assert (answer.code, answer.json["state"]) == (0, state)
    assert answer.json["result"] == ({"id": 5} if more else None)
    row = guard._store.audit_of("default", "held-1")[-1]
    assert (row.actor, row.detail) == ("ada", "in the books")


def test_who_decided_is_shown(sagaspan: Sagaspan, doubt: str) -> None:
    """The history of a call names the person beside the reason, and JSON has it too."""
    sagaspan("calls", "resolve", doubt, "did-not-happen", "--note", "no such payment", "--actor", "ada")
    line = sagaspan("show", doubt).out.splitlines()[-1]
    assert line.split()[-4:] == ["ada", "no", "such", "payment"]
    *machines, person = sagaspan("show", doubt, "--json").json["history"]
    assert (person["event"], person["to"], person["actor"]) == ("disprove", "failed", "ada")
    assert "ada" not in {row["actor"] for row in machines}


def test_a_result_that_nobody_gave_is_asked_for(sagaspan: Sagaspan, doubt: str) -> None:
    """Without it its run cannot go on, so every place says how to give it; then it goes on."""
    later = Guard()
    pay = later.tool("pay", effect="write")(lambda order: order)
    remedy = f"sagaspan calls resolve {doubt} happened --result JSON --note WHY"
    assert remedy in sagaspan("calls", "resolve", doubt, "happened", "--note", "seen").out
    assert remedy in sagaspan("show", "held-1").out
    assert remedy in sagaspan("show", doubt).out
    with pytest.raises(OutcomeUnknown, match=re.escape(remedy)), later.run("trip", id="held-1"):
        pay("o-17")
    given = sagaspan("calls", "resolve", doubt, "happened", "--result", "null", "--note", "seen")
    assert (given.code, remedy in given.out) == (0, False)
    assert "what needs you" not in sagaspan("show", "held-1").out
    with later, later.run("trip", id="held-1") as run:
        assert pay("o-17") is None
    assert run.status == "completed"


def test_a_call_outside_a_run_has_none_to_enter(sagaspan: Sagaspan, guard: Guard) -> None:
    """Nobody can enter the session of a guard."""

    @guard.tool(effect="write")
    def pay() -> None:
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        pay()
    (call,) = guard.calls.list()
    assert "run" not in sagaspan("calls", "resolve", call.id, "compensated", "--note", "n").out.splitlines()[-1]


def test_what_does_not_fit_is_an_error(sagaspan: Sagaspan, doubt: str) -> None:
    """A stale version, a second decision: exit 1. No note, no such outcome, no JSON: exit 2. Nothing changes."""
    stale = sagaspan("calls", "resolve", doubt, "happened", "--note", "n", "--expected-version", "1", "--json")
    assert (stale.code, stale.json["kind"]) == (1, "ResolutionError")
    assert sagaspan("calls", "resolve", doubt, "happened").code == 2
    assert sagaspan("calls", "resolve", doubt, "perhaps", "--note", "n").code == 2
    assert sagaspan("calls", "resolve", doubt, "happened", "--note", "n", "--result", "paid").code == 2
    assert sagaspan("calls", "resolve", doubt, "retry", "--note", "n", "--result", "1").code == 1
    assert sagaspan("calls", "show", doubt, "--json").json["state"] == "unknown"
    assert sagaspan("calls", "resolve", doubt, "did-not-happen", "--note", "n").code == 0
    assert sagaspan("calls", "resolve", doubt, "happened", "--note", "n").code == 1


def test_it_asks_on_a_terminal(sagaspan: Sagaspan, doubt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said of what is shown first; a no changes nothing. ``--yes`` does not ask."""
    asked: list[str] = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)

    def confirm(text: str, **_: object) -> None:
        asked.append(text)
        raise SystemExit(1)

    monkeypatch.setattr("click.confirm", confirm)
    assert sagaspan("calls", "resolve", doubt, "happened", "--note", "n").code == 1
    assert "o-17" in asked[0]
    assert sagaspan("calls", "show", doubt, "--json").json["state"] == "unknown"
    assert sagaspan("calls", "resolve", doubt, "happened", "--note", "n", "--yes").code == 0
    assert len(asked) == 1


def test_status_names_the_command(sagaspan: Sagaspan, home: Path) -> None:
    """What a dead process left in doubt is resolved by the very command that ``status`` prints."""
    subprocess.run([sys.executable, "-c", DIES_IN_A_WRITE], check=False, capture_output=True)
    (item,) = [item for item in sagaspan("status", "--json").json if item["kind"] == "call"]
    command = item["next"].replace("OUTCOME", "did-not-happen").replace("WHY", "looked").split()[1:]
    assert sagaspan(*command).code == 0
    assert not [item for item in sagaspan("status", "--json").json if item["kind"] == "call"]


def test_what_came_twice_is_listed_with_its_undo(sagaspan: Sagaspan, guard: Guard) -> None:
    """Exit code 4 while it stands, also in ``status``; somebody who has undone it by hand says so."""
    go_on = threading.Event()
    ran: list[int] = []

    @guard.tool(effect="write", timeout=0.2)
    def pay() -> str:
        ran.append(1)
        if len(ran) == 1:
            go_on.wait(60)
        return f"payment {len(ran)}"

    with pytest.raises(ToolTimeout), guard.run(id="a"):
        pay()
    assert sagaspan("calls", "duplicates").code == 0
    (call,) = guard.runs.get("a").calls
    assert sagaspan("calls", "resolve", call.id, "retry", "--note", "n").code == 0
    with guard.run(id="a"):
        pay()
    go_on.set()
    deadline = time.monotonic() + 300
    while not guard.calls.duplicates():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    answer = sagaspan("calls", "duplicates", "--json")
    ((item,), code) = answer.json, answer.code
    assert (code, item["call"]["id"], item["extra"]["run_id"]) == (4, call.id, "a")
    assert item["next"] == f"sagaspan calls resolve {item['extra']['id']} compensated --note WHY"
    assert sagaspan("status").code == 4
    assert "payment 2" in sagaspan("calls", "duplicates").out
    assert sagaspan(*item["next"].split()[1:]).code == 0
    assert sagaspan("calls", "duplicates").code == 0
    assert sagaspan("status").code == 0
