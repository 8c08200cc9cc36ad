"""A thousand workers on one PostgreSQL: calls a second, what they wait for there, and what a hot budget row costs.

    uv run --all-extras python -m tests.benchmarks.simulation                    # 4 processes of 250 threads
    uv run --all-extras python -m tests.benchmarks.simulation --workers 25 --seconds 2
    uv run --all-extras python -m tests.benchmarks.simulation --processes 16 --workers 1 --flush-ms 10

Every worker has a run of its own and calls as fast as it is answered; agents that think for a second between two calls
are that many more. The kinds differ in what is counted: nothing, a budget of each worker's own user, one row that all
calls share, that row in slices (``?slices=N``), and sixteen budgets instead. Ten times a second it is asked what the
sessions of the server are waiting for. At the end the books are compared with the calls. ``--flush-ms`` makes each
flush of the server take longer, as one over a network or to a synchronous standby does. A server of its own is started,
with fsync, unless ``SAGASPAN_TEST_POSTGRES`` names one. ``--json`` prints one JSON document.
"""

from __future__ import annotations

import argparse
import contextlib
import contextvars
import json
import multiprocessing
import os
import statistics
import sys
import threading
import time
from collections import Counter
from typing import Any, Final

from tests.benchmarks import ledgers
from tests.benchmarks.ledgers import PostgresLedgers
from tests.own_servers import ended_by_sigterm, postgres_server

from sagaspan import Guard

LIMIT: Final = "1000000 USD"
COST_NANO_USD: Final = 10_000_000
TENANTS: Final = 16
IN_SLICES: Final = "the hot row in slices"
KINDS: Final[dict[str, dict[str, str]]] = {
    "no budgets": {}, "a row of each user": {"user:*": LIMIT}, "one hot row": {"tenant:*": LIMIT},
    IN_SLICES: {"tenant:*": LIMIT}, f"{TENANTS} rows": {"tenant:*": LIMIT},
}  # fmt: skip
_WAITS: Final = """
select coalesce(wait_event_type || ' ' || wait_event, 'nothing (works)'), count(*)
  from pg_stat_activity
 where backend_type = 'client backend' and state = 'active' and pid <> pg_backend_pid() group by 1
"""


class _Worker:
    """Calls of one run until the time is over; what they took, and what went wrong."""

    def __init__(self, guard: Guard, number: int, *, tenants: int) -> None:
        self._guard = guard
        self._about = {"id": f"w-{number}", "user": str(number), "tenant": f"acme-{number % tenants}"}
        self.took: list[float] = []
        self.failed: Counter[str] = Counter()

    def work(self, ready: Any, ends: threading.Event) -> None:
        pay = self._guard.tool("pay", effect="write", cost="0.01 USD", repeat="new", loop=False)(lambda order: order)
        with self._guard.run("worker", **self._about):
            ready.wait()
            while not ends.is_set():
                started = time.perf_counter()
                try:
                    pay(len(self.took))
                except Exception as error:
                    self.failed[type(error).__name__] += 1
                else:
                    self.took.append(time.perf_counter() - started)


def _process(url: str, kind: str, first: int, workers: int, seconds: float, ready: Any, results: Any) -> None:
    ends = threading.Event()
    with Guard(url, budgets=KINDS[kind] or None) as guard:
        tenants = TENANTS if kind == f"{TENANTS} rows" else 1
        all_of = [_Worker(guard, number, tenants=tenants) for number in range(first, first + workers)]
        here = threading.Barrier(workers + 1)
        threads = [
            threading.Thread(target=contextvars.copy_context().run, args=(one.work, here, ends)) for one in all_of
        ]
        for thread in threads:
            thread.start()
        ready.wait()
        here.wait()
        started = time.perf_counter()
        time.sleep(seconds)
        within = sum(len(one.took) for one in all_of) / (time.perf_counter() - started)
        ends.set()
        for thread in threads:
            thread.join()
    failed = sum((one.failed for one in all_of), Counter())
    results.put((within, [took for one in all_of for took in one.took], dict(failed)))


