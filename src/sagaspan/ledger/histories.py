"""Whether what the ledger says of runs, calls and requests is what their history in the audit trail leads to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

from sagaspan.ledger import chain
from sagaspan.ledger.chain import Record
from sagaspan.ledger.records import NO_RUN, ApprovalRecord, CallRecord, ChainedRow, RunRecord
from sagaspan.ledger.transitions import CallEvent
from sagaspan.ledger.verifying import AuditFinding, Problem

_AT_FIRST: Final[dict[type[Record], dict[str, Any]]] = {
    CallRecord: {"result": None, "result_lost": None, "error_type": None, "error_message": None},
    RunRecord: {"output": None, "error": None},
    ApprovalRecord: {"votes": "[]", "reason": None},
}


class _Told:
    """What the rows of one record say of it."""

    __slots__ = ("count", "event", "first", "is_whole", "last", "state")

    def __init__(self, row: ChainedRow) -> None:
        self.count = 0
        self.event = row.row.event
        self.first = row.content
        self.is_whole = row.row.from_state is None and row.hash is not None

    def add(self, row: ChainedRow) -> None:
        self.count += 1
        self.state = row.row.to_state
        self.last = row.content


class Histories:
    """What the rows of one run say of it, its calls and its requests: ``take`` them, then ``check`` each record."""

    def __init__(self, namespace: str, run_id: str) -> None:
        self._finding = partial(AuditFinding, namespace=namespace, run=run_id, number=None, problem=Problem.RECORD)
        self._told: dict[tuple[type[Record], str], _Told] = {}
        self._since_us: int | None = None

    def take(self, row: ChainedRow) -> None:
        """The next row of the run."""
        if row.hash is not None and self._since_us is None:
            self._since_us = row.row.at_us
        about = self._about(row)
        if about is not None:
            told = self._told.get(about)
            if told is None:
                told = self._told[about] = _Told(row)
            told.add(row)

    def check(self, record: Record) -> Iterator[AuditFinding]:
        """What is wrong with one record of the run."""
        told = self._told.pop((type(record), record.id), None)
        if told is None:
            if not isinstance(record, ApprovalRecord) or self._is_covered(record):
                yield self._find(record, "it has no history")
            return
        if told.count != record.version and (told.is_whole or not isinstance(record, ApprovalRecord)):
            yield self._find(record, f"it was changed {record.version} times, and its history has {told.count} rows")
        if told.state != record.state:
            yield self._find(record, f"it is {record.state}, and its history ends with {told.state}")
        if told.is_whole and not _is_as_written(record, told):
            yield self._find(record, f"{_columns(record)} are not what was recorded")

    def left(self, kinds: tuple[type[Record], ...]) -> Iterator[AuditFinding]:
        """Records that have a history and are not there."""
        for (kind, id_), told in self._told.items():
            if kind in kinds and told.is_whole:
                what = f"{_NAMES[kind]} {id_} is in the history ({told.state}) and not in the ledger"
                yield self._finding(what=what)

    def _about(self, row: ChainedRow) -> tuple[type[Record], str] | None:
        if row.row.call_id is not None:
            return CallRecord, row.row.call_id
        if row.row.approval_id is not None:
            return ApprovalRecord, row.row.approval_id
        if row.row.run_id == NO_RUN or not row.row.event.startswith("run."):
            return None
        return RunRecord, row.row.run_id

    def _is_covered(self, record: ApprovalRecord) -> bool:
        """Rows of requests had no id of theirs before there were chains."""
        return self._since_us is not None and record.created_us >= self._since_us

    def _find(self, record: Record, what: str) -> AuditFinding:
        about = f"{_NAMES[type(record)]} {record.id}: {what}"
        return self._finding(what=about)


_NAMES: Final[dict[type[Record], str]] = {CallRecord: "call", RunRecord: "run", ApprovalRecord: "request"}


def _is_as_written(record: Record, told: _Told) -> bool:
    if told.count == 1:
        return told.first == chain.content_of(record, is_new=True)
    if told.last != chain.content_of(record, is_new=False):
        return False
    at_first: Any = replace(record, **_AT_FIRST[type(record)])
    as_now = told.first == chain.content_of(record, is_new=True)
    return as_now or told.first == chain.content_of(at_first, is_new=True) or told.event == CallEvent.DUPLICATE_EFFECT


def _columns(record: Record) -> str:
    return ", ".join(chain.written(type(record), is_new=True))
