"""The tables of a ledger on MariaDB or MySQL, in a database of their own.

Many programs share a server, so nobody migrates it by the way: ``migrate`` does, when somebody asks for it. These
servers commit each statement about tables by itself, so a migration says when it begins and when it is finished: one
that was interrupted is not of any version, and is gone over again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pymysql import MySQLError
from pymysql.constants import ER

from sagaspan.exceptions import StoreUnavailable
from sagaspan.stores._dialects import MARIADB_COLLATION
from sagaspan.stores._mariadb_connection import collation_of
from sagaspan.stores._migrate import Migration, check, migrations, refuse_others

if TYPE_CHECKING:
    from pymysql.connections import Connection

_MARKED: Final = """
create table if not exists migrations (
  number bigint not null primary key, name varchar(255) not null, finished bigint not null
) engine = InnoDB default charset = utf8mb4
"""
_TABLES: Final = "select table_name from information_schema.tables where table_schema = database()"
_DONE_ALREADY: Final = (
    ER.TABLE_EXISTS_ERROR,
    ER.DUP_FIELDNAME,
    ER.DUP_KEYNAME,
    ER.CANT_DROP_FIELD_OR_KEY,
    ER.DUP_ENTRY,
)
_LOCK_SECONDS: Final = 60


def rows(connection: Connection[Any], query: str) -> list[Any]:
    """The rows of one statement."""
    with connection.cursor() as cursor:
        cursor.execute(query)
        return list(cursor.fetchall())


def applied(connection: Connection[Any], where: str) -> set[int]:
    """The numbers of the migrations that are finished, and of those that a newer version has begun."""
    tables = {str(name) for (name,) in rows(connection, _TABLES)}
    if "migrations" not in tables:
        if "calls" in tables:
            raise StoreUnavailable(f"{where} has tables of something else, not of sagaspan; name another database")
        return set()
    known = {migration.number for migration in migrations("mariadb")}
    found = rows(connection, "select number, finished from migrations")
    return {int(number) for number, finished in found if finished or number not in known}


def refuse_other_schemas(connection: Connection[Any], where: str) -> None:
    """Raise ``SchemaOutdated`` unless the schema is that of this version; nothing is changed."""
    refuse_others(applied(connection, where), "mariadb", where, "database")


def migrate(connection: Connection[Any], where: str) -> list[str]:
    """Bring the ledger to this version; what was done, nothing if it was there already."""
    name = "concat('sagaspan ', left(sha2(database(), 256), 32))"
    if rows(connection, f"select get_lock({name}, {_LOCK_SECONDS})") != [(1,)]:
        raise StoreUnavailable(f"somebody else has migrated {where} for {_LOCK_SECONDS} s; try again")
    try:
        return _migrate(connection, where)
    finally:
        rows(connection, f"select release_lock({name})")


def _migrate(connection: Connection[Any], where: str) -> list[str]:
    known = migrations("mariadb")
    found = applied(connection, where)
    check(found, {migration.number for migration in known}, where, apply=True)
    done = [migration for migration in known if migration.number not in found]
    if done:
        rows(connection, _MARKED)
    for migration in done:
        _apply(connection, migration)
    return [migration.title for migration in done]


def _apply(connection: Connection[Any], migration: Migration) -> None:
    began = f"select 1 from migrations where number = {migration.number}"  # noqa: S608
    again = bool(rows(connection, began))
    if not again:
        rows(connection, f"insert into migrations values ({migration.number}, '{migration.name}', 0)")  # noqa: S608
    for statement in filter(None, migration.statements):
        try:
            rows(connection, statement.replace(MARIADB_COLLATION, collation_of(connection)))
        except MySQLError as error:
            if not (again and error.args[0] in _DONE_ALREADY):  # it was interrupted behind this statement
                raise
    rows(connection, f"update migrations set finished = 1 where number = {migration.number}")  # noqa: S608
