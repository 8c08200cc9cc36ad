"""Ledgers that are used again by the next test: none that a test before may still write to."""

from __future__ import annotations

import contextlib
import threading
import time

from sagaspan import Guard, ToolTimeout
from sagaspan.ledger import attempts, leases
from sagaspan.ledger.store import Store
from sagaspan.testing._servers import ServerLedgers


class _Ledgers(ServerLedgers):
    """Names, and no server."""

    def opened(self, url: str) -> Store:
        raise NotImplementedError

    def name_of(self, url: str) -> str:
        return url

    def empty(self, url: str) -> None:
        pass

    def cut(self, url: str) -> None:
        raise NotImplementedError

    def _make(self, url: str) -> None:
        pass

    def _is_in_use(self, url: str) -> bool:
        return False

    def _drop(self, url: str) -> None:
        raise NotImplementedError

    def _url_of(self, name: str) -> str:
        return name


def test_a_ledger_is_not_used_again_while_a_late_result_may_come(guard: Guard) -> None:
    """A body that was given up writes its result when it ends, into whosever ledger that is by then."""
    ledgers, end = _Ledgers("none"), threading.Event()

    @guard.tool(effect="write", timeout=0.05)
    def pay() -> None:
        end.wait(60)

    before, during = ledgers.take(), ledgers.take()
    ledgers.give_back(before)
    assert ledgers.take() == before
    with contextlib.suppress(ToolTimeout), guard.run():
        pay()
    ledgers.give_back(during)
    after = ledgers.take()
    assert after != during

    ledgers.give_back(after)
    assert ledgers.take() == after, "a body of before its use is no matter of a ledger"
    end.set()
    while attempts.watched():
        time.sleep(0.005)
    ledgers.give_back(after)
    assert ledgers.take() == after


class _Used(_Ledgers):
    """Each is in use when it is given back."""

    def _is_in_use(self, url: str) -> bool:
        return True


def test_a_guard_that_nobody_closed_keeps_no_connection(store_url: str) -> None:
    """A call outside a run, and so its ledger, is answered for until the process ends: those of tests are let go."""
    guard = Guard(store_url)
    guard.tool("look")(lambda: None)()
    opened = guard._engine.store
    assert leases.stores_at(store_url) == [opened]
    _Used("none").give_back(store_url)
    assert not leases._keeper.watches(next(lease for lease in leases._all if lease.store is opened))
