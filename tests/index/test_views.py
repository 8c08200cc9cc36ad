"""The views answer the questions people have, from sagaspan's spans and from other instrumentations'."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sagaspan.index import TraceIndex

from .lines import call, line, run_span, span, write

if TYPE_CHECKING:
    from pathlib import Path


def indexed(directory: Path, *spans: dict[str, Any]) -> TraceIndex:
    write(directory / "a.jsonl", *(line(item) for item in spans))
    index = TraceIndex(directory)
    assert index.sync().spans == len(spans)
    return index


def rows(index: TraceIndex, sql: str) -> list[dict[str, Any]]:
    table = index.query(sql)
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


@pytest.fixture
def failed_trip(tmp_path: Path) -> TraceIndex:
    """book_flight done, book_hotel failed, then the flight was compensated."""
    undo = call(
        4, "cancel_flight", call_id="undo-1", call_phase="compensation", call_compensates="c1", call_state="done"
    )
    return indexed(
        tmp_path,
        run_span(0, "compensated", reason="error"),
        call(
            1,
            "book_flight",
            call_id="c1",
            call_state="compensated",
            call_executed=True,
            call_attempts=2,
            call_effect="write",
            idempotency_outcome="executed",
        ),
        call(2, "book_hotel", call_id="c2", call_state="failed", call_executed=True, error="app.SoldOut"),
        undo,
    )


def test_tool_calls_show_forward_and_compensation(failed_trip: TraceIndex) -> None:
    """Each execute_tool span is a row with its state, outcome and what it compensates."""
    found = rows(failed_trip, "select * exclude (started, trace_id, span_id) from tool_calls order by started")
    assert found[0] == {
        "run_id": "order-1",
        "run_name": "trip",
        "tool": "book_flight",
        "phase": "forward",
        "state": "compensated",
        "outcome": "executed",
        "executed": True,
        "attempts": 2,
        "duration_ms": 2.0,
        "error_type": None,
        "effect": "write",
        "call_id": "c1",
        "compensates": None,
        "agent_name": None,
    }
    assert [(row["tool"], row["phase"], row["compensates"]) for row in found[1:]] == [
        ("book_hotel", "forward", None),
        ("cancel_flight", "compensation", "c1"),
    ]


def test_runs_count_calls_compensations_and_errors(failed_trip: TraceIndex) -> None:
    """One row a run, with its end state and reason."""
    (run,) = rows(failed_trip, "select * exclude (started, duration_ms, trace_id) from runs")
    assert run == {
        "run_id": "order-1",
        "name": "trip",
        "state": "compensated",
        "reason": "error",
        "calls": 2,
        "compensations": 1,
        "errors": 1,
    }


def test_saga_steps_join_a_call_with_its_undo(failed_trip: TraceIndex) -> None:
    """A step shows what undid it; a step that nothing undid has NULLs there."""
    found = rows(
        failed_trip, "select step, tool, compensation, compensation_state, error_type from saga_steps order by 1"
    )
    assert [tuple(row.values()) for row in found] == [
        (1, "book_flight", "cancel_flight", "done", None),
        (2, "book_hotel", None, None, "app.SoldOut"),
    ]


def test_a_resumed_run_has_the_state_of_its_last_span(tmp_path: Path) -> None:
    """Paused, then completed in another trace: completed, without the old reason, and replayed calls count
    once.
    """
    index = indexed(
        tmp_path,
        run_span(0, "paused", reason="approval", trace=1),
        call(1, "pay", call_id="c1", call_executed=True),
        run_span(5000, "completed", trace=2),
        call(5001, "pay", call_id="c1", call_executed=False, idempotency_outcome="replayed"),
    )
    (run,) = rows(index, "select state, reason, calls, trace_id, duration_ms from runs")
    assert run == {"state": "completed", "reason": None, "calls": 1, "trace_id": f"{2:032x}", "duration_ms": 5003.0}
    (step,) = rows(index, "select step, started from saga_steps")
    assert (step["started"].second, step["started"].microsecond) == (20, 1000)


def test_a_run_whose_span_never_ended_is_listed_without_a_state(tmp_path: Path) -> None:
    """After a crash the calls are there and the run's span is not; the run still has a row."""
    (run,) = rows(indexed(tmp_path, call(1, "pay")), "select run_id, name, state, calls from runs")
    assert run == {"run_id": "order-1", "name": "trip", "state": None, "calls": 1}


def test_traces_are_named_by_their_root(tmp_path: Path) -> None:
    """The root names the trace even if a child started earlier; without a root the earliest span does."""
    index = indexed(
        tmp_path,
        span(5, "root", attributes={"sagaspan.run.id": "order-1"}),
        span(1, "early child", parent=5),
        span(7, "failed", parent=5, error="x"),
        span(9, "orphan", trace=2, parent=77),
    )
    found = rows(index, "select name, spans, errors, duration_ms, run_id, service_name from traces order by trace_id")
    assert [tuple(row.values()) for row in found] == [
        ("root", 3, 1, 8.0, "order-1", "shop"),
        ("orphan", 1, 0, 2.0, None, "shop"),
    ]


def test_llm_calls_have_tokens_and_cost(tmp_path: Path) -> None:
    """Model, provider, tokens and cost are columns, not strings."""
    chat = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "gpt-4o",
        "gen_ai.provider.name": "openai",
        "gen_ai.usage.input_tokens": 1000,
        "gen_ai.usage.output_tokens": 50,
        "sagaspan.cost.usd": 0.0125,
    }
    index = indexed(tmp_path, span(0, "chat gpt-4o", attributes=chat), span(1, "other"))
    (found,) = rows(index, "select model, provider, input_tokens, output_tokens, cost_usd from llm_calls")
    assert tuple(found.values()) == ("gpt-4o", "openai", 1000, 50, 0.0125)


@pytest.mark.parametrize(
    "alias",
    ["sagaspan.cost.usd", "gen_ai.usage.cost.amount", "gen_ai.usage.cost", "operation.cost", "llm.cost.total"],
)
def test_cost_is_read_under_every_name(tmp_path: Path, alias: str) -> None:
    """Whoever wrote the span, its cost is cost_usd; a NaN is no cost."""
    index = indexed(tmp_path, span(0, attributes={alias: 0.5}), span(1, attributes={alias: float("nan")}))
    assert index.query("select cost_usd from spans order by start_time").rows == [(0.5,), (None,)]


@pytest.mark.parametrize(
    "attributes",
    [
        {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search"},
        {"openinference.span.kind": "TOOL", "tool.name": "search"},
        {"traceloop.span.kind": "tool", "traceloop.entity.name": "search"},
    ],
)
def test_tool_calls_of_other_instrumentations_are_found(tmp_path: Path, attributes: dict[str, str]) -> None:
    """OpenTelemetry GenAI, OpenInference and OpenLLMetry name the same thing differently."""
    index = indexed(tmp_path, span(0, attributes=attributes))
    assert rows(index, "select tool, phase from tool_calls") == [{"tool": "search", "phase": "forward"}]


def test_errors_list_what_failed(tmp_path: Path) -> None:
    """A span in error is a row with its type and message."""
    index = indexed(tmp_path, span(0, "fine"), span(1, "broken", error="ValueError"))
    (found,) = rows(index, "select name, error_type, message, service_name from errors")
    assert tuple(found.values()) == ("broken", "ValueError", "it broke", "shop")
