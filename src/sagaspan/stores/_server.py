"""A ledger on a server, for as many hosts as there are: what PostgreSQL and MariaDB have in common.

A commit whose answer is lost is read again, and repeated only if it is not there; a server that lacks what it said was
on its disk is refused. What each server speaks is left to its store, and to the module of its driver.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar

from sagaspan import _clock as clock
from sagaspan.exceptions import StoreUnavailable
from sagaspan.ledger.records import AuditRow, CallRecord, LeaseRecord
from sagaspan.ledger.seal import Seal
from sagaspan.ledger.store import SAVED, Booked, Change, Commit, SpendChange, Touched
from sagaspan.stores import _columns as columns
from sagaspan.stores import _requests as requests
from sagaspan.stores._fate import FORGOTTEN, WAIT_SECONDS, Again, Lost, Migrated, found_out, older
from sagaspan.stores._forgetting import SqlForgets
from sagaspan.stores._reading import lease_here, names
from sagaspan.stores._server_connections import ServerConnections
from sagaspan.stores._usage import booked

C = TypeVar("C")
T = TypeVar("T")
R = TypeVar("R")

_TRIES: Final = 5

_COMMITTED: Final = """
select 1 from audit
 where namespace = ? and run_id = ? and at_us = ? and event = ? and to_state = ? and actor = ?
   and call_id {same} ? and approval_id {same} ? and content {same} ?
