"""One process of a crowd that calls under one cap, and the one who looks at the books meanwhile.

``python -m tests.proofs.budget_crowd crowd|race|spend|watch URL FOLDER``; see ``test_budgets.py``.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from pathlib import Path

from sagaspan import BudgetExceeded, Guard
from sagaspan.stores import connect
from sagaspan.stores._reading import SqlReads

THREADS = 64
FITS = 10
FITS_RACERS = 600
BUDGETS = {"tenant:acme": f"{FITS} USD", "user:*": "9 USD"}
SECONDS = 300.0
"""Longer than any process takes to start, or a crowd to be served, on the slowest machine."""


def _wait_for(file: Path) -> None:
    until = time.monotonic() + SECONDS
    while not file.exists() and time.monotonic() < until:
        time.sleep(0.002)


def say(folder: Path, name: str, text: str = "x") -> None:
    """One byte or line more in a file, whoever else writes to it."""
    descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with contextlib.closing(os.fdopen(descriptor, "w")) as file:
        file.write(text)


def crowd(url: str, folder: Path) -> None:
    """As many threads as there are, each with one call in a run of its own, all at once."""
    guard = Guard(url, budgets=BUDGETS)

    @guard.tool(effect="write", cost="1 USD")
    def act() -> None:
        say(folder, "effects")
        time.sleep(0.05)  # so that what is reserved is seen

    def one(number: int) -> None:
        with contextlib.suppress(BudgetExceeded), guard.run("r", tenant="acme", user=str(number % 4)):
            act()

    threads = [threading.Thread(target=one, args=(number,)) for number in range(THREADS)]
    say(folder, "ready")
    _wait_for(folder / "go")
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)


def race(url: str, folder: Path) -> None:
    """Call until nothing fits any more, all in one process after the other; what was refused was so for good."""
    guard = Guard(url, budgets={"tenant:acme": f"{FITS_RACERS} USD"})

    @guard.tool(effect="write", cost="1 USD", loop=False)
    def act(number: int) -> None:
        say(folder, "effects")

    say(folder, "ready")
    _wait_for(folder / "go")
    with contextlib.suppress(BudgetExceeded), guard.run("r", tenant="acme", on_budget="hold"):
        for number in range(FITS_RACERS):
            act(number)
    say(folder, "refused")


def watch(url: str, folder: Path) -> None:
    """Read the books of every budget again and again; tell of each that does not hold, and of how many were read."""
    seen, wrong, used, slices = 0, [], set(), 0
    until = time.monotonic() + SECONDS
    with contextlib.closing(connect(url)) as store:
        assert isinstance(store, SqlReads)
        say(folder, "ready")
        while not (folder / "over").exists() and time.monotonic() < until:
            rows = [(row.scope, row.cap or 0, row.spent, row.reserved, row.overdraft) for row in store.budgets()]
            seen += 1
            used |= {(spent > 0, reserved > 0) for _, _, spent, reserved, _ in rows}
            wrong += [row for row in rows if row[2] + row[3] + row[4] > row[1] or min(row[1:]) < 0]
            if "slices=" in url:
                slices = max(slices, store._fetch("select count(*) from slices", ())[0][0])
            time.sleep(0.001)
    said = {"seen": seen, "wrong": wrong, "used": sorted(used), "slices": slices}
    (folder / "watched").write_text(json.dumps(said))


def spend(url: str, folder: Path) -> None:
    """Threads that call until they are killed."""
    guard = Guard(url, budgets={"tenant:acme": "1000000 USD"})

    @guard.tool(effect="write", cost="1 USD")
    def act(number: int, thread: int) -> None:
        say(folder, "effects")

    def one(thread: int) -> None:
        with guard.run("r", tenant="acme"):
            for number in range(100_000):
                act(number, thread)

    threads = [threading.Thread(target=one, args=(thread,), daemon=True) for thread in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(SECONDS)


if __name__ == "__main__":
    {"crowd": crowd, "race": race, "watch": watch, "spend": spend}[sys.argv[1]](sys.argv[2], Path(sys.argv[3]))
