"""Who reads the answers that come piece by piece: nobody must wait for one that only he reads on.

Where a stream is opened in a task or thread of its own, the context that would say so ends with that.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import Any, Final

from sagaspan import _fork as fork

_readers: Final[dict[str, tuple[weakref.ref[Any], str]]] = {}
fork.hooks(in_child=_readers.clear)


def reads(call_id: str, run_id: str) -> None:
    """The answer of a call is opened, or its next piece is waited for, in this task or thread."""
    _readers[call_id] = weakref.ref(_here()), run_id


def ended(call_id: str) -> None:
    """It is over."""
    _readers.pop(call_id, None)


def read_here(run_id: str) -> frozenset[str]:
    """The calls whose answers only go on if this code does: it reads them, or nobody does any more in its run."""
    here = _here()
    return frozenset(
        call_id for call_id, (reader, run) in list(_readers.items())
        if (found := reader()) is here or (run == run_id and _is_gone(found))
    )  # fmt: skip


def _here() -> Any:
    try:
        return asyncio.current_task() or threading.current_thread()
    except RuntimeError:  # no loop runs here
        return threading.current_thread()


def _is_gone(reader: Any) -> bool:
    if reader is None:
        return True
    return not reader.is_alive() if isinstance(reader, threading.Thread) else bool(reader.done())
