"""``sagaspan compensate``: what is undone is shown and asked first, done with the tools of ``--app``, or queued."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sagaspan import Guard
from tests.cli.conftest import Answer, Sagaspan

APP = """
from pathlib import Path
from sagaspan import Applied, Guard
guard = Guard()
world = Path("world.txt")
def say(what):
    with world.open("a") as file:
        file.write(f"{what}\\n")
def cancel(result):
    if Path("closed").exists():
        raise RuntimeError("the hotel does not answer")
    say(f"cancel {result}")
@guard.tool(compensate=cancel)
def book(what):
    say(f"book {what}")
    return what
@guard.tool(effect="write")
def pay(): return "paid"
@guard.tool(compensate=cancel, probe=lambda: Applied("a seat") if Path("seen").exists() else None)
def reserve(): raise ConnectionResetError("gone")
@guard.tool
def look(): return 1
"""


@pytest.fixture
def app(home: Path, monkeypatch: pytest.MonkeyPatch) -> Guard:
    """The user's guard, in the module ``hotel``."""
    Path("hotel.py").write_text(APP)
    Path("world.txt").write_text("")
    monkeypatch.syspath_prepend(str(Path.cwd()))
    monkeypatch.delitem(sys.modules, "hotel", raising=False)
    import hotel

    return hotel.guard


@pytest.fixture
def done(app: Guard) -> list[str]:
    """The ids of the calls of ``done-1``, a completed run that booked a flight and a room."""
    import hotel

    with app.run("trip", id="done-1") as run:
        hotel.book("flight")
        hotel.book("room")
    return [call.id for call in run.calls]


def _undone() -> list[str]:
    return [line.removeprefix("cancel ") for line in Path("world.txt").read_text().splitlines() if "cancel" in line]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], list[str]]:
    """Somebody sits there and answers; gives the questions."""
    asked: list[str] = []

    def answers(yes: bool) -> list[str]:
        monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
        monkeypatch.setattr("click.confirm", lambda text, **_: asked.append(text) or yes)
        return asked

    return answers


