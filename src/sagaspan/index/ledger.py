"""The ledger's records beside the spans: copied as the audit trail names them, with the place in it in one transaction.

The index knows nothing of stores: whoever syncs gives it the rows of each table, batch after batch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from sagaspan.index.transaction import transaction

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from duckdb import DuckDBPyConnection

Rows = list[tuple[Any, ...]]

_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "runs": ("namespace", "run_id"),
    "calls": ("call_id",),
    "approvals": ("approval_id",),
    "audit": ("seq",),
}
"""What a row of each table is known by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerBatch:
    """Rows that are new or have changed, by table, in the order of its columns; times are microseconds.

    ``upto`` is the audit row that they are as of. Of the runs ``anew`` (namespace, id) nothing else is left than these.
    """

    upto: int
    tables: Mapping[str, Rows]
    anew: Sequence[tuple[str, str]] = field(default=())


class LedgerSource(Protocol):
    """A ledger as the index reads it."""

    @property
    def name(self) -> str:
        """Which ledger it is, and with or without content: rows of another one are thrown away."""

    def mark(self, upto: int) -> str | None:
        """What tells the audit row ``upto`` from one of that number in a ledger made anew; None if it is not there."""

    def batch(self, after: int) -> LedgerBatch | None:
        """What has changed since the audit row ``after``; None if nothing has."""

    def budgets(self) -> Rows:
        """All budgets as they are now."""


def sync_ledger(connection: DuckDBPyConnection, source: LedgerSource) -> int:
    """Copy what has changed in the ledger. Returns how many rows of the audit trail are new."""
    place = ledger_place(connection)
    upto = int(place.get("upto", 0))
    if not _is_of(source, place):
        _forget(connection)
        upto = 0
    added = 0
    while (batch := source.batch(upto)) is not None:
        upto = batch.upto
        with transaction(connection):
            _take_in(connection, batch)
            _replace_budgets(connection, source.budgets())
            _keep_place(connection, {"name": source.name, "upto": upto, "mark": source.mark(upto)})
        added += len(batch.tables.get("audit", ()))
    return added


def _take_in(connection: DuckDBPyConnection, batch: LedgerBatch) -> None:
    for namespace, run_id in batch.anew:
        for table in _KEYS:
            connection.execute(
                f"delete from ledger.{table} where namespace = ? and run_id = ?",  # noqa: S608 - our own names
                [namespace, run_id],
            )
    for table, keys in _KEYS.items():
        rows = batch.tables.get(table, [])
        if rows:
            _upsert(connection, table, keys, rows)


def _upsert(connection: DuckDBPyConnection, table: str, keys: Sequence[str], rows: Rows) -> None:
    columns = _columns(connection, table)
    connection.execute(f"create or replace temp table incoming as {_values(columns)}", _by_column(rows))
    same = " and ".join(f"old.{key} = incoming.{key}" for key in keys)
    connection.execute(f"delete from ledger.{table} old using incoming where {same}")  # noqa: S608 - our own names
    connection.execute(f"insert into ledger.{table} select * from incoming")  # noqa: S608 - our own names


def _replace_budgets(connection: DuckDBPyConnection, rows: Rows) -> None:
    connection.execute("delete from ledger.budgets")
    if rows:
        columns = _columns(connection, "budgets")
        connection.execute(f"insert into ledger.budgets {_values(columns)}", _by_column(rows))


def _columns(connection: DuckDBPyConnection, table: str) -> list[tuple[str, str]]:
    return [(name, kind) for name, kind, *_ in connection.execute(f"describe ledger.{table}").fetchall()]


def _values(columns: Sequence[tuple[str, str]]) -> str:
    """A selection of one list a column; a row a time is far slower."""
    lists = (
        f'make_timestamp(unnest(?::BIGINT[])) as "{name}"'
        if kind == "TIMESTAMP"
        else f'unnest(?::{kind}[]) as "{name}"'
        for name, kind in columns
    )
    return f"select {', '.join(lists)}"


def _by_column(rows: Rows) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _forget(connection: DuckDBPyConnection) -> None:
    with transaction(connection):
        for table in (*_KEYS, "budgets"):
            connection.execute(f"delete from ledger.{table}")  # noqa: S608 - our own names
        connection.execute("delete from meta where key = 'ledger'")


def is_as_noted(source: LedgerSource, place: Mapping[str, Any]) -> bool:
    """Whether nothing has changed in the ledger since it was copied up to ``place``."""
    return bool(place) and _is_of(source, place) and source.batch(int(place["upto"])) is None


def _is_of(source: LedgerSource, place: Mapping[str, Any]) -> bool:
    upto = int(place.get("upto", 0))
    return place.get("name") == source.name and (not upto or source.mark(upto) == place.get("mark"))


def ledger_place(connection: DuckDBPyConnection) -> dict[str, Any]:
    """Which ledger the tables are of, and as of which of its audit rows; empty before the first."""
    row = connection.execute("select value from meta where key = 'ledger'").fetchone()
    return {} if row is None else dict(json.loads(row[0]))


def _keep_place(connection: DuckDBPyConnection, place: Mapping[str, Any]) -> None:
    connection.execute("delete from meta where key = 'ledger'")
    connection.execute("insert into meta values ('ledger', ?)", [json.dumps(place)])
