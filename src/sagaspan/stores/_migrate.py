"""Numbered migrations: each file applied once, with its record, in one transaction."""

from __future__ import annotations

import re
import sqlite3
from functools import cache
from importlib import resources
from typing import Final, NamedTuple

from sagaspan.exceptions import SchemaOutdated, StoreUnavailable
from sagaspan.stores._dialects import to_mariadb, to_postgres


class Migration(NamedTuple):
    """One numbered file."""

    number: int
    name: str
    sql: str

    @property
    def title(self) -> str:
        """What it is called."""
        return f"{self.number:04d} {self.name}"

    @property
    def statements(self) -> tuple[str, ...]:
        """What it says, one by one."""
        return tuple(self.sql.split(";\n"))


@cache
def migrations(dialect: str) -> tuple[Migration, ...]:
    """The migrations of a dialect in order: SQLite's, and for another database what it needs besides."""
    if dialect == "sqlite":
        return _files(dialect)
    translated = to_postgres if dialect == "postgres" else to_mariadb
    shared = (
        Migration(one.number, one.name, ";\n".join(translated(statement) for statement in one.statements))
        for one in _files("sqlite")
    )
    return (*shared, *_files(dialect))


def _files(dialect: str) -> tuple[Migration, ...]:
    folder = resources.files("sagaspan.stores") / "migrations" / dialect
    found = []
    for file in folder.iterdir():
        match = re.fullmatch(r"(\d{4})_(\w+)\.sql", file.name)
        if match:
            found.append(Migration(int(match[1]), match[2], file.read_text(encoding="utf-8")))
    return tuple(sorted(found))


def migrate(connection: sqlite3.Connection, where: str, *, apply: bool) -> list[str]:
    """Bring a SQLite ledger to the newest schema, or refuse; what was done.

    Raises ``SchemaOutdated`` for a ledger newer than this code, or older while ``apply`` is False, and
    ``StoreUnavailable`` for a database that is no ledger; none of them changes anything.
    """
    known = migrations("sqlite")
    if _applied(connection, where) == {migration.number for migration in known}:
        return []
    done = []
    connection.execute("begin immediate")  # two processes may open a new ledger at once
    try:
        applied = _applied(connection, where)
        check(applied, {migration.number for migration in known}, where, apply=apply)
        connection.execute(
            "create table if not exists migrations (number integer primary key, name text not null) strict"
        )
        for migration in known:
            if migration.number in applied:
                continue
            for statement in migration.statements:
                connection.execute(statement)
            connection.execute("insert into migrations values (?, ?)", (migration.number, migration.name))
            done.append(migration.title)
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:  # a full disk has rolled it back already
            connection.execute("rollback")
        raise
    return done


def refuse_if_migrated(connection: sqlite3.Connection, where: str) -> None:
    """Raise ``SchemaOutdated`` if a newer program has migrated the ledger since it was opened here."""
    known = migrations("sqlite")
    if connection.execute("select count(*) from migrations").fetchone() != (len(known),):
        check(_applied(connection, where), {migration.number for migration in known}, where, apply=False)


def current_version(connection: sqlite3.Connection, where: str) -> int:
    """The number of the newest migration applied; 0 for an empty database."""
    return max(_applied(connection, where), default=0)


def _applied(connection: sqlite3.Connection, where: str) -> set[int]:
    """The numbers of the migrations applied: two branches may have made theirs in any order."""
    tables = {name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")}
    if "migrations" in tables and "calls" in tables:
        return {int(number) for (number,) in connection.execute("select number from migrations")}
    if tables:
        raise StoreUnavailable(f"{where} is a database of something else, not a sagaspan ledger; name another path")
    return set()


def check(applied: set[int], known: set[int], where: str, *, apply: bool) -> None:
    """Refuse a schema with migrations that nobody here knows, or (unless they are to be applied) without some."""
    version, newest = max(applied, default=0), max(known)
    if not applied <= known:
        raise SchemaOutdated(
            f"the ledger {where} has schema {version}, this sagaspan knows {newest}; upgrade sagaspan (nothing "
            "was changed)"
        )
    if not apply:
        raise SchemaOutdated(
            f"the ledger {where} has schema {version}, this sagaspan needs {newest}; open it once with migrate='auto'"
        )


REMEDY: Final = "somebody who may change it runs: sagaspan migrate --store URL"
"""Many programs share a server: nobody migrates it by the way."""


def nothing_at(where: str, place: str) -> SchemaOutdated:
    """The error for a server on which there is no such ledger; ``place``: what holds one there."""
    return SchemaOutdated(
        f"there is no ledger at {where}; if there should be one, this is another server or {place} than before "
        f"(fail-over?), and nothing was started. To make a new one, {REMEDY}"
    )


def refuse_others(applied: set[int], dialect: str, where: str, place: str) -> None:
    """Raise ``SchemaOutdated`` unless the migrations of a server's ledger are those of this version."""
    known = {migration.number for migration in migrations(dialect)}
    if not applied:
        raise nothing_at(where, place)
    if applied != known:
        check(applied, known, where, apply=True)  # a newer one
        raise SchemaOutdated(
            f"the ledger {where} has schema {max(applied)}, this sagaspan needs {max(known)}; nothing was changed, "
            f"{REMEDY}"
        )
