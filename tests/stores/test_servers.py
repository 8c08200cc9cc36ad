"""What the stores on servers do alike: connections that are cut, and rows that are committed late."""

from __future__ import annotations

import threading

import pytest

from sagaspan import Guard
from sagaspan.ledger.store import NoteChange
from sagaspan.stores._migrate import migrations
from sagaspan.testing._conformance_records import opening, said, saved
from tests.servers import Mariadb, Postgres


@pytest.mark.parametrize("dialect", ["postgres", "mariadb"])
def test_migrations_have_numbers_of_their_own(dialect: str) -> None:
    """Those of the dialect are from 1000 on."""
    numbers = [migration.number for migration in migrations(dialect)]
    assert len(set(numbers)) == len(numbers)
    assert [number for number in numbers if number < 1000] == [one.number for one in migrations("sqlite")]


def test_a_server_that_was_restarted_is_no_error(server: Postgres | Mariadb) -> None:
    """Its old connections are gone: the next call finds that out, and goes on with others."""
    ran: list[int] = []
    with Guard(server.url) as guard:
        act = guard.tool("act", effect="write")(lambda n: ran.append(n))
        with guard.run(id="r"):
            act(1)
            server.cut()
            act(2)
        assert [run.status for run in guard.runs.list()] == ["completed"]
    assert ran == [1, 2]


def test_a_row_that_is_committed_late_is_waited_for(server: Postgres | Mariadb) -> None:
    """Who asks for the newest number waits until nobody is on the way with an earlier one."""
    store, other, found = server.store(), server.store(), list[int]()
    saved(store, opening())
    before = store.newest_audit()
    with other._connected() as connection, other._transaction(connection):
        other._hold(connection, [("n", "late")])
        other._append(connection, said(run_id="late"))
        saved(store, NoteChange(said()))
        looking = threading.Thread(target=lambda: found.append(store.newest_audit()))
        looking.start()
        looking.join(0.2)
        assert found == []
    looking.join(60)
    assert found == [before + 2]
