"""Threads that wait for what another does for them: they are woken when it is done, whoever has the lock then.

Who waits for a lock goes on only once it has the lock, although its work was done by who had it before: threads that
came later, and work on, pass it. To be woken is a hint, and never needed: who sleeps looks by itself now and then.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Final

LOOK_SECONDS: Final = 0.1


class Sleeper:
    """What one thread waits with; to be woken before it sleeps counts."""

    __slots__ = ("_bed",)

    def __init__(self) -> None:
        self._bed = threading.Lock()
        self._bed.acquire()

    def sleep(self) -> None:
        """Return when it is woken, or after ``LOOK_SECONDS``."""
        self._bed.acquire(timeout=LOOK_SECONDS)

    def wake(self) -> None:
        """Let it look whether it can go on."""
        with contextlib.suppress(RuntimeError):  # it is awake
            self._bed.release()
