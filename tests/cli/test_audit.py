"""``sagaspan audit``: exit 1 and a name for whatever is not as it was written."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from sagaspan import Guard
from tests.cli.conftest import Sagaspan


@pytest.fixture
def ledger(guard: Guard, home: Path) -> Path:
    """A ledger with one run of one approved call."""
    pay = guard.tool("pay", effect="write", approve=True)(lambda amount: amount)
    with guard.override(approver=lambda request: True), guard.run("job", id="order-1"):
        pay(5)
    guard.close()
    return home / "ledger.db"


def do(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
        connection.commit()


def test_what_is_well_is_0_and_what_is_not_is_4(sagaspan: Sagaspan, ledger: Path) -> None:
    """Each row is named by its run, its number and what was done to it."""
    done = sagaspan("audit", "verify")
    assert done.code == 0
    assert "chains verified" in done.out
    assert sagaspan("audit", "verify", "--run", "order", "--json").json["ok"] is True
    do(ledger, "update audit set actor = 'nobody' where number = 3")
    done = sagaspan("audit", "verify")
    assert done.code == 4
    assert "altered" in done.out
    assert "order-1" in done.out
    done = sagaspan("audit", "verify", "--json")
    assert (done.code, done.json["ok"]) == (4, False)
    assert [(one["run"], one["number"], one["problem"]) for one in done.json["findings"]] == [("order-1", 3, "altered")]


def test_an_anchor_tells_of_a_run_that_is_gone(sagaspan: Sagaspan, ledger: Path, tmp_path: Path) -> None:
    """Also when it is asked for by name."""
    anchor = str(tmp_path / "heads.jsonl")
    assert sagaspan("audit", "verify", "--write-anchor", anchor).code == 0
    assert "compared with the anchor" in sagaspan("audit", "verify", "--anchor", anchor).out
    for table, name in (("audit", "run_id"), ("calls", "run_id"), ("approvals", "run_id"), ("runs", "id")):
        do(ledger, f"delete from {table} where {name} = 'order-1'")
    assert sagaspan("audit", "verify").code == 0
    done = sagaspan("audit", "verify", "--anchor", anchor, "--json")
    assert [(one["run"], one["problem"]) for one in done.json["findings"]] == [("order-1", "truncated")]


def test_an_anchor_takes_the_place_of_a_regular_file_alone(sagaspan: Sagaspan, ledger: Path, tmp_path: Path) -> None:
    """A link is followed; a pipe, or a device, would be gone, and the anchor with it."""
    kept, link, pipe = tmp_path / "kept.jsonl", tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(kept)
    os.mkfifo(pipe)
    for _ in range(2):  # it is not there yet, and then it is
        assert sagaspan("audit", "verify", "--write-anchor", str(link)).code == 0
    assert link.is_symlink()
    assert sagaspan("audit", "verify", "--anchor", str(kept)).code == 0
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    refused = sagaspan("audit", "verify", "--write-anchor", str(pipe))
    assert (refused.code, pipe.is_fifo(), "no regular file" in refused.err) == (2, True, True)
    assert sorted(tmp_path.glob(".*.jsonl*")) == []


def test_an_anchor_of_one_run_is_a_usage_error(sagaspan: Sagaspan, ledger: Path, tmp_path: Path) -> None:
    """It is of all of them."""
    assert sagaspan("audit", "verify", "--run", "order-1", "--write-anchor", str(tmp_path / "a")).code == 2


def test_an_unknown_run_is_3(sagaspan: Sagaspan, ledger: Path) -> None:
    """Nothing of it is in the trail either; of one that was pruned, something is."""
    assert sagaspan("audit", "verify", "--run", "nope").code == 3
    assert sagaspan("audit", "export", "--run", "nope").code == 3
    assert sagaspan("prune", "--older-than", "0s", "--yes").code == 0
    assert "1 chains" in sagaspan("audit", "verify", "--run", "order-1").out


def test_an_export_is_json_to_a_file_or_to_a_pipe(sagaspan: Sagaspan, ledger: Path, tmp_path: Path) -> None:
    """One document a line, or one array."""
    lines = [json.loads(line) for line in sagaspan("audit", "export").out.splitlines()]
    assert {row["event"] for row in lines} >= {"run.open", "claim", "approval.approve", "approval.consume"}
    done = sagaspan("audit", "export", "--format", "json", "--output", str(tmp_path / "out.json"))
    assert f"{len(lines)} rows" in done.err
    assert json.loads((tmp_path / "out.json").read_text()) == lines
    assert sagaspan("audit", "export", "--json").json == lines
    assert sagaspan("audit", "export", "--output", str(tmp_path / "no" / "out.json")).code == 1


@pytest.mark.parametrize(("is_terminal", "lines"), [(True, 1), (False, 0)])
def test_progress_is_shown_on_a_terminal_alone(
    sagaspan: Sagaspan, ledger: Path, monkeypatch: pytest.MonkeyPatch, is_terminal: bool, lines: int
) -> None:
    """On standard error; what a script reads there is only what is wrong."""
    monkeypatch.setattr("sagaspan.cli.audit._PROGRESS_SECONDS", -1.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal, raising=False)
    done = sagaspan("audit", "export")
    assert bool(done.err.count("rows exported so far")) == bool(lines)
    assert "so far" not in done.out
