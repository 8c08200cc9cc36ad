"""The records that the tests of stores begin with, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from sagaspan.exceptions import StoreError
from sagaspan.ledger.records import (
    ApprovalRecord,
    ApprovalState,
    AuditRow,
    BudgetRecord,
    CallRecord,
    CallState,
    LimitRecord,
    RunRecord,
    RunState,
)
from sagaspan.ledger.store import ApprovalChange, CallChange, Change, RunChange, Store
from sagaspan.ledger.transitions import CallEvent, RunEvent, move_call, move_run, open_call, open_run

MakeStore = Callable[[], Store]

CALL: Final = CallRecord(
    id="c", namespace="n", scope="s", tool="t", key="k", key_source="content", idempotency_key="i", fingerprint="f",
    run_id="r", state=CallState.RUNNING, arguments="{}", empty_safe=True, owner="o", attempts=1, created_us=1,
    started_us=1,
)  # fmt: skip
RUN: Final = RunRecord(
    namespace="n", id="r", name="r", input_fingerprint="f", state=RunState.RUNNING, owner="o", created_us=1,
    started_us=1,
)  # fmt: skip
REQUEST: Final = ApprovalRecord(
    id="a", namespace="n", run_id="r", scope="s", tool="t", key="k", call_id="c", subject="{}", digest="d", policy="p",
    facts="{}", requested_by="{}", created_us=1, expires_us=100,
)  # fmt: skip
BUDGET: Final = BudgetRecord(namespace="n", scope="user:ada", unit="usd", cap=10)
LIMIT: Final = LimitRecord(namespace="n", pattern="user:*", unit="usd", amount=5, actor="ada", at_us=1)


def opening(**changes: Any) -> RunChange:
    """A run that begins."""
    record, audit = open_run(replace(RUN, **changes))
    return RunChange(record, audit)


def claiming(epoch: int = 1, controls: int = 0, **changes: Any) -> CallChange:
    """A call that is claimed for the first time, by a run that is thought to be at ``epoch``."""
    record, audit = open_call(replace(CALL, **changes))
    return CallChange(record, audit, claims=True, run_epoch=epoch, controls=controls)


def moving(record: CallRecord, event: CallEvent, at_us: int = 2, version: int | None = None) -> CallChange:
    """A call that goes on from ``record``."""
    moved, audit = move_call(record, event, at_us)
    return CallChange(moved, audit, record.version if version is None else version)


def running(record: RunRecord, event: RunEvent, at_us: int = 2, version: int | None = None) -> RunChange:
    """A run that goes on from ``record``."""
    moved, audit = move_run(record, event, at_us)
    return RunChange(moved, audit, record.version if version is None else version)


def asking(**changes: Any) -> ApprovalChange:
    """A request that is made."""
    record = replace(REQUEST, **changes)
    return ApprovalChange(record, told_of(record, "approval.ask", None, ApprovalState.PENDING))


def told_of(record: ApprovalRecord, event: str, before: ApprovalState | None, after: ApprovalState) -> AuditRow:
    """The audit row of a request."""
    return AuditRow(
        at_us=2, namespace=record.namespace, run_id=record.run_id, call_id=None, approval_id=record.id, event=event,
        from_state=before, to_state=after, actor="o",
    )  # fmt: skip


def said(event: str = "said", **changes: Any) -> AuditRow:
    """A row of the audit trail that is of no record."""
    row = AuditRow(at_us=2, namespace="n", run_id="r", call_id=None, event=event, from_state=None, to_state="there",
                   actor="o")  # fmt: skip
    return replace(row, **changes)


def saved(store: Store, *changes: Change) -> None:
    """Commit what must be possible."""
    assert store.commit(changes, synced=False), "the store refused what it must save"


def refused(store: Store, *changes: Change) -> Change:
    """Commit what must not be possible; the change that refused it."""
    commit = store.commit(changes, synced=True)
    assert not commit, "the store saved what it must refuse"
    assert commit.refused is not None
    return commit.refused


def unfit(store: Store, *changes: Change) -> None:
    """Commit what no ledger can hold: it is a ``StoreError``."""
    try:
        store.commit(changes, synced=True)
    except StoreError:
        return
    raise AssertionError("the store saved what it cannot hold")


LIMIT_SET: Final = said("limit.set", run_id="")
