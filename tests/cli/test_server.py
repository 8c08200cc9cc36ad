"""The program where ``SAGASPAN_STORE`` names a ledger on a server: what it reads, it reads there."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from sagaspan import Guard
from tests.servers import Postgres

from .conftest import Sagaspan


@pytest.fixture
def night(postgres: Postgres, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A run that was rolled back, on the server that the environment names."""
    monkeypatch.setenv("SAGASPAN_STORE", postgres.url)
    with Guard() as guard:
        book = guard.tool("book", compensate=lambda result: "cancelled", cost="0.5 USD")(lambda order: f"for {order}")
        with pytest.raises(ValueError, match="no room"), guard.run("trip", id="trip-1", budget="5 USD"):
            book(order="17")
            raise ValueError("no room")
        yield


@pytest.mark.usefixtures("night")
def test_the_ledgers_tables_are_those_of_the_server(sagaspan: Sagaspan) -> None:
    """Without a trace file too; the index keeps no password, and what is new comes with the next question."""
    answer = sagaspan("sql", "select tool, state, cost_usd from ledger.calls where phase = 'forward'", "--json")
    assert answer.json == [{"tool": "book", "state": "compensated", "cost_usd": 0.5}]
    assert "no ledger here" not in answer.err
    answer = sagaspan("sql", "select run_id, state from ledger.runs", "--json")
    assert answer.json == [{"run_id": "trip-1", "state": "compensated"}]


@pytest.mark.usefixtures("night")
def test_the_report_of_a_run_on_the_server(sagaspan: Sagaspan) -> None:
    """What happened, what it cost, what was undone: in Markdown and in JSON."""
    report = sagaspan("runs", "export", "trip-1", "--format", "md")
    assert report.code == 0
    assert "# Run trip-1: compensated" in report.out
    assert "book" in report.out
    assert sagaspan("runs", "export", "trip-1", "--format", "json").json["id"] == "trip-1"
    assert sagaspan("show", "trip-1").code == 0


def test_a_server_that_is_away_is_named_without_its_password(
    sagaspan: Sagaspan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one sentence: the old rows of the ledger are not shown as if they were its present."""
    pytest.importorskip("psycopg")
    monkeypatch.setenv("SAGASPAN_STORE", "postgresql://agent:hunter2@127.0.0.1:1/ledger")
    for command in (("sql", "select * from ledger.calls"), ("runs", "export", "trip-1")):
        answer = sagaspan(*command)
        assert answer.code == 1
        assert answer.err.startswith("Error: ")
        assert answer.err.count("\n") == 1
        assert "hunter2" not in answer.err


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_doctor_says_what_a_power_cut_would_do_and_where_the_secret_is(
    sagaspan: Sagaspan, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """What the server is set to; whether this host has the secret that the ledger was written with."""
    server = request.getfixturevalue(kind)
    monkeypatch.setenv("SAGASPAN_STORE", server.url)
    monkeypatch.setenv("SAGASPAN_SECRET", "s" * 32)

    def found(what: str) -> tuple[str, str]:
        (it,) = [one for one in sagaspan("doctor", "--json").json if one["what"] == what]
        return it["state"], it["found"]

    with Guard() as guard:
        guard.tool("pay", redact=["card"])(lambda card: None)("4111")
    if kind == "postgres":  # the server of the tests has no fsync
        monkeypatch.setattr(
            "sagaspan.stores._postgres_connecting._DURABILITY", ("full_page_writes", "synchronous_commit")
        )
    state, ledger = found("ledger")
    assert state == "ok"
    settings = "synchronous_commit on" if kind == "postgres" else "innodb_flush_log_at_trx_commit 1, binary log off"
    assert settings in ledger
    state, secret = found("secret")
    assert (state, secret) == ("ok", "of the namespace default: SAGASPAN_SECRET; the ledger was written with it")
    monkeypatch.setenv("SAGASPAN_SECRET", "t" * 32)
    state, secret = found("secret")
    assert state == "problem"
    assert "written with another secret than that of SAGASPAN_SECRET" in secret


def test_doctor_finds_a_server_that_syncs_nothing(
    sagaspan: Sagaspan, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the one of the tests: a commit is not on disk when the server says that it is."""
    if postgres.run("show fsync") == [("on",)]:
        pytest.skip("this server does")
    monkeypatch.setenv("SAGASPAN_STORE", postgres.url)
    answer = sagaspan("doctor", "--json")
    (ledger,) = [one for one in answer.json if one["what"] == "ledger"]
    assert (answer.code, ledger["state"]) == (4, "problem")
    assert "does not sync its commits (fsync = off)" in ledger["found"]


def test_what_to_type_next_leads_to_the_ledger_that_was_named(
    sagaspan: Sagaspan, postgres: Postgres, home: Path
) -> None:
    """By ``--store``, which nothing else remembers; in one word of the shell, and without a password."""
    with Guard(postgres.url) as guard:
        hang = guard.tool("hang", effect="write")(lambda: exec("raise TimeoutError"))
        with pytest.raises(TimeoutError), guard.run("r", id="r-1"):
            hang()
    url = f"{postgres.url}&application_name=a"
    (item,) = [one for one in sagaspan("status", "--store", url, "--json").json if one["kind"] == "call"]
    *command, option, store = shlex.split(item["next"])
    assert (option, store) == ("--store", url)
    call = sagaspan(*(word.replace("OUTCOME", "happened") for word in command[1:]), option, store)
    assert (call.code, f"sagaspan recover --app MODULE:GUARD --store '{url}'" in call.out) == (0, True)
    user, _, rest = url.partition("://")[2].partition("@")
    secret = f"postgresql://{user}:hunter2@{rest}"
    for command in (["show", "r-1"], ["compensate", "r-1", "--yes"], ["status"]):
        answer = sagaspan(*command, "--store", secret)
        assert "hunter2" not in answer.out + answer.err


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_migrate_says_whether_a_program_of_this_version_may_start(
    sagaspan: Sagaspan, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """``--check`` only looks, and is 1 before a ledger is made, while it is older, and where it is newer."""
    server = request.getfixturevalue(kind)
    known = server.schema if kind == "postgres" else server.database
    name, of_mariadb = f"{known}_n", "" if kind == "postgres" else ", 1"
    monkeypatch.setenv("SAGASPAN_STORE", server.url.replace(known, name))
    try:
        for _ in range(2):  # looking makes nothing
            answer = sagaspan("migrate", "--check")
            assert (answer.code, "there is no ledger at" in answer.err) == (1, True)
        assert "is of this version now; applied: 0001 initial" in sagaspan("migrate").out
        assert (sagaspan("migrate", "--check").code, sagaspan("migrate", "--json").json["done"]) == (0, [])
        server.run(f"insert into {name}.migrations values (1999, 'future'{of_mariadb})")
        for command in (["migrate", "--check"], ["migrate"], ["status"]):
            answer = sagaspan(*command)
            assert (answer.code, "upgrade sagaspan" in answer.err) == (1, True), command
        server.run(f"delete from {name}.migrations where number in (1999, 15)", f"drop table {name}.loops")
        for command in (["migrate", "--check"], ["status"], ["recover"]):
            answer = sagaspan(*command, "--json")
            assert (answer.code, answer.json["kind"]) == (1, "SchemaOutdated"), command
            assert "somebody who may change it runs: sagaspan migrate" in answer.json["error"]
    finally:
        server.run(f"drop schema if exists {name}{' cascade' if kind == 'postgres' else ''}")
