"""The store on MariaDB: its schema, its fences against other versions and servers, lost answers, and its clock."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pymysql.connections import Connection

from sagaspan import ConfigurationError, Guard, SchemaOutdated, StoreError, StoreUnavailable
from sagaspan._audit import Audit
from sagaspan.ledger.store import Barrier, LimitChange, Mark, NoteChange, ReserveChange, SpendChange
from sagaspan.ledger.transitions import CallEvent
from sagaspan.stores import _mariadb_changes as changes
from sagaspan.stores import _mariadb_connection as server
from sagaspan.stores import _mariadb_scripts as scripts
from sagaspan.stores import connect
from sagaspan.stores.mariadb import MariadbStore
from sagaspan.stores.sqlite import SqliteStore
from sagaspan.testing._conformance_records import (
    BUDGET,
    LIMIT,
    LIMIT_SET,
    asking,
    claiming,
    moving,
    opening,
    refused,
    said,
    saved,
)
from sagaspan.testing._conformance_trail import whole_chain
from tests.servers import Mariadb


def test_both_schemas_have_the_same_tables_and_columns(mariadb: Mariadb, tmp_path: Path) -> None:
    """In the same order and what may be null, but for hashes of what is unique and the places of locks."""
    SqliteStore(tmp_path / "ledger.db").list_runs()
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        tables = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
        kinds = {"TEXT": "text", "INTEGER": "bigint", "BLOB": "longblob"}
        ours = {
            table: [(name, kinds[kind], int(bool(required or key))) for _, name, kind, required, _, key in
                    connection.execute(f"pragma table_info({table})")]
            for table in tables if table != "migrations"
        }  # fmt: skip
    connection.close()
    theirs: dict[str, list[tuple[Any, ...]]] = {}
    for table, name, kind, required in mariadb.run(
        "select table_name, column_name, data_type, is_nullable = 'NO' from information_schema.columns "
        "where table_schema = database() and table_name not in ('migrations', 'places') and is_generated = 'NEVER' "
        "order by table_name, ordinal_position"
    ):
        theirs.setdefault(table, []).append((name, "text" if kind in ("varchar", "longtext") else kind, required))
    assert theirs == ours
    assert "window" in {name for name, *_ in ours["budgets"]}


def test_every_text_is_compared_byte_by_byte(mariadb: Mariadb) -> None:
    """Whatever the order of letters is where the database was made; spaces at the end count, too."""
    others = mariadb.run(
        "select table_name, column_name, collation_name from information_schema.columns "
        "where table_schema = database() and collation_name <> 'utf8mb4_nopad_bin' and table_name <> 'migrations'"
    )
    assert others == []


def test_what_a_server_sets_for_all_is_not_for_the_ledger(mariadb: Mariadb, monkeypatch: pytest.MonkeyPatch) -> None:
    """No row is hidden from whoever reads, and a commit ends nothing but itself, and by nothing but itself."""
    plain = server.Address._connect

    def set_so(address: server.Address, database: str | None, *, seconds: int | None) -> Connection[Any]:
        connection = plain(address, database, seconds=seconds)
        server.execute(
            connection, "set session sql_select_limit = 1, sql_safe_updates = 1, completion_type = 'RELEASE', "
            "sql_big_selects = 0, max_join_size = 1, max_statement_time = 0.001", (),
        )  # fmt: skip
        return connection

    monkeypatch.setattr(server.Address, "_connect", set_so)
    with Guard(mariadb.url, budgets={"user:*": "20 USD/day"}) as guard:
        pay = guard.tool("pay", effect="write", cost="1 USD")(pay_of)
        with guard.run(id="r", user="ada"):
            for n in range(3):
                pay(n)
        assert [call.state for call in guard.runs.get("r").calls] == ["done"] * 3
        assert guard.usage(user="ada").spent == 3
        assert not Audit(lambda: connect(mariadb.url), "default").verify().findings


def test_nothing_is_made_by_the_way(mariadb: Mariadb) -> None:
    """An empty server, as after a fail-over to the wrong one, is an error before anything runs, and stays empty."""
    elsewhere = f"{mariadb.database}_e"
    guard = Guard(mariadb.url.replace(mariadb.database, elsewhere))
    for database in ("none", "an empty one"):
        with pytest.raises(SchemaOutdated, match=r"there is no ledger at .*fail-over.*sagaspan migrate") as caught:
            guard.tool("act")(lambda: pytest.fail("ran"))()
        assert caught.value.tool_ran == "no"
        assert len(mariadb.run(f"show databases like '{elsewhere}'")) == (database != "none")
        mariadb.run(f"create database if not exists {elsewhere}")
    assert mariadb.run(f"show tables from {elsewhere}") == []
    mariadb.run(f"drop database {elsewhere}")


@pytest.fixture
def version(mariadb: Mariadb) -> Iterator[Any]:
    """A ledger whose version may be changed."""
    yield mariadb.store()
    mariadb.run("delete from migrations where number in (14, 1999)", "update migrations set finished = 1")


def test_an_older_schema_is_refused_until_somebody_migrates_it(mariadb: Mariadb, version: Any) -> None:
    """``migrate="auto"`` does not; one that was interrupted in the middle is gone over again, and loses nothing."""
    saved(version, opening())
    version.close()
    mariadb.run("drop index calls_by_creation on calls", "update migrations set finished = 0 where number = 15")
    for attempt in (version.list_runs, lambda: version.migrate(check=True)):
        with pytest.raises(SchemaOutdated, match="nothing was changed, somebody who may change it runs"):
            attempt()
    assert version.migrate() == ["0015 loops"]
    assert [run.id for run in version.list_runs()] == ["r"]
    assert mariadb.run("show index from calls where key_name = 'calls_by_creation'") != []
    assert version.migrate() == version.migrate(check=True) == []


def test_a_newer_schema_is_left_alone(mariadb: Mariadb, version: Any) -> None:
    """Whatever its number is, by this program and by its ``migrate``."""
    for number, finished in ((14, 1), (1999, 1), (1999, 0)):  # the last: somebody is at it
        mariadb.run(f"insert into migrations values ({number}, 'future', {finished})")
        for attempt in (version.list_runs, version.migrate, lambda: version.migrate(check=True)):
            with pytest.raises(SchemaOutdated, match="upgrade sagaspan"):
                attempt()
        mariadb.run(f"delete from migrations where number = {number}")
    assert version.list_runs() == []


@pytest.mark.parametrize("finished", [0, 1])
@pytest.mark.parametrize("how", ["a block", "one by one"])
def test_who_is_at_work_while_somebody_migrates_starts_nothing_more(
    mariadb: Mariadb, version: Any, monkeypatch: pytest.MonkeyPatch, finished: int, how: str
) -> None:
    """Its connections were there before: its next commit says so, in the middle of a migration and after it."""
    if how == "one by one":
        monkeypatch.setattr("sagaspan.stores.mariadb.run_script", scripts._one_by_one)
    ran: list[int] = []
    with Guard(version) as guard:
        act = guard.tool("act", effect="write")(ran.append)
        with pytest.raises(SchemaOutdated, match="upgrade sagaspan"), guard.run(id="r"):
            act(1)
            mariadb.run(f"insert into migrations values (1999, 'future', {finished})")
            with pytest.raises(SchemaOutdated, match="upgrade sagaspan") as caught:
                act(2)
            assert caught.value.tool_ran == "no"
            act(3)
    assert ran == [1]


def test_tables_of_somebody_else_are_left_alone(mariadb: Mariadb) -> None:
    """A database in which there is another table ``calls``."""
    other = f"{mariadb.database}_o"
    mariadb.run(f"create database {other}", f"create table {other}.calls (id int)")
    store = MariadbStore(mariadb.url.replace(mariadb.database, other))
    try:
        for attempt in (store.list_runs, store.migrate):
            with pytest.raises(StoreUnavailable, match="tables of something else"):
                attempt()
        assert mariadb.run(f"show tables from {other}") == [("calls",)]
    finally:
        mariadb.run(f"drop database {other}")


def test_a_commit_is_one_round_trip(mariadb: Mariadb, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call is two: its claim with budgets, locks and audit, and its settle; one that is refused is one, too."""
    sent: list[str] = []
    query = Connection.query
    monkeypatch.setattr(Connection, "query", lambda self, sql, *how: (sent.append(text_of(sql)),
                                                                      query(self, sql, *how))[1])  # fmt: skip
    with Guard(mariadb.url, budgets={"user:*": "20 USD/day"}) as guard:
        pay = guard.tool(effect="write", cost="0.01 USD", lock="'l' + string(n)", compensate=lambda n: None)(pay_of)
        with guard.run(id="r", user="ada", budget="5 USD"):
            pay(1)
            sent.clear()
            pay(2)
            statements = sent[:]
        commits = [statement for statement in statements if statement.startswith("begin not atomic")]
        assert len(commits) == 2
        assert [one for one in statements if one not in commits and "locks" not in one] == []
        sent.clear()
        refused(guard._store, claiming(), NoteChange(said()))
        assert len(sent) == 1


