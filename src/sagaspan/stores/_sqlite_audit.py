"""The audit trail in SQLite: every row is appended to the chain of its run, in the transaction of its change."""

from __future__ import annotations

import sqlite3
from typing import Final

from sagaspan.ledger import chain, contents
from sagaspan.ledger.chain import START, Link
from sagaspan.ledger.records import AuditRow
from sagaspan.ledger.store import ApprovalChange, CallChange, FreezeChange, LimitChange, NoteChange, RunChange
from sagaspan.stores import _columns as columns

_NAMES: Final = ", ".join(columns.AUDIT_COLUMNS)
APPEND: Final = f"""
insert into audit ({_NAMES}, number, content, hash) values ({", ".join("?" * (len(columns.AUDIT_COLUMNS) + 3))})
"""  # noqa: S608
_RELINK: Final = "update audit set number = ?, hash = ? where seq = ?"
_HEAD: Final = """
select number, hash from audit
 where namespace = ? and run_id = ? and seq < ? and hash is not null
 order by seq desc limit 1
"""
# From one to the next along the index: as many steps as there are chains, however many rows. Compared as a pair, the
# last one is found by its namespace alone, and each step would look at all chains before it.
CHAINS: Final = """
with recursive found (namespace, run_id) as (
  select * from (select namespace, run_id from audit{behind} order by namespace, run_id limit 1)
   union all
  select next.namespace, next.run_id
    from found join audit as next on next.seq = coalesce(
         (select seq from audit where audit.namespace = found.namespace and audit.run_id > found.run_id
           order by audit.run_id limit 1),
         (select seq from audit where audit.namespace > found.namespace
           order by audit.namespace, audit.run_id limit 1))
)
select namespace, run_id from found limit ?
"""
BEHIND: Final = " where (namespace, run_id) > (?, ?)"
_REMEMBERED: Final = 1000

_SAID_BY_THE_ROW: Final = (LimitChange, FreezeChange, NoteChange)
Audited = CallChange | RunChange | ApprovalChange | LimitChange | FreezeChange | NoteChange


class Chains:
    """The heads of the chains that this connection wrote to last.

    They hold as long as nobody else has appended anything, which the number of the next row tells, and this process
    has rolled nothing back.
    """

    def __init__(self) -> None:
        self._newest = -1
        self._heads: dict[tuple[str, str], Link] = {}

    def forget(self) -> None:
        """Read the heads anew: what was appended is rolled back, or the connection is another one."""
        self._newest = -1
        self._heads.clear()

    def append(self, connection: sqlite3.Connection, row: AuditRow, content: bytes | None = None) -> None:
        """Append ``row`` to its chain; its number in the ledger is ``last_insert_rowid()`` then."""
        name = row.namespace, row.run_id
        before = self._heads.get(name)
        known = self._newest + 1
        after = START if before is None else chain.link(before, known, row, content)
        values = (*columns.audit_values(row), after[0], content, after[1])
        seq = connection.execute(APPEND, values).lastrowid or 0
        if seq != known:
            self._heads.clear()
            before = None
        if before is None:
            after = chain.link(head_of(connection, *name, before=seq), seq, row, content)
            connection.execute(_RELINK, (*after, seq))
        if len(self._heads) >= _REMEMBERED:
            self._heads.clear()
        self._newest, self._heads[name] = seq, after


def content_of(change: Audited) -> bytes | None:
    """What the row of a change says of its record."""
    if isinstance(change, _SAID_BY_THE_ROW):
        return None
    return contents.content_of(change.record, is_new=not change.expected_version)


def head_of(connection: sqlite3.Connection, namespace: str, run_id: str, *, before: int) -> Link:
    """The last link of a chain before a row of the ledger."""
    row = connection.execute(_HEAD, (namespace, run_id, before)).fetchone()
    return START if row is None else (row[0], row[1])
