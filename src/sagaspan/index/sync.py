"""Sync: take the new lines of the trace files into the index, each exactly once.

Slices of files are put together in a staging file of at most one batch, DuckDB reads that, and the rows and
the files' new positions are committed together. Killed at any point, the next sync starts from the last
commit. A line that cannot be read is recorded with its place and costs nothing else.
"""

from __future__ import annotations

import os
from dataclasses import astuple, dataclass, field, fields
from datetime import UTC, datetime
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from sagaspan.index.damage import damaged_lines, has_text, too_long
from sagaspan.index.files import (
    BATCH_BYTES,
    FileLedger,
    KnownFile,
    Slice,
    cut,
    new_slices,
    size_of,
    spelt_out,
    trace_files,
)
from sagaspan.index.rows import DamagedLine, SyncReport
from sagaspan.index.sql import MAXIMUM_LINE, ingest_statement
from sagaspan.index.totals import add_totals
from sagaspan.index.transaction import transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from duckdb import DuckDBPyConnection

_STAGING: Final = ".staging"
_COLUMNS: Final = tuple(column.name for column in fields(KnownFile))
_RECALL: Final = f"select {', '.join(_COLUMNS)} from files"  # noqa: S608 - our own field names
REMEMBER: Final = f"insert into files ({', '.join(_COLUMNS)}) values ({', '.join('?' for _ in _COLUMNS)})"  # noqa: S608


@dataclass(slots=True)
class _Batch:
    slices: list[Slice] = field(default_factory=list)
    size: int = 0

    def add(self, piece: Slice) -> None:
        self.slices.append(piece)
        self.size += len(piece.data)


@dataclass(slots=True)
class _Totals:
    paths: set[Path] = field(default_factory=set)
    lines: int = 0
    spans: int = 0
    duplicates: int = 0
    damaged: list[DamagedLine] = field(default_factory=list)
    is_incomplete: bool = False


def sync_files(
    connection: DuckDBPyConnection,
    directory: Path,
    *,
    batch_bytes: int = BATCH_BYTES,
    progress: Callable[[int, int], None] | None = None,
) -> SyncReport:
    """Read what is new in ``directory``. ``progress`` is told (bytes done, bytes there) after every batch."""
    totals = _Totals()
    staging = directory / _STAGING
    paths = trace_files(directory)
    known = known_files(connection)
    todo = _todo(paths, known) if progress else 0
    done = 0
    if progress is not None:
        progress(0, todo)
    try:
        for batch in _batches(paths, FileLedger(known), batch_bytes, totals):
            _take_in(connection, batch, staging, totals)
            done += batch.size
            if progress is not None:
                progress(done, max(done, todo))
    finally:
        staging.unlink(missing_ok=True)
    return SyncReport(
        files=len(totals.paths),
        lines=totals.lines,
        spans=totals.spans,
        duplicates=totals.duplicates,
        damaged=tuple(totals.damaged),
        is_incomplete=totals.is_incomplete,
    )


def _todo(paths: list[Path], known: list[KnownFile]) -> int:
    """Bytes to read, about: what is in a compressed file is only known when it is unpacked."""
    return max(0, sum(size_of(path) for path in paths) - sum(file.size or file.position for file in known))


def known_files(connection: DuckDBPyConnection) -> list[KnownFile]:
    """How far each file has been read."""
    rows = connection.execute(_RECALL).fetchall()
    return [KnownFile(**dict(zip(_COLUMNS, row, strict=True))) for row in rows]


def _batches(paths: list[Path], ledger: FileLedger, limit: int, totals: _Totals) -> Iterator[_Batch]:
    batch = _Batch()
    for path in paths:
        try:
            for piece in new_slices(path, ledger, lambda: max(1, limit - batch.size), limit):  # noqa: B023
                batch.add(piece)
                if batch.size >= limit // 2:
                    yield batch
                    batch = _Batch()
        except FileNotFoundError:
            continue  # deleted since it was listed
        except OSError as error:
            reason = f"the file cannot be read ({error.strerror}); it is tried again at the next sync"
            totals.damaged.append(DamagedLine(path=path, line=0, position=0, reason=reason))
            totals.is_incomplete = True
    if batch.slices:
        yield batch


def _take_in(connection: DuckDBPyConnection, batch: _Batch, staging: Path, totals: _Totals) -> None:
    """Ingest the batch; if DuckDB refuses a value in it, find the line by halving and leave only that out."""
    import duckdb

    try:
        _ingest(connection, batch, staging, totals)
    except (duckdb.DataError, duckdb.ProgrammingError) as error:
        halves = _halves(batch)
        if not halves:
            _leave_out(connection, batch.slices[0], str(error).splitlines()[0], totals)
        for half in halves:
            _take_in(connection, half, staging, totals)


