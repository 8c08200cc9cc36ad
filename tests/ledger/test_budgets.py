"""Budgets: reserved with the claim, settled with the result, never overshot (rule book (c))."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from sagaspan import (
    Applied,
    Budget,
    BudgetExceeded,
    ConfigurationError,
    Guard,
    OutcomeUnknown,
    PolicyDenied,
    RateLimited,
    RunClosed,
    ToolTimeout,
    Unsure,
)
from sagaspan.stores._usage import usage_query
from tests.conftest import Caller, Sql, Worker


def _budgets(sql: Sql, columns: str = "scope, spent, reserved, overdraft") -> list[Any]:
    return sql(f"select {columns} from budgets order by scope, unit")


def test_a_call_that_does_not_fit_is_refused_and_undoes_the_run(sql: Sql, store_url: str, caller: Caller) -> None:
    """The third call of 1 USD does not fit under 2.50 USD: what was done is undone."""
    guard, undone = Guard(store_url), []

    @caller.tool(guard, cost="1 USD", compensate=lambda n: undone.append(n))
    def buy(n: int) -> int:
        return n

    async def job() -> None:
        async with caller.run(guard, "shop", id="s", budget="2.5 USD"):
            for n in range(5):
                await caller.call(buy, n)

    with pytest.raises(BudgetExceeded) as caught:
        caller.play(job)
    assert caught.value.scope == "run:s"
    assert (caught.value.limit, caught.value.spent) == (Decimal("2.5"), Decimal(2))
    assert (caught.value.requested, caught.value.tool_ran) == (Decimal(1), "no")
    assert "sagaspan budgets set run:s" in str(caught.value)
    assert undone == [1, 0]
    assert (guard.runs.get("s").status, guard.runs.get("s").reason) == ("compensated", "budget")
    assert _budgets(sql) == [("run:s", 2 * 10**9, 0, 0)]


def test_a_swallowed_stop_still_ends_the_run(store_url: str) -> None:
    """Nobody goes on by catching the error: later calls are refused, and leaving raises it."""
    guard = Guard(store_url)

    @guard.tool(effect="write")
    def act(n: int) -> None: ...

    def job() -> None:
        with guard.run("r", id="r", budget="1 calls"):
            act(1)
            with pytest.raises(BudgetExceeded):
                act(2)
            with pytest.raises(RunClosed):
                act(3)

    with pytest.raises(BudgetExceeded):
        job()
    assert guard.runs.get("r").reason == "budget"


def test_hold_leaves_everything_as_it_is(store_url: str) -> None:
    """With on_budget="hold" nothing is undone, and the same id goes on once there is more."""
    guard, undone = Guard(store_url), []

    @guard.tool(cost="1 USD", compensate=lambda n: undone.append(n))
    def buy(n: int) -> int:
        return n

    def job() -> None:
        with guard.run("shop", id="s", budget="1 USD", on_budget="hold"):
            buy(1)
            buy(2)

    with pytest.raises(BudgetExceeded):
        job()
    assert (guard.runs.get("s").status, undone) == ("held", [])
    guard.set_budget("run:s", "5 USD")
    job()
    assert guard.runs.get("s").status == "completed"
    assert guard.usage(run="s").spent == 2


def test_a_limit_set_at_run_time_holds_at_the_next_claim(store_url: str) -> None:
    """Also for a scope that was never used, in a guard that knows nothing of budgets."""
    guard, operator = Guard(store_url), Guard(store_url)

    @guard.tool(effect="write", cost="1 USD")
    def buy(n: int) -> None: ...

    with guard.run("a", id="a", user="42"):
        buy(1)
    operator.set_budget("user:42", "2 USD/day")
    with guard.run("b", id="b", user="42"):
        buy(2)
    with pytest.raises(BudgetExceeded) as caught, guard.run("c", id="c", user="42"):
        buy(3)
    assert caught.value.scope == "user:42"
    assert caught.value.resets_at is not None
    assert str(caught.value).splitlines()[0].endswith("or raise it: sagaspan budgets set user:42 AMOUNT --per day")
    with guard.run("d", id="d", user="43"):
        buy(4)
    operator.set_budget("user:*", "0 USD/day")
    with pytest.raises(BudgetExceeded), guard.run("e", id="e", user="43"):
        buy(5)


def test_exactly_as_many_run_as_fit(sql: Sql, store_url: str) -> None:
    """Of 32 threads at once, 10 run; at every snapshot spent + reserved stays under the cap."""
    guard, ran, refused = Guard(store_url, budgets={"tool:act": "10 calls"}), [], []
    barrier = threading.Barrier(32)

    @guard.tool(effect="write", key="n")
    def act(n: int) -> None:
        ran.append(n)

    def one(n: int) -> None:
        barrier.wait()
        try:
            act(n)
        except BudgetExceeded:
            refused.append(n)

    guard.usage()  # opens the store
    threads = [threading.Thread(target=one, args=(n,)) for n in range(32)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        for cap, spent, reserved in _budgets(sql, "cap, spent, reserved"):
            assert spent + reserved <= cap
    assert (len(ran), len(refused)) == (10, 22)
    assert _budgets(sql) == [("tool:act", 10, 0, 0)]


@pytest.mark.parametrize("tight", ["tenant:t", "user:u"])
def test_nothing_is_reserved_if_one_scope_refuses(sql: Sql, store_url: str, tight: str) -> None:
    """All scopes of a call, or none."""
    guard = Guard(store_url, budgets={"user:u": "10 USD", "tenant:t": "10 USD", tight: "1 USD"})

    @guard.tool(effect="write", cost="2 USD")
    def buy() -> None: ...

    with pytest.raises(BudgetExceeded) as caught, guard.run("r", user="u", tenant="t"):
        buy()
    assert caught.value.scope == tight
    assert _budgets(sql) == []


def test_a_call_in_doubt_keeps_its_reservation(sql: Sql, store_url: str) -> None:
    """It may have happened, so its money is not spent again, until somebody decides."""
    guard = Guard(store_url)

    @guard.tool(effect="write", cost="1 USD")
    def buy() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError), guard.run("r", id="r", budget="1 USD"):
        buy()
    assert _budgets(sql) == [("run:r", 0, 10**9, 0)]
    [call] = guard.runs.get("r").calls
    guard.calls.resolve(call.id, "did-not-happen", note="asked them")
    assert _budgets(sql) == [("run:r", 0, 0, 0)]


@pytest.mark.parametrize(("outcome", "spent"), [("happened", 10**9), ("compensated", 10**9)])
def test_what_happened_after_all_is_spent(sql: Sql, store_url: str, outcome: str, spent: int) -> None:
    """A person's word settles the reservation too."""
    guard = Guard(store_url, budgets={"tool:buy": "1 USD"})

    @guard.tool(effect="write", cost="1 USD")
    def buy() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        buy()
    [call] = guard.calls.list()
    guard.calls.resolve(call.id, outcome, note="saw it")
    assert _budgets(sql) == [("tool:buy", spent, 0, 0)]


