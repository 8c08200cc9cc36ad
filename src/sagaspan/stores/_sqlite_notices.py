"""Notifications in SQLite: how far each hook has read the audit trail, and what is still to be delivered."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from sagaspan.ledger.records import DeliveryRecord
from sagaspan.ledger.store import DeliveryChange, HookChange
from sagaspan.stores import _columns as columns

_NAMES: Final = ", ".join(columns.DELIVERY_COLUMNS)
_MARKS: Final = ", ".join("?" * len(columns.DELIVERY_COLUMNS))
NEWEST: Final = "select coalesce(max(seq), 0) from audit"
CURSOR: Final = "select cursor from hooks where namespace = ? and name = ?"
_BEGIN: Final = "insert into hooks (namespace, name, cursor) values (?, ?, ?) on conflict do nothing"
_MOVE: Final = "update hooks set cursor = ? where namespace = ? and name = ? and cursor = ?"
_ADD: Final = f"insert into deliveries ({_NAMES}) values ({_MARKS}) on conflict do nothing"  # noqa: S608
_TRY: Final = """
update deliveries set attempts = ?, next_us = ?, error = ?, dead = ? where id = ? and attempts = ?
"""
_DONE: Final = "delete from deliveries where id = ?"
EVENTS: Final = f"""
select seq, {", ".join(columns.AUDIT_COLUMNS)} from audit
 where namespace = ? and seq > ? and seq <= ?
   and (to_state in ('failed', 'compensated', 'partially_compensated', 'unknown', 'needs_human', 'compensation_failed')
        or event in ('approval.ask', 'soft_limit'))
 order by seq
"""  # noqa: S608


def save_hook(connection: sqlite3.Connection, change: HookChange) -> bool:
    """Begin to read, or read on, if nobody else has meanwhile."""
    if change.expected is None:
        return connection.execute(_BEGIN, (change.namespace, change.name, change.cursor)).rowcount == 1
    values = (change.cursor, change.namespace, change.name, change.expected)
    return connection.execute(_MOVE, values).rowcount == 1


def save_delivery(connection: sqlite3.Connection, change: DeliveryChange) -> bool:
    """Add what is to be delivered, count an attempt, or take away what was."""
    record = change.record
    if change.done:
        return connection.execute(_DONE, (record.id,)).rowcount == 1
    if change.expected_attempts is None:
        connection.execute(_ADD, columns.delivery_values(record))
        return True
    values = (record.attempts, record.next_us, record.error, record.dead, record.id, change.expected_attempts)
    return connection.execute(_TRY, values).rowcount == 1


def deliveries_query(
    namespace: str | None, hooks: Sequence[str] | None, due_us: int | None, dead: bool | None, limit: int
) -> tuple[str, list[Any]]:
    """The query of ``Store.deliveries`` and its values."""
    conditions: list[str] = ["1 = 1"]
    values: list[Any] = []
    if namespace is not None:
        conditions, values = [*conditions, "namespace = ?"], [*values, namespace]
    if hooks is not None:
        conditions, values = [*conditions, f"hook in ({', '.join('?' * len(hooks))})"], [*values, *hooks]
    if due_us is not None:
        conditions, values = [*conditions, "next_us <= ?"], [*values, due_us]
    if dead is not None:
        conditions, values = [*conditions, f"dead = {int(dead)}"], values
    return (
        f"select {_NAMES} from deliveries where {' and '.join(conditions)} order by created_us, id limit ?",  # noqa: S608
        [*values, limit],
    )


def delivery(row: Sequence[Any]) -> DeliveryRecord:
    """The record of a row of that query."""
    values = dict(zip(columns.DELIVERY_COLUMNS, row, strict=True))
    return DeliveryRecord(**{**values, "dead": bool(values["dead"])})
