"""What metering a model's call costs, and budgets of a tool: ``uv run python -m tests.benchmarks.bench_budgets``.

Two questions. Beside the bare client: the OpenAI SDK asks a server on the loopback, bare, guarded by ``guard.wrap`` and
metered by hand in turns (A B C A B C ...), whole answers and streams. Against the number of calls in the ledger: a
guarded client's call, a metered one without a client, and a guarded tool's, with none and with ``--stored`` calls
(100,000; 1,000,000 takes a minute to fill and 2 GB), also in turns. ``--json`` prints one JSON document. Absolute
figures depend on the disk and on who else works; the ratios much less.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.providers.replies import Reply
from tests.providers.server import ModelServer

from sagaspan import Guard
from sagaspan.stores import _columns as columns

PRICES = {"bench": {"input": 1, "output": 10}}
BUDGETS = {
    "user:*": "1000000 USD/day", "tenant:acme": "1000000 USD", "tool:*": "1000000 USD/month", "model:*": "100M calls",
}  # fmt: skip
BATCH = 10_000
CHUNKS = 200


def _timed(function: Callable[[], object]) -> float:
    started = time.perf_counter()
    function()
    return (time.perf_counter() - started) * 1e6


def in_turns(calls: int, sides: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median microseconds of each side; the first tenth warms up."""
    took: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(calls):
        for name, side in sides.items():
            took[name].append(_timed(side))
    return {name: statistics.median(times[calls // 10 :]) for name, times in took.items()}


def metering(guard: Guard) -> Callable[[], object]:
    """A metered call of a model without a client."""

    def call() -> None:
        with guard.llm_call("bench", input_tokens=1000, max_output_tokens=500) as made:
            made.record_usage(input_tokens=900, output_tokens=400)

    return call


def asking(client: Any, **more: Any) -> Callable[[], object]:
    """One question, and its answer read to the end."""
    asked = {"model": "bench", "messages": [{"role": "user", "content": "hello"}], "max_completion_tokens": 500, **more}

    def ask() -> object:
        answer = client.chat.completions.create(**asked)
        return list(answer) if more.get("stream") else answer

    return ask


def beside_the_client(calls: int, folder: Path, server: ModelServer) -> dict[str, float]:
    """The bare SDK, the same object from ``guard.wrap``, and a call metered by hand; under three budgets."""
    guard = Guard(f"sqlite:///{folder / 'client.db'}", prices=PRICES, budgets=BUDGETS)
    bare = server.openai()
    guarded, ask = guard.wrap(bare), asking(bare)

    def metered() -> None:
        with guard.llm_call("bench", input_tokens=1000, max_output_tokens=500) as call:
            call.record_usage(ask())

    with guard.run("bench", user="42", tenant="acme"):
        medians = in_turns(
            calls, {"bare client": ask, "guard.wrap(client)": asking(guarded), "metered by hand": metered}
        )
        server.default = Reply(text="word " * CHUNKS)
        streams = {"bare client": asking(bare, stream=True), "guard.wrap(client)": asking(guarded, stream=True)}
        took = in_turns(max(calls // 10, 20), streams)
        server.default = Reply()
    return medians | {f"{name}, a stream of {CHUNKS} pieces": value for name, value in took.items()}


def fill(path: Path, stored: int) -> None:
    """Calls as they were made, many times over: the rows of one, with other ids."""
    guard = Guard(f"sqlite:///{path}", prices=PRICES, budgets=BUDGETS)
    with guard.run("past", id="past", user="42", tenant="acme"):
        metering(guard)()
    store = guard._store
    (record,) = store.calls_of("default", "past")
    (claimed, settled) = (row for row in store.audit_of("default", "past") if row.call_id == record.id)
    guard.close()
    insert, audit = _insert("calls", columns.CALL_COLUMNS), _insert("audit", columns.AUDIT_COLUMNS)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("pragma synchronous = off")
        (usage,) = connection.execute(f"select {', '.join(columns.USAGE_COLUMNS)} from usage")
        for numbers in _batches(stored):
            copies = [replace(record, id=f"{n:032x}", key=f"{n:064x}", scope=f"run:past-{n // 20}") for n in numbers]
            connection.execute("begin")
            connection.executemany(insert, [columns.call_values(copy) for copy in copies])
            rows = [replace(row, call_id=copy.id) for copy in copies for row in (claimed, settled)]
            connection.executemany(audit, [columns.audit_values(row) for row in rows])
            connection.executemany(_insert("usage", columns.USAGE_COLUMNS), [(copy.id, *usage[1:]) for copy in copies])
            connection.execute("commit")


def _insert(table: str, names: Sequence[str]) -> str:
    return f"insert into {table} ({', '.join(names)}) values ({', '.join('?' * len(names))})"


def _batches(stored: int) -> Iterator[Sequence[int]]:
    for start in range(1, stored + 1, BATCH):
        yield range(start, min(start + BATCH, stored + 1))


def against_the_ledger(calls: int, stored: int, folder: Path, server: ModelServer) -> dict[str, float]:
    """Metering and guarding, over an empty ledger and over one with so many calls."""
    fill(folder / "full.db", stored)
    sides: dict[str, Callable[[], object]] = {}
    with contextlib.ExitStack() as stack:
        for name, ledger in (("no calls", "empty.db"), (f"{stored:,} calls", "full.db")):
            guard = stack.enter_context(Guard(f"sqlite:///{folder / ledger}", prices=PRICES, budgets=BUDGETS))
            bare = stack.enter_context(Guard(f"sqlite:///{folder / ledger}"))
            sides[f"metered, {name}"] = _in_run(stack, guard, metering(guard))
            sides[f"guard.wrap(client), {name}"] = _in_run(stack, guard, asking(guard.wrap(server.openai())))
            act = guard.tool("act", effect="write", cost="0.01 USD", repeat="new", loop=False)(lambda: None)
            sides[f"tool with 3 budgets, {name}"] = _in_run(stack, guard, act)
            plain = bare.tool("plain", effect="write", repeat="new", loop=False)(lambda: None)
            sides[f"tool without, {name}"] = _in_run(stack, bare, plain)
        return in_turns(calls, sides)


def _in_run(stack: contextlib.ExitStack, guard: Guard, call: Callable[[], object]) -> Callable[[], object]:
    """``call`` as one of a run of its own, which stays open."""
    run = guard.run("bench", user="42", tenant="acme")
    stack.enter_context(run)
    run.deactivate()
    stack.callback(run.activate)

    def within() -> None:
        run.activate()
        try:
            call()
        finally:
            run.deactivate()

    return within


def main() -> None:
    """Print the tables, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--stored", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    logging.getLogger("sagaspan").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder, ModelServer() as server:
        medians = beside_the_client(options.calls, Path(folder), server)
        medians |= against_the_ledger(options.calls, options.stored, Path(folder), server)
    if options.json:
        print(json.dumps(medians))
        return
    for name, value in medians.items():
        print(f"{name:<44} {value:8.0f} us")


if __name__ == "__main__":
    main()
