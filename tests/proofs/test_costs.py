"""A proof of the books: budgets, ``usage`` and the calls say the same of every call, however its outcome came out.

Each history is of a few calls under hard budgets. They are deferred or not, cost a fixed amount or one that their
result says, fail before they are sent, are lost, or return after they were given up; people decide some, rightly or
wrongly, and processes make the same calls again.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sagaspan import (
    Applied,
    CallInfo,
    Guard,
    NotApplied,
    OutcomeUnknown,
    Refused,
    ResolutionError,
    Retry,
    RunError,
    ToolTimeout,
    Unsure,
)
from sagaspan.ledger.attempts import watched
from sagaspan.testing import temporary_store

EXAMPLES: Final = int(os.environ.get("SAGASPAN_COST_EXAMPLES", "25"))
CAP: Final = 5
_ANSWERS: Final = {"applied": Applied(1), "not applied": NotApplied, "unsure": Unsure("the search is down")}
EXPECTED: Final = (ConnectionError, OutcomeUnknown, Refused, ResolutionError, RunError, ToolTimeout, NotApplied)


@dataclass(frozen=True)
class Kind:
    """How the tool of one history is declared."""

    deferred: bool
    by_result: bool
    attempts: int
    probe: str
    dedupes: bool


kinds = st.builds(
    Kind, st.booleans(), st.booleans(), st.integers(1, 2), st.sampled_from(["none", *_ANSWERS]),
    st.booleans(),
)  # fmt: skip
# What becomes of a call (how its attempts end), and what people and processes do then.
ends = st.lists(st.sampled_from(["ok", "declined", "lost", "late", "late"]), min_size=1, max_size=2)
after = st.lists(st.sampled_from(["happened", "did-not-happen", "retry", "compensated", "again", "land"]), max_size=5)
histories = st.lists(st.tuples(st.integers(0, 1), ends, after), min_size=1, max_size=4)


class Shop:
    """One tool, whose attempts end as they are told; ``waiting`` are those that return late."""

    def __init__(self, guard: Guard, kind: Kind) -> None:
        self.guard = guard
        self.plan: list[str] = []
        self.waiting: queue.Queue[threading.Event] = queue.Queue()

        def buy(n: int) -> int:
            end = self.plan.pop(0) if self.plan else "ok"
            if end == "declined":
                raise NotApplied
            if end == "lost":
                raise ConnectionResetError
            if end == "late":
                event = threading.Event()
                self.waiting.put(event)
                event.wait(60)
            return n + 1

        fields: dict[str, Any] = {"cost": "1 USD", "retry": Retry(attempts=kind.attempts, initial_delay=0.0)}
        if kind.by_result:
            fields["cost"] = lambda result: 1 if result is None else result
        if kind.probe != "none":
            fields["probe"] = lambda: _ANSWERS[kind.probe]
        if kind.dedupes:
            fields["downstream_dedupes_for"] = 3600
        self.buy = guard.tool("buy", effect="write", timeout=0.05, defer=kind.deferred, **fields)(buy)

    def play(self, n: int) -> None:
        """Enter the run of ``n``, and make its call."""
        with contextlib.suppress(*EXPECTED), self.guard.run(id=f"r{n}", user="ann", budget="3 USD"):
            self.buy(n)

    def land(self) -> None:
        """Let one attempt return that was given up, and wait until that is on record."""
        with contextlib.suppress(queue.Empty):
            before = len(watched())
            self.waiting.get_nowait().set()
            _until(lambda: len(watched()) < before)

    def act(self, n: int, action: str) -> None:
        """What comes after."""
        if action == "land":
            self.land()
        elif action == "again":
            self.play(n)
        else:
            for call in self.calls(n):
                with contextlib.suppress(ResolutionError):
                    self.guard.calls.resolve(call.id, action, note="looked")

    def calls(self, n: int) -> list[CallInfo]:
        """The calls of a run."""
        run = self.guard.runs.get(f"r{n}")
        return [] if run is None else list(run.calls)


def _until(holds: Callable[[], bool]) -> None:
    for _ in range(6000):
        if holds():
            return
        time.sleep(0.005)
    raise AssertionError("it took half a minute")


def check(shop: Shop) -> None:
    """All three say the same, and no cap is passed."""
    guard = shop.guard
    _until(lambda: len(watched()) <= shop.waiting.qsize())  # a slow machine gives up what was to be in time
    assert list(guard.budgets.fsck()) == []
    spent = guard.usage(user="ann").spent
    [account] = guard.budgets.list("user:ann") or [None]
    if account is None:
        assert spent == 0
        return
    assert account.spent == spent
    assert account.spent - account.overdraft + account.reserved <= CAP
    of_runs = [one for one in guard.budgets.list() if one.scope.startswith("run:")]
    assert {one.scope: one.spent for one in of_runs if one.spent} == {
        f"run:{one.key}": one.spent for one in guard.usage_by("run") if one.spent
    }
    states = [call.state for call in guard.calls.list(open=False, limit=1000)]
    holding = sum(state in ("running", "unknown", "needs_human", "scheduled") for state in states)
    assert account.reserved == Decimal(holding)


@given(kind=kinds, history=histories)
@settings(
    max_examples=EXAMPLES, deadline=None, database=None, derandomize=True, phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
def _histories(kind: Kind, history: list[tuple[int, list[str], list[str]]]) -> None:
    with temporary_store() as store, Guard(store, budgets={"user:*": f"{CAP} USD"}) as guard:
        shop = Shop(guard, kind)
        try:
            for n, plan, actions in history:
                shop.plan = list(plan)
                shop.play(n)
                check(shop)
                for action in actions:
                    shop.act(n, action)
                    check(shop)
        finally:
            while not shop.waiting.empty():
                shop.land()
        check(shop)


def test_budgets_usage_and_calls_agree(store_url: str) -> None:
    """Whatever fails, returns late, is decided by people or done again."""
    _histories()
