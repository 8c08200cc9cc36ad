"""Commits that go together: who waits for whom, and what becomes of each when something is wrong with one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from sagaspan.exceptions import StoreError
from sagaspan.ledger.store import Change, Mark, ReserveChange, SpendChange
from sagaspan.stores import _requests as requests
from sagaspan.stores._fate import Lost
from sagaspan.stores._grouping import AT_ONCE, Grouping, _Place
from sagaspan.stores.postgres import PostgresStore
from sagaspan.testing._conformance_records import BUDGET, claiming, opening, said, saved
from tests.servers import Postgres


class Server:
    """Keeps what it is sent until ``go``; then answers each with its name, or as ``answers`` says."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, ...]] = []
        self.go = threading.Event()
        self.answers: Callable[[Sequence[str]], list[Any]] = lambda names: [{"of": name} for name in names]
        self.grouping = Grouping(self._send)
        self._threads: list[threading.Thread] = []
        self.ended: dict[str, Any] = {}

    def _send(self, names: Sequence[str]) -> list[Any]:
        self.sent.append(tuple(names))
        assert self.go.wait(60)
        return self.answers(names)

    def _ask(self, name: str) -> None:
        try:
            self.ended[name] = self.grouping.send(name)["of"]
        except BaseException as error:
            self.ended[name] = type(error)

    def ask(self, *names: str) -> None:
        """Each from a thread of its own, one after the other."""
        for name in names:
            before = len(self.sent) + len(self.grouping._waiting)
            self._threads.append(threading.Thread(target=self._ask, args=(name,)))
            self._threads[-1].start()
            while len(self.sent) + len(self.grouping._waiting) == before:
                time.sleep(0.001)

    def answer(self) -> None:
        """All of it."""
        self.go.set()
        for thread in self._threads:
            thread.join(60)


BUSY = tuple(f"busy{number}" for number in range(AT_ONCE))


@pytest.fixture
def server() -> Iterator[Server]:
    """One that has as much to do as is sent alone."""
    server = Server()
    server.ask(*BUSY)
    yield server
    server.answer()


def test_few_go_alone_and_those_that_wait_go_together(server: Server) -> None:
    """In their order, and each has its own answer."""
    assert server.sent == [(name,) for name in BUSY]
    server.ask("a", "b", "c")
    assert len(server.sent) == AT_ONCE
    server.answer()
    assert ("a", "b", "c") in server.sent
    assert {name: server.ended[name] for name in "abc"} == {"a": "a", "b": "b", "c": "c"}
    assert server.grouping._on_their_way == 0


def test_what_does_not_fit_together_is_sent_again_one_by_one(server: Server) -> None:
    """Nothing of it was saved: maybe just one of them is beyond a cap."""
    server.ask("a", "b")
    server.answers = lambda names: [{"of": name} for name in names] if len(names) == 1 else []
    server.answer()
    assert server.sent[AT_ONCE:].count(("a",)) == server.sent[AT_ONCE:].count(("b",)) == 1
    assert (server.ended["a"], server.ended["b"]) == ("a", "b")


def test_what_a_server_refuses_is_the_error_of_whoever_sent_it(server: Server) -> None:
    """Not of those that went along."""

    def answers(names: Sequence[str]) -> list[Any]:
        if "bad" in names:
            raise StoreError("it cannot hold a value of this record")
        return [{"of": name} for name in names]

    server.ask("a", "bad", "b")
    server.answers = answers
    server.answer()
    assert (server.ended["a"], server.ended["bad"], server.ended["b"]) == ("a", StoreError, "b")


