"""What the tests of the servers share."""

from __future__ import annotations

import pytest

from tests.servers import Mariadb, Postgres


@pytest.fixture(params=["postgres", "mariadb"])
def server(request: pytest.FixtureRequest) -> Postgres | Mariadb:
    """A ledger on a server of each kind, with nothing in it."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Postgres | Mariadb)
    return found
