"""Work that a finalizer leaves behind: a collector's hook may run anywhere, so it must neither wait nor take a lock.

``SimpleQueue.put`` is the one hand-over that is made for that. The thread starts before the first finalizer can.

A stream of an SDK lies in a cycle, so the collector closes it: in the middle of any line of its thread, one that holds
the lock of a store too. Whoever settles such a stream in place would wait for itself.
"""

from __future__ import annotations

import gc
import logging
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

_log = logging.getLogger("sagaspan")
_queues: Final[dict[int, SimpleQueue[Callable[[], None]]]] = {}
_here: Final = threading.local()


def in_collection() -> bool:
    """Whether this thread is collecting garbage right now; False in a process that was not ready."""
    return getattr(_here, "collecting", False)


def _note(phase: str, info: dict[str, int]) -> None:  # noqa: ARG001 - the signature of gc.callbacks
    _here.collecting = phase == "start"


def be_ready() -> None:
    """Start the thread of this process (a forked child gets its own: threads do not survive a fork)."""
    pid = os.getpid()
    if pid in _queues:
        return
    queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
    if _queues.setdefault(pid, queue) is queue:
        if _note not in gc.callbacks:
            gc.callbacks.append(_note)
        threading.Thread(target=_work, args=(queue,), name="sagaspan-reaper", daemon=True).start()


def leave(work: Callable[[], None]) -> None:
    """Have ``work`` done soon, by the thread; not at all in a process that was not ready."""
    queue = _queues.get(os.getpid())
    if queue is not None:
        queue.put(work)


def _work(queue: SimpleQueue[Callable[[], None]]) -> None:
    while True:
        work = queue.get()
        try:
            work()
        except Exception:  # noqa: BLE001 - one answer that cannot be settled must not keep the next from it
            _log.exception("what was left to be settled could not be")
        del work
