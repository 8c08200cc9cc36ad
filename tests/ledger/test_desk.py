"""What asking about a call costs: what is read for it, and what waits for the disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from sagaspan import Approval, ApprovalDenied, ApprovalPending, Approve, Deny, Edit, Guard
from sagaspan.ledger.store import Change, Commit
from sagaspan.stores.sqlite import SqliteStore


class Watched(SqliteStore):
    """A store that knows what was read, and which events of the audit trail waited for the disk."""

    reads = 0

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.synced: list[str] = []
        self.unsynced: list[str] = []

    def commit(self, changes: Sequence[Change], *, synced: bool) -> Commit:
        events = [change.audit.event for change in changes if hasattr(change, "audit")]
        (self.synced if synced else self.unsynced).extend(events)
        return super().commit(changes, synced=synced)

    def _fetch(self, query: str, values: Sequence[Any]) -> list[Any]:
        self.reads += 1
        return super()._fetch(query, values)

    def begin_anew(self) -> None:
        """What came before does not count."""
        self.reads = 0
        self.synced.clear()
        self.unsynced.clear()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Watched]:
    """A ledger of this test."""
    store = Watched(tmp_path / "ledger.db")
    yield store
    store.close()


def _pay(amount: int) -> int:
    return amount


def test_a_yes_is_on_disk_with_the_claim_that_uses_it(store: Watched) -> None:
    """One flush for both; a question that nobody is asked is with them, and nothing is read twice."""
    with Guard(store, approver="auto-approve") as guard, guard.run(id="a"):
        pay = guard.tool(approve=True, effect="write")(_pay)
        pay(1)
        store.begin_anew()
        pay(2)
    assert store.synced[:2] == ["claim", "approval.consume"]
    assert store.unsynced[:2] == ["approval.ask", "approval.approve"]
    with Guard(store, approver=lambda request: True) as guard, guard.run(id="b"):
        pay = guard.tool(approve=True, effect="write")(_pay)
        pay(1)
        store.begin_anew()
        pay(2)
        assert store.synced == ["approval.ask", "claim", "approval.consume"]
        assert store.reads == 4  # the call under its key, the limits, the requests about it, and what the run has done


def test_what_no_claim_follows_is_on_disk_by_itself(store: Watched) -> None:
    """A no, the first of two people, an edit, a question for somebody, and what is decided elsewhere."""
    with Guard(store, approver="auto-deny") as guard:
        pay = guard.tool(approve=True, effect="write")(_pay)
        with pytest.raises(ApprovalDenied), guard.run(id="a"):
            pay(1)
        assert "approval.deny" in store.synced
        for run, answer, event in (
            ("b", Deny("no"), "approval.deny"), ("c", Edit({"amount": 2}), "approval.supersede"),
        ):  # fmt: skip
            store.begin_anew()
            with guard.override(approver=lambda request, answer=answer: answer):
                try:
                    with guard.run(id=run):
                        pay(1)
                except ApprovalDenied:
                    assert run == "b"
            assert {"approval.ask", event} <= {*store.synced}
        both = guard.tool("both", approve=True, effect="write", approval=Approval(approvers=2))(_pay)
        store.begin_anew()
        with guard.override(approver=lambda request: Approve(by="ann")):
            with pytest.raises(ApprovalPending) as asked, guard.run(id="d"):
                both(1)
            assert {"approval.ask", "approval.vote"} <= {*store.synced}
            guard.approvals.approve(asked.value.approval_id, by="ben")
            assert "approval.approve" in store.synced
