"""Sync: every line of every file once, whatever happens to the files, the process or the lines."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pytest
from opentelemetry.sdk.trace import TracerProvider

from sagaspan.exceptions import SchemaOutdated, StoreUnavailable
from sagaspan.index import TraceIndex, Where, sync
from sagaspan.telemetry import JsonLinesSpanProcessor

from .lines import START, line, span, write

SOURCE = str(Path(__file__).parents[2] / "src")


@pytest.fixture
def index(tmp_path: Path) -> TraceIndex:
    return TraceIndex(tmp_path)


def names(index: TraceIndex) -> list[str]:
    return [name for (name,) in index.query("select name from spans order by name").rows]


def many(count: int, first: int = 0) -> list[str]:
    return [line(span(number, f"s{number:05}")) for number in range(first, first + count)]


def test_new_lines_are_taken_in_once(index: TraceIndex, tmp_path: Path) -> None:
    """A second sync reads nothing, and a grown file gives only what is new."""
    path = write(tmp_path / "a.jsonl", *many(3))
    first = index.sync()
    assert (first.files, first.lines, first.spans, first.damaged) == (1, 3, 3, ())
    assert index.sync().lines == 0
    write(path, *many(2, first=3))
    assert index.sync().spans == 2
    assert names(index) == [f"s{number:05}" for number in range(5)]


def test_an_empty_directory_gives_an_empty_index(tmp_path: Path) -> None:
    """The first sync makes the directory and an index with all tables."""
    index = TraceIndex(tmp_path / "new" / "traces")
    assert index.sync().files == 0
    assert index.query("select * from traces").rows == []
    assert index.path.stat().st_mode & 0o777 == 0o600


def test_what_the_sink_writes_the_index_reads(index: TraceIndex, tmp_path: Path) -> None:
    """From the SDK through the sink into SQL nothing changes: ids, times, status, attributes."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(sink := JsonLinesSpanProcessor(tmp_path))
    with provider.get_tracer("scope").start_as_current_span("outer") as outer:
        values = {"n": 2**62, "l": ["a", "b"], "t": "é\n☃"}
        inner = provider.get_tracer("scope").start_span("inner", attributes=values)
        inner.end()
    sink.shutdown()
    index.sync()
    table = index.query(
        "select trace_id, span_id, parent_span_id, kind, status, scope_name, epoch_ns(start_time), "
        "attributes from spans where name = 'inner'"
    )
    context, start = inner.get_span_context(), inner.start_time  # type: ignore[attr-defined]
    (row,) = table.rows
    assert row[:3] == (
        f"{context.trace_id:032x}",
        f"{context.span_id:016x}",
        f"{outer.get_span_context().span_id:016x}",
    )
    assert row[3:7] == ("INTERNAL", "UNSET", "scope", start)
    assert row[7] == {"n": str(2**62), "l": '["a","b"]', "t": "é\n☃"}


def test_an_unfinished_last_line_waits(index: TraceIndex, tmp_path: Path) -> None:
    """A line without its newline is not read, not reported, and complete at the sync after it is."""
    whole = line(span(1, "late"))
    path = write(tmp_path / "a.jsonl", line(span(0, "early")), whole[:100])
    assert index.sync().damaged == ()
    assert names(index) == ["early"]
    write(path, whole[100:])
    assert index.sync().spans == 1
    assert names(index) == ["early", "late"]


def test_a_file_seen_short_is_the_same_file_when_it_has_grown(index: TraceIndex, tmp_path: Path) -> None:
    """A file of fewer bytes than its key is made of is not counted again when it grows past them."""
    tiny = '{"resourceSpans":[{"scopeSpans":[{"spans":[{"name":"n%d"}]}]}]}\n'
    path = tmp_path / "a.jsonl"
    for number in range(10):
        write(path, tiny % number)
        assert index.sync().spans == 1
    assert len(names(index)) == 10
    assert len(index.query("select * from files").rows) == 1