def _halves(batch: _Batch) -> list[_Batch]:
    middle = len(batch.slices) // 2
    parts = (batch.slices[:middle], batch.slices[middle:]) if middle else [[p] for p in cut(batch.slices[0])]
    return [_Batch(slices=list(part), size=sum(len(piece.data) for piece in part)) for part in parts]


def _leave_out(connection: DuckDBPyConnection, piece: Slice, error: str, totals: _Totals) -> None:
    reason = f"cannot be stored ({error}); skipped, the other lines are in"
    damage = DamagedLine(path=piece.path, line=piece.first_line, position=piece.position, reason=reason)
    with transaction(connection):
        _record(connection, [piece], [damage])
    totals.paths.add(piece.path)
    totals.lines += 1
    totals.damaged.append(damage)


def _ingest(connection: DuckDBPyConnection, batch: _Batch, staging: Path, totals: _Totals) -> None:
    damaged = too_long(batch.slices)
    spans = found = 0
    if batch.size:
        # Before the transaction: inside one, the rows of a new table are not numbered from 0.
        first_rows = _stage(connection, batch, staging)
        rows = [row for (row,) in connection.execute(ingest_statement("damaged")).fetchall()]
        damaged += damaged_lines(rows, batch.slices, first_rows)
    with transaction(connection):
        if batch.size:
            found, spans = _insert(connection)
        _record(connection, batch.slices, damaged)
    totals.paths |= {piece.path for piece in batch.slices}
    totals.lines += sum(piece.data.count(b"\n") or 1 for piece in batch.slices)
    totals.spans += spans
    totals.duplicates += found - spans
    totals.damaged += damaged


def _stage(connection: DuckDBPyConnection, batch: _Batch, staging: Path) -> list[int]:
    """Parse the batch into the table ``staged``. Returns the first row of each slice."""
    staging.unlink(missing_ok=True)
    with os.fdopen(os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
        stream.writelines(piece.data for piece in batch.slices)
    longest = _longest_line(batch) + 1
    statement = ingest_statement("stage", maximum_line=longest)
    staged = connection.execute(statement, [str(staging)]).fetchall()[0][0]
    connection.execute("create or replace temp table slices (first_row bigint, path varchar)")
    first_rows = _first_rows(batch, staged)
    # A dict keeps the last slice of those that begin at the same row: the others have no rows.
    names = {row: spelt_out(piece.path.name) for row, piece in zip(first_rows, batch.slices, strict=True)}
    connection.execute("insert into slices select unnest(?), unnest(?)", [list(names.keys()), list(names.values())])
    return first_rows


def _longest_line(batch: _Batch) -> int:
    """The longest line if it is beyond what is always allowed for.

    Searched only where half of that has no newline.
    """
    half = MAXIMUM_LINE // 2
    longest = MAXIMUM_LINE
    for piece in batch.slices:
        if any(piece.data.find(b"\n", at, at + half) < 0 for at in range(0, len(piece.data), half)):
            longest = max(longest, *(len(line) for line in piece.data.split(b"\n")))
    return longest


def _first_rows(batch: _Batch, staged: int) -> list[int]:
    """The staged row with which each slice begins; the last of equals is the one that has rows."""
    counts = [piece.data.count(b"\n") for piece in batch.slices]
    if sum(counts) != staged:
        # DuckDB passes over blank lines.
        counts = [sum(1 for line in piece.data.split(b"\n") if has_text(line)) for piece in batch.slices]
    return [0, *accumulate(counts)][:-1]


def _insert(connection: DuckDBPyConnection) -> tuple[int, int]:
    """Add the staged spans. Returns how many there were, and how many of them were new."""
    earliest, latest, found = connection.execute(ingest_statement("bounds")).fetchall()[0]
    (before,) = connection.execute(ingest_statement("last_row")).fetchall()[0]
    added: int = connection.execute(ingest_statement("insert"), [earliest, latest]).fetchall()[0][0]
    if connection.execute(ingest_statement("repeated"), [before]).fetchall()[0][0]:
        added -= connection.execute(ingest_statement("deduplicate"), [before]).fetchall()[0][0]
    if added:
        add_totals(connection, before)
    return found, added


def _record(connection: DuckDBPyConnection, slices: list[Slice], damaged: list[DamagedLine]) -> None:
    for piece in slices:
        if piece.before is not None:
            connection.execute(
                "delete from files where device = ? and inode = ? and head_sha1 = ?",
                [piece.before.device, piece.before.inode, piece.before.head_sha1],
            )
        connection.execute(REMEMBER, astuple(piece.after))
    now = datetime.now(UTC).replace(tzinfo=None)
    for line in damaged:
        connection.execute(
            "insert into damaged_lines values (?, ?, ?, ?, ?)",
            [spelt_out(line.path), line.line, line.position, line.reason, now],
        )
