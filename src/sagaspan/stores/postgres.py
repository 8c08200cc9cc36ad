"""A ledger on a PostgreSQL server, for as many hosts as there are: every commit is one statement and one round trip.

The schema is called ``sagaspan``, or as ``?schema=NAME`` in the URL says. A claim waits until it is on disk there;
what follows it does not (``synchronous_commit`` off), for the next claim's flush makes it durable too: the WAL is one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sagaspan.ledger.records import AuditRow, LeaseRecord
from sagaspan.ledger.store import Change, Commit, NoteChange
from sagaspan.stores import _columns as columns
from sagaspan.stores import _postgres_connecting as driver
from sagaspan.stores import _postgres_saving as saving
from sagaspan.stores import _postgres_schema as schema
from sagaspan.stores import _requests as requests
from sagaspan.stores._forgetting import Runs
from sagaspan.stores._grouping import Grouping
from sagaspan.stores._reading import names
from sagaspan.stores._server import ServerStore, commit_of
from sagaspan.stores._unflushed import Unflushed

if TYPE_CHECKING:
    import psycopg

R = TypeVar("R")

_NOW_US: Final = "(extract(epoch from clock_timestamp()) * 1000000)::bigint"
_RENEW: Final = f"""
insert into owners as o ({names(columns.LEASE_COLUMNS)}) values (?, {{now}}, {{until}}, ?, ?, 1)
    on conflict (owner) do update
   set renewed_us = excluded.renewed_us, until_us = excluded.until_us, until_boot_us = excluded.until_boot_us,
       ttl_us = excluded.ttl_us, beats = o.beats + 1
returning {_NOW_US}
"""  # noqa: S608
_PUT_FACT: Final = "insert into facts (namespace, name, value) values (?, ?, ?) on conflict do nothing"
_HOLD: Final = f"select pg_advisory_xact_lock({schema.RUN.format(namespace='?::text', run='?::text')})"
_ENTRIES: Final = """
select c.namespace, e.value->>0 as scope, e.value->>1 as unit, e.value->>2 as "window",
       (e.value->>3)::bigint as start_us, sum((e.value->>4)::bigint)::bigint as amount,
       {call} as call_id
  from calls c cross join lateral jsonb_array_elements(c.{column}::jsonb) as e (value)
 where c.{column} like '[%' and {which}
 group by 1, 2, 3, 4, 5, 7
"""


class PostgresStore(ServerStore["psycopg.Connection[Any]", str]):
    """A ledger on a PostgreSQL server."""

    _driver = driver
    _now = _NOW_US
    _same = "is not distinct from"
    _behind = "namespace >= ? and (namespace, run_id) > (?, ?)"
    _entries = _ENTRIES
    _accounts = "accounts"
    _budget_tables = ("budgets", "slices")
    _begin_snapshot = ("begin isolation level repeatable read read only",)

    def __init__(self, url: str, *, durability: str = "normal") -> None:
        self._target = driver.parsed(url)
        self.schema = self._target.schema
        super().__init__(url)
        self._always_sync = durability == "full"
        self._never_sync = durability == "off"
        self._unflushed = Unflushed()
        self._groups = {synced: Grouping(partial(self._sent, synced=synced)) for synced in (False, True)}

    # -- writing -------------------------------------------------------------------------------------------

    def _told(self, ordered: Sequence[Change]) -> str:
        request = requests.told(ordered, slices=self._target.slices)
        if not request.isascii():
            request.encode()  # half a character is an error of this record, and of none that goes with it
        return request

    def _send(self, told: str, changes: Sequence[Change], ordered: Sequence[Change], *, synced: bool) -> Commit:
        synced = (synced or self._always_sync or self._unflushed.is_full) and not self._never_sync
        before = self._unflushed.newest()
        if requests.may_go_together(ordered):
            answer = self._groups[synced].send(told)
        else:
            (answer,) = self._sent((told,), synced=synced)
        commit = commit_of(changes, ordered, answer.get("refused"), answer.get("used") or ())
        if commit and synced:
            self._unflushed.flushed(before)
            self._on_disk = changes
        elif commit:
            self._found(changes)
        return commit

    def _found(self, changes: Sequence[Change]) -> None:
        if not self._never_sync:
            self._unflushed.keep(changes)

    def _sent(self, together: Sequence[str], *, synced: bool) -> list[dict[str, Any]]:
        with self._lent() as connection:
            if len(together) == 1:
                return [self._save(connection, together[0], synced=synced)]
            return saving.save_all(connection, together, synced=synced)

    def _save(self, connection: psycopg.Connection[Any], request: str, *, synced: bool) -> dict[str, Any]:
        return saving.save(connection, request, synced=synced)

    def _save_again(self, connection: psycopg.Connection[Any], changes: Sequence[Change]) -> None:
        if requests.audits_of(changes):  # else nobody could tell that it is not there
            self._save(connection, self._told(requests.in_order(changes)), synced=True)

    def _put_new_fact(self, connection: psycopg.Connection[Any], fact: tuple[str, str, str]) -> bool:
        return self._do(connection, _PUT_FACT, fact) == 1

    def _beat(self, connection: psycopg.Connection[Any], lease: LeaseRecord, now: str, until: str) -> int:
        values = (lease.owner, lease.until_boot_us, lease.ttl_us)
        return int(self._rows(connection, _RENEW.format(now=now, until=until), values)[0][0])

    def _written(self, job: Callable[[psycopg.Connection[Any]], R]) -> R:
        def unsynced(connection: psycopg.Connection[Any]) -> R:
            self._do(connection, "set local synchronous_commit = off")
            return job(connection)

        return super()._written(unsynced)

    def _hold(self, connection: psycopg.Connection[Any], runs: Runs) -> None:
        for run in sorted(runs):
            self._rows(connection, _HOLD, run)

    def _hold_feed(self, connection: psycopg.Connection[Any]) -> None:
        self._rows(connection, f"select pg_advisory_xact_lock({schema.FEED})", ())

    def _append(self, connection: psycopg.Connection[Any], row: AuditRow) -> None:
        connection.execute(saving.statement(), (self._told([NoteChange(row)]), False))

    # -- connections and the schema ------------------------------------------------------------------------

    def _connect(self, *, create: bool = False) -> psycopg.Connection[Any]:  # noqa: ARG002 - the database is there
        connection, now_us = driver.connect(self._target, self._where)
        self._it_is(now_us)
        return connection

    def _make_ready(self, connection: psycopg.Connection[Any]) -> None:
        saving.prepare(connection)
        self._unflushed.mend(partial(self._has, connection), partial(self._save_again, connection))

    def _refuse_other_schemas(self, connection: psycopg.Connection[Any]) -> None:
        schema.refuse_other_schemas(connection, self._where)

    def _migrated(self, connection: psycopg.Connection[Any]) -> list[str]:
        return schema.migrate(connection, self.schema, self._where)

    def _about(self, connection: psycopg.Connection[Any]) -> dict[str, str | int]:
        return {"schema": max(schema.applied(connection, self._where), default=0), **driver.settings_of(connection)}
