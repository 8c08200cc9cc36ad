"""``sagaspan traces`` and ``sagaspan sql``."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from sagaspan import BudgetExceeded, Guard, configure_tracing
from sagaspan.index.lock import locked
from sagaspan.testing import frozen_clock
from tests.cli.conftest import Sagaspan
from tests.index.lines import START, line, span, write
from tests.telemetry import golden_stories as stories


def _step(number: int, **more: Any) -> str:
    """A trace of one span; its number is in each of its attributes."""
    attributes = {
        "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": f"tool-{number}",
        "gen_ai.agent.name": f"agent-{number}", "gen_ai.request.model": f"model-{number}",
        "sagaspan.run.id": f"run-{number}", "sagaspan.call.state": ("done", "failed")[number],
    }  # fmt: skip
    return line(span(number * 60_000, str(number), trace=number + 1, attributes=attributes, **more))


@pytest.fixture
def two_spans(home: Path) -> None:
    """``0`` at 14:13:20 for 2 ms; ``1`` a minute later for 500 ms, and it failed."""
    (home / "traces").mkdir(parents=True)
    late = {"endTimeUnixNano": str(START + 60_500_000_000)}
    write(home / "traces" / "a.jsonl", _step(0), _step(1, error="app.Broken", **late))


def test_old_traces_are_forgotten_with_the_files_that_agents_left(sagaspan: Sagaspan, home: Path) -> None:
    """After a question, which somebody must be there to answer. A Collector's files stay, and are not read again."""
    traces = home / "traces"
    traces.mkdir(parents=True)
    long_ago = {"startTimeUnixNano": str(10**18), "endTimeUnixNano": str(10**18 + 5)}  # 2001
    left = write(traces / "shop-20010909T000000Z-1-0123abcd.jsonl", _step(0, **long_ago))
    now = {"startTimeUnixNano": str(time.time_ns()), "endTimeUnixNano": str(time.time_ns())}
    since = datetime.now(UTC) - timedelta(days=2)
    packed = write(traces / f"shop-{since:%Y%m%dT%H%M%SZ}-2-0123abcd.jsonl", line(span(8, "lately", trace=8, **now)))
    kept = write(traces / "collector.jsonl", _step(1, **long_ago), line(span(7, "today", trace=7, **now)))
    assert sagaspan("traces", "prune", "--older-than", "30d").code == 2
    would = sagaspan("traces", "prune", "--older-than", "30d", "--dry-run", "--json").json
    assert would == {"traces": 2, "spans": 2, "files": [left.name], "compressed": []}
    assert left.exists()
    said = sagaspan("traces", "prune", "--older-than", "30d", "--yes").out
    assert "Forgot 2 traces with 2 spans, 1 files." in said
    assert "Compressed 1 files" in said
    assert {path.name for path in traces.glob("*.jsonl*")} == {kept.name, f"{packed.name}.gz"}
    assert {row["name"] for row in sagaspan("traces", "list", "--json").json} == {"today", "lately"}


def test_no_file_is_deleted_while_one_cannot_be_read_and_that_is_said(sagaspan: Sagaspan, home: Path) -> None:
    """What the unreadable one holds is in no index, so nobody knows what the others are still good for."""
    traces = home / "traces"
    traces.mkdir(parents=True)
    left = write(traces / "shop-20010909T000000Z-1-0123abcd.jsonl", _step(0))
    (traces / "loop.jsonl").symlink_to(traces / "loop.jsonl")
    said = sagaspan("traces", "prune", "--older-than", "30d", "--yes")
    assert "loop.jsonl" in said.err
    assert "no file is deleted" in said.err
    assert list(traces.glob(f"{left.name}*"))


def test_of_a_run_that_is_open_no_trace_is_forgotten(sagaspan: Sagaspan, home: Path) -> None:
    """A day may pass until somebody agrees; what it did before is part of it. Only the ledger knows."""
    (home / "traces").mkdir(parents=True)
    write(home / "traces" / "a.jsonl", _step(0), _step(1))
    prune = ("traces", "prune", "--older-than", "1s", "--yes", "--json")
    with Guard().run("waits", id="run-0"):
        assert sagaspan(*prune).json["traces"] == 1
        assert [row["run_id"] for row in sagaspan("traces", "list", "--json").json] == ["run-0"]
    assert sagaspan(*prune).json["traces"] == 1


