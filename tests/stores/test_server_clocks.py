"""Leases and requests are by the clock of the server, whatever the clocks of the hosts are set to."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pytest

from sagaspan import ApprovalPending, Guard
from sagaspan import _clock as clock
from sagaspan.ledger.judgement import Judge, Verdict
from sagaspan.ledger.records import LeaseRecord
from tests.servers import Mariadb, Postgres


def test_a_lease_is_by_the_clock_of_the_server(server: Postgres | Mariadb, monkeypatch: pytest.MonkeyPatch) -> None:
    """However wrong the clock of a host is, its lease ends when it should, and others see it so."""
    here, there = server.store(), server.store()
    ttl, hour = 30_000_000, 3600 * 1_000_000
    right = clock.now_us
    monkeypatch.setattr(clock, "now_us", lambda: right() + hour)
    here.renew(
        LeaseRecord(owner="o", renewed_us=clock.now_us(), until_us=clock.now_us() + ttl, until_boot_us=1, ttl_us=ttl)
    )
    own = here.lease_of("o")
    assert own is not None
    assert abs(own.until_us - clock.now_us() - ttl) < ttl
    monkeypatch.undo()
    seen = there.lease_of("o")
    assert seen is not None
    assert abs(seen.until_us - clock.now_us() - ttl) < ttl


@pytest.mark.parametrize("wrong", [-3600, 3600])
def test_a_request_expires_by_the_clock_of_the_server(
    server: Postgres | Mariadb, monkeypatch: pytest.MonkeyPatch, wrong: int
) -> None:
    """Whatever the clocks of who asks, who decides and who runs say: nothing ends early, and nothing lives longer."""
    right, ran = clock.now_us, list[int]()

    def guard_at(seconds: int) -> Guard:
        monkeypatch.setattr(clock, "now_us", lambda: right() + seconds * 1_000_000)
        for module in ("sagaspan.ledger.decisions", "sagaspan.ledger.desk", "sagaspan.ledger.claiming",
                       "sagaspan._approvals"):  # fmt: skip
            monkeypatch.setattr(f"{module}.now_us", clock.now_us)
        return Guard(server.url, approver="inbox")

    with guard_at(wrong) as asking:
        pay = asking.tool("pay", effect="write", approve=True)(ran.append)
        with pytest.raises(ApprovalPending), asking.run(id="r"):
            pay(1)
    with guard_at(0) as deciding:
        (request,) = deciding.approvals.list()
        left = (request.expires - dt.datetime.now(dt.UTC)).total_seconds()
        assert 86_000 < left < 87_000
        deciding.approvals.approve(request.id, by="ann")
    with guard_at(-wrong) as running:
        pay = running.tool("pay", effect="write", approve=True)(ran.append)
        with running.run(id="r"):
            pay(1)
    assert ran == [1]


def test_a_lease_of_another_host_is_over_when_it_is_over(server: Postgres | Mariadb) -> None:
    """All have one clock: nobody need watch it stand still, however wrong the clocks of the hosts are."""
    store, holder = server.store(), "elsewhere"
    lease = LeaseRecord(owner=holder, renewed_us=0, until_us=0, until_boot_us=1, ttl_us=30_000_000)
    store.renew(lease)
    assert Judge(store).verdict(holder, "c") is Verdict.ALIVE
    store.renew(replace(lease, ttl_us=1))
    assert Judge(store).verdict(holder, "c") is Verdict.EXPIRED