def pay_of(n: int) -> int:
    """The body."""
    return n


def text_of(sql: Any) -> str:
    """What is sent to the server."""
    return sql if isinstance(sql, str) else sql.decode()


def test_a_commit_that_dies_in_a_circle_is_sent_again(mariadb: Mariadb) -> None:
    """A deadlock rolls all of it back, so nothing has happened: it is saved with the next, once."""
    store, other, errors = mariadb.store(), MariadbStore(mariadb.url)._connect(), list[BaseException]()
    budgets = [replace(BUDGET, scope=name) for name in "ab"]
    saved(store, opening(), *(ReserveChange(budget, 1) for budget in budgets))
    other.begin()
    server.execute(other, "update budgets set reserved = 2 where scope = 'b'", ())
    for number in range(50):  # who has changed less is the one to give up
        server.execute(other, "insert into facts values ('n', ?, '')", (str(number),))

    def claim() -> None:
        try:
            saved(store, NoteChange(said()), *(ReserveChange(budget, 1) for budget in budgets))
        except BaseException as error:
            errors.append(error)

    before = store.round_trips
    claiming_both = threading.Thread(target=claim)
    claiming_both.start()
    waiting = "select count(*) from information_schema.innodb_trx where trx_state = 'LOCK WAIT'"
    while mariadb.run(waiting) == [(0,)]:
        assert claiming_both.is_alive(), errors
    server.execute(other, "update budgets set reserved = 2 where scope = 'a'", ())
    other.commit()
    claiming_both.join(60)
    other.close()
    assert errors == []
    assert store.round_trips == before + 2
    assert [budget.reserved for budget in store.budgets()] == [3, 3]
    assert [row.event for row in store.audit_of("n", "r")] == ["run.open", "said"]


