"""The index of one directory of trace files: bring it up to date, then ask it."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from sagaspan.exceptions import StoreUnavailable
from sagaspan.index.connection import copy_to, reading, run_query, writing
from sagaspan.index.files import BATCH_BYTES, trace_files
from sagaspan.index.ledger import is_as_noted, ledger_place, sync_ledger
from sagaspan.index.lock import PATIENCE, locked
from sagaspan.index.rows import SyncReport
from sagaspan.index.stamp import listing, read_stamp, write_stamp
from sagaspan.index.traces import list_spans, list_traces, one_trace, spans_of
from sagaspan.index.where import Where, choose, naive_utc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime
    from types import TracebackType

    from duckdb import DuckDBPyConnection

    from sagaspan.index.ledger import LedgerSource
    from sagaspan.index.pruning import ForgottenTraces
    from sagaspan.index.rows import SpanRow, Table, TraceRow


class TraceIndex:
    """SQL over the trace files of ``directory``, by way of ``<directory>/index.duckdb``.

    Nothing stays open between calls, so any number of these, in any number of processes, can be used side by
    side. ``batch_bytes`` is how much one transaction of a sync takes in, and the longest line that is read.
    """

    def __init__(self, directory: Path | str, *, batch_bytes: int = BATCH_BYTES) -> None:
        self.directory = Path(directory)
        self.path = self.directory / "index.duckdb"
        self._lock = self.directory / ".lock"
        self._batch_bytes = batch_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing to close: every call closes what it opened."""

    def sync(self, progress: Callable[[int, int], None] | None = None, *, patience: float = PATIENCE) -> SyncReport:
        """Take in every new line of ``*.jsonl``, exactly once. ``progress`` is told (bytes done, bytes to
        do); others may hold the index for ``patience`` seconds.

        Raises ``StoreUnavailable`` if the index is damaged or held by others, ``SchemaOutdated`` if a newer
        sagaspan made it.
        """
        with self._writable():
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            files = listing(self.directory)
        noted = read_stamp(self.path)
        if noted is not None and noted.files == files:
            return SyncReport(files=0, lines=0, spans=0, duplicates=0, damaged=())
        from sagaspan.index.sync import sync_files  # most commands find nothing new

        with self._writable(), locked(self._lock, patience=patience) as waited:
            with writing(self.path, progress) as connection:
                report = sync_files(connection, self.directory, batch_bytes=self._batch_bytes, progress=progress)
                place = ledger_place(connection)
            write_stamp(self.path, None if report.is_incomplete else files, place)
        return replace(report, waited=waited)

    def sync_ledger(self, source: LedgerSource, *, patience: float = PATIENCE) -> float:
        """Copy what has changed in the ledger into the tables ``ledger.*``; returns how long others held the index.

        Raises as ``sync``.
        """
        noted = read_stamp(self.path)
        if noted is not None and is_as_noted(source, noted.ledger):
            return 0.0
        with self._writable(), locked(self._lock, patience=patience) as waited:
            noted = read_stamp(self.path)
            with writing(self.path) as connection:
                sync_ledger(connection, source)
                place = ledger_place(connection)
            write_stamp(self.path, None if noted is None else noted.files, place)
        return waited

    def prune(self, before: datetime, *, dry_run: bool = False, patience: float = PATIENCE) -> ForgottenTraces:
        """Forget the traces that ended before this moment, but none of a run that went on after it.

        Files that are left there are not read again. Sync first; raises as that.
        """
        from sagaspan.index.pruning import forget_traces

        with self._writable(), locked(self._lock, patience=patience), writing(self.path) as connection:
            return forget_traces(connection, naive_utc(before), trace_files(self.directory), dry_run=dry_run)

    def pack(self, files: Sequence[Path], *, patience: float = PATIENCE) -> list[Path]:
        """Compress those of ``files``, to which nobody writes any more, that are in the index whole; what they are now.

        Raises as ``sync``.
        """
        from sagaspan.index.packing import pack_files

        with self._writable(), locked(self._lock, patience=patience), writing(self.path) as connection:
            return pack_files(connection, self.directory, files)

    def query(
        self,
        sql: str,
        parameters: Sequence[object] = (),
        *,
        timeout: float = 30.0,
        max_rows: int | None = None,
    ) -> Table:
        """Answer one read-only statement within ``timeout`` seconds, with at most ``max_rows`` rows.

        Waiting for others who hold the index counts. Raises ``QueryError`` if the SQL is wrong, not allowed or too
        slow.
        """
        deadline = time.monotonic() + timeout
        with self._reading(min(timeout, PATIENCE)) as connection:
            return run_query(connection, sql, parameters, timeout=timeout, deadline=deadline, max_rows=max_rows)

    def traces(self, where: Where | None = None) -> tuple[TraceRow, ...]:
        """The latest traces that fit, newest first; of all, the latest 20."""
        with self._reading() as connection:
            return list_traces(connection, where or Where())

    def spans(self, where: Where | None = None) -> tuple[SpanRow, ...]:
        """The latest spans that fit, newest first, of whatever traces; ``depth`` is 0 for each."""
        with self._reading() as connection:
            return list_spans(connection, where or Where())

    def whole_traces(self, where: Where) -> tuple[tuple[SpanRow, ...], ...]:
        """The latest traces that fit, newest first, each as ``trace`` gives it."""
        with self._reading() as connection:
            return spans_of(connection, where)

    def copy(
        self,
        sql: str,
        target: Path,
        *,
        timeout: float = 30.0,
        max_rows: int | None = None,
        where: Where | None = None,
    ) -> int:
        """Write the answer to one statement to a new Parquet file; returns how many rows it has.

        ``where``: the traces that are the temporary table ``chosen`` of the statement. Raises as ``query``, and
        ``QueryError`` if it is no selection.
        """
        deadline = time.monotonic() + timeout
        with self._reading(min(timeout, PATIENCE), writes=target) as connection:
            if where is not None:
                choose(connection, where)
            return copy_to(connection, sql, target, timeout=timeout, deadline=deadline, max_rows=max_rows)

    def trace(self, trace_id_prefix: str) -> tuple[SpanRow, ...]:
        """The spans of the one trace whose id begins so, parents before children, siblings by start.

        Raises ``TraceNotFound`` if there is none, or more than one (its ``matches`` names some).
        """
        with self._reading() as connection:
            return one_trace(connection, trace_id_prefix)

    @contextmanager
    def _writable(self) -> Iterator[None]:
        """Say of a full disk, or of a folder that is not ours, what it is."""
        try:
            yield
        except OSError as error:
            raise StoreUnavailable(
                f"the folder {self.directory} cannot be used ({error.strerror or error}): nothing is lost, what is "
                "missing in the index is taken in by the next sync"
            ) from error

    @contextmanager
    def _reading(self, patience: float = PATIENCE, writes: Path | None = None) -> Iterator[DuckDBPyConnection]:
        if not self.path.exists():
            raise StoreUnavailable(f"there is no index of {self.directory} yet: sync first")
        with locked(self._lock, shared=True, patience=patience), reading(self.path, writes) as connection:
            yield connection
