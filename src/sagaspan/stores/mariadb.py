"""A ledger on a MariaDB or MySQL server, for as many hosts as there are: every commit is one text and one round trip.

The database is that of the URL. A commit is on disk when the server has said that it is done: these servers sync all
of them or none (``innodb_flush_log_at_trx_commit``), so a server that syncs none is refused.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sagaspan import _clock as clock
from sagaspan._checks import masked
from sagaspan.exceptions import ConfigurationError, StoreError, StoreUnavailable
from sagaspan.ledger.records import AuditRow, LeaseRecord, UsageTotals
from sagaspan.ledger.seal import Seal
from sagaspan.ledger.store import SAVED, Booked, Change, Commit, SpendChange, Touched
from sagaspan.stores import _columns as columns
from sagaspan.stores import _requests as requests
from sagaspan.stores._fate import FORGOTTEN, found_out, older
from sagaspan.stores._forgetting import Runs, SqlForgets
from sagaspan.stores._pool import Full, Pool
from sagaspan.stores._reading import lease_here, names
from sagaspan.stores._server_time import ServerTime
from sagaspan.stores._usage import usage_query

try:
    import pymysql
    from pymysql import MySQLError
    from pymysql.constants import ER
except ImportError as error:
    raise ConfigurationError("a ledger on MariaDB or MySQL needs its driver: pip install 'sagaspan[mysql]'") from error

from sagaspan.stores import _mariadb_accounts as accounts
from sagaspan.stores import _mariadb_changes as sql
from sagaspan.stores import _mariadb_connection as server
from sagaspan.stores import _mariadb_schema as schema
from sagaspan.stores._mariadb_connection import Address
from sagaspan.stores._mariadb_scripts import Ended, run_script

if TYPE_CHECKING:
    from pymysql.connections import Connection

T = TypeVar("T")

CONNECTIONS: Final = 16
"""How many connections a process opens at most; more threads than that take turns."""
WAIT_SECONDS: Final = 10.0
"""How long to wait for a connection."""
_TRIES: Final = 5
_NOW_US: Final = server.NOW_US
_RENEW: Final = f"""
insert into owners ({names(columns.LEASE_COLUMNS)}) values (?, {{now}}, {{until}}, ?, ?, 1)
    on duplicate key update
       renewed_us = {{now}}, until_us = {{until}}, until_boot_us = ?, ttl_us = ?, beats = beats + 1;
select {_NOW_US}
"""  # noqa: S608
_LEASE: Final = f"select {names(columns.LEASE_COLUMNS)}, {_NOW_US} from owners where owner = ?"  # noqa: S608
_COMMITTED: Final = """
select 1 from audit
 where namespace = ? and run_id = ? and at_us = ? and event = ? and to_state = ? and actor = ?
   and call_id <=> ? and approval_id <=> ? and content <=> ?
