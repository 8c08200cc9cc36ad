"""What an index of an older schema holds, carried over to a new one: of many spans it has the only record.

Retention deletes trace files, and the index keeps what it has read of them. So the spans come from the older index as
they were told, with all that is derived from them derived anew, and with them how far each file was read: what is in
the older index is not read again, and what is not is read by the sync that comes after. Copies of the ledger are made
anew from the ledger.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sagaspan.index.sql import ingest_statement
from sagaspan.index.totals import add_totals
from sagaspan.index.transaction import transaction

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from duckdb import DuckDBPyConnection

_ROWS: Final = 122_880  # what DuckDB keeps together: a part that is a whole block reads no other
_NEEDED: Final = {
    "files": {"device", "inode", "head_length", "head_sha1", "path", "position", "lines", "size"},
    "damaged_lines": {"path", "line", "position", "reason", "found"},
    "spans": {
        *("trace_id", "span_id", "parent_span_id", "name", "kind", "start_time", "end_time", "status"),
        *("status_message", "scope_name", "attributes", "resource", "events", "links", "source"),
    },
}
"""What cannot be derived, by table; an index without it is one that the trace files are read for again."""


def carry_over(connection: DuckDBPyConnection, path: Path, progress: Callable[[int, int], None] | None = None) -> None:
    """Fill the new, empty index of ``connection`` with what the older one at ``path`` holds, if that can be read.

    ``progress`` is told (bytes done, bytes there), about. Killed on the way, the new index is not whole.
    """
    quoted = str(path).replace("'", "''")
    connection.execute(f"attach '{quoted}' as old (read_only)")
    if _is_understood(connection):
        _carry_spans(connection, path.stat().st_size, progress)
        for table in ("files", "damaged_lines"):
            connection.execute(f"insert into {table} by name select * from old.{table}")  # noqa: S608 - our own names
    connection.execute("detach old")


def _is_understood(connection: DuckDBPyConnection) -> bool:
    rows = connection.execute(
        "select table_name, column_name from duckdb_columns() where database_name = 'old' and schema_name = 'main'"
    ).fetchall()
    return all((table, column) in rows for table, columns in _NEEDED.items() for column in columns)


def _carry_spans(connection: DuckDBPyConnection, size: int, progress: Callable[[int, int], None] | None) -> None:
    (last,) = connection.execute("select coalesce(max(rowid), -1) from old.spans").fetchall()[0]
    if progress is not None:
        progress(0, size)
    for first in range(0, last + 1, _ROWS):
        (before,) = connection.execute(ingest_statement("last_row")).fetchall()[0]
        with transaction(connection):
            connection.execute(ingest_statement("carry"), [first, first + _ROWS - 1])
            add_totals(connection, before)
        if progress is not None:
            progress(size * min(first + _ROWS, last + 1) // (last + 1), size)
