"""``sagaspan traces`` and ``sagaspan sql``."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import duckdb
import pytest
from opentelemetry.sdk.trace import TracerProvider

from sagaspan import BudgetExceeded, Guard, configure_tracing
from sagaspan.index.lock import locked
from sagaspan.testing import frozen_clock
from tests.cli.conftest import Sagaspan
from tests.telemetry import golden_stories as stories


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

    def test_list_and_filter_take_what_fits(self, sagaspan: Sagaspan) -> None:
        """Traces that have some span that fits, or single spans."""

        def runs(*options: str) -> list[str]:
            return sorted(trace["run_id"] for trace in sagaspan("traces", "list", *options, "--json").json)

        everything = ["lost-1", "paid-1", "stuck-1"]
        assert runs() == everything
        assert runs("--status", "completed") == ["paid-1"]
        assert runs("-s", "compensated", "-s", "partially_compensated") == ["lost-1", "stuck-1"]
        assert runs("--status", "ok") == ["paid-1"]
        assert runs("--tool", "p*") == ["paid-1"]
        assert runs("--since", "1h", "--until", "2100-01-01") == everything
        assert runs("--until", "1h") == []
        assert runs("--max-duration", "1ms") == []
        assert runs("--min-duration", "0s", "--limit", "1", "--offset", "2") in [[run] for run in everything]
        assert runs("--agent", "nobody") == runs("--model", "gpt-4o") == []
        spans = sagaspan("traces", "filter", "--tool", "cancel", "--status", "error", "--json").json
        assert [(span["tool"], span["run_id"]) for span in spans] == [("cancel", "stuck-1")]
        assert "No spans that fit." in sagaspan("traces", "filter", "--tool", "nothing").out
        assert sagaspan("traces", "list", "--status", "complete").code == 2

    @pytest.mark.parametrize("form", ["json", "csv", "md"])
    def test_export_has_every_span(self, sagaspan: Sagaspan, tmp_path: Path, form: str) -> None:
        """Of one trace, or of all that fit; to standard output or a file."""
        trace_id = sagaspan("traces", "list", "--run", "lost-1", "--json").json[0]["trace_id"]
        text = sagaspan("traces", "export", trace_id[:16], "-f", form).out
        assert text.count("execute_tool book" if form != "md" else r"execute\_tool book |") == 1
        assert trace_id in text
        target = tmp_path / "out"
        assert sagaspan("traces", "export", "--status", "error", "-f", form, "-o", str(target)).code == 0
        assert trace_id in target.read_text()
        if form == "json":
            assert len(json.loads(target.read_text())) == 2

    def test_parquet_needs_a_file_and_is_whole(self, sagaspan: Sagaspan, tmp_path: Path) -> None:
        """Of traces and of any query."""
        assert sagaspan("traces", "export", "-f", "parquet").code == 2
        assert sagaspan("sql", "from spans", "-f", "parquet").code == 2
        for name, command in (("a", ["traces", "export"]), ("b", ["sql", "select trace_id from spans -- all"])):
            target = tmp_path / f"{name}.parquet"
            assert sagaspan(*command, "-f", "parquet", "-o", str(target)).code == 0
            with duckdb.connect() as connection:
                (rows,) = connection.execute("select count(trace_id) from read_parquet(?)", [str(target)]).fetchall()
            assert rows[0] == len(sagaspan("sql", "from spans", "--json").json)
        assert sagaspan("sql", "delete from spans", "-f", "parquet", "-o", str(tmp_path / "c")).code == 1
        assert {path.name for path in tmp_path.iterdir()} == {".sagaspan", "a.parquet", "b.parquet"}

    def test_named_queries_are_listed_and_asked(self, sagaspan: Sagaspan) -> None:
        """A name that there is not is exit code 3; with the ledger's tables up to date."""
        listed = {found["name"] for found in sagaspan("sql", "--named", "--json").json}
        assert {"failures-by-tool", "open-calls", "columns"} <= listed
        assert "runs-by-outcome" in sagaspan("sql", "--named").out
        found = sagaspan("sql", "--named", "runs-by-outcome", "--json").json
        assert {run["state"]: run["runs"] for run in found} == {
            "completed": 1,
            "compensated": 1,
            "partially_compensated": 1,
        }
        assert sagaspan("sql", "--named", "nothing").code == 3
        assert sagaspan("sql").code == sagaspan("sql", "select 1", "--named", "columns").code == 2
        found = sagaspan("sql", "select run_id, state from ledger.runs where run_id = 'paid-1'", "--json").json
        assert found == [{"run_id": "paid-1", "state": "completed"}]

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


def test_a_captured_trace_shows_thoughts_words_and_stacks(
    sagaspan: Sagaspan, guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the content opt-in; costs, refusals and rules are always there."""
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY")
    pay = guard.tool("pay", effect="write", cost="0.4 USD")(_pay)
    with contextlib.suppress(BudgetExceeded), guard.run("desk", id="d1", budget="0.5 USD"):
        with guard.llm_call("gpt-4o", input_tokens=100, max_output_tokens=50) as call:
            thought = {"role": "assistant", "parts": [{"type": "reasoning", "content": "the card may be bad"}]}
            call.messages(output=[thought])
            call.settle(input_tokens=90, output_tokens=20)
        with contextlib.suppress(CardDeclined):
            pay(card="bad")
        pay(card="good")
        pay(card="other")
    trace_id = sagaspan("traces", "list", "--json").json[0]["trace_id"]
    shown = sagaspan("traces", "show", trace_id).out
    assert "thinks: the card may be bad" in shown
    assert "90 > 20 tokens" in shown
    assert "refused: budget_exceeded" in shown
    assert "budget of run:d1" in shown
    assert "raise CardDeclined" in shown
    assert 'in: {"card":"bad"}' in shown
    report = sagaspan("runs", "export", "d1").out
    assert "the card may be bad" in report


class CardDeclined(Exception):
    pass


def _pay(card: str) -> str:
    if card == "bad":
        raise CardDeclined("declined")
    return f"paid by {card}"


def test_a_tree_says_what_happened_in_every_feature(
    home: Path, sagaspan: Sagaspan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attempts, refusals and by what, waits, doubts, loops, what was undone and on whose wish; in a line each."""
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY")
    provider, made = TracerProvider(shutdown_on_exit=False), list[Guard]()
    configure_tracing("test", directory=home / "traces", tracer_provider=provider)

    def make(**how: Any) -> Guard:
        made.append(Guard(f"sqlite:///{tmp_path}/ledger-{len(made)}.db", tracer_provider=provider, **how))
        return made[-1]

    with frozen_clock():
        for story in (stories.attempts, stories.compensation, stories.doubt, stories.refusals, stories.approval):
            story(make)
    for guard in made:
        guard.close()
    provider.shutdown()
    traces = sagaspan("traces", "list", "-n", "50", "--json").json
    shown = "\n".join(sagaspan("traces", "show", trace["trace_id"]).out for trace in traces)
    for said in (
        "done  2 attempts", "attempt 1", "Broken", "undoes pay", "on request", "needs_human  says unsure",
        "says applied",
        "refused: rate_limited", "told of a loop (repeat)", "refused: loop_detected", "wait for lock",
        "refused: lock_conflict", "tool:often is frozen", "would be refused: budget_exceeded", "1 span\n",
        "approved  by api after", "raise Broken",
    ):  # fmt: skip
        assert said in shown
    assert "raise refusal(tool, verdict)" not in shown  # a refusal says what to do; its stack is our own code
