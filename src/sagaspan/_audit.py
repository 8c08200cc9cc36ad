"""``guard.audit``: whether the audit trail is as it was written, and a copy of it for others.

``sagaspan audit`` is made of it. It reads through a connection of its own, one moment a chain: agents go on meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from sagaspan._anchors import Anchor, AnchorWriter, Name, read_anchor, writing_anchor
from sagaspan._backends import ASYNCIO
from sagaspan._checks import check_choice
from sagaspan.exceptions import ConfigurationError
from sagaspan.ledger.chain import CHAINED_FROM, Link
from sagaspan.ledger.histories import Histories
from sagaspan.ledger.records import NO_RUN, CallRecord, ChainedRow, moment
from sagaspan.ledger.standing import Standing
from sagaspan.ledger.store import Store
from sagaspan.ledger.verifying import AuditFinding, Problem, Walk

_PAGE: Final = 1000
_ALWAYS: Final = 2**62
_LAST_RUN: Final = "\U0010ffff"
_DECIDED: Final = re.compile(r"by (\S+)")

Progress = Callable[[int], None]
"""Told how many rows were looked at so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """What a verification found; ``ok`` if that was nothing.

    ``rows`` were verified, in ``chains``; ``forgotten`` were pruned, and rows say so. ``outside`` are rows from before
    there were chains, of which nobody can tell anything. ``anchored`` chains were compared with an anchor.
    """

    rows: int
    chains: int
    forgotten: int
    outside: int
    anchored: int
    findings: tuple[AuditFinding, ...]

    @property
    def ok(self) -> bool:
        """Whether everything is as it was written."""
        return not self.findings


class Audit:
    """The audit trail of one namespace of a store (None: of all), read through what ``open_store`` opens."""

    def __init__(self, open_store: Callable[[], Store], namespace: str | None = None) -> None:
        self._open = open_store
        self._namespace = namespace

    def verify(
        self,
        run: str | None = None,
        *,
        anchor: str | Path | None = None,
        write_anchor: str | Path | None = None,
        progress: Progress = lambda _: None,
    ) -> AuditReport:
        """Verify every chain, and that runs, calls and requests are what their history says.

        Args:
            run: only this one.
            anchor: also compare with what was written to this file before.
            write_anchor: write where all chains are now to this file, if nothing was found.
            progress: told how many rows were looked at so far.

        Raises ``ConfigurationError`` for a file that is no anchor, or ``StoreError``.
        """
        if write_anchor is not None and run is not None:
            raise ConfigurationError("an anchor is of all chains; leave the run out")
        known = None if anchor is None else read_anchor(Path(anchor))
        with contextlib.closing(self._open()) as store:
            if write_anchor is None:
                return _Verifying(store, self._namespace, run, known, progress)()
            verifying = _Verifying(store, self._namespace, None, known, progress)
            with contextlib.suppress(_Found), writing_anchor(
                Path(write_anchor), chained_from=verifying.chained_from, namespace=self._namespace
            ) as writer:  # fmt: skip
                verifying(writer)
                if verifying.findings:
                    raise _Found
            return verifying.report()

    async def averify(self, run: str | None = None, **how: Any) -> AuditReport:
        """As ``verify``, for asynchronous callers."""
        return await ASYNCIO.io(self.verify, run, **how)

    def rows(self, run: str | None = None) -> Iterator[dict[str, Any]]:
        """Every row as plain data, chain by chain: as it is stored, with the tool and, of a decision, its channel."""
        with contextlib.closing(self._open()) as store:
            for name in _chains(store, self._namespace, run):
                tools = _tools(store, name)
                for row in _rows_of(store, name):
                    yield _exported(row, tools)

    def export(
        self,
        path: str | Path,
        *,
        run: str | None = None,
        format: Literal["jsonl", "json"] = "jsonl",  # noqa: A002 - the command line's word
        progress: Progress = lambda _: None,
    ) -> int:
        """Write every row (``rows``) to a file, one JSON document a line or one array; how many they were.

        Raises ``ConfigurationError`` if it cannot be written, or ``StoreError``.
        """
        count = 0
        try:
            with Path(path).open("w", encoding="utf-8") as file:
                for count, text in enumerate(lines_of(self.rows(run), format)):
                    file.write(text)
                    progress(count)
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be written ({error.strerror})") from error
        return count

    async def aexport(self, path: str | Path, **how: Any) -> int:
        """As ``export``, for asynchronous callers."""
        return await ASYNCIO.io(self.export, path, **how)


