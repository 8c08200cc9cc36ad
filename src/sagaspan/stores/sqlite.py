"""The embedded store: one SQLite file in WAL mode, one connection a process.

A claim is committed with ``synchronous=FULL``; what follows it is not synced by itself. The WAL is a prefix log, so the
next claim's sync makes every earlier settle durable too: no later effect can rest on a lost result (rule book, 2).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from sagaspan import _clock as clock
from sagaspan import _fork as fork
from sagaspan._home import NAME as HOME_NAME
from sagaspan._home import make as make_home
from sagaspan.exceptions import StoreError, StoreUnavailable
from sagaspan.ledger.records import (
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
    RunRecord,
    RunState,
    UsageTotals,
)
from sagaspan.ledger.seal import Seal
from sagaspan.ledger.store import (
    SAVED,
    ApprovalChange,
    Barrier,
    Booked,
    CallChange,
    Change,
    Commit,
    Conditional,
    DeliveryChange,
    Family,
    Forgotten,
    FreezeChange,
    HookChange,
    LimitChange,
    LockChange,
    NonceChange,
    NoteChange,
    RunChange,
    SpendChange,
    Touched,
)
from sagaspan.stores import _columns as columns
from sagaspan.stores import _sqlite_audit as audit
from sagaspan.stores import _sqlite_budgets as budgets
from sagaspan.stores import _sqlite_notices as notices
from sagaspan.stores._migrate import current_version, migrate, migrations
from sagaspan.stores._mounts import MOUNTINFO, refuse_network_files
from sagaspan.stores._sqlite_audit import Chains

C = TypeVar("C", CallRecord, RunRecord, AuditRow, ApprovalRecord)

BUSY_SECONDS: Final = 10.0
"""How long to wait for a lock of another process; who queues up behind one of ours waits twice as long at most."""

PRIMED_BYTES: Final = 4_200_000
"""Past ``wal_autocheckpoint`` (1000 pages): a WAL that never grows while it is written commits a third faster."""

migrations("sqlite")  # read now: a process that is forked in its first call must not meet imports halfway

_CALLS: Final = ", ".join(columns.CALL_COLUMNS)
_RUNS: Final = ", ".join(columns.RUN_COLUMNS)
_AUDIT: Final = ", ".join(columns.AUDIT_COLUMNS)
_LEASES: Final = ", ".join(columns.LEASE_COLUMNS)
_LOCKS: Final = ", ".join(columns.LOCK_COLUMNS)
_APPROVALS: Final = ", ".join(columns.APPROVAL_COLUMNS)
_BUDGETS: Final = ", ".join(columns.BUDGET_COLUMNS)
_FREEZES: Final = ", ".join(columns.FREEZE_COLUMNS)
_LOOPS: Final = ", ".join(columns.LOOP_COLUMNS)
_LIMITS: Final = ", ".join(f"l.{name}" for name in columns.LIMIT_COLUMNS)


FORK_SECONDS: Final = 15.0
"""How long a fork waits for who is in the middle of SQLite; longer than a statement waits for another process."""

_stores: Final[weakref.WeakSet[SqliteStore]] = weakref.WeakSet()
_forking: Final = threading.local()
_inherited: Final[list[sqlite3.Connection]] = []
"""Connections that could not be closed before a fork: a child must not touch them, not even to close them."""


def _before_fork() -> None:
    """Close every connection, so that SQLite knows of no open file in the child.

    It keeps locks by process in its memory, and a child inherits that memory but no lock: a child that opened the
    ledger would hold nothing, and the last of its parent's processes to close would delete the WAL under it.
    """
    _forking.closed = [store for store in sorted(_stores, key=id) if store._close_to_fork()]  # noqa: SLF001 - one room


def _after_fork_in_parent() -> None:
    for store in _forking.closed:
        store._lock.release()  # noqa: SLF001 - the same room


def _after_fork_in_child() -> None:
    for store in list(_stores):
        store._begin_in_child(closed=store in _forking.closed)  # noqa: SLF001 - the same room


fork.hooks(before=_before_fork, in_parent=_after_fork_in_parent, in_child=_after_fork_in_child)


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
_UPDATE_CALL: Final = f"update calls set {_sets(columns.CALL_CHANGING)} where id = ? and version = ?"  # noqa: S608
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
_RENEW: Final = f"""
insert into owners ({", ".join(columns.LEASE_COLUMNS)}) values ({_marks(columns.LEASE_COLUMNS)})
    on conflict (owner) do update
   set renewed_us = excluded.renewed_us, until_us = excluded.until_us, until_boot_us = excluded.until_boot_us,
       ttl_us = excluded.ttl_us, beats = beats + 1
