"""Real database servers for the tests: found by the environment, and started on the loopback for who has none.

    uv run --all-extras python -m tests.servers -- pytest tests/stores    # starts PostgreSQL and MariaDB for it

Those of Debian's packages (``postgresql``, ``mariadb-server``) that are not installed are not started.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pytest

from tests.own_servers import ended_by_sigterm, mariadb_server, postgres_server

if TYPE_CHECKING:
    from sagaspan.ledger.store import Store
    from sagaspan.stores.mariadb import MariadbStore
    from sagaspan.stores.postgres import PostgresStore
    from sagaspan.testing._mariadb_ledgers import MariadbLedgers
    from sagaspan.testing._postgres_ledgers import PostgresLedgers
    from sagaspan.testing._servers import ServerLedgers

POSTGRES: Final = "SAGASPAN_TEST_POSTGRES"
MARIADB: Final = "SAGASPAN_TEST_MYSQL"
REQUIRED: Final = "SAGASPAN_REQUIRE_SERVICES"
_URLS: Final = {name: os.environ.get(name) for name in (POSTGRES, MARIADB)}  # tests run in an environment without it
_IS_REQUIRED: Final = os.environ.get(REQUIRED) == "1"


def missing(reason: str) -> NoReturn:
    """Skip the test, or fail it where nothing may be skipped."""
    if _IS_REQUIRED:
        pytest.fail(reason)
    pytest.skip(reason)


def url_of_server(variable: str = POSTGRES) -> str:
    """The URL of a server of the environment; skips the test without one, or fails it if required."""
    url = _URLS[variable]
    if url is None:
        missing(f"{variable} names no server; python -m tests.servers -- pytest ... starts one")
    return url


class OnServer:
    """Ledgers of this process's own on a server of the environment; ``empty`` begins with one that is.

    See ``ServerLedgers``.
    """

    def __init__(self, ledgers: ServerLedgers) -> None:
        self._ledgers = ledgers
        self._made: list[Store] = []
        self._begin()

    def _begin(self) -> None:
        self.url = self._ledgers.take()

    @property
    def name(self) -> str:
        """What the ledger is called on the server."""
        return self._ledgers.name_of(self.url)

    def begin_anew(self) -> None:
        """Nothing is in this ledger any more, and nobody is connected to it."""
        self.close()
        self._ledgers.begin_anew(self.url)

    def empty(self) -> None:
        """Begin with a ledger in which nothing is, and that nobody is connected to."""
        self.close()
        self._ledgers.give_back(self.url)
        self._begin()

    def cut(self) -> None:
        """End all connections of others to this ledger."""
        self._ledgers.cut(self.url)

    def close(self) -> None:
        """Close what was opened."""
        while self._made:
            self._made.pop().close()

    def drop(self) -> None:
        """Take the ledgers away, and their connections."""
        self.close()
        self._ledgers.close()


class Postgres(OnServer):
    """Each ledger is a schema."""

    _ledgers: PostgresLedgers

    def __init__(self) -> None:
        from sagaspan.testing._postgres_ledgers import PostgresLedgers  # who tests an adapter alone has no driver

        super().__init__(PostgresLedgers(url_of_server()))

    schema = OnServer.name

    def store(self, durability: str = "off") -> PostgresStore:
        """The ledger, opened again."""
        from sagaspan.stores.postgres import PostgresStore

        store = PostgresStore(self.url, durability=durability)
        self._made.append(store)
        return store

    def run(self, *statements: str) -> list[tuple[object, ...]]:
        """What somebody else does on the server; the rows of the last statement."""
        return [self._ledgers.run(self.url, statement) for statement in statements][-1]


class Mariadb(OnServer):
    """Each ledger is a database."""

    _ledgers: MariadbLedgers

    def __init__(self) -> None:
        from sagaspan.testing._mariadb_ledgers import MariadbLedgers

        super().__init__(MariadbLedgers(url_of_server(MARIADB)))

    database = OnServer.name

    def store(self, durability: str = "off") -> MariadbStore:
        """The ledger, opened again."""
        from sagaspan.stores.mariadb import MariadbStore

        store = MariadbStore(self.url, durability=durability)
        self._made.append(store)
        return store

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """What somebody else does on the server; the rows of the last statement."""
        return self._ledgers.run(self.url, *statements)


def main() -> int:
    """Run a command beside servers of its own."""
    command = sys.argv[sys.argv.index("--") + 1 :]
    ended_by_sigterm()
    with contextlib.ExitStack() as servers:
        found = dict(os.environ)
        if POSTGRES not in found and list(Path("/usr/lib/postgresql").glob("*/bin")):
            found[POSTGRES] = servers.enter_context(postgres_server()).url
        if MARIADB not in found and shutil.which("mariadbd"):
            found[MARIADB] = servers.enter_context(mariadb_server()).url
        return subprocess.run(command, env=found, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