class TestAsked:
    """Nothing is undone that nobody has seen."""

    def test_a_terminal_shows_and_asks(self, sagaspan: Sagaspan, done: list[str], terminal) -> None:
        """Tools, arguments and order; a no changes nothing, a yes undoes."""
        asked = terminal(False)
        answer = sagaspan("compensate", "done", "--app", "hotel")
        assert answer.code == 1
        rows = [line.split() for line in answer.out.splitlines()[2:4]]
        assert [(row[0], row[1], row[3].strip('"}'), row[4]) for row in rows] == [
            ("1", "book", "room", "cancel"), ("2", "book", "flight", "cancel"),
        ]  # fmt: skip
        assert asked == ["Undo 2 calls of run done-1: book, book?"]
        assert _undone() == []
        terminal(True)
        assert sagaspan("compensate", "done", "--app", "hotel").code == 0
        assert _undone() == ["room", "flight"]

    def test_without_a_terminal_it_must_be_said(self, sagaspan: Sagaspan, done: list[str]) -> None:
        """As from cron: a usage error, and nothing is undone."""
        answer = sagaspan("compensate", "done-1", "--app", "hotel", "--json")
        assert (answer.code, answer.json["kind"]) == (2, "UsageError")
        assert "--yes" in answer.json["error"]
        assert _undone() == []

    def test_what_changed_since_it_was_shown_is_left(
        self, sagaspan: Sagaspan, app: Guard, done: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """While somebody reads the list, a worker starts the run over: the yes was for another run."""

        def meanwhile(*_: object, **__: object) -> bool:
            with app.run("trip", id="done-1", reopen=True):
                pass
            return True

        monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
        monkeypatch.setattr("click.confirm", meanwhile)
        answer = sagaspan("compensate", "done-1", "--app", "hotel")
        assert answer.code == 1
        assert "has changed since it was shown" in answer.err
        assert _undone() == []

    def test_a_dry_run_changes_nothing(self, sagaspan: Sagaspan, app: Guard, done: list[str]) -> None:
        """It needs no terminal, and answers with the exit code that the real one would have."""
        answer = sagaspan("compensate", "done-1", "--app", "hotel", "--dry-run", "--json")
        assert (answer.code, answer.json["dry_run"], answer.json["status"]) == (0, True, "completed")
        assert [call["args"]["what"] for call in answer.json["undone"]] == ["room", "flight"]
        answer = sagaspan("compensate", "done-1", "--dry-run")
        assert answer.code == 4
        assert "next: sagaspan compensate done-1 --app MODULE:GUARD" in answer.out
        assert _undone() == []
        assert app.runs.get("done-1").status == "completed"


class TestWithTools:
    """With ``--app``."""

    def test_a_completed_run_is_undone_once(self, sagaspan: Sagaspan, app: Guard, done: list[str]) -> None:
        """The second time there is nothing left, which is no error."""
        first = sagaspan("compensate", "done-1", "--app", "hotel", "--yes", "--json")
        assert (first.code, first.json["status"], first.json["next"]) == (0, "compensated", [])
        assert [call["state"] for call in first.json["undone"]] == ["compensated", "compensated"]
        again = sagaspan("compensate", "done-1", "--app", "hotel", "--yes", "--json")
        assert (again.code, again.json["undone"]) == (0, [])
        assert _undone() == ["room", "flight"]
        assert sagaspan("status").code == 0

    def test_one_call_is_undone_alone(self, sagaspan: Sagaspan, app: Guard, done: list[str]) -> None:
        """By a unique prefix of its id; the run stays as it is."""
        answer = sagaspan("compensate", "done-1", "--call", done[1], "--app", "hotel", "--yes")
        assert answer.code == 0
        assert "Undone: book." in answer.out
        assert "run done-1 is completed" in answer.out
        assert sagaspan("compensate", "done-1", "--call", done[1], "--app", "hotel", "--yes").code == 0
        assert _undone() == ["room"]

    def test_what_cannot_be_undone_needs_a_person(self, sagaspan: Sagaspan, app: Guard) -> None:
        """A write without a compensation is named, and so is what no policy speaks of; exit code 4."""
        import hotel

        with app.run("trip", id="paid-1"):
            hotel.pay()
            hotel.look()
        answer = sagaspan("compensate", "paid-1", "--app", "hotel", "--yes")
        assert answer.code == 4
        assert "stays: pay {}, which declares no compensation" in answer.out
        assert "stays: look {}" in answer.out
        assert app.runs.get("paid-1").status == "partially_compensated"

    def test_a_run_that_changed_nothing_stays_completed(self, sagaspan: Sagaspan, app: Guard) -> None:
        """There is nothing to undo, so nothing has failed either."""
        import hotel

        with app.run("trip", id="read-1"):
            hotel.look()
        assert sagaspan("compensate", "read-1", "--app", "hotel", "--yes").code == 0
        assert app.runs.get("read-1").status == "completed"

    def test_a_compensation_that_fails_needs_a_person(
        self, sagaspan: Sagaspan, app: Guard, done: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The others are undone; asked again, it is tried again."""
        monkeypatch.setattr("sagaspan._rollback._LEAST_SECONDS", 60.0)  # no second attempt
        Path("closed").touch()
        answer = sagaspan("compensate", "done-1", "--app", "hotel", "--yes", "--json")
        assert (answer.code, len(answer.json["failed"])) == (4, 2)
        assert [sagaspan(*line.split()[1:]).code for line in answer.json["next"]] == [0, 0]
        Path("closed").unlink()
        assert sagaspan("compensate", "done-1", "--app", "hotel", "--yes").code == 0
        assert _undone() == ["room", "flight"]

    def test_a_call_in_doubt_is_looked_into_first(self, sagaspan: Sagaspan, app: Guard) -> None:
        """Nothing is undone by a guess: its probe decides, or a person by the command that is named."""
        import hotel

        with pytest.raises(ConnectionResetError), app.run("trip", id="doubt-1") as run:
            hotel.book("room")
            hotel.reserve()
        call = run.calls[1].id
        for more in ([], ["--call", call]):
            answer = sagaspan("compensate", "doubt-1", *more, "--app", "hotel", "--yes", "--json")
            assert (answer.code, answer.json["kind"], answer.json["call"]) == (4, "OutcomeUnknown", call)
            assert f"sagaspan calls resolve {call} OUTCOME --note WHY" in answer.json["error"]
        assert _undone() == []
        Path("seen").touch()
        assert sagaspan("compensate", "doubt-1", "--app", "hotel", "--yes").code == 0
        assert _undone() == ["a seat", "room"]

    def test_a_dry_run_says_what_must_be_decided_first(self, sagaspan: Sagaspan, app: Guard, terminal) -> None:
        """The plan, what it waits for and the command that decides it; the real one shows them and asks nothing."""
        import hotel

        with pytest.raises(ConnectionResetError), app.run("trip", id="doubt-1") as run:
            hotel.book("room")
            hotel.reserve()
        decide = f"sagaspan calls resolve {run.calls[1].id} OUTCOME --note WHY"
        answer = sagaspan("compensate", "doubt-1", "--dry-run", "--json")
        assert (answer.code, answer.json["next"][0]) == (4, decide)
        assert [call["id"] for call in answer.json["unresolved"]] == [run.calls[1].id]
        plan = sagaspan("compensate", "doubt-1", "--app", "hotel", "--dry-run")
        assert plan.code == 4
        assert "1  book" in plan.out
        assert "waits: reserve {} (needs_human): nobody knows whether it happened" in plan.out
        assert f"next: {decide}" in plan.out
        asked = terminal(True)
        refused = sagaspan("compensate", "doubt-1", "--app", "hotel")
        assert (refused.code, asked, _undone()) == (4, [], [])
        assert "waits: reserve {}" in refused.out
        assert decide in refused.err

    def test_a_call_outside_a_run_can_be_undone(self, sagaspan: Sagaspan, app: Guard) -> None:
        """While its process goes on: nothing else rests on it."""
        import hotel

        hotel.book("taxi")
        (call,) = app.calls.list(open=False)
        answer = sagaspan("compensate", call.run_id, "--call", call.id, "--app", "hotel", "--yes")
        assert answer.code == 0
        assert _undone() == ["taxi"]


def _queue(sagaspan: Sagaspan, *args: str) -> Answer:
    answer = sagaspan("compensate", *args, "--yes", "--json")
    assert answer.code == 4
    assert answer.json["next"] == ["sagaspan recover --app MODULE:GUARD"]
    return answer


class TestWithoutTools:
    """Without ``--app`` it is queued; the next command that is printed finishes it."""

    def test_a_run_waits_for_who_has_the_tools(self, sagaspan: Sagaspan, app: Guard, done: list[str]) -> None:
        """Until then ``status`` names it, and asking again queues nothing more."""
        answer = _queue(sagaspan, "done-1")
        assert answer.json["status"] == "compensating"
        assert [call["id"] for call in answer.json["queued"]] == done[::-1]
        _queue(sagaspan, "done-1")
        (item,) = sagaspan("status", "--json").json
        assert (item["id"], item["next"]) == ("done-1", "sagaspan recover --app MODULE:GUARD")
        assert "waits for a process" in item["why"]
        assert "waits for a process" in sagaspan("recover").out
        assert sagaspan(*item["next"].replace("MODULE:GUARD", "hotel:guard").split()[1:]).code == 0
        assert _undone() == ["room", "flight"]
        assert sagaspan("status").code == 0

    def test_so_does_one_call(self, sagaspan: Sagaspan, app: Guard, done: list[str]) -> None:
        """The rest of its run is left alone."""
        answer = _queue(sagaspan, "done-1", "--call", done[0][:20])
        assert answer.json["status"] == "completed"
        _queue(sagaspan, "done-1", "--call", done[0])
        (item,) = sagaspan("status", "--json").json
        assert (item["id"], item["next"]) == (done[0], "sagaspan recover --app MODULE:GUARD")
        assert "'cancel'" in item["why"]
        assert f"call {done[0]} (book): waits for a process" in sagaspan("recover").out
        foreseen = sagaspan("recover", "--app", "hotel", "--dry-run", "--json").json
        assert [call["id"] for call in foreseen["alone"]] == [done[0]]
        assert _undone() == []
        report = sagaspan("recover", "--app", "hotel", "--json").json
        assert [(call["id"], call["state"]) for call in report["alone"]] == [(done[0], "compensated")]
        assert _undone() == ["flight"]
        assert sagaspan("status").code == 0
        assert sagaspan("recover", "--app", "hotel").out == "Nothing to recover.\n"

    def test_an_app_that_lacks_the_compensation_is_named(self, sagaspan: Sagaspan, app: Guard, done: list[str]) -> None:
        """An agent that is wrapped inside a function is not there when the module is imported."""
        Path("empty.py").write_text("from sagaspan import Guard\nguard = Guard()\n")
        answer = sagaspan("compensate", "done-1", "--app", "empty", "--yes")
        assert answer.code == 4
        assert "'cancel', which undoes 'book', is not registered where empty is imported" in answer.out

    def test_a_name_that_nobody_has_is_told_at_every_recovery(
        self, sagaspan: Sagaspan, app: Guard, done: list[str]
    ) -> None:
        """A tool was renamed, or the row says what never was: not imported, not left out, and not silent either."""
        with sqlite3.connect(Path(".sagaspan") / "ledger.db") as ledger:
            ledger.execute("update calls set compensate = 'os.system' where compensate is not null")
        ledger.close()
        _queue(sagaspan, "done-1")
        assert "os.system" in sagaspan("status", "--json").json[0]["why"]
        Path("later.py").write_text(APP)
        for _ in range(2):
            told = " ".join(sagaspan("recover", "--app", "later").out.split())
            assert "run done-1 waits for os.system, which later has not. If nobody has it any more" in told
            assert "sagaspan show done-1" in told
        assert _undone() == []


class TestNames:
    """Which run is meant."""

    def test_what_is_not_there_is_not_found(self, sagaspan: Sagaspan, app: Guard, done: list[str]) -> None:
        """Exit code 3; the id of a call leads to the command that undoes it."""
        assert sagaspan("compensate", "nothing", "--yes").code == 3
        assert sagaspan("compensate", "done-1", "--call", "nothing", "--yes").code == 3
        answer = sagaspan("compensate", done[0], "--yes")
        assert answer.code == 3
        assert f"sagaspan compensate done-1 --call {done[0]}" in answer.err

    def test_a_call_of_another_run_is_an_error(self, sagaspan: Sagaspan, app: Guard, done: list[str]) -> None:
        """A slip of the hand undoes nothing."""
        with app.run("trip", id="other-1"):
            pass
        answer = sagaspan("compensate", "other-1", "--call", done[0], "--app", "hotel", "--yes")
        assert answer.code == 1
        assert "has no call" in answer.err

    def test_one_id_in_two_namespaces(self, sagaspan: Sagaspan, app: Guard, done: list[str]) -> None:
        """It must be said which; the guard of ``--app`` says it."""
        with Guard(namespace="other") as other, other.run("trip", id="done-1"):
            pass
        answer = sagaspan("compensate", "done-1", "--yes")
        assert answer.code == 3
        assert "--namespace" in answer.err
        assert sagaspan("compensate", "done-1", "--namespace", "other", "--yes", "--json").json["namespace"] == "other"
        assert sagaspan("compensate", "done-1", "--app", "hotel", "--namespace", "other", "--yes").code == 2
        assert sagaspan("compensate", "done-1", "--app", "hotel", "--yes").code == 0
        assert _undone() == ["room", "flight"]
