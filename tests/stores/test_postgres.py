"""The store on a server: its schema, its fences against other versions, lost answers, and the server's clock."""

from __future__ import annotations

import re
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from sagaspan import ConfigurationError, Guard, SchemaOutdated, StoreError, StoreUnavailable
from sagaspan._audit import Audit
from sagaspan.ledger.store import Barrier
from sagaspan.stores import _postgres_saving as saving
from sagaspan.stores import _postgres_schema as schema
from sagaspan.stores import _requests as requests
from sagaspan.stores import connect
from sagaspan.stores.postgres import PostgresStore
from sagaspan.stores.sqlite import SqliteStore
from sagaspan.testing._conformance_records import BUDGET, claiming, opening, saved
from tests.servers import Postgres


def test_both_schemas_have_the_same_tables_and_columns(postgres: Postgres, tmp_path: Path) -> None:
    """In the same order, with the same types, and what may be null; only PostgreSQL cuts budgets into slices."""
    SqliteStore(tmp_path / "ledger.db").list_runs()
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        tables = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
        kinds = {"TEXT": "text", "INTEGER": "bigint", "BLOB": "bytea"}
        ours = {
            table: [(name, kinds[kind], bool(required or key)) for _, name, kind, required, _, key in
                    connection.execute(f"pragma table_info({table})")]
            for table in tables if table != "migrations"
        }  # fmt: skip
    connection.close()
    theirs: dict[str, list[tuple[Any, ...]]] = {}
    for table, *column in postgres.run(
        "select table_name, column_name, data_type, is_nullable = 'NO' from information_schema.columns "
        "where table_schema = current_schema() and table_name <> 'migrations' order by table_name, ordinal_position"
    ):
        theirs.setdefault(str(table), []).append(tuple(column))
    assert [name for name, *_ in theirs.pop("accounts")] == [name for name, *_ in ours["budgets"]]
    assert theirs.pop("slices")
    assert [name for name, *_ in theirs["budgets"][-2:]] == ["slices", "sliced"]
    del theirs["budgets"][-2:]
    assert theirs == ours
    assert "window" in {name for name, *_ in ours["budgets"]}


def test_every_text_is_compared_byte_by_byte(postgres: Postgres) -> None:
    """Whatever the order of letters is where the database was made."""
    others = postgres.run(
        "select table_name, column_name from information_schema.columns where table_schema = current_schema() "
        "and data_type = 'text' and collation_name is distinct from 'C' and table_name <> 'migrations'"
    )
    assert others == []


def test_nothing_is_made_by_the_way(postgres: Postgres) -> None:
    """An empty server, as after a fail-over to the wrong one, is an error before anything runs, and stays empty."""
    url = postgres.url.replace(postgres.schema, "elsewhere")
    guard = Guard(url)
    with pytest.raises(SchemaOutdated, match=r"there is no ledger at .*fail-over.*sagaspan migrate") as caught:
        guard.tool("act")(lambda: pytest.fail("ran"))()
    assert caught.value.tool_ran == "no"
    assert postgres.run("select 1 from pg_namespace where nspname = 'elsewhere'") == []


@pytest.fixture
def version(postgres: Postgres) -> Any:
    """A ledger of its own whose version may be changed."""
    url = postgres.url.replace(f"schema={postgres.schema}&", f"schema={postgres.schema}_v&")
    store = PostgresStore(url)
    store.migrate()
    store.url_of_tests = url  # type: ignore[attr-defined]
    yield store
    store.close()
    postgres.run(f"drop schema {postgres.schema}_v cascade")


def test_an_older_schema_is_refused_until_somebody_migrates_it(postgres: Postgres, version: Any) -> None:
    """``migrate="auto"`` does not, for other programs use it; ``--check`` says so; ``migrate`` keeps what is there."""
    saved(version, opening())
    version.close()
    at = f"{postgres.schema}_v"
    postgres.run(f"drop table {at}.loops", f"drop index {at}.calls_by_creation",
                 f"delete from {at}.migrations where number = 15")  # fmt: skip
    for attempt in (version.list_runs, lambda: version.migrate(check=True)):
        with pytest.raises(SchemaOutdated, match="nothing was changed, somebody who may change it runs"):
            attempt()
    assert version.migrate() == ["0015 loops", schema.functions()[0]]
    assert [run.id for run in version.list_runs()] == ["r"]
    assert version.migrate() == version.migrate(check=True) == []


