"""A ledger on a PostgreSQL server, for as many hosts as there are: every commit is one statement and one round trip.

The schema is called ``sagaspan``, or as ``?schema=NAME`` in the URL says. A claim waits until it is on disk there;
what follows it does not (``synchronous_commit`` off), for the next claim's flush makes it durable too: the WAL is one.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sagaspan import _clock as clock
from sagaspan._checks import masked
from sagaspan.exceptions import StoreError, StoreUnavailable
from sagaspan.ledger.records import AuditRow, LeaseRecord, UsageTotals
from sagaspan.ledger.seal import Seal
from sagaspan.ledger.store import SAVED, Booked, Change, Commit, NoteChange, SpendChange, Touched
from sagaspan.stores import _columns as columns
from sagaspan.stores import _postgres_accounts as accounts
from sagaspan.stores import _postgres_connecting as connecting
from sagaspan.stores import _postgres_saving as saving
from sagaspan.stores import _postgres_schema as schema
from sagaspan.stores import _requests as requests
from sagaspan.stores._fate import FORGOTTEN, found_out, older
from sagaspan.stores._forgetting import Runs, SqlForgets
from sagaspan.stores._grouping import Grouping
from sagaspan.stores._pool import Full, Pool
from sagaspan.stores._postgres_connecting import (
    ROLLED_BACK,
    UNFIT,
    WAIT_SECONDS,
    DriverError,
    Lost,
    Refused,
    explained,
    parsed,
    translated,
)
from sagaspan.stores._reading import lease_here, names
from sagaspan.stores._server_time import ServerTime
from sagaspan.stores._unflushed import Unflushed

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")

CONNECTIONS: Final = 16
"""How many connections a process opens at most; more threads than that take turns."""
_TRIES: Final = 5
_NOW_US: Final = "(extract(epoch from clock_timestamp()) * 1000000)::bigint"

_RENEW: Final = f"""
insert into owners as o ({names(columns.LEASE_COLUMNS)}) values ($1, {_NOW_US}, {_NOW_US} + $2, $3, $2, 1)
    on conflict (owner) do update
   set renewed_us = excluded.renewed_us, until_us = excluded.until_us, until_boot_us = excluded.until_boot_us,
       ttl_us = excluded.ttl_us, beats = o.beats + 1
returning renewed_us
"""  # noqa: S608
_LEASE: Final = f"select {names(columns.LEASE_COLUMNS)}, {_NOW_US} from owners where owner = ?"  # noqa: S608
_COMMITTED: Final = """
select 1 from audit
 where namespace = $1 and run_id = $2 and at_us = $3 and event = $4 and to_state = $5 and actor = $6
   and call_id is not distinct from $7 and approval_id is not distinct from $8 and content is not distinct from $9
