"""What a doubter should be able to run: bounded in the normal suite, in full with ``SAGASPAN_PROOFS=full``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from sagaspan.testing import ledgers_on, temporary_store
from tests.servers import MARIADB, POSTGRES

FULL = os.environ.get("SAGASPAN_PROOFS") == "full"
ON_A_SERVER = os.environ.get("SAGASPAN_TEST_ON", "sqlite") != "sqlite"


def sides(step: int, *, other: bool = False) -> tuple[str, ...]:
    """Where a process dies: before and after a durable step; in the normal suite the one or, in turn, the other."""
    both = ("before", "after")
    return both if FULL else (both[(step + other) % 2],)


STORE = "the URL of a server to have the ledgers on, or: postgres or mariadb, that of the environment; SQLite without"


def server_of(store: str | None) -> str | None:
    """The URL of the server that an option names."""
    variable = {"postgres": POSTGRES, "mariadb": MARIADB}.get(str(store))
    return os.environ[variable] if variable else store


@contextlib.contextmanager
def ledger_on(server: str | None) -> Iterator[str | None]:
    """The URL of an empty ledger on this server, taken away at the end; None without one."""
    if server is None:
        yield None
        return
    with ledgers_on(server), temporary_store() as store:
        yield store.url
