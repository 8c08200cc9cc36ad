"""Claims, versions, fences, locks and approvals: what a commit saves, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

from sagaspan.ledger.records import ApprovalState, CallState, LockRecord, RunState
from sagaspan.ledger.store import ApprovalChange, Barrier, CallChange, LockChange, NonceChange, RunChange
from sagaspan.ledger.transitions import CallEvent, RunEvent, claim_again, open_run
from sagaspan.testing._conformance_records import (
    REQUEST,
    RUN,
    MakeStore,
    asking,
    claiming,
    moving,
    opening,
    refused,
    running,
    saved,
    told_of,
    unfit,
)


class CallsConform:
    """What every store must do with calls, runs, locks and approvals."""

    def test_what_is_saved_is_read_as_it_was(self, make_store: MakeStore) -> None:
        """Every column of a run, a call and a request, also by another process."""
        store = make_store()
        words = {"tags": '{"a": "\u00e4\u4e16\U0001f600"}', "user": "ada", "tenant": "acme", "conversation": "t'--",
                 "agent": "bot", "input": '"x\\u0000"'}  # fmt: skip
        run = replace(RUN, **words, orphans="a\nb", completing=True, committed_seq=7)  # type: ignore[arg-type]
        opened, audit = open_run(run)
        change = claiming(effect="write", declared_write=True, result="[1]", compensate="undo", pivot=True,
                          empty_safe=False, locks="l", parent_id="p", reserved="[]")  # fmt: skip
        saved(store, RunChange(opened, audit), change, asking(subject='{"n": 1e400}'))
        for reader in (store, make_store()):
            assert reader.get_run("n", "r") == opened
            found = reader.get_call("c")
            assert found is not None
            assert found == replace(change.record, claim_seq=found.claim_seq)
            assert found.claim_seq > 0
            assert reader.find_call("n", "s", "t", "k") == found
            assert reader.approval("a") == replace(REQUEST, subject='{"n": 1e400}')

    def test_a_claim_needs_its_run_at_its_epoch_and_running(self, make_store: MakeStore) -> None:
        """Otherwise nothing of the commit is saved, and the change that refused it is named."""
        store = make_store()
        saved(store, opening())
        other = claiming(id="d", key="other")
        for epoch in (0, 2):
            late = claiming(epoch=epoch)
            assert refused(store, other, late) is late
        assert store.calls_of("n", "r") == []
        first = claiming()
        saved(store, first)
        assert refused(store, claiming(id="e")).record.id == "e"  # type: ignore[union-attr]
        failed = moving(first.record, CallEvent.FAIL)
        saved(store, failed)
        again, audit = claim_again(failed.record, owner="o", now_us=3, traceparent=None)
        refused(store, CallChange(again, audit, 2, claims=True, run_epoch=2))
        saved(store, running(RUN, RunEvent.COMPLETE, 4))
        refused(store, CallChange(again, audit, 2, claims=True, run_epoch=1))
        assert [row.event for row in store.audit_of("n", "r")] == ["run.open", "claim", "fail", "run.complete"]

    def test_a_change_over_another_version_saves_nothing(self, make_store: MakeStore) -> None:
        """What was read before somebody else saved is stale: nothing is written over."""
        store = make_store()
        first = claiming()
        saved(store, opening(), first)
        failed = moving(first.record, CallEvent.FAIL)
        saved(store, failed)
        refused(store, moving(first.record, CallEvent.LOSE))
        committed = running(RUN, RunEvent.COMMIT)
        saved(store, committed)
        stale = running(RUN, RunEvent.COMPLETE)
        assert refused(store, claiming(id="d", key="d"), stale) is stale
        found = store.get_call("c")
        assert found == replace(failed.record, claim_seq=found.claim_seq if found else 0)
        assert store.get_run("n", "r") == committed.record
        assert store.get_call("d") is None

    def test_a_run_is_taken_once(self, make_store: MakeStore) -> None:
        """Of two who take it over from the same dead holder, the second is refused."""
        store = make_store()
        saved(store, opening())
        first = replace(running(RUN, RunEvent.RESUME), takes=True)
        saved(store, first)
        refused(store, first)
        assert store.get_run("n", "r") == first.record

    def test_one_key_is_claimed_once(self, make_store: MakeStore) -> None:
        """In whatever run: the second claim of a key is refused, and the first one stays as it is."""
        store = make_store()
        saved(store, opening(), opening(id="q"), claiming())
        refused(store, claiming(id="d", run_id="q"))
        refused(store, replace(claiming(id="e"), claims=False))
        saved(store, claiming(id="f", scope="elsewhere"))
        assert [call.id for call in store.list_calls()] == ["f", "c"]

    def test_who_is_claimed_again_takes_the_next_place(self, make_store: MakeStore) -> None:
        """The order of claims is the order of starting; a call that only ends keeps its place."""
        store = make_store()
        saved(store, opening())
        for name in "ab":
            saved(store, claiming(id=name, key=name))
        first = store.get_call("a")
        assert first is not None
        failed = moving(first, CallEvent.FAIL)
        saved(store, failed)
        assert [call.id for call in store.calls_of("n", "r")] == ["a", "b"]
        again, audit = claim_again(failed.record, owner="o", now_us=3, traceparent=None)
        saved(store, CallChange(again, audit, 2, claims=True, run_epoch=1))
        assert [call.id for call in store.calls_of("n", "r")] == ["b", "a"]

    def test_a_call_may_be_claimed_by_another_run(self, make_store: MakeStore) -> None:
        """It is the epoch of that one that counts, and not that of its own, which may be over."""
        store = make_store()
        saved(store, opening(state=RunState.COMPLETED), opening(id="q", epoch=3))
        refused(store, claiming())
        refused(store, replace(claiming(epoch=2), run_id="q"))
        saved(store, replace(claiming(epoch=3), run_id="q"))

    def test_a_nested_run_begins_in_a_run_that_runs(self, make_store: MakeStore) -> None:
        """At the epoch that its worker knows."""
        store = make_store()
        saved(store, opening())
        inner = opening(id="r/1", parent_id="r")
        refused(store, replace(inner, outer_epoch=2))
        saved(store, replace(inner, outer_epoch=1))
        assert [run.id for run in store.children_of("n", "r")] == ["r/1"]
        refused(store, replace(opening(id="r/2", parent_id="none"), outer_epoch=1))

    def test_an_approval_is_used_as_it_was_given(self, make_store: MakeStore) -> None:
        """Approved, for this digest, under this policy, in time, and once; that holds whatever the version says."""
        store = make_store()
        asked = asking()
        saved(store, opening(), asked)
        approved = replace(REQUEST, state=ApprovalState.APPROVED, version=2)
        used = replace(REQUEST, state=ApprovalState.CONSUMED, version=3, ended_us=5)
        row = told_of(used, "approval.consume", ApprovalState.APPROVED, ApprovalState.CONSUMED)
        good = ApprovalChange(used, row, 2, consumes_at=5)
        refused(store, replace(good, expected_version=1))
        saved(store, ApprovalChange(approved, told_of(approved, "approval.approve", ApprovalState.PENDING,
                                                      ApprovalState.APPROVED), 1))  # fmt: skip
        for wrong in (replace(good, consumes_at=100), replace(good, record=replace(used, digest="other")),
                      replace(good, record=replace(used, policy="other"))):  # fmt: skip
            refused(store, wrong)
        saved(store, good)
        refused(store, good)
        assert store.approval("a") == used

    def test_one_request_is_open_for_a_call(self, make_store: MakeStore) -> None:
        """A second one for the same key is refused until the first is over."""
        store = make_store()
        saved(store, opening(), asking())
        refused(store, asking(id="b"))
        denied = replace(REQUEST, state=ApprovalState.DENIED, version=2)
        row = told_of(denied, "approval.deny", ApprovalState.PENDING, ApprovalState.DENIED)
        saved(store, ApprovalChange(denied, row, 1))
        saved(store, asking(id="b"))
        assert [found.id for found in store.approvals_about("n", "s", "t", "k")] == ["b", "a"]

    def test_a_lock_is_taken_over_the_version_that_was_seen(self, make_store: MakeStore) -> None:
        """With the claim that needs it, or not at all."""
        store = make_store()
        lock = LockRecord(namespace="n", name="account:1", run_id="r", taken_us=1)
        saved(store, opening(), LockChange(lock))
        stale = LockChange(replace(lock, run_id="q"))
        assert refused(store, claiming(), stale) is stale
        taken = replace(lock, run_id="q", version=2)
        saved(store, LockChange(taken, 1))
        refused(store, LockChange(replace(taken, version=3), 1))
        assert store.locks_named("n", ["account:1", "none"]) == [taken]
        assert store.locks_of("n", "q") == [taken]
        assert store.locks_named("n", []) == store.locks_of("n", "r") == []
        assert store.get_call("c") is None

    def test_a_barrier_holds_while_a_step_is_open(self, make_store: MakeStore) -> None:
        """In the run or in one nested in it, however deep; done, other runs and those named do not count."""
        store = make_store()
        saved(store, opening(), opening(id="q"), opening(id="r/1", parent_id="r"), opening(id="r/1/1", parent_id="r/1"))
        barrier = Barrier("n", "r")
        saved(store, barrier, claiming(id="other", key="other", run_id="q", declared_write=True))
        saved(store, claiming(id="plain", key="plain"))
        step = claiming(run_id="r/1/1", compensate="undo")
        saved(store, barrier, step)
        assert refused(store, barrier, claiming(id="d", key="d")) is barrier
        saved(store, Barrier("n", "r", but=("c",)))
        saved(store, moving(step.record, CallEvent.SUCCEED))
        saved(store, barrier)

    def test_a_nonce_is_used_once(self, make_store: MakeStore) -> None:
        """It is remembered as long as it says."""
        store = make_store()
        saved(store, NonceChange("n", "x", until_us=10, now_us=1))
        refused(store, NonceChange("n", "x", until_us=10, now_us=9))
        saved(store, NonceChange("m", "x", until_us=10, now_us=9))
        saved(store, NonceChange("n", "x", until_us=20, now_us=10))

    def test_states_that_nobody_knows_are_refused(self, make_store: MakeStore) -> None:
        """The database itself has the closed lists of states, and the transaction leaves nothing."""
        store = make_store()
        for change in (claiming(state="lost"), opening(id="q", state="lost")):
            unfit(store, opening(), change)
            assert store.get_run("n", "r") is None

    def test_text_is_kept_to_the_letter_or_refused(self, make_store: MakeStore) -> None:
        """Quotes, lines, every script; what no text can hold is a ``StoreError``, and nothing is saved."""
        store = make_store()
        saved(store, opening())
        strange = "'\"\\ \n\r\t\x01\x7f \u2028 \u00e4 \u0130 \u4e16 \U0001f600 e\u0301 %s $1 ?1 {} \\u0000"
        call = claiming(key=strange, arguments=strange, tool=strange, error_message=strange)
        saved(store, call)
        found = store.find_call("n", "s", strange, strange)
        assert found is not None
        assert (found.arguments, found.error_message) == (strange, strange)
        unfit(store, claiming(id="d", key="half \ud800"))
        assert store.get_call("d") is None
        saved(store, claiming(id="d", key="whole"))

    def test_what_a_body_said_is_saved_with_a_nul_in_it(self, make_store: MakeStore) -> None:
        """An error's text may hold anything, and a settle must not fail for it."""
        store = make_store()
        first = claiming()
        saved(store, opening(), first)
        ended = moving(first.record, CallEvent.FAIL)
        saved(store, replace(ended, record=replace(ended.record, error_message="a\x00b")))
        found = store.get_call("c")
        assert found is not None
        assert found.state is CallState.FAILED
        assert (found.error_message or "").replace("\u2400", "\x00") == "a\x00b"

    def test_equal_keys_are_equal_to_the_letter(self, make_store: MakeStore) -> None:
        """Neither case, nor accents, nor spaces at the end, nor how a letter is composed are passed over."""
        store = make_store()
        saved(store, opening())
        for number, key in enumerate(("a", "A", "\u00e4", "a\u0308", "a ", "\uff41", "")):
            saved(store, claiming(id=str(number), key=key))
        for number, key in enumerate(("a", "A", "\u00e4", "a\u0308", "a ", "\uff41", "")):
            found = store.find_call("n", "s", "t", key)
            assert found is not None
            assert found.id == str(number)

    def test_an_empty_commit_is_saved(self, make_store: MakeStore) -> None:
        """Of nothing, nothing is refused."""
        assert make_store().commit([], synced=True)
