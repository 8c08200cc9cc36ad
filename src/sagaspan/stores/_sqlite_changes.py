"""How SQLite saves the changes of a commit: each is one statement with its own condition, in their order."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from sagaspan.ledger.records import SUPERSEDED
from sagaspan.ledger.store import (
    SAVED,
    ApprovalChange,
    Barrier,
    CallChange,
    Change,
    Commit,
    Conditional,
    DeliveryChange,
    FreezeChange,
    HookChange,
    LimitChange,
    LockChange,
    NonceChange,
    NoteChange,
    RunChange,
    SpendChange,
)
from sagaspan.stores import _columns as columns
from sagaspan.stores import _sqlite_audit as audit
from sagaspan.stores import _sqlite_budgets as budgets
from sagaspan.stores import _sqlite_notices as notices
from sagaspan.stores._sqlite_audit import Chains

_CALLS: Final = ", ".join(columns.CALL_COLUMNS)
_RUNS: Final = ", ".join(columns.RUN_COLUMNS)
_LOCKS: Final = ", ".join(columns.LOCK_COLUMNS)
_APPROVALS: Final = ", ".join(columns.APPROVAL_COLUMNS)


def _marks(names: Sequence[str]) -> str:
    return ", ".join("?" * len(names))


def _sets(names: Sequence[str]) -> str:
    return ", ".join(f"{name} = ?" for name in names)


# Only constants of this package are put together here; every value is a bound parameter.
_CONTROLS: Final = "coalesce((select version from controls where controls.namespace = runs.namespace), 0) = ?"
_CLAIM_CALL: Final = f"""
insert into calls ({_CALLS})
select {", ".join("last_insert_rowid()" if name == "claim_seq" else "?" for name in columns.CALL_COLUMNS)}
  from runs where namespace = ? and id = ? and epoch = ? and state = 'running' and {_CONTROLS}
    on conflict (namespace, scope, tool, key) do nothing
"""  # noqa: S608
_INSERT_CALL: Final = f"""
insert into calls ({_CALLS})
values ({", ".join("last_insert_rowid()" if name == "claim_seq" else "?" for name in columns.CALL_COLUMNS)})
    on conflict do nothing
"""  # noqa: S608
_UPDATE_CALL: Final = "update calls set {} where id = ? and version = ?"
_MOVE_CALL: Final = _UPDATE_CALL.format(_sets(columns.CALL_CHANGING))
# What is set is written into its index anew, though it be the same: only a call that loses its key to another sets it.
_KEEPING: Final = tuple(name for name in columns.CALL_CHANGING if name not in ("scope", "key"))
_CHANGE_CALL: Final = _UPDATE_CALL.format(_sets(_KEEPING))
_kept = attrgetter(*_KEEPING, "id")
_CLAIM_CALL_AGAIN: Final = f"""
update calls set {_sets(columns.CALL_CHANGING)}, claim_seq = last_insert_rowid()
 where id = ? and version = ?
   and exists (
       select 1 from runs where namespace = ? and id = ? and epoch = ? and state = 'running' and {_CONTROLS})
"""  # noqa: S608
_IS_RUNNING: Final = "select 1 from runs where namespace = ? and id = ? and epoch = ? and state = 'running'"
_INSERT_RUN: Final = f"insert into runs ({_RUNS}) values ({_marks(columns.RUN_COLUMNS)}) on conflict do nothing"  # noqa: S608
_UPDATE_RUN: Final = f"""
update runs set {_sets(columns.RUN_CHANGING)} where namespace = ? and id = ? and version = ?
"""  # noqa: S608
_INSERT_LOCK: Final = f"insert into locks ({_LOCKS}) values ({_marks(columns.LOCK_COLUMNS)}) on conflict do nothing"  # noqa: S608
_UPDATE_LOCK: Final = f"""
update locks set {_sets(columns.LOCK_CHANGING)} where namespace = ? and name = ? and version = ?
"""  # noqa: S608
_INSERT_APPROVAL: Final = f"""
insert into approvals ({_APPROVALS}) values ({_marks(columns.APPROVAL_COLUMNS)}) on conflict do nothing
"""  # noqa: S608
_UPDATE_APPROVAL: Final = f"""
update approvals set {_sets(columns.APPROVAL_CHANGING)} where id = ? and version = ?
"""  # noqa: S608
_CONSUME_APPROVAL: Final = f"""
{_UPDATE_APPROVAL} and state = 'approved' and digest = ? and policy = ? and expires_us > ?
"""
_USE_NONCE: Final = "insert into nonces (namespace, id, until_us) values (?, ?, ?) on conflict do nothing"
_OPEN_STEP: Final = """
with recursive saga (id) as (
  select ?2
  union all
  select runs.id
    from runs
    join saga on runs.parent_id = saga.id
   where runs.namespace = ?1
)
select id
  from calls
 where namespace = ?1
   and run_id in (select id from saga)
   and phase = 'forward'
   and state in ('running', 'unknown', 'needs_human', 'compensating')
   and (declared_write = 1 or compensate is not null)
