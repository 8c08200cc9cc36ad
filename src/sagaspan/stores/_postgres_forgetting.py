"""How PostgreSQL forgets: a run with all that is of it, a call, a request, audit rows; what was spent stays spent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

from sagaspan import _clock as clock
from sagaspan.ledger import chain
from sagaspan.ledger.records import AuditRow, CallRecord, RunRecord
from sagaspan.ledger.store import Family, Forgotten, NoteChange
from sagaspan.stores import _postgres_schema as schema
from sagaspan.stores import _requests as requests
from sagaspan.stores._postgres_accounts import ENTRIES
from sagaspan.stores._reading import OPEN

if TYPE_CHECKING:
    import psycopg

_NOW_US: Final = "(extract(epoch from clock_timestamp()) * 1000000)::bigint"
_FORGET_SPENDING: Final = f"""
update budgets b
   set forgotten = b.forgotten + e.amount
  from ({ENTRIES.replace("{column}", "spent").replace("{which}", "{calls}")}) as e
 where b.namespace = e.namespace and b.scope = e.scope and b.unit = e.unit
   and b."window" = e."window" and b.start_us = e.start_us
"""  # noqa: S608
_PAGE: Final = """
select seq, number, hash,
       (call_id is not null and not exists (select 1 from calls where calls.id = audit.call_id))
    or (approval_id is not null and not exists (select 1 from approvals where approvals.id = audit.approval_id))
  from audit where namespace = $1 and run_id = $2 and seq > $3 order by seq limit $4
