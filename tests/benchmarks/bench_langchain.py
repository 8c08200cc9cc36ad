"""What a guarded tool of LangChain costs beside the bare one: ``uv run python -m tests.benchmarks.bench_langchain``.

The tool does nothing and its policy says nothing, so what is measured is the way through LangChain and the two commits
of the ledger. A plain guarded function shows what of it is the ledger's; the rest is the adapter's. The kinds take
turns (A B C A B C ...) in one run, and medians are compared. ``--json`` prints one JSON document.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import logging
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

from langchain.agents import create_agent
from langchain_core.tools import StructuredTool
from tests.adapters.langchain.scripts import ask, model

from sagaspan import Guard

Side = Callable[[], Any]
_ids = itertools.count()


def _look(city: str, number: int) -> str:
    """Look."""
    return city


async def _alook(city: str, number: int) -> str:
    """Look."""
    return city


def _asked() -> dict[str, Any]:
    """A call of a model, unlike any before."""
    number = next(_ids)
    return {"name": "look", "args": {"city": "Rome", "number": number}, "id": f"c{number}", "type": "tool_call"}


def sides(guard: Guard, loop: asyncio.AbstractEventLoop) -> dict[str, dict[str, Side]]:
    """A tool bare and wrapped, beside a guarded function; and whole turns of an agent with one call of it."""
    bare = StructuredTool.from_function(_look, coroutine=_alook, name="look")
    wrapped = guard.wrap(bare)
    plain = guard.tool("plain")(_look)
    chat = model(("look", {"city": "Rome", "number": 1}))
    agent = create_agent(chat, [StructuredTool.from_function(_look, name="look")])
    guarded = guard.wrap(agent)
    return {
        "tool.invoke": {
            "bare": lambda: bare.invoke(_asked()),
            "wrapped": lambda: wrapped.invoke(_asked()),
            "function": lambda: plain("Rome", next(_ids)),
        },
        "tool.ainvoke": {
            "bare": lambda: loop.run_until_complete(bare.ainvoke(_asked())),
            "wrapped": lambda: loop.run_until_complete(wrapped.ainvoke(_asked())),
        },
        "agent.invoke": {"bare": lambda: agent.invoke(ask()), "wrapped": lambda: guarded.invoke(ask())},
    }


def in_turns(kinds: dict[str, Side], calls: int) -> dict[str, float]:
    """The median of each in microseconds; the first tenth warms up."""
    took: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(calls):
        for name, call in kinds.items():
            started = time.perf_counter()
            call()
            took[name].append((time.perf_counter() - started) * 1e6)
    return {name: statistics.median(times[calls // 10 :]) for name, times in took.items()}


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    found: dict[str, dict[str, float]] = {}
    loop = asyncio.new_event_loop()
    with tempfile.TemporaryDirectory() as folder:
        prices = {"scripted": {"input": 0, "output": 0}}
        with Guard(f"sqlite:///{folder}/ledger.db", prices=prices) as guard:
            kinds = sides(guard, loop)
            for name in ("tool.invoke", "tool.ainvoke"):
                with guard.run("bench"):
                    found[name] = in_turns(kinds[name], options.calls)
            found["agent.invoke"] = in_turns(kinds["agent.invoke"], options.calls // 10)
    loop.close()
    if options.json:
        print(json.dumps(found))
        return
    for name, medians in found.items():
        bare, wrapped = medians["bare"], medians["wrapped"]
        print(f"{name:13} {bare:6.0f} us, wrapped {wrapped:6.0f} us: {wrapped / bare:.2f}x")
        if "function" in medians:
            alone = medians["function"]
            print(f"{'':13} a guarded function {alone:6.0f} us; the guard adds {(wrapped - bare) / alone:.2f}x of that")


if __name__ == "__main__":
    main()
