"""How every SQL store forgets: a run with all that is of it, a call, a request, audit rows; what was spent stays so.

Rare, so a statement for each step, in SQL that SQLite, PostgreSQL and MariaDB all understand. A store brings the
transaction, how it holds runs in it, and how it appends to the audit trail.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, Generic, TypeVar

from sagaspan import _clock as clock
from sagaspan.ledger import chain
from sagaspan.ledger.records import OWN, AuditRow, CallRecord
from sagaspan.ledger.store import Family, Forgotten
from sagaspan.scopes import scope_of_run, scope_of_tool_in_run
from sagaspan.stores._reading import OPEN, SqlReads, marks

C = TypeVar("C")
R = TypeVar("R")

Runs = Collection[tuple[str, str]]
"""Namespaces and ids of runs."""

_LEASES: Final = f"""
owners where until_us < ?
   and owner not in (select owner from runs where state in ('running', 'compensating'))
   and owner not in (select owner from calls where {OPEN} and state = 'running')
"""  # noqa: S608
_REQUESTS: Final = """
select id from approvals
 where namespace = ? and run_id = ? and coalesce(ended_us, expires_us) < ?
   and not exists (select 1 from calls where calls.id = approvals.call_id)
 limit ?
"""
_PAGE: Final = """
select seq, number, hash, call_id, approval_id, case when event = ? then detail end
  from audit where namespace = ? and run_id = ? and seq > ? order by seq limit ?
"""
_FORGOTTEN: Final = "select detail from audit where namespace = ? and run_id = ? and event = ?"
_LAST: Final = "select seq, number, hash from audit where namespace = ? and run_id = ? order by seq desc limit 1"
_VERSIONS: Final = "select count(*), coalesce(sum(version), 0) from calls where namespace = ? and run_id = ?"
_BOOK: Final = """
update budgets set forgotten = forgotten + ?
 where namespace = ? and scope = ? and unit = ? and "window" = ? and start_us = ?
