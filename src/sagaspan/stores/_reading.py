"""What every SQL store reads, in SQL that SQLite, PostgreSQL and MariaDB all understand.

A store brings ``_fetch``; question marks stand for values, in their order. Names are quoted (``user``, ``key`` and
``usage`` are words of SQL), and a prefix is a range: text is compared byte by byte in each of the three, as their
indexes do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from sagaspan import _clock as clock
from sagaspan.ledger.records import (
    SETTLED,
    ApprovalRecord,
    ApprovalState,
    AuditRow,
    BudgetRecord,
    CallRecord,
    CallState,
    ChainedRow,
    DeliveryRecord,
    FreezeRecord,
    LeaseRecord,
    LimitRecord,
    LockRecord,
    LoopRecord,
    Phase,
    RunRecord,
    RunState,
    UsageTotals,
)
from sagaspan.ledger.seal import Seal
from sagaspan.ledger.store import Tally, Touched, Undoable
from sagaspan.stores import _columns as columns
from sagaspan.stores._usage import usage_query

R = TypeVar("R", CallRecord, RunRecord, AuditRow, ApprovalRecord)


def names(of: Sequence[str], table: str = "") -> str:
    """A list of columns, quoted."""
    return ", ".join(f'{table}."{name}"' if table else f'"{name}"' for name in of)


def lease_here(row: Sequence[Any]) -> LeaseRecord:
    """The lease of ``LEASE_COLUMNS`` and the server's time, its times as the clock of this host would say them."""
    *values, server_us = row
    lease = columns.lease_record(values)
    ahead = server_us - clock.now_us() if clock.is_real() else 0
    return replace(lease, renewed_us=lease.renewed_us - ahead, until_us=lease.until_us - ahead)


def marks(values: Sequence[object]) -> str:
    """A question mark for each value; of none, what nothing is in."""
    return ", ".join("?" * len(values)) or "null"


def narrowed(namespace: str | None) -> tuple[str, tuple[str, ...]]:
    """One more condition: of a namespace (None: of all), and its value."""
    return ("", ()) if namespace is None else (" and namespace = ?", (namespace,))


_CALLS: Final = names(columns.CALL_COLUMNS)
_RUNS: Final = names(columns.RUN_COLUMNS)
_APPROVALS: Final = names(columns.APPROVAL_COLUMNS)
_LOCKS: Final = names(columns.LOCK_COLUMNS)
_BUDGETS: Final = names(columns.BUDGET_COLUMNS)
_FREEZES: Final = names(columns.FREEZE_COLUMNS)
_LOOPS: Final = names(columns.LOOP_COLUMNS)
_LEASES: Final = names(columns.LEASE_COLUMNS)
_USAGE: Final = names(columns.USAGE_COLUMNS)
_DELIVERIES: Final = names(columns.DELIVERY_COLUMNS)
_AUDIT: Final = names(columns.AUDIT_COLUMNS)
_LIMITS: Final = names(columns.LIMIT_COLUMNS, "l")
_CHAINED: Final = f"""
select seq, number, content, hash, {_AUDIT} from audit
 where namespace = ? and run_id = ? and seq > ? order by seq limit ?
"""  # noqa: S608
_EVENTS: Final = f"""
select seq, {_AUDIT} from audit
 where namespace = ? and seq > ? and seq <= ?
   and (to_state in ('failed', 'compensated', 'partially_compensated', 'unknown', 'needs_human', 'compensation_failed')
        or event in ('approval.ask', 'soft_limit'))
 order by seq
"""  # noqa: S608
OPEN: Final = (
    "state in ('running', 'unknown', 'needs_human', 'compensating', 'compensation_failed', 'awaiting_approval', "
    "'scheduled')"
)
"""As the partial index ``calls_open`` says it, so that it is used."""
_NOBODY_S: Final = "(state = 'unknown' and coalesce(effect, '') = 'read' and locks is null)"
"""A read or a call of a model in doubt: it changed nothing, and what it may have cost is booked."""

_UNSETTLED: Final = (
    f"not (state in ({', '.join(map(repr, map(str, SETTLED)))}) and phase in ({', '.join(map(repr, map(str, Phase)))}))"
)
"""Also of which nobody knows what it says: ``columns.call_record`` gives that to a person."""

