"""Who approved what: the requests of a run or a call, as they are shown beside it, and what comes of a decision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sagaspan import codecs
from sagaspan._characters import word
from sagaspan.approvers import ApprovalRequest
from sagaspan.cli._render import emit_table, lately
from sagaspan.ledger.records import ApprovalRecord, ApprovalState, RunState, moment
from sagaspan.ledger.requests import decided_by, denials_of, said_by

_MOST: Final = 1000
_OVER: Final = (RunState.COMPLETED, RunState.COMPENSATED, RunState.PARTIALLY_COMPENSATED)


def requests_of(store: Any, namespace: str, run_id: str, call_id: str | None = None) -> list[ApprovalRecord]:
    """The requests of a run, or of one call of it, in the order in which they were made."""
    found: list[ApprovalRecord] = store.list_approvals(namespace=namespace, run_id=run_id, limit=_MOST)
    return [request for request in reversed(found) if call_id in (None, request.call_id)]


def what_follows(store: Any, request: ApprovalRequest) -> str | None:
    """What has to happen after a decision for the call to run, as the ledger has its run now."""
    if request.state is ApprovalState.PENDING:
        return f"{request.approvers - len(request.approved_by)} more must agree."
    if request.state is not ApprovalState.APPROVED:
        return None
    run = store.get_run(request.namespace, request.run_id)
    if run is None or run.is_session:
        return "A call that waits for it goes on now; else it runs when it is made again with the same arguments."
    name = f"Its run {word(run.id)}"
    if run.state in _OVER:
        return f"{name} has ended ({run.state}), so nothing will use it."
    if run.state is RunState.RUNNING:
        return f"{name} goes on now if its call waits, else when it is entered again with the same id."
    return f"{name} goes on when it is entered again with the same id."


def deciders_of(store: Any, requests: Sequence[ApprovalRecord]) -> dict[str, str]:
    """Who agreed to each of these requests of one run, or said no."""
    # Of a run of a million calls the trail is long: it is read where somebody said no, which it alone has.
    audit = next(
        (store.audit_of(one.namespace, one.run_id) for one in requests if one.state is ApprovalState.DENIED), ()
    )
    denials = denials_of(audit)
    return {one.id: decided_by(one, denials) for one in requests}


def denied_by(store: Any, request: ApprovalRequest) -> str:
    """Who said no to a request that is denied, and by which channel."""
    no = denials_of(store.audit_of(request.namespace, request.run_id)).get(request.id)
    return "" if no is None else said_by(no)


def as_data(store: Any, requests: Sequence[ApprovalRecord]) -> list[dict[str, Any]]:
    """For machines: who decided what, when, by which channel, for which digest."""
    deciders = deciders_of(store, requests)
    return [
        {
            "id": one.id, "tool": one.tool, "call": one.call_id, "state": one.state, "digest": one.digest,
            "by": deciders[one.id] or None, "reason": codecs.legible(one.reason),
            "ended": None if one.ended_us is None else moment(one.ended_us),
        }
        for one in requests
    ]  # fmt: skip


def emit_requests(store: Any, requests: Sequence[ApprovalRecord]) -> None:
    """A table of them, if there are any."""
    if requests:
        deciders = deciders_of(store, requests)
        rows = [
            (one.id, one.tool, one.state,
             ": ".join(str(part) for part in (deciders[one.id], codecs.legible(one.reason)) if part),
             one.digest[:16], lately(None if one.ended_us is None else moment(one.ended_us)))
            for one in requests
        ]  # fmt: skip
        emit_table(("id", "tool", "state", "by", "digest", "ended"), rows, title="approvals", spare=("ended", "digest"))
