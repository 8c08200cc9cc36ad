"""The model test: any history of processes, failures, deaths, clocks and people keeps the rules.

    uv run --all-extras python -m tests.proofs.model                   # 20,000 histories (the full form)
    uv run --all-extras python -m tests.proofs.model --cases 2000      # the bounded one
    uv run --all-extras python -m tests.servers -- python -m tests.proofs.model --store postgres --cases 200

Hypothesis makes up the histories (``model_machine``), of played processes (``model_world``) on the real ledger, and
compares that with what really happened. The same seed lives the same histories. At the end it says which transitions of
``ledger/transitions.py`` they went through, and in how many; the full form fails if one was left out. A history that
breaks a rule is cut down to the shortest one, and printed as the calls that lead there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sagaspan.ledger.transitions import CALL_TABLE, RUN_TABLE
from sagaspan.testing import ledgers_on
from tests.proofs import STORE, server_of
from tests.proofs.model_machine import Transition, live

FULL_CASES: Final = 20_000
PART_CASES: Final = 250
"""As many histories are lived in a row, from a seed of their own: who has two processes shares them."""
SAID_EVERY: Final = 1_000

_WAITS: Final = "who calls or undoes in the model waits for the end of the body"
OUT_OF_REACH: Final[Mapping[Transition, str]] = {
    ("unknown", "body_ended", "unknown"): _WAITS,
    ("needs_human", "body_ended", "needs_human"): _WAITS,
    ("compensation_failed", "compensation_succeeded", "compensated"): _WAITS,
    ("refused", "claim", "running"): "a tool of the model is deferred always or never",
    ("running", "extend", "running"): "only a model's stream reserves more, and nobody here asks one",
}
"""Transitions that no history goes through, and why not."""


@dataclass(frozen=True, kw_only=True)
class Lived:
    """What became of the histories of one part: the transitions they ``reached``, or the one that went ``wrong``."""

    reached: Counter[Transition] = field(default_factory=Counter)
    wrong: str = ""


def every_transition() -> list[Transition]:
    """Those of calls, and those of runs, as the audit trail has them."""
    calls = [(str(before), str(event), str(after)) for (before, event), after in CALL_TABLE.items()]
    runs = [(str(before), f"run.{event}", str(after)) for (before, event), after in RUN_TABLE.items()]
    return [*calls, *runs]


def live_part(seed: str, cases: int, server: str | None = None) -> Lived:
    """One part, in a process of its own."""
    try:
        with ledgers_on(server) if server else contextlib.nullcontext():
            return Lived(reached=live(cases, seed))
    except Exception:
        return Lived(wrong=traceback.format_exc())


def live_all(cases: int, *, seed: str, jobs: int, server: str | None = None) -> Iterator[Lived]:
    """All parts of ``cases`` histories, ``jobs`` at a time; says how far it is, and what is wrong once it is known."""
    sizes = [min(PART_CASES, cases - begun) for begun in range(0, cases, PART_CASES)]
    seeds = [f"{seed}/{number}" for number in range(len(sizes))]
    started, over = time.monotonic(), 0
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for part, size in zip(pool.map(live_part, seeds, sizes, [server] * len(sizes)), sizes, strict=True):
            over += size
            if part.wrong:
                print(f"\n{part.wrong}", flush=True)
            if over % SAID_EVERY == 0 or over == cases:
                print(f"  {over:>6} histories in {time.monotonic() - started:.0f} s", flush=True)
            yield part


def left_out(reached: Counter[Transition]) -> list[str]:
    """What is wrong with what was reached: a transition that can be and was not, or that was and cannot be."""
    missing = [step for step in every_transition() if not reached[step] and step not in OUT_OF_REACH]
    stale = [step for step in OUT_OF_REACH if reached[step]]
    return [f"not reached: {_said(step)}" for step in missing] + [
        f"out of reach, it says, but it was reached: {_said(step)}" for step in stale
    ]


def _said(step: Transition) -> str:
    before, event, after = step
    return f"{before} --{event}--> {after}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 0 if no history broke a rule, and none of the transitions was left out in the full form."""
    parser = argparse.ArgumentParser(prog="tests.proofs.model", description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=FULL_CASES, help="histories to live")
    parser.add_argument("--seed", default="0", help="which ones")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2, help="processes that live them")
    parser.add_argument("--store", help=STORE)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args(arguments)
    print(f"{options.cases} histories, --seed {options.seed}", flush=True)
    parts = list(live_all(options.cases, seed=options.seed, jobs=options.jobs, server=server_of(options.store)))
    reached: Counter[Transition] = sum((part.reached for part in parts), Counter())
    wrong = [part.wrong for part in parts if part.wrong]
    for step in every_transition():
        print(f"{reached[step]:>7}  {_said(step)}{f'  ({OUT_OF_REACH[step]})' if step in OUT_OF_REACH else ''}")
    unreached = [] if wrong else left_out(reached)
    for problem in unreached:
        print(f"\n{problem}", flush=True)
    if wrong:
        print(f"\nwrong in {len(wrong)} of {len(parts)} parts: see above", flush=True)
    if options.json is not None:
        counts = {_said(step): count for step, count in reached.items()}
        options.json.write_text(json.dumps({"cases": options.cases, "reached": counts, "wrong": wrong}))
    return 1 if wrong or (unreached and options.cases >= FULL_CASES) else 0


if __name__ == "__main__":
    sys.exit(main())