"""
_KNOWN: Final = f"{_COMMITTED} union all {FORGOTTEN.format('?', '?')}"
_PUT_FACT: Final = "insert into facts (namespace, name, value) values (?, ?, ?)"
_CHANGE_FACT: Final = "update facts set value = ? where namespace = ? and name = ? and value = ?"


class MariadbStore(ServerTime, SqlForgets["Connection[Any]"]):
    """A ledger on a server; connections are made when they are needed, and anew in a forked child."""

    keeps_time = True
    _is_number = "{0} regexp '^[0-9]+$'"

    def __init__(self, url: str, *, durability: str = "normal") -> None:
        self.url = url
        self.seal = Seal(self)
        self._where = masked(url)
        self._address = Address.of(url)
        self._must_sync = durability != "off"  # for tests: survives its process, not a power cut
        self._pool = Pool(self._open, server.close, server.works, size=CONNECTIONS)
        self._of_one_moment = threading.local()
        self._newest = 0
        self._on_disk: Sequence[Change] = ()
        self.round_trips = 0

    # -- writing -------------------------------------------------------------------------------------------

    def commit(self, changes: Sequence[Change], *, synced: bool) -> Commit:  # noqa: ARG002 - all are, or none
        """Save all changes in one transaction, or none of them; see ``Store.commit``.

        A connection that is lost on the way leaves open whether it is committed: then it is looked up, and only
        what the ledger does not know is sent again.
        """
        if self.seal.active:
            changes = [self.seal.closed(change) for change in changes]
        ordered = requests.in_order(changes)
        try:
            script, used = sql.statements(ordered), sql.used_of(ordered)
        except ValueError as error:
            raise self._unfit(error) from error
        for attempt in range(_TRIES):
            try:
                with self._lent() as connection:
                    return self._answered(_commit_of(changes, ordered, run_script(connection, script, used)), changes)
            except server.Lost as lost:
                self._pool.clear()
                if found_out(partial(self._knows, changes), WAIT_SECONDS):
                    return self._answered(Commit(used=tuple(self._used(changes))), changes)
                if attempt:
                    raise StoreUnavailable(server.explain(self._where, lost.error)) from lost.error
            except server.Again as again:
                if attempt + 1 == _TRIES:
                    raise StoreUnavailable(server.explain(self._where, again.error)) from again.error
            except server.Migrated:
                self._pool.clear()  # a new connection looks what it is now, and says so
        raise StoreUnavailable(f"the ledger {self._where} is being migrated; nothing was started, try again")

    def _answered(self, commit: Commit, changes: Sequence[Change]) -> Commit:
        if commit and self._must_sync:
            self._on_disk = changes
        return commit

    def _refuse_older(self, connection: Connection[Any]) -> None:
        """Raise ``StoreUnavailable`` if the server lacks what it said was on its disk: it would be done again."""
        for row, content in requests.audits_of(self._on_disk)[:1]:
            if not server.fetch(connection, _KNOWN, (*_named(row, content), row.namespace, row.run_id)):
                raise older(self._where)

    def _knows(self, changes: Sequence[Change]) -> bool:
        """Whether the ledger has what a lost connection may have committed, once that is over."""
        audits = requests.audits_of(changes)
        if not audits:
            return False
        row, content = audits[0]
        with self._writing() as connection:
            self._hold(connection, [(row.namespace, row.run_id)])
            return bool(server.fetch(connection, _COMMITTED, _named(row, content)))

    def _used(self, changes: Sequence[Change]) -> list[int]:
        found = [self.budget(change.record) for change in _spent(changes)]
        return [budget.spent + budget.overdraft for budget in found]

    def put_fact(self, namespace: str, name: str, value: str, *, expected: str | None) -> bool:
        """Save a fact if it still is ``expected``; see ``Store.put_fact``."""
        with self._connected() as connection:
            if expected is not None:
                return server.execute(connection, _CHANGE_FACT, (value, namespace, name, expected)) == 1
            try:
                return server.execute(connection, _PUT_FACT, (namespace, name, value)) == 1
            except pymysql.IntegrityError as error:
                if error.args[0] != ER.DUP_ENTRY:
                    raise
                return False

    # -- leases --------------------------------------------------------------------------------------------

    def renew(self, lease: LeaseRecord) -> None:
        """Save a lease by the clock of the server, which all hosts share; see ``Store.renew``."""
        now, until = _NOW_US, f"{_NOW_US} + {lease.ttl_us:d}"
        if not clock.is_real():  # time stands still here, and only here
            now, until = str(lease.renewed_us), str(lease.until_us)
        said = (lease.until_boot_us, lease.ttl_us)
        statements, values = _RENEW.format(now=now, until=until), (lease.owner, *said, *said)
        ((now_us,),) = self._repeatable(lambda connection: server.told(connection, statements, values))
        self._it_is(int(now_us))

    def lease_of(self, owner: str) -> LeaseRecord | None:
        """The lease of this owner, its times as the clock of this host would say them; None if there never was one."""
        rows = self._fetch(_LEASE, (owner,))
        return lease_here(rows[0]) if rows else None

    # -- reading -------------------------------------------------------------------------------------------

    def newest_audit(self) -> int:
        """The number up to which all audit rows are there: nobody is on the way to commit an earlier one."""
        newest = "select coalesce(max(seq), 0) from audit"
        if self._fetch(newest, ())[0][0] > self._newest:  # else all that have such a number were waited for
            with self._writing() as connection:
                server.fetch(connection, "select n from places where n = ? for update", (sql.FEED,))
                self._newest = int(server.fetch(connection, newest, ())[0][0])
        return self._newest

    def touched(self, after: int, *, limit: int) -> Touched:
        """See ``Store.touched``; nothing comes later with a number before those it has shown."""
        return self._touched(after, self.newest_audit(), limit)

    def usage_of(
        self, namespace: str | None, which: Mapping[str, str], *, since_us: int = 0, by: str | None = None
    ) -> list[UsageTotals]:
        """What calls used that were claimed since then and fit ``which``; see ``Store.usage_of``."""
        query, values = usage_query(namespace, which, since_us, by)
        return [columns.usage_totals(row) for row in self._fetch(query, values)]

    def booked_by_calls(self, namespace: str | None = None) -> list[Booked]:
        """Each budget of which anything was used, and what calls say of it; see ``Store.booked_by_calls``."""
        with self.snapshot():
            return accounts.booked(self._fetch, namespace)

    def chains(self, after: tuple[str, str] | None, *, limit: int) -> list[tuple[str, str]]:
        """The namespaces and runs that have audit rows, in order, from ``after`` on."""
        where = "where namespace > ? or (namespace = ? and run_id > ?)" if after else ""
        query = f"select distinct namespace, run_id from audit {where} order by 1, 2 limit ?"  # noqa: S608
        return self._fetch(query, (*((after[0], *after) if after else ()), limit))

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """All that is read in it, by this thread, is of one moment."""
        with self._connected() as connection:
            server.execute(connection, "set transaction isolation level repeatable read", ())
            server.execute(connection, "start transaction with consistent snapshot, read only", ())
            self._of_one_moment.connection = connection
            try:
                yield
            finally:
                self._of_one_moment.connection = None
                connection.rollback()

    # -- the rest ------------------------------------------------------------------------------------------

    def spare_bytes(self) -> None:
        """The server keeps its own house (purge)."""

    def compact(self) -> None:
        """Nothing: the server uses the room again by itself, and to rebuild tables would stop everybody."""

    def describe(self) -> dict[str, str | int]:
        """Facts for ``sagaspan doctor``."""
        with self._connected() as connection:
            facts: dict[str, str | int] = {
                "url": self._where, "server": server.version_of(connection),
                "schema": max(schema.applied(connection, self._where), default=0),
                **server.settings_of(server.facts_of(connection)),
            }  # fmt: skip
            for table in ("runs", "calls", "audit"):
                facts[table] = server.fetch(connection, f"select count(*) from {table}", ())[0][0]  # noqa: S608
        return {**facts, "quick_check": "ok"}

    def close(self) -> None:
        """Close the connections that nobody uses; the next use opens others."""
        self._pool.clear()

    def migrate(self, *, check: bool = False) -> list[str]:
        """Bring the schema to that of this version; what was done. ``check``: only raise ``SchemaOutdated``."""
        try:
            connection = self._connect(create=not check)
            try:
                if check:
                    schema.refuse_other_schemas(connection, self._where)
                    return []
                return schema.migrate(connection, self._where)
            finally:
                server.close(connection)
        except MySQLError as error:
            raise StoreUnavailable(server.explain(self._where, error)) from error

    # -- connections ---------------------------------------------------------------------------------------

    def _fetch(self, query: str, values: Sequence[Any]) -> list[Any]:
        pinned = getattr(self._of_one_moment, "connection", None)
        if pinned is not None:
            self.round_trips += 1
            return server.fetch(pinned, query, values)
        return self._repeatable(lambda connection: server.fetch(connection, query, values))

    def _rows(self, connection: Connection[Any], query: str, values: Sequence[Any]) -> list[Any]:
        return server.fetch(connection, query, values)

    def _do(self, connection: Connection[Any], statement: str, values: Sequence[Any] = ()) -> int:
        return server.execute(connection, statement, values)

    def _hold(self, connection: Connection[Any], runs: Runs) -> None:
        """And share the feed, as everybody does who appends to the audit trail."""
        self._rows(connection, "select n from places where n = ? lock in share mode", (sql.FEED,))
        for place in sorted({sql.place_of(*run) for run in runs}):
            self._rows(connection, "select n from places where n = ? for update", (place,))

    def _append(self, connection: Connection[Any], row: AuditRow) -> None:
        for (statement,) in sql.append(row, None, {}):
            with connection.cursor() as cursor:
                cursor.execute(statement.encode())

    def _repeatable(self, job: Callable[[Connection[Any]], T]) -> T:
        """What may be done twice: it is, where the connection was lost."""
        try:
            with self._lent() as connection:
                return job(connection)
        except (server.Lost, server.Again):
            self._pool.clear()
        with self._connected() as connection:
            return job(connection)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Connection[Any]]:
        """One transaction that deletes, or that only looks at what nobody changes meanwhile."""
        with self._connected() as connection:
            connection.begin()
            yield connection
            connection.commit()

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Connection[Any]]:
        """A connection for the block; one that is lost is an error like any other."""
        try:
            with self._lent() as connection:
                yield connection
        except server.Lost as lost:
            self._pool.clear()
            raise StoreUnavailable(server.explain(self._where, lost.error)) from lost.error
        except server.Again as again:
            raise StoreUnavailable(server.explain(self._where, again.error)) from again.error

    @contextlib.contextmanager
    def _lent(self) -> Iterator[Connection[Any]]:
        self.round_trips += 1
        try:
            with self._pool.lend(WAIT_SECONDS) as connection, server.translated(connection):
                yield connection
        except Full as error:
            raise StoreUnavailable(
                f"all {CONNECTIONS} connections to {self._where} were in use for {WAIT_SECONDS:.0f} s; nothing was "
                "started, try again"
            ) from error
        except server.Refused as refused:
            if isinstance(refused.error, pymysql.DataError) or refused.error.args[0] in server.UNFIT:
                raise self._unfit(refused.error) from refused.error
            raise StoreUnavailable(server.explain(self._where, refused.error)) from refused.error
        except ValueError as error:  # half a character
            raise self._unfit(error) from error

    def _unfit(self, error: Exception) -> StoreError:
        return StoreError(
            f"the ledger {self._where} cannot hold a value of this record ({server.said(error)}); nothing was started"
        )

    def _open(self) -> Connection[Any]:
        connection = self._connect()
        try:
            schema.refuse_other_schemas(connection, self._where)
            self._refuse_older(connection)
        except MySQLError as error:
            server.close(connection)
            raise StoreUnavailable(server.explain(self._where, error)) from error
        except BaseException:
            server.close(connection)
            raise
        return connection

    def _connect(self, *, create: bool = False) -> Connection[Any]:
        try:
            connection, facts = self._address.connect(is_patient=create)
        except MySQLError as error:
            if error.args and error.args[0] == ER.BAD_DB_ERROR:
                if not create:
                    raise schema.nothing_at(self._where) from error
                return self._made()
            raise StoreUnavailable(server.explain(self._where, error)) from error
        if wrong := server.wrong_with(facts, must_sync=self._must_sync):
            server.close(connection)
            raise StoreUnavailable(f"the database {self._where} {wrong} (nothing was started)")
        server.warn_of_mysql(connection, self._where)
        connection.max_allowed_packet = facts.max_packet
        self._it_is(facts.now_us)
        return connection

    def _made(self) -> Connection[Any]:
        try:
            self._address.make_database()
        except MySQLError as error:
            raise StoreUnavailable(server.explain(self._where, error)) from error
        return self._connect(create=True)


def _named(row: AuditRow, content: bytes | None) -> tuple[Any, ...]:
    """How an audit row that was saved is found again."""
    return (row.namespace, row.run_id, row.at_us, row.event, row.to_state, row.actor, row.call_id, row.approval_id,
            content)  # fmt: skip


def _commit_of(changes: Sequence[Change], ordered: Sequence[Change], ended: Ended) -> Commit:
    if ended.refused is not None:
        return Commit(ordered[ended.refused])
    if not ended.used:
        return SAVED
    # What is used is known as it is at the end: before the later ones of the same budget it was less.
    now = {columns.budget_name(change.record): used for change, used in zip(_spent(ordered), ended.used, strict=True)}
    used: dict[int, int] = {}
    for change in reversed(_spent(ordered)):
        name = columns.budget_name(change.record)
        used[id(change)] = now[name]
        now[name] = max(now[name] - change.spent, 0)
    return Commit(used=tuple(used[id(change)] for change in _spent(changes)))


def _spent(changes: Sequence[Change]) -> list[SpendChange]:
    return [change for change in changes if isinstance(change, SpendChange)]