"""
_LEASE: Final = f"select {names(columns.LEASE_COLUMNS)}, {{now}} from owners where owner = ?"  # noqa: S608
_CHANGE_FACT: Final = "update facts set value = ? where namespace = ? and name = ? and value = ?"


class ServerStore(ServerConnections[C], SqlForgets[C], Generic[C, T]):
    """A ledger on a server; ``C`` is a connection, ``T`` what the server is told of a commit."""

    _now: str
    """What says the time there, in microseconds since the epoch."""
    _same: str
    """As ``=``, also where both are null."""
    _behind: str
    """Which chains come after one (its namespace twice, and its run), so that the server finds them by an index."""
    _entries: str
    """What calls say that they hold (``reserved``) or took (``spent``) of budgets; what is no list is passed over."""
    _begin_snapshot: tuple[str, ...]

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.seal = Seal(self)
        self._newest = 0
        self._on_disk: Sequence[Change] = ()

    # -- what each server says in its own words ------------------------------------------------------------

    @abstractmethod
    def _told(self, ordered: Sequence[Change]) -> T:
        """What the server is told; raises ``ValueError`` for what it cannot hold."""

    @abstractmethod
    def _send(self, told: T, changes: Sequence[Change], ordered: Sequence[Change], *, synced: bool) -> Commit:
        """Save them in one transaction; raises ``Lost``, ``Again`` and ``Migrated``."""

    @abstractmethod
    def _found(self, changes: Sequence[Change]) -> None:
        """They are committed, which nobody was told: it was found out."""

    @abstractmethod
    def _put_new_fact(self, connection: C, fact: tuple[str, str, str]) -> bool:
        """Save what has no value yet; False if it has."""

    @abstractmethod
    def _beat(self, connection: C, lease: LeaseRecord, now: str, until: str) -> int:
        """Save a lease from ``now`` ``until`` then; what time it is there."""

    @abstractmethod
    def _hold_feed(self, connection: C) -> None:
        """Nobody is on the way to append to the audit trail until the transaction is over."""

    @abstractmethod
    def _connect(self, *, create: bool = False) -> C:
        """A new connection, and the time there; ``create``: to a ledger that is to be made or migrated."""

    @abstractmethod
    def _refuse_other_schemas(self, connection: C) -> None:
        """Raise ``SchemaOutdated`` unless the schema is that of this version; nothing is changed."""

    @abstractmethod
    def _migrated(self, connection: C) -> list[str]:
        """Bring the schema to that of this version; what was done."""

    @abstractmethod
    def _about(self, connection: C) -> dict[str, str | int]:
        """What the server is, how it is set, and the schema."""

    def _make_ready(self, connection: C) -> None:
        """What else is done with a new connection, to a ledger that is the one of before."""

    # -- writing -------------------------------------------------------------------------------------------

    def commit(self, changes: Sequence[Change], *, synced: bool) -> Commit:
        """Save all changes in one transaction, or none of them; see ``Store.commit``.

        A connection that is lost on the way leaves open whether it is committed: then it is looked up, and only
        what the ledger does not know is sent again.
        """
        if self.seal.active:
            changes = [self.seal.closed(change) for change in changes]
        ordered = requests.in_order(changes)
        try:
            told = self._told(ordered)
        except ValueError as error:
            raise self._unfit(error) from error
        for attempt in range(_TRIES):
            try:
                return self._send(told, changes, ordered, synced=synced)
            except Lost as lost:
                self._pool.clear()
                if found_out(partial(self._knows, changes), WAIT_SECONDS):
                    self._found(changes)
                    return Commit(used=tuple(self._used(changes)))
                if attempt:
                    raise self._unavailable(lost.error) from lost.error
            except Again as again:
                if attempt + 1 == _TRIES:
                    raise self._unavailable(again.error) from again.error
            except Migrated:
                self._pool.clear()  # a new connection looks what it is now, and says so
        raise StoreUnavailable(f"the ledger {self._where} is being migrated; nothing was started, try again")

    def _knows(self, changes: Sequence[Change]) -> bool:
        with self._connected() as connection:
            return self._has(connection, changes)

    def _has(self, connection: C, changes: Sequence[Change]) -> bool:
        """Whether the ledger has what a lost connection may have committed, once that is over."""
        for row, content in requests.audits_of(changes)[:1]:
            with self._transaction(connection):
                self._hold(connection, [(row.namespace, row.run_id)])
                return bool(self._rows(connection, _COMMITTED.format(same=self._same), _named(row, content)))
        return False

    def _refuse_older(self, connection: C) -> None:
        """Raise ``StoreUnavailable`` if the server lacks what it said was on its disk: it would be done again."""
        known = f"{_COMMITTED.format(same=self._same)} union all {FORGOTTEN}"
        for row, content in requests.audits_of(self._on_disk)[:1]:
            if not self._rows(connection, known, (*_named(row, content), row.namespace, row.run_id)):
                raise older(self._where)

    def _used(self, changes: Sequence[Change]) -> list[int]:
        found = [self.budget(change.record) for change in spends_in(changes)]
        return [budget.spent + budget.overdraft for budget in found]

    def put_fact(self, namespace: str, name: str, value: str, *, expected: str | None) -> bool:
        """Save a fact if it still is ``expected``; see ``Store.put_fact``."""
        with self._connected() as connection:
            if expected is None:
                return self._put_new_fact(connection, (namespace, name, value))
            return self._do(connection, _CHANGE_FACT, (value, namespace, name, expected)) == 1

    # -- leases --------------------------------------------------------------------------------------------

    def renew(self, lease: LeaseRecord) -> None:
        """Save a lease by the clock of the server, which all hosts share; see ``Store.renew``."""
        now, until = self._now, f"{self._now} + {lease.ttl_us:d}"
        if not clock.is_real():  # time stands still here, and only here
            now, until = str(lease.renewed_us), str(lease.until_us)
        self._it_is(self._repeatable(lambda connection: self._beat(connection, lease, now, until)))

    def lease_of(self, owner: str) -> LeaseRecord | None:
        """The lease of this owner, its times as the clock of this host would say them; None if there never was one."""
        rows = self._fetch(_LEASE.format(now=self._now), (owner,))
        return lease_here(rows[0]) if rows else None

    # -- reading -------------------------------------------------------------------------------------------

    def newest_audit(self) -> int:
        """The number up to which all audit rows are there: nobody is on the way to commit an earlier one."""
        if super().newest_audit() > self._newest:  # else all that have such a number were waited for
            self._newest = self._repeatable(self._newest_of_all)
        return self._newest

    def _newest_of_all(self, connection: C) -> int:
        with self._transaction(connection):
            self._hold_feed(connection)
            return int(self._rows(connection, "select coalesce(max(seq), 0) from audit", ())[0][0])

    def touched(self, after: int, *, limit: int) -> Touched:
        """See ``Store.touched``; nothing comes later with a number before those it has shown."""
        return self._touched(after, self.newest_audit(), limit)

    def booked_by_calls(self, namespace: str | None = None) -> list[Booked]:
        """Each budget of which anything was used, and what calls say of it; see ``Store.booked_by_calls``."""
        with self.snapshot():
            return booked(self._fetch, namespace, entries=self._entries, accounts=self._accounts)

    _order_of_calls = "claim_seq, id"

    def _behind_call(self, after: CallRecord) -> tuple[str, tuple[Any, ...]]:
        """One more condition: here the number of a row is in no index of a run's calls, and ``claim_seq`` is."""
        place = after.claim_seq
        return " and claim_seq >= ? and (claim_seq > ? or id > ?)", (place, place, after.id)

    def chains(self, after: tuple[str, str] | None, *, limit: int) -> list[tuple[str, str]]:
        """The namespaces and runs that have audit rows, in order, from ``after`` on."""
        where, values = (f"where {self._behind}", (after[0], *after)) if after else ("", ())
        query = f"select distinct namespace, run_id from audit {where} order by 1, 2 limit ?"  # noqa: S608
        return self._fetch(query, (*values, limit))

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """All that is read in it, by this thread, is of one moment."""
        with self._connected() as connection:
            for statement in self._begin_snapshot:
                self._do(connection, statement)
            self._of_one_moment.connection = connection
            try:
                yield
            finally:
                self._of_one_moment.connection = None
                self._do(connection, "rollback")

    # -- the rest ------------------------------------------------------------------------------------------

    def spare_bytes(self) -> None:
        """The server keeps its own house."""

    def compact(self) -> None:
        """Nothing: the server uses the room again by itself, and to rebuild tables would stop everybody."""

    def describe(self) -> dict[str, str | int]:
        """Facts for ``sagaspan doctor``."""
        with self._connected() as connection:
            facts: dict[str, str | int] = {"url": self._where, **self._about(connection)}
            for table in ("runs", "calls", "audit"):
                ((facts[table],),) = self._rows(connection, f"select count(*) from {table}", ())  # noqa: S608
        return {**facts, "quick_check": "ok"}

    def migrate(self, *, check: bool = False) -> list[str]:
        """Bring the schema to that of this version; what was done. ``check``: only raise ``SchemaOutdated``."""
        connection = self._connect(create=not check)
        try:
            if not check:
                return self._migrated(connection)
            self._refuse_other_schemas(connection)
            return []
        except self._driver.DriverError as error:
            raise self._unavailable(error) from error
        finally:
            self._driver.close(connection)

    def _written(self, job: Callable[[C], R]) -> R:
        with self._connected() as connection, self._transaction(connection):
            return job(connection)

    def _open(self) -> C:
        connection = self._connect()
        try:
            self._refuse_other_schemas(connection)
            self._refuse_older(connection)
            self._make_ready(connection)
        except BaseException as error:
            self._driver.close(connection)
            if isinstance(error, self._driver.DriverError):
                raise self._unavailable(error) from error
            raise
        return connection


def commit_of(changes: Sequence[Change], ordered: Sequence[Change], refused: int | None, used: Sequence[int]) -> Commit:
    """What a server answered: which change it refused, or what is used of the budgets after each that spends."""
    if refused is not None:
        return Commit(ordered[refused])
    if not used:
        return SAVED
    after = dict(zip(map(id, spends_in(ordered)), used, strict=True))
    return Commit(used=tuple(after[id(change)] for change in spends_in(changes)))


def spends_in(changes: Sequence[Change]) -> list[SpendChange]:
    """Those that settle a reservation, in their order."""
    return [change for change in changes if isinstance(change, SpendChange)]


def _named(row: AuditRow, content: bytes | None) -> tuple[Any, ...]:
    """How an audit row that was saved is found again."""
    return (row.namespace, row.run_id, row.at_us, row.event, row.to_state, row.actor, row.call_id, row.approval_id,
            content)  # fmt: skip