"""
_OF_RUN: Final = "namespace = ? and run_id = ?"
_TABLES: Final = ("calls", '"usage"', "locks", "loops", "approvals")


class SqlForgets(SqlReads, Generic[C]):
    """The forgetting half of a ``Store`` over SQL, beside the reading one; ``C`` is a connection of its driver."""

    _budget_tables: tuple[str, ...] = ("budgets",)

    @abstractmethod
    def _written(self, job: Callable[[C], R]) -> R:
        """What ``job`` deletes, in one transaction; it need not be on disk: what comes back is deleted again."""

    @abstractmethod
    def _rows(self, connection: C, query: str, values: Sequence[Any]) -> list[Any]:
        """The rows of one statement; ``?`` stands for a value."""

    @abstractmethod
    def _do(self, connection: C, statement: str, values: Sequence[Any] = ()) -> int:
        """Run one statement; how many rows it found or made."""

    @abstractmethod
    def _hold(self, connection: C, runs: Runs) -> None:
        """Nobody else writes in these runs until the transaction is over; they are taken in one order."""

    @abstractmethod
    def _append(self, connection: C, row: AuditRow) -> None:
        """Append a row to the audit trail of a run that is held."""

    def forget_leases(self, before_us: int) -> None:
        """Forget leases that ended before ``before_us`` and cover nothing any more."""
        ago = clock.now_us() - before_us
        self._written(lambda connection: self._gone(connection, _LEASES, self.now_us() - ago))

    def forget(self, families: Sequence[Family], *, actor: str) -> Forgotten:
        """Delete runs with all that is of them in one transaction; see ``Store.forget``."""

        def forget(connection: C) -> Forgotten:
            self._hold(connection, {(run.namespace, run.id) for family in families for run in family.runs})
            same = [family for family in families if self._is_unchanged(connection, family)]
            self._spend_for_good(connection, (call for family in same for call in family.calls))
            return sum((self._forget(connection, family, actor) for family in same), Forgotten())

        return self._written(forget)

    def forget_calls(self, calls: Sequence[CallRecord], *, actor: str) -> Forgotten:
        """Delete calls that are still at their versions, and their locks, in one transaction."""

        def forget(connection: C) -> Forgotten:
            runs = {(call.namespace, call.run_id) for call in calls}
            self._hold(connection, runs)
            gone = [
                call for call in sorted(calls, key=lambda call: call.id)
                if self._gone(connection, "calls where id = ? and version = ?", call.id, call.version)
            ]  # fmt: skip
            for call in gone:
                self._gone(connection, '"usage" where call_id = ?', call.id)
                if call.locks is not None:
                    which = f"locks where {_OF_RUN} and call_id = ?"
                    self._gone(connection, which, call.namespace, call.run_id, call.id)
            for run in sorted(runs):
                self._name(connection, run, [call.id for call in gone if (call.namespace, call.run_id) == run], actor)
            self._spend_for_good(connection, gone)
            return Forgotten(calls=len(gone))

        return self._written(forget)

    def forget_approvals(self, namespace: str, run_id: str, before_us: int, *, limit: int, actor: str) -> int:
        """Delete requests of a run that are over, and whose calls are gone; see ``Store.forget_approvals``."""

        def forget(connection: C) -> int:
            self._hold(connection, [(namespace, run_id)])
            over = [name for (name,) in self._rows(connection, _REQUESTS, (namespace, run_id, before_us, limit))]
            self._name(connection, (namespace, run_id), over, actor)
            return self._gone(connection, f"approvals where id in ({marks(over)})", *over)

        return self._written(forget)

    def forgotten_of(self, namespace: str, run_id: str) -> frozenset[str]:
        """The calls and requests of a run that were forgotten one by one; see ``Store.forgotten_of``."""
        rows = self._fetch(_FORGOTTEN, (namespace, run_id, chain.FORGET_RECORDS))
        return frozenset().union(*(chain.records_in(detail) for (detail,) in rows))

    def forget_audit(
        self, namespace: str, run_id: str, forgotten: Collection[str], after: int, *, limit: int, actor: str
    ) -> tuple[int, int | None]:
        """Delete audit rows of ``forgotten`` records; see ``Store.forget_audit``."""

        def forget(connection: C) -> tuple[int, int | None]:
            self._hold(connection, [(namespace, run_id)])
            rows = self._rows(connection, _PAGE, (chain.FORGET_RECORDS, namespace, run_id, after, limit))
            of_records = [row for row in rows if row[3] in forgotten or row[4] in forgotten]
            # What names them comes after all rows of theirs, so those are gone by now.
            naming = [row for row in rows if row[5] is not None and chain.records_in(row[5]) <= set(forgotten)]
            gone = sorted((*of_records, *naming))
            if gone:
                gaps = chain.gaps_between([(number, digest) for _, number, digest, *_ in gone if number is not None])
                self._append(connection, _said(namespace, run_id, gaps, actor))
                self._gone(connection, f"audit where seq in ({marks(gone)})", *(seq for seq, *_ in gone))
            return len(of_records), rows[-1][0] if rows else None

        return self._written(forget)

    def _is_unchanged(self, connection: C, family: Family) -> bool:
        for run in family.runs:
            whose = (run.namespace, run.id)
            found = self._rows(connection, "select version from runs where namespace = ? and id = ?", whose)
            ((count, versions),) = self._rows(connection, _VERSIONS, whose)
            if found != [(run.version,)] or (count, int(versions)) != family.versions_of(run):
                return False
        return True

    def _forget(self, connection: C, family: Family, actor: str) -> Forgotten:
        audit_rows = 0
        for run in family.runs:
            whose = (run.namespace, run.id)
            for seq, number, digest in self._rows(connection, _LAST, whose):
                gaps = [] if number is None else [(1, number, digest)]
                self._append(connection, _said(*whose, gaps, actor))
                audit_rows += self._gone(connection, f"audit where {_OF_RUN} and seq <= ?", *whose, seq)
            tools = {call.tool for call in family.calls if call.run_id == run.id}
            scopes = [scope_of_run(run.id), *(scope_of_tool_in_run(run.id, tool) for tool in sorted(tools))]
            for table in self._budget_tables:
                which = f"{table} where namespace = ? and scope in ({marks(scopes)})"
                self._gone(connection, which, run.namespace, *scopes)
            for table in _TABLES:
                self._gone(connection, f"{table} where {_OF_RUN}", *whose)
            self._gone(connection, "runs where namespace = ? and id = ?", *whose)
        return Forgotten(runs=len(family.runs), calls=len(family.calls), audit_rows=audit_rows)

    def _name(self, connection: C, run: tuple[str, str], ids: Sequence[str], actor: str) -> None:
        """Append the row that names records of ``run`` that are forgotten; of none there is no row."""
        if ids:
            self._append(connection, chain.forgetting_records(*run, ids, actor=actor, at_us=clock.now_us()))

    def _spend_for_good(self, connection: C, calls: Iterable[CallRecord]) -> None:
        """What they spent stays spent, and is booked as forgotten; in the order in which commits take budgets."""
        amounts: Counter[tuple[Any, ...]] = Counter()
        for call in calls:
            for scope, unit, window, start_us, amount, *_ in _entries(call):
                if scope != OWN:
                    amounts[call.namespace, scope, unit, window, start_us] += amount
        for name, amount in sorted(amounts.items()):
            self._do(connection, _BOOK, (amount, *name))

    def _gone(self, connection: C, what: str, *values: Any) -> int:
        """Delete ``what`` (put together here) and say how many rows that were."""
        return self._do(connection, f"delete from {what}", values)  # noqa: S608


def _said(namespace: str, run_id: str, gaps: Sequence[chain.Gap], actor: str) -> AuditRow:
    return chain.forgetting(namespace, run_id, gaps, actor=actor, at_us=clock.now_us())


def _entries(call: CallRecord) -> list[Any]:
    """What a call took of budgets: scope, unit, window, begin and amount of each; what is no list is passed over."""
    try:
        found = json.loads(call.spent or "[]")
    except ValueError:
        return []
    return found if isinstance(found, list) else []
