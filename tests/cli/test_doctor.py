"""``sagaspan doctor``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Sagaspan


def test_a_new_machine_is_well(sagaspan: Sagaspan) -> None:
    """No ledger and no traces yet are no problem."""
    answer = sagaspan("doctor", "--json")
    assert answer.code == 0
    assert {finding["state"] for finding in answer.json} <= {"ok", "note"}


@pytest.mark.usefixtures("day")
def test_it_counts_what_is_there(sagaspan: Sagaspan) -> None:
    """Ledger and traces, with their places."""
    found = {finding["what"]: finding["found"] for finding in sagaspan("doctor", "--json").json}
    assert "runs 3" in found["ledger"]
    assert "1 files" in found["traces"]
    assert found["adapter langchain"] == "sagaspan_langchain:adapter"


@pytest.mark.usefixtures("day")
def test_files_that_others_can_read_are_a_problem(sagaspan: Sagaspan, home: Path) -> None:
    """Exit code 1, and the command that mends it."""
    (home / "traces").chmod(0o755)
    answer = sagaspan("doctor")
    assert answer.code == 1
    assert "chmod" in answer.out


def test_a_damaged_ledger_is_a_problem(sagaspan: Sagaspan, home: Path) -> None:
    """It is left as it is."""
    home.mkdir()
    (home / "ledger.db").write_bytes(b"this is no database" * 100)
    answer = sagaspan("doctor", "--json")
    assert answer.code == 1
    assert "not a readable SQLite ledger" in next(f["found"] for f in answer.json if f["what"] == "ledger")
    assert (home / "ledger.db").read_bytes() == b"this is no database" * 100


def test_credentials_in_the_environment_are_not_printed(sagaspan: Sagaspan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers of an exporter hold keys."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=canary")
    assert "canary" not in sagaspan("doctor").out
