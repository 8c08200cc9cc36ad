"""``sagaspan traces`` and ``sagaspan sql``."""

from __future__ import annotations

from pathlib import Path

import pytest

from sagaspan.index.lock import locked
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

    def test_sql_keeps_columns_of_one_name(self, sagaspan: Sagaspan) -> None:
        """As a join brings them: no value is lost, in any form."""
        query = "select 1 as id, 2 as id, 3 as id_2, 4 as id"
        assert sagaspan("sql", query, "--json").json == [{"id": 1, "id_3": 2, "id_2": 3, "id_4": 4}]
        assert sagaspan("sql", query, "-f", "csv").out.splitlines() == ["id,id,id_2,id", "1,2,3,4"]

    def test_sql_asked_for_two_forms_is_a_usage_error(self, sagaspan: Sagaspan) -> None:
        """Neither wins in silence; the same twice is no contradiction."""
        assert sagaspan("sql", "select 1 as a", "-f", "csv", "--json").code == 2
        assert sagaspan("--json", "sql", "select 1 as a", "-f", "table").code == 2
        assert sagaspan("sql", "select 1 as a", "-f", "json", "--json").json == [{"a": 1}]

    def test_sql_takes_one_statement(self, sagaspan: Sagaspan) -> None:
        """Of several only the last would be answered; a closing semicolon is none."""
        answer = sagaspan("sql", "select 1 as a; select 2 as a", "--json")
        assert answer.code == 1
        assert "one at a time" in answer.json["error"]
        assert sagaspan("sql", "select ';' as a;", "--json").json == [{"a": ";"}]

    def test_sql_does_not_wait_longer_than_its_timeout(self, sagaspan: Sagaspan, home: Path) -> None:
        """Also while somebody else holds the index."""
        sagaspan("sql", "select 1 as a")
        with locked(home / "traces" / ".lock", shared=True):
            answer = sagaspan("sql", "select 1 as a", "--timeout", "0.1", "--json")
        assert answer.code == 1
        assert "for 0.1 s" in answer.json["error"]

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