# From one to the next along the primary key: as many steps as there are namespaces, however many runs.
_NAMESPACES: Final = """
with recursive known (found) as (
  select min(namespace) from runs
   union all
  select (select min(namespace) from runs where namespace > found) from known where found is not null
)
select found from known where found is not null
"""
_LATE: Final = """
state = 'done' and id in (
  select call_id from audit as late
   where event = 'succeed' and from_state = 'failed'
     and not exists (select 1 from audit as later
                      where later.namespace = late.namespace and later.run_id = late.run_id
                        and later.call_id = late.call_id and later.seq > late.seq))
"""
"""Found by the partial index ``audit_late``."""
# Its calls are looked at once. What they cost is found by their run as well: call by call that takes ten times as long.
_TALLY: Final = """
with made (tool, compensate, state, claim_seq) as (
  select tool, compensate, state, claim_seq from calls where namespace = ? and run_id = ? and phase = 'forward'
)
select (select count(*) from made), (select sum(cost) from "usage" where namespace = ? and run_id = ?),
       undone.tool, undone.compensate, undone.calls, undone.kinds
  from (select 1 as one) as run
       left join (select tool, compensate, count(*) as calls, count(*) over () as kinds, max(claim_seq) as newest
                    from made where state = 'done' and compensate <> '' group by tool, compensate) as undone on true
 order by undone.newest desc limit ?
"""
_WITHOUT_HISTORY: Final = """
select '{kind}', namespace, {run}, id from {table}
 where not exists (select 1 from audit
                    where audit.namespace = {table}.namespace and audit.run_id = {table}.{run}){where}
 limit ?
"""
_OF_RUNS: Final = (("run", "runs", "id"), ("call", "calls", "run_id"), ("request", "approvals", "run_id"))
_NO_END: Final = 2**63 - 1
_LAST: Final = "\U0010ffff"
"""The last character of all: what begins with a prefix is not behind the prefix and this, many times."""


def prefixed(column: str, prefix: str) -> tuple[str, tuple[str, ...]]:
    """The condition that ``column`` starts with exactly ``prefix``, and its values."""
    stem = prefix.rstrip(_LAST)
    if not stem:
        return f"{column} >= ?", (prefix,)
    following = ord(stem[-1]) + 1
    after = stem[:-1] + chr(0xE000 if 0xD800 <= following < 0xE000 else following)  # no text holds half a character
    return f"({column} >= ? and {column} < ?)", (prefix, after)


