"""A ledger on a MariaDB or MySQL server, for as many hosts as there are: every commit is one text and one round trip.

The database is that of the URL. A commit is on disk when the server has said that it is done: these servers sync all
of them or none (``innodb_flush_log_at_trx_commit``), so a server that syncs none is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from sagaspan.exceptions import ConfigurationError, StoreUnavailable
from sagaspan.ledger.records import AuditRow, LeaseRecord
from sagaspan.ledger.store import Change, Commit
from sagaspan.stores import _columns as columns
from sagaspan.stores._forgetting import Runs
from sagaspan.stores._migrate import nothing_at
from sagaspan.stores._reading import names
from sagaspan.stores._server import ServerStore, commit_of, spends_in

try:
    import pymysql
    from pymysql import MySQLError
    from pymysql.constants import ER
except ImportError as error:
    raise ConfigurationError("a ledger on MariaDB or MySQL needs its driver: pip install 'sagaspan[mysql]'") from error

from sagaspan.stores import _mariadb_changes as sql
from sagaspan.stores import _mariadb_connection as driver
from sagaspan.stores import _mariadb_schema as schema
from sagaspan.stores._mariadb_connection import Address
from sagaspan.stores._mariadb_scripts import run_script

if TYPE_CHECKING:
    from pymysql.connections import Connection

Script = tuple[Sequence[sql.Statement], str]
"""The statements of a commit, and what is used of the budgets at its end."""

_RENEW: Final = f"""
insert into owners ({names(columns.LEASE_COLUMNS)}) values (?, {{now}}, {{until}}, ?, ?, 1)
    on duplicate key update
       renewed_us = {{now}}, until_us = {{until}}, until_boot_us = ?, ttl_us = ?, beats = beats + 1;
select {driver.NOW_US}
"""  # noqa: S608
_PUT_FACT: Final = "insert into facts (namespace, name, value) values (?, ?, ?)"
_HOLD: Final = "select n from places where n = ? for update"
_SHARE: Final = "select n from places where n = ? lock in share mode"
_ENTRIES: Final = """
select c.namespace, e.scope, e.unit, e."window", e.start_us, cast(sum(e.amount) as signed) as amount,
       {call} as call_id
  from (select namespace, id, run_id, version, {column} as entries from calls
         where {column} like '[%' and json_valid({column})) as c,
       json_table(c.entries, '$[*]' columns (
         scope varchar(600) path '$[0]', unit varchar(30) path '$[1]', "window" varchar(30) path '$[2]',
         start_us bigint path '$[3]', amount bigint path '$[4]')) as e
 where {which}
 group by c.namespace, binary e.scope, binary e.unit, binary e."window", e.start_us, {call}
"""


class MariadbStore(ServerStore["Connection[Any]", Script]):
    """A ledger on a MariaDB or MySQL driver."""

    _driver = driver
    _now = driver.NOW_US
    _same = "<=>"
    _behind = "namespace > ? or (namespace = ? and run_id > ?)"
    _entries = _ENTRIES
    _is_number = "{0} regexp '^[0-9]+$'"
    _begin_snapshot = (
        "set transaction isolation level repeatable read",
        "start transaction with consistent snapshot, read only",
    )

    def __init__(self, url: str, *, durability: str = "normal") -> None:
        self._address = Address.of(url)
        self._must_sync = durability != "off"  # for tests: survives its process, not a power cut
        super().__init__(url)

    # -- writing -------------------------------------------------------------------------------------------

    def _told(self, ordered: Sequence[Change]) -> Script:
        return sql.statements(ordered), sql.used_of(ordered)

    def _send(self, told: Script, changes: Sequence[Change], ordered: Sequence[Change], *, synced: bool) -> Commit:  # noqa: ARG002 - all are, or none
        with self._lent() as connection:
            ended = run_script(connection, *told)
        commit = commit_of(changes, ordered, ended.refused, _after_each(ordered, ended.used))
        if commit:
            self._found(changes)
        return commit

    def _found(self, changes: Sequence[Change]) -> None:
        if self._must_sync:
            self._on_disk = changes

    def _put_new_fact(self, connection: Connection[Any], fact: tuple[str, str, str]) -> bool:
        try:
            return self._do(connection, _PUT_FACT, fact) == 1
        except pymysql.IntegrityError as error:
            if error.args[0] != ER.DUP_ENTRY:
                raise
            return False

    def _beat(self, connection: Connection[Any], lease: LeaseRecord, now: str, until: str) -> int:
        values = (lease.until_boot_us, lease.ttl_us)
        statements = _RENEW.format(now=now, until=until)
        return int(driver.told(connection, statements, (lease.owner, *values, *values))[0][0])

    def _hold(self, connection: Connection[Any], runs: Runs) -> None:
        """And share the feed, as everybody does who appends to the audit trail."""
        self._rows(connection, _SHARE, (sql.FEED,))
        for place in sorted({sql.place_of(*run) for run in runs}):
            self._rows(connection, _HOLD, (place,))

    def _hold_feed(self, connection: Connection[Any]) -> None:
        self._rows(connection, _HOLD, (sql.FEED,))

    def _append(self, connection: Connection[Any], row: AuditRow) -> None:
        for (statement,) in sql.append(row, None, {}):
            with connection.cursor() as cursor:
                cursor.execute(statement.encode())

    # -- connections and the schema ------------------------------------------------------------------------

    def _connect(self, *, create: bool = False) -> Connection[Any]:
        try:
            connection, facts = self._address.connect(is_patient=create)
        except MySQLError as error:
            if error.args and error.args[0] == ER.BAD_DB_ERROR:
                if not create:
                    raise nothing_at(self._where, "database") from error
                return self._made()
            raise self._unavailable(error) from error
        if wrong := driver.wrong_with(facts, must_sync=self._must_sync):
            driver.close(connection)
            raise StoreUnavailable(f"the database {self._where} {wrong} (nothing was started)")
        driver.warn_of_mysql(connection, self._where)
        connection.max_allowed_packet = facts.max_packet
        self._it_is(facts.now_us)
        return connection

    def _made(self) -> Connection[Any]:
        try:
            self._address.make_database()
        except MySQLError as error:
            raise self._unavailable(error) from error
        return self._connect(create=True)

    def _refuse_other_schemas(self, connection: Connection[Any]) -> None:
        schema.refuse_other_schemas(connection, self._where)

    def _migrated(self, connection: Connection[Any]) -> list[str]:
        return schema.migrate(connection, self._where)

    def _about(self, connection: Connection[Any]) -> dict[str, str | int]:
        return {
            "server": driver.version_of(connection),
            "schema": max(schema.applied(connection, self._where), default=0),
            **driver.settings_of(driver.facts_of(connection)),
        }


def _after_each(ordered: Sequence[Change], used: Sequence[int]) -> list[int]:
    """What was used of the budgets after each change: it is known as it is at the end, and was less before the last."""
    if not used:
        return []
    spends = spends_in(ordered)
    now = {columns.budget_name(change.record): at_end for change, at_end in zip(spends, used, strict=True)}
    after: list[int] = []
    for change in reversed(spends):
        name = columns.budget_name(change.record)
        after.append(now[name])
        now[name] = max(now[name] - change.spent, 0)
    return after[::-1]
