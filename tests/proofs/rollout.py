"""Workers are replaced one by one while orders go on, as when a version is rolled out: nothing is lost or done twice.

    uv run --all-extras python -m tests.servers -- python -m tests.proofs.rollout --store postgres    # or mariadb
    uv run --all-extras python -m tests.proofs.rollout --workers 2 --rounds 2                       # bounded, on SQLite

Real processes take orders from a queue that delivers at least once, and one recovers. Again and again a new one begins
and an old one gets SIGTERM, which ends it as programs do: the order in hand is ended first, or left where it is, or the
process dies of it; every fourth is killed before it is done with that. Orders come as fast as they are worked on, until
all were replaced. It fails unless every step of every order
happened once, was paid for once and not undone, and who may end its order did so and ended well.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sagaspan import Guard
from sagaspan._audit import Audit
from sagaspan.stores import connect
from tests.proofs import STORE, ledger_on, server_of
from tests.proofs.rollout_worker import BUDGETS, HOWS, STEPS, effects_in
from tests.proofs.storm_worker import Queue

ROOT: Final = Path(__file__).parents[2]
PATIENCE_SECONDS: Final = 300.0
KILLED_EVERY: Final = 4
WAITING: Final = 3
"""So many orders wait for each worker."""
_LEASE: Final = {"SAGASPAN_LEASE_SECONDS": "2"}


@dataclass(frozen=True)
class _Started:
    how: str
    process: subprocess.Popen[str]


class Fleet:
    """The processes there are, one a place; each is replaced by the next of its kind."""

    def __init__(self, store: str, folder: Path) -> None:
        self.ended: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._environment = {**os.environ, **_LEASE, "SAGASPAN_STORE": store, "ROLLOUT_FOLDER": str(folder)}
        self._hows = itertools.cycle(HOWS)
        self._places: dict[str, _Started] = {}
        self._count = 0

    def fill(self, workers: int) -> None:
        """Start as many workers, and a recoverer."""
        for place in (*(f"worker {number}" for number in range(workers)), "recoverer"):
            self._places[place] = self._start(place)

    def _start(self, place: str) -> _Started:
        how = "recover" if place == "recoverer" else next(self._hows)
        command = [sys.executable, "-m", "tests.proofs.rollout_worker", how]
        process = subprocess.Popen(command, cwd=ROOT, env=self._environment, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            self.wrong.append(f"a {place} ({how}) did not begin")
        return _Started(how, process)

    def replace(self) -> None:
        """Each place in turn: the new one is ready before the old one is told to end."""
        for place in list(self._places):
            old, self._places[place] = self._places[place], self._start(place)
            self._count += 1
            self._end(old, at_once=self._count % KILLED_EVERY == 0)

    def _end(self, old: _Started, *, at_once: bool = False) -> None:
        old.process.send_signal(signal.SIGTERM)
        if at_once:
            time.sleep(0.02)
            old.process.kill()
        try:
            code = old.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            old.process.kill()
            code = old.process.wait()
            self.wrong.append(f"one that should {old.how} had to be killed")
        if old.process.stdout is not None:
            old.process.stdout.close()
        self.ended["killed" if code == -signal.SIGKILL else old.how] += 1
        if code not in (-signal.SIGTERM if old.how == "die" else 0, -signal.SIGKILL if at_once else 0):
            self.wrong.append(f"one that should {old.how} ended with {code}")

    def disband(self) -> None:
        """End all of them."""
        for one in self._places.values():
            self._end(one)
        self._places.clear()


class Orders:
    """They come until ``stop``, a few more than there are workers for."""

    def __init__(self, folder: Path, waiting: int) -> None:
        self.count = 0
        self._folder, self._waiting = folder, waiting
        self._is_over = threading.Event()
        Queue(folder).fill([])
        self._thread = threading.Thread(target=self._come)
        self._thread.start()

    def _come(self) -> None:
        queue = Queue(self._folder)
        while not self._is_over.wait(0.02):
            more = self._waiting - queue.left()
            queue.add([str(number) for number in range(self.count, self.count + more)])
            self.count += max(more, 0)

    def stop(self) -> None:
        """No more come."""
        self._is_over.set()
        self._thread.join()


def rolled_out(store: str, *, workers: int, rounds: int) -> dict[str, Any]:
    """Replace every place ``rounds`` times while orders are worked on; ``wrong`` is what is."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rollout-") as name:
        folder = Path(name)
        orders, fleet = Orders(folder, workers * WAITING), Fleet(store, folder)
        queue = Queue(folder)
        try:
            fleet.fill(workers)
            for _ in range(rounds):
                fleet.replace()
        finally:
            orders.stop()
            deadline = time.monotonic() + PATIENCE_SECONDS
            while queue.left() and time.monotonic() < deadline:
                time.sleep(0.05)
            fleet.disband()
        wrong = [*fleet.wrong, *_wrong_in(store, effects_in(folder), orders.count)]
        return {
            "orders": orders.count, "deliveries": queue.deliveries(), "replaced": dict(fleet.ended),
            "seconds": round(time.monotonic() - started, 1), "wrong": wrong,
        }  # fmt: skip


def _wrong_in(store: str, effects: Counter[str], orders: int) -> list[str]:
    expected = Counter(f"{what}-{order}" for what in STEPS for order in range(orders))
    wrong = [f"{what} came {effects[what]} times, not {expected[what]}"
             for what in sorted({*effects, *expected}) if effects[what] != expected[what]]  # fmt: skip
    with Guard(store, budgets=BUDGETS) as guard:
        states = Counter(str(run.status) for run in guard.runs.list(limit=orders + 1))
        if states != {"completed": orders}:
            wrong.append(f"the runs are {dict(states)}")
        wrong += [f"call {extra.id} of {extra.tool} came twice" for extra, _ in guard.calls.duplicates()]
        wrong += [f"the books of the budgets differ from the calls: {found}" for found in guard.budgets.fsck()]
        wrong += [f"{orders} charges cost the shop {account.spent}, and {account.reserved} is reserved"
                  for account in guard.budgets.list("tenant:shop")
                  if (account.spent, account.reserved) != (orders, 0)]  # fmt: skip
    return wrong + list(map(str, Audit(lambda: connect(store), "default").verify().findings))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what was found; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="tests.proofs.rollout", description=__doc__.split("\n")[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5, help="how often each worker is replaced")
    parser.add_argument("--store", help=STORE)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, ledger_on(server_of(options.store)) as server:
        found = rolled_out(server or f"sqlite:///{folder}/ledger.db", workers=options.workers,
                           rounds=options.rounds)  # fmt: skip
    for name, value in found.items():
        print(f"{name:<12} {value}")
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