@pytest.mark.parametrize("error", [Lost(psycopg.OperationalError("gone")), KeyboardInterrupt()])
def test_an_answer_that_is_lost_is_lost_to_all_and_nothing_is_sent_again(server: Server, error: BaseException) -> None:
    """It may be saved: each looks for itself. Whoever comes later goes on."""

    def answers(names: Sequence[str]) -> list[Any]:
        if len(names) > 1:
            raise error
        return [{"of": name} for name in names]

    server.ask("a", "b", "c")
    server.answers = answers
    server.answer()
    assert [name for names in server.sent[AT_ONCE:] for name in names] == ["a", "b", "c"]
    assert (server.ended["b"], server.ended["c"]) == (Lost, Lost)
    assert server.ended["a"] is type(error)
    assert server.grouping._on_their_way == 0


def test_a_forked_child_waits_for_nobody(server: Server) -> None:
    """Those that are on their way are the parent's."""
    server.grouping._waiting.append(_Place("the parent's"))
    server.grouping.begin()
    assert server.grouping._waiting == []
    server.ask("child")
    assert server.sent[-1] == ("child",)


# -- on a server -----------------------------------------------------------------------------------------------------


def claim(run: str, amount: int, **budget: Any) -> list[Change]:
    """A claim in ``run`` that reserves of one budget that all share."""
    return [claiming(id=f"c-{run}", scope=f"run:{run}", run_id=run),
            ReserveChange(replace(BUDGET, **budget), amount)]  # fmt: skip


def sent(store: PostgresStore, *commits: list[Change]) -> list[dict[str, Any]]:
    """Commits in one transaction, and the answers."""
    assert all(requests.may_go_together(changes) for changes in commits)
    return store._sent([requests.told(changes) for changes in commits], synced=True)


@pytest.fixture
def store(postgres: Postgres) -> PostgresStore:
    """With three runs."""
    store = postgres.store()
    saved(store, *(opening(id=run) for run in "pqr"))
    return store


def test_each_of_those_that_go_together_is_saved_or_refused_for_itself(store: PostgresStore) -> None:
    """What is refused reserves nothing."""
    gone = [claiming(9, id="c-x", scope="run:q", run_id="q"), ReserveChange(BUDGET, 4)]
    assert sent(store, claim("p", 4), gone, claim("r", 6)) == [{"used": []}, {"refused": 0}, {"used": []}]
    assert [store.get_call(f"c-{name}") is not None for name in "pxr"] == [True, False, True]
    assert store.budget(BUDGET) == replace(BUDGET, reserved=10)


@pytest.mark.parametrize(
    "last",
    [claim("r", 4), claim("r", 8), claim("r", 1, cap=9), claim("r", 1, cap=None)],
    ids=["cap", "cap of none", "other cap", "no cap"],
)
def test_a_cap_that_does_not_hold_all_of_them_is_left_to_each(store: PostgresStore, last: list[Change]) -> None:
    """Nothing is saved then: who came first is first again, and each goes by the cap it knows."""
    saved(store, ReserveChange(BUDGET, 4))
    assert sent(store, claim("p", 2), claim("q", 1), last) == []
    assert store.get_call("c-p") is None
    assert store.budget(BUDGET) == replace(BUDGET, reserved=4)


def test_what_is_spent_together_is_counted_one_after_the_other(store: PostgresStore) -> None:
    """Each is told what is used after it, and a mark is passed once; what was overdrawn is left to each."""
    saved(store, ReserveChange(BUDGET, 9))
    mark = Mark(5, said("soft_limit"))
    spends: list[list[Change]] = [[SpendChange(BUDGET, 3, spent, (mark,))] for spent in (2, 3, 1)]
    assert sent(store, *spends) == [{"used": [2]}, {"used": [5]}, {"used": [6]}]
    assert [row.event for row in store.audit_of("n", "r")].count("soft_limit") == 1
    assert store.budget(BUDGET) == replace(BUDGET, spent=6)
    assert sent(store, [SpendChange(BUDGET, 0, 3)], [SpendChange(BUDGET, 0, 3)]) == []
    assert sent(store, [SpendChange(replace(BUDGET, scope="pruned"), 1, 1)], [SpendChange(BUDGET, 0, 1)]) == []
    assert store.budget(BUDGET) == replace(BUDGET, spent=6)
