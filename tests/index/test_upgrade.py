"""An upgrade: what the index of an older sagaspan holds is carried over, once, whatever has become of the files."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import pytest

from sagaspan.exceptions import StoreUnavailable
from sagaspan.index import TraceIndex, upgrade

from .lines import call, line, run_span, span, write

SCHEMA_4 = Path(__file__).with_name("schema_4.sql").read_text()
ALL = tuple(f"select * from {name} order by all" for name in ("spans", "traces", "runs", "refusals", "damaged_lines"))


@pytest.fixture
def index(tmp_path: Path) -> TraceIndex:
    return TraceIndex(tmp_path)


def filled(index: TraceIndex) -> list[Any]:
    """Take in files with all kinds of lines, ``old.jsonl`` among them; gives what there is to know of them."""
    failed = {"name": "exception", "attributes": [{"key": "exception.type", "value": {"stringValue": "Boom"}}]}
    write(
        index.directory / "old.jsonl",
        *(line(call(number, "pay", error="budget_exceeded", call_executed=False)) for number in range(3)),
        *(line(span(number, "told twice", spanId="")) for number in (3, 3)),
        line(span(4, "failed", events=[failed], links=[{"traceId": "1", "spanId": "2"}], status={"code": 2})),
        line(span(5, "timeless", startTimeUnixNano="0")),
        line(run_span(6, "completed")),
        "no json\n",
    )
    write(index.directory / "new.jsonl", *(line(span(number, trace=2)) for number in range(7, 10)))
    index.sync()
    return everything(index)


def everything(index: TraceIndex) -> list[Any]:
    return [index.query(sql).rows for sql in ALL]


def make_older(path: Path) -> None:
    """Put an index of schema 4 in the place of this one, with what it would hold."""
    with duckdb.connect(str(old := path.with_name("made.duckdb"))) as connection:
        connection.execute(SCHEMA_4)
        connection.execute(f"attach '{path}' as now")
        for table in ("files", "damaged_lines", "spans"):
            known = [name for (name, *_) in connection.execute(f"describe {table}").fetchall()]
            connection.execute(f"insert into {table} by name select {', '.join(known)} from now.{table}")
        connection.execute("insert into meta values ('schema_version', '4')")
    old.replace(path)


def leftovers(index: TraceIndex) -> set[str]:
    return {path.name for path in index.directory.iterdir() if path.suffix != ".jsonl"}


def test_an_upgrade_loses_nothing_of_files_that_are_gone(
    index: TraceIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every span of an older index is there once, as it was, with what is known of it by now; the rest of the files
    is read on from where that was. How far it is is told."""
    before = filled(index)
    make_older(index.path)
    with pytest.raises(StoreUnavailable, match="sync first"):
        index.query("select 1")
    (tmp_path / "old.jsonl").unlink()
    monkeypatch.setattr(upgrade, "_ROWS", 4)
    size, told = index.path.stat().st_size, list[tuple[int, int]]()
    assert index.sync(lambda *place: told.append(place)).lines == 0
    assert everything(index) == before
    assert told[:4] == [(0, size), (size * 4 // 11, size), (size * 8 // 11, size), (size, size)]
    assert leftovers(index) == {"index.duckdb", ".lock", ".synced"}
    write(tmp_path / "new.jsonl", line(span(10, trace=2)))
    assert index.sync().spans == 1
    assert index.query("select spans from traces order by trace_id").rows == [(8,), (4,)]


_KILLED = """
import os, signal, sys
from sagaspan.index import TraceIndex, upgrade
upgrade._ROWS = 4
TraceIndex(sys.argv[1]).sync(lambda done, todo: done and os.kill(os.getpid(), signal.SIGKILL))
"""


def test_kill_9_during_an_upgrade_leaves_the_older_index(index: TraceIndex, tmp_path: Path) -> None:
    """What was built by then is thrown away, and the next sync carries all over."""
    before = filled(index)
    make_older(index.path)
    older = index.path.read_bytes()
    (tmp_path / "old.jsonl").unlink()
    assert subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path)], check=False).returncode == -9
    assert index.path.read_bytes() == older
    assert ".index.duckdb.new" in leftovers(index)
    index.sync()
    assert everything(index) == before
    assert leftovers(index) == {"index.duckdb", ".lock", ".synced"}


def test_an_upgrade_that_fails_leaves_the_older_index(index: TraceIndex) -> None:
    """An error on the way, such as Ctrl-C, leaves it as it was, and nothing beside it."""
    before = filled(index)
    make_older(index.path)
    older = index.path.read_bytes()

    def interrupted(done: int, todo: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        index.sync(interrupted)
    assert index.path.read_bytes() == older
    assert not any("new" in name or "wal" in name for name in leftovers(index))
    index.sync()
    assert everything(index) == before


def test_two_who_upgrade_at_once_carry_over_once(index: TraceIndex, tmp_path: Path) -> None:
    """One waits for the other, and finds the work done; of files that are still there nothing is read again, though
    nothing but how far they were read tells spans without ids from others like them."""
    before = filled(index)
    make_older(index.path)
    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(lambda _: TraceIndex(tmp_path).sync(), range(2)))
    assert [report.spans for report in reports] == [0, 0]
    assert everything(index) == before


def test_an_index_whose_columns_are_not_known_is_read_from_the_files_again(index: TraceIndex) -> None:
    """Of one that is too old for its rows to be understood the files that are there are taken in."""
    filled(index)
    make_older(index.path)
    with duckdb.connect(str(index.path)) as connection:
        connection.execute("alter table files drop column size")
        connection.execute("update meta set value = '1' where key = 'schema_version'")
    assert index.sync().spans == 11
    assert index.query("select sum(spans) from traces").rows == [(11,)]