def test_a_newer_schema_is_left_alone(postgres: Postgres, version: Any) -> None:
    """Whatever its number is, by this program and by its ``migrate``."""
    for number in (14, 1999):
        postgres.run(f"insert into {postgres.schema}_v.migrations values ({number}, 'future')")
        for attempt in (version.list_runs, version.migrate, lambda: version.migrate(check=True)):
            with pytest.raises(SchemaOutdated, match="upgrade sagaspan"):
                attempt()
        postgres.run(f"delete from {postgres.schema}_v.migrations where number = {number}")
    assert version.list_runs() == []


def test_who_is_at_work_while_somebody_migrates_starts_nothing_more(postgres: Postgres, version: Any) -> None:
    """Its connections were there before: its next commit says so, and what it had is as it was."""
    ran: list[int] = []
    with Guard(version) as guard:
        act = guard.tool("act", effect="write")(ran.append)
        with pytest.raises(SchemaOutdated, match="upgrade sagaspan"), guard.run(id="r"):
            act(1)
            postgres.run(f"insert into {postgres.schema}_v.migrations values (1999, 'future')",
                         f"drop function {postgres.schema}_v.{schema.functions()[0]}")  # fmt: skip
            with pytest.raises(StoreUnavailable, match="migrated for another version") as caught:
                act(2)
            assert caught.value.tool_ran == "no"
            act(3)
    assert ran == [1]