def lines_of(rows: Iterator[dict[str, Any]], format: str) -> Iterator[str]:  # noqa: A002 - the command line's word
    """A text a row, and one at the end, that make up a document of this format."""
    check_choice("format", format, ["jsonl", "json"])
    is_array, first = format == "json", True
    for row in rows:
        text = json.dumps(row).replace("\x7f", "\\u007f")  # nothing in it is obeyed by a terminal
        yield f"{'[' if first else ','}\n{text}" if is_array else f"{text}\n"
        first = False
    yield ("[]\n" if first else "\n]\n") if is_array else ""


class _Found(Exception):
    """No anchor is written of what is not as it was."""


class _Verifying:
    """One verification."""

    def __init__(
        self, store: Store, namespace: str | None, run: str | None, anchor: Anchor | None, progress: Progress
    ) -> None:
        self._store = store
        self._namespace = namespace
        self._run = run
        self._anchor = anchor
        self._heads = (
            {} if anchor is None else {name: head for name, head in anchor.heads.items() if self._is_mine(name)}
        )
        self._progress = progress
        self.chained_from = int(store.facts("").get(CHAINED_FROM, "1"))
        self.findings: list[AuditFinding] = []
        self._operated: set[str] = set()
        self._rows = self._chains = self._forgotten = self._outside = self._anchored = 0

    def __call__(self, writer: AnchorWriter | None = None) -> AuditReport:
        """Verify all of it."""
        self._check_beginning()
        for name in _chains(self._store, self._namespace, self._run):
            head = self._verify(name)
            if writer is not None and head[0]:
                writer.add(name, head)
        self._find_records_without_history()
        self._find_what_nobody_set()
        for name, (number, _) in self._heads.items():
            self._find(name, Problem.TRUNCATED, f"the anchor has {number} rows of it, and nothing of it is there")
        return self.report()

    def report(self) -> AuditReport:
        """What was found."""
        return AuditReport(
            rows=self._rows, chains=self._chains, forgotten=self._forgotten, outside=self._outside,
            anchored=self._anchored, findings=tuple(self.findings),
        )  # fmt: skip

    def _verify(self, name: Name) -> Link:
        anchored = self._heads.pop(name, None)
        walk = Walk(*name, chained_from=self.chained_from, anchor=anchored)
        histories, standing = Histories(*name, is_whole=self.chained_from == 1), self._standing(name[0])
        is_of_no_run = name[1] == NO_RUN
        with self._store.snapshot():
            for row in _rows_of(self._store, name):
                walk.take(row)
                histories.take(row)
                if is_of_no_run:
                    standing.take(row)
                if (walk.rows + walk.outside) % _PAGE == 0:
                    self._progress(self._rows + walk.rows + walk.outside)
            self.findings += walk.end()
            self._check_records(name, histories)
            if is_of_no_run:
                self._check_standing(name[0], standing)
        self._rows += walk.rows
        self._chains += 1
        self._forgotten += walk.forgotten
        self._outside += walk.outside
        self._anchored += anchored is not None
        return walk.head

    def _check_records(self, name: Name, histories: Histories) -> None:
        run = self._store.get_run(*name)
        if run is not None:
            self.findings += histories.check(run)
        for call in _calls_of(self._store, name):
            self.findings += histories.check(call)
        for request in self._store.list_approvals(namespace=name[0], run_id=name[1], limit=_ALWAYS):
            self.findings += histories.check(request)
        self.findings += histories.left()

    def _standing(self, namespace: str) -> Standing:
        return Standing(namespace, is_whole=self.chained_from == 1)

    def _check_standing(self, namespace: str, standing: Standing) -> None:
        self._operated.add(namespace)
        _, limits = self._store.controls_of(namespace)
        self.findings += standing.check(self._store.freezes_of(namespace), limits)

    def _find_what_nobody_set(self) -> None:
        """Freezes and limits in namespaces whose chain of no run is not there at all."""
        if self._run not in (None, NO_RUN):
            return
        known = {*self._store.namespaces(), *(one.namespace for one in self._store.freezes_of(None))}
        for namespace in sorted(known - self._operated):
            if self._is_mine((namespace, NO_RUN)):
                with self._store.snapshot():
                    self._check_standing(namespace, self._standing(namespace))

    def _find_records_without_history(self) -> None:
        spaces = _namespaces(self._store, self._namespace) if self._run is not None else [self._namespace]
        for space in spaces:
            for kind, namespace, run, id_ in self._store.without_history(space, self._run, limit=_PAGE):
                self._find((namespace, run), Problem.RECORD, f"{kind} {id_}: it has no history")

    def _check_beginning(self) -> None:
        if self._anchor is not None and self._anchor.chained_from != self.chained_from:
            self._find(("", ""), Problem.REPLACED,
                       f"chains begin with row {self.chained_from} of the ledger, and in the anchor with "
                       f"{self._anchor.chained_from}")  # fmt: skip

    def _is_mine(self, name: Name) -> bool:
        return self._namespace in (None, name[0]) and self._run in (None, name[1])

    def _find(self, name: Name, problem: Problem, what: str) -> None:
        self.findings.append(AuditFinding(namespace=name[0], run=name[1], number=None, problem=problem, what=what))


