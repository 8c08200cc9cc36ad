"""Traces that ended long ago can be forgotten, and do not come back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from sagaspan.index import TraceIndex

from .lines import START, line, run_span, span, write

if TYPE_CHECKING:
    from pathlib import Path

CUT = datetime.fromtimestamp(START / 1e9, UTC) + timedelta(seconds=50)


@pytest.fixture
def index(tmp_path: Path) -> TraceIndex:
    """A run that was over by then, one that went on later in a second trace, and two traces without a run."""
    pages: list[dict[str, Any]] = [
        run_span(0, "completed", "over", trace=1),
        run_span(10_000, "paused", "resumed", trace=2),
        run_span(60_000, "completed", "resumed", trace=3),
        span(20_000, "GET /", trace=4),
        span(70_000, "GET /", trace=5),
    ]
    write(tmp_path / "a.jsonl", *(line(page) for page in pages))
    made = TraceIndex(tmp_path)
    made.sync()
    return made


def traces(index: TraceIndex) -> list[int]:
    return [int(trace_id, 16) for (trace_id,) in index.query("select trace_id from traces order by 1").rows]


def test_what_ended_before_is_forgotten_and_a_run_that_went_on_is_not(index: TraceIndex) -> None:
    """With its spans and what is counted of it; nothing is lost of a run of which some is kept."""
    would = index.prune(CUT, dry_run=True)
    assert traces(index) == [1, 2, 3, 4, 5]
    done = index.prune(CUT)
    assert done == would
    assert (done.traces, done.spans) == (2, 2)
    assert traces(index) == [2, 3, 5]
    assert index.query("select count(*), count(distinct trace_id) from spans").rows == [(3, 3)]
    assert index.query("select run_id, state from runs").rows == [("resumed", "completed")]


def test_what_was_forgotten_is_not_read_again(index: TraceIndex) -> None:
    """Its file may still be there: how far it was read is remembered as long as it is, and no longer."""
    index.prune(CUT)
    (index.directory / ".synced").unlink()
    assert index.sync().spans == 0
    write(index.directory / "a.jsonl", line(span(80_000, trace=6)))
    assert index.sync().spans == 1
    assert traces(index) == [2, 3, 5, 6]
    (index.directory / "a.jsonl").unlink()
    index.prune(CUT)
    assert index.query("select count(*) from files").rows == [(0,)]
    assert traces(index) == [2, 3, 5, 6]


def test_a_file_that_is_in_the_index_whole_is_compressed_and_not_read_again(index: TraceIndex) -> None:
    """What it says stays in the index once, and can be read anew where there is no index any more."""
    path, torn = index.directory / "a.jsonl", index.directory / "torn.jsonl"
    write(torn, line(span(90_000, trace=7)), '{"resourceSpans"')
    index.sync()
    (packed,) = index.pack([path, torn])
    assert (packed.name, path.exists(), torn.exists()) == ("a.jsonl.gz", False, True)
    assert packed.stat().st_mode & 0o777 == 0o600
    assert (index.sync().spans, traces(index)) == (0, [1, 2, 3, 4, 5, 7])
    assert index.pack([packed]) == []
    index.path.unlink()
    assert (index.sync().spans, traces(index)) == (6, [1, 2, 3, 4, 5, 7])


@pytest.mark.parametrize("step", ["rename", "unlink"])
def test_a_pack_that_is_killed_loses_nothing_and_doubles_nothing(
    index: TraceIndex, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the compressed file has its name, and before the other one is gone."""
    path, original = index.directory / "a.jsonl", getattr(type(index.directory), step)

    def dies(self: Path, *arguments: Any, **more: Any) -> Any:
        if self.suffix in (".jsonl", ".part") and not more:
            raise KeyboardInterrupt
        return original(self, *arguments, **more)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(type(index.directory), step, dies)
        index.pack([path])
    index.prune(CUT)
    assert (index.sync().spans, traces(index)) == (0, [2, 3, 5])
    assert index.pack([path])
    assert (index.sync().spans, traces(index)) == (0, [2, 3, 5])
