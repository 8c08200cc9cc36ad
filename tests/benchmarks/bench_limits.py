"""What nobody can be faster than here: a flush to the disk, a round trip to the server, a commit of one small row.

    uv run --all-extras python -m tests.servers -- python -m tests.benchmarks.bench_limits --store postgres

A guarded call is two commits, of which one is flushed. Medians in microseconds; ``--json`` prints one JSON document.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.benchmarks import ledgers
from tests.benchmarks.ledgers import Ledgers


def median(action: Callable[[], object], times: int) -> float:
    """Microseconds."""
    took = []
    for _ in range(times):
        started = time.perf_counter()
        action()
        took.append((time.perf_counter() - started) * 1e6)
    return statistics.median(took)


def flush(folder: Path, times: int) -> float:
    """Four KiB at the end of a file, on disk."""
    file = os.open(folder / "flushed", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    page = os.urandom(4096)
    try:
        return median(lambda: (os.write(file, page), os.fdatasync(file)), times)
    finally:
        os.close(file)


def commits(place: Ledgers, store: str, times: int) -> dict[str, float]:
    """A row of a hundred bytes: flushed, and not."""
    with place.sql(place.new("limits")) as execute:
        if store == "sqlite":
            execute("pragma journal_mode = wal")
        execute("create table small (row text)")
        found = {"nothing, and back": median(lambda: execute("select 1"), times)}
        for name, sqlite, postgres in (("flushed", "full", "on"), ("not flushed", "normal", "off")):
            execute(f"pragma synchronous = {sqlite}" if store == "sqlite" else f"set synchronous_commit = {postgres}")
            found[f"a commit, {name}"] = median(lambda: execute("insert into small values (?)", ("x" * 100,)), times)
    return found


def main() -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=500)
    ledgers.option(parser)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ledgers.ledgers(options.store, Path(folder)) as place:
        found = {"a flush": flush(Path(folder), options.times)} | commits(place, options.store, options.times)
    if options.json:
        print(json.dumps(found))
        return
    for name, took in found.items():
        print(f"{name:<24} {took:8.0f} us")


if __name__ == "__main__":
    main()
