"""A network that is cut between a commit and its answer: what was committed is looked up, and never done twice."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from sagaspan import Guard, StoreUnavailable
from sagaspan._audit import Audit
from sagaspan.ledger.records import LeaseRecord
from sagaspan.stores import connect
from tests.servers import Mariadb, Postgres
from tests.stores.wire import Wire

Ledger = Postgres | Mariadb


@pytest.fixture
def wire(server: Ledger) -> Iterator[Wire]:
    """Between us and the server."""
    wire = Wire(server.url)
    yield wire
    wire.close()


def _said(server: Ledger, event: str) -> str:
    """How a commit with this event in the audit trail is written."""
    return f'"event":"{event}"' if isinstance(server, Postgres) else f"'{event}'"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("event", ["run.open", "claim", "succeed", "run.complete"])
def test_a_commit_whose_answer_is_lost_is_read_again(server: Ledger, wire: Wire, event: str, when: str) -> None:
    """Each commit of a call, cut before it arrived and after it was done: one effect, one row of history, one price."""
    ran: list[int] = []
    url = wire.through(server.url)
    with Guard(url, budgets={"user:*": "20 USD/day"}) as guard:
        pay = guard.tool("pay", effect="write", cost="1 USD")(ran.append)
        with guard.run(id="before", user="ada"):
            pay(0)
        wire.cut(_said(server, event), when)
        with guard.run(id="r", user="ada"):
            pay(1)
        assert wire.cuts == 1
        assert (guard.usage(user="ada").spent, guard.usage(user="ada").reserved) == (2, 0)
        assert guard.runs.get("r").status == "completed"
        assert [row.event for row in guard._store.audit_of("default", "r")] == [
            "run.open", "claim", "succeed", "run.complete"
        ]  # fmt: skip
    assert ran == [0, 1]
    assert not Audit(lambda: connect(url), "default").verify().findings


def test_a_renewal_that_is_lost_is_repeated(server: Ledger, wire: Wire) -> None:
    """The beat of the lease goes on with another connection: else its thread would end, and all leases with it."""
    # Not by a guard, whose thread may renew in between: from its third time on a statement is sent by a name alone.
    lease = LeaseRecord(owner="o", renewed_us=0, until_us=0, until_boot_us=0, ttl_us=30_000_000)
    with contextlib.closing(connect(wire.through(server.url))) as store:
        for when in ("before", "after"):
            wire.cut("insert into owners", when)
            store.renew(lease)
        assert wire.cuts == 2
        assert store.lease_of("o") is not None


def test_who_cannot_find_out_starts_nothing(server: Ledger, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim that was committed and whose answer is lost for good: nothing ran, and it is in doubt, not repeated."""
    monkeypatch.setattr("sagaspan.stores._server.WAIT_SECONDS", 0.0)
    ran: list[int] = []
    guard = Guard(wire.through(server.url))
    act = guard.tool("act", effect="write")(ran.append)
    with pytest.raises(StoreUnavailable), guard.run(id="r"):
        wire.cut(_said(server, "claim"), "after")
        wire.is_down = True
        act(1)
    assert ran == []
    wire.is_down = False
    with Guard(server.url) as other:
        assert [call.state for call in other.runs.get("r").calls] in (["running"], ["unknown"])
    guard.close()


@pytest.mark.parametrize("asked", ["of the server", "of the schema"])
def test_a_connection_that_is_cut_while_it_is_made_starts_nothing(server: Ledger, wire: Wire, asked: str) -> None:
    """What is asked before anything else can be lost, too: one error like any other, and the next call goes on."""
    of_server = "server_encoding" if isinstance(server, Postgres) else "innodb_flush_log_at_trx_commit"
    ran: list[int] = []
    with Guard(wire.through(server.url)) as guard:
        act = guard.tool("act", effect="write")(ran.append)
        wire.cut(of_server if asked == "of the server" else "from migrations", "after")
        with pytest.raises(StoreUnavailable, match="cannot be used") as caught:
            act(1)
        assert (wire.cuts, caught.value.tool_ran) == (1, "no")
        act(2)
    assert ran == [2]
