"""Slices of a budget that many count in at once: nobody waits for another, and every sum is as if there were none."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from sagaspan import BudgetExceeded, Guard
from sagaspan.exceptions import ConfigurationError, StoreError
from sagaspan.ledger.records import BudgetRecord
from sagaspan.ledger.store import CarryChange, Change, LimitChange, Mark, ReserveChange, SpendChange, Store
from sagaspan.stores import _postgres_schema as schema
from sagaspan.stores import _requests as requests
from sagaspan.stores.postgres import PostgresStore
from sagaspan.stores.sqlite import SqliteStore
from sagaspan.testing import StoreConformance
from sagaspan.testing._conformance_records import LIMIT, LIMIT_SET, opening, refused, said, saved
from tests.servers import Postgres


class Hot(PostgresStore):
    """A ledger that cuts every budget at once, whether anybody waits for it or not."""

    def _told(self, ordered: Sequence[Change]) -> str:
        return _hot(super()._told(ordered))


def _hot(request: str) -> str:
    return json.dumps({**json.loads(request), "hot": True})


class TestHot(StoreConformance):
    """Where every budget is cut, a store conforms as any other."""

    @pytest.fixture
    def make_store(self, postgres: Postgres) -> Callable[[], PostgresStore]:
        """The ledger of this test, opened again."""

        def make() -> PostgresStore:
            store = Hot(f"{postgres.url}&slices=4", durability="off")
            postgres._made.append(store)
            return store

        return make


# -- as if there were none -------------------------------------------------------------------------------------------

BIG: Final = BudgetRecord(namespace="n", scope="tenant:acme", unit="usd", cap=1000)
SOFT: Final = (500, 800)


@pytest.fixture
def hot(postgres: Postgres) -> PostgresStore:
    """With a run, and budgets that are cut in four as soon as anything is reserved of them."""
    store = Hot(f"{postgres.url}&slices=4", durability="off")
    postgres._made.append(store)
    saved(store, opening())
    return store


class _Random:
    """The same changes for two stores: reservations, what becomes of them, and limits that change meanwhile."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._cap: int | None = 1000
        self._held: list[ReserveChange] = []

    def changes(self) -> list[Change]:
        """Of one commit."""
        what = self._random.random()
        if what < 0.03:
            self._cap = self._random.choice([1000, 700, 1500, None])
            return [LimitChange(replace(LIMIT, pattern="tenant:*"), LIMIT_SET)]
        if what < 0.05:
            return [CarryChange(BIG, self._random.randrange(900))]
        if what < 0.6 or not self._held:
            return [self._reservation() for _ in range(self._random.choice([1, 1, 1, 2]))]
        return [self._spending() for _ in range(self._random.choice([1, 1, 2]))]

    def _reservation(self) -> ReserveChange:
        cap = self._cap if self._random.random() < 0.95 else 400
        soft = SOFT if self._random.random() < 0.95 else ()  # another guard declares none
        return ReserveChange(replace(BIG, cap=cap), self._random.choice([0, 1, 5, 5, 5, 10, 60]), soft)

    def _spending(self) -> SpendChange:
        held = self._held.pop(self._random.randrange(len(self._held))) if self._held else None
        reserved = held.amount if held else 0
        spent = self._random.choice([0, reserved, reserved, reserved // 2, reserved + 7])
        return SpendChange(replace(BIG, cap=None), reserved, spent, tuple(Mark(at, said(f"at {at}")) for at in SOFT))

    def saved(self, changes: Sequence[Change]) -> None:
        """What is reserved by now."""
        self._held += [change for change in changes if isinstance(change, ReserveChange)]


@pytest.mark.parametrize("seed", range(6))
def test_a_budget_that_is_cut_is_the_same_as_one_that_is_not(hot: PostgresStore, tmp_path: Path, seed: int) -> None:
    """What is refused, what is used after each commit, who is told of a soft limit, and what the books say."""
    plain: Store = SqliteStore(tmp_path / "ledger.db", durability="off")
    saved(plain, opening())
    assert 20 < _compared(hot, plain, _Random(seed)) < 250
    assert _told(hot) == _told(plain)
    plain.close()


def _compared(hot: PostgresStore, plain: Store, made: _Random) -> int:
    """How often the budget was cut."""
    cut = 0
    for _ in range(250):
        changes = made.changes()
        ours, theirs = (store.commit(changes, synced=False) for store in (hot, plain))
        assert (bool(ours), ours.used) == (bool(theirs), theirs.used)
        if ours:
            made.saved(changes)
        assert hot.budgets() == plain.budgets()
        cut += _slices(hot) > 0
    return cut


def _slices(store: PostgresStore) -> int:
    """How many there are; and that they are what their budget says."""
    ((slices, room, said_slices, said_room),) = store._fetch(
        "select (select count(*) from slices), (select coalesce(sum(room), 0)::bigint from slices), "
        "coalesce(sum(slices), 0)::bigint, coalesce(sum(sliced), 0)::bigint from budgets", ()
    )  # fmt: skip
    assert (slices, room) == (said_slices, said_room)
    return int(slices)


def _told(store: Store) -> list[Any]:
    return [row.event for row in store.audit_of("n", "r")]


BROKEN: Final = {
    "a slice is as large as its budget": ("and s.room - s.spent - s.reserved >= p_more + p_spends", ""),
    "what is spent in a slice is not counted": ("spent = s.spent + p_spends, reserved", "reserved"),
    "what was spent is lost": ("spent = b.spent + g.spent, reserved", "reserved"),
    "what was reserved is lost": ("reserved = b.reserved + g.reserved", "reserved = b.reserved"),
    "another cap": ("b.cap is not distinct from r.cap into v_slices", "true into v_slices"),
    "what is reserved is cut, too": ("- b.spent - b.reserved\n", "- b.spent\n"),
    "slices take no room": ("sliced = v_slices * v_room", "sliced = 0"),
}
"""What keeps the books, and how it is broken on purpose."""


@pytest.fixture
def broken(postgres: Postgres, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> PostgresStore:
    """As ``hot``, with one line of the functions another."""
    named, *statements = schema.functions()
    line, instead = request.param
    assert any(line in one for one in statements)
    other = f"commit_{abs(hash(line)):016x}"[:19]
    made = tuple(one.replace(line, instead).replace(named, other) for one in (named, *statements))
    monkeypatch.setattr(schema, "functions", lambda: made)
    store = Hot(f"{postgres.url}&slices=4", durability="off")
    postgres._made.append(store)
    store.migrate()
    saved(store, opening())
    return store


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN, indirect=True)
def test_the_comparison_notices_what_is_broken(broken: PostgresStore, tmp_path: Path) -> None:
    """Each line that keeps the books is one without which they differ, or the server itself refuses what is wrong."""
    plain: Store = SqliteStore(tmp_path / "ledger.db", durability="off")
    saved(plain, opening())
    with pytest.raises((AssertionError, StoreError)):
        for seed in range(3):
            _compared(broken, plain, _Random(seed))
    plain.close()


# -- who is cut, and who uses it -------------------------------------------------------------------------------------


@pytest.fixture
def store(postgres: Postgres) -> PostgresStore:
    """With a run, and slices for what is hot."""
    store = PostgresStore(f"{postgres.url}&slices=4", durability="off")
    postgres._made.append(store)
    saved(store, opening())
    return store


_BLOCKED: Final = """
with recursive waiting (pid) as (select distinct pid from pg_locks where not granted),
blocked (pid) as (
  select pg_backend_pid() union select w.pid from waiting w join blocked b on b.pid = any(pg_blocking_pids(w.pid))
)
select count(*) - 1 from blocked
"""


def _saved_after_waiting(store: PostgresStore, *commits: Sequence[Change]) -> None:
    """While somebody else holds the rows of all budgets, and until that is over."""
    threads = [threading.Thread(target=saved, args=(store, *changes)) for changes in commits]
    with contextlib.closing(store._connect()) as other:
        with other.transaction():
            other.execute("select 1 from budgets for update")
            for number, thread in enumerate(threads, 1):
                thread.start()
                while other.execute(_BLOCKED).fetchone() != (number,):
                    assert thread.is_alive()
                    time.sleep(0.005)
        for thread in threads:
            thread.join(60)


def test_a_budget_is_cut_when_somebody_has_waited_for_it(store: PostgresStore, postgres: Postgres) -> None:
    """Not before, and not for who said nothing of slices."""
    saved(store, ReserveChange(BIG, 10))
    saved(store, ReserveChange(BIG, 10))
    _saved_after_waiting(postgres.store(), [ReserveChange(BIG, 10)])
    assert _slices(store) == 0
    _saved_after_waiting(store, [ReserveChange(BIG, 10)])
    assert _slices(store) == 4
    assert store._fetch("select sliced, spent, reserved from budgets", ()) == [(960, 0, 40)]
    assert store.budget(BIG) == replace(BIG, reserved=40)


def test_those_who_waited_while_it_was_cut_use_the_slices(store: PostgresStore) -> None:
    """Both who claims and who settles: what is in slices is not in the row."""
    saved(store, ReserveChange(BIG, 10), ReserveChange(BIG, 10))
    _saved_after_waiting(store, [ReserveChange(BIG, 10)], [ReserveChange(BIG, 10)])
    assert _slices(store) == 4
    both = "select reserved from budgets union all select sum(reserved)::bigint from slices"
    assert store._fetch(both, ()) == [(30,), (10,)]
    saved(store, ReserveChange(BIG, 900))
    assert _slices(store) == 0
    _saved_after_waiting(store, [ReserveChange(BIG, 1)], [SpendChange(BIG, 10, 5)])
    assert _slices(store) == 4
    assert store._fetch("select spent, reserved from budgets", ()) == [(0, 941)]
    assert store.budget(BIG) == replace(BIG, spent=5, reserved=931)


def test_a_budget_with_little_left_is_not_cut(hot: PostgresStore) -> None:
    """There is room for four such calls in each slice, and less slices where that is not enough for all of them."""
    saved(hot, ReserveChange(BIG, 112))
    assert _slices(hot) == 0
    saved(hot, ReserveChange(BIG, 100))
    assert _slices(hot) == 0
    saved(hot, ReserveChange(BIG, 60))
    assert _slices(hot) == 3


def test_who_comes_while_a_slice_is_held_takes_another(hot: PostgresStore) -> None:
    """Nobody waits, neither to claim nor to settle, and not for the row of the budget either."""
    saved(hot, ReserveChange(BIG, 10))
    with contextlib.closing(hot._connect()) as other, other.transaction():
        other.execute("select 1 from slices where slice < 4 for update")
        other.execute("select 1 from budgets for update")
        for _ in range(3):
            saved(hot, ReserveChange(BIG, 10))
        saved(hot, SpendChange(BIG, 10, 7))
        assert hot.budget(BIG) == replace(BIG, spent=7, reserved=30)


def test_who_finds_all_slices_held_waits_for_one(hot: PostgresStore) -> None:
    """The budget stays cut."""
    saved(hot, ReserveChange(BIG, 10))
    with contextlib.closing(hot._connect()) as other:
        with other.transaction():
            other.execute("select 1 from slices for update")
            thread = threading.Thread(target=saved, args=(hot, ReserveChange(BIG, 10)))
            thread.start()
            thread.join(0.2)
            assert thread.is_alive()
        thread.join(60)
    assert hot.budget(BIG) == replace(BIG, reserved=20)
    assert _slices(hot) == 4


def test_nobody_is_refused_while_there_is_room_anywhere(hot: PostgresStore) -> None:
    """What is left in the slices is taken back for who needs more than one of them has; nothing more is left then."""
    saved(hot, ReserveChange(BIG, 10))
    assert _slices(hot) == 4
    saved(hot, ReserveChange(BIG, 700))
    saved(hot, SpendChange(BIG, 10, 10))
    refused(hot, ReserveChange(BIG, 291))
    saved(hot, ReserveChange(BIG, 290))
    refused(hot, ReserveChange(BIG, 1))
    assert hot.budget(BIG) == replace(BIG, spent=10, reserved=990)


def test_no_slice_reaches_past_a_soft_limit(hot: PostgresStore) -> None:
    """Whoever passes it sees the sum: one of them is told, whether it goes on record or only on a span."""
    saved(hot, ReserveChange(BIG, 10, SOFT))
    ((most,),) = hot._fetch("select spent + reserved + sliced from budgets", ())
    assert SOFT[0] - 4 <= most < SOFT[0]
    for _ in range(60):
        saved(hot, ReserveChange(BIG, 10, SOFT))
    used = [commit.used[0] for _ in range(61) if (commit := hot.commit([SpendChange(BIG, 10, 10)], synced=False))]
    assert used == [10 * (number + 1) for number in range(61)]


def test_who_knows_of_another_soft_limit_is_told_of_it(hot: PostgresStore) -> None:
    """Whatever those knew for whom the budget was cut: what others are about to spend counts."""
    saved(hot, ReserveChange(BIG, 10), ReserveChange(BIG, 490), ReserveChange(BIG, 10))
    saved(hot, SpendChange(BIG, 490, 490))
    assert _slices(hot) > 1
    with contextlib.closing(hot._connect()) as other:
        with other.transaction():
            first = hot._told([SpendChange(BIG, 10, 6)])
            other.execute(f"select {schema.functions()[0]}($1::jsonb, false)", (first,))
            last = SpendChange(BIG, 10, 6, (Mark(500, said("half")),))
            thread = threading.Thread(target=saved, args=(hot, last))
            thread.start()
            thread.join(0.2)
        thread.join(60)
    assert _told(hot).count("half") == 1
    assert hot.budget(BIG) == replace(BIG, spent=502)


def test_who_says_nothing_of_slices_uses_those_that_there_are(hot: PostgresStore, postgres: Postgres) -> None:
    """Programs of both kinds may share a ledger; alone, and several commits at once."""
    saved(hot, ReserveChange(BIG, 10))
    other = postgres.store()
    saved(other, ReserveChange(BIG, 10))
    saved(other, SpendChange(BIG, 10, 2))
    saved(other, SpendChange(BIG, 10, 3))
    together = [requests.told([ReserveChange(BIG, 10)]), requests.told([ReserveChange(BIG, 10)])]
    assert other._sent(together, synced=False) == []
    refused(other, ReserveChange(replace(BIG, cap=20), 16))
    assert other.budget(BIG) == replace(BIG, spent=5)
    assert _slices(hot) == 4
    saved(other, ReserveChange(BIG, 900))
    assert _slices(hot) == 0


_LATE: Final = ("as $body$\nbegin\n  perform 1", "as $body$\nbegin\n  perform pg_advisory_xact_lock(42);\n  perform 1")
"""Between a row that was passed over since it had slices and the look at it."""


@pytest.mark.parametrize("broken", [_LATE], ids=["late"], indirect=True)
def test_a_settle_that_knows_no_slices_counts_while_they_go(broken: PostgresStore, postgres: Postgres) -> None:
    """What he held is given back, and what he spent is counted: the row is there, with slices or no more."""
    saved(broken, ReserveChange(BIG, 10))
    other = postgres.store()
    settling = threading.Thread(target=saved, args=(other, SpendChange(BIG, 10, 3)))
    with contextlib.closing(broken._connect()) as holder:
        with holder.transaction():
            holder.execute("select pg_advisory_xact_lock(42)")
            settling.start()
            while holder.execute(_BLOCKED).fetchone() != (1,):
                assert settling.is_alive()
                time.sleep(0.005)
            saved(broken, ReserveChange(BIG, 900))
            assert _slices(broken) == 0
        settling.join(60)
    assert other.budget(BIG) == replace(BIG, spent=3, reserved=900)


def test_commits_that_go_together_share_a_slice(hot: PostgresStore) -> None:
    """Each is answered as if it went alone; what does not fit together is left to each."""
    saved(hot, ReserveChange(BIG, 10))
    claims, settles = [ReserveChange(BIG, 10)], [SpendChange(BIG, 10, 8, (Mark(20, said("twenty")),))]
    assert hot._sent([hot._told(claims)] * 3, synced=False) == [{"used": []}] * 3
    assert _slices(hot) == 4
    assert hot._sent([hot._told(settles)] * 4, synced=False) == [{"used": [8 * number]} for number in (1, 2, 3, 4)]
    assert _told(hot).count("twenty") == 1
    assert hot.budget(BIG) == replace(BIG, spent=32)
    assert hot._sent([hot._told([ReserveChange(BIG, 400)])] * 3, synced=False) == []
    assert hot._sent([hot._told([SpendChange(BIG, 0, 600)])] * 2, synced=False) == []
    assert hot.budget(BIG) == replace(BIG, spent=32)


def test_a_limit_that_changes_takes_slices_back(hot: PostgresStore) -> None:
    """At once: until a claim finds what holds, nothing is out under what held before."""
    saved(hot, ReserveChange(BIG, 10), ReserveChange(replace(BIG, scope="user:ada"), 10))
    assert _slices(hot) == 8
    saved(hot, LimitChange(replace(LIMIT, pattern="tenant:*"), LIMIT_SET))
    assert _slices(hot) == 4
    assert hot.budget(BIG) == replace(BIG, cap=None, reserved=10)
    refused(hot, ReserveChange(replace(BIG, cap=15), 6))
    saved(hot, ReserveChange(replace(BIG, cap=15), 5))


def test_what_is_carried_over_counts_with_what_slices_have(hot: PostgresStore) -> None:
    """Nothing is counted twice."""
    saved(hot, ReserveChange(BIG, 10))
    saved(hot, SpendChange(BIG, 10, 10))
    saved(hot, CarryChange(BIG, 30))
    assert hot.budget(BIG) == replace(BIG, cap=None, spent=30, forgotten=20)


# -- in programs -----------------------------------------------------------------------------------------------------


@pytest.fixture
def guard(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guard]:
    """All of its budgets are cut."""
    told = PostgresStore._told
    monkeypatch.setattr(PostgresStore, "_told", lambda store, ordered: _hot(told(store, ordered)))
    with Guard(f"{postgres.url}&slices=4", budgets={"tenant:acme": "100 USD/day", "tool:pay": "100 calls"}) as guard:
        yield guard


def _pay(guard: Guard, times: int) -> None:
    pay = guard.tool("pay", effect="write", cost="1 USD", loop=False)(lambda n: n)
    with guard.run("r", tenant="acme", on_budget="hold"):
        for number in range(times):
            pay(number)


def test_whoever_reads_sees_no_slices(guard: Guard, postgres: Postgres) -> None:
    """Usage, accounts and their check are as ever, and so is what a refusal says."""
    _pay(guard, 30)
    assert postgres.run("select count(*) > 4 from slices") == [(True,)]
    assert [(one.spent, one.reserved, one.remaining) for one in guard.budgets.list("tenant:acme")] == [(30, 0, 70)]
    assert [(one.spent, one.reserved, one.remaining) for one in guard.budgets.list("tool:pay")] == [(30, 0, 70)]
    assert guard.usage(tenant="acme").spent == 30
    assert list(guard.budgets.fsck()) == []
    with pytest.raises(BudgetExceeded) as caught:
        _pay(guard, 71)
    assert (caught.value.spent, caught.value.reserved, caught.value.limit) == (100, 0, 100)
    assert list(guard.budgets.fsck()) == []


def test_a_lower_limit_holds_at_once(guard: Guard) -> None:
    """However much was out in slices."""
    _pay(guard, 30)
    guard.set_budget("tenant:acme", "32 USD/day")
    with pytest.raises(BudgetExceeded) as caught:
        _pay(guard, 3)
    assert (caught.value.spent, caught.value.reserved, caught.value.limit) == (32, 0, 32)
    guard.set_budget("tenant:acme", "40 USD/day")
    _pay(guard, 8)
    with pytest.raises(BudgetExceeded):
        _pay(guard, 1)


def test_a_run_that_is_forgotten_leaves_no_slices(guard: Guard, postgres: Postgres) -> None:
    """Of its own budget; what it spent of others stays spent."""
    with guard.run("r", id="gone", budget="50 calls", tenant="acme"):
        guard.tool("look", effect="read", cost="1 USD")(lambda: 1)()
    which = "select count(*) from slices where scope = 'run:gone'"
    assert postgres.run(which) == [(4,)]
    guard.prune(older_than=0)
    assert postgres.run(which) == [(0,)]
    assert [one.spent for one in guard.budgets.list("tenant:acme")] == [1]
    assert list(guard.budgets.fsck()) == []


@pytest.mark.parametrize("slices", ["257", "-1", "many", "4x"])
def test_a_number_of_slices_is_one(slices: str) -> None:
    """Up to 256."""
    with pytest.raises(ConfigurationError, match="slices="):
        PostgresStore(f"postgresql://localhost/x?slices={slices}")
