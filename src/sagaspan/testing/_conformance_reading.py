"""What is found, in which order, and what is forgotten."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from sagaspan.ledger.families import open_family
from sagaspan.ledger.records import CallState, LeaseRecord, Phase, RunState, UsageRecord
from sagaspan.ledger.so_far import tally_of
from sagaspan.ledger.store import Family, ReserveChange, SpendChange, Tally, Undoable, UsageChange
from sagaspan.ledger.transitions import CallEvent, RunEvent
from sagaspan.testing._conformance_records import (
    BUDGET,
    REQUEST,
    RUN,
    MakeStore,
    asking,
    claiming,
    moving,
    opening,
    running,
    saved,
)

if TYPE_CHECKING:
    import pytest

_PREFIXES = ("a*", "a?", "a[b]", "a]", "a^-", "a'b\"; --", "a%_", "a\\", "a\ud7ff", "a\U0010ffff", "\U0010ffff")


class ReadingConforms:
    """What every store must find."""

    def test_prefixes_are_literal(self, make_store: MakeStore) -> None:
        """Characters that mean something to a pattern or to SQL match only themselves."""
        store = make_store()
        for number, prefix in enumerate(_PREFIXES):
            for name in (f"{prefix}1", f"{prefix}2", f"ab{number}", f"aXY{number}", f"A{number}"):
                call = claiming(id=name, key=f"k-{name}", run_id=name, tool=f"t{number}")
                saved(store, opening(id=name), call, asking(id=name, call_id=name, key=f"k-{name}", tool=f"t{number}"))
            expected = {f"{prefix}1", f"{prefix}2"}
            assert {run.id for run in store.match_runs(prefix)} == expected
            assert {call.id for call in store.match_calls(prefix)} == expected
            assert {call.id for call in store.match_calls(f"k-{prefix}")} == expected
            assert {found.id for found in store.match_approvals(prefix)} == expected
            assert [run.id for run in store.match_runs(f"{prefix}1")] == [f"{prefix}1"]

    def test_namespaces_are_found_and_kept_apart(self, make_store: MakeStore) -> None:
        """Each once, however many runs it has; what is asked of one shows nothing of another."""
        store = make_store()
        assert store.namespaces() == []
        assert store.calls_in_scope("s:") == []
        for namespace in ("b", "a", "c"):
            for name in ("r1", "r2"):
                which = f"{namespace}-{name}"
                call = claiming(namespace=namespace, id=which, key=which, scope="s:1", run_id=name)
                saved(store, opening(namespace=namespace, id=name), call)
        assert store.namespaces() == ["a", "b", "c"]
        for found in (store.list_runs(namespace="b"), store.match_runs("r", namespace="b")):
            assert sorted((run.namespace, run.id) for run in found) == [("b", "r1"), ("b", "r2")]
        for calls in (store.list_calls(namespace="b"), store.open_calls(namespace="b"),
                      store.calls_in_scope("s:", namespace="b")):  # fmt: skip
            assert [call.id for call in calls] == ["b-r2", "b-r1"]
        assert store.match_calls("b-r1", namespace="a") == []
        assert [call.id for call in store.calls_in_scope("s:", limit=2)] == ["c-r2", "c-r1"]

    def test_lists_are_newest_first_and_page(self, make_store: MakeStore) -> None:
        """By state, limit and offset."""
        store = make_store()
        for number in range(5):
            saved(store, opening(id=f"r{number}", created_us=number, state=RunState.HELD if number % 2 else "running"))
            call = claiming(id=f"c{number}", key=str(number), run_id="r0")
            saved(store, call, asking(id=f"a{number}", key=str(number), created_us=number, run_id=f"r{number}"))
            if number % 2:
                saved(store, moving(call.record, CallEvent.SUCCEED))
        assert [run.id for run in store.list_runs(limit=2, offset=1)] == ["r3", "r2"]
        assert [run.id for run in store.list_runs(states=[RunState.HELD])] == ["r3", "r1"]
        assert [run.id for run in store.unfinished_runs()] == ["r4", "r2", "r0"]
        assert [call.id for call in store.list_calls(states=[CallState.DONE])] == ["c3", "c1"]
        assert [call.id for call in store.open_calls(2)] == ["c4", "c2"]
        assert [call.id for call in store.calls_in(CallState.RUNNING)] == ["c0", "c2", "c4"]
        assert [found.id for found in store.list_approvals(limit=2, offset=1)] == ["a3", "a2"]
        assert [found.id for found in store.list_approvals(run_id="r4", namespace="n")] == ["a4"]
        assert store.list_approvals(states=["denied"]) == []  # type: ignore[list-item]

    def test_a_run_is_counted(self, make_store: MakeStore) -> None:
        """Its calls, what they cost, and which would be undone, the newest first; also without ``tally_of``."""
        store, forward = make_store(), Phase.FORWARD
        assert tally_of(store, "n", "r", limit=9) == Tally()
        saved(store, opening(), opening(id="q"), opening(namespace="m"))
        for number, (tool, by, phase, run, namespace) in enumerate((
            ("book", "cancel", forward, "r", "n"), ("pay", "refund", forward, "r", "n"),
            ("look", None, forward, "r", "n"), ("book", "cancel", forward, "r", "n"),
            ("refund", "pay", Phase.COMPENSATION, "r", "n"), ("pay", "return", forward, "r", "n"),
            ("other", "run", forward, "q", "n"), ("other", "namespace", forward, "r", "m"),
        )):  # fmt: skip
            name = str(number)
            where: dict[str, Any] = {"run_id": run, "namespace": namespace}
            call = claiming(id=name, key=name, tool=tool, compensate=by, phase=phase, **where)
            usage = UsageRecord(call_id=name, at_us=1, tool=tool, cost=10, **where)
            saved(store, call, moving(call.record, CallEvent.SUCCEED), UsageChange(usage))
        going, failed = claiming(id="x", key="x", compensate="undo"), claiming(id="y", key="y", compensate="undo")
        saved(store, going, failed, moving(failed.record, CallEvent.FAIL))
        kinds = (Undoable("pay", "return", 1), Undoable("book", "cancel", 2), Undoable("pay", "refund", 1))
        tally = tally_of(store, "n", "r", limit=3)
        assert (tally.calls, tally.undoable, tally.more) == (7, kinds, 0)
        assert tally_of(store, "n", "r", limit=2) == replace(tally, undoable=kinds[:2], more=1)
        assert tally_of(store, "n", "r", limit=0) == replace(tally, undoable=(), more=3)
        assert tally_of(store, "n", "q", limit=9) == Tally(1, 10, (Undoable("other", "run", 1),))
        assert type(tally.cost) is int

    def test_what_is_open_of_a_run_is_found(self, make_store: MakeStore) -> None:
        """In claim order, and nothing of another run or namespace; also without ``open_calls_of``."""
        store = make_store()
        saved(store, opening(), opening(id="q"), opening(namespace="m"))
        calls = [claiming(id=str(number), key=str(number), effect="read") for number in range(6)]
        others = claiming(id="q0", key="q0", run_id="q"), claiming(id="m0", key="m0", namespace="m")
        saved(store, *reversed(calls), *others)
        for call, event in zip(calls, (CallEvent.SUCCEED, CallEvent.FAIL, CallEvent.LOSE), strict=False):
            saved(store, moving(call.record, event))
        run = store.get_run("n", "r")
        assert run is not None
        assert [call.id for call in open_family(store, run)] == ["5", "4", "3", "2"]

    def test_the_turns_of_a_thread_are_numbers(self, make_store: MakeStore) -> None:
        """``THREAD/n``, the highest first, and nothing that only looks like one."""
        store = make_store()
        for name in ("t/1", "t/2", "t/10", "t/", "t/1x", "t/1/2", "t%/3", "u/4", "t/\u0663"):
            saved(store, opening(id=name))
        assert [run.id for run in store.turns_of("n", "t")] == ["t/10", "t/2", "t/1"]
        assert [run.id for run in store.turns_of("n", "t", limit=1)] == ["t/10"]
        assert [run.id for run in store.turns_of("n", "t%")] == ["t%/3"]

    def test_a_late_success_is_listed_until_something_follows(self, make_store: MakeStore) -> None:
        """A call that is done after it was ``failed``."""
        store = make_store()
        first = claiming()
        failed = moving(first.record, CallEvent.FAIL)
        late = moving(failed.record, CallEvent.SUCCEED, 3)
        saved(store, opening(), first, failed)
        assert store.late_calls() == []
        saved(store, late)
        assert [call.id for call in store.late_calls(namespace="n")] == ["c"]
        saved(store, moving(late.record, CallEvent.ACKNOWLEDGE, 4))
        assert store.late_calls() == []

    def test_a_fact_is_saved_over_what_was_expected(self, make_store: MakeStore) -> None:
        """Of two that put it at once, one does."""
        store = make_store()
        assert store.put_fact("n", "secret", "1", expected=None)
        assert not store.put_fact("n", "secret", "2", expected=None)
        assert not store.put_fact("n", "secret", "2", expected="3")
        assert store.put_fact("n", "secret", "2", expected="1")
        assert make_store().facts("n") == {"secret": "2"}
        assert store.facts("m") == {}

    def test_a_lease_is_renewed_beat_by_beat(self, make_store: MakeStore) -> None:
        """It says how long it has left; it is forgotten long after its end, unless it covers something."""
        from sagaspan._clock import now_us

        store, hour = make_store(), 3600 * 1_000_000
        now = now_us()
        for owner, ttl in (("o", hour), ("p", hour)):
            saved(store, opening(id=owner, owner=owner, state="running" if owner == "o" else "held"))
            for _ in range(2):
                store.renew(LeaseRecord(owner=owner, renewed_us=now, until_us=now + ttl, until_boot_us=7, ttl_us=ttl))
        found = make_store().lease_of("o")
        assert found is not None
        assert (found.beats, found.until_boot_us, found.ttl_us) == (2, 7, hour)
        assert abs(found.until_us - (now_us() + hour)) < hour / 2
        store.forget_leases(now)
        assert store.lease_of("p") is not None
        store.forget_leases(now + 2 * hour)
        assert (store.lease_of("p"), store.lease_of("none")) == (None, None)
        assert store.lease_of("o") is not None

    def test_requests_end_by_the_time_of_the_ledger(
        self, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whatever the clock of a host says, where many share the ledger: nothing ends early or lives longer."""
        from sagaspan import _clock as clock

        hour, right = 3600 * 1_000_000, clock.now_us
        for wrong in (-hour, hour):
            monkeypatch.setattr(clock, "now_us", partial(_off, right, wrong))
            store = make_store()
            ahead = 0 if store.keeps_time else wrong
            for _ in range(2):  # asked for first, and as a beat of a lease says it
                assert abs(store.now_us() - right() - ahead) < hour / 2
                store.renew(LeaseRecord(owner="o", renewed_us=1, until_us=2, until_boot_us=1, ttl_us=hour))

    def test_what_is_read_in_a_snapshot_is_of_one_moment(self, make_store: MakeStore) -> None:
        """Whatever others save meanwhile."""
        store, other = make_store(), make_store()
        saved(store, opening())
        with store.snapshot():
            assert len(store.list_runs()) == 1
            saved(other, opening(id="q"))
            assert len(store.list_runs()) == 1
        assert len(store.list_runs()) == 2

    def test_a_run_is_forgotten_as_it_was_looked_at(self, make_store: MakeStore) -> None:
        """With all that is of it, but for one row that says so; what it spent stays spent."""
        store = make_store()
        call = claiming(spent='[["user:ada","usd","",0,3]]')
        saved(store, opening(), ReserveChange(BUDGET, 4), call, asking(), SpendChange(BUDGET, 4, 3))
        saved(store, ReserveChange(replace(BUDGET, scope="run:r/t"), 1), opening(id="q"))
        run, looked = store.get_run("n", "r"), store.calls_of("n", "r")
        assert run is not None
        ended = running(RUN, RunEvent.COMPLETE)
        saved(store, ended)
        assert store.forget([Family((run,), tuple(looked))], actor="ada").runs == 0
        gone = store.forget([Family((ended.record,), tuple(looked))], actor="ada")
        assert (gone.runs, gone.calls, gone.audit_rows) == (1, 1, 4)
        assert (store.get_run("n", "r"), store.get_call("c"), store.approval("a")) == (None, None, None)
        assert store.get_run("n", "q") is not None
        assert [row.event for row in store.audit_of("n", "r")] == ["forget"]
        assert store.budgets() == [replace(BUDGET, spent=3, forgotten=3)]

    def test_calls_and_requests_are_forgotten_one_by_one(self, make_store: MakeStore) -> None:
        """At the versions that were looked at; what they spent stays spent. Then their requests, their audit rows."""
        store = make_store()
        first, second = (claiming(id=name, key=name, spent='[["user:ada","usd","",0,3]]') for name in "cd")
        saved(store, opening(), first, second, asking(), ReserveChange(BUDGET, 6), SpendChange(BUDGET, 6, 6))
        looked = store.calls_of("n", "r")
        saved(store, moving(second.record, CallEvent.SUCCEED))
        assert store.forget_approvals("n", "r", 10**9, limit=9, actor="ada") == 0
        assert store.forget_calls(looked, actor="ada").calls == 1
        assert [call.id for call in store.list_calls()] == ["d"]
        assert store.budgets() == [replace(BUDGET, spent=6, forgotten=3)]
        assert store.forget_approvals("n", "r", REQUEST.expires_us, limit=9, actor="ada") == 0
        assert store.forget_approvals("n", "r", REQUEST.expires_us + 1, limit=9, actor="ada") == 1
        assert [row.event for row in store.audit_of("n", "r")][-2:] == ["forget.records", "forget.records"]
        forgotten = store.forgotten_of("n", "r")
        assert forgotten == {"c", REQUEST.id}
        gone, after = store.forget_audit("n", "r", forgotten, 0, limit=2, actor="ada")
        assert gone == 1
        assert after is not None
        assert store.forget_audit("n", "r", forgotten, after, limit=9, actor="ada")[0] == 1
        events = [row.event for row in store.audit_of("n", "r")]
        assert events == ["run.open", "claim", "succeed", "forget", "forget"]

    def test_old_runs_and_their_calls_come_page_by_page(self, make_store: MakeStore) -> None:
        """The oldest first, from one on."""
        store = make_store()
        for number in range(4):
            saved(store, opening(id=f"r{number}", created_us=number // 2))
            saved(store, claiming(id=f"c{number}", key=str(number), run_id="r0"))
        ask = {"states": [RunState.RUNNING], "namespace": None}
        first = store.old_runs(2, after=None, limit=3, **ask)  # type: ignore[arg-type]
        assert [run.id for run in first] == ["r0", "r1", "r2"]
        assert [run.id for run in store.old_runs(2, after=first[-1], limit=3, **ask)] == ["r3"]  # type: ignore[arg-type]
        assert [run.id for run in store.old_runs(1, after=None, limit=9, **ask)] == ["r0", "r1"]  # type: ignore[arg-type]
        calls = store.calls_after("n", "r0", None, limit=3)
        assert [call.id for call in calls] == ["c0", "c1", "c2"]
        assert [call.id for call in store.calls_after("n", "r0", calls[-1], limit=3)] == ["c3"]

    def test_a_closed_store_opens_again(self, make_store: MakeStore) -> None:
        """``close`` gives back what it holds, as often as it is called."""
        store = make_store()
        saved(store, opening())
        store.close()
        store.close()
        assert [run.id for run in store.list_runs()] == ["r"]
        assert store.describe()["runs"] == 1


def _off(right: Callable[[], int], by: int) -> int:
    """The clock of a host, set wrong by so much."""
    return right() + by