def test_two_versions_that_know_the_same_tables_use_them_together(
    postgres: Postgres, version: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a function of its own; a new one is made by ``migrate``, and takes the old one away from nobody."""
    saved(version, opening())
    old = schema.functions()
    new = old[0][:-1] + ("0" if old[0][-1] != "0" else "1")
    monkeypatch.setattr(schema, "functions", lambda: tuple(one.replace(old[0], new) for one in old))
    other = PostgresStore(version.url)
    with pytest.raises(SchemaOutdated, match="was not prepared for this version"):
        other.list_runs()
    assert other.migrate() == [new]
    saved(other, claiming())
    monkeypatch.undo()
    saved(version, opening(id="q"))
    other.close()


def test_tables_of_somebody_else_are_left_alone(postgres: Postgres) -> None:
    """A schema in which there is another table ``calls``."""
    at = f"{postgres.schema}_o"
    postgres.run(f"create schema {at}", f"create table {at}.calls (id int)")
    store = PostgresStore(postgres.url.replace(f"schema={postgres.schema}", f"schema={at}"))
    try:
        for attempt in (store.list_runs, store.migrate):
            with pytest.raises(StoreUnavailable, match="tables of something else"):
                attempt()
    finally:
        postgres.run(f"drop schema {at} cascade")


def test_a_schema_that_was_given_to_a_role_is_enough(postgres: Postgres) -> None:
    """Who may make no schema in the database makes the ledger in the one that an administrator made for them."""
    name = f"{postgres.schema}_g"
    postgres.run(f"create role {name} login", f"create schema {name} authorization {name}")
    own = urlsplit(postgres.url.replace(f"schema={postgres.schema}", f"schema={name}"))
    store = PostgresStore(urlunsplit(own._replace(netloc=f"{name}@{own.netloc.rpartition('@')[2]}")))
    try:
        assert store.migrate()
        assert store.migrate(check=True) == []
    finally:
        postgres.run(f"drop schema {name} cascade", f"drop role {name}")


def test_a_role_that_may_only_read_and_write_rows_is_enough_for_work(postgres: Postgres) -> None:
    """As the docs of deployment say: claims, locks, budgets and their slices, undoing."""
    ledger, role = postgres.schema, f"{postgres.schema}_w"
    postgres.run(
        f"create role {role} login",
        f"grant usage on schema {ledger} to {role}",
        f"grant select, insert, update, delete on all tables in schema {ledger} to {role}",
        f"grant usage, select on all sequences in schema {ledger} to {role}",
    )
    url = f"{re.sub('//[^@]*@', f'//{role}@', postgres.url)}&slices=4"
    try:
        with Guard(url, budgets={"user:*": "20 USD/day"}) as guard:
            pay = guard.tool("pay", cost="1 USD", rate="9/minute", lock="'l'", compensate=lambda n: None)(pay_of)
            with pytest.raises(KeyError), guard.run(id="r", user="ada"):
                pay(1)
                raise KeyError("stop")
            assert guard.runs.get("r").status == "compensated"
            assert guard.usage(user="ada").spent == 1
            assert connect(url).migrate() == []
    finally:
        postgres.run(f"drop owned by {role}", f"drop role {role}")


def test_who_may_make_no_schema_is_told_the_statement_that_gives_one(postgres: Postgres) -> None:
    """In one sentence, with the role's own name in it."""
    name = f"{postgres.schema}_g"
    postgres.run(f"create role {name} login")
    own = urlsplit(postgres.url.replace(f"schema={postgres.schema}", f"schema={name}"))
    store = PostgresStore(urlunsplit(own._replace(netloc=f"{name}@{own.netloc.rpartition('@')[2]}")))
    try:
        with pytest.raises(StoreUnavailable) as caught:
            store.migrate()
        postgres.run(str(caught.value).rpartition("in that database: ")[2])
        assert store.migrate()
    finally:
        postgres.run(f"drop schema if exists {name} cascade", f"drop role {name}")


def test_what_the_driver_says_is_one_line_of_words(postgres: Postgres) -> None:
    """Libpq lays its sentences out for a terminal; here they stand in one of ours."""
    nowhere = urlunsplit(urlsplit(postgres.url)._replace(path="/of_nobody"))
    with pytest.raises(StoreUnavailable, match=r'FATAL: database "of_nobody" does not exist\);'):
        PostgresStore(nowhere).migrate()
    with pytest.raises(ConfigurationError, match=r'"slice"\)$'):
        PostgresStore(f"{postgres.url}&slice=64")


def test_a_commit_is_one_round_trip(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call is two: its claim with budgets, locks and audit, and its settle."""
    sent: list[str] = []
    trips: list[int] = []
    execute, save, wait = psycopg.Connection.execute, saving.save, psycopg.Connection.wait
    monkeypatch.setattr(
        psycopg.Connection, "execute", lambda self, query, *how, **more: (sent.append(str(query)),
                                                                            execute(self, query, *how, **more))[1]
    )  # fmt: skip
    monkeypatch.setattr(saving, "save", lambda *how, **more: (sent.append("commit"), save(*how, **more))[1])
    monkeypatch.setattr(psycopg.Connection, "wait", lambda *how: (trips.append(1), wait(*how))[1])
    with Guard(postgres.url, budgets={"user:*": "20 USD/day"}) as guard:
        pay = guard.tool(effect="write", cost="0.01 USD", lock="'l' + string(n)", compensate=lambda n: None)(pay_of)
        with guard.run(id="r", user="ada", budget="5 USD"):
            pay(1)
            sent.clear()
            trips.clear()
            pay(2)
            statements, waits = sent[:], len(trips)
    assert statements.count("commit") == 2
    assert waits == len(statements)
    assert [re.sub(r"\s+", " ", one)[:60] for one in statements if one != "commit" and "locks" not in one] == []


def pay_of(n: int) -> int:
    """The body."""
    return n


def test_what_the_driver_forgets_is_prepared_again(postgres: Postgres) -> None:
    """Who looked at the books, or had an error, leaves a connection without prepared statements: calls go on."""
    with Guard(postgres.url, budgets={"user:*": "20 USD/day"}) as guard:
        pay = guard.tool(effect="write", cost="1 USD")(pay_of)
        with guard.run(id="r", user="ada"):
            pay(1)
            for _ in range(3):
                guard.budgets.list()
            assert guard.budgets.fsck() == []
            guard.budgets.list()
            assert pay(2) == 2
        assert len(guard._store._pool._idle) == 1, "another connection than the one that looked"


@pytest.mark.parametrize("where", ["r", "r/1", "r/1/1"])
def test_no_step_of_a_saga_is_claimed_while_its_pivot_begins(postgres: Postgres, where: str) -> None:
    """Nor in a run that is nested in one of its runs meanwhile: it would be before a pivot that did not see it."""
    store, done = postgres.store(), list[bool]()
    saved(store, opening(), opening(id="r/1", parent_id="r"))
    other = PostgresStore(postgres.url)._connect()
    statement = f"select {schema.functions()[0]}($1::jsonb, true)"

    def step() -> None:
        if where == "r/1/1":
            saved(store, opening(id=where, parent_id="r/1"))
        done.append(bool(store.commit([claiming(id="s", key="s", run_id=where, declared_write=True)], synced=False)))

    with other.transaction():
        assert other.execute(statement, (requests.told([Barrier("n", "r")]),)).fetchone() == ({"used": []},)
        stepping = threading.Thread(target=step)
        stepping.start()
        stepping.join(0.2)
        assert done == []
        other.execute(statement, (requests.told([claiming(declared_write=True)]),))
    stepping.join(60)
    other.close()
    assert done == [True]
    assert [call.id for call in sorted(store.list_calls(), key=lambda call: call.claim_seq)] == ["c", "s"]


def test_what_the_driver_refuses_is_one_sentence(postgres: Postgres) -> None:
    """A server that is not there, a name that is none, a password that is for nobody."""
    with pytest.raises(StoreUnavailable, match="cannot be used") as caught:
        connect("postgresql://ada:hush@127.0.0.1:1/db").list_runs()
    assert "hush" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="schema=A B is no name"):
        connect(postgres.url.replace(postgres.schema, "A%20B"))


def test_a_limit_of_numbers_is_an_error_of_one_record(postgres: Postgres) -> None:
    """A number that no column holds: nothing is saved, and the connection goes on."""
    store = postgres.store()
    with pytest.raises(Exception, match="cannot hold a value"):
        store.commit([opening(created_us=2**63)], synced=True)
    saved(store, opening())
    assert store.budget(BUDGET) == replace(BUDGET)


@pytest.mark.parametrize("tool", ["".join(map(chr, range(0x4E00, 0x5600))), "a\0b"])
def test_a_name_that_no_index_holds_is_an_error_of_its_record(postgres: Postgres, tool: str) -> None:
    """And not a server that is down: nothing of it is saved, and the store goes on."""
    store = postgres.store()
    saved(store, opening())
    with pytest.raises(StoreError, match=r"cannot hold a value of this record .*make it shorter") as caught:
        store.commit([claiming(tool=tool)], synced=True)
    assert type(caught.value) is StoreError
    saved(store, claiming())


def test_half_a_character_is_an_error_of_one_record(postgres: Postgres) -> None:
    """Whoever goes with it is saved, and nobody has to look it up."""
    store = postgres.store()
    with pytest.raises(StoreError, match="cannot hold a value") as caught:
        store.commit([opening(input="\ud800")], synced=True)
    assert not isinstance(caught.value, StoreUnavailable)
    saved(store, opening())


def test_arguments_and_results_come_back_with_every_character(postgres: Postgres) -> None:
    """Those that no text of the server holds, too."""
    with Guard(postgres.url) as guard:
        echo = guard.tool("echo", effect="write")(lambda text: text)
        for _ in range(2):
            with guard.run(id="r"):
                assert echo("a\0b\u2400\U0001f600") == "a\0b\u2400\U0001f600"
        assert guard.runs.get("r").calls[0].args == {"text": "a\0b\u2400\U0001f600"}


def test_settings_of_the_url_reach_the_server(postgres: Postgres) -> None:
    """Whatever the driver knows: ``options`` with spaces in it, too."""
    store = PostgresStore(f"{postgres.url}&options=-c%20statement_timeout%3D12345")
    connection = store._connect()
    assert connection.execute("show statement_timeout").fetchone() == ("12345ms",)
    connection.close()


def test_backslashes_mean_what_they_mean_here(postgres: Postgres) -> None:
    """However texts are written for a role that has old programs."""
    url = f"{postgres.url}&options=-c%20standard_conforming_strings%3Doff"
    with Guard(url) as guard:
        echo = guard.tool("echo", effect="write")(lambda text: text)
        with guard.run(id="r"):
            assert echo("C:\\new\x41") == "C:\\new\x41"
        assert not Audit(lambda: connect(url), "default").verify().findings
