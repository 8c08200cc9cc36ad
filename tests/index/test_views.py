"""The views answer the questions people have, from sagaspan's spans and from other instrumentations'."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sagaspan.index import TraceIndex

from .lines import START, call, line, pairs, run_span, span, write

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
        "refused": False,
        "attempts": 2,
        "duration_ms": 2.0,
        "body_ms": None,
        "error_type": None,
        "cost_usd": None,
        "effect": "write",
        "call_id": "c1",
        "compensates": None,
        "would_be_refused": None,
        "tool_call_id": None,
        "agent_name": None,
        "conversation_id": None,
        "service_name": "shop",
        "arguments": None,
        "result": None,
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
        "llm_calls": 0,
        "errors": 1,
        "cost_usd": None,
        "input_tokens": None,
        "output_tokens": None,
        "agent_name": None,
        "conversation_id": None,
        "user": None,
        "tenant": None,
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


LLM = [
    {"gen_ai.operation.name": "chat", "gen_ai.system": "openai", "gen_ai.request.model": "m",
     "gen_ai.usage.prompt_tokens": 7, "gen_ai.usage.completion_tokens": 3, "gen_ai.usage.cache_read_input_tokens": 2},
    {"openinference.span.kind": "LLM", "llm.provider": "openai", "llm.model_name": "m", "llm.token_count.prompt": 7,
     "llm.token_count.completion": 3, "llm.token_count.prompt_details.cache_read": 2},
    {"llm.request.type": "chat", "llm.vendor": "openai", "llm.request.model": "m", "gen_ai.usage.prompt_tokens": 7,
     "gen_ai.usage.completion_tokens": 3, "gen_ai.usage.cache_read_input_tokens": 2},
]  # fmt: skip


@pytest.mark.parametrize("attributes", LLM)
def test_calls_of_models_of_other_instrumentations_are_found(tmp_path: Path, attributes: dict[str, Any]) -> None:
    """Older GenAI names, OpenInference and OpenLLMetry: the same columns."""
    index = indexed(tmp_path, span(0, "call", attributes=attributes))
    columns = "operation, model, provider, input_tokens, output_tokens, cached_tokens"
    assert index.query(f"select {columns} from llm_calls").rows == [("chat", "m", "openai", 7, 3, 2)]


@pytest.mark.parametrize(
    "attributes",
    [
        {"openinference.span.kind": "AGENT", "agent.name": "desk", "session.id": "c1", "input.value": "hello"},
        {
            "traceloop.span.kind": "agent",
            "traceloop.entity.name": "desk",
            "traceloop.association.properties.session_id": "c1",
            "traceloop.entity.input": "hello",
        },
        {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "desk", "gen_ai.conversation.id": "c1"},
    ],
)
def test_agents_of_other_instrumentations_are_found(tmp_path: Path, attributes: dict[str, Any]) -> None:
    """With their name and conversation."""
    index = indexed(tmp_path, span(0, attributes=attributes))
    found = index.query("select operation, agent_name, conversation_id from spans").rows
    assert found == [("invoke_agent", "desk", "c1")]


def test_an_exception_event_explains_a_span(tmp_path: Path) -> None:
    """The SDK's record_exception: type, message and stack, where the span itself does not say them."""
    event = {
        "timeUnixNano": str(START),
        "name": "exception",
        "attributes": pairs(
            {"exception.type": "KeyError", "exception.message": "'x'", "exception.stacktrace": "Traceback: line 1"}
        ),
    }
    broken = span(1, "broken", events=[event], status={"code": 2})
    index = indexed(tmp_path, broken, span(2, "plain", events=[], error="ValueError"))
    found = index.query("select name, error_type, message, stack from errors order by started").rows
    assert found == [("broken", "KeyError", "'x'", "Traceback: line 1"), ("plain", "ValueError", "it broke", None)]
    (row,) = rows(index, "select name, span, attributes['exception.type'] as kind, epoch_ns(time) as at_ns from events")
    assert row == {"name": "exception", "span": "broken", "kind": "KeyError", "at_ns": START}


def test_approvals_are_one_row_a_request(tmp_path: Path) -> None:
    """However often somebody was asked; the last answer counts."""

    def asking(number: int, state: str, wait: float, channel: str = "") -> dict[str, Any]:
        named = {
            "gen_ai.tool.name": "pay", "sagaspan.run.id": "order-1", "sagaspan.approval.id": "ap1",
            "sagaspan.approval.outcome": state, "sagaspan.approval.wait_ms": wait, "sagaspan.approval.channel": channel,
            "openinference.span.kind": "GUARDRAIL",
        }  # fmt: skip
        return span(number, "approval pay", attributes=named)

    index = indexed(tmp_path, asking(0, "pending", 1.5), asking(90, "consumed", 5000.0, "cli"), call(1, "pay"))
    (found,) = rows(index, "select * exclude (asked, trace_id, span_id) from approvals")
    assert found == {
        "approval_id": "ap1", "tool": "pay", "run_id": "order-1", "state": "consumed", "channel": "cli",
        "wait_ms": 5000.0, "askings": 2,
    }  # fmt: skip


def test_refusals_and_budgets_say_what_did_not_run(tmp_path: Path) -> None:
    """Of calls that were refused; not of those that failed, nor of what a compensation or a replay ended in."""
    crossed = {
        "timeUnixNano": str(START),
        "name": "sagaspan.budget.soft_limit",
        "attributes": pairs({
            "sagaspan.budget.scope": "user:42", "sagaspan.budget.unit": "USD", "sagaspan.budget.window": "day",
            "sagaspan.budget.limit": "5 USD", "sagaspan.budget.percent": 80,
        }),
    }  # fmt: skip
    index = indexed(
        tmp_path,
        call(1, "pay", call_executed=True, call_state="done") | {"events": [crossed]},
        call(2, "pay", call_executed=False, error="budget_exceeded", budget_scope="user:42"),
        call(3, "pay", call_executed=False, error="policy_denied", policy_rule="night"),
        call(4, "pay", call_executed=True, error="app.Broken", call_state="failed"),
        call(5, "pay", call_executed=False, error="app.Broken", idempotency_outcome="replayed"),
    )
    found = index.query("select reason, tool, rule, scope from refusals order by started").rows
    assert found == [("budget_exceeded", "pay", None, "user:42"), ("policy_denied", "pay", "night", None)]
    found = index.query("select what, scope, unit, per, amount, percent from budgets order by what").rows
    assert found == [
        ("budget_exceeded", "user:42", None, None, None, None),
        ("soft_limit", "user:42", "USD", "day", "5 USD", 80),
    ]