"""
_OF_A_RUN: Final = (
    # Also what counts calls of one tool in this run (max_calls).
    """budgets where namespace = $1 and (scope = 'run:' || $2 or scope in (
         select 'run:' || $2 || '/' || tool from calls where namespace = $1 and run_id = $2))""",
    """slices where namespace = $1 and (scope = 'run:' || $2 or scope in (
         select 'run:' || $2 || '/' || tool from calls where namespace = $1 and run_id = $2))""",
    "calls where namespace = $1 and run_id = $2",
    "usage where namespace = $1 and run_id = $2",
    "locks where namespace = $1 and run_id = $2",
    "loops where namespace = $1 and run_id = $2",
    "approvals where namespace = $1 and run_id = $2",
    "runs where namespace = $1 and id = $2",
)


class PostgresForgetting(ABC):
    """The forgetting half of the store; rare, so a statement for each step."""

    @abstractmethod
    def _writing(self) -> AbstractContextManager[psycopg.Connection[Any]]: ...

    def forget_leases(self, before_us: int) -> None:
        """Forget leases that ended before ``before_us`` and cover nothing any more."""
        ago = clock.now_us() - before_us
        with self._writing() as connection:
            connection.execute(
                f"delete from owners where until_us < {_NOW_US} - $1 "  # noqa: S608
                "and owner not in (select owner from runs where state in ('running', 'compensating')) "
                f"and owner not in (select owner from calls where {OPEN} and state = 'running')",
                (ago,),
            )

    def forget(self, families: Sequence[Family], *, actor: str) -> Forgotten:
        """Delete runs with all that is of them in one transaction; see ``Store.forget``."""
        with self._writing() as connection:
            for namespace, run_id in sorted({(run.namespace, run.id) for family in families for run in family.runs}):
                _lock(connection, namespace, run_id)
            return sum((_forget(connection, family, actor) for family in families), Forgotten())

    def forget_calls(self, calls: Sequence[CallRecord]) -> Forgotten:
        """Delete calls that are still at their versions, and their locks, in one transaction."""
        gone = 0
        with self._writing() as connection:
            for call in sorted(calls, key=lambda call: call.id):
                if call.spent is not None:
                    _spend_for_good(connection, "c.id = $1 and c.version = $2", (call.id, call.version))
                if not _gone(connection, "calls where id = $1 and version = $2", call.id, call.version):
                    continue
                gone += 1
                _gone(connection, "usage where call_id = $1", call.id)
                if call.locks is not None:
                    _gone(connection, "locks where namespace = $1 and run_id = $2 and call_id = $3",
                          call.namespace, call.run_id, call.id)  # fmt: skip
        return Forgotten(calls=gone)

    def forget_approvals(self, namespace: str, run_id: str, before_us: int, *, limit: int) -> int:
        """Delete requests of a run that are over, and whose calls are gone; see ``Store.forget_approvals``."""
        which = (
            "approvals where id in (select id from approvals where namespace = $1 and run_id = $2 "
            "and coalesce(ended_us, expires_us) < $3 "
            "and not exists (select 1 from calls where calls.id = approvals.call_id) limit $4)"
        )
        with self._writing() as connection:
            return _gone(connection, which, namespace, run_id, before_us, limit)

    def forget_audit(
        self, namespace: str, run_id: str, after: int, *, limit: int, actor: str
    ) -> tuple[int, int | None]:
        """Delete audit rows of calls and requests that are gone; see ``Store.forget_audit``."""
        with self._writing() as connection:
            _lock(connection, namespace, run_id)
            rows = connection.execute(_PAGE, (namespace, run_id, after, limit)).fetchall()
            orphans = [(seq, number, digest) for seq, number, digest, is_orphan in rows if is_orphan]
            if orphans:
                gaps = chain.gaps_between([(number, digest) for _, number, digest in orphans])
                _append(connection, chain.forgetting(namespace, run_id, gaps, actor=actor, at_us=clock.now_us()))
                connection.execute("delete from audit where seq = any ($1::bigint[])", ([seq for seq, *_ in orphans],))
        return len(orphans), rows[-1][0] if rows else None


def _lock(connection: psycopg.Connection[Any], namespace: str, run_id: str) -> None:
    key = schema.RUN.format(namespace="$1::text", run="$2::text")
    connection.execute(f"select pg_advisory_xact_lock({key})", (namespace, run_id))


def _append(connection: psycopg.Connection[Any], row: AuditRow) -> None:
    request = requests.told([NoteChange(row)])
    connection.execute(f"select {schema.functions()[0]}($1::jsonb, false)", (request,))


def _forget(connection: psycopg.Connection[Any], family: Family, actor: str) -> Forgotten:
    if not all(_is_unchanged(connection, run, family) for run in family.runs):
        return Forgotten()
    audit_rows = 0
    for run in family.runs:
        whose = (run.namespace, run.id)
        last = connection.execute(
            "select seq, number, hash from audit where namespace = $1 and run_id = $2 order by seq desc limit 1", whose
        ).fetchone()
        if last is not None:
            seq, number, digest = last
            gap = [(1, number, bytes(digest))]
            _append(connection, chain.forgetting(*whose, gap, actor=actor, at_us=clock.now_us()))
            audit_rows += _gone(connection, "audit where namespace = $1 and run_id = $2 and seq <= $3", *whose, seq)
        _spend_for_good(connection, "c.namespace = $1 and c.run_id = $2", whose)
        for which in _OF_A_RUN:
            _gone(connection, which, *whose)
    return Forgotten(runs=len(family.runs), calls=len(family.calls), audit_rows=audit_rows)


def _is_unchanged(connection: psycopg.Connection[Any], run: RunRecord, family: Family) -> bool:
    whose = (run.namespace, run.id)
    version = connection.execute("select version from runs where namespace = $1 and id = $2", whose).fetchone()
    calls = connection.execute(
        "select count(*), coalesce(sum(version), 0)::bigint from calls where namespace = $1 and run_id = $2", whose
    ).fetchone()
    return bool(version == (run.version,) and calls == family.versions_of(run))


def _spend_for_good(connection: psycopg.Connection[Any], calls: str, values: tuple[Any, ...]) -> None:
    connection.execute(_FORGET_SPENDING.format(calls=calls), values)


def _gone(connection: psycopg.Connection[Any], what: str, *values: Any) -> int:
    """Delete ``what`` (a constant of this module) and say how many rows that were."""
    return connection.execute(f"delete from {what}", values).rowcount  # noqa: S608
