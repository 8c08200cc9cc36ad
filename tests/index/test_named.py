"""The named queries answer what they say: each call, error and budget once."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest

from sagaspan import ApprovalPending, Guard
from sagaspan.index import TraceIndex, named_queries
from sagaspan.testing import frozen_clock

from .lines import call, line, run_span, span, write
from .test_ledger import ask

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def index(tmp_path: Path) -> TraceIndex:
    return indexed(tmp_path / "traces")


def answer(index: TraceIndex, name: str) -> list[dict[str, Any]]:
    """The rows of the query ``name``."""
    table = index.query(named_queries()[name][1])
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def indexed(directory: Path, *spans: dict[str, Any]) -> TraceIndex:
    directory.mkdir(exist_ok=True)
    write(directory / "a.jsonl", *(line(item) for item in spans))
    index = TraceIndex(directory)
    index.sync()
    return index


def chat(number: int, cost: float | None, **more: Any) -> dict[str, Any]:
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "gen_ai.provider.name": "p"}
    if cost is not None:
        attributes |= {"gen_ai.usage.input_tokens": 5, "sagaspan.cost.usd": cost}
    return span(number, "chat m", attributes=attributes, **more)


def test_a_refused_call_of_a_model_cost_nothing_and_small_costs_are_whole(tmp_path: Path) -> None:
    """Nano-dollars are not rounded away."""
    index = indexed(tmp_path, chat(1, 0.000001234), chat(2, 0.000002), chat(3, None, error="budget_exceeded"))
    (row,) = answer(index, "cost-by-model")
    assert (row["calls"], row["cost_usd"]) == (2, 0.000003234)


def test_a_refusal_is_no_failure(tmp_path: Path) -> None:
    """A tool that a policy refused did not fail."""
    index = indexed(
        tmp_path,
        call(1, "pay", call_executed=False, error="policy_denied"),
        call(2, "pay", call_executed=True, call_state="failed", error="app.Broken"),
    )
    found = [(row["tool"], row["error_type"], row["failures"]) for row in answer(index, "failures-by-tool")]
    assert found == [("pay", "app.Broken", 1)]


def test_refusals_by_the_budgets_of_single_runs_are_one_line(tmp_path: Path) -> None:
    refused = [
        call(n, "pay", f"r{n}", call_executed=False, error="budget_exceeded", budget_scope=f"run:r{n}{tool}")
        for n, tool in enumerate(("", "", "/pay", "/pay"))
    ]
    index = indexed(
        tmp_path, *refused, call(9, "pay", call_executed=False, error="budget_exceeded", budget_scope="user:a")
    )
    found = {row["scope"]: row["refusals"] for row in answer(index, "refusals-by-reason")}
    assert found == {"run:*": 2, "run:*/pay": 2, "user:a": 1}


def test_an_error_that_passes_through_spans_is_one(tmp_path: Path) -> None:
    """From a body through its attempts, its call, the agent and the run; another one that it became is another."""
    index = indexed(
        tmp_path,
        run_span(0, "failed") | {"status": {"code": 2}},
        span(1, "invoke_agent", parent=0, error="app.Broken"),
        call(2, "pay", call_executed=True, call_state="failed", error="app.Broken") | {"parentSpanId": f"{2:016x}"},
        span(3, "attempt 1", parent=2, error="app.Broken", attributes={"sagaspan.attempt.number": 1}),
        span(4, "attempt 2", parent=2, error="app.Broken", attributes={"sagaspan.attempt.number": 2}),
        span(5, "POST", parent=4, error="ConnectError"),
    )
    found = {row["error_type"]: row["errors"] for row in answer(index, "errors-by-type")}
    assert {kind: count for kind, count in found.items() if kind} == {"app.Broken": 1, "ConnectError": 1}


def test_a_budget_is_listed_in_its_window_of_now(index: TraceIndex, store_url: str) -> None:
    """Once, though it has an account for each day that it was used on."""
    with Guard(store_url, budgets={"tool:pay": "9 calls/day"}) as guard:
        pay = guard.tool("pay", effect="write", repeat="new")(lambda: None)
        for days in (2, 1, 0):
            with frozen_clock(dt.datetime.now(dt.UTC) - dt.timedelta(days=days)):
                pay()
        assert ask(index, guard, "select count(*) from ledger.budgets") == [(3,)]
    (row,) = answer(index, "budgets-left")
    assert (row["scope"], row["cap"], row["spent"], row["left"]) == ("tool:pay", 9, 1, 8)


def test_calls_without_spans_are_those_of_the_ledger_alone(index: TraceIndex, guard: Guard, tmp_path: Path) -> None:
    guard.tool("pay", effect="write")(lambda: None)()
    (made,) = guard.calls.list(open=False)
    ask(index, guard, "select 1 from ledger.calls")
    assert [row["call_id"] for row in answer(index, "calls-without-spans")] == [made.id]
    write(tmp_path / "traces" / "b.jsonl", line(call(1, "pay", call_id=made.id)))
    index.sync()
    assert answer(index, "calls-without-spans") == []


def test_a_run_says_whose_it_is(index: TraceIndex, guard: Guard, tmp_path: Path) -> None:
    """User and tenant, from the ledger: they are not on spans unless the operator wants that."""
    with guard.run("trip", id="order-1", user="ada", tenant="acme"):
        pass
    write(tmp_path / "traces" / "b.jsonl", line(run_span(0, "completed")))
    index.sync()
    assert ask(index, guard, 'select run_id, "user", tenant from runs') == [("order-1", "ada", "acme")]


def test_who_decided_and_how_are_two_columns(index: TraceIndex, store_url: str) -> None:
    with Guard(store_url, approver="inbox") as guard:
        pay = guard.tool("pay", effect="write", approve=True, approval={"approvers": 2})(lambda: None)
        with pytest.raises(ApprovalPending) as pending:
            pay()
        for person in ("ada", "bob"):
            guard.approvals.approve(pending.value.approval_id, by=person)
        assert ask(index, guard, "select decided_by, channel from ledger.approvals") == [("ada, bob", "api, api")]