@pytest.mark.usefixtures("two_spans")
@pytest.mark.parametrize(
    ("only_0", "only_1"),
    [
        (["--status", "ok"], ["--status", "error"]),
        (["--status", "done"], ["--status", "failed"]),
        (["--tool", "tool-0"], ["--tool", "*-1"]),
        (["--run", "run-0"], ["--run", "run-1"]),
        (["--agent", "agent-0"], ["--agent", "*-1"]),
        (["--model", "model-0"], ["--model", "*-1"]),
        (["--max-duration", "2ms"], ["--min-duration", "500ms"]),
        (["--until", "2026-09-21T14:14:20Z"], ["--since", "2026-09-21T14:14:20Z"]),
        (["--offset", "1"], ["--limit", "1"]),
    ],
    ids=lambda options: options[0],
)
def test_each_option_narrows_on_its_own(sagaspan: Sagaspan, only_0: list[str], only_1: list[str]) -> None:
    """Of traces as of single spans."""
    for options, name in ((only_0, "0"), (only_1, "1")):
        for verb in ("list", "filter"):
            assert [found["name"] for found in sagaspan("traces", verb, *options, "--json").json] == [name]


@pytest.mark.usefixtures("two_spans")
@pytest.mark.parametrize(("verb", "what"), [("list", "traces"), ("filter", "spans")])
@pytest.mark.parametrize("form", [[], ["--json"]], ids=["table", "json"])
def test_a_list_says_when_it_has_not_all(sagaspan: Sagaspan, verb: str, what: str, form: list[str]) -> None:
    """Beside the answer, which has no more than was asked for; and nothing of the kind when it has all."""
    said = sagaspan("traces", verb, "--limit", "1", *form)
    assert f"There are more {what} that fit than these 1; see --limit and --offset." in said.err
    assert len(said.json if form else [row for row in said.out.splitlines() if "run-" in row]) == 1
    for options in (["--limit", "2"], ["--limit", "1", "--offset", "1"], ["--limit", "1", "--run", "run-0"]):
        assert not sagaspan("traces", verb, *options, *form).err


@pytest.mark.usefixtures("two_spans")
@pytest.mark.parametrize("verb", ["list", "filter", "export"])
def test_the_start_of_a_run_is_enough(sagaspan: Sagaspan, home: Path, verb: str) -> None:
    """If it is of one run only; a whole id is that run, whatever else begins with it. Of none there is nothing."""
    other = line(span(7, "00", trace=9, attributes={"sagaspan.run.id": "run-0012"}))
    write(home / "traces" / "b.jsonl", other)

    def runs(given: str) -> set[str]:
        return set(re.findall(r"\brun-\d+", sagaspan("traces", verb, "--run", given, "--json").out))

    assert runs("run-1") == {"run-1"}
    assert runs("run-00") == {"run-0012"}
    assert runs("run-0") == {"run-0"}
    assert runs("gone") == set()
    several = sagaspan("traces", verb, "--run", "run")
    assert several.code == 3
    assert "'run' is the start of 3 runs; give more of it" in several.err
    assert "run-0012" in several.out