def test_who_waits_for_a_lock_for_long_is_told_so(mariadb: Mariadb, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was started, and the next commit finds the ledger as it was."""
    monkeypatch.setattr(server, "WAIT_SECONDS", 1)
    store, other = mariadb.store(), MariadbStore(mariadb.url)._connect()
    other.begin()
    server.fetch(other, "select n from places where n = ? for update", (changes.place_of("n", "r"),))
    with pytest.raises(StoreUnavailable, match=r"stayed locked .* nothing was started"):
        store.commit([opening(), NoteChange(said(run_id="q"))], synced=True)
    other.close()
    assert store.list_runs() == store.audit_of("n", "q") == []
    saved(store, opening())


def test_without_blocks_a_commit_is_one_text_too(mariadb: Mariadb, monkeypatch: pytest.MonkeyPatch) -> None:
    """As MySQL needs it: what is refused, and by what, what does not fit, and what is used of budgets."""
    store = mariadb.store()
    saved(store, opening())
    monkeypatch.setattr("sagaspan.stores.mariadb.run_script", scripts._one_by_one)
    first, late = claiming(), ReserveChange(BUDGET, 5)
    assert refused(store, ReserveChange(BUDGET, 6), late, first) is late
    wrong = claiming(epoch=2)
    assert refused(store, NoteChange(said()), wrong) is wrong
    saved(store, ReserveChange(BUDGET, 6), first, asking())
    again = claiming(id="d")
    assert refused(store, again) is again
    ended = moving(first.record, CallEvent.SUCCEED)
    mark = Mark(5, said("soft_limit"))
    commit = store.commit([ended, SpendChange(BUDGET, 3, 2), SpendChange(BUDGET, 3, 4, (mark,))], synced=True)
    assert commit.used == (2, 6)
    assert refused(store, ended) is ended
    with pytest.raises(StoreError, match="cannot hold a value"):
        store.commit([opening(id="q", created_us=2**63)], synced=True)
    assert [row.event for row in store.audit_of("n", "r")] == [
        "run.open", "claim", "approval.ask", "succeed", "soft_limit"
    ]  # fmt: skip
    assert whole_chain(store, "n", "r") == 5


@pytest.mark.parametrize("what", ["a pivot", "a limit"])
def test_who_must_see_every_claim_waits_for_those_on_the_way(mariadb: Mariadb, what: str) -> None:
    """A step of a nested run has its place in the order, but no row yet: no pivot begins, no limit is set before it."""
    store, done = mariadb.store(), list[object]()
    saved(store, opening(), opening(id="r/1", parent_id="r"))
    other = MariadbStore(mariadb.url)._connect()
    other.begin()
    *before, last = changes.statements([claiming(run_id="r/1", declared_write=True)])
    for statement in before:
        other.query(statement.sql)
    pivot = claiming(id="p", key="p", declared_write=True)
    wanted = [Barrier("n", "r"), pivot] if what == "a pivot" else [LimitChange(LIMIT, LIMIT_SET)]

    def want() -> None:
        refused_by = store.commit(wanted, synced=True).refused
        done.append((refused_by, len(store.calls_of("n", "r/1"))))

    wanting = threading.Thread(target=want)
    wanting.start()
    wanting.join(0.2)
    assert done == []
    other.query(last.sql)
    other.commit()
    wanting.join(60)
    other.close()
    assert done == [(wanted[0] if what == "a pivot" else None, 1)]


def test_what_is_saved_as_it_was_is_saved(mariadb: Mariadb) -> None:
    """These servers count rows that changed, unless they are told to count those that were found."""
    store = mariadb.store()
    assert store.put_fact("n", "name", "1", expected=None)
    assert store.put_fact("n", "name", "1", expected="1")


def test_a_server_on_which_a_power_cut_forgets_is_refused(mariadb: Mariadb, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim that is not on disk protects nothing: it says which setting, and what to set it to."""
    facts = server._FACTS
    for wrong, match in (
        (facts.replace("@@global.innodb_flush_log_at_trx_commit", "2"), "at_trx_commit = 2.* set it to 1"),
        (facts.replace("@@global.log_bin, @@global.sync_binlog", "1, 0"), "sync_binlog = 0.* set it to 1"),
        (facts.replace("@@global.read_only", "1"), r"read-only \(a replica"),
        (facts.replace("version()", "'10.5.29-MariaDB'"), "MariaDB 10.5.29-MariaDB, older than 10.6"),
    ):  # fmt: skip
        monkeypatch.setattr(server, "_FACTS", wrong)
        for attempt in (MariadbStore(mariadb.url).list_runs, MariadbStore(mariadb.url).migrate):
            with pytest.raises(StoreUnavailable, match=match):
                attempt()


def test_a_program_that_meets_mysql_says_that_it_is_untested(
    mariadb: Mariadb, monkeypatch: pytest.MonkeyPatch, warnings_of_sagaspan: Callable[[], list[str]]
) -> None:
    """Once, however many connections it makes; of MariaDB it says nothing."""
    MariadbStore(mariadb.url).list_runs()
    assert warnings_of_sagaspan() == []
    connection = MariadbStore(mariadb.url)._connect()
    monkeypatch.setattr(server, "_server_of", lambda _: "8.0.36")
    for _ in range(2):
        server.warn_of_mysql(connection, "mysql://db.example/shop")
    connection.close()
    (said,) = warnings_of_sagaspan()
    assert said.startswith("the ledger mysql://db.example/shop is on MySQL 8.0.36 (untested): ")


def test_what_the_server_refuses_is_one_sentence(mariadb: Mariadb) -> None:
    """A server that is not there, a database without a name, an option that is none, a user who may not."""
    with pytest.raises(StoreUnavailable, match="cannot be used") as caught:
        connect("mariadb://ada:hush@127.0.0.1:1/db").list_runs()
    assert "hush" not in str(caught.value)
    whole, _, _ = mariadb.url.partition("#")
    for url, match in ((whole.replace(mariadb.database, ""), "names no database"),
                       (f"{whole}?pool=3", "has the option 'pool'"),
                       (whole.replace("127.0.0.1:", "127.0.0.1:x"), "cannot be read")):  # fmt: skip
        with pytest.raises(ConfigurationError, match=match):
            connect(url)
    user = mariadb.database
    mariadb.run(f"create user {user}@'%' identified by 'p@ss'", f"grant select on {user}.* to {user}@'%'")
    host = whole.partition("@")[2]
    try:
        store = MariadbStore(f"mysql://{user}:p%40ss@{host}")
        assert store.list_runs() == []
        for attempt in (lambda: saved(store, opening()), lambda: store.forget_leases(1)):
            with pytest.raises(StoreUnavailable, match=r"may not use the ledger .* grant it"):
                attempt()
        assert store.migrate() == []  # there is nothing to do, so nothing that it may not
        with pytest.raises(StoreUnavailable, match=r"may not use the ledger .* grant it"):
            MariadbStore(f"mysql://{user}:p%40ss@{host}_2").migrate()
        with pytest.raises(StoreUnavailable, match="Access denied"):
            MariadbStore(f"mysql://{user}:wrong@{host}").list_runs()
    finally:
        mariadb.run(f"drop user {user}@'%'")


def test_a_value_that_does_not_fit_is_an_error_of_one_record(mariadb: Mariadb) -> None:
    """A number that no column holds, a name that no index holds: nothing is saved, and the store goes on."""
    store = mariadb.store()
    for wrong in (opening(created_us=2**63), opening(id="x" * 481), opening(input="x" * 2**24)):
        with pytest.raises(StoreError, match="cannot hold a value"):
            store.commit([wrong], synced=True)
    saved(store, opening(id="\U0001f600" * 480))
    assert store.budget(BUDGET) == replace(BUDGET)


def test_long_keys_that_differ_at_their_ends_are_two(mariadb: Mariadb) -> None:
    """What is unique is so by all of it, however little of it the index for looking holds."""
    store, long = mariadb.store(), "k" * 5000
    saved(store, opening(), claiming(key=f"{long}1"), claiming(id="d", key=f"{long}2"))
    refused(store, claiming(id="e", key=f"{long}2"))
    found = store.find_call("n", "s", "t", f"{long}2")
    assert found is not None
    assert found.id == "d"
