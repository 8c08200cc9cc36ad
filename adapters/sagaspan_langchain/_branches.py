"""Which of the branches side by side a call belongs to, so that what each of them asks once is no loop.

A graph that sends ten workers off asks ten times for the same at once, before any of them knows an answer. The workers
of one step are numbered as they come, and from the beginning in the next: a worker that is sent off again and again
goes on counting.
"""

from __future__ import annotations

import threading
from typing import Final
from weakref import WeakKeyDictionary

from sagaspan import Run
from sagaspan_langchain import _compat

_of_runs: Final[WeakKeyDictionary[Run, dict[tuple[str, tuple[int, ...]], dict[str, int]]]] = WeakKeyDictionary()
_lock: Final = threading.Lock()


def branch_of(run: Run | None) -> str | None:
    """A name for the graph within a graph that calls a tool here, the same in every step; None outside of one."""
    around = None if run is None else _compat.around_here()
    if run is None or around is None:
        return None
    names, steps, place = around
    with _lock:
        known = _of_runs.setdefault(run, {}).setdefault((names, steps), {})
        number = known.setdefault(place, len(known))
    return f"{names}#{number}"
