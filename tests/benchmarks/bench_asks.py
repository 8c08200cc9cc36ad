"""What it takes to tell somebody, before he decides, what a long run has done: counted, and read call by call.

    uv run --all-extras python -m tests.benchmarks.bench_asks
    uv run --all-extras python -m tests.servers -- python -m tests.benchmarks.bench_asks --store postgres

One in three calls of the run could be undone, and beside it are 10,000 runs of ten calls. Both ways take turns, and the
medians are compared. ``--plan`` prints how the database counts in the longest run.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.benchmarks import bench_growth, ledgers
from tests.benchmarks.ledgers import Ledgers
from tests.ledger.test_so_far import Earlier

from sagaspan import Guard
from sagaspan.ledger.so_far import so_far
from sagaspan.stores import _reading, connect

_STORED = 100_000
_TIMES = 15


def _took(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return (time.perf_counter() - started) * 1e3


def _booked(number: int) -> dict[str, object]:
    return {"paid": 12.5, "receipt": f"r-{number:032d}"}


def _cancel(number: int) -> None:
    """Nothing is left of it."""


def measure(url: str, sizes: list[int]) -> dict[int, tuple[float, ...]]:
    """Median milliseconds of an approved call in a run of so many, of counting, and of reading."""
    store: Any = connect(url, durability="off")  # type: ignore[arg-type] # nothing here waits for the disk
    reading: Any = Earlier(store)
    found = {}
    with Guard(store, approver="auto-approve") as guard:
        look = guard.tool("look", effect="write", cost="0.01 USD")(_booked)
        book = guard.tool("book", effect="write", cost="0.01 USD", compensate=_cancel)(_booked)
        pay = guard.tool("pay", effect="write", approve=True)(_booked)
        for size in sizes:
            with guard.run(id=f"run-{size}", user="42") as run:
                for number in range(size):
                    (look if number % 3 else book)(number)
                rounds = [
                    (_took(lambda number=number: pay(number)), _took(lambda run=run: so_far(store, run.record)),
                     _took(lambda run=run: so_far(reading, run.record)))
                    for number in range(_TIMES)
                ]  # fmt: skip
                found[size] = tuple(map(statistics.median, zip(*rounds, strict=True)))
    return found


def plan(url: str, run_id: str, place: Ledgers, explain: str) -> str:
    """How the database counts."""
    with place.sql(url) as execute:
        rows = execute(f"{explain} {_reading._TALLY}", (*("default", run_id) * 2, 10))
    return "\n".join(str(row[-1]) for row in rows)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, nargs="+", default=[10, 1000, 10_000])
    parser.add_argument("--plan", action="store_true")
    ledgers.option(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ledgers.ledgers(options.store, Path(folder)) as place:
        url = place.new("asks")
        bench_growth.fill(url, _STORED, place)
        found = measure(url, options.calls)
        print("calls in the run   an approved call    counted       read   ratio")
        for size, (call, counted, read) in found.items():
            print(f"{size:>16,} {call:>15.2f} ms {counted:>7.2f} ms {read:>7.2f} ms {read / counted:>6.1f}x")
        if options.plan:
            explain = "explain query plan" if options.store == "sqlite" else "explain (analyze, buffers)"
            print(plan(url, f"run-{options.calls[-1]}", place, explain))


if __name__ == "__main__":
    main()
