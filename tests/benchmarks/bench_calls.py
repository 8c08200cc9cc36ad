"""What a guarded call costs beside the same SQL by hand, in one run: ``uv run python tests/benchmarks/bench_calls.py``.

The two sides take turns (A B A B ...), each on a ledger of its own in the same folder, and the medians are compared:
absolute figures depend on the disk, the ratio much less. ``--json`` prints one JSON document.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider

from sagaspan import Guard
from sagaspan._clock import new_id, now_us
from sagaspan.ledger import transitions
from sagaspan.ledger.records import CallRecord, CallState, RunRecord, RunState
from sagaspan.ledger.store import CallChange, RunChange
from sagaspan.stores import _columns as columns
from sagaspan.stores import sqlite
from sagaspan.telemetry import JsonLinesSpanProcessor


class ByHand:
    """The statements of one guarded call, written out: a synced claim and an unsynced settle."""

    def __init__(self, path: Path) -> None:
        store = sqlite.SqliteStore(path)
        run, audit = transitions.open_run(_run())
        store.commit([RunChange(run, audit)], synced=True)
        self._run = run
        self._connection = store._open()
        self._number = 0

    def __call__(self) -> None:
        self._number += 1
        record, audit = transitions.open_call(_record(self._run.id, self._number))
        settled, settled_audit = transitions.move_call(record, transitions.CallEvent.SUCCEED, now_us(), result="1")
        claim, settle = CallChange(record, audit, claims=True, run_epoch=1), CallChange(settled, settled_audit, 1)
        row = columns.call_values(record)
        claim_values = (*row[: sqlite._CLAIM_SEQ], *row[sqlite._CLAIM_SEQ + 1 :], "default", self._run.id, 1, 0)
        audit_values = [columns.audit_values(claim.audit), columns.audit_values(settle.audit)]
        settle_values = (*columns.call_changes(settled), 1)
        execute = self._connection.execute
        self.started = time.perf_counter()
        execute("pragma synchronous = full")
        execute("begin immediate")
        execute(sqlite._APPEND_AUDIT, audit_values[0])
        execute(sqlite._CLAIM_CALL, claim_values)
        execute("commit")
        execute("pragma synchronous = normal")
        execute("begin immediate")
        execute(sqlite._APPEND_AUDIT, audit_values[1])
        execute(sqlite._UPDATE_CALL, settle_values)
        execute("commit")


def _run() -> RunRecord:
    return RunRecord(
        namespace="default", id="bench", name="bench", input_fingerprint="", state=RunState.RUNNING, owner="bench",
        created_us=now_us(), started_us=now_us(),
    )  # fmt: skip


def _record(run_id: str, number: int) -> CallRecord:
    now = now_us()
    return CallRecord(
        id=new_id(now), namespace="default", scope=f"run:{run_id}", tool="pay", key=f"{number:064x}",
        key_source="content",
        idempotency_key="k" * 52, fingerprint=f"{number:064x}", run_id=run_id, state=CallState.RUNNING, effect="write",
        declared_write=True, arguments=f'{{"amount":12.5,"card":"c1","order":{number}}}', owner="bench:" + "x" * 60,
        attempts=1, created_us=now, started_us=now,
    )  # fmt: skip


def _timed(function: Callable[[], object]) -> float:
    started = time.perf_counter()
    function()
    return (time.perf_counter() - started) * 1e6


def measure(calls: int, folder: Path) -> dict[str, float]:
    """Median microseconds a call: by hand, guarded, guarded with SDK and sink, guarded async, replayed."""
    by_hand = ByHand(folder / "hand.db")
    plain = Guard(f"sqlite:///{folder / 'plain.db'}")
    provider = TracerProvider()
    provider.add_span_processor(JsonLinesSpanProcessor(folder / "traces", service_name="bench"))
    traced = Guard(f"sqlite:///{folder / 'traced.db'}", tracer_provider=provider)
    asynchronous = Guard(f"sqlite:///{folder / 'async.db'}")

    def pay(amount: float, card: str, order: int) -> int:
        return 1

    async def apay(amount: float, card: str, order: int) -> int:
        return 1

    pay_plain = plain.tool(effect="write")(pay)
    pay_traced = traced.tool(effect="write")(pay)
    pay_async = asynchronous.tool(effect="write")(apay)
    names = ("by hand", "guarded", "with SDK and sink", "async", "replayed")
    took: dict[str, list[float]] = {name: [] for name in names}
    loop = asyncio.new_event_loop()

    async def one_async(number: int) -> float:
        async with asynchronous.run("bench"):
            started = time.perf_counter()
            await pay_async(12.5, "c1", number)
            return (time.perf_counter() - started) * 1e6

    with plain.run("bench"), traced.run("bench"):
        for number in range(calls):
            by_hand()
            took["by hand"].append((time.perf_counter() - by_hand.started) * 1e6)
            took["guarded"].append(_timed(lambda n=number: pay_plain(12.5, "c1", n)))
            took["with SDK and sink"].append(_timed(lambda n=number: pay_traced(12.5, "c1", n)))
            took["replayed"].append(_timed(lambda n=number: pay_plain(12.5, "c1", n)))
            took["async"].append(loop.run_until_complete(one_async(number)))
    loop.close()
    plain.close(), traced.close(), asynchronous.close()
    return {name: statistics.median(times[calls // 10 :]) for name, times in took.items()}


def main() -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    logging.getLogger("sagaspan").setLevel(logging.ERROR)  # a replay warns, here on purpose
    with tempfile.TemporaryDirectory() as folder:
        medians = measure(options.calls, Path(folder))
    if options.json:
        floor = medians["by hand"]
        print(json.dumps({name: {"p50_us": value, "ratio": value / floor} for name, value in medians.items()}))
        return
    for name, value in medians.items():
        print(f"{name:<20} {value:8.0f} us   {value / medians['by hand']:5.2f}x")


if __name__ == "__main__":
    main()
