"""What a person sees of a sync that takes a while."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from sagaspan.cli import _index
from sagaspan.cli._options import Settings
from tests.index.lines import line, span, write


class Terminal(io.StringIO):
    """Standard error that somebody looks at."""

    def isatty(self) -> bool:
        return True


def shown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a sync of twenty spans writes there."""
    write(folder / "a.jsonl", *(line(span(number)) for number in range(20)))
    monkeypatch.setenv("SAGASPAN_TRACE_DIR", str(folder))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    index = _index.synced_index(Settings())
    assert index.query("select count(*) from spans").rows == [(20,)]
    return str(sys.stderr.getvalue())  # type: ignore[attr-defined]


def test_a_long_sync_shows_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a bar on standard error, which is gone when the answer comes."""
    monkeypatch.setattr(_index, "_SHOWN_FROM", 1000)
    assert "reading traces" in shown(tmp_path, monkeypatch)


def test_a_short_one_leaves_the_terminal_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing flickers for what is done at once."""
    assert shown(tmp_path, monkeypatch) == ""
