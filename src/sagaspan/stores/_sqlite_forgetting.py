"""How SQLite forgets: a run with all that is of it, a call, a request; what it spent stays spent."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from sagaspan.ledger.records import CallRecord, RunRecord
from sagaspan.ledger.store import Family, Forgotten
from sagaspan.stores import _sqlite_audit as audit
from sagaspan.stores import _sqlite_budgets as budgets
from sagaspan.stores._sqlite_audit import Chains

_OLD_APPROVALS: Final = """
approvals where id in (
  select id from approvals
   where namespace = ? and run_id = ? and coalesce(ended_us, expires_us) < ?
     and not exists (select 1 from calls where calls.id = approvals.call_id)
   limit ?)
"""


def forget(connection: sqlite3.Connection, family: Family, chains: Chains, actor: str) -> Forgotten:
    """Delete the runs of a family, if they are still as they were looked at."""
    if not all(_is_unchanged(connection, run, family) for run in family.runs):
        return Forgotten()
    audit_rows = 0
    for run in family.runs:
        whose = (run.namespace, run.id)
        audit_rows += audit.forget_all(connection, chains, *whose, actor=actor)
        budgets.forget_spending(connection, "c.namespace = ? and c.run_id = ?", whose)
        # Also what counts calls of one tool in this run (max_calls).
        _gone(connection, "budgets where namespace = ?1 and (scope = 'run:' || ?2 or scope in (select "
              "'run:' || ?2 || '/' || tool from calls where namespace = ?1 and run_id = ?2))", *whose)  # fmt: skip
        _gone(connection, "calls where namespace = ? and run_id = ?", *whose)
        _gone(connection, "usage where namespace = ? and run_id = ?", *whose)
        _gone(connection, "locks where namespace = ? and run_id = ?", *whose)
        _gone(connection, "loops where namespace = ? and run_id = ?", *whose)
        _gone(connection, "approvals where namespace = ? and run_id = ?", *whose)
        _gone(connection, "runs where namespace = ? and id = ?", *whose)
    return Forgotten(runs=len(family.runs), calls=len(family.calls), audit_rows=audit_rows)


def forget_calls(connection: sqlite3.Connection, calls: Sequence[CallRecord]) -> Forgotten:
    """Delete calls that are still at their versions, and their locks."""
    for call in calls:
        if call.spent is not None:
            budgets.forget_spending(connection, "c.id = ? and c.version = ?", (call.id, call.version))
    gone = [call for call in calls if _gone(connection, "calls where id = ? and version = ?", call.id, call.version)]
    for call in gone:
        _gone(connection, "usage where call_id = ?", call.id)
        if call.locks is not None:
            _gone(connection, "locks where namespace = ? and run_id = ? and call_id = ?",
                  call.namespace, call.run_id, call.id)  # fmt: skip
    return Forgotten(calls=len(gone))


def forget_approvals(connection: sqlite3.Connection, namespace: str, run_id: str, before_us: int, limit: int) -> int:
    """Delete requests of a run that are over, and whose calls are gone; how many."""
    return _gone(connection, _OLD_APPROVALS, namespace, run_id, before_us, limit)


def _is_unchanged(connection: sqlite3.Connection, run: RunRecord, family: Family) -> bool:
    version = connection.execute("select version from runs where namespace = ? and id = ?", (run.namespace, run.id))
    calls = connection.execute(
        "select count(*), coalesce(sum(version), 0) from calls where namespace = ? and run_id = ?",
        (run.namespace, run.id),
    )
    return bool(version.fetchone() == (run.version,) and calls.fetchone() == family.versions_of(run))


def _gone(connection: sqlite3.Connection, what: str, *values: Any) -> int:
    """Delete ``what`` (a constant of this module) and say how many rows that were."""
    return connection.execute(f"delete from {what}", values).rowcount  # noqa: S608
