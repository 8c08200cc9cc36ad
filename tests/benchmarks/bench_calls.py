"""What a guarded call costs beside the same SQL by hand, in one run: ``python -m tests.benchmarks.bench_calls``.

By hand are the library's own statements with its own values: they are recorded from real calls, and executed on a copy
of that ledger. Each kind of call takes turns with its twin (A B A B ...), each on a ledger of its own in the same
folder or on the same server, and the medians are compared: absolute figures depend on the disk, the ratios much less.
``--json`` prints one JSON document.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from tests.benchmarks import ledgers
from tests.benchmarks.ledgers import Ledgers

from sagaspan import Guard
from sagaspan.telemetry import JsonLinesSpanProcessor

BUDGETS = {"user:*": "1000000 USD/day", "tenant:acme": "1000000 USD", "tool:*": "1000000 USD/month"}
_DIFFERENT = 100  # more than the signals of a run in which loops are looked for
Side = Callable[[int], float]
"""One call with a number of its own; how many microseconds it took."""


def by_hand(calls: int, place: Ledgers, name: str, stack: contextlib.ExitStack, **options: Any) -> Side:
    """The statements of ``calls`` real calls, to be executed on a copy of the ledger as it was before them."""
    guard = Guard(place.new(f"{name}-recorded"), **options)
    pay = guard.tool(effect="write", cost="0.01 USD")(_pay)
    recorded = []
    with guard, guard.run("bench", user="42", tenant="acme"):
        pay(12.5, "c1", -1)
        execute = stack.enter_context(place.twin(guard._store, name))
        for number in range(calls):
            with place.recording(guard._store) as statements:
                pay(12.5, "c1", number)
            recorded.append(statements)

    def one(number: int) -> float:
        statements = recorded[number]
        started = time.perf_counter()
        for statement in statements:
            execute(statement)
        return (time.perf_counter() - started) * 1e6

    return one


def _pay(amount: float, card: str, order: int) -> int:
    return 1


async def _apay(amount: float, card: str, order: int) -> int:
    return 1


def guarded(guard: Guard, stack: contextlib.ExitStack, **policy: Any) -> Side:
    """Calls of a tool in one run, which stays open; a number that comes again is answered from the ledger."""
    stack.enter_context(guard)
    pay = guard.tool("pay", effect="write", cost="0.01 USD", **policy)(_pay)
    run = guard.run("bench", user="42", tenant="acme")
    stack.enter_context(run)
    run.deactivate()
    stack.callback(run.activate)

    def one(number: int) -> float:
        run.activate()
        started = time.perf_counter()
        pay(12.5, "c1", number)
        took = (time.perf_counter() - started) * 1e6
        run.deactivate()
        return took

    return one


def replayed(guard: Guard, stack: contextlib.ExitStack) -> Side:
    """As ``guarded``, of calls that the run has made already."""
    again = guarded(guard, stack)
    for number in range(_DIFFERENT):
        again(number)
    return lambda number: again(number % _DIFFERENT)


def awaited(guard: Guard, stack: contextlib.ExitStack) -> Side:
    """As ``guarded``, of an async tool in a running loop."""
    stack.enter_context(guard)
    loop = asyncio.new_event_loop()
    stack.callback(loop.close)
    pay = guard.tool("pay", effect="write", cost="0.01 USD")(_apay)

    async def call(number: int) -> float:
        async with guard.run("bench", user="42", tenant="acme"):
            started = time.perf_counter()
            await pay(12.5, "c1", number)
            return (time.perf_counter() - started) * 1e6

    return lambda number: loop.run_until_complete(call(number))


def in_turns(side: Side, hand: Side, calls: int) -> tuple[float, float]:
    """Median microseconds of both, which take turns; the first tenth warms up."""
    took = [(side(number), hand(number)) for number in range(calls)][calls // 10 :]
    ours, by_hand = zip(*took, strict=True)
    return statistics.median(ours), statistics.median(by_hand)


def measure(calls: int, place: Ledgers, folder: Path) -> dict[str, tuple[float, float]]:
    """Median microseconds a call of each kind, and of the same SQL by hand."""
    provider = TracerProvider()
    provider.add_span_processor(JsonLinesSpanProcessor(folder / "traces", service_name="bench"))
    rows: dict[str, tuple[dict[str, Any], Callable[..., Side]]] = {
        "guarded": ({}, guarded),
        "with 3 budgets": ({"budgets": BUDGETS}, guarded),
        "with 3 budgets, SDK and sink": ({"budgets": BUDGETS, "tracer_provider": provider}, guarded),
        "async, with 3 budgets": ({"budgets": BUDGETS}, awaited),
        "async, with 3 budgets, SDK and sink": ({"budgets": BUDGETS, "tracer_provider": provider}, awaited),
        "approved": ({"approver": "auto-approve"}, partial(guarded, approve=True)),
        "replayed": ({}, replayed),
    }
    medians = {}
    for number, (name, (options, kind)) in enumerate(rows.items()):
        with contextlib.ExitStack() as stack:
            hand = by_hand(calls, place, f"hand{number}", stack, budgets=options.get("budgets"))
            medians[name] = in_turns(kind(Guard(place.new(f"calls{number}"), **options), stack), hand, calls)
    return medians


def main() -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2000)
    ledgers.option(parser)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    logging.getLogger("sagaspan").setLevel(logging.ERROR)  # a replay warns, here on purpose
    with tempfile.TemporaryDirectory() as folder, ledgers.ledgers(options.store, Path(folder)) as place:
        medians = measure(options.calls, place, Path(folder))
    if options.json:
        print(
            json.dumps(
                {
                    name: {"p50_us": ours, "by_hand_us": hand, "ratio": ours / hand}
                    for name, (ours, hand) in medians.items()
                }
            )
        )
        return
    print(f"{'':<36}   a call   by hand   ratio")
    for name, (ours, hand) in medians.items():
        print(f"{name:<36} {ours:5.0f} us {hand:6.0f} us   {ours / hand:4.2f}x")


if __name__ == "__main__":
    main()
