"""In which task of its framework a call was claimed: its audit row says so, for whoever goes on after that task.

A framework that pauses goes on without its tasks that have ended; what they had called is not asked for again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sagaspan.ledger.records import AuditRow, CallState
from sagaspan.ledger.transitions import CallEvent

_TASK: Final = "in the task "
_BESIDE: Final = f"; {_TASK}"


def with_task(why: str | None, task: str | None) -> str | None:
    """What the row of a claim says: ``why`` it may be one, if that is not plain, and the ``task``, if it is in one."""
    if task is None:
        return why
    return f"{_TASK}{task}" if why is None else f"{why}{_BESIDE}{task}"


def why_of(row: AuditRow) -> str | None:
    """What the row of a claim says beside the task."""
    if row.detail is None or row.detail.startswith(_TASK):
        return None
    return row.detail.partition(_BESIDE)[0]


def tasks_of(rows: Iterable[AuditRow]) -> dict[str, str]:
    """The task that each call was claimed in last, by the id of the call; the sending of a deferred one is in none."""
    tasks: dict[str, str] = {}
    for row in rows:
        if row.call_id is None or row.event not in (CallEvent.CLAIM, CallEvent.SCHEDULE):
            continue
        detail = row.detail or ""
        _, said, task = detail.partition(_TASK) if detail.startswith(_TASK) else detail.partition(_BESIDE)
        if said:
            tasks[row.call_id] = task
        elif row.from_state != CallState.SCHEDULED:
            tasks.pop(row.call_id, None)
    return tasks