"""
_CLAIM_SEQ: Final = columns.CALL_COLUMNS.index("claim_seq")


def save_all(connection: sqlite3.Connection, changes: Sequence[Change], chains: Chains) -> Commit:
    """Save all changes in their order, in the transaction of the caller; the first that is refused ends it."""
    used: list[int] = []
    for change in changes:
        if isinstance(change, SpendChange):
            used.append(budgets.spend(connection, change))
            for mark in change.marks:
                if used[-1] - change.spent < mark.at <= used[-1]:
                    chains.append(connection, mark.audit)
        elif not _save(connection, change, chains):
            chains.forget()  # what it appended is rolled back
            return Commit(change)
    return Commit(used=tuple(used)) if used else SAVED


def _save(connection: sqlite3.Connection, change: Conditional, chains: Chains) -> bool:
    if isinstance(change, _AUDITED):
        # The audit row first: its number becomes the call's place in the claim order.
        chains.append(connection, change.audit, audit.content_of(change))
    return _SAVING[type(change)](connection, change)


def _save_call(connection: sqlite3.Connection, change: CallChange) -> bool:
    record, before = change.record, change.expected_version
    fence = (
        (record.namespace, change.run_id or record.run_id, change.run_epoch, change.controls) if change.claims else ()
    )
    if not before:
        statement = _CLAIM_CALL if change.claims else _INSERT_CALL
        row = columns.call_values(record)
        values = (*row[:_CLAIM_SEQ], *row[_CLAIM_SEQ + 1 :], *fence)
    elif change.claims or record.scope.startswith(SUPERSEDED):
        statement = _CLAIM_CALL_AGAIN if change.claims else _MOVE_CALL
        values = (*columns.call_changes(record), before, *fence)
    else:
        statement, values = _CHANGE_CALL, (*_kept(record), before)
    return connection.execute(statement, values).rowcount == 1


def _save_run(connection: sqlite3.Connection, change: RunChange) -> bool:
    if change.outer_epoch:
        outer = (change.record.namespace, change.record.parent_id, change.outer_epoch)
        if connection.execute(_IS_RUNNING, outer).fetchone() is None:
            return False
    if change.expected_version:
        values = (*columns.run_changes(change.record), change.expected_version)
        return connection.execute(_UPDATE_RUN, values).rowcount == 1
    return connection.execute(_INSERT_RUN, columns.run_values(change.record)).rowcount == 1


def _save_approval(connection: sqlite3.Connection, change: ApprovalChange) -> bool:
    record = change.record
    if not change.expected_version:
        return connection.execute(_INSERT_APPROVAL, columns.approval_values(record)).rowcount == 1
    values = (*columns.approval_changes(record), change.expected_version)
    if change.consumes_at is None:
        return connection.execute(_UPDATE_APPROVAL, values).rowcount == 1
    values = (*values, record.digest, record.policy, change.consumes_at)
    return connection.execute(_CONSUME_APPROVAL, values).rowcount == 1


def _save_lock(connection: sqlite3.Connection, change: LockChange) -> bool:
    if change.expected_version:
        values = (*columns.lock_changes(change.record), change.expected_version)
        return connection.execute(_UPDATE_LOCK, values).rowcount == 1
    return connection.execute(_INSERT_LOCK, columns.lock_values(change.record)).rowcount == 1


def _use_nonce(connection: sqlite3.Connection, change: NonceChange) -> bool:
    connection.execute("delete from nonces where until_us <= ?", (change.now_us,))
    return connection.execute(_USE_NONCE, (change.namespace, change.id, change.until_us)).rowcount == 1


def _no_step_is_open(connection: sqlite3.Connection, change: Barrier) -> bool:
    found = connection.execute(_OPEN_STEP, (change.namespace, change.run_id))
    return all(step in change.but for (step,) in found)


def _is_its_row(connection: sqlite3.Connection, change: NoteChange) -> bool:  # noqa: ARG001 - one of those in the table
    return True


_AUDITED: Final = (CallChange, RunChange, ApprovalChange, LimitChange, FreezeChange, NoteChange)
_SAVING: Final[Mapping[type[Conditional], Callable[[sqlite3.Connection, Any], bool]]] = {
    CallChange: _save_call,
    RunChange: _save_run,
    ApprovalChange: _save_approval,
    LockChange: _save_lock,
    NonceChange: _use_nonce,
    HookChange: notices.save_hook,
    DeliveryChange: notices.save_delivery,
    Barrier: _no_step_is_open,
    NoteChange: _is_its_row,
    **dict.fromkeys(budgets.KINDS, budgets.save),
}
"""One statement for each kind of change, and whether its condition held."""