def test_a_failed_call_gives_back_its_money_and_counts(sql: Sql, store_url: str) -> None:
    """A call that provably did not happen costs nothing, and was a call."""
    guard = Guard(store_url, budgets={"tool:buy": ["5 USD", "5 calls"]})

    class Declined(Exception): ...

    @guard.tool(effect="write", cost="1 USD")
    def buy() -> None:
        raise Declined

    with pytest.raises(Declined):
        buy()
    assert _budgets(sql, "unit, spent, reserved") == [("USD", 0, 0), ("calls", 1, 0)]


def test_more_than_reserved_is_overdraft(sql: Sql, store_url: str) -> None:
    """What a call cost beyond the cap admits nothing until the budget is raised enough."""
    guard = Guard(store_url, budgets={"tool:ask": "3 USD"})

    @guard.tool(effect="write", cost=lambda result: 1 if result is None else result)
    def ask(n: int) -> int:
        return n

    assert ask(5) == 5
    assert _budgets(sql) == [("tool:ask", 3 * 10**9, 0, 2 * 10**9)]
    with pytest.raises(BudgetExceeded):
        ask(1)
    guard.set_budget("tool:ask", "6 USD")
    assert ask(1) == 1
    assert _budgets(sql) == [("tool:ask", 6 * 10**9, 0, 0)]


