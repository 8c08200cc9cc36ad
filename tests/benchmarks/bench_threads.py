"""Guarded calls a second from 1 and 8 threads on one ledger: ``uv run python tests/benchmarks/bench_threads.py``."""

from __future__ import annotations

import argparse
import contextvars
import json
import tempfile
import threading
import time
from pathlib import Path

from sagaspan import Guard


def measure(threads: int, calls: int, folder: Path) -> dict[str, float]:
    """Calls a second over all threads, and the p99 of one call in milliseconds."""
    guard = Guard(f"sqlite:///{folder / f'{threads}.db'}")

    @guard.tool(effect="write")
    def pay(amount: float, card: str, order: int) -> int:
        return 1

    took: list[float] = []

    def work(first: int) -> None:
        mine = []
        for number in range(first, first + calls):
            started = time.perf_counter()
            pay(12.5, "c1", number)
            mine.append(time.perf_counter() - started)
        took.extend(mine)

    with guard.run("bench"):
        pay(12.5, "c1", -1)
        workers = [
            threading.Thread(target=contextvars.copy_context().run, args=(work, worker * calls))
            for worker in range(threads)
        ]
        started = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        seconds = time.perf_counter() - started
    guard.close()
    return {"calls_per_s": threads * calls / seconds, "p99_ms": sorted(took)[int(len(took) * 0.99)] * 1e3}


def main() -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = {threads: measure(threads, options.calls, Path(folder)) for threads in (1, 8)}
    if options.json:
        print(json.dumps(results))
        return
    for threads, result in results.items():
        print(f"{threads} threads {result['calls_per_s']:8.0f} calls/s   p99 {result['p99_ms']:6.2f} ms")


if __name__ == "__main__":
    main()