"""

_HOLD: Final = f"select pg_advisory_xact_lock({schema.RUN.format(namespace='?::text', run='?::text')})"
_KNOWN: Final = f"{_COMMITTED} union all {FORGOTTEN.format('$1', '$2')}"


@lru_cache(maxsize=512)
def _numbered(query: str) -> str:
    """Portable SQL as the server reads it: ``?`` is ``$1`` and so on."""
    number = iter(range(1, query.count("?") + 1))
    return re.sub(r"\?", lambda _: f"${next(number)}", query)


class PostgresStore(ServerTime, SqlForgets["psycopg.Connection[Any]"]):
    """A ledger on a server; connections are made when they are needed, and anew in a forked child."""

    keeps_time = True
    _accounts = "accounts"
    _budget_tables = ("budgets", "slices")

    def __init__(self, url: str, *, durability: str = "normal") -> None:
        self.url = url
        self.seal = Seal(self)
        self._where = masked(url)
        self._target = parsed(url)
        self.schema = self._target.schema
        self._slices = self._target.slices
        self._always_sync = durability == "full"
        self._never_sync = durability == "off"
        self._pool = Pool(self._open, _close, _works, size=CONNECTIONS)
        self._of_one_moment = threading.local()
        self._given: list[Any] = []
        self._newest = 0
        self._unflushed = Unflushed()
        self._on_disk: Sequence[Change] = ()
        self._groups = {synced: Grouping(partial(self._sent, synced=synced)) for synced in (False, True)}
        self.round_trips = 0

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
            request = self._told(ordered)
        except ValueError as error:
            raise self._unfit(error) from error
        synced = (synced or self._always_sync or self._unflushed.is_full) and not self._never_sync
        before, together = self._unflushed.newest(), requests.may_go_together(ordered)
        for attempt in range(_TRIES):
            try:
                answer = self._groups[synced].send(request) if together else self._sent((request,), synced=synced)[0]
                commit = _commit_of(changes, ordered, answer)
                return self._answered(commit, changes, before if synced else None)
            except Lost as lost:
                self._pool.clear()
                if found_out(partial(self._knows, changes), WAIT_SECONDS):
                    return self._answered(Commit(used=tuple(self._used(changes))), changes, None)
                if attempt:
                    raise StoreUnavailable(explained(self._where, lost.error)) from lost.error
            except ROLLED_BACK as error:
                if attempt + 1 == _TRIES:
                    raise StoreUnavailable(explained(self._where, error)) from error
        raise AssertionError("unreachable")

    def _told(self, ordered: Sequence[Change]) -> str:
        return requests.told(ordered, slices=self._slices)

    def _sent(self, together: Sequence[str], *, synced: bool) -> list[dict[str, Any]]:
        with self._lent() as connection:
            if len(together) == 1:
                return [self._save(connection, together[0], synced=synced)]
            return saving.save_all(connection, together, synced=synced)

    def _save(self, connection: psycopg.Connection[Any], request: str, *, synced: bool) -> dict[str, Any]:
        return saving.save(connection, request, synced=synced)

    def _answered(self, commit: Commit, changes: Sequence[Change], flushed: int | None) -> Commit:
        """``flushed``: the number of the last commit before, if this one waited for the disk."""
        if commit and flushed is not None:
            self._unflushed.flushed(flushed)
            self._on_disk = changes
        elif commit and not self._never_sync:
            self._unflushed.keep(changes)
        return commit

    def _save_again(self, connection: psycopg.Connection[Any], changes: Sequence[Change]) -> None:
        if requests.audits_of(changes):  # else nobody could tell that it is not there
            self._save(connection, self._told(requests.in_order(changes)), synced=True)

    def _knows(self, changes: Sequence[Change]) -> bool:
        with self._connected() as connection:
            return self._has(connection, changes)

    def _has(self, connection: psycopg.Connection[Any], changes: Sequence[Change]) -> bool:
        """Whether the ledger has what a lost connection may have committed, once that is over."""
        audits = requests.audits_of(changes)
        if not audits:
            return False
        row, content = audits[0]
        with connection.transaction():
            self._hold(connection, [(row.namespace, row.run_id)])
            return connection.execute(_COMMITTED, _named(row, content)).fetchone() is not None

    def _refuse_older(self, connection: psycopg.Connection[Any]) -> None:
        """Raise ``StoreUnavailable`` if the server lacks what it said was on its disk: it would be done again."""
        for row, content in requests.audits_of(self._on_disk)[:1]:
            if connection.execute(_KNOWN, _named(row, content)).fetchone() is None:
                raise older(self._where)

    def _used(self, changes: Sequence[Change]) -> list[int]:
        found = [self.budget(change.record) for change in changes if isinstance(change, SpendChange)]
        return [budget.spent + budget.overdraft for budget in found]

    def facts(self, namespace: str) -> dict[str, str]:
        """What the ledger knows of a namespace beside its records, by name."""
        return dict(self._fetch("select name, value from facts where namespace = ?", (namespace,)))

    def put_fact(self, namespace: str, name: str, value: str, *, expected: str | None) -> bool:
        """Save a fact if it still is ``expected``; see ``Store.put_fact``."""
        if expected is None:
            statement = "insert into facts (namespace, name, value) values ($1, $2, $3) on conflict do nothing"
            values: tuple[str, ...] = (namespace, name, value)
        else:
            statement = "update facts set value = $3 where namespace = $1 and name = $2 and value = $4"
            values = (namespace, name, value, expected)
        with self._connected() as connection:
            return connection.execute(statement, values).rowcount == 1

    # -- leases --------------------------------------------------------------------------------------------

    def renew(self, lease: LeaseRecord) -> None:
        """Save a lease by the clock of the server, which all hosts share; see ``Store.renew``."""
        values: tuple[Any, ...]
        statement, values = _RENEW, (lease.owner, lease.ttl_us, lease.until_boot_us)
        if not clock.is_real():  # time stands still here, and only here
            statement = _RENEW.replace(f"{_NOW_US} + $2", "$5").replace(_NOW_US, "$4")
            values = (*values, lease.renewed_us, lease.until_us)
        renewed = self._repeatable(lambda connection: connection.execute(statement, values).fetchone())
        if renewed:
            self._it_is(int(renewed[0]))

    def lease_of(self, owner: str) -> LeaseRecord | None:
        """The lease of this owner, its times as the clock of this host would say them; None if there never was one."""
        rows = self._fetch(_LEASE, (owner,))
        return lease_here(rows[0]) if rows else None

    # -- reading -------------------------------------------------------------------------------------------

    def newest_audit(self) -> int:
        """The number up to which all audit rows are there: nobody is on the way to commit an earlier one."""
        given = self._fetch("select last_value from audit_seq_seq", ())
        if given != self._given:  # else nobody has taken a number since, and all that had one were waited for
            self._newest, self._given = self._repeatable(_newest), given
        return self._newest

    def touched(self, after: int, *, limit: int) -> Touched:
        """See ``Store.touched``; nothing comes later with a number before those it has shown."""
        upto = self.newest_audit()
        return self._touched(after, upto, limit)

    def usage_of(
        self, namespace: str | None, which: Mapping[str, str], *, since_us: int = 0, by: str | None = None
    ) -> list[UsageTotals]:
        """What calls used that were claimed since then and fit ``which``; see ``Store.usage_of``."""
        query, values = accounts.usage_query(namespace, which, since_us, by)
        return [columns.usage_totals(row) for row in self._fetch(query, values)]

    def booked_by_calls(self, namespace: str | None = None) -> list[Booked]:
        """Each budget of which anything was used, and what calls say of it; see ``Store.booked_by_calls``."""
        with self.snapshot():
            return accounts.booked(self._fetch, namespace)

    def chains(self, after: tuple[str, str] | None, *, limit: int) -> list[tuple[str, str]]:
        """The namespaces and runs that have audit rows, in order, from ``after`` on."""
        where = "where (namespace, run_id) > (?, ?)" if after else ""
        query = f"select distinct namespace, run_id from audit {where} order by 1, 2 limit ?"  # noqa: S608
        return self._fetch(query, (*(after or ()), limit))

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """All that is read in it, by this thread, is of one moment."""
        with self._connected() as connection:
            connection.execute("begin isolation level repeatable read read only")
            self._of_one_moment.connection = connection
            try:
                yield
            finally:
                self._of_one_moment.connection = None
                connection.execute("rollback")

    # -- the rest ------------------------------------------------------------------------------------------

    def spare_bytes(self) -> None:
        """The server keeps its own house (autovacuum)."""

    def compact(self) -> None:
        """Nothing: the server gives room back by itself, and a full vacuum would stop everybody."""

    def describe(self) -> dict[str, str | int]:
        """Facts for ``sagaspan doctor``."""
        with self._connected() as connection:
            facts: dict[str, str | int] = {
                "url": self._where, "schema": max(schema.applied(connection, self._where), default=0),
                **connecting.settings_of(connection),
            }  # fmt: skip
            for table in ("runs", "calls", "audit"):
                row = connection.execute(f"select count(*) from {table}").fetchone()  # noqa: S608
                facts[table] = row[0] if row else 0
        return {**facts, "quick_check": "ok"}

    def close(self) -> None:
        """Close the connections that nobody uses; the next use opens others."""
        self._pool.clear()

    # -- connections ---------------------------------------------------------------------------------------

    def _fetch(self, query: str, values: Sequence[Any]) -> list[Any]:
        pinned = getattr(self._of_one_moment, "connection", None)
        if pinned is not None:
            self.round_trips += 1
            return list(pinned.execute(_numbered(query), values).fetchall())
        return self._repeatable(lambda connection: connection.execute(_numbered(query), values).fetchall())

    def _rows(self, connection: psycopg.Connection[Any], query: str, values: Sequence[Any]) -> list[Any]:
        return connection.execute(_numbered(query), values).fetchall()

    def _do(self, connection: psycopg.Connection[Any], statement: str, values: Sequence[Any] = ()) -> int:
        return connection.execute(_numbered(statement), values).rowcount

    def _hold(self, connection: psycopg.Connection[Any], runs: Runs) -> None:
        for run in sorted(runs):
            self._rows(connection, _HOLD, run)

    def _append(self, connection: psycopg.Connection[Any], row: AuditRow) -> None:
        connection.execute(saving.statement(), (self._told([NoteChange(row)]), False))

    def _repeatable(self, job: Callable[[psycopg.Connection[Any]], T]) -> T:
        """What may be done twice: it is, where the connection was lost."""
        try:
            with self._lent() as connection:
                return job(connection)
        except Lost:
            self._pool.clear()
        with self._connected() as connection:
            return job(connection)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[psycopg.Connection[Any]]:
        """One transaction that deletes; it need not be on disk: what comes back is deleted again."""
        with self._connected() as connection, connection.transaction():
            connection.execute("set local synchronous_commit = off")
            yield connection

    @contextlib.contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[Any]]:
        """A connection for the block; one that is lost is an error like any other."""
        try:
            with self._lent() as connection:
                yield connection
        except Lost as lost:
            self._pool.clear()
            raise StoreUnavailable(explained(self._where, lost.error)) from lost.error
        except ROLLED_BACK as error:
            raise StoreUnavailable(explained(self._where, error)) from error

    @contextlib.contextmanager
    def _lent(self) -> Iterator[psycopg.Connection[Any]]:
        self.round_trips += 1
        try:
            with self._pool.lend(WAIT_SECONDS) as connection, translated(connection):
                yield connection
        except Full as error:
            raise StoreUnavailable(
                f"all {CONNECTIONS} connections to {self._where} were in use for {WAIT_SECONDS:.0f} s; nothing was "
                "started, try again"
            ) from error
        except Refused as refused:
            if isinstance(refused.error, ROLLED_BACK):
                raise refused.error from refused
            if isinstance(refused.error, UNFIT):
                raise self._unfit(refused.error) from refused.error
            raise StoreUnavailable(explained(self._where, refused.error)) from refused.error

    def _unfit(self, error: Exception) -> StoreError:
        said = str(error).splitlines()[0]
        return StoreError(f"the ledger {self._where} cannot hold a value of this record ({said}); nothing was started, "
                          "make it shorter, or of other characters")  # fmt: skip

    def _open(self) -> psycopg.Connection[Any]:
        connection = self._connect()
        try:
            schema.refuse_other_schemas(connection, self._where)
            self._refuse_older(connection)
            saving.prepare(connection)
            self._unflushed.mend(partial(self._has, connection), partial(self._save_again, connection))
        except DriverError as error:
            connection.close()
            raise StoreUnavailable(explained(self._where, error)) from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect(self) -> psycopg.Connection[Any]:
        connection, now_us = connecting.connect(self._target, self._where)
        self._it_is(now_us)
        return connection

    def migrate(self, *, check: bool = False) -> list[str]:
        """Bring the schema to that of this version; what was done. ``check``: only raise ``SchemaOutdated``."""
        connection = self._connect()
        try:
            if check:
                schema.refuse_other_schemas(connection, self._where)
                return []
            return schema.migrate(connection, self.schema, self._where)
        except DriverError as error:
            raise StoreUnavailable(explained(self._where, error)) from error
        finally:
            connection.close()


def _named(row: AuditRow, content: bytes | None) -> tuple[Any, ...]:
    """How an audit row that was saved is found again."""
    return (row.namespace, row.run_id, row.at_us, row.event, row.to_state, row.actor, row.call_id, row.approval_id,
            content)  # fmt: skip


def _commit_of(changes: Sequence[Change], ordered: Sequence[Change], answer: Mapping[str, Any]) -> Commit:
    if "refused" in answer:
        return Commit(ordered[answer["refused"]])
    if not answer["used"]:
        return SAVED
    spent = [change for change in ordered if isinstance(change, SpendChange)]
    used = dict(zip(map(id, spent), answer["used"], strict=True))
    return Commit(used=tuple(used[id(change)] for change in changes if isinstance(change, SpendChange)))


def _newest(connection: psycopg.Connection[Any]) -> int:
    with connection.transaction():
        connection.execute(f"select pg_advisory_xact_lock({schema.FEED})")
        row = connection.execute("select coalesce(max(seq), 0) from audit").fetchone()
    return int(row[0]) if row else 0


def _close(connection: psycopg.Connection[Any]) -> None:
    connection.close()


def _works(connection: psycopg.Connection[Any]) -> bool:
    try:
        connection.execute("select 1")
    except DriverError:
        return False
    return True
