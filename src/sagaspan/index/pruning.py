"""Forgetting traces that ended long ago. All else that the index has, it has until its file is deleted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sagaspan.index.sql import prune_statement
from sagaspan.index.transaction import transaction

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from pathlib import Path

    from duckdb import DuckDBPyConnection

_OLD: Final = ("spans", "traces", "runs", "damaged")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgottenTraces:
    """How many traces are gone, or would be, and how many spans they had."""

    traces: int
    spans: int


def forget_traces(
    connection: DuckDBPyConnection, before: datetime, files: Sequence[Path], *, dry_run: bool
) -> ForgottenTraces:
    """Forget the traces that ended before this moment (UTC, without a zone), and which of ``files`` are no more."""
    connection.execute(prune_statement("choose"), {"before": before})
    (traces,) = connection.execute("select count(*) from old_traces").fetchall()[0]
    (spans,) = connection.execute(prune_statement("count")).fetchall()[0]
    if not dry_run:
        with transaction(connection):
            for what in _OLD:
                statement = prune_statement(what)
                connection.execute(statement, {"before": before} if "$before" in statement else {})
            _forget_files(connection, files)
        connection.execute("checkpoint")  # gives what room it can back to the disk
    return ForgottenTraces(traces=traces, spans=spans)


def _forget_files(connection: DuckDBPyConnection, files: Sequence[Path]) -> None:
    there = [path.stat() for path in files if path.exists()]
    places = {"devices": [one.st_dev for one in there], "inodes": [one.st_ino for one in there]}
    connection.execute(prune_statement("files"), places)
