"""How MariaDB forgets: a run with all that is of it, a call, a request, audit rows; what was spent stays spent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

from sagaspan import _clock as clock
from sagaspan.ledger import chain
from sagaspan.ledger.records import AuditRow, CallRecord, RunRecord
from sagaspan.ledger.store import Family, Forgotten
from sagaspan.stores import _mariadb_changes as sql
from sagaspan.stores._mariadb_accounts import ENTRIES
from sagaspan.stores._mariadb_connection import NOW_US, execute, fetch
from sagaspan.stores._reading import OPEN, marks

if TYPE_CHECKING:
    from pymysql.connections import Connection

_FORGET_SPENDING: Final = f"""
update budgets b
  join ({ENTRIES.replace("{column}", "spent").replace("{which}", "{calls}")}) as e
    on b.namespace = e.namespace and b.scope = binary e.scope and b.unit = binary e.unit
   and b."window" = binary e."window" and b.start_us = e.start_us
   set b.forgotten = b.forgotten + e.amount
"""  # noqa: S608
_PAGE: Final = """
select seq, number, hash,
       (call_id is not null and not exists (select 1 from calls where calls.id = audit.call_id))
    or (approval_id is not null and not exists (select 1 from approvals where approvals.id = audit.approval_id))
  from audit where namespace = ? and run_id = ? and seq > ? order by seq limit ?
"""
_BUDGETS_OF: Final = """
budgets where namespace = ? and (scope = concat('run:', ?) or scope in (
  select concat('run:', run_id, '/', tool) from calls where namespace = ? and run_id = ?))
"""
"""Also what counts calls of one tool in this run (max_calls)."""
_OF_A_RUN: Final = ("calls", '"usage"', "locks", "loops", "approvals")


class MariadbForgetting(ABC):
    """The forgetting half of the store; rare, so a statement for each step."""

    @abstractmethod
    def _writing(self) -> AbstractContextManager[Connection[Any]]: ...

    def forget_leases(self, before_us: int) -> None:
        """Forget leases that ended before ``before_us`` and cover nothing any more."""
        ago = clock.now_us() - before_us
        with self._writing() as connection:
            execute(
                connection,
                f"delete from owners where until_us < {NOW_US} - ? "  # noqa: S608
                "and owner not in (select owner from runs where state in ('running', 'compensating')) "
                f"and owner not in (select owner from calls where {OPEN} and state = 'running')",
                (ago,),
            )

    def forget(self, families: Sequence[Family], *, actor: str) -> Forgotten:
        """Delete runs with all that is of them in one transaction; see ``Store.forget``."""
        with self._writing() as connection:
            _lock(connection, *((run.namespace, run.id) for family in families for run in family.runs))
            return sum((_forget(connection, family, actor) for family in families), Forgotten())

    def forget_calls(self, calls: Sequence[CallRecord]) -> Forgotten:
        """Delete calls that are still at their versions, and their locks, in one transaction."""
        gone = 0
        with self._writing() as connection:
            for call in sorted(calls, key=lambda call: call.id):
                which = ("select 1 from calls where id = ? and version = ? for update", (call.id, call.version))
                if not fetch(connection, *which):
                    continue
                if call.spent is not None:
                    _spend_for_good(connection, "c.id = ?", (call.id,))
                gone += _gone(connection, "calls where id = ?", call.id)
                _gone(connection, '"usage" where call_id = ?', call.id)
                if call.locks is not None:
                    _gone(connection, "locks where namespace = ? and run_id = ? and call_id = ?",
                          call.namespace, call.run_id, call.id)  # fmt: skip
        return Forgotten(calls=gone)

    def forget_approvals(self, namespace: str, run_id: str, before_us: int, *, limit: int) -> int:
        """Delete requests of a run that are over, and whose calls are gone; see ``Store.forget_approvals``."""
        which = (
            "approvals where namespace = ? and run_id = ? and coalesce(ended_us, expires_us) < ? "
            "and not exists (select 1 from calls where calls.id = approvals.call_id) limit ?"
        )
        with self._writing() as connection:
            return _gone(connection, which, namespace, run_id, before_us, limit)

    def forget_audit(
        self, namespace: str, run_id: str, after: int, *, limit: int, actor: str
    ) -> tuple[int, int | None]:
        """Delete audit rows of calls and requests that are gone; see ``Store.forget_audit``."""
        with self._writing() as connection:
            _lock(connection, (namespace, run_id))
            rows = fetch(connection, _PAGE, (namespace, run_id, after, limit))
            orphans = [(seq, number, digest) for seq, number, digest, is_orphan in rows if is_orphan]
            if orphans:
                gaps = chain.gaps_between([(number, digest) for _, number, digest in orphans])
                _append(connection, chain.forgetting(namespace, run_id, gaps, actor=actor, at_us=clock.now_us()))
                _gone(connection, f"audit where seq in ({marks(orphans)})", *(seq for seq, *_ in orphans))
        return len(orphans), rows[-1][0] if rows else None


def _lock(connection: Connection[Any], *runs: tuple[str, str]) -> None:
    """Hold these runs, and share the feed as everybody does who appends to the audit trail; in one order."""
    fetch(connection, "select n from places where n = ? lock in share mode", (sql.FEED,))
    for place in sorted({sql.place_of(*run) for run in runs}):
        fetch(connection, "select n from places where n = ? for update", (place,))


def _append(connection: Connection[Any], row: AuditRow) -> None:
    for (statement,) in sql.append(row, None, {}):
        with connection.cursor() as cursor:
            cursor.execute(statement.encode())


def _forget(connection: Connection[Any], family: Family, actor: str) -> Forgotten:
    if not all(_is_unchanged(connection, run, family) for run in family.runs):
        return Forgotten()
    audit_rows = 0
    for run in family.runs:
        whose = (run.namespace, run.id)
        last = fetch(
            connection,
            "select seq, number, hash from audit where namespace = ? and run_id = ? order by seq desc limit 1",
            whose,
        )
        for seq, number, digest in last:
            gap = [(1, number, bytes(digest))]
            _append(connection, chain.forgetting(*whose, gap, actor=actor, at_us=clock.now_us()))
            audit_rows += _gone(connection, "audit where namespace = ? and run_id = ? and seq <= ?", *whose, seq)
        _spend_for_good(connection, "c.namespace = ? and c.run_id = ?", whose)
        _gone(connection, _BUDGETS_OF, run.namespace, run.id, *whose)
        for table in _OF_A_RUN:
            _gone(connection, f"{table} where namespace = ? and run_id = ?", *whose)
        _gone(connection, "runs where namespace = ? and id = ?", *whose)
    return Forgotten(runs=len(family.runs), calls=len(family.calls), audit_rows=audit_rows)


def _is_unchanged(connection: Connection[Any], run: RunRecord, family: Family) -> bool:
    whose = (run.namespace, run.id)
    version = fetch(connection, "select version from runs where namespace = ? and id = ?", whose)
    ((count, versions),) = fetch(
        connection, "select count(*), coalesce(sum(version), 0) from calls where namespace = ? and run_id = ?", whose
    )
    return bool(version == [(run.version,)] and (count, int(versions)) == family.versions_of(run))


def _spend_for_good(connection: Connection[Any], calls: str, values: Sequence[Any]) -> None:
    execute(connection, _FORGET_SPENDING.format(calls=calls), values)


def _gone(connection: Connection[Any], what: str, *values: Any) -> int:
    """Delete ``what`` (a constant of this module) and say how many rows that were."""
    return execute(connection, f"delete from {what}", values)  # noqa: S608
