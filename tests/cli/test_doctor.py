"""``sagaspan doctor``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Sagaspan


def _found(sagaspan: Sagaspan) -> dict[str, str]:
    return {finding["what"]: finding["found"] for finding in sagaspan("doctor", "--json").json}


def test_a_new_machine_is_well(sagaspan: Sagaspan) -> None:
    """No ledger and no traces yet are no problem."""
    answer = sagaspan("doctor", "--json")
    assert answer.code == 0
    assert {finding["state"] for finding in answer.json} <= {"ok", "note"}


@pytest.mark.usefixtures("day")
def test_it_counts_what_is_there(sagaspan: Sagaspan, home: Path) -> None:
    """Ledger and traces, with their places."""
    found = _found(sagaspan)
    assert "runs 3" in found["ledger"]
    assert "1 files" in found["traces"]
    for name in ("rotated.jsonl.gz", "collector-2026-11-21T10-00-00.000.json", "collector.jsonl.zst", "index.duckdb"):
        (home / "traces" / name).touch(mode=0o600)
    assert "4 files" in _found(sagaspan)["traces"]
    assert found["adapter langchain"] == "sagaspan_langchain:adapter"


@pytest.mark.usefixtures("day")
def test_files_that_others_can_read_are_a_problem(sagaspan: Sagaspan, home: Path) -> None:
    """Exit code 4, and the command that mends it."""
    (home / "traces").chmod(0o755)
    answer = sagaspan("doctor")
    assert answer.code == 4
    assert "chmod" in answer.out


def test_a_damaged_ledger_is_a_problem(sagaspan: Sagaspan, home: Path) -> None:
    """It is left as it is."""
    home.mkdir()
    (home / "ledger.db").write_bytes(b"this is no database" * 100)
    answer = sagaspan("doctor", "--json")
    assert answer.code == 4
    assert "not a readable SQLite ledger" in next(f["found"] for f in answer.json if f["what"] == "ledger")
    assert (home / "ledger.db").read_bytes() == b"this is no database" * 100


@pytest.mark.usefixtures("day")
@pytest.mark.parametrize(
    ("name", "mode", "sentence"),
    [
        ("ledger.db", 0o644, "others can read"),
        ("ledger.db", 0o620, "others can change"),
        ("ledger.db-wal", 0o640, "others can read"),
        ("ledger.db.secret", 0o604, "others can read"),
        ("", 0o755, "others can look into"),
        ("", 0o777, "others can put another ledger into"),
    ],
)
def test_a_ledger_that_is_not_ours_alone_is_a_problem(
    sagaspan: Sagaspan, home: Path, name: str, mode: int, sentence: str
) -> None:
    """Exit code 4, and the command that mends it; a ledger as it is made is well."""
    path = home / name
    if name and not path.exists():
        path.touch(0o600)
    assert sagaspan("doctor").code == 0
    path.chmod(mode)
    answer = sagaspan("doctor", "--json")
    assert answer.code == 4
    (found,) = [finding["found"] for finding in answer.json if finding["state"] == "problem"]
    assert sentence in found
    assert found.endswith(f"; chmod {600 if name else 700} {path}")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SAGASPAN_SECRET", "canary"),
        ("SAGASPAN_LEDGER_KEYS", "canary"),
        ("SAGASPAN_API_KEY", "canary"),
        ("SAGASPAN_STORE", "postgresql://ann:canary@db.example/shop"),
        ("SAGASPAN_STORE", "postgresql://ann:can/ary:canary@db.example/shop?password=canary"),
        ("SAGASPAN_STORE", "postgresql://db.example/shop?sslmode=require&password=canary&user=ann"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://ann:canary@otel.example"),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "authorization=canary"),
    ],
)
@pytest.mark.parametrize("json", [[], ["--json"]])
def test_secrets_in_the_environment_are_not_printed(
    sagaspan: Sagaspan, monkeypatch: pytest.MonkeyPatch, name: str, value: str, json: list[str]
) -> None:
    """Of a URL the rest is shown, of a key only that it is set."""
    monkeypatch.setenv(name, value)
    answer = sagaspan("doctor", *json)
    assert "canary" not in answer.out + answer.err
    assert name in answer.out


def test_a_misspelt_variable_is_a_problem(sagaspan: Sagaspan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose ledger is another one than meant: nothing looks at it meanwhile. Variables of others are shown."""
    monkeypatch.setenv("SAGASPAN_OF_SOMEBODY_ELSE", "1")
    assert sagaspan("doctor").code == 0
    monkeypatch.setenv("SAGASPAN_STOER", "postgresql://ann:canary@db.example/shop")
    answer = sagaspan("doctor", "--json")
    assert answer.code == 4
    problems = [finding for finding in answer.json if finding["state"] == "problem"]
    assert [finding["what"] for finding in problems] == ["ledger", "SAGASPAN_STOER"]
    assert all("did you mean SAGASPAN_STORE?" in finding["found"] for finding in problems)
    assert "canary" not in answer.out
    status = sagaspan("status")
    assert (status.code, "did you mean SAGASPAN_STORE?" in status.err) == (2, True)


def test_credentials_in_the_environment_are_not_printed(sagaspan: Sagaspan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers of an exporter hold keys."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=canary")
    assert "canary" not in sagaspan("doctor").out
