"""``sagaspan status``."""

from __future__ import annotations

import datetime as dt
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sagaspan import ApprovalPending, Guard, ToolTimeout
from sagaspan.cli._options import Settings
from sagaspan.testing import frozen_clock
from tests.cli.conftest import Answer, Sagaspan

DIES_IN_A_WRITE = """
import os
from sagaspan import Guard
guard = Guard()
@guard.tool(effect="write")
def pay(): os._exit(9)
with guard.run("trip", id="dead-1"): pay()
"""


def test_nothing_to_do_is_exit_code_0(sagaspan: Sagaspan, guard: Guard) -> None:
    """A cron job stays silent."""
    with guard.run("trip", id="fine"):
        pass
    answer = sagaspan("status")
    assert (answer.code, answer.out.strip()) == (0, "Nothing needs you.")
    assert sagaspan("status", "--json").json == []


@pytest.mark.usefixtures("day")
def test_what_could_not_be_undone_needs_a_person(sagaspan: Sagaspan) -> None:
    """The run and the step, each with its next command; exit code 4."""
    answer = sagaspan("status", "--json")
    assert answer.code == 4
    assert {(item["kind"], item["state"]) for item in answer.json} == {
        ("run", "partially_compensated"),
        ("call", "compensation_failed"),
    }
    run, call = sorted(answer.json, key=lambda item: item["kind"] != "run")
    assert run["next"] == call["next"] == f"sagaspan compensate stuck-1 --call {call['id']} --app MODULE:GUARD"


def rows(answer: Answer) -> dict[str, tuple[str, str]]:
    """Why and next command of each row, by kind."""
    return {item["kind"]: (item["why"], item["next"]) for item in answer.json}


def test_a_paused_run_names_what_ends_its_row(sagaspan: Sagaspan) -> None:
    """The request, while it waits; once that is decided, who goes on, and the command that gives the run up."""
    guard = Guard(approver="inbox")
    pay = guard.tool("pay", effect="write", approve=True)(lambda amount: amount)
    with guard, pytest.raises(ApprovalPending) as pending, guard.run("trip", id="paused-1"):
        pay(5)
    request = pending.value.approval_id
    waits = rows(sagaspan("status", "--json"))
    assert {line for _, line in waits.values()} == {f"sagaspan approvals show {request}"}
    guard.approvals.approve(request, by="ada")
    decided = rows(sagaspan("status", "--json"))
    why, line = decided.pop("run")
    assert "start the program that began it again" in why
    assert (decided, line) == ({}, "sagaspan compensate paused-1")
    assert sagaspan(*line.split()[1:], "--yes").code == 0
    assert sagaspan("status", "--json").json == []


def test_a_held_run_names_what_ends_its_row(sagaspan: Sagaspan) -> None:
    """What became of the call in doubt; once that is known, who goes on, and the command that undoes it."""
    guard = Guard()

    def pay() -> None:
        raise KeyboardInterrupt

    paying = guard.tool("pay", effect="write")(pay)
    with guard, pytest.raises(KeyboardInterrupt), guard.run("trip", id="held-1", on_interrupt="hold"):
        paying()
    in_doubt = rows(sagaspan("status", "--json"))
    assert in_doubt["run"][1] == in_doubt["call"][1]
    assert in_doubt["run"][1].startswith("sagaspan calls resolve ")
    (call,) = guard.calls.list()
    guard.calls.resolve(call.id, "did-not-happen", note="not in the books")
    known = rows(sagaspan("status", "--json"))
    why, line = known.pop("run")
    assert "nothing in it is in doubt; start the program that began it again" in why
    assert (known, line) == ({}, "sagaspan compensate held-1")
    assert sagaspan(*line.split()[1:], "--yes").code == 0
    assert sagaspan("status", "--json").json == []


def test_the_session_of_a_dead_process_ends_with_the_next_session(sagaspan: Sagaspan, home: Path) -> None:
    """It was ``running`` until somebody ran a recovery."""
    script = DIES_IN_A_WRITE.replace('with guard.run("trip", id="dead-1"): pay()', "pay()")
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 9
    assert [run["status"] for run in sagaspan("runs", "list", "--json").json] == ["running"]
    with Guard() as guard:
        guard.tool("look", effect="read")(lambda: 1)()
        listed = {run["status"] for run in sagaspan("runs", "list", "--json").json}
    assert listed == {"failed", "running"}
    assert [call["state"] for call in sagaspan("calls", "list", "--json").json] == ["running"]


