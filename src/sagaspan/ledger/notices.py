"""What somebody is told of: made from the rows of the audit trail, which are written with what they say.

So the audit trail is the outbox: no event is without its row, whichever process wrote it. A notice names things and
says what to type; it holds no arguments, results or error texts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from sagaspan._commands import command
from sagaspan.ledger.records import ApprovalState, AuditRow, CallRecord, CallState, RunState, moment
from sagaspan.ledger.store import Store
from sagaspan.ledger.tool_names import ToolNames

SOFT_LIMIT: Final = "soft_limit"
"""The event of the row that says that a budget has passed one."""

_FAILED: Final = (RunState.FAILED, RunState.COMPENSATED, RunState.PARTIALLY_COMPENSATED)
_DOUBTFUL: Final = (CallState.UNKNOWN, CallState.NEEDS_HUMAN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One event: its ``kind``, what it is ``about`` for people, and its ``data``."""

    kind: str
    about: str
    data: dict[str, Any]

    def payload(self, at_us: int) -> str:
        """The body that is sent."""
        return json.dumps({"type": self.kind, "timestamp": moment(at_us).isoformat(), "data": self.data})


def notice_of(store: Store, row: AuditRow) -> Notice | None:
    """What ``row`` tells somebody, if it is still of interest."""
    if row.event == SOFT_LIMIT:
        data = json.loads(row.detail or "{}")
        return Notice(kind="budget.soft_limit", about=str(data.get("scope")), data=data)
    if row.approval_id is not None:
        return _waiting(store, row, row.approval_id)
    if row.call_id is not None:
        return _of_call(store, row, row.call_id)
    return _of_run(store, row) if row.to_state in _FAILED and row.from_state != row.to_state else None


def _of_run(store: Store, row: AuditRow) -> Notice | None:
    run = store.get_run(row.namespace, row.run_id)
    if run is None:
        return None
    data = {"namespace": row.namespace, "run": run.id, "name": run.name, "state": row.to_state, "reason": run.reason,
            "next": str(command("show", run.id))}  # fmt: skip
    return Notice(kind="run.failed", about=f"run {run.id}", data=data)


def _of_call(store: Store, row: AuditRow, call_id: str) -> Notice | None:
    call = store.get_call(call_id)
    if call is None:
        return None
    if row.to_state == CallState.COMPENSATION_FAILED:
        return Notice(kind="compensation.failed", about=f"call {call.id}", data=_call_data(store, call, row))
    # Nobody has to act on what declares no write; and in doubt it was told of already, before it needed somebody.
    told = row.to_state in _DOUBTFUL and row.from_state not in _DOUBTFUL and call.declared_write
    return Notice(kind="call.unknown", about=f"call {call.id}", data=_call_data(store, call, row)) if told else None


def _call_data(store: Store, call: CallRecord, row: AuditRow) -> dict[str, Any]:
    return {"namespace": row.namespace, "run": row.run_id, "call": call.id, "tool": call.tool,
            "title": _title(store, row.namespace, call.tool), "state": row.to_state,
            "next": str(command("show", call.id))}  # fmt: skip


def _title(store: Store, namespace: str, tool: str) -> str:
    return ToolNames(store, namespace).titles.get(tool, tool)


def _waiting(store: Store, row: AuditRow, approval_id: str) -> Notice | None:
    request = store.approval(approval_id)
    if request is None or request.state is not ApprovalState.PENDING or row.to_state != ApprovalState.PENDING:
        return None  # somebody has decided it already
    data = {"namespace": row.namespace, "run": row.run_id, "request": request.id, "tool": request.tool,
            "title": _title(store, row.namespace, request.tool),
            "digest": request.digest, "expires": moment(request.expires_us).isoformat(),
            "next": str(command("approvals show", request.id))}  # fmt: skip
    return Notice(kind="approval.waiting", about=f"approval {request.id}", data=data)