def test_an_overdraft_counts_against_what_becomes_free(sql: Sql, store_url: str) -> None:
    """Money that a failed call gives back pays for the overdraft first."""
    guard = Guard(store_url, budgets={"tool:*": "100 USD", "user:u": "3 USD"})

    @guard.tool(effect="write", cost=lambda result: 1 if result is None else result)
    def ask(n: int) -> int:
        if n == 0:
            raise TimeoutError
        return n

    with pytest.raises(TimeoutError), guard.run("r", id="r", user="u"):
        ask(0)
    with guard.run("s", user="u"):
        ask(3)
    assert _budgets(sql, "spent, reserved, overdraft")[-1] == (2 * 10**9, 10**9, 10**9)
    [call] = guard.runs.get("r").calls
    guard.calls.resolve(call.id, "did-not-happen", note="asked them")
    with pytest.raises(BudgetExceeded), guard.run("t", user="u"):
        ask(1)


def test_a_soft_budget_refuses_nothing(sql: Sql, store_url: str) -> None:
    """It is counted only."""
    guard = Guard(store_url, budgets={"tool:act": Budget("1 calls", hard=False)})

    @guard.tool(effect="write")
    def act(n: int) -> int:
        return n

    assert [act(n) for n in range(3)] == [0, 1, 2]
    assert _budgets(sql) == [("tool:act", 3, 0, 0)]


def test_at_most_so_many_calls_a_run(store_url: str) -> None:
    """max_calls is of one run, and another run begins anew."""
    guard = Guard(store_url)

    @guard.tool(effect="read", max_calls=2)
    def look(n: int) -> int:
        return n

    for run_id in ("a", "b"):
        with pytest.raises(BudgetExceeded), guard.run("r", id=run_id):
            assert [look(n) for n in range(2)] == [0, 1]
            look(2)


def test_an_operator_gives_one_run_more_of_a_tool(store_url: str) -> None:
    """What is set of just that run and tool is above max_calls; what is set of all runs is not meant by it."""
    guard = Guard(store_url)
    look = guard.tool("look", effect="read", max_calls=1)(lambda n: n)
    guard.set_budget("run:*", "50 calls")

    def job() -> None:
        with guard.run("r", id="r", on_budget="hold"):
            for n in range(3):
                look(n)

    with pytest.raises(BudgetExceeded, match="sagaspan budgets set run:r/look AMOUNT"):
        job()
    guard.set_budget("run:r/look", "3 calls")
    job()
    with pytest.raises(BudgetExceeded), guard.run("other", id="other"):
        look(1), look(2)
    undeclared = guard.tool("peek", effect="read")(lambda n: n)
    guard.set_budget("run:p/peek", "1 calls")
    with pytest.raises(BudgetExceeded), guard.run("p", id="p"):
        undeclared(1), undeclared(2)
    with guard.run("q", id="q"):
        undeclared(1)
    assert "run:q/peek" not in {account.scope for account in guard.budgets.list()}


@pytest.mark.parametrize("scope", ["run:today/buy", "run:*/buy"])
@pytest.mark.parametrize("is_set", [True, False])
def test_one_tool_is_limited_in_each_run(store_url: str, scope: str, is_set: bool) -> None:
    """By whoever says so, beside what is said of all that a run does; the limit is of no other tool of the run."""
    budgets = {scope: "2 calls", "run:today*": "9 calls"}
    with Guard(store_url, budgets=None if is_set else budgets) as guard:
        for name, budget in budgets.items() if is_set else ():
            guard.set_budget(name, budget)
        buy, look = (guard.tool(name, effect="read")(lambda n: n) for name in ("buy", "look"))
        with pytest.raises(BudgetExceeded) as caught, guard.run("r", id="today"):
            assert [look(n) for n in range(4)] == [0, 1, 2, 3]
            assert [buy(1), buy(2)] == [1, 2]
            buy(3)
        assert (caught.value.scope, caught.value.limit) == ("run:today/buy", 2)


