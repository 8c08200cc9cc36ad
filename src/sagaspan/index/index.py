"""The index of one directory of trace files: bring it up to date, then ask it."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from sagaspan.exceptions import StoreUnavailable
from sagaspan.index.connection import copy_to, reading, run_query, writing
from sagaspan.index.ledger import sync_ledger
from sagaspan.index.lock import PATIENCE, locked
from sagaspan.index.sync import BATCH_BYTES, sync_files
from sagaspan.index.traces import list_spans, list_traces, one_trace, spans_of
from sagaspan.index.where import Where, choose

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    from duckdb import DuckDBPyConnection

    from sagaspan.index.ledger import LedgerSource
    from sagaspan.index.rows import SpanRow, SyncReport, Table, TraceRow


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
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreUnavailable(f"cannot make the folder {self.directory} ({error.strerror})") from error
        with locked(self._lock, patience=patience) as waited, writing(self.path) as connection:
            report = sync_files(connection, self.directory, batch_bytes=self._batch_bytes, progress=progress)
        return replace(report, waited=waited)

    def sync_ledger(self, source: LedgerSource, *, patience: float = PATIENCE) -> float:
        """Copy what has changed in the ledger into the tables ``ledger.*``; returns how long others held the index.

        Raises as ``sync``.
        """
        with locked(self._lock, patience=patience) as waited, writing(self.path) as connection:
            sync_ledger(connection, source)
        return waited

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
    def _reading(self, patience: float = PATIENCE, writes: Path | None = None) -> Iterator[DuckDBPyConnection]:
        if not self.path.exists():
            raise StoreUnavailable(f"there is no index of {self.directory} yet: sync first")
        with locked(self._lock, shared=True, patience=patience), reading(self.path, writes) as connection:
            yield connection
