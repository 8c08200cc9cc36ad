"""A ledger under load: threads, tasks and processes on one ledger, and what runs that are open keep in memory.

    uv run --all-extras python -m tests.benchmarks.bench_load
    uv run --all-extras python -m tests.servers -- python -m tests.benchmarks.bench_load --store postgres

Every row is measured in this one run. Absolute figures depend on the disk. ``--json`` prints one JSON document.
"""

from __future__ import annotations

import argparse
import asyncio
import contextvars
import gc
import json
import multiprocessing
import statistics
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider
from tests.benchmarks import ledgers
from tests.benchmarks.ledgers import Ledgers

from sagaspan import Guard
from sagaspan.telemetry import JsonLinesSpanProcessor


def _provider(folder: Path) -> TracerProvider:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(JsonLinesSpanProcessor(folder / "traces", service_name="bench"))
    return provider


def _figures(took: Sequence[float], seconds: float) -> dict[str, float]:
    ordered = sorted(took)
    return {
        "calls_per_s": len(ordered) / seconds,
        "p50_ms": statistics.median(ordered) * 1e3,
        "p99_ms": ordered[int(len(ordered) * 0.99)] * 1e3,
    }


def in_threads(threads: int, calls: int, place: Ledgers, *, traced: Path | None = None) -> dict[str, float]:
    """Calls a second over all threads of one guard, and the latency of one call."""
    name = f"threads-{threads}-{traced is not None}"
    guard = Guard(place.new(name), tracer_provider=_provider(traced) if traced else None)
    pay = guard.tool("pay", effect="write")(lambda amount, card, order: 1)
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
    return _figures(took, seconds)


def in_tasks(tasks: int, calls: int, place: Ledgers) -> dict[str, float]:
    """The same from tasks of one event loop."""
    guard = Guard(place.new(f"tasks-{tasks}"))
    took: list[float] = []

    @guard.tool("pay", effect="write")
    async def pay(amount: float, card: str, order: int) -> int:
        return 1

    async def work(first: int) -> None:
        for number in range(first, first + calls):
            started = time.perf_counter()
            await pay(12.5, "c1", number)
            took.append(time.perf_counter() - started)

    async def everything() -> float:
        async with guard.run("bench"):
            await pay(12.5, "c1", -1)
            started = time.perf_counter()
            await asyncio.gather(*(work(task * calls) for task in range(tasks)))
            return time.perf_counter() - started

    seconds = asyncio.run(everything())
    guard.close()
    return _figures(took, seconds)


def _one_process(url: str, number: int, calls: int, ready: object, results: object) -> None:
    guard = Guard(url)
    pay = guard.tool("pay", effect="write")(lambda amount, card, order: 1)
    took = []
    with guard.run("bench", id=f"process-{number}"):
        pay(12.5, "c1", -1)
        ready.wait()  # type: ignore[attr-defined]
        for order in range(calls):
            started = time.perf_counter()
            pay(12.5, "c1", order)
            took.append(time.perf_counter() - started)
    results.put(took)  # type: ignore[attr-defined]
    guard.close()


def in_processes(processes: int, calls: int, place: Ledgers) -> dict[str, float]:
    """The same from processes with a run each, on one file; ``slowest_share`` tells whether one of them starves."""
    spawn = multiprocessing.get_context("spawn")
    ready, results = spawn.Barrier(processes + 1), spawn.Queue()
    url = place.new(f"processes-{processes}")
    workers = [
        spawn.Process(target=_one_process, args=(url, number, calls, ready, results)) for number in range(processes)
    ]
    for worker in workers:
        worker.start()
    ready.wait()
    started = time.perf_counter()
    each = [results.get(timeout=600) for _ in workers]
    seconds = time.perf_counter() - started
    for worker in workers:
        worker.join()
    means = [statistics.fmean(took) for took in each]
    return _figures([one for took in each for one in took], seconds) | {"slowest_share": max(means) / min(means)}


def open_runs(runs: int, place: Ledgers) -> dict[str, float]:
    """What runs that are open, each after one call, keep in memory; in KiB a run."""
    guard = Guard(place.new("open"))
    pay = guard.tool("pay", effect="write")(lambda order: 1)
    opened = []

    def open_one(number: int) -> None:
        run = guard.run("bench", id=f"open-{number}").__enter__()
        pay(number)
        run.deactivate()
        opened.append(run)

    for number in range(-20, 0):  # what is made once
        open_one(number)
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(runs):
        open_one(number)
    gc.collect()
    kept = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    for run in reversed(opened):
        run.activate()
        run.__exit__(None, None, None)
    guard.close()
    return {"runs": runs, "kib": kept / runs / 1024}


def main() -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1000, help="of each thread, task or process")
    parser.add_argument("--runs", type=int, default=1000, help="open at once")
    ledgers.option(parser)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ledgers.ledgers(options.store, Path(name)) as place:
        memory = open_runs(options.runs, place)
        loads = {
            "1 thread": in_threads(1, options.calls, place),
            "8 threads": in_threads(8, options.calls, place),
            "8 threads, SDK and sink": in_threads(8, options.calls, place, traced=Path(name)),
            "1 task": in_tasks(1, options.calls, place),
            "8 tasks": in_tasks(8, options.calls, place),
            "1 process": in_processes(1, options.calls, place),
            "4 processes": in_processes(4, options.calls, place),
        }
    if options.json:
        print(json.dumps({"load": loads, "memory": memory}))
        return
    for row, result in loads.items():
        share = f"   slowest/fastest {result['slowest_share']:.2f}" if "slowest_share" in result else ""
        print(
            f"{row:<26} {result['calls_per_s']:8.0f} calls/s   p50 {result['p50_ms']:6.2f} ms   "
            f"p99 {result['p99_ms']:6.2f} ms{share}"
        )
    print(f"{'an open run':<26} {memory['kib']:8.1f} KiB   (of {memory['runs']:,})")


if __name__ == "__main__":
    main()