def test_a_broken_edit_of_the_policy_file_needs_a_person(sagaspan: Sagaspan, tmp_path: Path) -> None:
    """It is seen without asking the process that goes by the older content, until somebody mends it."""
    file = tmp_path / "sagaspan.toml"
    file.write_text("# nothing\n")
    with frozen_clock(dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)) as clock, Guard(policies=file) as guard:
        look = guard.tool("look", effect="read")(lambda n: n)
        file.write_text("[[rules]]\naction = 'forbid'\n")
        clock.advance(2)
        look(1)
        answer = sagaspan("status", "--json")
        (item,) = answer.json
        assert (answer.code, item["kind"], item["what"], item["state"]) == (4, "policy", str(file), "stale")
        assert "'forbid'" in item["why"]
        assert sagaspan(*shlex.split(item["next"])[1:]).code == 1
        file.write_text("# mended\n")
        clock.advance(2)
        look(2)
    assert sagaspan("status", "--json").json == []


def test_a_dead_process_is_seen_at_once(sagaspan: Sagaspan, home: Path) -> None:
    """A run and a write that its process never finished are listed without waiting for a lease."""
    done = subprocess.run([sys.executable, "-c", DIES_IN_A_WRITE], capture_output=True, text=True)
    assert done.returncode == 9, done.stderr
    answer = sagaspan("status", "--json")
    assert answer.code == 4
    assert {(item["kind"], item["id"] if item["kind"] == "run" else item["what"]) for item in answer.json} == {
        ("run", "dead-1"),
        ("call", "pay"),
    }
    nexts = {item["kind"]: item["next"] for item in answer.json}
    assert nexts["run"] == "sagaspan recover --app MODULE:GUARD"
    assert nexts["call"].startswith("sagaspan calls resolve ")
    assert all("of this host, which died (last sign of life " in item["why"] for item in answer.json)
    shown = sagaspan("show", "dead-1").out
    assert "which died" in shown.split("held by")[1].splitlines()[0]
    assert "sagaspan recover --app MODULE:GUARD" in shown


WORKS_ELSEWHERE = """
import os, sys
from sagaspan import Guard, _owner
_owner._pid_namespace = lambda: "elsewhere"
guard = Guard()
@guard.tool(effect="write")
def pay():
    print("in", flush=True)
    sys.stdin.readline()
with guard.run("trip", id="far-1"): pay()
"""


