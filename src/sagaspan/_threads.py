"""Threads for the steps that an asynchronous call must not do on its loop.

A ``ThreadPoolExecutor`` makes a future of each step, with a condition, and counts who is idle with another: for the two
steps of a call that was an eighth of its time. Whoever waits here is told by the step itself, and it is the thread that
was idle last which does it, whose caches are warm.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from functools import cache
from queue import SimpleQueue
from typing import Final

from sagaspan import _fork as fork

MOST: Final = 8
"""So many steps are done at once; later ones wait."""

_log = logging.getLogger("sagaspan")
Step = Callable[[], object]
_Box = SimpleQueue[Step | None]
"""Where one thread gets its next step, or None for the end."""


class Threads:
    """As many as there are steps at once, up to ``MOST``; a program does not end before its last step."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = fork.new_lock()
        self._threads: list[tuple[threading.Thread, _Box]] = []
        self._idle: list[_Box] = []
        self._waiting: deque[Step] = deque()
        self._over = False
        atexit.register(self._finish)

    def submit(self, step: Step) -> None:
        """Do ``step`` on a thread; what it raises is logged. At the end of the program, when all loops are, here."""
        with self._lock:
            if self._over:
                pass
            elif self._idle:
                return self._idle.pop().put(step)
            elif len(self._threads) < MOST:
                return self._start(step)
            else:
                return self._waiting.append(step)
        _done(step)
        return None

    def _start(self, step: Step) -> None:
        box: _Box = SimpleQueue()
        box.put(step)
        thread = threading.Thread(target=self._work, args=(box,), name="sagaspan-ledger", daemon=True)
        thread.start()  # before it is one of them: after a Ctrl-C in it nobody waits for one that never began
        self._threads.append((thread, box))

    def _work(self, box: _Box) -> None:
        step = box.get()
        while step is not None:
            _done(step)
            del step  # and with it what it was done for, while this thread has nothing to do
            step = self._next(box)

    def _next(self, box: _Box) -> Step | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._idle.append(box)
        return box.get()

    def _finish(self) -> None:
        if os.getpid() != self._pid:  # they are the parent's
            return
        with self._lock:
            self._over = True
        for _, box in self._threads:
            box.put(None)
        for thread, _ in self._threads:
            thread.join()


def _done(step: Step) -> None:
    try:
        step()
    except BaseException:  # noqa: BLE001 - nobody waits for it here
        _log.exception("a step on a thread of its own failed")


@cache
def _threads_of(pid: int) -> Threads:  # noqa: ARG001 - the key of the cache
    return Threads()


def threads() -> Threads:
    """Those of this process: a forked child has none of its parent's."""
    return _threads_of(os.getpid())
