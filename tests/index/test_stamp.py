"""A sync with nothing new opens nothing and waits for nobody; whatever may be new is looked at."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from sagaspan import Guard
from sagaspan._mirror import LedgerMirror
from sagaspan.exceptions import StoreUnavailable
from sagaspan.index import TraceIndex
from sagaspan.index.lock import locked

from .lines import line, span, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def index(tmp_path: Path) -> TraceIndex:
    write(tmp_path / "a.jsonl", *(line(span(number)) for number in range(3)))
    index = TraceIndex(tmp_path)
    assert index.sync().spans == 3
    return index


def opens(index: TraceIndex) -> bool:
    """Whether a sync wants the index for itself, which somebody else has."""
    with locked(index.directory / ".lock"):
        try:
            report = index.sync(patience=0)
        except StoreUnavailable:
            return True
    assert (report.files, report.lines, report.spans, report.damaged) == (0, 0, 0, ())
    return False


def test_with_nothing_new_it_waits_for_nobody(index: TraceIndex) -> None:
    """Also after questions, which change nothing."""
    assert not opens(index)
    index.query("select * from traces")
    assert not opens(index)
    write(index.directory / "a.jsonl", line(span(3)))
    assert opens(index)
    assert index.sync().spans == 1
    assert not opens(index)


def _rewrite(index: TraceIndex) -> None:
    path = index.directory / "a.jsonl"
    path.write_bytes(path.read_bytes().replace(b"step", b"stop"))
    os.utime(path, ns=(0, 12_345))


@pytest.mark.parametrize(
    "change",
    [
        lambda index: write(index.directory / "b.jsonl", line(span(9))),
        lambda index: (index.directory / "a.jsonl").rename(index.directory / "z.jsonl"),
        lambda index: (index.directory / "a.jsonl").unlink(),
        _rewrite,
        lambda index: index.path.unlink(),
        lambda index: index.path.write_bytes(index.path.read_bytes()[:-1]),
        lambda index: index.path.with_name("index.duckdb.wal").touch(),
        lambda index: (index.directory / ".synced").write_text("[]"),
        lambda index: (index.directory / ".synced").write_bytes(b"\xff{"),
        lambda index: (index.directory / ".synced").unlink(),
    ],
)  # fmt: skip
def test_whatever_has_changed_is_looked_at(index: TraceIndex, change: Callable[[TraceIndex], object]) -> None:
    """The files, the index, what was killed beside it, and the note itself."""
    change(index)
    assert opens(index)


def test_what_is_written_during_a_sync_is_not_taken_for_read(index: TraceIndex) -> None:
    """A program goes on while somebody looks at it."""
    path = write(index.directory / "a.jsonl", line(span(3)))
    told: list[int] = []

    def write_once(done: int, todo: int) -> None:
        if done == todo and not told:
            told.append(todo)
            write(path, line(span(4)))

    assert index.sync(write_once).spans == 1
    assert index.sync().spans == 1


def test_an_index_that_was_deleted_comes_back_whole(index: TraceIndex) -> None:
    """The note beside it is none of the new one's."""
    index.path.unlink()
    assert index.sync().spans == 3


def test_what_cannot_be_read_is_tried_again(index: TraceIndex) -> None:
    """Though nothing about the file has changed: it was perhaps its disk."""
    (index.directory / "b.jsonl.gz").write_bytes(b"\x1f\x8bcut")
    for _ in range(2):
        assert [damage.path.name for damage in index.sync().damaged] == ["b.jsonl.gz"]


def test_a_ledger_in_which_nothing_has_changed_is_not_copied(index: TraceIndex, store_url: str) -> None:
    """Nor is the index opened for it; a new call is there at the next question."""
    with Guard(store_url) as guard:
        act = guard.tool("act")(lambda number: number)
        mirror = LedgerMirror(guard._store)
        for number in (1, 2):
            act(number)
            with locked(index.directory / ".lock"), pytest.raises(StoreUnavailable):
                index.sync_ledger(mirror, patience=0)
            index.sync_ledger(mirror)
            with locked(index.directory / ".lock"):
                index.sync_ledger(mirror, patience=0)
            assert not opens(index)
        assert index.query("select count(*) from ledger.calls").rows == [(2,)]