def test_who_holds_what_goes_on(sagaspan: Sagaspan, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of another container is shown with its lease; once that is over it needs a recovery."""
    monkeypatch.setenv("SAGASPAN_LEASE_SECONDS", "1")
    process = subprocess.Popen(
        [sys.executable, "-c", WORKS_ELSEWHERE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "in\n"
    held = sagaspan("show", "far-1").out.split("held by")[1].splitlines()[0]
    assert f"process {process.pid} of another container, alive, lease until" in held
    assert sagaspan("status").code == 0
    call = sagaspan("calls", "list", "--json").json[0]["id"]
    assert "of another container, alive" in sagaspan("show", call).out
    process.kill()
    process.communicate()
    time.sleep(1.1)
    answer = sagaspan("status", "--json")
    assert answer.code == 4
    assert all("whose lease is over (last renewed" in item["why"] for item in answer.json)
    nexts = {item["kind"]: item["next"] for item in answer.json}
    assert nexts["run"] == "sagaspan recover --app MODULE:GUARD"
    assert nexts["call"].startswith("sagaspan calls resolve ")
    assert "needs a person" in sagaspan("recover").out
    assert {item["state"] for item in sagaspan("status", "--json").json} == {"held", "unknown"}


def test_a_run_after_its_pivot_says_how_it_goes_on(sagaspan: Sagaspan, guard: Guard) -> None:
    """Enter it again; or undo what came after the pivot, which tells what stays."""
    book = guard.tool("book", compensate=lambda result: None)(lambda what: what)
    ship = guard.tool("ship", effect="irreversible", pivot=True)(lambda: None)
    with pytest.raises(ValueError, match="no"), guard.run("trip", id="shipped-1"):
        book("before")
        ship()
        book("after")
        raise ValueError("no")
    (item,) = sagaspan("status", "--json").json
    assert (item["id"], item["state"]) == ("shipped-1", "held")
    assert item["why"] == "failed after its pivot, so it only goes forward: enter it again with the same id (pivot)"
    plan = sagaspan("compensate", "shipped-1", "--dry-run")
    assert 'stays: book {"what": "before"}, because a pivot after it is done' in plan.out
    answer = sagaspan("compensate", "shipped-1", "--dry-run", "--json")
    assert [step["args"] for step in answer.json["kept"]] == [{"what": "before"}]
    assert "pivot" in sagaspan("show", guard.runs.get("shipped-1").calls[1].id).out
    guard.compensate("shipped-1")
    (item,) = sagaspan("status", "--json").json
    assert item["why"] == "was rolled back, but not all of it (pivot)"


def test_a_run_that_recovery_will_undo_says_so(sagaspan: Sagaspan, guard: Guard) -> None:
    """While a write in it is in doubt, that comes first; then status names the command that undoes it."""

    @guard.tool(effect="write")
    def pay() -> None:
        raise ConnectionResetError

    book = guard.tool("book", compensate=lambda result: None)(lambda: "12A")
    with pytest.raises(ConnectionResetError), guard.run("trip", id="failed-1"):
        book()
        pay()
    recover = "sagaspan recover --app MODULE:GUARD"
    run, call = sagaspan("status", "--json").json
    assert run["why"] == "is to be undone: recovery does so when what is in doubt in it is decided (error)"
    assert run["next"] == call["next"]
    answer = sagaspan("calls", "resolve", call["id"], "did-not-happen", "--note", "n")
    assert f"If nobody enters it, recovery undoes it: {recover}" in answer.out
    (run,) = sagaspan("status", "--json").json
    assert run["why"] == "is to be undone, and nothing in it is in doubt any more: recovery undoes it (error)"
    assert run["next"] == recover
    assert [found.id for found in guard.recover().compensated] == ["failed-1"]
    assert sagaspan("status").out.strip() == "Nothing needs you."


def test_locks_kept_by_what_needs_a_person(sagaspan: Sagaspan, guard: Guard) -> None:
    """Whoever is refused a lock finds here who keeps it, and ``show`` names it too."""

    @guard.tool(effect="write", lock="['seat:' + seat, 'hall']")
    def book(seat: str) -> None:
        raise TimeoutError

    @guard.tool(lock="'lamp'")
    def look() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError), guard.run(id="held-1"):
        book("7A")
    with pytest.raises(TimeoutError):
        look()
    items = {item["what"]: item for item in sagaspan("status", "--json").json}
    assert items["run"]["locks"] == ["hall", "seat:7A"]
    assert items["look"]["locks"] == ["lamp"]  # in doubt and no write, but nobody else can take its lock
    assert items["look"]["next"].startswith("sagaspan calls resolve ")
    assert items["book"]["locks"] == []  # they are its run's
    assert "keeps the locks hall, seat:7A" in sagaspan("status").out
    assert "hall, seat:7A" in sagaspan("show", "held-1").out
    assert sagaspan("runs", "show", "held-1", "--json").json["locks"] == ["hall", "seat:7A"]
    assert "hall, seat:7A" in sagaspan("show", items["book"]["id"]).out


def test_what_happened_after_all_is_an_incident(sagaspan: Sagaspan, guard: Guard) -> None:
    """The agent went by that it did not happen, and its run is over: until somebody undoes it or says that it stays."""
    go_on = threading.Event()

    @guard.tool(effect="write", timeout=0.05)
    def pay(order: str) -> str:
        go_on.wait(60)
        return "paid"

    with guard.run("trip", id="a"):
        with pytest.raises(ToolTimeout):
            pay("o-1")
        call = guard.runs.get("a").calls[0].id
        assert sagaspan("calls", "resolve", call, "did-not-happen", "--note", "not in the books").code == 0
    assert sagaspan("status").code == 0
    go_on.set()
    deadline = time.monotonic() + 300
    while sagaspan("status").code == 0:
        assert time.monotonic() < deadline
    (item,) = sagaspan("status", "--json").json
    assert (item["id"], item["state"]) == (call, "done")
    assert "happened after all" in item["why"]
    assert item["next"] == f"sagaspan calls resolve {call} compensated --note WHY"
    assert f"sagaspan calls resolve {call} happened --note WHY" in sagaspan("show", call).out
    assert sagaspan("calls", "resolve", call, "happened", "--note", "they keep it").code == 0
    assert sagaspan("status").code == 0
    assert "happened --note" not in sagaspan("show", call).out


@pytest.mark.parametrize(
    ("url", "shown"),
    [("sqlite:////var/agents/ledger.db", "sqlite:////var/agents/ledger.db"),
     ("postgresql://ann@db.example/shop", "postgresql://ann@db.example/shop"),
     ("postgresql://db.example/shop?schema=a&slices=64", "'postgresql://db.example/shop?schema=a&slices=64'"),
     ("postgresql://ann:canary@db.example/shop", "'postgresql://***@db.example/shop'"),
     ("postgresql://ann@db.example/shop?password=canary&schema=a",
      "'postgresql://***@db.example/shop?password=***&schema=a'")],
)  # fmt: skip
def test_what_to_type_next_has_no_password_in_it(url: str, shown: str) -> None:
    """It goes to logs and mails; else it names the ledger in one word of the shell."""
    assert Settings(store=url).command("status") == f"sagaspan status --store {shown}"