"""  # noqa: S608
_OPEN: Final = (
    "state in ('running', 'unknown', 'needs_human', 'compensating', 'compensation_failed', 'awaiting_approval', "
    "'scheduled')"
)
"""As the partial index ``calls_open`` says it, so that it is used."""
_NOBODY_S: Final = "(state = 'unknown' and coalesce(effect, '') = 'read' and locks is null)"
"""A read or a call of a model in doubt: it changed nothing, and what it may have cost is booked."""

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

_FORGET_LEASES: Final = f"""
delete from owners
 where until_us < ?
   and owner not in (select owner from runs where state in ('running', 'compensating'))
   and owner not in (select owner from calls where {_OPEN} and state = 'running')
"""  # noqa: S608
_PUT_FACT: Final = "insert into facts (namespace, name, value) values (?, ?, ?) on conflict do nothing"
_CHANGE_FACT: Final = "update facts set value = ? where namespace = ? and name = ? and value = ?"
_OLD_APPROVALS: Final = """
approvals where id in (
  select id from approvals
   where namespace = ? and run_id = ? and coalesce(ended_us, expires_us) < ?
     and not exists (select 1 from calls where calls.id = approvals.call_id)
   limit ?)
"""

_CLAIM_SEQ: Final = columns.CALL_COLUMNS.index("claim_seq")


_EVERYBODY_S: Final = (sqlite3.OperationalError,)
"""A locked, full or failing file is the matter of everybody who waits to write; other errors are of one request."""


class _Request:
    """Changes that wait to be written, and how that ended."""

    __slots__ = ("_commit", "_error", "changes", "ended", "synced")

    def __init__(self, changes: Sequence[Change], synced: bool) -> None:
        self.changes = changes
        self.synced = synced
        self.ended = False
        self._commit = SAVED
        self._error: StoreError | None = None

    def end(self, commit: Commit = SAVED, *, error: StoreError | None = None) -> None:
        self._commit, self._error, self.ended = commit, error, True

    def outcome(self) -> Commit:
        if self._error is not None:
            raise self._error
        return self._commit


class SqliteStore:
    """A ledger in one file (0600), opened at first use and again in a forked child."""

    def __init__(
        self,
        path: Path,
        *,
        migrate: str = "auto",
        durability: str = "normal",
        create: bool = True,
        mountinfo: Path = MOUNTINFO,
    ) -> None:
        self.path = path = Path(os.path.realpath(path))  # one name for one file, wherever the process goes
        self.url = f"sqlite:///{path}"
        self.seal = Seal(self)
        self._migrate = migrate == "auto"
        self._always_sync = durability == "full"
        self._never_sync = durability == "off"  # for tests: survives its process, not a power cut
        self._create = create
        self._mountinfo = mountinfo
        self._lock = fork.new_lock()
        self._queue: deque[_Request] = deque()
        self._chains = Chains()
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._usable = True
        _stores.add(self)

    def _close_to_fork(self) -> bool:
        """Close the connection, and let nobody open it before ``_lock`` is released; False if it stays in use."""
        if not self._lock.acquire(timeout=FORK_SECONDS):
            return False
        try:
            self._close()
        except sqlite3.Error:
            self._lock.release()
            return False
        return True

    def _begin_in_child(self, *, closed: bool) -> None:
        """Start with nothing open and nobody waiting, whatever the parent was doing."""
        self._queue = deque()
        self._usable = closed
        if self._connection is not None:
            _inherited.append(self._connection)
            self._connection = None

    # -- writing -------------------------------------------------------------------------------------------

    def commit(self, changes: Sequence[Change], *, synced: bool) -> Commit:
        """Save all changes in one transaction, or none of them; see ``Store.commit``.

        A caller who finds the connection free writes for itself at once. Those who come meanwhile queue up, and the
        next of them writes for all: one sync serves a crowd.
        """
        if self.seal.active:
            changes = [self.seal.closed(change) for change in changes]
        request = _Request(changes, (synced or self._always_sync) and not self._never_sync)
        self._queue.append(request)
        try:
            with self._connected() as connection:
                if not request.ended:
                    self._write_all(connection)
        except BaseException as error:
            # Whoever was told that it failed must not find it done by the next writer: no half-claimed call.
            with self._lock, contextlib.suppress(ValueError):
                self._queue.remove(request)
            if not (request.ended and isinstance(error, Exception)):  # else somebody had written it already
                raise
        return request.outcome()

    def _write_all(self, connection: sqlite3.Connection) -> None:
        batch = [self._queue.popleft() for _ in range(len(self._queue))]
        try:
            self._write_batch(connection, batch)
        except BaseException:
            # Interrupted in the middle, and rolled back: whoever waits next writes for the others.
            self._queue.extendleft(request for request in reversed(batch) if not request.ended)
            raise

    def _write_batch(self, connection: sqlite3.Connection, batch: Sequence[_Request]) -> None:
        try:
            _write(connection, batch, self._chains)
        except (sqlite3.Error, ValueError, OverflowError) as error:
            if len(batch) > 1 and not isinstance(error, _EVERYBODY_S):
                for request in batch:  # what is wrong with one of them is no matter of the others
                    self._write_batch(connection, [request])
                return
            for request in batch:
                request.end(error=self._error(error))

    def _error(self, error: Exception) -> StoreError:
        if isinstance(error, sqlite3.Error):
            return StoreUnavailable(_explain(self.path, error))
        return StoreError(f"the ledger {self.path} cannot hold a value of this record ({error}); nothing was started")

    def facts(self, namespace: str) -> dict[str, str]:
        """What the ledger knows of a namespace beside its records, by name."""
        return dict(self._fetch("select name, value from facts where namespace = ?", (namespace,)))

    def put_fact(self, namespace: str, name: str, value: str, *, expected: str | None) -> bool:
        """Save a fact if it still is ``expected``; see ``Store.put_fact``."""
        with self._connected() as connection:
            connection.execute("pragma synchronous = full")
            if expected is None:
                saved = connection.execute(_PUT_FACT, (namespace, name, value))
            else:
                saved = connection.execute(_CHANGE_FACT, (value, namespace, name, expected))
            return saved.rowcount == 1

    def renew(self, lease: LeaseRecord) -> None:
        """Save a lease under its owner; see ``Store.renew``. Every third of a lease it also looks for its file."""
        with self._connected() as connection:
            self._check_in_place()
            connection.execute("pragma synchronous = normal")
            connection.execute(_RENEW, columns.lease_values(lease))

    def forget_leases(self, before_us: int) -> None:
        """Forget leases that ended before ``before_us`` and cover nothing any more."""
        with self._connected() as connection:
            connection.execute(_FORGET_LEASES, (before_us,))

    # -- reading -------------------------------------------------------------------------------------------

    def find_call(self, namespace: str, scope: str, tool: str, key: str) -> CallRecord | None:
        """The call recorded under this key."""
        where = "namespace = ? and scope = ? and tool = ? and key = ?"
        return next(iter(self._calls(where, (namespace, scope, tool, key))), None)

    def get_call(self, call_id: str) -> CallRecord | None:
        """The call of this id."""
        return next(iter(self._calls("id = ?", (call_id,))), None)

    def calls_of(self, namespace: str, run_id: str) -> list[CallRecord]:
        """All calls of a run in claim order, compensations among them."""
        return self._calls("namespace = ? and run_id = ? order by claim_seq", (namespace, run_id))

    def get_run(self, namespace: str, run_id: str) -> RunRecord | None:
        """The run of this id."""
        return next(iter(self._runs("namespace = ? and id = ?", (namespace, run_id))), None)

    def children_of(self, namespace: str, run_id: str) -> list[RunRecord]:
        """The runs nested directly in a run."""
        return self._runs("namespace = ? and parent_id = ? order by created_us", (namespace, run_id))

    def locks_named(self, namespace: str, names: Sequence[str]) -> list[LockRecord]:
        """The locks of these names that were ever taken."""
        return self._locks(f"namespace = ? and name in ({_marks(names)})", (namespace, *names))

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
        query = f"select {_FREEZES} from freezes where ?1 is null or namespace = ?1 order by at_us, scope"  # noqa: S608
        return [FreezeRecord(**dict(zip(columns.FREEZE_COLUMNS, row, strict=True)))
                for row in self._fetch(query, (namespace,))]  # fmt: skip

    def budget(self, record: BudgetRecord) -> BudgetRecord:
        """The budget that ``record`` names as it is now; ``record`` if nothing was ever used of it."""
        where = "namespace = ? and scope = ? and unit = ? and window = ? and start_us = ?"
        return next(iter(self._budgets(where, columns.budget_name(record))), record)

    def budgets(self, namespace: str | None = None, scope: str | None = None) -> list[BudgetRecord]:
        """The budgets of which something was used, of a namespace and scope (None: of all)."""
        return self._budgets(
            "(?1 is null or namespace = ?1) and (?2 is null or scope = ?2) order by namespace, scope, unit, start_us",
            (namespace, scope),
        )

    def usage_of(
        self, namespace: str | None, which: Mapping[str, str], *, since_us: int = 0, by: str | None = None
    ) -> list[UsageTotals]:
        """What calls used that were claimed since then and fit ``which``; see ``Store.usage_of``."""
        query, values = budgets.usage_query(namespace, which, since_us, by)
        return [columns.usage_totals(row) for row in self._fetch(query, values)]

    def booked_by_calls(self, namespace: str | None = None) -> list[Booked]:
        """Each budget of which anything was used, and what calls say of it; see ``Store.booked_by_calls``."""
        with self._connected() as connection:
            return budgets.booked_by_calls(connection, namespace)

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
        where = "namespace = ? and scope = ? and tool = ? and (key = ? or digest = ?) order by created_us desc, id desc"
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
        within, of = _within(namespace)
        where = (f"state in ({_marks(states)})" if states else "true") + within + " and coalesce(?, run_id) = run_id"
        return self._approvals(
            f"{where} order by created_us desc, id desc limit ? offset ?", (*states, *of, run_id, limit, offset)
        )

    def match_approvals(self, prefix: str, *, namespace: str | None = None, limit: int = 10) -> list[ApprovalRecord]:
        """Requests whose id starts with ``prefix``; that of exactly this id alone."""
        within, of = _within(namespace)
        exact = self._approvals(f"id = ?{within}", (prefix, *of))
        where = f"id glob ?{within} order by created_us desc limit ?"
        return exact or self._approvals(where, (_glob(prefix), *of, limit))

    def turns_of(self, namespace: str, thread: str, limit: int = 20) -> list[RunRecord]:
        """The runs ``THREAD/n`` of a conversation, the highest n first."""
        prefix = _glob(f"{thread}/").removesuffix("*")
        where = "namespace = ? and id glob ? and id not glob ? order by length(id) desc, id desc limit ?"
        return self._runs(where, (namespace, f"{prefix}[0-9]*", f"{prefix}*[^0-9]*", limit))

    def namespaces(self) -> list[str]:
        """The namespaces in which there are runs, in order."""
        return [name for (name,) in self._fetch(_NAMESPACES, ())]

    def list_runs(
        self, *, states: Sequence[RunState] = (), namespace: str | None = None, limit: int = 100, offset: int = 0
    ) -> list[RunRecord]:
        """Runs of a namespace (None: of all), newest first."""
        within, of = _within(namespace)
        where = (f"state in ({_marks(states)})" if states else "true") + within
        return self._runs(f"{where} order by created_us desc limit ? offset ?", (*states, *of, limit, offset))

    def match_runs(self, prefix: str, *, namespace: str | None = None, limit: int = 10) -> list[RunRecord]:
        """Runs of a namespace (None: of all) whose id starts with ``prefix``; the exact one alone if there is one."""
        within, of = _within(namespace)
        exact = self._runs(f"id = ?{within}", (prefix, *of))
        return exact or self._runs(f"id glob ?{within} order by created_us desc limit ?", (_glob(prefix), *of, limit))

    def match_calls(self, prefix: str, *, namespace: str | None = None, limit: int = 10) -> list[CallRecord]:
        """Calls whose id, key or idempotency key starts with ``prefix``; that of exactly this id alone."""
        within, of = _within(namespace)
        exact = self._calls(f"id = ?{within}", (prefix, *of))
        where = f"(id glob ? or key glob ? or idempotency_key glob ?){within} order by claim_seq desc limit ?"
        return exact or self._calls(where, (*[_glob(prefix)] * 3, *of, limit))

    def open_calls(self, limit: int = 100, *, namespace: str | None = None) -> list[CallRecord]:
        """Calls of a namespace (None: of all) that are not settled, or that need a person, newest first.

        Reads and calls of models in doubt are settled, unless they keep a lock: nobody has anything to decide of them.
        """
        within, of = _within(namespace)
        return self._calls(f"{_OPEN} and not {_NOBODY_S}{within} order by seq desc limit ?", (*of, limit))

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
        return self._calls(f"{_OPEN} and state = ? order by claim_seq", (state,))

    def list_calls(
        self, *, states: Sequence[CallState] = (), namespace: str | None = None, limit: int = 100, offset: int = 0
    ) -> list[CallRecord]:
        """Calls of a namespace (None: of all), newest first, compensations among them."""
        within, of = _within(namespace)
        where = (f"state in ({_marks(states)})" if states else "true") + within
        return self._calls(f"{where} order by seq desc limit ? offset ?", (*states, *of, limit, offset))

    def calls_in_scope(self, prefix: str, limit: int = 100, *, namespace: str | None = None) -> list[CallRecord]:
        """Calls of a namespace (None: of all) whose scope starts with ``prefix``, newest first."""
        # One search of the key's index a namespace, instead of a look at every call.
        names = self.namespaces() if namespace is None else [namespace]
        where = f"namespace in ({_marks(names)}) and scope >= ? and scope < ?"
        after = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        return self._calls(f"{where} order by seq desc limit ?", (*names, prefix, after, limit))

    def late_calls(self, limit: int = 100, *, namespace: str | None = None) -> list[CallRecord]:
        """Calls of a namespace (None: of all) that are done after they were ``failed``, and nothing came after that."""
        within, of = _within(namespace)
        return self._calls(f"{_LATE}{within} order by seq desc limit ?", (*of, limit))

    def audit_of(self, namespace: str, run_id: str) -> list[AuditRow]:
        """The audit rows of a run in order."""
        query = f"select {_AUDIT} from audit where namespace = ? and run_id = ? order by seq"  # noqa: S608
        rows = self._opened([columns.audit_row(row) for row in self._fetch(query, (namespace, run_id))])
        # What says that a run of this id was forgotten is not of this one.
        opened = (number for number, row in enumerate(rows) if row.event == "run.open")
        return rows[max(opened, default=0) :]

    def chains(self, after: tuple[str, str] | None, *, limit: int) -> list[tuple[str, str]]:
        """The namespaces and runs that have audit rows, in order, from ``after`` on."""
        return self._fetch(audit.CHAINS, (*(after or ("", "")), after is not None, limit))

    def chained(self, namespace: str, run_id: str, after: int, *, limit: int) -> list[ChainedRow]:
        """The audit rows of a run after row ``after`` of the ledger, in order, exactly as they are stored."""
        rows = self._fetch(audit.CHAINED, (namespace, run_id, after, limit))
        return [audit.chained_row(row) for row in rows]

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """All that is read in it is of one moment; for a store that nobody else uses meanwhile."""
        with self._connected() as connection:
            connection.execute("begin")
        try:
            yield
        finally:
            with self._connected() as connection:
                connection.execute("rollback")

    # -- notifications -------------------------------------------------------------------------------------

    def newest_audit(self) -> int:
        """The number of the newest audit row of the ledger, 0 if there is none."""
        return int(self._fetch(notices.NEWEST, ())[0][0])

    def hook_cursor(self, namespace: str, name: str) -> int | None:
        """How far a hook has read the audit trail; None if it is new."""
        return next((cursor for (cursor,) in self._fetch(notices.CURSOR, (namespace, name))), None)

    def events(self, namespace: str, after: int, upto: int) -> list[tuple[int, AuditRow]]:
        """See ``Store.events``."""
        rows = self._fetch(notices.EVENTS, (namespace, after, upto))
        return [(row[0], self._opened([columns.audit_row(row[1:])])[0]) for row in rows]

    def touched(self, after: int, *, limit: int) -> Touched:
        """See ``Store.touched``."""
        found = self._fetch(f"select seq, {_AUDIT} from audit where seq > ? order by seq limit ?", (after, limit))  # noqa: S608
        rows = tuple((row[0], self._opened([columns.audit_row(row[1:])])[0]) for row in found)
        between = (after, rows[-1][0] if rows else after)
        among = "(select {} from audit where seq > ? and seq <= ?)"
        calls = among.format("call_id")
        usage = self._fetch(f"select {', '.join(columns.USAGE_COLUMNS)} from usage where call_id in {calls}", between)  # noqa: S608
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
        return [
            notices.delivery(row)
            for row in self._fetch(*notices.deliveries_query(namespace, hooks, due_us, dead, limit))
        ]

    # -- forgetting ----------------------------------------------------------------------------------------

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
        within, whose = _within(namespace)
        cursor = (0, "", "") if after is None else (after.created_us, after.namespace, after.id)
        where = (
            f"state in ({_marks(states)}) and created_us < ?{within} and (created_us, namespace, id) > (?, ?, ?) "
            "order by created_us, namespace, id limit ?"
        )
        return self._runs(where, (*states, before_us, *whose, *cursor, limit))

    def calls_after(self, namespace: str, run_id: str, after: CallRecord | None, *, limit: int) -> list[CallRecord]:
        """The calls of a run in the order of their first claims, from ``after`` on."""
        cursor = "coalesce((select seq from calls where id = ?), 0)"
        where = f"namespace = ? and run_id = ? and seq > {cursor} order by seq limit ?"
        return self._calls(where, (namespace, run_id, "" if after is None else after.id, limit))

    def forget(self, families: Sequence[Family], *, actor: str) -> Forgotten:
        """Delete runs with all that is of them in one transaction; see ``Store.forget``."""
        with self._writing() as connection:
            return sum((_forget(connection, family, self._chains, actor) for family in families), Forgotten())

    def forget_calls(self, calls: Sequence[CallRecord]) -> Forgotten:
        """Delete calls that are still at their versions, and their locks, in one transaction."""
        with self._writing() as connection:
            for call in calls:
                if call.spent is not None:
                    budgets.forget_spending(connection, "c.id = ? and c.version = ?", (call.id, call.version))
            gone = [
                call for call in calls if _gone(connection, "calls where id = ? and version = ?", call.id, call.version)
            ]
            for call in gone:
                _gone(connection, "usage where call_id = ?", call.id)
                if call.locks is not None:
                    _gone(connection, "locks where namespace = ? and run_id = ? and call_id = ?",
                          call.namespace, call.run_id, call.id)  # fmt: skip
        return Forgotten(calls=len(gone))

    def forget_approvals(self, namespace: str, run_id: str, before_us: int, *, limit: int) -> int:
        """Delete requests of a run that are over, and whose calls are gone; see ``Store.forget_approvals``."""
        with self._writing() as connection:
            return _gone(connection, _OLD_APPROVALS, namespace, run_id, before_us, limit)

    def forget_audit(
        self, namespace: str, run_id: str, after: int, *, limit: int, actor: str
    ) -> tuple[int, int | None]:
        """Delete audit rows of calls and requests that are gone; see ``Store.forget_audit``."""
        with self._writing() as connection:
            return audit.forget_some(connection, self._chains, namespace, run_id, after, limit=limit, actor=actor)

    def spare_bytes(self) -> int:
        """The room of the free pages in the file."""
        ((pages,),), ((size,),) = self._fetch("pragma freelist_count", ()), self._fetch("pragma page_size", ())
        return int(pages) * int(size)

    def compact(self) -> None:
        """Write the file anew without its free pages; writers wait meanwhile."""
        with self._connected() as connection:
            connection.execute("vacuum")
            connection.execute("pragma wal_checkpoint(truncate)")  # the whole file went through the WAL

    def describe(self) -> dict[str, str | int]:
        """Facts for ``sagaspan doctor``."""
        with self._connected() as connection:
            facts: dict[str, str | int] = {
                "url": self.url,
                "schema": current_version(connection, str(self.path)),
            }
            for table in ("runs", "calls", "audit"):
                (facts[table],) = connection.execute(f"select count(*) from {table}").fetchone()  # noqa: S608
            (facts["quick_check"],) = connection.execute("pragma quick_check").fetchone()
        return facts

    def close(self) -> None:
        """Close the connection; the next use opens it again."""
        with self._lock:
            self._close()
            self._file = None

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    # -- the connection ------------------------------------------------------------------------------------

    def _calls(self, where: str, values: Sequence[Any]) -> list[CallRecord]:
        rows = self._fetch(f"select {_CALLS} from calls where {where}", values)  # noqa: S608
        return self._opened([columns.call_record(row) for row in rows])

    def _approvals(self, where: str, values: Sequence[Any]) -> list[ApprovalRecord]:
        rows = self._fetch(f"select {_APPROVALS} from approvals where {where}", values)  # noqa: S608
        return self._opened([columns.approval_record(row) for row in rows])

    def _runs(self, where: str, values: Sequence[Any]) -> list[RunRecord]:
        rows = self._fetch(f"select {_RUNS} from runs where {where}", values)  # noqa: S608
        return self._opened([columns.run_record(row) for row in rows])

    def _opened(self, records: list[C]) -> list[C]:
        return [self.seal.opened(record) for record in records] if self.seal.encryption else records

    def _locks(self, where: str, values: Sequence[Any]) -> list[LockRecord]:
        rows = self._fetch(f"select {_LOCKS} from locks where {where}", values)  # noqa: S608
        return [columns.lock_record(row) for row in rows]

    def _budgets(self, where: str, values: Sequence[Any]) -> list[BudgetRecord]:
        rows = self._fetch(f"select {_BUDGETS} from budgets where {where}", values)  # noqa: S608
        return [columns.budget_record(row) for row in rows]

    def _fetch(self, query: str, values: Sequence[Any]) -> list[Any]:
        with self._connected() as connection:
            try:
                return connection.execute(query, values).fetchall()
            except sqlite3.OperationalError as error:
                if "decode" not in str(error):
                    raise
                return _fetch_damaged(connection, query, values)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction that deletes; it need not be synced: what comes back after a power cut is deleted again."""
        with self._connected() as connection:
            connection.execute("pragma synchronous = normal")
            connection.execute("begin immediate")
            try:
                yield connection
                connection.execute("commit")
            except BaseException:
                self._chains.forget()
                if connection.in_transaction:
                    connection.execute("rollback")
                raise

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = self._open()
                yield self._connection
            except sqlite3.Error as error:
                raise StoreUnavailable(_explain(self.path, error)) from error

    def _check_in_place(self) -> None:
        """SQLite goes on writing to a file that was deleted or replaced: what is claimed there protects nothing."""
        if _identity(self.path) != self._file:
            raise StoreUnavailable(
                f"the ledger {self.path} was moved, deleted or replaced while it was in use; put it back, or start "
                "this process again (nothing was started)"
            )

    def _address(self) -> str:
        """The file as SQLite opens it: one that is only read, and lies where nothing can be written, as it is."""
        beside = Path(f"{self.path}-wal")
        immutable = not self._create and not os.access(self.path.parent, os.W_OK) and not beside.exists()
        return f"{self.path.as_uri()}?immutable=1" if immutable else self.path.as_uri()

    def _open(self) -> sqlite3.Connection:
        if not self._usable:
            raise StoreUnavailable(
                f"this process was forked while its parent was in the middle of the ledger {self.path}, and cannot use "
                "it; fork while nothing is being written, or start processes with spawn"
            )
        if self._file is not None:  # closed for a fork, not by its user: it must still be the same file
            self._check_in_place()
        refuse_network_files(self.path, self._mountinfo)
        self._prepare_file()
        connection = sqlite3.connect(
            self._address(),
            uri=True,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=64,
        )
        try:
            current_version(connection, str(self.path))  # before anything is written to what may not be ours
            _write_ahead(connection)
            migrate(connection, str(self.path), apply=self._migrate)
            if self._create and not self._never_sync:
                self._prime(connection)
        except BaseException:
            connection.close()
            raise
        self._file = _identity(self.path)
        self._chains.forget()
        return connection

    def _prepare_file(self) -> None:
        try:
            if self.path.is_file():
                return
            if not self._create:
                raise StoreUnavailable(
                    f"there is no ledger at {self.path} yet; run an agent under a guard first, or name it with --store"
                )
            if self.path.parent.name == HOME_NAME:
                make_home(self.path.parent)
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))  # SQLite gives WAL and SHM the same mode
        except OSError as error:
            raise StoreUnavailable(
                f"the ledger {self.path} cannot be made ({error.strerror}); name a path you can write with store="
            ) from error

    def _prime(self, connection: sqlite3.Connection) -> None:
        wal = Path(f"{self.path}-wal")
        if wal.exists() and wal.stat().st_size >= PRIMED_BYTES:
            return
        connection.execute("begin immediate")
        connection.execute("create table priming (filler blob)")
        connection.execute("insert into priming values (zeroblob(?))", (PRIMED_BYTES,))
        connection.execute("drop table priming")
        connection.execute("commit")


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Switch to WAL. SQLite does not wait for the lock that it takes: two who open a new ledger at once would fail."""
    deadline = clock.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("pragma journal_mode = wal")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or clock.monotonic() >= deadline:
                raise
            clock.sleep(0.01)
        else:
            return


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _fetch_damaged(connection: sqlite3.Connection, query: str, values: Sequence[Any]) -> list[Any]:
    """As ``fetchall`` where a text is not UTF-8: one damaged row must not hide all others."""
    connection.text_factory = lambda data: data.decode("utf-8", "backslashreplace")
    try:
        return connection.execute(query, values).fetchall()
    finally:
        connection.text_factory = str


def _write(connection: sqlite3.Connection, batch: Sequence[_Request], chains: Chains) -> None:
    """Write a batch in one transaction; each request in it is still all or nothing."""
    execute = connection.execute
    level = "full" if True in [request.synced for request in batch] else "normal"
    execute(f"pragma synchronous = {level}")
    execute("begin immediate")
    try:
        if len(batch) == 1:
            results = [_save_all(connection, batch[0], chains)]
        else:
            results = [_save_apart(connection, request, chains) for request in batch]
        execute("commit" if any(results) else "rollback")
    except BaseException:
        chains.forget()
        if connection.in_transaction:
            execute("rollback")
        raise
    for request, commit in zip(batch, results, strict=True):
        request.end(commit)


def _save_all(connection: sqlite3.Connection, request: _Request, chains: Chains) -> Commit:
    used: list[int] = []
    for change in request.changes:
        if isinstance(change, SpendChange):
            used.append(budgets.spend(connection, change))
            for mark in change.marks:
                if used[-1] - change.spent < mark.at <= used[-1]:
                    chains.append(connection, mark.audit)
        elif not _save(connection, change, chains):
            chains.forget()  # what it appended is rolled back
            return Commit(change)
    return Commit(used=tuple(used)) if used else SAVED


def _save_apart(connection: sqlite3.Connection, request: _Request, chains: Chains) -> Commit:
    """One request of several: what is refused of it does not touch the others."""
    connection.execute("savepoint request")
    commit = _save_all(connection, request, chains)
    if not commit:
        connection.execute("rollback to request")
    connection.execute("release request")
    return commit


def _save(connection: sqlite3.Connection, change: Conditional, chains: Chains) -> bool:
    if isinstance(change, LockChange):
        return _save_lock(connection, change)
    if isinstance(change, NonceChange):
        connection.execute("delete from nonces where until_us <= ?", (change.now_us,))
        return connection.execute(_USE_NONCE, (change.namespace, change.id, change.until_us)).rowcount == 1
    if isinstance(change, HookChange):
        return notices.save_hook(connection, change)
    if isinstance(change, DeliveryChange):
        return notices.save_delivery(connection, change)
    if isinstance(change, Barrier):
        found = connection.execute(_OPEN_STEP, (change.namespace, change.run_id))
        return all(step in change.but for (step,) in found)
    if not isinstance(change, CallChange | RunChange | ApprovalChange | LimitChange | FreezeChange | NoteChange):
        return budgets.save(connection, change)
    # The audit row first: its number becomes the call's place in the claim order.
    chains.append(connection, change.audit, audit.content_of(change))
    if isinstance(change, CallChange):
        return _save_call(connection, change)
    if isinstance(change, RunChange):
        return _save_run(connection, change)
    if isinstance(change, ApprovalChange):
        return _save_approval(connection, change)
    return isinstance(change, NoteChange) or budgets.save(connection, change)


def _save_call(connection: sqlite3.Connection, change: CallChange) -> bool:
    record = change.record
    fence = (
        (record.namespace, change.run_id or record.run_id, change.run_epoch, change.controls) if change.claims else ()
    )
    if change.expected_version:
        statement = _CLAIM_CALL_AGAIN if change.claims else _UPDATE_CALL
        values = (*columns.call_changes(record), change.expected_version, *fence)
    else:
        statement = _CLAIM_CALL if change.claims else _INSERT_CALL
        row = columns.call_values(record)
        values = (*row[:_CLAIM_SEQ], *row[_CLAIM_SEQ + 1 :], *fence)
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


def _forget(connection: sqlite3.Connection, family: Family, chains: Chains, actor: str) -> Forgotten:
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


def _within(namespace: str | None) -> tuple[str, tuple[str, ...]]:
    return ("", ()) if namespace is None else (" and namespace = ?", (namespace,))


def _glob(prefix: str) -> str:
    """A GLOB pattern of exactly this prefix; GLOB, unlike LIKE, can use the index."""
    return "".join(f"[{character}]" if character in "*?[" else character for character in prefix) + "*"


def _explain(path: Path, error: sqlite3.Error) -> str:
    text = str(error)
    if "locked" in text or "busy" in text:
        return (
            f"the ledger {path} stayed locked for {BUSY_SECONDS:.0f} s by another process; nothing was started, "
            f"try again"
        )
    if "readonly" in text:
        return (
            f"the ledger {path} is read-only; nothing was started, give this user write access to it and its folder, "
            "or name another store"
        )
    if "unable to open" in text:
        return f"the ledger {path} cannot be opened; nothing was started, give this user access to it and its folder"
    if "disk I/O" in text:
        return (
            f"the disk of the ledger {path} failed ({text}): it is damaged, or a limit on file sizes was reached; "
            "nothing was started"
        )
    if "not a database" in text or "malformed" in text:
        return (
            f"{path} is not a readable SQLite ledger ({text}); it was left as it is, name another or restore a backup"
        )
    if "full" in text:
        return f"the disk of the ledger {path} is full; nothing was started, make room and try again"
    return f"the ledger {path} cannot be used ({text}); nothing was started"
