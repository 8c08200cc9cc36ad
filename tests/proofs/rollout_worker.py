"""A worker that is replaced while it works, and a recoverer: the processes of ``rollout``.

    python -m tests.proofs.rollout_worker drain      SIGTERM: it ends the order in hand, and then itself
    python -m tests.proofs.rollout_worker leave      SIGTERM: it leaves at once, as by sys.exit(), wherever it is
    python -m tests.proofs.rollout_worker die        it was not told what SIGTERM is, and dies of it
    python -m tests.proofs.rollout_worker recover    sagaspan recover --watch

``SAGASPAN_STORE`` is the ledger, ``ROLLOUT_FOLDER`` where the queue is, and the file of what happened in the world.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from sagaspan import Applied, Guard, NotApplied, SagaspanError
from tests.proofs.budget_crowd import say
from tests.proofs.storm_worker import Queue

STEPS: Final = ("reserve", "charge", "ship")
HOWS: Final = ("drain", "leave", "die")
BUDGETS: Final = {"tenant:shop": "1000000 USD"}
EFFECTS: Final = "effects"
_FOLDER: Final = Path(os.environ.get("ROLLOUT_FOLDER", "."))

guard = Guard(budgets=BUDGETS)


def effects_in(folder: Path) -> Counter[str]:
    """What happened in the world."""
    file = folder / EFFECTS
    return Counter(file.read_text().split()) if file.exists() else Counter()


def _step(what: str, **fields: Any) -> Any:
    def body(order: str) -> str:
        time.sleep(random.uniform(0.0, 0.03))
        say(_FOLDER, EFFECTS, f"{what}-{order}\n")
        time.sleep(random.uniform(0.0, 0.03))
        return what

    def found(order: str) -> Applied | NotApplied:
        return Applied(what) if effects_in(_FOLDER)[f"{what}-{order}"] else NotApplied()

    def undo(order: str) -> None:
        say(_FOLDER, EFFECTS, f"undo-{what}-{order}\n")

    undo.__name__ = f"undo_{what}"
    return guard.tool(what, effect="write", probe=found, compensate=undo, **fields)(body)


reserve, charge, ship = _step("reserve"), _step("charge", cost="1 USD"), _step("ship")


def work(how: str) -> None:
    """Take orders until SIGTERM comes."""
    is_over: list[int] = []
    handlers = {"drain": lambda *_: is_over.append(1), "leave": lambda *_: sys.exit(0), "die": signal.SIG_DFL}
    signal.signal(signal.SIGTERM, handlers[how])
    queue = Queue(_FOLDER)
    print("ready", flush=True)
    with guard:
        while not is_over:
            order = queue.take()
            if order is None:
                time.sleep(0.05)
                continue
            try:
                with guard.run("order", id=f"order-{order}", tenant="shop", on_interrupt="hold"):
                    for step in (reserve, charge, ship):
                        step(order)
            except SagaspanError:  # somebody is at it, or it is in doubt: it comes again
                queue.put_back(order, 0.3)
            else:
                queue.over(order)


def recover() -> None:
    """The real program."""
    from sagaspan.cli import main

    sys.argv = ["sagaspan", "recover", "--watch", "--interval", "200ms", "--app", "tests.proofs.rollout_worker:guard"]
    print("ready", flush=True)
    main()


if __name__ == "__main__":
    recover() if sys.argv[1] == "recover" else work(sys.argv[1])
