"""A server that crashes and is started again, one that is another one than before, and what was answered before."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import psycopg
import pytest

from sagaspan import Guard, SchemaOutdated, StoreUnavailable
from sagaspan._audit import Audit
from sagaspan.stores import connect
from sagaspan.testing._servers import ServerLedgers, ledgers_of
from tests.own_servers import Server
from tests.stores.conftest import OWN_SERVERS, own_server
from tests.stores.wire import Wire


@pytest.fixture(scope="module", params=OWN_SERVERS)
def crashing(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of our own of each kind; PostgreSQL flushes nothing by itself: what nobody waited for, a crash loses."""
    with own_server(request.param) as server:
        yield server


@pytest.fixture(scope="module")
def ledgers(crashing: Server) -> ServerLedgers:
    """Empty ledgers on it; all of them are gone with it."""
    return ledgers_of(crashing.url)


@pytest.fixture
def ledger(ledgers: ServerLedgers) -> str:
    """An empty ledger on it."""
    return ledgers.take()


@pytest.fixture(scope="module")
def other(crashing: Server) -> Iterator[Server]:
    """Another server of its kind, with nothing in it."""
    with own_server("mariadb" if crashing.url.startswith("mysql") else "postgres") as server:
        yield server


@pytest.fixture
def wire(crashing: Server) -> Iterator[Wire]:
    """What leads to the server, and after a fail-over to another one."""
    wire = Wire(crashing.url)
    yield wire
    wire.close()


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


@pytest.mark.parametrize("crashing", ["postgres"], indirect=True)  # MariaDB flushes every commit
@pytest.mark.parametrize("durability", ["normal", "full"])
def test_a_claim_is_on_disk_before_its_body_and_a_settle_if_it_is_asked_to(
    crashing: Server, ledger: str, durability: Literal["normal", "full"]
) -> None:
    """How far the log is written, and how much of it is flushed, says the server. Others flush now and then, too."""
    before, after = list[int](), list[int]()
    with psycopg.connect(crashing.url, autocommit=True) as server, Guard(ledger, durability=durability) as guard:

        def unflushed() -> int:
            row = server.execute("select pg_current_wal_insert_lsn() - pg_current_wal_flush_lsn()").fetchone()
            return int(row[0]) if row else -1

        act = guard.tool("act", effect="write")(lambda n: before.append(unflushed()))
        with guard.run(id="r"):
            for n in range(5):
                act(n)
                after.append(unflushed())
    assert min(before) == 0
    assert (min(after) == 0) if durability == "full" else (max(after) > 0)


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
        is_back = False
        try:
            with guard.run(id="r"):
                act(1)
                assert act(2) == 2
                with pytest.raises(StoreUnavailable) as caught:
                    act(3)
                assert caught.value.tool_ran == "no"
                crashing.start()
                is_back = True
                assert act(3) == 3
        finally:
            if not is_back:
                crashing.start()
        assert [call.state for call in guard.runs.get("r").calls] == ["done"] * 3
        assert guard.calls.duplicates() == []
    assert ran == [1, 2, 3]


@pytest.mark.parametrize("how", ["fast", "immediate", "kill"])
def test_a_server_that_is_restarted_under_load_loses_and_doubles_nothing(
    crashing: Server, ledger: str, how: str
) -> None:
    """Told to end, without a word, and killed: every call of eight threads is done once, and paid for once."""
    ran: list[int] = []
    under_way = threading.Event()
    threads, each = 8, 15

    def body(n: int) -> int:
        ran.append(n)
        if len(ran) > threads:
            under_way.set()
        return n

    with Guard(ledger, budgets={"user:*": "9000 USD"}) as guard:
        pay = guard.tool("pay", effect="write", cost="1 USD", key="string(n)")(body)

        def work(number: int) -> None:
            for n in range(number * each, (number + 1) * each):
                while True:
                    try:
                        with guard.run(id=f"r-{n}", user="ada"):
                            pay(n)
                    except StoreUnavailable:
                        continue
                    break

        with ThreadPoolExecutor(threads) as pool:
            jobs = [pool.submit(work, number) for number in range(threads)]
            assert under_way.wait(60)
            if how == "kill":
                crashing.kill()
                crashing.start()
            else:
                crashing.restart(how)
            for job in jobs:
                job.result()
        assert sorted(ran) == list(range(threads * each))
        assert {run.status for run in guard.runs.list(limit=1000)} == {"completed"}
        assert (guard.usage(user="ada").spent, guard.usage(user="ada").reserved) == (threads * each, 0)
        assert list(guard.budgets.fsck()) == []
    assert not Audit(lambda: connect(ledger), "default").verify().findings


def test_a_server_that_is_older_is_refused(crashing: Server, ledger: str, other: Server, wire: Wire) -> None:
    """A fail-over to a standby that lagged: who knows of a commit that is not there starts nothing over it."""
    ran: list[int] = []
    lagging = Wire.moved(ledger, other.url)
    connect(lagging).migrate()
    with Guard(wire.through(ledger)) as guard:
        act = guard.tool("act", effect="write")(ran.append)
        with guard.run(id="r"):
            act(1)
            wire.lead_to(other.url)
            with pytest.raises(StoreUnavailable, match=r"is older than it was.*nothing was started") as caught:
                act(2)
            assert caught.value.tool_ran == "no"
            wire.lead_to(crashing.url)
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


def test_another_server_than_before_is_refused(crashing: Server, ledger: str, other: Server, wire: Wire) -> None:
    """A fail-over to one that does not have the ledger: a clear error, and nothing runs, is made or is repeated."""
    ran: list[int] = []
    with Guard(wire.through(ledger)) as guard:
        act = guard.tool("act", effect="write")(ran.append)
        with guard.run(id="r"):
            act(1)
            wire.lead_to(other.url)
            with pytest.raises(
                SchemaOutdated, match=r"there is no ledger at .*fail-over.*nothing was started"
            ) as caught:
                act(2)
            assert caught.value.tool_ran == "no"
            with pytest.raises(SchemaOutdated, match="there is no ledger at"):
                connect(Wire.moved(ledger, other.url)).list_runs()
            wire.lead_to(crashing.url)
            act(2)
    assert ran == [1, 2]
