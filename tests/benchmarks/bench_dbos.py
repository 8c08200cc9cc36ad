"""A guarded call beside a step of DBOS, each on a ledger of its own, taking turns in one run.

    uv run --all-extras --group bench python -m tests.benchmarks.bench_dbos

Both do the same for their user: what was done is on disk before the program goes on, and a resume does not do it again.
A workflow of DBOS and a run of sagaspan have ten steps each; the medians of a whole one are compared. ``--json`` prints
one JSON document.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import secrets
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from dbos import DBOS, DBOSConfig
from tests.benchmarks import ledgers
from tests.benchmarks.ledgers import Ledgers

from sagaspan import Guard

STEPS = 10


def _dbos_url(store: str, folder: Path) -> str:
    """A database of its own, for DBOS makes one where there is none."""
    if store == "sqlite":
        return f"sqlite:///{folder / 'dbos.db'}"
    parts = urlsplit(os.environ[ledgers.POSTGRES])
    return urlunsplit(parts._replace(path=f"/dbos_{secrets.token_hex(4)}"))


def _dbos_workflow(url: str) -> Callable[[int], None]:
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": url,
        "run_admin_server": False,
        "log_level": "ERROR",
    }
    DBOS(config=config)

    @DBOS.step()
    def pay(amount: float, card: str, order: int) -> int:
        return 1

    @DBOS.workflow()
    def workflow(number: int) -> None:
        for step in range(STEPS):
            pay(12.5, "c1", number * STEPS + step)

    DBOS.launch()
    return workflow


def _guarded_run(guard: Guard) -> Callable[[int], None]:
    @guard.tool(effect="write")
    def pay(amount: float, card: str, order: int) -> int:
        return 1

    def run(number: int) -> None:
        with guard.run("bench"):
            for step in range(STEPS):
                pay(12.5, "c1", number * STEPS + step)

    return run


def measure(rounds: int, place: Ledgers, dbos_url: str) -> dict[str, float]:
    """Median microseconds a step of each, and how many times longer that of DBOS takes."""
    guard = Guard(place.new("sagaspan"))
    sides = {"sagaspan": _guarded_run(guard), "dbos": _dbos_workflow(dbos_url)}
    took: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        for name, act in sides.items():
            started = time.perf_counter()
            act(number)
            took[name].append((time.perf_counter() - started) * 1e6 / STEPS)
    guard.close()
    DBOS.destroy()
    medians = {name: statistics.median(times[rounds // 10 :]) for name, times in took.items()}
    return medians | {"ratio": medians["dbos"] / medians["sagaspan"]}


def main() -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    ledgers.option(parser)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    logging.getLogger("dbos").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder, ledgers.ledgers(options.store, Path(folder)) as place:
        figures = measure(options.rounds, place, _dbos_url(options.store, Path(folder)))
    if options.json:
        print(json.dumps(figures))
        return
    print(f"sagaspan {figures['sagaspan']:8.0f} us a step")
    print(f"dbos     {figures['dbos']:8.0f} us a step   {figures['ratio']:.2f}x")


if __name__ == "__main__":
    main()
