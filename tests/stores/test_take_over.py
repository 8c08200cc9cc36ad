"""A run whose holder is gone is taken by who finds nobody else at it: the others wait for nothing (SKIP LOCKED)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from sagaspan.ledger.transitions import RunEvent
from sagaspan.testing._conformance_records import RUN, opening, running
from tests.servers import Mariadb, Postgres


@contextlib.contextmanager
def _somebody_at(server: Postgres | Mariadb, run: str) -> Iterator[None]:
    """Another process is in the middle of a commit to this run."""
    if isinstance(server, Postgres):
        from sagaspan.stores._postgres_schema import RUN as KEY

        key = KEY.format(namespace="$1::text", run="$2::text")
        with contextlib.closing(server.store()._connect()) as connection, connection.transaction():
            connection.execute(f"select pg_advisory_xact_lock({key})", ("n", run))
            yield
        return
    from sagaspan.stores._mariadb_changes import place_of

    with contextlib.closing(server.store()._connect()) as connection, connection.cursor() as cursor:
        cursor.execute("start transaction")
        cursor.execute(f"select n from places where n = {place_of('n', run)} for update")
        yield
        connection.rollback()


def test_a_run_that_somebody_writes_to_is_left_to_them(server: Postgres | Mariadb) -> None:
    """Refused at once, and nothing of the commit is saved; another run can be taken meanwhile, and this one later."""
    store = server.store()
    for run in ("r", "other"):
        assert store.commit([opening(id=run)], synced=False)
    taking = {run: replace(running(replace(RUN, id=run), RunEvent.RESUME), takes=True) for run in ("r", "other")}
    with _somebody_at(server, "r"):
        assert store.commit([taking["r"]], synced=False).refused is taking["r"]
        assert store.commit([taking["other"]], synced=False)
    assert [row.event for row in store.audit_of("n", "r")] == ["run.open"]
    assert store.commit([taking["r"]], synced=False)
    assert store.commit([taking["r"]], synced=False).refused is taking["r"]
