"""The task that a call was claimed in stands in the audit row of its claim, beside what that said before."""

from __future__ import annotations

from typing import Any

import pytest

from sagaspan import Guard
from sagaspan.adapters import task_here
from sagaspan.ledger.answers import MARKS
from sagaspan.ledger.records import AuditRow
from sagaspan.ledger.resolution import PERMITTED, RESENT, not_sent
from sagaspan.ledger.tasks import tasks_of, why_of, with_task
from tests.conftest import Caller


def _row(event: str, detail: str | None, from_state: str | None = None) -> AuditRow:
    return AuditRow(
        at_us=1, namespace="n", run_id="r", call_id="c", event=event, from_state=from_state, to_state="running",
        actor="a", detail=detail,
    )  # fmt: skip


@pytest.mark.parametrize("why", [None, MARKS, RESENT, PERMITTED])
@pytest.mark.parametrize("task", [None, "looks:1", "works:1|looks:2"])
def test_both_are_read_back(why: str | None, task: str | None) -> None:
    """Why a call was claimed is the same whether or not it was in a task, and so is the task."""
    row = _row("claim", with_task(why, task))
    assert (why_of(row), tasks_of([row]).get("c")) == (why, task)


def test_the_last_claim_counts() -> None:
    """One that failed is made again in another task, or in none; who sends what was deferred is no task of it."""
    first, other = _row("claim", with_task(None, "a:1")), _row("claim", with_task(RESENT, "b:2"), "failed")
    assert tasks_of([first, other]) == {"c": "b:2"}
    assert tasks_of([first, _row("claim", None, "failed")]) == {}
    scheduled = _row("schedule", with_task(None, "a:1"))
    assert tasks_of([scheduled, _row("claim", None, "scheduled")]) == {"c": "a:1"}


def test_a_missing_mark_proves_as_much_in_a_task() -> None:
    """What the claim says of the tool's second mark is read beside the task."""
    assert not_sent([_row("claim", with_task(MARKS, "a:1"))])
    assert not not_sent([_row("claim", with_task(None, "a:1"))])


def test_only_a_call_that_is_counted_says_its_task(guard: Guard, caller: Caller) -> None:
    """One with a key of its own is found by that; outside a framework there is no task."""

    @caller.tool(guard, effect="write", repeat="new")
    def plain() -> None:
        pass

    @caller.tool(guard, key="'k'")
    def keyed() -> None:
        pass

    async def job() -> None:
        async with caller.run(guard, id="a"):
            await caller.call(plain)
            token = task_here.set(lambda: "looks:1")
            await caller.call(plain)
            await caller.call(keyed)
            task_here.reset(token)

    caller.play(job)
    rows: Any = [row for row in guard._store.audit_of("default", "a") if row.event == "claim"]
    assert [row.detail for row in rows] == [None, "in the task looks:1", None]
