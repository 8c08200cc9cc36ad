"""``sagaspan traces`` and ``sagaspan sql``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Sagaspan


@pytest.mark.usefixtures("day")
class TestTraces:
    """Over a day's work."""

    def test_list_has_a_line_a_trace(self, sagaspan: Sagaspan) -> None:
        """With its run, and only the broken ones if asked."""
        found = sagaspan("traces", "list", "--json").json
        assert {trace["run_id"] for trace in found} == {"paid-1", "lost-1", "stuck-1"}
        assert {trace["run_id"] for trace in sagaspan("traces", "list", "--errors", "--json").json} == {
            "lost-1",
            "stuck-1",
        }
        assert len(sagaspan("traces", "list", "-n", "1").out.splitlines()) == 2

    def test_show_is_a_tree(self, sagaspan: Sagaspan) -> None:
        """The id that ``list`` prints is enough for ``show``."""
        trace_id = sagaspan("traces", "list", "--run", "lost-1").out.splitlines()[1].split()[0]
        lines = sagaspan("traces", "show", trace_id).out.splitlines()
        assert "sagaspan trip" in lines[1]
        assert "execute_tool book" in lines[2]
        assert "execute_tool cancel" in lines[3]
        assert sagaspan("traces", "show", trace_id, "--json").json[0]["name"] == "sagaspan trip"

    def test_an_unknown_trace_is_not_found(self, sagaspan: Sagaspan) -> None:
        """Exit code 3."""
        assert sagaspan("traces", "show", "ffff").code == 3

    def test_sql_answers_in_three_forms(self, sagaspan: Sagaspan) -> None:
        """A table, JSON and CSV of the same rows."""
        query = "select tool, phase, count(*) as calls from tool_calls group by all order by all"
        expected = [("book", "forward", 3), ("cancel", "compensation", 2), ("pay", "forward", 1)]
        rows = sagaspan("sql", query, "--json").json
        assert [(row["tool"], row["phase"], row["calls"]) for row in rows] == expected
        lines = sagaspan("sql", query, "-f", "csv").out.splitlines()
        assert lines == ["tool,phase,calls", *(",".join(map(str, row)) for row in expected)]
        assert "(3 rows)" in sagaspan("sql", query).out
        assert "cut by --max-rows" in sagaspan("sql", query, "--max-rows", "1").out

    def test_sql_that_fails_is_one_sentence(self, sagaspan: Sagaspan) -> None:
        """With what there is to ask instead."""
        answer = sagaspan("sql", "select * from tool_cals")
        assert answer.code == 1
        assert "tool_calls" in answer.err
        assert "Traceback" not in answer.err

    def test_sql_cannot_write(self, sagaspan: Sagaspan, tmp_path: Path) -> None:
        """Neither files nor the index."""
        target = tmp_path / "stolen.csv"
        assert sagaspan("sql", f"copy spans to '{target}'").code == 1
        assert sagaspan("sql", "delete from spans").code == 1
        assert not target.exists()
        assert sagaspan("sql", "select count(*) as n from spans", "--json").json[0]["n"] > 0

    def test_a_damaged_line_is_named_and_nothing_else_is_lost(self, sagaspan: Sagaspan, home: Path) -> None:
        """One bad line costs one line."""
        (home / "traces" / "broken.jsonl").write_text('{"resourceSpans": [\n')
        answer = sagaspan("sql", "select count(*) as n from tool_calls", "--json")
        assert answer.json[0]["n"] == 6
        assert "broken.jsonl" in answer.err


def test_no_traces_is_one_sentence(sagaspan: Sagaspan) -> None:
    """It names the call that makes them."""
    answer = sagaspan("traces", "list")
    assert answer.code == 1
    assert "configure_tracing" in answer.err