def test_the_remedy_names_no_run_that_nobody_has_again(store_url: str) -> None:
    """Of a run whose id was generated, and of calls outside a run, it is the budget in the code; a user's id stays."""
    guard = Guard(store_url, budget="1 USD")
    buy = guard.tool("buy", cost="2 USD")(lambda: None)
    for run in (guard.run("shop"), contextlib.nullcontext()):
        with pytest.raises(BudgetExceeded, match=r"larger budget= in code \(Guard, guard.run or guard.wrap\)"), run:
            buy()
    uuid = "550e8400-e29b-41d4-a716-446655440000"
    with pytest.raises(BudgetExceeded, match=f"sagaspan budgets set run:{uuid} AMOUNT"), guard.run("shop", id=uuid):
        buy()


def test_the_refusal_of_max_calls_says_where_it_is_raised(store_url: str) -> None:
    """In the policy, or of that run alone. The run has ended."""
    guard = Guard(store_url)
    look = guard.tool("look", effect="read", max_calls=1)(lambda n: n)
    with (
        pytest.raises(BudgetExceeded, match="raise max_calls in the policy of 'look'") as caught,
        guard.run("r", id="r"),
    ):
        look(1)
        look(2)
    assert "or of this run alone: sagaspan budgets set run:r/look AMOUNT" in str(caught.value)
    assert guard.runs.get("r").reason == "budget"


def test_what_a_read_in_doubt_reserved_is_spent(store_url: str) -> None:
    """Nobody will decide about it, so nothing would ever end the reservation."""
    with Guard(store_url, budgets={"user:*": "0.25 USD"}) as guard:

        @guard.tool(effect="read", cost="0.1 USD")
        def search(query: str) -> str:
            raise ConnectionError(query)

        for query in ("a", "b"):
            with pytest.raises(ConnectionError), guard.run("r", user="1"):
                search(query)
        [budget] = guard.budgets.list()
        assert (str(budget.spent), str(budget.reserved)) == ("0.2", "0")
        assert guard.budgets.fsck() == []
        with pytest.raises(BudgetExceeded), guard.run("r", user="1"):
            search("c")


def test_a_rate_is_shared(store_url: str) -> None:
    """All guards over one store together; the error says when to try again."""
    first, second = (Guard(store_url) for _ in range(2))
    looks = [guard.tool("look", effect="read", rate="2/hour")(lambda n: n) for guard in (first, second)]
    assert [look(n) for n, look in enumerate(looks)] == [0, 1]
    with pytest.raises(RateLimited) as caught:
        looks[0](3)
    assert 1700 < caught.value.retry_after <= 1800


ASK = """
look = guard.tool("look", rate="10/hour", effect="read")(effect)
def ask(n):
    try:
        look(f"{os.getpid()}-{n}")
    except RateLimited as error:
        assert 0 < error.retry_after <= 3600
threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def test_a_rate_is_shared_by_processes(worker: Worker) -> None:
    """Four of them with eight threads each: the tenth call is the last one of this hour."""
    asking = [worker.start(ASK) for _ in range(4)]
    ended = [(one.communicate(timeout=300), one.returncode) for one in asking]
    assert not [err for (_, err), code in ended if code], ended
    assert len(set(worker.effects)) == len(worker.effects) == 10


def test_a_run_has_a_wall_clock(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its time a run starts nothing more."""
    from sagaspan.testing import frozen_clock

    with frozen_clock() as clock:
        guard = Guard(store_url)

        @guard.tool(effect="read")
        def look() -> None: ...

        with pytest.raises(BudgetExceeded), guard.run("r", budget="10 min"):
            look()
            clock.advance(601)
            look()


@pytest.mark.parametrize("cost", [-1, float("nan"), float("inf"), True, "1", 10**30, object()])
def test_a_hostile_cost_is_refused(store_url: str, cost: Any) -> None:
    """Before the body runs, in one sentence."""
    guard, ran = Guard(store_url), []

    @guard.tool(effect="write", cost=lambda: cost)
    def act() -> None:
        ran.append(1)

    with pytest.raises(ConfigurationError, match="its cost"):
        act()
    assert not ran


