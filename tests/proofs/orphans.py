"""Runs without their process, and who recovers them: the processes of ``recoverers``.

    python -m tests.proofs.orphans leave 200        opens so many runs, books in each, and dies
    python -m tests.proofs.orphans recover FILE     sagaspan recover --watch, and what each take-over took into FILE

``SAGASPAN_STORE`` is the ledger, ``ORPHANS_EFFECTS`` the file of what happened in the world.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from sagaspan import Guard, _saga
from tests.proofs.budget_crowd import say

guard = Guard()


def _effect(what: str) -> None:
    file = Path(os.environ["ORPHANS_EFFECTS"])
    say(file.parent, file.name, f"{what}\n")


@guard.tool("book", compensate=lambda n: _effect(f"undo-{n}"))
def book(n: int) -> None:
    """What is undone."""
    _effect(f"book-{n}")


def leave(runs: int) -> None:
    """Open the runs, and die."""
    for number in range(runs):
        guard.run("trip", id=f"r{number}", on_interrupt="compensate", nested=False).__enter__()
        book(number)
    os.kill(os.getpid(), signal.SIGKILL)


def recover(told: Path) -> None:
    """The real program, until SIGTERM; then write how long each take-over took, and whether this process had it."""
    from sagaspan.cli import main

    took: list[tuple[float, bool]] = []
    take_over = _saga.take_over

    async def timed(*args: Any, **more: Any) -> Any:
        started = time.perf_counter()
        taken = await take_over(*args, **more)
        took.append((time.perf_counter() - started, taken is not None))
        return taken

    _saga.take_over = timed
    sys.argv = ["sagaspan", "recover", "--watch", "--interval", "200ms", "--app", "tests.proofs.orphans:guard"]
    try:
        main()
    finally:
        told.write_text(json.dumps(took))


if __name__ == "__main__":
    leave(int(sys.argv[2])) if sys.argv[1] == "leave" else recover(Path(sys.argv[2]))
