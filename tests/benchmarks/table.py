"""The speed table of ``docs/performance.md``: every row of it measured in one run, on SQLite and on PostgreSQL.

    uv run --all-extras --group bench python -m tests.benchmarks.table            # about 15 minutes; writes the page
    uv run --all-extras --group bench python -m tests.benchmarks.table --quick    # about 3; only prints

A PostgreSQL server of its own is started, with fsync, unless ``SAGASPAN_TEST_POSTGRES`` names one. Each benchmark is a
process of its own; one that fails leaves its rows unmeasured, and the exit code is 1. ``--json FILE`` keeps the
figures, and ``--from FILE`` makes the page of such a file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.benchmarks import ledgers, table_page
from tests.own_servers import ended_by_sigterm, postgres_server

PAGE: Final = Path(__file__).parents[2] / "docs" / "performance.md"
LIMIT_SECONDS: Final = 600


@dataclass(frozen=True)
class Job:
    """One benchmark: a module, and its arguments in both forms."""

    name: str
    module: str
    full: str
    quick: str
    store: str | None = None

    def command(self, *, quick: bool) -> list[str]:
        """What is executed; it prints JSON."""
        store = ["--store", self.store] if self.store else []
        arguments = (self.quick if quick else self.full).split()
        return [sys.executable, "-m", f"tests.benchmarks.{self.module}", *store, *arguments]


def _on_both(name: str, module: str, full: str, quick: str) -> list[Job]:
    return [Job(f"{name}, {store}", module, f"{full} --json", f"{quick} --json", store) for store in ledgers.STORES]


JOBS: Final = [
    *_on_both("limits", "bench_limits", "--times 500", "--times 100"),
    *_on_both("calls", "bench_calls", "--calls 1000", "--calls 200"),
    *_on_both("dbos", "bench_dbos", "--rounds 100", "--rounds 20"),
    *_on_both("load", "bench_load", "--calls 1000", "--calls 100"),
    *_on_both("growth", "bench_growth", "--stored 1000000 --calls 500", "--stored 20000 --calls 100"),
    Job("budgets", "bench_budgets", "--calls 500 --stored 100000 --json", "--calls 50 --stored 10000 --json"),
    Job("langchain", "bench_langchain", "--calls 1000 --json", "--calls 100 --json"),
    Job("telemetry", "bench_telemetry", "--spans 120000 --rows 1000000 --kills 20 --json",
        "--spans 12000 --rows 100000 --kills 2 --json"),
    Job("exit", "bench_exit", "--spans 50000 --json", "--spans 5000 --json"),
    Job("queries", "bench_telemetry", "--only queries --rows 10000000 --json", "--only queries --rows 200000 --json"),
]  # fmt: skip


def measure(jobs: list[Job], *, quick: bool) -> dict[str, Any]:
    """What every job found, by its name; None of one that failed."""
    found: dict[str, Any] = {}
    for number, job in enumerate(jobs, 1):
        print(f"[{number}/{len(jobs)}] {job.name} ...", end=" ", file=sys.stderr, flush=True)
        started = time.perf_counter()
        try:
            command = job.command(quick=quick)
            done = subprocess.run(command, capture_output=True, timeout=LIMIT_SECONDS, check=True)
            found[job.name] = json.loads(done.stdout)
            said = f"{time.perf_counter() - started:.0f} s"
        except (subprocess.SubprocessError, ValueError) as error:
            found[job.name] = None
            last = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip().splitlines()[-1:]
            said = f"FAILED: {last[0] if last else error}"
        print(said, file=sys.stderr, flush=True)
    return found


@contextlib.contextmanager
def _server() -> Iterator[None]:
    if ledgers.POSTGRES in os.environ:
        yield
        return
    with postgres_server(fsync=True) as server:
        os.environ[ledgers.POSTGRES] = server.url
        yield


def main() -> int:
    """Measure, write the page and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", help="benchmarks whose name has this text; prints, and writes nothing")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE")
    options = parser.parse_args()
    ended_by_sigterm()
    if options.source:
        found = json.loads(options.source.read_text())
    else:
        jobs = [job for job in JOBS if (options.only or "") in job.name]
        load = os.getloadavg()[0]
        started = time.perf_counter()
        with _server():
            found = measure(jobs, quick=options.quick)
            found["machine"] = table_page.machine() | {
                "load": load, "seconds": time.perf_counter() - started, "quick": options.quick
            }  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    text = table_page.text(found)
    print(text)
    if not options.quick and not options.only:
        table_page.write(PAGE, text)
    return 1 if None in found.values() else 0


if __name__ == "__main__":
    sys.exit(main())
