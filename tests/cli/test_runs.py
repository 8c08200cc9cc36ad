"""``sagaspan runs``."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from sagaspan import Guard, SagaspanError
from tests.cli.conftest import Sagaspan


@pytest.mark.usefixtures("day")
class TestRuns:
    """Over a day's work."""

    def test_list_shows_the_newest_first(self, sagaspan: Sagaspan) -> None:
        """A table for people, with state and reason in the library's own words."""
        answer = sagaspan("runs", "list")
        assert answer.code == 0
        lines = answer.out.splitlines()
        assert [line.split()[0] for line in lines[1:]] == ["stuck-1", "lost-1", "paid-1"]
        assert "partially_compensated" in lines[1]
        assert "compensated" in lines[2]
        assert "error" in lines[2]

    def test_json_is_taken_before_and_after_the_verb(self, sagaspan: Sagaspan) -> None:
        """A machine need not know where an option goes."""
        before, after = sagaspan("--json", "runs", "list"), sagaspan("runs", "list", "--json")
        assert before.json == after.json
        assert [run["status"] for run in before.json] == ["partially_compensated", "compensated", "completed"]
        assert "calls" not in before.json[0]  # they are not looked up for a list

    def test_list_can_be_narrowed(self, sagaspan: Sagaspan) -> None:
        """By state, count and offset."""
        assert [run["id"] for run in sagaspan("runs", "list", "-s", "completed", "--json").json] == ["paid-1"]
        assert [run["id"] for run in sagaspan("runs", "list", "-n", "1", "--offset", "1", "--json").json] == ["lost-1"]

    def test_show_has_the_calls_and_what_undid_them(self, sagaspan: Sagaspan) -> None:
        """A unique prefix is enough, and the compensation names the call it undoes."""
        answer = sagaspan("runs", "show", "lost")
        assert answer.code == 0
        assert "run lost-1  compensated" in answer.out
        assert "cancel undoes #1" in answer.out
        calls = sagaspan("runs", "show", "lost", "--json").json["calls"]
        assert [(call["tool"], call["state"], call["phase"]) for call in calls] == [
            ("book", "compensated", "forward"),
            ("cancel", "done", "compensation"),
        ]
        assert calls[1]["compensates"] == calls[0]["id"]

    def test_an_unknown_run_is_not_found(self, sagaspan: Sagaspan) -> None:
        """Exit code 3 and one sentence with what to do."""
        answer = sagaspan("runs", "show", "nothing")
        assert answer.code == 3
        assert "sagaspan runs list" in answer.err

    def test_what_comes_from_outside_is_shown_not_obeyed(self, sagaspan: Sagaspan) -> None:
        """Terminal escapes and bidirectional marks in a result reach no terminal."""
        for answer in (sagaspan("runs", "show", "paid-1"), sagaspan("show", "paid-1")):
            assert "\x1b[31m" not in answer.out
            assert "\u202e" not in answer.out
            assert "\\u001b" in answer.out


def test_no_ledger_is_one_sentence_and_nothing_is_made(sagaspan: Sagaspan, home: object) -> None:
    """Looking does not create what it looks for."""
    answer = sagaspan("runs", "list")
    assert answer.code == 1
    assert answer.err.count("\n") == 1
    assert "there is no ledger" in answer.err
    assert answer.err.endswith("make it: sagaspan migrate\n")
    assert not (home / "ledger.db").exists()
    assert sagaspan("runs", "list", "--json").json["kind"] == "StoreUnavailable"


def test_a_wrong_option_is_a_usage_error(sagaspan: Sagaspan) -> None:
    """Exit code 2, as every program's."""
    assert sagaspan("runs", "list", "--nonsense").code == 2
    assert sagaspan("runs", "list", "-n", "0").code == 2
    assert sagaspan("nonsense").code == 2


def test_json_stays_json_when_nothing_is_found_or_understood(sagaspan: Sagaspan, guard: object) -> None:
    """A machine never has to parse prose."""
    assert sagaspan("runs", "list", "--nonsense", "--json").json["kind"] == "NoSuchOption"
    with guard.run("trip", id="one"):
        pass
    assert sagaspan("show", "nothing", "--json").json["kind"] == "NotFound"
    assert sagaspan("runs", "show", "nothing", "--json").json["kind"] == "NotFound"


