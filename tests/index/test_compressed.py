"""Files of the Collector's ``file`` exporter, and compressed ones, are read like our own."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from types import SimpleNamespace

import duckdb
import pytest

from sagaspan.index import TraceIndex

from .lines import line, span, write


@pytest.fixture
def index(tmp_path: Path) -> TraceIndex:
    return TraceIndex(tmp_path)


def names(index: TraceIndex) -> list[str]:
    return [name for (name,) in index.query("select name from spans order by name").rows]


def zstd(text: str, folder: Path) -> bytes:
    """The text, and a newline, as one zstd frame: DuckDB has an encoder, Python not before 3.14."""
    target = folder / "frame"
    with duckdb.connect() as connection:
        connection.execute(
            f"copy (select ? as text) to '{target}' (format csv, header false, quote '', escape '', delimiter '\x01', "
            "compression zstd)",
            [text.rstrip("\n")],
        )
    frame = target.read_bytes()
    target.unlink()
    return frame


def message(text: str, folder: Path) -> bytes:
    """As the Collector writes it with ``compression: zstd``: behind its length."""
    frame = zstd(text, folder)
    return len(frame).to_bytes(4, "big") + frame


def test_rotated_files_of_a_collector_are_read_once(index: TraceIndex, tmp_path: Path) -> None:
    """``traces.json`` becomes ``traces-<time>.json`` at rotation; both names are read, no byte twice."""
    path = write(tmp_path / "traces.json", line(span(0, "a", spanId="")))
    assert index.sync().spans == 1
    path.rename(tmp_path / "traces-2026-11-21T09-54-31.000.json")
    write(tmp_path / "traces.json", line(span(1, "b", spanId="")))
    report = index.sync()
    assert (report.spans, report.damaged) == (1, ())
    assert names(index) == ["a", "b"]


def test_gzip_and_zstd_files_are_read_once(index: TraceIndex, tmp_path: Path) -> None:
    """Whatever is in them, with nothing read again at the next sync, and nothing left behind."""
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress((line(span(0, "a", spanId="")) * 2).encode()))
    (tmp_path / "b.jsonl.zst").write_bytes(zstd(line(span(1, "b", spanId="")), tmp_path))
    report = index.sync()
    assert (report.spans, report.damaged) == (3, ())
    assert index.sync().lines == 0
    assert names(index) == ["a", "a", "b"]
    ours = {"index.duckdb", ".lock", ".synced"}
    assert {path.name for path in tmp_path.iterdir()} == {"a.jsonl.gz", "b.jsonl.zst", *ours}


def test_messages_of_a_compressing_collector_wait_until_they_are_whole(index: TraceIndex, tmp_path: Path) -> None:
    """Each message behind its length; one that is being written waits, and what follows is read on from there."""
    path = tmp_path / "collector.json"
    late = message(line(span(2, "c", spanId="")), tmp_path)
    path.write_bytes(
        message(line(span(0, "a", spanId="")), tmp_path) + message(line(span(1, "b", spanId="")), tmp_path) + late[:9]
    )
    assert index.sync().spans == 2
    assert index.sync().spans == 0
    with path.open("ab") as file:
        file.write(late[9:] + message(line(span(3, "d", spanId="")), tmp_path))
    report = index.sync()
    assert (report.spans, report.damaged) == (2, ())
    assert names(index) == ["a", "b", "c", "d"]


def test_a_damaged_compressed_file_stops_no_other(index: TraceIndex, tmp_path: Path) -> None:
    """It is named with the reason; a damaged line in a whole one costs only itself."""
    whole = gzip.compress((line(span(0, "a")) + "garbage\n" + line(span(1, "b"))).encode())
    (tmp_path / "a.jsonl.gz").write_bytes(whole)
    (tmp_path / "b.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    frame = message(line(span(2)), tmp_path)
    (tmp_path / "c.jsonl").write_bytes(frame + (7).to_bytes(4, "big") + b"no zstd")
    write(tmp_path / "d.jsonl", line(span(3, "d")))
    report = index.sync()
    assert names(index) == ["a", "b", "d"]
    assert {(damage.path.name, damage.line) for damage in report.damaged} == {
        ("a.jsonl.gz", 2),
        ("b.jsonl.gz", 0),
        ("c.jsonl", 0),
    }


def test_a_large_compressed_file_is_read_in_batches(tmp_path: Path) -> None:
    """A sync that is killed between two batches goes on behind the last one."""
    lines = "".join(line(span(number, f"s{number:03}", spanId="")) for number in range(60))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    index = TraceIndex(tmp_path, batch_bytes=6000)

    class Killed(BaseException):
        pass

    def die(done: int, todo: int) -> None:
        if done:
            raise Killed

    for _ in range(3):
        with pytest.raises(Killed):
            index.sync(die)
    assert 0 < len(names(index)) < 60
    index.sync()
    assert names(index) == [f"s{number:03}" for number in range(60)]


def bomb(form: str, folder: Path) -> bytes:
    """Seventy megabytes of lines of equal letters, in a few kilobytes."""
    text = ("x" * 999 + "\n") * 70_000
    if form == "gzip":
        return gzip.compress(text.encode())
    return zstd(text, folder) if form == "zstd" else message(text, folder)


@pytest.mark.parametrize("form", ["gzip", "zstd", "frames"])
def test_a_file_that_unpacks_to_far_more_than_its_size_is_refused_once(form: str, tmp_path: Path) -> None:
    """It is named once, costs no other file anything, and is not unpacked again; what is written behind it is read."""
    (tmp_path / "a.jsonl.gz").write_bytes(bomb(form, tmp_path))
    write(tmp_path / "b.jsonl", line(span(1, "b")))
    index = TraceIndex(tmp_path)
    report = index.sync()
    assert report.spans == 1
    ((path, reason),) = [(damage.path.name, damage.reason) for damage in report.damaged]
    assert (path, "unpacks to more than" in reason) == ("a.jsonl.gz", True)
    assert index.query("select count(*) from damaged_lines").rows == [(1,)]
    write(tmp_path / "c.jsonl", line(span(2, "c")))
    report = index.sync()
    assert (report.spans, report.damaged) == (1, ())
    ours = {"index.duckdb", ".lock", ".synced"}
    assert {path.name for path in tmp_path.iterdir()} == {"a.jsonl.gz", "b.jsonl", "c.jsonl", *ours}
    if form == "frames":
        with (tmp_path / "a.jsonl.gz").open("ab") as file:
            file.write(message(line(span(3, "d")), tmp_path))
        assert (index.sync().spans, names(index)) == (1, ["b", "c", "d"])


@pytest.mark.parametrize("form", ["gzip", "zstd"])
def test_unpacking_leaves_half_of_the_disk(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that there is no room for waits until there is."""
    text = "".join(line(span(number, f"s{number}")) for number in range(2000))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(text.encode()) if form == "gzip" else zstd(text, tmp_path))
    index = TraceIndex(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("sagaspan.index.compressed.shutil.disk_usage", lambda _: SimpleNamespace(free=100_000))
        report = index.sync()
        assert "would fill the disk" in report.damaged[0].reason
        assert not (tmp_path / ".unpacked").exists()
    assert index.sync().spans == 2000


def test_a_name_that_is_no_text_stops_no_sync(tmp_path: Path) -> None:
    """Names on a disk are bytes: a damaged line in such a file is on record too."""
    folder = os.fsencode(tmp_path)
    with open(folder + b"/a-\xff.jsonl", "w") as file:  # noqa: PTH123 - a name of bytes
        file.write(line(span(0, "a")) + "garbage\n")
    with open(folder + b"/b-\xff.jsonl.gz", "wb") as packed:  # noqa: PTH123 - a name of bytes
        packed.write(gzip.compress(line(span(1, "b")).encode()))
    index = TraceIndex(tmp_path)
    report = index.sync()
    assert (report.spans, len(report.damaged)) == (2, 1)
    assert index.query("select path from damaged_lines").rows == [(f"{tmp_path}/a-\\xff.jsonl",)]
    assert index.sync().lines == 0