def test_usage_by_scope(store_url: str) -> None:
    """What was spent, of a user, a tool, a run."""
    guard = Guard(store_url, budgets={"user:u": "10 USD"})

    @guard.tool(effect="write", cost=lambda n: n)
    def buy(n: int) -> None: ...

    for user, n in (("u", 1), ("u", 2), ("v", 4)):
        with guard.run("r", user=user, agent="shopper"):
            buy(n)
    found = guard.usage(user="u")
    assert (found.spent, found.calls, found.limit, found.remaining) == (3, 2, 10, 7)
    assert guard.usage(tool="buy").spent == guard.usage(agent="shopper").spent == guard.usage().spent == 7


def test_the_limit_of_a_run_is_its_own(store_url: str) -> None:
    """Also when it is over, and of one that has none: what the guard gives every run is not what it was given."""
    guard = Guard(store_url, budget="9 USD")
    look = guard.tool("look", effect="read", cost="1 USD")(lambda n: n)
    with guard.run("outer", id="o"):
        with guard.run("inner", id="i", budget="2 USD") as inner:
            look(1)
            assert (inner.usage.limit, inner.usage.remaining) == (2, 1)
        with guard.run("bare", id="b"):
            look(2)
    found = [guard.usage(run=run) for run in ("o", "i", "b")]
    assert [(one.limit, one.remaining) for one in found] == [(9, 7), (2, 1), (None, None)]
    guard.set_budget("run:i", "5 USD")
    assert guard.usage(run="i").limit == 5


def test_a_nested_run_spends_of_the_outer_one(store_url: str) -> None:
    """And of whoever pays for that."""
    guard = Guard(store_url, budgets={"user:u": "10 calls"})

    @guard.tool(effect="read")
    def look(n: int) -> int:
        return n

    with pytest.raises(BudgetExceeded) as caught, guard.run("outer", id="o", user="u", budget="3 calls"):
        look(1)
        with guard.run("inner", budget="5 calls"):
            for n in range(5):
                look(n)
    assert caught.value.scope == "run:o"
    assert guard.usage(user="u").calls == 3


def test_a_killed_process_leaves_its_reservation_with_its_record(tmp_path: Path, store_url: str) -> None:
    """A crash between the claim and the settle: what was reserved stays until the call is decided."""
    from sagaspan.testing import World

    def job(world: Any) -> None:
        guard = Guard(world.store, budgets={"tool:buy": "1 USD"})
        guard.tool("buy", effect="write", key="n", cost="1 USD")(lambda n: world.effect("buy"))(1)

    with World(job) as world:
        world.process(job, die_at="buy: after effect")
        with pytest.raises(OutcomeUnknown):
            world.resume()
        guard = Guard(world.store, budgets={"tool:buy": "1 USD"})
        assert guard.usage(tool="buy").reserved == 1


def test_who_goes_on_after_a_stop_ends_for_what_stopped_it(store_url: str, caller: Caller) -> None:
    """The refusal of the next call is no other end of the run: it is undone, and raises why it stopped."""
    guard, undone = Guard(store_url), []

    @caller.tool(guard, compensate=lambda n: undone.append(n))
    def act(n: int) -> int:
        return n

    async def job() -> None:
        async with caller.run(guard, "r", id="r", budget="1 calls"):
            await caller.call(act, 1)
            with contextlib.suppress(BudgetExceeded):
                await caller.call(act, 2)
            await caller.call(act, 3)

    with pytest.raises(BudgetExceeded):
        caller.play(job)
    assert undone == [1]
    assert (guard.runs.get("r").status, guard.runs.get("r").reason) == ("compensated", "budget")


def test_the_budget_of_a_run_inside_is_its_own(store_url: str) -> None:
    """What it was given and has used up is an error that the run around it may handle; their common one stops both."""
    guard = Guard(store_url)

    @guard.tool(effect="write", compensate=lambda n: None)
    def act(n: int) -> int:
        return n

    with guard.run("outer", id="o", budget="4 calls"):
        with pytest.raises(BudgetExceeded), guard.run("inner", budget="1 calls"):
            act(1)
            act(2)
        act(3)
    assert guard.runs.get("o").status == "completed"
    with pytest.raises(BudgetExceeded), guard.run("outer", id="p", budget="1 calls"):
        with contextlib.suppress(BudgetExceeded), guard.run("inner", budget="4 calls"):
            act(1)
            act(2)
        act(3)
    assert (guard.runs.get("p").status, guard.runs.get("p").reason) == ("failed", "budget")


