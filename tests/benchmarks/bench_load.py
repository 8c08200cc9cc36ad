"""A ledger under load: threads, tasks and processes on one file, and a ledger that is full already.

    uv run python tests/benchmarks/bench_load.py                        # 100,000 stored calls
    uv run python tests/benchmarks/bench_load.py --stored 1000000       # the full form, some minutes

Every row is measured in this one run. Absolute figures depend on the disk; the last rows are a ratio, of calls on a
full ledger and on an empty one that take turns. ``--json`` prints one JSON document.
"""

from __future__ import annotations

import argparse
import asyncio
import contextvars
import json
import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider

from sagaspan import Guard
from sagaspan._clock import new_id, now_us
from sagaspan.ledger import transitions
from sagaspan.ledger.records import CallRecord, CallState, RunRecord, RunState
from sagaspan.ledger.store import CallChange, Change, RunChange
from sagaspan.stores.sqlite import SqliteStore
from sagaspan.telemetry import JsonLinesSpanProcessor

BATCH = 1000


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


def in_threads(threads: int, calls: int, folder: Path, *, traced: bool = False) -> dict[str, float]:
    """Calls a second over all threads of one guard, and the latency of one call."""
    name = f"{threads}-{traced}"
    guard = Guard(f"sqlite:///{folder / name}.db", tracer_provider=_provider(folder) if traced else None)
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


def in_tasks(tasks: int, calls: int, folder: Path) -> dict[str, float]:
    """The same from tasks of one event loop."""
    guard = Guard(f"sqlite:///{folder / f'tasks-{tasks}'}.db")
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


def in_processes(processes: int, calls: int, folder: Path) -> dict[str, float]:
    """The same from processes with a run each, on one file; ``slowest_share`` tells whether one of them starves."""
    spawn = multiprocessing.get_context("spawn")
    ready, results = spawn.Barrier(processes + 1), spawn.Queue()
    url = f"sqlite:///{folder / f'processes-{processes}'}.db"
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


def fill(path: Path, calls: int) -> None:
    """A ledger with this many settled calls, ten a run, written by the store itself."""
    store = SqliteStore(path, durability="off")
    changes: list[Change] = []
    for number in range(calls):
        if number % 10 == 0:
            run, audit = transitions.open_run(_run(f"old-{number // 10}"))
            done, done_audit = transitions.move_run(run, transitions.RunEvent.COMPLETE, now_us())
            changes += [RunChange(run, audit), RunChange(done, done_audit, run.version)]
        changes += _settled_call(f"old-{number // 10}", number)
        if len(changes) >= 2 * BATCH:
            assert store.commit(changes, synced=False)
            changes = []
            if number % 100_000 < BATCH:
                print(f"\r{number:,} of {calls:,} calls stored", end="", file=sys.stderr, flush=True)
    assert store.commit(changes, synced=False)
    print(file=sys.stderr)
    store.close()


def _run(name: str) -> RunRecord:
    return RunRecord(
        namespace="default", id=name, name="old", input_fingerprint="", state=RunState.RUNNING, owner="bench",
        created_us=now_us(), started_us=now_us(),
    )  # fmt: skip


def _settled_call(run_id: str, number: int) -> list[Change]:
    now = now_us()
    opened, audit = transitions.open_call(
        CallRecord(
            id=new_id(now), namespace="default", scope=f"run:{run_id}", tool="pay", key=f"{number:064x}",
            key_source="content", idempotency_key=f"{number:052x}", fingerprint=f"{number:064x}", run_id=run_id,
            state=CallState.RUNNING, effect="write", declared_write=True, owner="bench:" + "x" * 60, attempts=1,
            arguments=f'{{"amount":12.5,"card":"c1","order":{number}}}', created_us=now, started_us=now,
        )
    )  # fmt: skip
    settled, settled_audit = transitions.move_call(opened, transitions.CallEvent.SUCCEED, now, result="1")
    return [CallChange(opened, audit), CallChange(settled, settled_audit, opened.version)]


def on_a_full_ledger(stored: int, calls: int, folder: Path) -> dict[str, float]:
    """Median microseconds of a call, of a replay and of a run, on an empty ledger and on one with ``stored`` calls."""
    fill(folder / "full.db", stored)
    guards = {name: Guard(f"sqlite:///{folder / name}.db") for name in ("empty", "full")}
    tools = {name: guard.tool("pay", effect="write")(lambda order: 1) for name, guard in guards.items()}
    took: dict[str, list[float]] = {}

    def timed(what: str, act: Callable[[], object]) -> None:
        started = time.perf_counter()
        act()
        took.setdefault(what, []).append((time.perf_counter() - started) * 1e6)

    def one_run(name: str, number: int) -> None:
        with guards[name].run("bench", id=f"run-{number}"):
            pass

    with guards["empty"].run("bench", id="empty"), guards["full"].run("bench", id="full"):
        for number in range(calls):
            for name, guard in guards.items():
                with guard.run("inner", id=f"inner-{number}"):
                    timed(f"call, {name}", lambda name=name, number=number: tools[name](number))
                timed(f"run, {name}", lambda name=name, number=number: one_run(name, number))
    for guard in guards.values():
        guard.close()
    medians = {what: statistics.median(times[calls // 10 :]) for what, times in took.items()}
    ratios = {f"{what}, ratio": medians[f"{what}, full"] / medians[f"{what}, empty"] for what in ("call", "run")}
    return medians | ratios


def main() -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1000, help="of each thread, task or process")
    parser.add_argument("--stored", type=int, default=100_000, help="calls that the full ledger has")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        loads = {
            "1 thread": in_threads(1, options.calls, folder),
            "8 threads": in_threads(8, options.calls, folder),
            "8 threads, SDK and sink": in_threads(8, options.calls, folder, traced=True),
            "1 task": in_tasks(1, options.calls, folder),
            "8 tasks": in_tasks(8, options.calls, folder),
            "4 processes": in_processes(4, options.calls, folder),
        }
        full = on_a_full_ledger(options.stored, options.calls, folder)
    if options.json:
        print(json.dumps({"load": loads, "stored": options.stored, "full": full}))
        return
    for row, result in loads.items():
        share = f"   slowest/fastest {result['slowest_share']:.2f}" if "slowest_share" in result else ""
        print(
            f"{row:<26} {result['calls_per_s']:8.0f} calls/s   p50 {result['p50_ms']:6.2f} ms   "
            f"p99 {result['p99_ms']:6.2f} ms{share}"
        )
    for row, value in full.items():
        print(f"{row:<26} {value:8.2f}{'x' if 'ratio' in row else ' us'}   ({options.stored:,} stored calls)")


if __name__ == "__main__":
    main()
