"""Asking: one read-only statement on a connection that reaches nothing but the index."""

from __future__ import annotations

import threading
import time
from datetime import datetime
from typing import TYPE_CHECKING

import duckdb
import pytest

from sagaspan.exceptions import StoreUnavailable
from sagaspan.index import QueryError, TraceIndex, named_queries
from sagaspan.index.lock import locked

from .lines import line, span, write

if TYPE_CHECKING:
    from pathlib import Path

ENDLESS = "select count(*) from range(10000000000) a, range(1000) b where a.range % 7 = b.range % 3"


@pytest.fixture
def index(tmp_path: Path) -> TraceIndex:
    directory = tmp_path / "traces"
    directory.mkdir()
    write(directory / "a.jsonl", *(line(span(number, f"s{number}")) for number in range(5)))
    result = TraceIndex(directory)
    result.sync()
    return result


def test_a_table_has_columns_types_and_rows(index: TraceIndex) -> None:
    """Names, DuckDB types and Python values come back; parameters are bound."""
    table = index.query("select name, duration_ms, start_time from spans where name = ?", ["s3"])
    assert table.columns == ("name", "duration_ms", "start_time")
    assert table.types == ("VARCHAR", "DOUBLE", "TIMESTAMP_NS")
    assert table.rows == [("s3", 2.0, datetime(2026, 9, 21, 14, 13, 20, 3000))]  # noqa: DTZ001 - naive UTC
    assert not table.truncated


def test_waiting_for_the_index_counts(index: TraceIndex) -> None:
    """The timeout is of the answer, not only of the query."""
    with locked(index.directory / ".lock"), pytest.raises(StoreUnavailable, match=r"for 0\.1 s"):
        index.query("select 1", timeout=0.1)


def test_max_rows_cuts_and_says_so(index: TraceIndex) -> None:
    """At most max_rows rows are fetched, and the table says that there were more."""
    assert index.query("select * from spans", max_rows=5).truncated is False
    table = index.query("select * from spans", max_rows=2)
    assert len(table.rows) == 2
    assert table.truncated


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("select * from tool_cals", r"does not exist.*Did you mean.*Known tables and views: .*tool_calls"),
        ("select nonsense from spans", r"nonsense.*Known tables and views"),
        ("selec 1", r"syntax error.*Known tables and views"),
        ("", r"no statement"),
        ("-- nothing", r"no statement"),
        ("select 1; select 2", r"one at a time"),
        ("select now()", r"cast it"),
        ("select cast(name as integer) from spans", r"(?i)could not convert"),
    ],
)
def test_wrong_sql_is_explained(index: TraceIndex, sql: str, message: str) -> None:
    """The error is one sentence of DuckDB's and what to do about it, on one line."""
    with pytest.raises(QueryError, match=message) as caught:
        index.query(sql)
    assert "\n" not in str(caught.value)


def test_times_compare_with_now_in_utc(index: TraceIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    """now() means UTC whatever zone the reader is in."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert index.query("select current_setting('timezone')").rows == [("UTC",)]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_slow_query_is_stopped(index: TraceIndex) -> None:
    """The deadline interrupts the query, and the index can be used at once."""
    started = time.monotonic()
    with pytest.raises(QueryError, match=r"longer than 0\.2 s"):
        index.query(ENDLESS, timeout=0.2)
    assert time.monotonic() - started < 2
    assert index.sync().lines == 0


def hostile_statements(outside: Path) -> list[str]:
    """What must neither write into ``outside`` nor read from it; its secret.csv holds the word canary."""
    secret = outside / "secret.csv"
    return [
        f"copy spans to '{outside}/out.csv'",
        f"copy (select 1) to '{outside}/out.parquet' (format parquet)",
        f"select * from read_csv('{secret}')",
        f"select * from '{secret}'",
        f"select * from read_text('{secret}')",
        f"select * from read_blob('{secret}')",
        f"select * from read_json_objects('{secret}')",
        f"select * from sniff_csv('{secret}')",
        f"select * from glob('{outside}/*')",
        "select * from read_csv('/etc/passwd')",
        f"attach '{outside}/other.duckdb' as other",
        f"attach '{outside}/other.duckdb' (read_only)",
        f"export database '{outside}/export'",
        f"import database '{outside}'",
        f"create table stolen as select * from read_csv('{secret}')",
        "create table mine (x integer)",
        "insert into meta values ('x', 'y')",
        "delete from spans",
        "drop table spans",
        "update meta set value = '0'",
        "install httpfs",
        "load httpfs",
        f"load '{outside}/evil.duckdb_extension'",
        "install spatial from community",
        "set memory_limit = '100GB'",
        "set enable_external_access = true",
        "set lock_configuration = false",
        f"set temp_directory = '{outside}'",
        f"set home_directory = '{outside}'",
        f"set log_query_path = '{outside}/query.log'",
        f"pragma enable_profiling = 'json'; pragma profiling_output = '{outside}/profile.json'; select 1",
        f"call enable_logging(storage = 'file', storage_path = '{outside}/logs')",
        f"select write_log('x'); call enable_logging('QueryLog', storage_path = '{outside}/log.csv')",
        f"create secret (type s3, provider config, scope '{outside}')",
        "select getenv('HOME')",
        "select * from read_csv('http://127.0.0.1:9/x.csv')",
    ]


def test_hostile_statements_reach_nothing(index: TraceIndex, tmp_path: Path) -> None:
    """Nothing outside the index is read or written, and nothing in it changes, by any of these."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.csv").write_text("word\ncanary\n")
    before = index.path.read_bytes()
    answers, errors = [], []
    for sql in hostile_statements(outside):
        try:
            answers += index.query(sql, timeout=5).rows
        except QueryError as error:
            errors.append(str(error))
    assert answers == []
    assert len(errors) >= len(hostile_statements(outside)) - 2  # older DuckDBs take a setting and refuse its use
    assert "canary" not in "".join(errors)
    assert [path.name for path in outside.iterdir()] == ["secret.csv"]
    assert {path.name for path in index.directory.iterdir()} == {"a.jsonl", "index.duckdb", ".lock", ".synced"}
    assert index.path.read_bytes() == before


