"""Ledgers for tests on PostgreSQL: each a schema of its own."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from sagaspan.ledger.store import Store
from sagaspan.stores.postgres import PostgresStore
from sagaspan.testing._servers import ServerLedgers, new_use

_CONNECTED = (
    "select pid from pg_stat_activity "
    "where application_name = current_setting('application_name') and pid <> pg_backend_pid()"
)


class PostgresLedgers(ServerLedgers):
    """Empty ledgers on the server of ``url``."""

    def opened(self, url: str) -> Store:
        """The ledger of ``url``; nothing waits for a disk."""
        return PostgresStore(url, durability="off")

    def name_of(self, url: str) -> str:
        """The schema."""
        return schema_of(url)

    def run(self, url: str, statement: str, *values: object) -> list[tuple[object, ...]]:
        """What somebody does with the ledger past the library; returns the rows."""
        connection = PostgresStore(url)._connect()  # noqa: SLF001 - the same house
        try:
            done = connection.execute(statement, values)
            return done.fetchall() if done.description else []
        finally:
            connection.close()

    def empty(self, url: str) -> None:
        """Forget everything in the ledger."""
        rows = self.run(url, "select tablename from pg_tables where schemaname = current_schema()")
        deletes = "; ".join(f"delete from {table}" for (table,) in rows if table != "migrations")  # noqa: S608
        self.run(url, f"do $$ begin {deletes}; perform setval('audit_seq_seq', 1, false); end $$")

    def cut(self, url: str) -> None:
        """End the connections of all others to the ledger, also of its earlier uses."""
        self.run(url, "select pg_terminate_backend(pid) from pg_stat_activity where application_name like $1 "
                      "and pid <> pg_backend_pid()", f"{schema_of(url)}%")  # fmt: skip

    def _make(self, url: str) -> None:
        PostgresStore(url).migrate()

    def _is_in_use(self, url: str) -> bool:
        return bool(self.run(url, _CONNECTED))

    def _drop(self, url: str) -> None:
        self.run(url, f'drop schema if exists "{schema_of(url)}" cascade')

    def _url_of(self, name: str) -> str:
        parts = urlsplit(self._url)
        options = dict(parse_qsl(parts.query)) | {"schema": name, "application_name": f"{name}_{new_use()}"}
        return urlunsplit(parts._replace(query=urlencode(options)))


def schema_of(url: str) -> str:
    """The schema that a ledger's URL names."""
    return dict(parse_qsl(urlsplit(url).query))["schema"]
