"""Notifications in SQLite: how far each hook has read the audit trail, and what is still to be delivered."""

from __future__ import annotations

import sqlite3
from typing import Final

from sagaspan.ledger.store import DeliveryChange, HookChange
from sagaspan.stores import _columns as columns

_NAMES: Final = ", ".join(columns.DELIVERY_COLUMNS)
_MARKS: Final = ", ".join("?" * len(columns.DELIVERY_COLUMNS))
_BEGIN: Final = "insert into hooks (namespace, name, cursor) values (?, ?, ?) on conflict do nothing"
_MOVE: Final = "update hooks set cursor = ? where namespace = ? and name = ? and cursor = ?"
_ADD: Final = f"insert into deliveries ({_NAMES}) values ({_MARKS}) on conflict do nothing"  # noqa: S608
_TRY: Final = """
update deliveries set attempts = ?, next_us = ?, error = ?, dead = ? where id = ? and attempts = ?
"""
_DONE: Final = "delete from deliveries where id = ?"


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