def test_a_renamed_file_is_not_read_again(index: TraceIndex, tmp_path: Path) -> None:
    """A Collector renames at rotation: the old bytes are known under the new name, the new file is new."""
    path = write(tmp_path / "collector.jsonl", *many(3))
    index.sync()
    path.rename(tmp_path / "collector-2026.jsonl")
    write(tmp_path / "collector-2026.jsonl", *many(1, first=3))
    write(tmp_path / "collector.jsonl", *many(2, first=4))
    assert index.sync().lines == 3
    assert len(names(index)) == 6


def test_a_reused_inode_is_another_file(index: TraceIndex, tmp_path: Path) -> None:
    """A file that was truncated and written anew is read from its beginning."""
    path = write(tmp_path / "a.jsonl", *many(3))
    index.sync()
    inode = path.stat().st_ino
    path.write_text("".join(many(4, first=10)))
    assert path.stat().st_ino == inode
    assert index.sync().spans == 4
    assert len(names(index)) == 7


def test_the_same_span_from_two_files_is_kept_once(index: TraceIndex, tmp_path: Path) -> None:
    """A span that comes from our sink and from a Collector, or twice in one batch, is one span."""
    write(tmp_path / "a.jsonl", *many(3))
    write(tmp_path / "b.jsonl", *many(3))
    report = index.sync()
    assert (report.spans, report.duplicates) == (3, 3)
    write(tmp_path / "c.jsonl", *many(4))
    report = index.sync()
    assert (report.spans, report.duplicates) == (1, 3)
    assert len(names(index)) == 4


def test_spans_without_ids_are_all_kept(index: TraceIndex, tmp_path: Path) -> None:
    """Without ids nothing proves that two spans are one."""
    write(tmp_path / "a.jsonl", *(line(span(0, spanId="")) for _ in range(3)))
    assert index.sync().spans == 3


def test_small_batches_take_in_everything(tmp_path: Path) -> None:
    """However small the transactions are, all spans arrive once, with the name of their file; progress adds
    up.
    """
    for name in ("a", "b", "c"):
        write(tmp_path / f"{name}.jsonl", *(line(span(n, f"{name}{n}", trace=ord(name))) for n in range(40)))
    index = TraceIndex(tmp_path, batch_bytes=3000)
    seen: list[tuple[int, int]] = []
    report = index.sync(lambda done, todo: seen.append((done, todo)))
    assert (report.files, report.spans) == (3, 120)
    size = sum(path.stat().st_size for path in tmp_path.glob("*.jsonl"))
    assert len(seen) > 10
    assert seen[-1] == (size, size)
    rows = index.query("select source, count(*) from spans group by source order by source").rows
    assert rows == [("a.jsonl", 40), ("b.jsonl", 40), ("c.jsonl", 40)]
    assert index.query("select count(*) from spans where source <> name[1] || '.jsonl'").rows == [(0,)]


HOSTILE = [
    '{"resourceSpans":[{"scopeSp',
    "not json at all",
    '{"resourceMetrics":[]}',
    "[1,2]",
    "[" * 5000,
    '{"resourceSpans":[]} trailing',
    "\x00\x00\x00",
    "\x00" * 100_000,
    '{"resourceSpans":[],"a":"\x01"}',
    '{"resourceSpans":{"a":1}}',
]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_damaged_line_costs_only_itself(index: TraceIndex, tmp_path: Path, hostile: str) -> None:
    """It is reported with file, line and byte once, kept in damaged_lines once, and its neighbours are in."""
    good = many(4)
    path = write(tmp_path / "a.jsonl", *good[:2], "\n", hostile + "\n", " \t\r\n", *good[2:])
    write(tmp_path / "b.jsonl", *many(1, first=4))
    report = index.sync()
    assert report.spans == 5
    (damage,) = report.damaged
    assert (damage.path, damage.line) == (path, 4)
    assert damage.position == len("".join(good[:2])) + 1
    assert "skipped" in damage.reason
    sources = index.query("select source from spans order by start_time").rows
    assert sources == [("a.jsonl",)] * 4 + [("b.jsonl",)]
    assert f"{path}:4" in str(damage)
    assert index.sync().damaged == ()
    rows = index.query("select path, line, position, reason from damaged_lines").rows
    assert rows == [(str(path), 4, damage.position, damage.reason)]