def test_memory_is_bounded(index: TraceIndex) -> None:
    """A query that wants more memory than allowed fails; nothing is spilled into files."""
    sql = "select current_setting('memory_limit'), current_setting('temp_directory')"
    limit, folder = index.query(sql).rows[0]
    assert limit == "1.8 GiB"
    assert not folder


def test_asking_before_the_first_sync_says_so(tmp_path: Path) -> None:
    """Without an index nothing is made; the error says to sync."""
    with pytest.raises(StoreUnavailable, match="sync first"):
        TraceIndex(tmp_path / "none").query("select 1")
    assert not (tmp_path / "none").exists()


def test_readers_share_and_writers_wait(index: TraceIndex) -> None:
    """A sync during a long query waits for it, instead of failing on DuckDB's own lock."""
    seen: list[object] = []

    def ask() -> None:
        try:
            assert index.query("select current_setting('timezone')").rows == [("UTC",)]
            index.query(ENDLESS, timeout=0.6)
        except QueryError as error:
            seen.append(error)

    readers = [threading.Thread(target=ask) for _ in range(2)]
    for reader in readers:
        reader.start()
    time.sleep(0.2)
    assert index.query("select 1").rows == [(1,)]
    write(index.directory / "a.jsonl", line(span(9)))
    assert index.sync().spans == 1
    for reader in readers:
        reader.join()
    assert len(seen) == 2


def test_nothing_stays_open_after_an_error(index: TraceIndex) -> None:
    """After failed and stopped queries another program can open the file to write."""
    for sql in ("select", "copy spans to '/tmp/x'", "select * from nowhere"):
        with pytest.raises(QueryError):
            index.query(sql)
    with duckdb.connect(str(index.path)) as connection:
        connection.execute("create table proof (x integer)")


def test_only_a_selection_is_copied_and_only_to_its_file(index: TraceIndex, tmp_path: Path) -> None:
    """What a user asks to have as Parquet reaches nothing else, whatever brackets and comments it has."""
    target, outside = tmp_path / "answer's.parquet", tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.csv").write_text("word\ncanary\n")
    assert index.copy("select name from spans -- all of them", target) == 5
    assert index.copy("select name from spans order by name;", target, max_rows=2) == 2
    with duckdb.connect() as connection:
        assert connection.execute("select * from read_parquet(?)", [str(target)]).fetchall() == [("s0",), ("s1",)]
    before = target.read_bytes()
    for sql in (*hostile_statements(outside), f"select 1) to '{outside}/out.csv'; --", "delete from spans", ""):
        with pytest.raises(QueryError):
            index.copy(sql, tmp_path / "other.parquet", timeout=5)
    assert [path.name for path in outside.iterdir()] == ["secret.csv"]
    assert target.read_bytes() == before


def test_every_named_query_can_be_asked(index: TraceIndex) -> None:
    """None of them is broken by a view that changes."""
    for name, (what, sql) in named_queries().items():
        assert what.endswith("."), name
        assert index.query(sql).columns, name