class SqlReads(ABC):
    """The reading half of a ``Store`` over SQL."""

    seal: Seal
    _is_number = "ltrim({0}, '0123456789') = '' and {0} <> ''"
    _accounts = "budgets"
    _steers = False
    _order_of_calls = "seq"

    @abstractmethod
    def _fetch(self, query: str, values: Sequence[Any]) -> list[Any]:
        """The rows of one statement."""

    def now_us(self) -> int:
        """The time by which requests expire: that of this host."""
        return clock.now_us()

    def facts(self, namespace: str) -> dict[str, str]:
        """What the ledger knows of a namespace beside its records, by name."""
        return dict(self._fetch("select name, value from facts where namespace = ?", (namespace,)))

    def find_call(self, namespace: str, scope: str, tool: str, key: str) -> CallRecord | None:
        """The call recorded under this key."""
        where = 'namespace = ? and scope = ? and tool = ? and "key" = ?'
        return next(iter(self._calls(where, (namespace, scope, tool, key))), None)

    def get_call(self, call_id: str) -> CallRecord | None:
        """The call of this id."""
        return next(iter(self._calls("id = ?", (call_id,))), None)

    def calls_of(self, namespace: str, run_id: str) -> list[CallRecord]:
        """All calls of a run in claim order, compensations among them."""
        return self._calls("namespace = ? and run_id = ? order by claim_seq", (namespace, run_id))

    def open_calls_of(self, namespace: str, run_id: str) -> list[CallRecord]:
        """The calls of a run that are not settled; see ``Sifting.open_calls_of``."""
        return self._calls(f"namespace = ? and run_id = ? and {_UNSETTLED} order by claim_seq", (namespace, run_id))

    def tally_of(self, namespace: str, run_id: str, *, limit: int) -> Tally:
        """What a run has done, counted where its calls are; see ``Tallying.tally_of``."""
        rows = self._fetch(_TALLY, (*(namespace, run_id) * 2, max(limit, 1)))
        calls, cost, *_, kinds = rows[0]
        undoable = tuple(Undoable(*row[2:5]) for row in rows[:limit] if kinds)
        return Tally(calls, int(cost or 0), undoable, (kinds or 0) - len(undoable))  # a server adds up to decimals

    def get_run(self, namespace: str, run_id: str) -> RunRecord | None:
        """The run of this id."""
        return next(iter(self._runs("namespace = ? and id = ?", (namespace, run_id))), None)

    def children_of(self, namespace: str, run_id: str) -> list[RunRecord]:
        """The runs nested directly in a run."""
        return self._runs("namespace = ? and parent_id = ? order by created_us", (namespace, run_id))

    def locks_named(self, namespace: str, names: Sequence[str]) -> list[LockRecord]:
        """The locks of these names that were ever taken."""
        return self._locks(f"namespace = ? and name in ({marks(names)})", (namespace, *names))

    def locks_of(self, namespace: str, run_id: str) -> list[LockRecord]:
        """The locks that this run, or calls of it, took last; in the order of their names."""
        return self._locks("namespace = ? and run_id = ? order by name", (namespace, run_id))

    def controls_of(self, namespace: str) -> tuple[int, list[LimitRecord]]:
        """The version of a namespace's controls, 0 if none were ever set, and the limits in force at that version."""
        rows = self._fetch(
            f"select c.version, {_LIMITS} from controls c left join limits l on l.namespace = c.namespace "  # noqa: S608
            "where c.namespace = ?",
            (namespace,),
        )
        return (rows[0][0] if rows else 0), [columns.limit_record(row[1:]) for row in rows if row[1] is not None]

    def freezes_of(self, namespace: str | None) -> list[FreezeRecord]:
        """What is frozen in a namespace (None: in all), oldest first."""
        within, of = narrowed(namespace)
        query = f"select {_FREEZES} from freezes where true{within} order by at_us, scope"  # noqa: S608
        return [FreezeRecord(**dict(zip(columns.FREEZE_COLUMNS, row, strict=True))) for row in self._fetch(query, of)]

    def budget(self, record: BudgetRecord) -> BudgetRecord:
        """The budget that ``record`` names as it is now; ``record`` if nothing was ever used of it."""
        where = 'namespace = ? and scope = ? and unit = ? and "window" = ? and start_us = ?'
        return next(iter(self._budgets(where, columns.budget_name(record))), record)

    def budgets(self, namespace: str | None = None, scope: str | None = None) -> list[BudgetRecord]:
        """The budgets of which something was used, of a namespace and scope (None: of all)."""
        within, of = narrowed(namespace)
        if scope is not None:
            within, of = f"{within} and scope = ?", (*of, scope)
        return self._budgets(f"true{within} order by namespace, scope, unit, start_us", of)

    def usage_of(
        self, namespace: str | None, which: Mapping[str, str], *, since_us: int = 0, by: str | None = None
    ) -> list[UsageTotals]:
        """What calls used that were claimed since then and fit ``which``; see ``Store.usage_of``."""
        query, values = usage_query(namespace, which, since_us, by, steers=self._steers)
        return [columns.usage_totals(row) for row in self._fetch(query, values)]

    def arrival_of(self, namespace: str, name: str) -> int | None:
        """The arrival time that is kept for a rate, in nanoseconds."""
        rows = self._fetch("select arrival_ns from rates where namespace = ? and name = ?", (namespace, name))
        return rows[0][0] if rows else None

    def approval(self, approval_id: str) -> ApprovalRecord | None:
        """The request of this id."""
        return next(iter(self._approvals("id = ?", (approval_id,))), None)

    def approvals_about(
        self, namespace: str, scope: str, tool: str, key: str, digest: str | None = None
    ) -> list[ApprovalRecord]:
        """Requests for the call of this key, and all in its scope with this digest; newest first."""
        where = (
            'namespace = ? and scope = ? and tool = ? and ("key" = ? or digest = ?) order by created_us desc, id desc'
        )
        return self._approvals(where, (namespace, scope, tool, key, digest))

    def list_approvals(
        self,
        *,
        states: Sequence[ApprovalState] = (),
        namespace: str | None = None,
        run_id: str | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[ApprovalRecord]:
        """Requests of a namespace and run (None: of all), newest first."""
        within, of = narrowed(namespace)
        if run_id is not None:
            within, of = f"{within} and run_id = ?", (*of, run_id)
        where = (f"state in ({marks(states)})" if states else "true") + within
        return self._approvals(
            f"{where} order by created_us desc, id desc limit ? offset ?", (*states, *of, limit, offset)
        )

    def match_approvals(self, prefix: str, *, namespace: str | None = None, limit: int = 10) -> list[ApprovalRecord]:
        """Requests whose id starts with ``prefix``; that of exactly this id alone."""
        within, of = narrowed(namespace)
        exact = self._approvals(f"id = ?{within}", (prefix, *of))
        where, starts = prefixed("id", prefix)
        where = f"{where}{within} order by created_us desc limit ?"
        return exact or self._approvals(where, (*starts, *of, limit))

    def turns_of(self, namespace: str, thread: str, limit: int = 20) -> list[RunRecord]:
        """The runs ``THREAD/n`` of a conversation, the highest n first."""
        prefix = f"{thread}/"
        starts, values = prefixed("id", prefix)
        number = self._is_number.format(f"substr(id, {len(prefix) + 1})")
        where = f"namespace = ? and {starts} and {number} order by length(id) desc, id desc limit ?"
        return self._runs(where, (namespace, *values, limit))

    def namespaces(self) -> list[str]:
        """The namespaces in which there are runs, in order."""
        return [name for (name,) in self._fetch(_NAMESPACES, ())]

    def list_runs(
        self, *, states: Sequence[RunState] = (), namespace: str | None = None, limit: int = 100, offset: int = 0
    ) -> list[RunRecord]:
        """Runs of a namespace (None: of all), newest first."""
        within, of = narrowed(namespace)
        where = (f"state in ({marks(states)})" if states else "true") + within
        return self._runs(f"{where} order by created_us desc limit ? offset ?", (*states, *of, limit, offset))

    def match_runs(self, prefix: str, *, namespace: str | None = None, limit: int = 10) -> list[RunRecord]:
        """Runs of a namespace (None: of all) whose id starts with ``prefix``; the exact one alone if there is one."""
        within, of = narrowed(namespace)
        exact = self._runs(f"id = ?{within}", (prefix, *of))
        where, starts = prefixed("id", prefix)
        return exact or self._runs(f"{where}{within} order by created_us desc limit ?", (*starts, *of, limit))

    def match_calls(self, prefix: str, *, namespace: str | None = None, limit: int = 10) -> list[CallRecord]:
        """Calls whose id, key or idempotency key starts with ``prefix``; that of exactly this id alone."""
        within, of = narrowed(namespace)
        exact = self._calls(f"id = ?{within}", (prefix, *of))
        (by_id, starts), (by_key, _), (by_idempotency_key, _) = (
            prefixed(column, prefix) for column in ("id", '"key"', "idempotency_key")
        )
        where = f"({by_id} or {by_key} or {by_idempotency_key}){within} order by claim_seq desc limit ?"
        return exact or self._calls(where, (*starts, *starts, *starts, *of, limit))

    def open_calls(self, limit: int = 100, *, namespace: str | None = None) -> list[CallRecord]:
        """Calls of a namespace (None: of all) that are not settled, or that need a person, newest first.

        Reads and calls of models in doubt are settled, unless they keep a lock: nobody has anything to decide of them.
        """
        within, of = narrowed(namespace)
        return self._calls(f"{OPEN} and not {_NOBODY_S}{within} order by seq desc limit ?", (*of, limit))

    def loop_of(self, namespace: str, run_id: str) -> LoopRecord | None:
        """What a run remembers of loops beside its calls; None if that is nothing."""
        where = "namespace = ? and run_id = ?"
        rows = self._fetch(f"select {_LOOPS} from loops where {where}", (namespace, run_id))  # noqa: S608
        return LoopRecord(**dict(zip(columns.LOOP_COLUMNS, rows[0], strict=True))) if rows else None

    def reserving(self, namespace: str) -> list[CallRecord]:
        """The calls of a namespace that hold reservations of budgets."""
        return self._calls("namespace = ? and reserved is not null", (namespace,))

    def lease_of(self, owner: str) -> LeaseRecord | None:
        """The lease of this owner, or None if it never had one."""
        rows = self._fetch(f"select {_LEASES} from owners where owner = ?", (owner,))  # noqa: S608
        return columns.lease_record(rows[0]) if rows else None

    def unfinished_runs(self) -> list[RunRecord]:
        """Runs of every namespace that are ``running`` or ``compensating``, newest first."""
        return self._runs("state in ('running', 'compensating') order by created_us desc, id desc", ())

    def calls_in(self, state: CallState) -> list[CallRecord]:
        """The calls of every namespace in one of the open states, in claim order."""
        return self._calls(f"{OPEN} and state = ? order by claim_seq", (state,))

    def list_calls(
        self, *, states: Sequence[CallState] = (), namespace: str | None = None, limit: int = 100, offset: int = 0
    ) -> list[CallRecord]:
        """Calls of a namespace (None: of all), newest first, compensations among them."""
        within, of = narrowed(namespace)
        where = (f"state in ({marks(states)})" if states else "true") + within
        return self._calls(f"{where} order by seq desc limit ? offset ?", (*states, *of, limit, offset))

    def calls_in_scope(self, prefix: str, limit: int = 100, *, namespace: str | None = None) -> list[CallRecord]:
        """Calls of a namespace (None: of all) whose scope starts with ``prefix``, newest first."""
        # One search of the key's index a namespace, instead of a look at every call.
        spaces = self.namespaces() if namespace is None else [namespace]
        starts, values = prefixed("scope", prefix)
        where = f"namespace in ({marks(spaces)}) and {starts}"
        return self._calls(f"{where} order by seq desc limit ?", (*spaces, *values, limit))

    def late_calls(self, limit: int = 100, *, namespace: str | None = None) -> list[CallRecord]:
        """Calls of a namespace (None: of all) that are done after they were ``failed``, and nothing came after that."""
        within, of = narrowed(namespace)
        return self._calls(f"{_LATE}{within} order by seq desc limit ?", (*of, limit))

    def audit_of(self, namespace: str, run_id: str) -> list[AuditRow]:
        """The audit rows of a run in order."""
        query = f"select {_AUDIT} from audit where namespace = ? and run_id = ? order by seq"  # noqa: S608
        rows = self._opened([columns.audit_row(row) for row in self._fetch(query, (namespace, run_id))])
        # What says that a run of this id was forgotten is not of this one.
        opened = (number for number, row in enumerate(rows) if row.event == "run.open")
        return rows[max(opened, default=0) :]

    def chained(self, namespace: str, run_id: str, after: int, *, limit: int) -> list[ChainedRow]:
        """The audit rows of a run after row ``after`` of the ledger, in order, exactly as they are stored."""
        rows = self._fetch(_CHAINED, (namespace, run_id, after, limit))
        return [columns.chained_row(row) for row in rows]

    def newest_audit(self) -> int:
        """The number of the newest audit row of the ledger, 0 if there is none."""
        return int(self._fetch("select coalesce(max(seq), 0) from audit", ())[0][0])

    def hook_cursor(self, namespace: str, name: str) -> int | None:
        """How far a hook has read the audit trail; None if it is new."""
        rows = self._fetch('select "cursor" from hooks where namespace = ? and name = ?', (namespace, name))
        return rows[0][0] if rows else None

    def events(self, namespace: str, after: int, upto: int) -> list[tuple[int, AuditRow]]:
        """See ``Store.events``."""
        rows = self._fetch(_EVENTS, (namespace, after, upto))
        return [(row[0], self._opened([columns.audit_row(row[1:])])[0]) for row in rows]

    def touched(self, after: int, *, limit: int) -> Touched:
        """See ``Store.touched``."""
        return self._touched(after, _NO_END, limit)

    def _touched(self, after: int, upto: int, limit: int) -> Touched:
        query = f"select seq, {_AUDIT} from audit where seq > ? and seq <= ? order by seq limit ?"  # noqa: S608
        found = self._fetch(query, (after, upto, limit))
        rows = tuple((row[0], self._opened([columns.audit_row(row[1:])])[0]) for row in found)
        between = (after, rows[-1][0] if rows else after)
        among = "(select {} from audit where seq > ? and seq <= ?)"
        calls = among.format("call_id")
        usage = self._fetch(f'select {_USAGE} from "usage" where call_id in {calls}', between)  # noqa: S608
        return Touched(
            rows=rows,
            runs=tuple(self._runs(f"(namespace, id) in {among.format('namespace, run_id')}", between)),
            calls=tuple(self._calls(f"id in {calls}", between)),
            approvals=tuple(self._approvals(f"id in {among.format('approval_id')}", between)),
            usage=tuple(columns.usage_record(row) for row in usage),
        )

    def deliveries(
        self,
        *,
        namespace: str | None = None,
        hooks: Sequence[str] | None = None,
        due_us: int | None = None,
        dead: bool | None = None,
        limit: int = 100,
    ) -> list[DeliveryRecord]:
        """What is to be delivered, the oldest first; see ``Store.deliveries``."""
        values: tuple[Any, ...]
        within, values = narrowed(namespace)
        if hooks is not None:
            within, values = f"{within} and hook in ({marks(hooks)})", (*values, *hooks)
        if due_us is not None:
            within, values = f"{within} and next_us <= ?", (*values, due_us)
        if dead is not None:
            within = f"{within} and dead = {int(dead)}"
        query = f"select {_DELIVERIES} from deliveries where true{within}"  # noqa: S608
        rows = self._fetch(f"{query} order by created_us, id limit ?", (*values, limit))
        return [columns.delivery_record(row) for row in rows]

    def old_runs(
        self,
        before_us: int,
        *,
        states: Sequence[RunState],
        namespace: str | None,
        after: RunRecord | None,
        limit: int,
    ) -> list[RunRecord]:
        """Runs of some states made before ``before_us``, the oldest first, from ``after`` on."""
        within, whose = narrowed(namespace)
        cursor = (0, "", "") if after is None else (after.created_us, after.namespace, after.id)
        where = (
            f"state in ({marks(states)}) and created_us < ?{within} and (created_us, namespace, id) > (?, ?, ?) "
            "order by created_us, namespace, id limit ?"
        )
        return self._runs(where, (*states, before_us, *whose, *cursor, limit))

    def calls_after(self, namespace: str, run_id: str, after: CallRecord | None, *, limit: int) -> list[CallRecord]:
        """The calls of a run in the order of their first claims, from ``after`` on."""
        behind, cursor = ("", ()) if after is None else self._behind_call(after)
        where = f"namespace = ? and run_id = ?{behind} order by {self._order_of_calls} limit ?"
        return self._calls(where, (namespace, run_id, *cursor, limit))

    def _behind_call(self, after: CallRecord) -> tuple[str, tuple[Any, ...]]:
        """One more condition: to come after ``after`` in ``_order_of_calls``, by the index of a run's calls."""
        return " and seq > coalesce((select seq from calls where id = ?), 0)", (after.id,)

    def without_history(self, namespace: str | None, run_id: str | None, *, limit: int) -> list[tuple[str, ...]]:
        """Runs, calls and requests whose run has no audit row at all; see ``Store.without_history``."""
        within, of = narrowed(namespace)
        found: list[tuple[str, ...]] = []
        for kind, table, run in _OF_RUNS:
            where, values = (within, of) if run_id is None else (f"{within} and {run} = ?", (*of, run_id))
            query = _WITHOUT_HISTORY.format(kind=kind, table=table, run=run, where=where)
            found += self._fetch(query, (*values, limit))
        return [tuple(row) for row in found]

    def _calls(self, where: str, values: Sequence[Any]) -> list[CallRecord]:
        rows = self._fetch(f"select {_CALLS} from calls where {where}", values)  # noqa: S608
        return self._opened([columns.call_record(row) for row in rows])

    def _approvals(self, where: str, values: Sequence[Any]) -> list[ApprovalRecord]:
        rows = self._fetch(f"select {_APPROVALS} from approvals where {where}", values)  # noqa: S608
        return self._opened([columns.approval_record(row) for row in rows])

    def _runs(self, where: str, values: Sequence[Any]) -> list[RunRecord]:
        rows = self._fetch(f"select {_RUNS} from runs where {where}", values)  # noqa: S608
        return self._opened([columns.run_record(row) for row in rows])

    def _opened(self, records: list[R]) -> list[R]:
        return [self.seal.opened(record) for record in records] if self.seal.encryption else records

    def _locks(self, where: str, values: Sequence[Any]) -> list[LockRecord]:
        rows = self._fetch(f"select {_LOCKS} from locks where {where}", values)  # noqa: S608
        return [columns.lock_record(row) for row in rows]

    def _budgets(self, where: str, values: Sequence[Any]) -> list[BudgetRecord]:
        rows = self._fetch(f"select {_BUDGETS} from {self._accounts} where {where}", values)  # noqa: S608
        return [columns.budget_record(row) for row in rows]