def test_a_file_full_of_garbage_is_reported_in_bounds(index: TraceIndex, tmp_path: Path) -> None:
    """Of thousands of damaged lines the first thousand are listed, and how many more there are."""
    write(tmp_path / "a.jsonl", *(f"garbage {number}\n" for number in range(2500)), *many(1))
    report = index.sync()
    assert report.spans == 1
    assert len(report.damaged) == 1001
    assert "1500 more" in report.damaged[-1].reason


def test_bytes_that_are_not_utf_8_cost_only_their_line(index: TraceIndex, tmp_path: Path) -> None:
    """Latin-1 in one line leaves the others readable."""
    with (tmp_path / "a.jsonl").open("wb") as stream:
        stream.write(line(span(0)).encode())
        stream.write(line(span(1, "MARK")).encode().replace(b"MARK", b"caf\xe9"))
        stream.write(line(span(2)).encode())
    report = index.sync()
    assert report.spans == 2
    assert [damage.line for damage in report.damaged] == [2]


def test_strange_but_readable_values_survive(index: TraceIndex, tmp_path: Path) -> None:
    """Numbers as strings, strings as numbers, enums by name, doubled keys, missing parts: one row each."""
    odd = {"key": "k", "value": {"intValue": 7}}
    write(
        tmp_path / "a.jsonl",
        line(span(0, "enum", kind="SPAN_KIND_CLIENT", status={"code": "STATUS_CODE_ERROR"}, startTimeUnixNano=START)),
        line(span(1, "doubled") | {"attributes": [odd, odd, {"value": {}}, {"key": "z"}, 5]}),
        line(span(2, "bad-numbers", startTimeUnixNano="soon", endTimeUnixNano="-5", kind="9")),
        line(span(3, "far", startTimeUnixNano=str(2**64 - 1), endTimeUnixNano=str(2**63 - 1))),
        line(span(4, "tokens", attributes={"gen_ai.usage.input_tokens": "many", "sagaspan.cost.usd": "NaN"})),
        line({"name": "bare"}),
        line({"attributes": {"not": "a list"}, "name": 5, "events": "none", "links": {"a": 1}}),
        line(span(7, "nul", attributes={"text": "a\x00b"})),
        '{"resourceSpans":[null,{},{"scopeSpans":null},{"scopeSpans":[{"spans":[null]}]}]}\n',
    )
    report = index.sync()
    assert report.damaged == ()
    columns = "name, kind, status, attributes, start_time is null, input_tokens, cost_usd"
    table = index.query(f"select {columns} from spans")
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["enum"][:2] == ("CLIENT", "ERROR")
    assert rows["doubled"][2] == {"k": "7", "z": None}
    assert rows["bad-numbers"][3] is True
    assert rows["far"][3] is True
    assert rows["tokens"][4:] == (None, None)
    assert rows["bare"][:2] == ("UNSPECIFIED", "UNSET")
    assert rows["nul"][2] == {"text": "a\x00b"}
    assert len(rows) == 8


def test_collector_lines_with_many_spans_are_unpacked(index: TraceIndex, tmp_path: Path) -> None:
    """One line with 500 spans of a Collector is 500 rows."""
    spans = [span(number, f"s{number}") for number in range(500)]
    write(tmp_path / "collector.jsonl", line(*spans, service="fleet"))
    assert index.sync().spans == 500
    assert index.query("select distinct service_name from spans").rows == [("fleet",)]


def test_huge_lines_are_read(index: TraceIndex, tmp_path: Path) -> None:
    """A line beyond DuckDB's default of 16 MB is read, and so are its neighbours."""
    huge = line(span(1, "huge", attributes={"text": "x" * 20_000_000}))
    write(tmp_path / "a.jsonl", line(span(0, "before")), huge, line(span(2, "zafter")))
    assert index.sync().damaged == ()
    assert names(index) == ["before", "huge", "zafter"]