def simulate(
    url: str, kind: str, processes: int, workers: int, seconds: float, place: PostgresLedgers
) -> dict[str, Any]:
    """One kind: its figures, and what the sessions were seen to wait for."""
    spawn = multiprocessing.get_context("spawn")
    ready, results = spawn.Barrier(processes + 1), spawn.Queue()
    started = [
        spawn.Process(target=_process, args=(url, kind, number * workers, workers, seconds, ready, results))
        for number in range(processes)
    ]
    for process in started:
        process.start()
    ready.wait()
    waits, longest = _sampled(place, url, seconds)
    found = [results.get(timeout=600) for _ in started]
    for process in started:
        process.join()
    took = sorted(one for _, each, _ in found for one in each)
    seen = sum(waits.values())
    return {
        "calls_per_s": sum(rate for rate, _, _ in found),
        "p50_ms": statistics.median(took) * 1e3,
        "p99_ms": took[int(len(took) * 0.99)] * 1e3,
        "failed": dict(sum((Counter(failed) for *_, failed in found), Counter())),
        "longest_queue": longest,
        "sessions": {what: round(count / seen, 3) for what, count in waits.most_common(6)} if seen else {},
        "books": _books(place, url, len(took)),
    }


def _sampled(place: PostgresLedgers, url: str, seconds: float) -> tuple[Counter[str], int]:
    """What sessions waited for, counted ten times a second, and the most that waited for a lock at once."""
    waits: Counter[str] = Counter()
    longest = 0
    until = time.monotonic() + seconds
    with place.sql(url) as execute:
        while time.monotonic() < until:
            waits.update(dict(execute(_WAITS)))
            longest = max(longest, execute("select count(*) from pg_locks where not granted")[0][0])
            time.sleep(0.1)
    return waits, longest


def _books(place: PostgresLedgers, url: str, calls: int) -> str:
    """Whether the ledger has every call once, and the budgets what they cost."""
    with place.sql(url) as execute:
        ((done,),) = execute("select count(*) from calls where state = 'done'")
        ((rows, spent, reserved, beyond),) = execute(
            "select count(*), coalesce(sum(spent), 0)::bigint, coalesce(sum(reserved), 0)::bigint, "
            "count(*) filter (where spent + reserved > cap) from accounts"
        )
    wrong = done != calls or reserved or beyond or (rows and spent != done * COST_NANO_USD)
    return f"{'WRONG: ' if wrong else ''}{done} done of {calls}, {rows} budgets, {reserved} reserved, {beyond} beyond"


def main() -> int:
    """Print what was found; 1 if the books are wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--workers", type=int, default=250, help="of each process")
    parser.add_argument("--seconds", type=float, default=15, help="of each kind")
    parser.add_argument("--slices", type=int, default=64, help="of the hot row")
    parser.add_argument("--flush-ms", type=int, default=0, help="how much longer a flush takes, as over a network")
    parser.add_argument("--kind", action="append", choices=KINDS, help="only this one, or these")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    ended_by_sigterm()
    found = {}
    with contextlib.ExitStack() as stack:
        server = os.environ.get(ledgers.POSTGRES) or stack.enter_context(postgres_server(fsync=True)).url
        place = PostgresLedgers(server)
        stack.callback(place.close)
        for number, kind in enumerate(options.kind or KINDS):
            print(f"{kind} ...", file=sys.stderr, flush=True)
            url = place.new(f"simulation_{number}")
            url += f"&slices={options.slices}" if kind == IN_SLICES else ""
            if options.flush_ms:
                url += f"&options=-c%20commit_siblings%3D0%20-c%20commit_delay%3D{options.flush_ms * 1000}"
            found[kind] = simulate(url, kind, options.processes, options.workers, options.seconds, place)
            if not options.json:
                _show(kind, found[kind])
    if options.json:
        print(json.dumps(found))
    return 1 if any(one["books"].startswith("WRONG") for one in found.values()) else 0


def _show(kind: str, one: dict[str, Any]) -> None:
    sessions = ", ".join(f"{what} {share:.0%}" for what, share in one["sessions"].items())
    print(
        f"{kind:<20} {one['calls_per_s']:7.0f} calls/s   p50 {one['p50_ms']:7.0f} ms   p99 {one['p99_ms']:7.0f} ms   "
        f"failed {one['failed'] or 0}   at most {one['longest_queue']} wait for a lock\n"
        f"{'':<20} sessions wait for: {sessions}\n{'':<20} books: {one['books']}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
