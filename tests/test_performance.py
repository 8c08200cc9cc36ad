"""The speed table: what it says of a figure, and where it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks import table_page
from tests.benchmarks.table_page import Row


def test_a_row_says_whether_its_target_holds_and_why_not(monkeypatch) -> None:
    """A figure beyond its target is called missed, with the reason; what was not measured is called that."""
    rows = [Row("quick", lambda found: found["job"]["quick"], "x", most=1.5),
            Row("slow", lambda found: found["job"]["slow"], " calls/s", least=5000, why="the disk."),
            Row("gone", lambda found: found["failed"]["figure"], "x", most=1),
            Row("elsewhere", lambda found: found["never asked for"], "x")]  # fmt: skip
    monkeypatch.setattr(table_page, "ROWS", {"Some": rows})
    machine = dict.fromkeys(("when", "cores", "processor", "python", "sqlite", *table_page.PACKAGES), "1") | {
        "load": 0.5,
        "seconds": 60,
        "quick": False,
    }
    text = table_page.text({"job": {"quick": 1.25, "slow": 12.5}, "failed": None, "machine": machine})
    assert "| quick | <= 1.50x | 1.25x |  | holds |" in text
    assert "| slow | >= 5,000 calls/s | 12.5 calls/s |  | **missed** |" in text
    assert "| gone | <= 1x | not measured: its benchmark failed | | |" in text
    assert "elsewhere" not in text
    assert "- slow: the disk." in text


@pytest.mark.parametrize(
    ("row", "met", "missed"),
    [
        (Row("a call", lambda _: 0.0, "x", most=1.5), 1.5, 1.51),
        (Row("calls", lambda _: 0.0, "", least=5000), 5000, 4999),
    ],
)
def test_a_target_is_met_up_to_its_figure(row: Row, met: float, missed: float) -> None:
    """And no further, either way."""
    assert (row.holds(met), row.holds(missed)) == (True, False)


def test_the_page_takes_a_new_table_in_the_place_of_the_old_one(tmp_path: Path) -> None:
    """What is written by hand around the table stays."""
    page = tmp_path / "page.md"
    page.write_text((Path(__file__).parents[1] / "docs" / "performance.md").read_text())
    table_page.write(page, "first")
    before, _, after = page.read_text().partition("first")
    table_page.write(page, "second")
    assert page.read_text() == f"{before}second{after}"
    assert before.startswith("# Performance")
