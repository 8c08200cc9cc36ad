"""The connections that threads share: who gets the next one."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

import pytest

from sagaspan.stores import _pool as pools
from sagaspan.stores._pool import Full, Pool, Turns
from tests.moments import interrupted_everywhere
from tests.servers import Mariadb, Postgres


def _pool(size: int) -> Pool[object]:
    return Pool(object, lambda _: None, lambda _: True, size=size)


def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_who_waits_gets_the_next_connection_before_who_had_it_gets_it_again() -> None:
    """A thread that comes back for another connection does not pass those that wait; they are served in their order."""
    pool, served, threads = _pool(1), [], []

    def wait(name: str) -> None:
        with pool.lend(60):
            served.append(name)

    with pool.lend(60):
        for place, name in enumerate(("first", "second", "third"), 1):
            threads.append(threading.Thread(target=wait, args=(name,)))
            threads[-1].start()
            _until(lambda place=place: len(pool._turns._queue) == place)
    wait("again")
    for thread in threads:
        thread.join()
    assert served == ["first", "second", "third", "again"]


def test_who_gave_up_is_passed_over() -> None:
    """A thread that waited in vain takes nobody's turn, and nothing is lost by it."""
    pool = _pool(1)
    with pool.lend(60), pytest.raises(Full), pool.lend(0.01):
        raise AssertionError("there is only one")
    with pool.lend(60), contextlib.suppress(Full), pool.lend(0):
        raise AssertionError("there is only one")
    with pool.lend(0):
        pass


def test_a_turn_that_comes_in_the_moment_of_giving_up_is_taken() -> None:
    """Nobody loses a turn: who was given it and stops waiting in the same moment has it."""
    turns = Turns(1)
    assert turns.take(0)
    late = threading.Lock()
    late.acquire()
    turns._queue.append(late)
    turns.give_back()  # it is the late one's now
    assert turns._leave(late)
    assert not turns.take(0)


def test_one_that_was_idle_for_long_is_tried_before_it_is_lent(
    server: Postgres | Mariadb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart of the server even what may not be done twice, a fact say, finds a connection that works."""
    monkeypatch.setattr(pools, "IDLE_SECONDS", 0.0)
    store = server.store()
    assert store.put_fact("n", "before", "1", expected=None)
    server.cut()
    assert store.put_fact("n", "after", "1", expected=None)
    assert store.facts("n") == {"before": "1", "after": "1"}


def test_a_handler_of_signals_is_lent_one_at_any_moment() -> None:
    """In the middle of lending one to its own thread, too, for which it would wait for ever."""
    pool = Pool(object, lambda _: None, lambda _: True, size=2)

    def borrow() -> None:
        with pool.lend(1):
            pass

    moments = list(interrupted_everywhere(borrow, borrow, within=("stores/_pool.py",)))
    assert len(moments) > 10
    assert [where for where, error in moments if error is not None] == []