@pytest.mark.usefixtures("day")
class TestExport:
    """The report of one run, for whoever has to explain it."""

    def test_it_says_what_happened_was_undone_and_is_open(self, sagaspan: Sagaspan) -> None:
        """With the next command for what a person has to do."""
        text = sagaspan("runs", "export", "stuck-1").out
        assert text.startswith("# Run stuck-1: partially\\_compensated\n")
        chapters = dict(part.split("\n", 1) for part in text.split("\n## ")[1:])
        assert list(chapters) == [
            "What happened", "Who approved", "What it cost", "What was undone", "What is open", "History",
        ]  # fmt: skip
        assert "| book |" in chapters["What happened"]
        assert "Nobody was asked." in chapters["Who approved"]
        assert "the hotel does not answer" in chapters["What was undone"]
        assert "sagaspan compensate stuck-1 --call" in chapters["What is open"]
        assert "\x1b" not in text

    def test_a_run_that_went_well_has_nothing_open(self, sagaspan: Sagaspan, tmp_path: Path) -> None:
        """Also as JSON, and into a file."""
        target = tmp_path / "report.md"
        assert sagaspan("runs", "export", "paid-1", "-o", str(target)).code == 0
        assert "## What is open\n\nNothing." in target.read_text()
        assert sagaspan("runs", "export", "paid-1", "-f", "json").json["id"] == "paid-1"
        assert sagaspan("runs", "export", "nothing").code == 3


def test_it_says_who_approved_and_what_it_cost(guard: Guard, sagaspan: Sagaspan) -> None:
    """Who said yes and who said no, and why; and the price of each tool."""
    pay = guard.tool("pay", effect="write", approve=True, cost="0.5 USD")(lambda amount: amount)
    with guard.override(approver="inbox"):
        for said in ("yes", "no", None):
            with contextlib.suppress(SagaspanError), guard.run("job", id="order-1"):
                pay(5)
                pay(7)
            for request in guard.approvals.list():
                if said == "yes":
                    guard.approvals.approve(request.id, by="alice")
                else:
                    guard.approvals.deny(request.id, by="bob", reason="too much")
    text = sagaspan("runs", "export", "order-1").out
    chapters = dict(part.split("\n", 1) for part in text.split("\n## ")[1:])
    yes, no = (line for line in chapters["Who approved"].splitlines() if line.startswith("| pay |"))
    assert "| consumed | alice (api" in yes
    assert "| denied | bob (api) |" in no
    assert "| too much |" in no
    assert "| pay | 1 | $0.5000 |" in chapters["What it cost"]
    assert "bob (api): too much" in sagaspan("runs", "show", "order-1").out
    shown = sagaspan("runs", "show", "order-1", "--json").json["approvals"]
    assert [(one["state"], one["by"], one["reason"]) for one in shown] == [
        ("consumed", "alice (api)", None), ("denied", "bob (api)", "too much"),
    ]  # fmt: skip
    assert "denied by   bob (api)" in sagaspan("approvals", "show", shown[1]["id"]).out


def test_a_limit_can_be_set_before_any_agent_ran(sagaspan: Sagaspan, home: Path) -> None:
    """Where there is no ledger nothing is set, for it might be another one's folder; who makes it is told how."""
    assert sagaspan("budgets", "set", "user:42", "5 USD").code == 1
    made = sagaspan("migrate")
    assert (made.code, "is of this version now; applied: 0001 initial" in made.out) == (0, True)
    assert sagaspan("budgets", "set", "user:42", "5 USD").code == 0
    assert sagaspan("migrate").out.endswith("is of this version\n")


def test_tags_are_shown_and_filter(sagaspan: Sagaspan, guard: Guard) -> None:
    """All that are given must fit; the page is of those that do."""
    for number in range(4):
        with guard.run("trip", id=f"r{number}", tags={"team": "blue" if number % 2 else "red", "n": number}):
            pass
    blue = ["runs", "list", "--tag", "team=blue", "--json"]
    assert [run["id"] for run in sagaspan(*blue).json] == ["r3", "r1"]
    assert [run["id"] for run in sagaspan(*blue, "--limit", "1", "--offset", "1").json] == ["r1"]
    assert [run["id"] for run in sagaspan(*blue, "--tag", "n=3").json] == ["r3"]
    assert [run.id for run in guard.runs.list(tags={"team": "red", "n": 2})] == ["r2"]
    assert "team=blue, n=1" in sagaspan("runs", "show", "r1").out
    assert sagaspan("runs", "list", "--tag", "team").code == 2


def test_a_misspelt_command_is_told_the_nearest(sagaspan: Sagaspan) -> None:
    """Of commands and of those below one; exit code 2."""
    for line, near in (
        ("staus", "did you mean status"),
        ("runs lst", "did you mean list"),
        ("xyz", "there are demo, "),
    ):
        answer = sagaspan(*line.split())
        assert (answer.code, near in answer.err) == (2, True)
