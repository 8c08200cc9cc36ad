"""Many who write at once: threads on stores of their own, as processes are."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from sagaspan.ledger.records import ApprovalState
from sagaspan.ledger.store import ApprovalChange, Barrier, LimitChange, NoteChange, ReserveChange, SpendChange, Store
from sagaspan.ledger.transitions import RunEvent
from sagaspan.testing._conformance_records import (
    BUDGET,
    LIMIT,
    LIMIT_SET,
    REQUEST,
    RUN,
    MakeStore,
    asking,
    claiming,
    opening,
    running,
    said,
    saved,
    told_of,
)
from sagaspan.testing._conformance_trail import whole_chain

_CROWD = 8


def crowd(make_store: MakeStore, job: Callable[[Store, int], int]) -> list[int]:
    """What ``job`` returns to each of a crowd that begins at once; an error of one is raised here."""
    gate, results, errors = threading.Barrier(_CROWD), [0] * _CROWD, list[BaseException]()

    def work(number: int) -> None:
        store = make_store()
        try:
            gate.wait(60)
            results[number] = job(store, number)
        except BaseException as error:  # noqa: BLE001 - raised in the thread of the test
            errors.append(error)
        finally:
            store.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(_CROWD)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


class RacesConform:
    """What every store must do when many write at once."""

    def test_of_many_one_claims_a_key(self, make_store: MakeStore) -> None:
        """Whatever runs they are in."""
        store = make_store()
        saved(store, *(opening(id=str(number)) for number in range(_CROWD)))
        won = crowd(make_store, lambda own, number: sum(
            bool(own.commit([claiming(id=f"{number}-{key}", key=str(key), run_id=str(number))], synced=False))
            for key in range(10)))  # fmt: skip
        assert sum(won) == 10
        assert len(store.list_calls()) == 10

    def test_of_many_one_spends_an_approval(self, make_store: MakeStore) -> None:
        """With its claim, or not at all."""
        store = make_store()
        approved = replace(REQUEST, state=ApprovalState.APPROVED, version=2)
        row = told_of(approved, "approval.approve", ApprovalState.PENDING, ApprovalState.APPROVED)
        saved(store, asking(), ApprovalChange(approved, row, 1))
        saved(store, *(opening(id=str(number)) for number in range(_CROWD)))
        used = replace(REQUEST, state=ApprovalState.CONSUMED, version=3)
        row = told_of(used, "approval.consume", ApprovalState.APPROVED, ApprovalState.CONSUMED)

        def spend(own: Store, number: int) -> int:
            claim = claiming(id=str(number), key=str(number), run_id=str(number))
            return int(bool(own.commit([ApprovalChange(used, row, 2, consumes_at=5), claim], synced=True)))

        assert sum(crowd(make_store, spend)) == 1
        assert len(store.list_calls()) == 1

    def test_no_crowd_passes_a_cap(self, make_store: MakeStore) -> None:
        """In several scopes at once, named in any order by those who reserve and settle."""
        store = make_store()
        scopes = [replace(BUDGET, scope=name, cap=cap) for name, cap in (("a", 60), ("b", 45), ("c", 60))]

        def buy(own: Store, number: int) -> int:
            bought = 0
            for turn in range(12):
                order = scopes if (number + turn) % 2 else scopes[::-1]
                if own.commit([ReserveChange(scope, 1) for scope in order], synced=False):
                    bought += 1
                    assert own.commit([SpendChange(scope, 1, 1) for scope in order], synced=False)
                for found in own.budgets("n"):
                    assert found.spent + found.reserved <= (found.cap or 0)
            return bought

        assert sum(crowd(make_store, buy)) == 45
        assert [(found.scope, found.spent, found.reserved, found.overdraft) for found in store.budgets()] == [
            ("a", 45, 0, 0), ("b", 45, 0, 0), ("c", 45, 0, 0)
        ]  # fmt: skip

    def test_a_chain_that_many_append_to_stays_whole(self, make_store: MakeStore) -> None:
        """Each row once, its number the place after the one before it; rows of other runs in between."""
        store = make_store()

        def append(own: Store, number: int) -> int:
            for _ in range(10):
                saved(own, NoteChange(said(run_id="shared")), NoteChange(said(run_id=f"own-{number}")))
            return 0

        crowd(make_store, append)
        assert whole_chain(store, "n", "shared") == 10 * _CROWD
        assert [whole_chain(store, "n", f"own-{number}") for number in range(_CROWD)] == [10] * _CROWD

    def test_nobody_who_reads_on_misses_a_row(self, make_store: MakeStore) -> None:
        """A row whose commit comes late has no number before those that were read."""
        store, over = make_store(), threading.Event()
        seen: list[int] = []

        def read() -> None:
            reader, at = make_store(), 0
            while True:
                last = over.is_set()
                upto = reader.newest_audit()
                rows = [number for number, _ in reader.events("n", at, upto)]
                seen.extend(rows)
                at = max(at, upto)
                if last:
                    return

        reading = threading.Thread(target=read)
        reading.start()

        def write(own: Store, number: int) -> int:
            for _ in range(25):
                saved(own, NoteChange(said("soft_limit", run_id=str(number))))
            return 0

        try:
            crowd(make_store, write)
        finally:
            over.set()
            reading.join()
        everything = [number for number, _ in store.events("n", 0, store.newest_audit())]
        assert len(everything) == 25 * _CROWD
        assert seen == everything

    def test_a_claim_comes_before_the_end_of_its_run_or_not_at_all(self, make_store: MakeStore) -> None:
        """Who undoes a run finds every call that was claimed in it."""
        store = make_store()
        for turn in range(5):
            run = replace(RUN, id=f"r{turn}")
            saved(store, opening(id=run.id))

            def act(own: Store, number: int, run_id: str = run.id) -> int:
                if number == 0:
                    saved(own, running(replace(RUN, id=run_id), RunEvent.COMPENSATE))
                    return len(own.calls_of("n", run_id))
                name = f"{run_id}-{number}"
                return int(bool(own.commit([claiming(id=name, key=name, run_id=run_id)], synced=False)))

            seen, *claimed = crowd(make_store, act)
            assert seen == sum(claimed) == len(store.calls_of("n", run.id))

    def test_a_pivot_and_a_step_of_its_saga_do_not_begin_at_once(self, make_store: MakeStore) -> None:
        """One of the two is first: a barrier that saw nothing open is before every claim it did not see."""
        store = make_store()
        for turn in range(5):
            outer, inner = f"r{turn}", f"r{turn}/1"
            saved(store, opening(id=outer), opening(id=inner, parent_id=outer))

            def act(own: Store, number: int, outer: str = outer, inner: str = inner) -> int:
                name = f"{outer}-{number}"
                if number == 0:
                    pivot = claiming(id=name, key=name, run_id=outer, declared_write=True)
                    return 100 * bool(own.commit([Barrier("n", outer), pivot], synced=False))
                step = claiming(id=name, key=name, run_id=inner, declared_write=True)
                return int(bool(own.commit([step], synced=False)))

            results = crowd(make_store, act)
            order = [call.id for call in sorted(store.list_calls(), key=lambda call: call.claim_seq)
                     if call.run_id in (outer, inner)]  # fmt: skip
            assert results[0] == 0 or order[0] == f"{outer}-0"

    def test_no_step_hides_from_a_pivot_in_a_run_that_is_nested_meanwhile(self, make_store: MakeStore) -> None:
        """In a run within a run of its saga, opened after the barrier looked and before its long commit ends."""
        store = make_store()
        for turn in range(3):
            outer, inner = f"r{turn}", f"r{turn}/1"
            saved(store, opening(id=outer), opening(id=inner, parent_id=outer))

            def act(own: Store, number: int, outer: str = outer, inner: str = inner) -> int:
                if number == 0:
                    pivot = claiming(id=f"{outer}-0", key=f"{outer}-0", run_id=outer, declared_write=True)
                    notes = [NoteChange(said(run_id=outer))] * 100
                    return int(bool(own.commit([Barrier("n", outer), *notes, pivot], synced=False)))
                for deep in range(number):
                    nested = f"{inner}/{number}-{deep}"
                    saved(own, opening(id=nested, parent_id=inner))
                step = claiming(id=nested, key=nested, run_id=nested, declared_write=True)
                return int(bool(own.commit([step], synced=False)))

            results = crowd(make_store, act)
            calls = sorted(store.list_calls(), key=lambda call: call.claim_seq)
            order = [call.id for call in calls if call.id.startswith(outer)]
            assert results[0] == 0 or order[0] == f"{outer}-0"
            assert sum(results[1:]) == _CROWD - 1

    def test_no_claim_slips_past_a_limit_that_is_set(self, make_store: MakeStore) -> None:
        """A claim that was saved after the controls moved on had seen them."""
        store = make_store()
        saved(store, *(opening(id=str(number)) for number in range(_CROWD)))

        def act(own: Store, number: int) -> int:
            if number == 0:
                saved(own, LimitChange(LIMIT, LIMIT_SET))
                return len(own.list_calls(limit=10**4))
            made = 0
            for turn in range(20):
                name = f"{number}-{turn}"
                made += bool(own.commit([claiming(id=name, key=name, run_id=str(number))], synced=False))
            return made

        seen, *made = crowd(make_store, act)
        assert seen == sum(made) == len(store.list_calls(limit=10**4))
