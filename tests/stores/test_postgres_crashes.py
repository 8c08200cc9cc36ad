"""A server that crashes and is started again, one that is another one than before, and what was answered before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from sagaspan import Guard, SchemaOutdated, StoreUnavailable
from sagaspan._audit import Audit
from sagaspan.stores import connect
from sagaspan.stores._postgres_connecting import parsed
from sagaspan.stores.postgres import PostgresStore
from tests.servers import Server, postgres_server, url_of_server


@pytest.fixture(scope="module")
def crashing() -> Iterator[Server]:
    """A server of our own that flushes nothing by itself: what nobody waited for is lost in its crash."""
    url_of_server()
    with postgres_server("wal_writer_delay=10s") as server:
        yield server


@pytest.fixture
def ledger(crashing: Server, request: pytest.FixtureRequest) -> str:
    """An empty ledger on it."""
    url = f"{crashing.url}?schema=t{abs(hash(request.node.name))}"
    PostgresStore(url).migrate()
    return url


def test_what_was_answered_is_there_after_a_crash(crashing: Server, ledger: str) -> None:
    """The processes live on: what nobody waited for is lost with the server, and saved again by who made it."""
    ran: list[int] = []
    with Guard(ledger, budgets={"user:*": "9 USD"}) as guard:
        pay = guard.tool("pay", effect="write", cost="1 USD")(ran.append)
        with guard.run(id="r", user="ada"):
            pay(1)
            crashing.restart()
            assert [call.state for call in guard.runs.get("r").calls] == ["done"]
            pay(2)
            pay(3)
            crashing.restart()
        assert [call.state for call in guard.runs.get("r").calls] == ["done"] * 3
        assert guard.runs.get("r").status == "completed"
        assert (guard.usage(user="ada").spent, guard.usage(user="ada").reserved) == (3, 0)
        assert list(guard.budgets.fsck()) == []
    assert ran == [1, 2, 3]
    assert not Audit(lambda: connect(ledger), "default").verify().findings


def test_a_server_that_is_gone_starts_nothing(crashing: Server, ledger: str) -> None:
    """Nothing runs without a claim; what has run keeps its result, which is saved once the server is back."""
    ran: list[int] = []
    with Guard(ledger) as guard:

        def body(n: int) -> int:
            if n == 2:
                crashing.stop()
            ran.append(n)
            return n

        act = guard.tool("act", effect="write")(body)
        try:
            with guard.run(id="r"):
                act(1)
                assert act(2) == 2
                with pytest.raises(StoreUnavailable) as caught:
                    act(3)
                assert caught.value.tool_ran == "no"
                crashing.start()
                assert act(3) == 3
        finally:
            crashing.control("status") if ran[-1] == 3 else crashing.start()
        assert [call.state for call in guard.runs.get("r").calls] == ["done"] * 3
        assert guard.calls.duplicates() == []
    assert ran == [1, 2, 3]


def test_a_server_that_is_older_than_before_is_refused(ledger: str) -> None:
    """A fail-over to a standby that lagged: who knows of a commit that is not there starts nothing over it."""
    ran: list[int] = []
    with postgres_server() as other, Guard(ledger) as guard:
        lagging = ledger.replace(str(urlsplit(ledger).port), str(urlsplit(other.url).port))
        PostgresStore(lagging).migrate()
        act = guard.tool("act", effect="write")(ran.append)
        with guard.run(id="r"):
            act(1)
            store = guard._store
            assert isinstance(store, PostgresStore)
            store._pool.clear()
            was, store._target = store._target, parsed(lagging)
            with pytest.raises(StoreUnavailable, match=r"is older than it was.*nothing was started") as caught:
                act(2)
            assert caught.value.tool_ran == "no"
            store._target = was
            act(2)
        with Guard(lagging) as there:  # not even what this process had kept to save it again
            assert there.runs.list() == []
    assert ran == [1, 2]


def test_what_was_forgotten_is_no_sign_of_an_older_server(crashing: Server, ledger: str) -> None:
    """The last commit on disk may be of a run that was pruned since."""
    with Guard(ledger) as guard:
        act = guard.tool("act", effect="write")(lambda n: n)
        with guard.run(id="r"):
            act(1)
        guard.prune(older_than=0)
        crashing.restart()
        with guard.run(id="s"):
            assert act(2) == 2


def test_another_server_than_before_is_refused(ledger: str, tmp_path: Path) -> None:
    """A fail-over to one that does not have the ledger: a clear error, and nothing runs, is made or is repeated."""
    ran: list[int] = []
    with postgres_server() as other, Guard(ledger) as guard:
        act = guard.tool("act", effect="write")(ran.append)
        with guard.run(id="r"):
            act(1)
            store = guard._store
            assert isinstance(store, PostgresStore)
            store._pool.clear()
            was, store._target = store._target, parsed(other.url)
            with pytest.raises(
                SchemaOutdated, match=r"there is no ledger at .*fail-over.*nothing was started"
            ) as caught:
                act(2)
            assert caught.value.tool_ran == "no"
            store._target = was
            act(2)
    assert ran == [1, 2]
