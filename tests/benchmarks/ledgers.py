"""Where the benchmarks keep their ledgers: SQLite files in a folder, or schemas of a PostgreSQL server.

A benchmark asks for a new ledger by name, and for its twin: a copy of it that executes, by hand, the statements that
the library executed on the first.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from sagaspan.stores import _postgres_saving as saving
from sagaspan.stores._postgres_connecting import numbered
from sagaspan.stores.postgres import PostgresStore
from sagaspan.stores.sqlite import SqliteStore

Statement = tuple[str, Sequence[Any]]
Execute = Callable[..., list[Any]]
POSTGRES: Final = "SAGASPAN_TEST_POSTGRES"
STORES: Final = ("sqlite", "postgres")
_SEQUENCES: Final = "select sequencename::text from pg_sequences where schemaname = current_schema()"


class Ledgers(Protocol):
    """A place for ledgers. ``made_id``: SQL for an id of ``column``'s length, in the order of ``number``."""

    made_id: str

    def new(self, name: str) -> str:
        """The URL of an empty ledger."""

    def recording(self, store: Any) -> contextlib.AbstractContextManager[list[Statement]]:
        """What ``store`` executes in the block."""

    def twin(self, store: Any, name: str) -> contextlib.AbstractContextManager[Callable[[Statement], object]]:
        """A copy of the ledger as it is now, and what executes a statement on it."""

    def sql(self, url: str) -> contextlib.AbstractContextManager[Execute]:
        """What executes SQL (with ``?``) on a ledger and gives the rows."""

    def sizes(self, url: str) -> dict[str, int]:
        """The bytes of each table on disk, with its indexes; ``all`` of them."""

    def close(self) -> None:
        """Take them all away."""


class SqliteLedgers:
    """Files in ``folder``."""

    made_id = "printf('%024x', {number}) || substr({column}, 25)"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def new(self, name: str) -> str:
        """See ``Ledgers``."""
        return f"sqlite:///{self._folder / name}.db"

    @contextlib.contextmanager
    def recording(self, store: SqliteStore) -> Iterator[list[Statement]]:
        """See ``Ledgers``."""
        recorder: Any = _Recorder(store._connection)
        store._connection = recorder
        try:
            yield recorder.statements
        finally:
            store._connection = recorder.connection

    @contextlib.contextmanager
    def twin(self, store: SqliteStore, name: str) -> Iterator[Callable[[Statement], object]]:
        """See ``Ledgers``."""
        path = self._folder / f"{name}.hand"
        with contextlib.closing(sqlite3.connect(path, isolation_level=None, cached_statements=64)) as copy:
            store._connection.backup(copy)
            copy.execute("pragma journal_mode = wal")
            store._prime(copy)
            yield lambda statement: copy.execute(*statement).fetchone()

    @contextlib.contextmanager
    def sql(self, url: str) -> Iterator[Execute]:
        """See ``Ledgers``."""
        with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
            connection.execute("pragma synchronous = off")
            connection.execute("pragma cache_size = -500000")
            yield lambda statement, values=(): connection.execute(statement, values).fetchall()

    def sizes(self, url: str) -> dict[str, int]:
        """See ``Ledgers``."""
        with self.sql(url) as execute:
            execute("pragma wal_checkpoint(truncate)")
            tables = execute(
                "select m.tbl_name, sum(d.pgsize) from dbstat d join sqlite_master m on m.name = d.name group by 1"
            )
        return {**dict(tables), "all": Path(url.removeprefix("sqlite:///")).stat().st_size}

    def close(self) -> None:
        """The folder is its owner's."""


class _Recorder:
    """A connection that keeps what is executed through it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.statements: list[Statement] = []

    def execute(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        """As the connection does."""
        self.statements.append((statement, values))
        return self.connection.execute(statement, values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)


class PostgresLedgers:
    """Schemas on the server at ``url``, for this process alone."""

    made_id = "lpad(to_hex({number}), 24, '0') || substr({column}, 25)"

    def __init__(self, url: str) -> None:
        self._url = url
        self._prefix = f"bench_{secrets.token_hex(4)}"
        self._made: list[str] = []

    def new(self, name: str) -> str:
        """See ``Ledgers``."""
        schema = f"{self._prefix}_{name}".replace("-", "_").lower()
        url = f"{self._url}{'&' if '?' in self._url else '?'}schema={schema}"
        self._made.append(schema)
        PostgresStore(url).migrate()
        return url

    @contextlib.contextmanager
    def recording(self, store: PostgresStore) -> Iterator[list[Statement]]:
        """See ``Ledgers``."""
        statements: list[Statement] = []
        save = store._save

        def recorded(connection: Any, request: str, *, synced: bool) -> dict[str, Any]:
            statements.append((saving.statement(), (request, synced)))
            return save(connection, request, synced=synced)

        store._save = recorded  # type: ignore[method-assign]
        try:
            yield statements
        finally:
            store._save = save  # type: ignore[method-assign]

    @contextlib.contextmanager
    def twin(self, store: PostgresStore, name: str) -> Iterator[Callable[[Statement], object]]:
        """See ``Ledgers``."""
        copy = PostgresStore(self.new(f"{name}_hand"))
        with contextlib.closing(copy._connect()) as connection:
            tables = connection.execute("select tablename from pg_tables where schemaname = current_schema()")
            for (table,) in tables.fetchall():
                if table != "migrations":
                    connection.execute(f'insert into "{table}" select * from "{store.schema}"."{table}"')
            for (sequence,) in connection.execute(_SEQUENCES).fetchall():
                connection.execute(f"select setval('{sequence}', (select last_value from {store.schema}.{sequence}))")

            def execute(statement: Statement) -> None:
                row = connection.execute(*statement).fetchone()
                if row is None or "refused" in row[0]:
                    raise RuntimeError(f"what was committed there is refused here: {row}")

            yield execute

    @contextlib.contextmanager
    def sql(self, url: str) -> Iterator[Execute]:
        """See ``Ledgers``."""
        with contextlib.closing(PostgresStore(url)._connect()) as connection:

            def execute(statement: str, values: Sequence[Any] = ()) -> list[Any]:
                done = connection.execute(numbered(statement), values)
                return done.fetchall() if done.description else []

            yield execute

    def sizes(self, url: str) -> dict[str, int]:
        """See ``Ledgers``."""
        with self.sql(url) as execute:
            tables = execute(
                "select relname::text, pg_total_relation_size(oid)::bigint from pg_class "
                "where relkind = 'r' and relnamespace = current_schema()::regnamespace"
            )
        return {**dict(tables), "all": sum(size for _, size in tables)}

    def close(self) -> None:
        """Drop the schemas."""
        with contextlib.closing(PostgresStore(self._url)._connect()) as connection:
            for schema in self._made:
                connection.execute(f'drop schema if exists "{schema}" cascade')


def option(parser: argparse.ArgumentParser) -> None:
    """``--store``: which of them."""
    where = f"postgres: on the server that {POSTGRES} names (python -m tests.servers -- ...)"
    parser.add_argument("--store", choices=STORES, default="sqlite", help=where)


@contextlib.contextmanager
def ledgers(store: str, folder: Path) -> Iterator[Ledgers]:
    """Those of ``--store``; gone afterwards."""
    made: Ledgers = PostgresLedgers(os.environ[POSTGRES]) if store == "postgres" else SqliteLedgers(folder)
    try:
        yield made
    finally:
        made.close()
