"""The ledger's records in the same SQL as the spans."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from sagaspan import ApprovalPending, Guard
from sagaspan._mirror import LedgerMirror
from sagaspan.index import TraceIndex
from sagaspan.ledger.records import CallState
from sagaspan.stores import connect

CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


@pytest.fixture
def index(tmp_path: Path) -> TraceIndex:
    index = TraceIndex(tmp_path / "traces")
    index.sync()
    return index


def shop(store: str) -> Guard:
    guard = Guard(store, budget="5 USD")

    @guard.tool(compensate=lambda result: None, cost="0.5 USD")
    def book(order: str) -> str:
        if order == "bad":
            raise ValueError("the secret of the order")
        return f"booked {order}"

    guard.book = book  # type: ignore[attr-defined]
    return guard


def ask(index: TraceIndex, guard: Guard, sql: str, *, batch: int = 20_000) -> list[tuple[Any, ...]]:
    index.sync_ledger(LedgerMirror(guard._store, batch=batch))
    return index.query(sql).rows


def test_runs_calls_and_audit_are_copied_and_follow(index: TraceIndex, store_url: str) -> None:
    """What is new or has changed is there at the next sync, each record once, however small the batches."""
    with shop(store_url) as guard:
        with guard.run("trip", id="r1", user="42"):
            guard.book("a")  # type: ignore[attr-defined]
            states = ask(index, guard, 'select run_id, state, "user" from ledger.runs', batch=1)
            assert states == [("r1", "running", "42")]
        assert ask(index, guard, "select state, ended is not null from ledger.runs", batch=2) == [("completed", True)]
        calls = "select tool, state, phase, attempts, cost_usd, error_type from ledger.calls order by claim_order"
        assert ask(index, guard, calls) == [("book", "done", "forward", 1, 0.5, None)]
        with pytest.raises(ValueError, match="secret"), guard.run("trip", id="r2"):
            guard.book("b")  # type: ignore[attr-defined]
            guard.book("bad")  # type: ignore[attr-defined]
        assert [row[1] for row in ask(index, guard, calls)] == ["done", "compensated", "failed", "done"]
        events = ask(index, guard, "select seq, event from ledger.audit order by seq")
        assert [seq for seq, _ in events] == list(range(1, len(events) + 1))
        assert ask(index, guard, "select scope, spent, cap from ledger.budgets order by all")[0][0] == "run:r1"


def test_content_is_not_copied_unless_it_is_wanted(
    index: TraceIndex, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arguments, results and error texts only under the opt-in; with it, from the beginning."""
    monkeypatch.delenv(CAPTURE, raising=False)
    with shop(store_url) as guard:
        with pytest.raises(ValueError, match="secret"), guard.run("trip", id="r1", input="canary"):
            guard.book("a")  # type: ignore[attr-defined]
            guard.book("bad")  # type: ignore[attr-defined]
        content = (
            "select count(arguments) + count(result) + count(error) from ledger.calls union all "
            "select count(input) + count(output) + count(error) from ledger.runs union all "
            "select count(detail) from ledger.audit"
        )
        assert ask(index, guard, content) == [(0,), (0,), (0,)]
        monkeypatch.setenv(CAPTURE, "SPAN_ONLY")
        words = "select arguments, result, error from ledger.calls where phase = 'forward' order by all"
        found = ask(index, guard, words)
        assert "booked a" in str(found)
        assert "secret of the order" in str(found)
        monkeypatch.delenv(CAPTURE)
        assert ask(index, guard, content) == [(0,), (0,), (0,)]


def test_what_was_pruned_is_gone(index: TraceIndex, store_url: str) -> None:
    """Forgotten in the ledger, forgotten in its copy; what is left of it stays."""
    with shop(store_url) as guard:
        for run in ("old", "new"):
            with guard.run("trip", id=run):
                guard.book(run)  # type: ignore[attr-defined]
        with guard.run("trip", id="open"):
            guard.book("open")  # type: ignore[attr-defined]
            assert len(ask(index, guard, "select * from ledger.calls")) == 3
            guard.prune(older_than=0.000001, forget_keys=True)
            assert ask(index, guard, "select run_id from ledger.runs") == [("open",)]
            assert ask(index, guard, "select run_id from ledger.calls") == [("open",)]
            states = ask(index, guard, "select to_state from ledger.audit where run_id <> 'open'")
            assert set(states) == {("forgotten",)}


def test_another_ledger_takes_its_place(index: TraceIndex, tmp_path: Path) -> None:
    """Rows of two ledgers are never mixed: of another file, nor of one made anew under the same name."""
    for name in ("a.db", "b.db"):
        with shop(f"sqlite:///{tmp_path / name}") as guard, guard.run("trip", id=name):
            guard.book(name)  # type: ignore[attr-defined]
        assert ask(index, guard, "select run_id from ledger.runs") == [(name,)]
    for path in tmp_path.glob("b.db*"):
        path.unlink()
    with shop(f"sqlite:///{tmp_path}/b.db") as guard:
        for run in ("x", "y"):
            with guard.run("trip", id=run):
                guard.book(run)  # type: ignore[attr-defined]
        assert ask(index, guard, "select run_id from ledger.runs order by 1") == [("x",), ("y",)]


def test_a_call_that_waits_is_seen(index: TraceIndex, store_url: str) -> None:
    """With its request, and who decided it."""
    with Guard(store_url, approver=lambda request: True) as guard:
        act = guard.tool("act", effect="write", approve=True)(lambda amount: amount)
        with guard.run("trip", id="r1"):
            act(amount=3)
        (found,) = ask(index, guard, "select tool, state, decided_by, run_id from ledger.approvals")
        assert found[:2] == ("act", "consumed")
        assert found[2]
        states = ask(index, guard, "select distinct from_state from ledger.audit where call_id is not null")
        assert {state for (state,) in states} <= {None, *CallState}


def test_who_said_no_is_known_however_the_trail_is_cut(index: TraceIndex, store_url: str) -> None:
    """The name is in a row of the audit trail, which may come in a later batch than the request."""
    with Guard(store_url, approver="inbox") as guard:
        act = guard.tool("act", effect="write", approve=True)(lambda amount: amount)
        with contextlib.suppress(ApprovalPending), guard.run("trip", id="r1"):
            act(amount=3)
        (request,) = guard.approvals.list()
        guard.approvals.deny(request.id, by="bob")
        asked = "select state, decided_by, channel from ledger.approvals"
        assert ask(index, guard, asked, batch=1) == [("denied", "bob", "api")]


def test_the_index_knows_no_password_of_the_ledger(index: TraceIndex) -> None:
    """Whoever may read the traces may not therefore write the ledger: its URL is kept without what lets one in."""
    mirror = LedgerMirror(connect("postgresql://agent:hunter2@127.0.0.1:1/ledger"))
    assert "hunter2" not in mirror.name
    assert "127.0.0.1:1/ledger" in mirror.name
