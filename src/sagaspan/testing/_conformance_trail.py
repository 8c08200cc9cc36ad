"""The audit trail and its chains, and notifications, which are read from it."""

from __future__ import annotations

from dataclasses import replace

from sagaspan.ledger.chain import START, Link, link
from sagaspan.ledger.contents import content_of
from sagaspan.ledger.records import DeliveryRecord
from sagaspan.ledger.store import DeliveryChange, HookChange, NoteChange, Store, UsageChange
from sagaspan.ledger.transitions import CallEvent
from sagaspan.testing._conformance_records import MakeStore, asking, claiming, moving, opening, refused, said, saved


def whole_chain(store: Store, namespace: str, run_id: str) -> int:
    """Check the chain of a run link by link; how many rows it has."""
    before: Link = START
    rows = store.chained(namespace, run_id, 0, limit=10**6)
    for row in rows:
        assert row.number is not None
        assert row.hash is not None
        expected = link(before, row.seq, row.row, row.content)
        assert (row.number, bytes(row.hash)) == expected, f"the chain of {run_id} breaks at row {row.seq}"
        before = expected
    return len(rows)


class TrailConforms:
    """What every store must do with the audit trail."""

    def test_every_row_is_a_link_of_its_run(self, make_store: MakeStore) -> None:
        """Hashed as it is stored, whoever appends; what is refused leaves no link."""
        store, other = make_store(), make_store()
        odd = said(detail="\u4e16 \"'\\ \x01\x1f\x7f\u2028\n\t\b\f\r/", actor="\U0001f600", digest="d", approval_id="a")
        first = claiming()
        saved(store, opening(), opening(id="q"))
        saved(other, first, NoteChange(replace(odd, run_id="q")))
        refused(store, NoteChange(odd), claiming())
        saved(store, NoteChange(odd), moving(first.record, CallEvent.SUCCEED), asking())
        for reader in (store, make_store()):
            assert [whole_chain(reader, "n", run_id) for run_id in ("r", "q", "none")] == [5, 2, 0]
        content = store.chained("n", "r", 0, limit=9)[1].content
        assert content is not None
        assert bytes(content) == content_of(first.record, is_new=True)
        assert store.audit_of("n", "r")[2] == odd

    def test_chains_are_listed_and_read_from_one_on(self, make_store: MakeStore) -> None:
        """In order of namespace and run; of no run too."""
        store = make_store()
        for namespace, run_id in (("n", "r"), ("m", "z"), ("n", ""), ("n", "a")):
            for _ in range(3):
                saved(store, NoteChange(said(namespace=namespace, run_id=run_id)))
        assert store.chains(None, limit=9) == [("m", "z"), ("n", ""), ("n", "a"), ("n", "r")]
        assert store.chains(("n", ""), limit=1) == [("n", "a")]
        assert store.chains(("n", "r"), limit=9) == []
        first = store.chained("n", "a", 0, limit=1)[0]
        assert [row.number for row in store.chained("n", "a", first.seq, limit=9)] == [2, 3]

    def test_numbers_only_grow(self, make_store: MakeStore) -> None:
        """Also after a refusal, and after what was newest is forgotten."""
        store = make_store()
        seen = [store.newest_audit()]
        for _ in range(3):
            saved(store, NoteChange(said()))
            refused(store, NoteChange(said()), claiming())
            seen.append(store.newest_audit())
        assert seen[0] == 0
        assert seen == sorted(set(seen))
        assert [number for number, _ in store.touched(0, limit=9).rows] == seen[1:]

    def test_what_somebody_may_be_told_of_is_found_by_number(self, make_store: MakeStore) -> None:
        """Endings that went badly, questions and soft limits, of one namespace, after one row and up to another."""
        store = make_store()
        first = claiming()
        saved(store, opening(), first, asking())
        one = store.newest_audit()
        saved(store, moving(first.record, CallEvent.FAIL), NoteChange(said("soft_limit", namespace="m")))
        two = store.newest_audit()
        assert [row.event for _, row in store.events("n", 0, two)] == ["approval.ask", "fail"]
        assert [row.event for _, row in store.events("n", one, two)] == ["fail"]
        assert [row.event for _, row in store.events("n", 0, one)] == ["approval.ask"]

    def test_what_was_touched_comes_with_its_rows(self, make_store: MakeStore) -> None:
        """Page by page, of all namespaces, each as it is now."""
        from sagaspan.ledger.records import UsageRecord

        store = make_store()
        usage = UsageRecord(call_id="c", namespace="n", run_id="r", at_us=1, tool="t", cost=3)
        saved(store, opening(), claiming(), UsageChange(usage), asking(), opening(namespace="m"))
        page = store.touched(0, limit=2)
        assert [row.event for _, row in page.rows] == ["run.open", "claim"]
        assert ([run.namespace for run in page.runs], [call.id for call in page.calls]) == (["n"], ["c"])
        assert (page.usage, page.approvals) == ((usage,), ())
        rest = store.touched(page.rows[-1][0], limit=9)
        assert [found.id for found in rest.approvals] == ["a"]
        assert "m" in {run.namespace for run in rest.runs}
        assert store.touched(rest.rows[-1][0], limit=9).rows == ()

    def test_a_hook_reads_on_from_where_it_was(self, make_store: MakeStore) -> None:
        """Of two that read the same, one saves."""
        store = make_store()
        assert store.hook_cursor("n", "h") is None
        saved(store, HookChange("n", "h", 3))
        refused(store, HookChange("n", "h", 4))
        refused(store, HookChange("n", "h", 5, expected=4))
        saved(store, HookChange("n", "h", 5, expected=3))
        assert store.hook_cursor("n", "h") == 5

    def test_a_delivery_is_tried_by_one(self, make_store: MakeStore) -> None:
        """Added once, saved over the attempts that were seen, and taken away when it is done."""
        store = make_store()
        first = DeliveryRecord(id="1", namespace="n", hook="h", kind="k", about="a", payload="{}", next_us=5,
                               created_us=1)  # fmt: skip
        second = replace(first, id="2", hook="g", next_us=9, created_us=2)
        saved(store, DeliveryChange(second), DeliveryChange(first), DeliveryChange(replace(first, about="again")))
        assert store.deliveries() == [first, second]
        assert store.deliveries(due_us=5, hooks=["h", "g"]) == [first]
        assert store.deliveries(namespace="m") == store.deliveries(hooks=[]) == []
        tried = replace(first, attempts=1, error="no", dead=True)
        saved(store, DeliveryChange(tried, 0))
        refused(store, DeliveryChange(tried, 0))
        assert store.deliveries(dead=True) == [tried]
        assert store.deliveries(dead=False) == [second]
        saved(store, DeliveryChange(tried, done=True))
        refused(store, DeliveryChange(tried, done=True))
        assert store.deliveries(limit=1) == [second]
