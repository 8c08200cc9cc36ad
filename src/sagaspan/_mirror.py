"""The ledger as rows for the index of the traces: who did what, in which state, at what cost.

Arguments, results and words of people and errors only under OpenTelemetry's content opt-in, as on spans.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sagaspan import _spans as spans
from sagaspan import codecs
from sagaspan._checks import masked
from sagaspan.amounts import Unit, in_units
from sagaspan.index.ledger import LedgerBatch, Rows
from sagaspan.ledger.records import (
    ApprovalRecord,
    AuditRow,
    BudgetRecord,
    CallRecord,
    RunRecord,
    UsageRecord,
)
from sagaspan.ledger.requests import decisions_of, denials_of
from sagaspan.ledger.store import Store

BATCH: Final = 20_000
"""Audit rows of one transaction."""

_FORGOTTEN: Final = "forgotten"
_ALL: Final = 1_000_000


class LedgerMirror:
    """``sagaspan.index.ledger.LedgerSource`` of a store."""

    def __init__(self, store: Store, *, batch: int = BATCH) -> None:
        self._store = store
        self._batch = batch
        self._content = spans.captures_content()

    @property
    def name(self) -> str:
        """Its URL without passwords, for many may read the index; and whether content is among the rows."""
        return f"{masked(self._store.url)}{' with content' if self._content else ''}"

    def mark(self, upto: int) -> str | None:
        """Time and run of an audit row."""
        rows = self._store.touched(upto - 1, limit=1).rows
        return f"{rows[0][1].at_us} {rows[0][1].run_id}" if rows and rows[0][0] == upto else None

    def batch(self, after: int) -> LedgerBatch | None:
        """See ``LedgerSource``."""
        found = self._store.touched(after, limit=self._batch)
        if not found.rows:
            return None
        anew = sorted({(row.namespace, row.run_id) for _, row in found.rows if row.to_state == _FORGOTTEN})
        runs = {(run.namespace, run.id): run for run in found.runs}
        calls = {call.id: call for call in found.calls}
        requests = {request.id: request for request in found.approvals}
        audit = dict(found.rows)
        for namespace, run_id in anew:
            calls |= {call.id: call for call in self._store.calls_of(namespace, run_id)}
            left = self._store.list_approvals(namespace=namespace, run_id=run_id, limit=_ALL)
            requests |= {request.id: request for request in left}
            audit |= {row.seq: row.row for row in self._store.chained(namespace, run_id, 0, limit=_ALL)}
        denials = denials_of(audit.values())  # that row of a denied request is its last
        usage = {one.call_id: one for one in found.usage}
        tables = {
            "runs": [self._run(run) for run in runs.values()],
            "calls": [self._call(call, usage.get(call.id)) for call in calls.values()],
            "approvals": [self._request(request, denials) for request in requests.values()],
            "audit": [self._row(seq, row) for seq, row in sorted(audit.items())],
        }
        return LedgerBatch(upto=found.rows[-1][0], tables=tables, anew=anew)

    def budgets(self) -> Rows:
        """See ``LedgerSource``."""
        return [_budget(record) for record in self._store.budgets()]

    def _run(self, run: RunRecord) -> tuple[Any, ...]:
        return (
            run.namespace, run.id, run.name, str(run.state), run.reason, run.parent_id, run.conversation, run.user,
            run.tenant, run.agent, run.generation, run.started_us, run.ended_us, _ids(run.traceparent)[0],
            self._only(run.input), self._only(run.output), self._only(run.error),
        )  # fmt: skip

    def _call(self, call: CallRecord, used: UsageRecord | None) -> tuple[Any, ...]:
        model, provider, agent, cost, read, wrote = (
            (used.model, used.provider, used.agent, used.cost, used.input_tokens, used.output_tokens)
            if used is not None
            else (None, None, None, None, None, None)
        )
        return (
            call.namespace, call.run_id, call.id, call.claim_seq, call.tool, str(call.phase), str(call.state),
            call.effect, call.attempts, call.compensates, call.compensate, call.error_type, call.policy,
            call.observed, call.tool_call_id, call.started_us, call.ended_us, model, provider, agent,
            None if cost is None else cost / 1e9, read, wrote, *_ids(call.traceparent),
            self._only(call.arguments), self._only(call.result), self._only(call.error_message),
        )  # fmt: skip

    def _request(self, one: ApprovalRecord, denials: Mapping[str | None, AuditRow]) -> tuple[Any, ...]:
        decisions = decisions_of(one, denials)
        people, channels = (", ".join(decision[at] for decision in decisions) or None for at in (0, 1))
        return (
            one.namespace, one.run_id, one.id, one.call_id, one.tool, str(one.state), people, channels, one.digest,
            one.created_us, one.expires_us, one.ended_us, self._only(one.reason),
        )  # fmt: skip

    def _row(self, seq: int, row: AuditRow) -> tuple[Any, ...]:
        return (
            seq, row.at_us, row.namespace, row.run_id, row.call_id, row.approval_id, row.event, row.from_state,
            row.to_state, row.actor, row.digest, self._only(row.detail),
        )  # fmt: skip

    def _only(self, content: str | None) -> str | None:
        """Content, if it is wanted; as far as it can be read here."""
        if content is None or not self._content:
            return None
        return spans.content(_text(codecs.legible(content)))


def _text(legible: Any) -> str:
    return legible if isinstance(legible, str) else json.dumps(legible, ensure_ascii=False, default=str)


def _ids(traceparent: str | None) -> Sequence[str | None]:
    """Trace and span of a ``traceparent``."""
    parts = (traceparent or "").split("-")
    return parts[1:3] if len(parts) == 4 else (None, None)


def _budget(record: BudgetRecord) -> tuple[Any, ...]:
    unit = Unit(record.unit)

    def shown(amount: int | None) -> float | None:
        return None if amount is None else float(in_units(amount, unit))

    return (
        record.namespace, record.scope, record.unit, record.window or None, record.start_us or None,
        shown(record.cap), shown(record.spent), shown(record.reserved), shown(record.overdraft),
    )  # fmt: skip