def test_a_limit_that_another_thread_has_read_is_no_closed_run(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim under old limits is made again, also if its process knows the new ones by then."""
    guard = Guard(store_url)
    act = guard.tool("act", effect="write", repeat="new")(lambda: 1)
    store = guard._store
    commit = store.commit

    def overtaken(changes: Any, *, synced: bool) -> Any:
        monkeypatch.setattr(store, "commit", commit)
        Guard(store_url).set_budget("tool:act", "9 calls")
        saved = commit(changes, synced=synced)
        guard._engine.limits.reload()  # as the claim of another thread does
        return saved

    with guard.run("r"):
        act()
        monkeypatch.setattr(store, "commit", overtaken)
        assert act() == 1
    assert guard.usage(tool="act").calls == 2


@pytest.mark.of_sqlite("its plans of queries")
@pytest.mark.parametrize("by", [None, "agent", "user", "model", "tool"])
@pytest.mark.parametrize("which", [{}, {"user": "42"}])
def test_usage_since_then_reads_no_older_calls(store_url: str, by: str | None, which: dict[str, str]) -> None:
    """However many there are: the plan of the database goes by an index of the time."""
    with Guard(store_url) as guard:
        guard.usage()
        query, values = usage_query("default", which, 1, by, steers=True)
        with contextlib.closing(sqlite3.connect(store_url.removeprefix("sqlite:///"))) as connection:
            plan = [row[3] for row in connection.execute(f"explain query plan {query}", values)]
    assert any(line.startswith("SEARCH c USING INDEX calls_by_creation (created_us>?") for line in plan), plan
    assert not [line for line in plan if line.startswith("SCAN")]


# -- costs that evidence settles -----------------------------------------------------------------------------------

RULE = """
[[rules]]
tools = "buy"
when = "spent >= 1.0"
action = "deny"
"""


@pytest.mark.parametrize("budget", ["5 USD", None])
@pytest.mark.parametrize("evidence", ["probe", "person", "compensated", "late"])
def test_what_evidence_settles_is_in_usage_too(
    store_url: str, tmp_path: Path, evidence: str, budget: str | None
) -> None:
    """A call that a probe, a person or a late result decides: a rule about what was spent sees its cost."""
    (tmp_path / "sagaspan.toml").write_text(RULE)
    guard = Guard(store_url, policies=str(tmp_path / "sagaspan.toml"))
    ends, bought = threading.Event(), []

    def find(n: int) -> Any:
        return Applied(n) if evidence == "probe" else Unsure("the search is down")

    @guard.tool(effect="write", cost="1 USD", probe=find, timeout=0.05 if evidence == "late" else None)
    def buy(n: int) -> int:
        bought.append(n)
        if n == 1:
            if evidence == "late":
                ends.wait(60)
                return n
            raise ConnectionResetError
        return n

    with contextlib.suppress(ConnectionResetError, ToolTimeout), guard.run("r", id="r", budget=budget):
        buy(1)
    [call] = guard.runs.get("r").calls
    ends.set()
    if evidence in ("person", "compensated"):
        guard.calls.resolve(call.id, {"person": "happened"}.get(evidence, evidence), note="saw it")
    _until(lambda: evidence == "probe" or guard.calls.get(call.id).state in ("done", "compensated"))
    with contextlib.suppress(PolicyDenied, RunClosed), guard.run("r", id="r", budget=budget):
        buy(2)
    assert bought == [1]
    assert (guard.usage(run="r").spent, guard.usage(tool="buy").spent) == (1, 1)
    assert [account.spent for account in guard.budgets.list("run:r")] == ([1] if budget else [])
    assert list(guard.budgets.fsck()) == []


def _until(holds: Callable[[], bool]) -> None:
    for _ in range(3000):
        if holds():
            return
        time.sleep(0.01)
    pytest.fail("it took half a minute")


def test_a_late_result_of_what_did_not_happen_is_spent(store_url: str, sql: Sql) -> None:
    """Somebody was wrong: the call is done, and its cost, by its result, is in its budgets."""
    guard, ends = Guard(store_url, budgets={"user:*": "1 USD", "tool:buy": "9 calls"}), threading.Event()

    @guard.tool(effect="write", timeout=0.05, cost=lambda result: 1 if result is None else result)
    def buy() -> int:
        ends.wait(60)
        return 3

    with contextlib.suppress(ToolTimeout), guard.run("r", id="r", user="ann"):
        buy()
    [call] = guard.runs.get("r").calls
    guard.calls.resolve(call.id, "did-not-happen", note="asked them")
    assert _budgets(sql) == [("tool:buy", 1, 0, 0), ("user:ann", 0, 0, 0)]
    ends.set()
    _until(lambda: guard.calls.get(call.id).state == "done")
    assert _budgets(sql) == [("tool:buy", 1, 0, 0), ("user:ann", 10**9, 0, 2 * 10**9)]
    assert guard.usage(user="ann").spent == 3
    assert list(guard.budgets.fsck()) == []


def test_both_effects_of_a_call_that_happened_twice_are_spent(store_url: str, sql: Sql) -> None:
    """Somebody said that it did not happen, it was run again, and then the first attempt returned."""
    guard, ends, started = Guard(store_url, budgets={"user:*": "5 USD"}), threading.Event(), []

    @guard.tool(effect="write", timeout=0.05, cost="1 USD")
    def buy() -> int:
        started.append(1)
        if len(started) == 1:
            ends.wait(60)
        return 3

    with contextlib.suppress(ToolTimeout), guard.run("r", id="r", user="ann"):
        buy()
    [call] = guard.runs.get("r").calls
    guard.calls.resolve(call.id, "did-not-happen", note="asked them")
    with guard.run("r", id="r", user="ann"):
        buy()
    ends.set()
    _until(lambda: bool(guard.calls.duplicates()))
    assert _budgets(sql) == [("user:ann", 2 * 10**9, 0, 0)]
    assert guard.usage(user="ann").spent == 2
    assert list(guard.budgets.fsck()) == []


def test_what_is_undone_in_doubt_is_spent(store_url: str, sql: Sql) -> None:
    """Its compensation is safe without it, but it may have happened: its reservation does not stay for ever."""
    guard = Guard(store_url, budgets={"user:*": "5 USD"})

    @guard.tool(compensate=lambda n: None, empty_safe=True, cost="1 USD")
    def buy(n: int) -> int:
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError), guard.run("r", id="r", user="ann"):
        buy(1)
    assert guard.runs.get("r").calls[0].state == "compensated"
    assert _budgets(sql) == [("user:ann", 10**9, 0, 0)]
    assert guard.usage(user="ann").spent == 1
    assert list(guard.budgets.fsck()) == []


@pytest.mark.parametrize("damage", ['update "usage" set cost = 1', 'delete from "usage"'])
def test_fsck_compares_what_usage_says(store_url: str, sql: Sql, damage: str) -> None:
    """Also of calls that no budget counts: each call says what it cost."""
    guard = Guard(store_url)
    buy = guard.tool("buy", effect="write", cost="2 USD")(lambda n: n)
    buy(1)
    assert list(guard.budgets.fsck()) == []
    sql(damage)
    [found] = guard.budgets.fsck()
    [call] = guard.calls.list(open=False)
    assert (found.scope, found.what, found.by_calls) == (f"call:{call.id}", "usage", 2)
    assert found.counted == (0 if "delete" in damage else Decimal("1e-9"))


def test_a_budget_of_users_that_counts_nothing_is_named_once(guard: Guard, caplog: pytest.LogCaptureFixture) -> None:
    """Of runs that name no user: the limit looks as if it held, and holds nothing."""
    guard.set_budget("user:*", "2 calls")
    buy = guard.tool("buy", effect="write", repeat="new")(lambda: None)
    with guard.run("shop", id="named", user="ada"):
        buy()
    assert "names no user" not in caplog.text
    for number in range(3):
        with guard.run("shop", id=f"r{number}"):
            buy()
    assert caplog.text.count("the run 'r0' names no user, so its calls do not count in it") == 1
    assert caplog.text.count("names no user") == 1