def test_a_line_longer_than_a_batch_is_passed_over(tmp_path: Path) -> None:
    """It is reported and skipped without being held in memory; what follows is read."""
    index = TraceIndex(tmp_path, batch_bytes=2000)
    giant = line(span(1, "giant", attributes={"text": "x" * 5000}))
    path = write(tmp_path / "a.jsonl", line(span(0, "before")), giant)
    write(path, line(span(2, "later")), giant[:3000])
    report = index.sync()
    assert [damage.line for damage in report.damaged] == [2]
    assert names(index) == ["before", "later"]
    write(path, giant[3000:], line(span(3, "last")))
    assert [damage.line for damage in index.sync().damaged] == [4]
    assert names(index) == ["before", "last", "later"]


def test_a_file_that_cannot_be_read_does_not_stop_the_others(index: TraceIndex, tmp_path: Path) -> None:
    """It is reported with the reason, and tried again the next time; what is no file is none, and is not waited for."""
    (tmp_path / "a.jsonl").symlink_to(tmp_path / "loop.jsonl")
    (tmp_path / "loop.jsonl").symlink_to(tmp_path / "a.jsonl")
    write(tmp_path / "b.jsonl", *many(1))
    (tmp_path / "dir.jsonl").mkdir()
    os.mkfifo(tmp_path / "pipe.jsonl")
    report = index.sync()
    assert report.spans == 1
    assert [damage.path.name for damage in report.damaged] == ["a.jsonl", "loop.jsonl"]
    assert all("cannot be read" in damage.reason for damage in report.damaged)
    (tmp_path / "loop.jsonl").unlink()
    write(tmp_path / "loop.jsonl", *many(1, first=1))
    assert index.sync().spans == 1


