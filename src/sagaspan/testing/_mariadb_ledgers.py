"""Ledgers for tests on MariaDB: each a database of its own."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

from pymysql import MySQLError

from sagaspan.ledger.store import Store
from sagaspan.stores.mariadb import MariadbStore
from sagaspan.testing._servers import ServerLedgers, new_use

_CONNECTED = "select id from information_schema.processlist where db = database() and id <> connection_id()"
_MADE_ONCE = ("migrations", "places")
"""Tables whose rows every ledger has."""


class MariadbLedgers(ServerLedgers):
    """Empty ledgers on the server of ``url``."""

    _tables: tuple[str, ...] = ()

    def opened(self, url: str) -> Store:
        """The ledger of ``url``; whether anything waits for a disk is a setting of the server."""
        return MariadbStore(url, durability="off")

    def name_of(self, url: str) -> str:
        """The database."""
        return urlsplit(url).path.removeprefix("/")

    def run(self, url: str, *statements: str) -> list[tuple[object, ...]]:
        """What somebody does with the ledger past the library; the rows of the last statement."""
        connection = MariadbStore(url)._connect()  # noqa: SLF001 - the same house
        try:
            with connection.cursor() as cursor:
                rows: list[tuple[object, ...]] = []
                for statement in statements:
                    cursor.execute(statement)
                    rows = list(cursor.fetchall())
                return rows
        finally:
            connection.close()

    def empty(self, url: str) -> None:
        """Forget everything in the ledger; truncating takes longer."""
        deletes = (f'delete from "{table}"' for table in self._tables if table not in _MADE_ONCE)  # noqa: S608
        self.run(url, "start transaction", *deletes, "commit", "alter table audit auto_increment = 1")

    def cut(self, url: str) -> None:
        """End the connections of all others to the ledger."""
        for (number,) in self.run(url, _CONNECTED):
            try:
                self.run(url, f"kill connection {number}")
            except MySQLError:  # it has ended meanwhile
                continue

    def _make(self, url: str) -> None:
        """By the migrations, or as the first one is, which takes a tenth of the time."""
        if not self._made:
            MariadbStore(url).migrate()
            self._tables = tuple(str(name) for (name,) in self.run(url, "show tables"))
            return
        first, name = self._made[0], self.name_of(url)
        alike = (f'create table "{name}"."{table}" like "{table}"' for table in self._tables)
        filled = (f'insert into "{name}"."{table}" select * from "{table}"' for table in _MADE_ONCE)  # noqa: S608
        self.run(first, f'create database "{name}"', *alike, *filled)

    def _is_in_use(self, url: str) -> bool:
        return bool(self.run(url, _CONNECTED))

    def _drop(self, url: str) -> None:
        self.run(url, f'drop database "{self.name_of(url)}"')

    def _url_of(self, name: str) -> str:
        return urlunsplit(urlsplit(self._url)._replace(path=f"/{name}", fragment=new_use()))
