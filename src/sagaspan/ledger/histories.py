"""Whether what the ledger says of runs, calls and requests is what their history in the audit trail leads to."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from sagaspan.ledger.chain import FORGET_RECORDS, records_in
from sagaspan.ledger.contents import COLUMNS, COLUMNS_0, FORMAT, Content, Record, fits_format_0
from sagaspan.ledger.records import NO_RUN, ApprovalRecord, CallRecord, ChainedRow, RunRecord
from sagaspan.ledger.transitions import CallEvent, takes_place
from sagaspan.ledger.verifying import AuditFinding, Problem

_NOTHING: Final = 32
"""In format 0 a row that wrote none of its columns has no content: as many zero bytes."""


class _Told:
    """What the rows of one record say of it."""

    __slots__ = ("contents", "count", "event", "first", "is_whole", "last", "place", "state")

    def __init__(self, row: ChainedRow) -> None:
        self.count = 0
        self.event = row.row.event
        self.first = row.content
        self.is_whole = row.row.from_state is None and row.hash is not None
        self.contents: set[bytes] = set()
        self.place: int | None = None

    def add(self, row: ChainedRow) -> None:
        self.count += 1
        self.state = row.row.to_state
        self.last = row.content
        if takes_place(row.row):
            self.place = row.seq
        if row.row.approval_id is not None and row.content is not None:
            self.contents.add(row.content)


class Histories:
    """What the rows of one run say of it, its calls and its requests: ``take`` them, then ``check`` each record.

    ``is_whole``: the ledger has had chains from its first row on.
    """

    def __init__(self, namespace: str, run_id: str, *, is_whole: bool = False) -> None:
        self._is_whole = is_whole
        self._finding = partial(AuditFinding, namespace=namespace, run=run_id, number=None, problem=Problem.RECORD)
        self._told: dict[tuple[type[Record], str], _Told] = {}
        self._since_us: int | None = None
        self._pruned: set[str] = set()

    def take(self, row: ChainedRow) -> None:
        """The next row of the run."""
        if row.hash is not None and self._since_us is None:
            self._since_us = row.row.at_us
        if row.row.event == FORGET_RECORDS:
            self._pruned |= records_in(row.row.detail)
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
        if record.id in self._pruned:
            yield self._find(record, "its history says that it was pruned")
        if told.count != record.version and (told.is_whole or not isinstance(record, ApprovalRecord)):
            yield self._find(record, f"it was changed {record.version} times, and its history has {told.count} rows")
        if told.state != record.state:
            yield self._find(record, f"it is {record.state}, and its history ends with {told.state}")
        if told.is_whole:
            columns = _not_as_written(record, told)
            if columns:
                yield self._find(record, f"{', '.join(columns)} are not what was recorded")
        if told.is_whole and isinstance(record, CallRecord) and record.claim_seq != told.place:
            yield self._find(record, "its place in the order of claims is not that of its last claim")

    def left(self) -> Iterator[AuditFinding]:
        """Yield what is wrong with records that have a history and are not there, and that were not pruned."""
        for (kind, id_), told in self._told.items():
            if told.is_whole and id_ not in self._pruned:
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
        return self._is_whole or (self._since_us is not None and record.created_us >= self._since_us)

    def _find(self, record: Record, what: str) -> AuditFinding:
        about = f"{_NAMES[type(record)]} {record.id}: {what}"
        return self._finding(what=about)


_NAMES: Final[dict[type[Record], str]] = {CallRecord: "call", RunRecord: "run", ApprovalRecord: "request"}


def _not_as_written(record: Record, told: _Told) -> tuple[str, ...]:
    """The columns of which some are not what the rows of the record say."""
    kind = type(record)
    try:
        first, last = Content.read(kind, told.first or b""), Content.read(kind, told.last or bytes(_NOTHING))
        every = [Content.read(kind, content) for content in told.contents]
    except ValueError:
        return sum(COLUMNS[FORMAT][kind], ())
    if first.format == last.format == 0:
        fits = fits_format_0(record, first.changes, told.last, is_only=told.count == 1)
        return () if fits or told.event == CallEvent.DUPLICATE_EFFECT else sum(COLUMNS_0[kind], ())
    if last.format == 0:  # the row lost what it said
        return sum(COLUMNS[FORMAT][kind], ())
    # Of a record that was begun in format 0 and went on in another only the last row can be compared.
    begun = () if first.format == 0 else first.unlike(record)
    between = {column: None for content in every if content.format for column in content.unlike(record)}
    return tuple(dict.fromkeys((*begun, *between, *last.unlike_now(record))))