def test_a_value_that_duckdb_refuses_costs_only_its_line(
    index: TraceIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should a value break the ingest itself, halving finds its line, and all others are taken in once."""

    def broken(name: str, **options: int) -> str:
        guard = "case when span.name = 's00017' then error('poison') else span.name end as name"
        return original(name, **options).replace("span.name as name", guard)

    original = sync.ingest_statement
    monkeypatch.setattr(sync, "ingest_statement", broken)
    path = write(tmp_path / "a.jsonl", *many(40))
    write(tmp_path / "b.jsonl", *many(3, first=40))
    report = index.sync()
    assert (report.spans, report.lines) == (42, 43)
    assert [(damage.path, damage.line) for damage in report.damaged] == [(path, 18)]
    assert "poison" in report.damaged[0].reason
    assert index.sync().lines == 0
    assert "s00017" not in names(index)


_SYNC = """
import sys
from sagaspan.index import TraceIndex
index = TraceIndex(sys.argv[1], batch_bytes=20_000)
print("ready", flush=True)
while True:
    index.sync(lambda done, todo: print(done, flush=True))
"""


def test_kill_9_during_sync_loses_and_doubles_nothing(index: TraceIndex, tmp_path: Path) -> None:
    """Killed after any batch, the next sync goes on from the last commit; leftovers do no harm."""
    write(tmp_path / "a.jsonl", *(line(span(number, f"s{number:05}", spanId="")) for number in range(2000)))
    for _ in range(4):
        command = [sys.executable, "-c", _SYNC, str(tmp_path)]
        environment = {**os.environ, "PYTHONPATH": SOURCE}
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
            assert process.stdout is not None
            for _ in range(4):
                process.stdout.readline()
            time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
    index.sync()
    assert names(index) == [f"s{number:05}" for number in range(2000)]
    assert index.query("select spans from traces").rows == [(2000,)]
    assert not (tmp_path / ".staging").exists()


def _sync_once(directory: str, queue: multiprocessing.Queue[int]) -> None:
    queue.put(TraceIndex(directory, batch_bytes=50_000).sync().spans)


def test_concurrent_syncs_share_the_work(index: TraceIndex, tmp_path: Path) -> None:
    """Two processes that sync at once wait for each other and count each span once between them."""
    write(tmp_path / "a.jsonl", *(line(span(number, f"s{number:05}", spanId="")) for number in range(1000)))
    context = multiprocessing.get_context("spawn")
    queue: multiprocessing.Queue[int] = context.Queue()
    processes = [context.Process(target=_sync_once, args=(str(tmp_path), queue)) for _ in range(2)]
    for process in processes:
        process.start()
    assert sum(queue.get(timeout=300) for _ in processes) == 1000
    for process in processes:
        process.join()
    assert len(names(index)) == 1000
    assert index.query("select spans from traces").rows == [(1000,)]


def test_a_damaged_index_names_its_remedy(index: TraceIndex, tmp_path: Path) -> None:
    """A broken file is not repaired by guessing: the error says that it can be deleted, and then all is back."""
    write(tmp_path / "a.jsonl", *many(2))
    index.sync()
    index.path.write_bytes(b"garbage" * 1000)
    for ask in (index.sync, lambda: index.query("select 1")):
        with pytest.raises(StoreUnavailable, match="delete it and run again"):
            ask()
    index.path.unlink()
    assert index.sync().spans == 2


def _set_version(path: Path, version: int) -> None:
    with duckdb.connect(str(path)) as connection:
        connection.execute("update meta set value = ? where key = 'schema_version'", [str(version)])


def test_an_index_of_a_newer_sagaspan_is_refused(index: TraceIndex, tmp_path: Path) -> None:
    """A newer schema is never touched; the error says to upgrade."""
    index.sync()
    _set_version(index.path, 99)
    for ask in (index.sync, lambda: index.query("select 1")):
        with pytest.raises(SchemaOutdated, match="upgrade sagaspan"):
            ask()


def test_a_strangers_database_is_left_alone(index: TraceIndex, tmp_path: Path) -> None:
    """A DuckDB file without our tables is neither used nor deleted."""
    with duckdb.connect(str(index.path)) as connection:
        connection.execute("create table theirs (x integer)")
    with pytest.raises(StoreUnavailable, match="not an index"):
        index.sync()
    with duckdb.connect(str(index.path)) as connection:
        assert connection.execute("select count(*) from theirs").fetchall() == [(0,)]


_HOLD = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('open', flush=True); sys.stdin.read()"


def test_an_index_held_by_another_program_is_named(index: TraceIndex, tmp_path: Path) -> None:
    """A DuckDB shell that has the file open is told apart from damage."""
    index.sync()
    write(tmp_path / "a.jsonl", *many(1))
    command = [sys.executable, "-c", _HOLD, str(index.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(StoreUnavailable, match="open in another program"):
            index.sync()
        process.kill()
    index.sync()


def test_a_full_disk_is_named_and_loses_nothing(index: TraceIndex, tmp_path: Path) -> None:
    """The error is one of ours, what was there can be asked, and the rest comes with the next sync."""
    write(tmp_path / "a.jsonl", *many(10))
    index.sync()
    write(tmp_path / "b.jsonl", *many(2000, first=10))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(StoreUnavailable, match="cannot be used"):
            index.sync()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert index.query("select sum(spans) from traces").rows == [(10,)]
    assert index.sync().spans == 2000
    assert index.query("select sum(spans) from traces").rows == [(2010,)]
    assert not (tmp_path / ".staging").exists()


def test_a_clock_in_the_future_and_one_that_runs_backwards(index: TraceIndex, tmp_path: Path) -> None:
    """Their spans are listed as they are, and hide no others."""
    ahead = span(0, "ahead", trace=2, startTimeUnixNano=str(9 * 10**18), endTimeUnixNano=str(9 * 10**18 + 1))
    back = span(1, "back", trace=3, endTimeUnixNano=str(START - 10**15))
    write(tmp_path / "a.jsonl", line(ahead), line(back), line(span(2, "right", trace=4)))
    assert index.sync().damaged == ()
    assert [trace.name for trace in index.traces()] == ["ahead", "right", "back"]
    assert [trace.name for trace in index.traces(Where(until=datetime(2100, 1, 1, tzinfo=UTC)))] == ["right", "back"]
