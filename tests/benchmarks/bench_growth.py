"""A ledger that is full: what a call costs on it, what it takes on disk, and what forgetting gives back.

    uv run --all-extras python -m tests.benchmarks.bench_growth                        # 100,000 stored calls
    uv run --all-extras python -m tests.benchmarks.bench_growth --stored 1000000       # the full form, two minutes
    uv run --all-extras python -m tests.servers -- python -m tests.benchmarks.bench_growth --store postgres --prune

The stored calls are one run of ten real calls (arguments and results of 50 bytes, one with a cost), copied many times
with other ids. Calls on the full ledger and on an empty one take turns, and the medians are compared. ``--prune``
forgets the older half, as ``sagaspan prune`` does, and says how long that took and what the disk has back. ``--json``
prints one JSON document.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.benchmarks import ledgers
from tests.benchmarks.ledgers import Execute, Ledgers

from sagaspan import Guard
from sagaspan.stores import _columns as columns

CALLS_A_RUN = 10
RUNS_AT_ONCE = 10_000
_SPREAD_US = 1_000_000
"""Between two runs: a million calls are a bit more than a day."""
_AUDIT = (*columns.AUDIT_COLUMNS, "number", "content", "hash")
_TABLES = {
    "runs": ("created_us", columns.RUN_COLUMNS), "calls": ("seq", columns.CALL_COLUMNS), "audit": ("seq", _AUDIT),
    "usage": ("at_us", columns.USAGE_COLUMNS),
}  # fmt: skip


def fill(url: str, calls: int, place: Ledgers) -> None:
    """Runs of ten calls, the oldest first, all settled long ago."""
    with Guard(url) as guard:
        pay = guard.tool("pay", effect="write", cost="0.01 USD")(_pay)
        with guard.run("past", id="past", user="42", tenant="acme"):
            for number in range(CALLS_A_RUN):
                pay(12.5, "card-4242424242424242", number)
    runs = calls // CALLS_A_RUN
    with place.sql(url) as execute:
        for first in range(1, runs + 1, RUNS_AT_ONCE):
            last = min(first + RUNS_AT_ONCE - 1, runs)
            execute("begin")
            for table, (order, names) in _TABLES.items():
                _copy(execute, place, table, order, names, first, last, runs)
            execute("commit")
            print(f"\r{last * CALLS_A_RUN:,} of {calls:,} calls stored", end="", file=sys.stderr, flush=True)
        execute("analyze")
    print(file=sys.stderr)


def _pay(amount: float, card: str, order: int) -> dict[str, object]:
    return {"paid": amount, "receipt": f"r-{order:032d}"}


def _copy(
    execute: Execute, place: Ledgers, table: str, order: str, names: tuple[str, ...], first: int, last: int, runs: int
) -> None:
    instead = {
        "run_id": "'old-' || nth", "scope": "'run:old-' || nth",
        "call_id": place.made_id.format(number="nth", column="t.call_id"),
        "id": "'old-' || nth" if table == "runs" else place.made_id.format(number="nth", column="t.id"),
    } | {name: f't."{name}" - {_SPREAD_US} * ({runs} + 1 - nth)' for name in names if name.endswith("_us")}  # fmt: skip
    values = ", ".join(instead.get(name, f't."{name}"') for name in names)
    listed = ", ".join(f'"{name}"' for name in names)
    run = "id" if table == "runs" else "run_id"
    execute(
        f"with recursive copies (nth) as (select cast({first} as bigint) "
        f"union all select nth + 1 from copies where nth < {last}) "
        f"insert into {table} ({listed}) "
        f"select {values} from copies cross join {table} t where t.namespace = 'default' and t.{run} = 'past' "
        f"order by nth, t.{order}"
    )


def calls_in_turns(full: str, calls: int, place: Ledgers) -> dict[str, float]:
    """Median microseconds of a call and of a run, on an empty ledger and on the full one."""
    guards = {"empty": Guard(place.new("empty")), "full": Guard(full)}
    tools = {name: guard.tool("pay", effect="write", cost="0.01 USD")(_pay) for name, guard in guards.items()}
    took: dict[str, list[float]] = {}

    def timed(what: str, act: Callable[[], object]) -> None:
        started = time.perf_counter()
        act()
        took.setdefault(what, []).append((time.perf_counter() - started) * 1e6)

    def one_run(name: str, number: int) -> None:
        with guards[name].run("bench", id=f"run-{number}"):
            pass

    for number in range(calls):
        for name, guard in guards.items():
            with guard.run("inner", id=f"inner-{number}", user="42", tenant="acme"):
                timed(f"call, {name}", lambda name=name, number=number: tools[name](12.5, "c1", number))
            timed(f"run, {name}", lambda name=name, number=number: one_run(name, number))
    for guard in guards.values():
        guard.close()
    medians = {what: statistics.median(times[calls // 10 :]) for what, times in took.items()}
    ratios = {f"{what}, ratio": medians[f"{what}, full"] / medians[f"{what}, empty"] for what in ("call", "run")}
    return medians | ratios


def pruned(full: str, stored: int, place: Ledgers, store: str) -> dict[str, float]:
    """Forget the older half; how fast, and what the disk has then, at once and after the house is put in order."""
    with Guard(full) as guard:
        started = time.perf_counter()
        done = guard.prune(older_than=_SPREAD_US * stored / CALLS_A_RUN / 2 / 1e6)
        seconds = time.perf_counter() - started
    sizes = {"after": place.sizes(full)["all"]}
    with place.sql(full) as execute:
        started = time.perf_counter()
        execute("vacuum")
        sizes["after vacuum"] = place.sizes(full)["all"]
        if store == "postgres":
            sizes["vacuum seconds"] = round(time.perf_counter() - started)
    return {"calls": done.calls, "calls_per_s": done.calls / seconds, **sizes}


def main() -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--stored", type=int, default=100_000)
    parser.add_argument("--prune", action="store_true")
    ledgers.option(parser)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ledgers.ledgers(options.store, Path(folder)) as place:
        full = place.new("full")
        fill(full, options.stored, place)
        sizes = place.sizes(full)
        found: dict[str, dict[str, float]] = {
            "us": calls_in_turns(full, options.calls, place),
            "bytes_a_call": {table: size / options.stored for table, size in sizes.items() if size > options.stored},
        }
        if options.prune:
            found["pruned"] = pruned(full, options.stored, place, options.store)
    if options.json:
        print(json.dumps({"stored": options.stored, **found}))
        return
    for title, rows in found.items():
        for name, value in rows.items():
            print(f"{title:<14} {name:<20} {value:14,.2f}")


if __name__ == "__main__":
    main()
