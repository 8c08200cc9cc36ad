"""What the tests of the servers share."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

import pytest

from tests.own_servers import Server, mariadb_server, postgres_server
from tests.servers import MARIADB, Mariadb, Postgres, url_of_server

OWN_SERVERS: Final = ("postgres", "mariadb")


@pytest.fixture(params=["postgres", "mariadb"])
def server(request: pytest.FixtureRequest) -> Postgres | Mariadb:
    """A ledger on a server of each kind, with nothing in it."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Postgres | Mariadb)
    return found


def own_server(kind: str, hosts: Sequence[str] = ()) -> contextlib.AbstractContextManager[Server]:
    """A server of a test's own, of which a crash loses what it can; ``hosts``: other networks that it serves."""
    if kind == "mariadb":
        url_of_server(MARIADB)
        return mariadb_server(hosts=hosts)
    url_of_server()
    return postgres_server("wal_writer_delay=10s", hosts=hosts)
