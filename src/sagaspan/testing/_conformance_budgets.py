"""Budgets, limits, freezes, rates, usage and loops: arithmetic that holds in the database itself."""

from __future__ import annotations

from dataclasses import replace

from sagaspan.ledger.records import FreezeRecord, LoopRecord, UsageRecord
from sagaspan.ledger.store import (
    CarryChange,
    FreezeChange,
    LimitChange,
    LoopChange,
    Mark,
    RateChange,
    ReserveChange,
    SpendChange,
    UsageChange,
)
from sagaspan.ledger.transitions import CallEvent
from sagaspan.testing._conformance_records import (
    BUDGET,
    LIMIT,
    LIMIT_SET,
    MakeStore,
    claiming,
    moving,
    opening,
    refused,
    said,
    saved,
)


class BudgetsConform:
    """What every store must do with money."""

    def test_what_does_not_fit_is_refused(self, make_store: MakeStore) -> None:
        """``spent + reserved`` never passes the cap, and one scope that is full refuses the whole claim."""
        store = make_store()
        saved(store, opening())
        full = replace(BUDGET, scope="run:r", cap=4)
        refused(store, ReserveChange(BUDGET, 11))
        assert store.budget(BUDGET) == BUDGET
        late = ReserveChange(full, 5)
        assert refused(store, ReserveChange(BUDGET, 6), late, claiming()) is late
        assert store.budgets() == []
        saved(store, ReserveChange(BUDGET, 6), ReserveChange(full, 4), claiming())
        refused(store, ReserveChange(BUDGET, 5))
        saved(store, ReserveChange(BUDGET, 4))
        assert store.budgets("n", "user:ada") == [replace(BUDGET, reserved=10)]

    def test_what_was_used_takes_the_place_of_what_was_reserved(self, make_store: MakeStore) -> None:
        """Up to the cap it is spent, beyond that overdraft, which admits nothing until it fits."""
        store = make_store()
        saved(store, ReserveChange(BUDGET, 6), ReserveChange(BUDGET, 4))
        commit = store.commit(
            [SpendChange(BUDGET, 6, 9), SpendChange(replace(BUDGET, scope="gone"), 1, 1)], synced=True
        )
        assert commit.used == (9, 0)
        assert store.budget(BUDGET) == replace(BUDGET, spent=6, reserved=4, overdraft=3)
        refused(store, ReserveChange(BUDGET, 0))
        assert store.commit([SpendChange(BUDGET, 4, 0)], synced=False).used == (9,)
        saved(store, ReserveChange(BUDGET, 1))
        assert store.budget(BUDGET) == replace(BUDGET, spent=9, reserved=1)

    def test_a_watched_budget_always_fits(self, make_store: MakeStore) -> None:
        """Without a cap; a cap that comes, goes up or down is that of the last reservation."""
        store = make_store()
        watched = replace(BUDGET, cap=None)
        saved(store, ReserveChange(watched, 10**15))
        refused(store, ReserveChange(BUDGET, 1))
        saved(store, ReserveChange(replace(BUDGET, cap=2 * 10**15), 10**15))
        assert store.budget(BUDGET).cap == 2 * 10**15
        refused(store, ReserveChange(replace(BUDGET, cap=10**15), 1))

    def test_windows_are_budgets_of_their_own(self, make_store: MakeStore) -> None:
        """Of each day, unit and namespace."""
        store = make_store()
        others = [replace(BUDGET, window="day", start_us=1), replace(BUDGET, window="day", start_us=2),
                  replace(BUDGET, unit="calls"), replace(BUDGET, namespace="m")]  # fmt: skip
        for number, budget in enumerate((BUDGET, *others), 1):
            saved(store, ReserveChange(budget, number))
        assert [store.budget(budget).reserved for budget in (BUDGET, *others)] == [1, 2, 3, 4, 5]
        assert {budget.namespace for budget in store.budgets("m")} == {"m"}

    def test_a_soft_limit_is_told_of_once(self, make_store: MakeStore) -> None:
        """By the change that crosses it, in the chain of the run."""
        store = make_store()
        saved(store, opening(), ReserveChange(BUDGET, 3), ReserveChange(BUDGET, 3))
        mark = Mark(5, said("soft_limit"))
        saved(store, SpendChange(BUDGET, 3, 3, (mark,)))
        assert [row.event for row in store.audit_of("n", "r")] == ["run.open"]
        saved(store, SpendChange(BUDGET, 3, 3, (mark,)), SpendChange(BUDGET, 0, 0, (mark,)))
        assert [row.event for row in store.audit_of("n", "r")] == ["run.open", "soft_limit"]

    def test_a_limit_is_seen_by_the_next_claim(self, make_store: MakeStore) -> None:
        """Who claims under other controls than those in force is refused."""
        store = make_store()
        saved(store, opening())
        assert store.controls_of("n") == (0, [])
        saved(store, LimitChange(LIMIT, LIMIT_SET))
        assert store.controls_of("n") == (1, [LIMIT])
        refused(store, claiming())
        saved(store, claiming(controls=1), ReserveChange(BUDGET, 1))
        saved(store, LimitChange(replace(LIMIT, amount=7, at_us=2), LIMIT_SET))
        refused(store, LimitChange(LIMIT, LIMIT_SET, removes=True))
        saved(store, LimitChange(replace(LIMIT, at_us=2), LIMIT_SET, removes=True))
        assert store.controls_of("n") == (3, [])
        assert store.budget(BUDGET).cap is None

    def test_a_removed_limit_takes_its_caps_along(self, make_store: MakeStore) -> None:
        """Of the scopes that its pattern names, a glob or a name, to the letter."""
        store = make_store()
        names = ("user:a", "user:b.c", "user:bxc", "user:[a]", "user:a-z", "team:a")
        patterns = {"user:*": names[:5], "user:b.c": ("user:b.c",), "user:?": ("user:a",), "user:[ab]": ("user:a",),
                    "user:[^b]": ("user:a",), "user:b?c": ("user:b.c", "user:bxc")}  # fmt: skip
        for at, (pattern, hit) in enumerate(patterns.items()):
            for name in names:
                saved(store, ReserveChange(replace(BUDGET, scope=name), 0))
            limit = replace(LIMIT, pattern=pattern, at_us=at)
            saved(store, LimitChange(limit, LIMIT_SET), LimitChange(limit, LIMIT_SET, removes=True))
            uncapped = {budget.scope for budget in store.budgets() if budget.cap is None}
            assert uncapped == set(hit), pattern

    def test_what_was_used_already_is_carried_over(self, make_store: MakeStore) -> None:
        """At least so much is used then, by calls that do not say so; of calls those count that have not ended."""
        store = make_store()
        saved(store, CarryChange(BUDGET, 4))
        assert store.budget(BUDGET) == replace(BUDGET, cap=None, spent=4, forgotten=4)
        saved(store, ReserveChange(BUDGET, 3), CarryChange(BUDGET, 6), CarryChange(BUDGET, 5))
        assert store.budget(BUDGET) == replace(BUDGET, cap=None, spent=6, forgotten=6, reserved=3)
        calls = replace(BUDGET, unit="calls")
        saved(store, ReserveChange(calls, 3), CarryChange(calls, 5))
        assert store.budget(calls) == replace(calls, cap=None, spent=2, forgotten=2, reserved=3)

    def test_a_freeze_is_seen_by_the_next_claim(self, make_store: MakeStore) -> None:
        """It is set once, lifted once, and moves the controls on each time."""
        store = make_store()
        saved(store, opening())
        freeze = FreezeRecord(namespace="n", scope="tool:t", reason="why", actor="ada", at_us=1)
        saved(store, FreezeChange(freeze, said("freeze", run_id="")))
        refused(store, FreezeChange(replace(freeze, reason="again"), said("freeze", run_id="")))
        refused(store, claiming())
        assert store.freezes_of("n") == store.freezes_of(None) == [freeze]
        refused(store, FreezeChange(replace(freeze, at_us=2), said("unfreeze", run_id=""), lifts=True))
        saved(store, FreezeChange(freeze, said("unfreeze", run_id=""), lifts=True))
        assert store.freezes_of("n") == []
        saved(store, claiming(controls=2))

    def test_a_rate_lets_through_a_burst_and_then_its_pace(self, make_store: MakeStore) -> None:
        """By GCRA; a time that was kept in the future by a wrong clock is no wait for ever."""
        store = make_store()
        second = 10**9

        def may(now: int) -> bool:
            return bool(store.commit([RateChange("n", "pay", now * second, 10 * second, 3)], synced=False))

        assert [may(100) for _ in range(4)] == [True, True, True, False]
        assert [may(now) for now in (109, 110, 111)] == [False, True, False]
        assert store.arrival_of("n", "pay") == 140 * second
        assert store.arrival_of("n", "none") is None
        saved(store, RateChange("n", "wrong", 10**6 * second, 10 * second, 3))
        assert not store.commit([RateChange("n", "wrong", second, 10 * second, 3)], synced=False)
        assert store.arrival_of("n", "wrong") == (10**6 + 10) * second

    def test_usage_adds_up(self, make_store: MakeStore) -> None:
        """By run, user, tool or model; saved again it is replaced, and assumed prices are counted."""
        store = make_store()
        saved(store, opening(user="ada"), opening(id="q", user="bob"))
        for number, (run, tool) in enumerate((("r", "t"), ("r", "u"), ("q", "t"))):
            saved(store, claiming(id=f"c{number}", key=f"k{number}", run_id=run, tool=tool, created_us=number))
            usage = UsageRecord(call_id=f"c{number}", namespace="n", run_id=run, at_us=1, tool=tool, model="m",
                                cost=10**number, prices="x, assumed" if number else "x", input_tokens=5)  # fmt: skip
            saved(store, UsageChange(replace(usage, cost=7)), UsageChange(usage))
        (total,) = store.usage_of("n", {})
        assert (total.calls, total.cost, total.unpriced, total.input_tokens) == (3, 111, 2, 15)
        assert [(one.key, one.cost) for one in store.usage_of("n", {}, by="user")] == [("bob", 100), ("ada", 11)]
        assert [one.cost for one in store.usage_of("n", {"tool": "t", "user": "ada"})] == [1]
        assert [one.cost for one in store.usage_of("n", {}, since_us=1)] == [110]
        assert store.usage_of("n", {"user": "eve"}) == []
        assert all(type(one.cost) is int for one in store.usage_of(None, {}, by="model"))

    def test_the_books_are_what_calls_say(self, make_store: MakeStore) -> None:
        """What calls hold and spent is found beside what is counted."""
        store = make_store()
        first = claiming(reserved='[["user:ada","usd","",0,4]]', spent=None)
        saved(store, opening(), ReserveChange(BUDGET, 4), first)
        (found,) = store.booked_by_calls("n")
        assert (found.counted, found.reserved, found.spent) == (replace(BUDGET, reserved=4), 4, 0)
        ended = moving(first.record, CallEvent.SUCCEED)
        record = replace(ended.record, reserved=None, spent='[["user:ada","usd","",0,3],["x","usd","day",5,1]]')
        saved(store, replace(ended, record=record), SpendChange(BUDGET, 4, 3))
        found, other = store.booked_by_calls()
        assert (found.counted, found.reserved, found.spent) == (replace(BUDGET, spent=3), 0, 3)
        assert (other.name.scope, other.name.start_us, other.counted, other.spent) == ("x", 5, None, 1)
        assert store.reserving("n") == []

    def test_loops_are_saved_over_the_version_that_was_seen(self, make_store: MakeStore) -> None:
        """Of a run, once."""
        store = make_store()
        loops = LoopRecord(namespace="n", run_id="r", generation=0, entries='["x"]', version=1)
        assert store.loop_of("n", "r") is None
        refused(store, LoopChange(replace(loops, version=2), 1))
        saved(store, LoopChange(loops))
        refused(store, LoopChange(loops))
        saved(store, LoopChange(replace(loops, refusals=2, version=2), 1))
        assert store.loop_of("n", "r") == replace(loops, refusals=2, version=2)
