"""Many recoverers beside each other on one ledger: each run is recovered once, and nobody waits for the others.

    uv run --all-extras python -m tests.servers -- python -m tests.proofs.recoverers --store postgres
    uv run --all-extras python -m tests.proofs.recoverers --recoverers 4 --runs 40        # bounded, on SQLite

A process opens many runs and is killed; then real ``sagaspan recover --watch`` processes undo them. It fails unless
each was undone once, and says how long a take-over took, how many found that another one had the run, and, on
PostgreSQL, how often a session was seen waiting for a lock.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from sagaspan import Guard
from tests.proofs import STORE, ledger_on, server_of

ROOT: Final = Path(__file__).parents[2]
SECONDS: Final = 300.0
_WAITING: Final = """
select count(*) filter (where wait_event_type = 'Lock'), count(*) from pg_stat_activity
 where application_name = current_setting('application_name') and pid <> pg_backend_pid() and state = 'active'
"""


def recovered(store: str, recoverers: int, runs: int) -> dict[str, Any]:
    """Leave ``runs`` orphans on the ledger at ``store``, recover them, and tell of it; ``wrong`` is what is."""
    with tempfile.TemporaryDirectory(prefix="recoverers-") as name:
        folder = Path(name)
        effects = folder / "effects"
        environment = {**os.environ, "SAGASPAN_STORE": store, "ORPHANS_EFFECTS": str(effects)}

        def start(*arguments: str) -> subprocess.Popen[bytes]:
            command = [sys.executable, "-m", "tests.proofs.orphans", *arguments]
            return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)

        start("leave", str(runs)).wait(SECONDS)
        files = [folder / f"took-{number}" for number in range(recoverers)]
        started = time.monotonic()
        with _watched(store) as waits:
            processes = [start("recover", str(file)) for file in files]
            try:
                _until(lambda: _lines(effects) >= 2 * runs, processes)
                seconds = time.monotonic() - started
            finally:
                for process in processes:
                    process.send_signal(signal.SIGTERM)
                ended = [process.wait(SECONDS) for process in processes]
        counts = Counter(effects.read_text().split())
        took = [json.loads(file.read_text()) for file in files if file.exists()]
    with Guard(store) as guard:
        states = Counter(str(run.status) for run in guard.runs.list(limit=runs + 1))
    wrong = [f"{what} came {count} times" for what, count in counts.items() if count != 1]
    if states != {"compensated": runs} or any(ended):
        wrong.append(f"the runs are {dict(states)}, and the recoverers ended with {ended}")
    return {"seconds": round(seconds, 1), **_told(took), **waits, "wrong": wrong}


def _told(took: Sequence[Sequence[tuple[float, bool]]]) -> dict[str, Any]:
    had = sorted(seconds for one in took for seconds, taken in one if taken)
    missed = sorted(seconds for one in took for seconds, taken in one if not taken)
    return {
        "taken": [sum(taken for _, taken in one) for one in took],
        "refused": len(missed),
        "taken_ms": _spread(had),
        "refused_ms": _spread(missed),
    }


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    if not seconds:
        return {}
    shares = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {name: round(seconds[min(int(len(seconds) * share), len(seconds) - 1)] * 1e3, 1)
            for name, share in shares.items()}  # fmt: skip


def _lines(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0


def _until(is_over: Callable[[], bool], processes: Sequence[subprocess.Popen[bytes]]) -> None:
    until = time.monotonic() + SECONDS
    while not is_over():
        if time.monotonic() > until or any(process.poll() is not None for process in processes):
            return
        time.sleep(0.02)


@contextlib.contextmanager
def _watched(store: str) -> Iterator[dict[str, int]]:
    """How many sessions were seen at work, a hundred times a second, and how many of them waited for a lock."""
    seen = {"at_work": 0, "waiting_for_a_lock": 0}
    if not store.startswith("postgres"):
        yield {}
        return
    from sagaspan.stores.postgres import PostgresStore

    over = threading.Event()

    def watch() -> None:
        with contextlib.closing(PostgresStore(store)._connect()) as connection:
            while not over.wait(0.01):
                waiting, active = connection.execute(_WAITING).fetchone() or (0, 0)
                seen["at_work"] += active
                seen["waiting_for_a_lock"] += waiting

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def main() -> int:
    """Print what was found; 1 if a run was not recovered once."""
    parser = argparse.ArgumentParser(prog="tests.proofs.recoverers", description=__doc__.split("\n")[0])
    parser.add_argument("--recoverers", type=int, default=8)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--store", help=STORE)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ledger_on(server_of(options.store)) as server:
        found = recovered(server or f"sqlite:///{folder}/ledger.db", options.recoverers, options.runs)
    for name, value in found.items():
        print(f"{name:<20} {value}")
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