def _chains(store: Store, namespace: str | None, run: str | None) -> Iterator[Name]:
    if run is not None:
        names = [(space, run) for space in _namespaces(store, namespace)]
        yield from (name for name in names if store.chained(*name, -_ALWAYS, limit=1))
        return
    after: Name | None = None
    while page := store.chains(after, limit=_PAGE):
        after = page[-1]
        yield from (name for name in page if namespace in (None, name[0]))


def _namespaces(store: Store, namespace: str | None) -> list[str]:
    """``namespace``, or (None) all of which there is a run or an audit row: a step for each, however many rows."""
    if namespace is not None:
        return [namespace]
    found = {*store.namespaces()}
    after: Name | None = None
    while page := store.chains(after, limit=1):
        found.add(page[0][0])
        after = (page[0][0], max(_LAST_RUN, page[0][1]))
    return sorted(found)


def _rows_of(store: Store, name: Name) -> Iterator[ChainedRow]:
    after = -_ALWAYS  # a number below zero is a number somebody wrote
    while page := store.chained(*name, after, limit=_PAGE):
        after = page[-1].seq
        yield from page


def _calls_of(store: Store, name: Name) -> Iterator[CallRecord]:
    after: CallRecord | None = None
    while page := store.calls_after(*name, after, limit=_PAGE):
        after = page[-1]
        yield from page


def _tools(store: Store, name: Name) -> dict[str, str]:
    tools = {call.id: call.tool for call in _calls_of(store, name)}
    requests = store.list_approvals(namespace=name[0], run_id=name[1], limit=_ALWAYS)
    return tools | {request.id: request.tool for request in requests}


def _exported(row: ChainedRow, tools: dict[str, str]) -> dict[str, Any]:
    said = row.row
    decided = _DECIDED.match(said.detail or "") if said.approval_id is not None else None
    return {
        "seq": row.seq, "number": row.number, **asdict(said),
        "content": row.content and row.content.hex(), "hash": row.hash and row.hash.hex(),
        "at": moment(said.at_us).isoformat(), "tool": tools.get(said.call_id or said.approval_id or ""),
        "channel": decided and decided[1],
    }  # fmt: skip