@pytest.mark.usefixtures("two_spans")
@pytest.mark.parametrize("verb", ["list", "filter", "export"])
def test_bounds_that_nothing_can_be_within_are_refused(sagaspan: Sagaspan, verb: str) -> None:
    """In one sentence that names both; an empty list would say that nothing happened."""
    refused = sagaspan("traces", verb, "--since", "2026-09-22T00:00Z", "--until", "2026-09-21T00:00Z")
    assert refused.code == 2
    assert "--until must be later than --since" in refused.err
    assert sagaspan("traces", verb, "--since", "2026-09-21", "--until", "2026-09-21").code == 2
    refused = sagaspan("traces", verb, "--min-duration", "2s", "--max-duration", "500ms")
    assert refused.code == 2
    assert "nothing takes at least 2000 ms and at most 500 ms; --max-duration must not be less" in refused.err
    assert sagaspan("traces", verb, "--min-duration", "500ms", "--max-duration", "500ms").code == 0


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

    @pytest.mark.parametrize(
        ("command", "plain", "others"),
        [(["sql", "select 1 as a"], "a\n1\n", ["json", "csv", "parquet"]),
         (["traces", "export"], "[", ["json", "csv", "md", "parquet"]), (["runs", "export", "paid-1"], "# ", ["json"])],
    )  # fmt: skip
    def test_a_file_is_written_as_it_is_named(
        self, sagaspan: Sagaspan, tmp_path: Path, command: list[str], plain: str, others: list[str]
    ) -> None:
        """Where no form is said; and what does not agree with its name is refused, before anything is written."""
        begins = {"json": ("[", "{"), "csv": ("a\n", "trace_id,"), "md": "#", "parquet": "PAR1"}
        for form in others:
            target = tmp_path / f"out.{form}"
            assert sagaspan(*command, "-o", str(target)).code == 0
            assert target.read_bytes()[:20].decode(errors="replace").startswith(begins[form])
            odd = tmp_path / f"odd.{form}"
            answer = sagaspan(*command, "-o", str(odd), "-f", next(one for one in ("json", "md", "csv") if one != form))
            assert (answer.code, odd.exists()) == (2, False)
        target = tmp_path / "out.txt"
        assert sagaspan(*command, "-o", str(target)).code == 0
        assert target.read_text().startswith(plain)
        if "csv" in others:
            answer = sagaspan(*command, "-o", str(tmp_path / "odd.csv"), "--json")
            assert (answer.code, "is the name of csv" in answer.json["error"]) == (2, True)

    def test_markdown_says_how_much_it_shortens(self, sagaspan: Sagaspan, home: Path) -> None:
        """And which command gives the whole; a trace with nothing shortened says nothing."""
        (whole, *_) = sagaspan("traces", "list", "--json").json
        assert "Shortened" not in sagaspan("traces", "export", whole["trace_id"], "-f", "md").out
        attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.call.arguments": "x" * 5000}
        write(home / "traces" / "b.jsonl", line(span(1, "long", trace=77, attributes=attributes)))
        out = sagaspan("traces", "export", f"{77:032x}", "-f", "md").out
        assert "Shortened texts in this trace: 1, at `…` or to the last lines of a stack." in out
        assert f"Whole: `sagaspan traces export {77:032x} --format json`" in out

    @pytest.mark.parametrize("form", ["csv", "parquet"])
    def test_an_export_says_when_it_has_not_all(self, sagaspan: Sagaspan, tmp_path: Path, form: str) -> None:
        """Whatever its form; and nothing of the kind when it has."""
        number = len(sagaspan("traces", "list", "--json").json)
        export = ["traces", "export", "-f", form, "-o", str(tmp_path / "out")]
        assert "There are more traces that fit" in sagaspan(*export, "--limit", str(number - 1)).err
        assert "more" not in sagaspan(*export, "--limit", str(number)).err
        assert "more" not in sagaspan(*export, "--limit", str(number - 1), "--offset", "1").err

    @pytest.mark.parametrize("command", [["traces", "export"], ["sql", "from spans"]])
    def test_a_file_that_cannot_be_is_named(self, sagaspan: Sagaspan, tmp_path: Path, command: list[str]) -> None:
        """In one sentence, of Parquet as of text."""
        target = tmp_path / "nowhere" / "out"
        for form in ("csv", "parquet"):
            answer = sagaspan(*command, "-f", form, "-o", str(target))
            assert answer.code == 1
            assert answer.err == f"Error: {target} cannot be written (No such file or directory)\n"

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

    def test_a_query_comes_from_a_file_or_the_standard_input(
        self, sagaspan: Sagaspan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An empty one, and one beside another query, are refused."""
        file = tmp_path / "report.sql"
        file.write_text("-- runs\nselect count(*) as runs\nfrom runs;\n")
        assert sagaspan("sql", "--file", str(file), "--json").json == [{"runs": 3}]
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
        assert sagaspan("sql", "--file", "-", "--json").json == [{"runs": 3}]
        file.write_text("")
        assert "holds no query" in sagaspan("sql", "--file", str(file)).err
        assert sagaspan("sql", "select 1", "--file", str(file)).code == 2

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
        with locked(home / "traces" / ".lock"):
            answer = sagaspan("sql", "select 1 as a", "--timeout", "100ms", "--json")
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


def test_the_name_of_a_trace_file_is_shown_and_not_obeyed(sagaspan: Sagaspan, home: Path) -> None:
    """Whoever can put a file into the folder cannot forge a line of the command line's output, or colour it."""
    (home / "traces").mkdir(parents=True)
    (home / "traces" / "a\x1b[2J\u202e\nError: b.jsonl").write_text("garbage\n")
    for command in (("sql", "select path from damaged_lines"), ("traces", "list"), ("doctor",)):
        answer = sagaspan(*command)
        for shown in (answer.out, answer.err):
            assert not {"\x1b", "\u202e"} & set(shown)
            assert "\nError: b" not in shown
    (home / "traces" / "a\x1b[2J\u202e\nError: b.jsonl").write_text("more garbage\ngarbage\n")
    answer = sagaspan("sql", "select 1 as a")
    assert answer.err.startswith("Warning: a trace line was left out: ")
    assert r"a\u{1b}[2J\u{202e}\u{a}Error: b.jsonl:" in answer.err
    assert answer.err.count("\n") == 1


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
            call.record_usage(input_tokens=90, output_tokens=20)
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


@pytest.mark.usefixtures("day")
def test_it_says_how_many_runs_have_spans(sagaspan: Sagaspan) -> None:
    """If not all have: runs that a sampler left out are whole in the ledger, and nowhere else."""
    everywhere = (["traces", "list"], ["sql", "from runs"], ["doctor"])
    for command in everywhere:
        answer = sagaspan(*command)
        assert "sampled:" not in answer.out + answer.err
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    with Guard(tracer_provider=provider) as unsampled:
        for number in range(3):
            with unsampled.run("trip", id=f"unsampled-{number}"):
                pass
    for command in everywhere:
        answer = sagaspan(*command)
        assert "sampled: 50 % of runs have spans" in " ".join((answer.out + answer.err).split())
    assert sagaspan("traces", "list", "--json").err == ""
