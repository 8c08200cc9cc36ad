"""The kit of ``sagaspan.testing`` on every store of the house."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sagaspan.ledger.store import Store
from sagaspan.stores.sqlite import SqliteStore
from sagaspan.testing import StoreConformance
from tests.servers import Mariadb, Postgres


class TestSqlite(StoreConformance):
    """A file."""

    @pytest.fixture
    def make_store(self, tmp_path: Path) -> Iterator[object]:
        """The ledger of this test, opened again."""
        made: list[Store] = []

        def make() -> Store:
            made.append(SqliteStore(tmp_path / "ledger.db", durability="off"))
            return made[-1]

        yield make
        for store in made:
            store.close()


class TestPostgres(StoreConformance):
    """A server."""

    @pytest.fixture
    def make_store(self, postgres: Postgres) -> object:
        """The ledger of this test, opened again."""
        return postgres.store


class TestMariadb(StoreConformance):
    """A server of another kind."""

    @pytest.fixture
    def make_store(self, mariadb: Mariadb) -> object:
        """The ledger of this test, opened again."""
        return mariadb.store
