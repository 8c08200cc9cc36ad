"""Work that a finalizer leaves behind: a collector's hook may run anywhere, so it must neither wait nor take a lock.

A stream of an SDK lies in a cycle, so the collector closes it, as it does with a generator that somebody dropped in the
middle of a run: within any line of its thread, one that holds the lock of a store too. Whoever settles such a stream in
place, or leaves such a run, would wait for itself.

What is left is done by a thread of its own. ``threading.Thread.start`` takes locks, which the interrupted line may
have; so a bare thread, for which none is needed, starts that one.
"""

from __future__ import annotations

import _thread
import contextlib
import gc
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from sagaspan import _fork as fork
from sagaspan.exceptions import ConfigurationError

_log = logging.getLogger("sagaspan")
THREAD: Final = "sagaspan-reaper"
_here: Final = threading.local()


def be_ready() -> None:
    """Be told from now on when garbage is collected; before, nobody here has anything that somebody could drop."""
    if _note not in gc.callbacks:
        gc.callbacks.append(_note)


def _note(phase: str, info: dict[str, int]) -> None:  # noqa: ARG001 - the signature of gc.callbacks
    _here.collecting = phase == "start"


def in_collection() -> bool:
    """Whether this thread is collecting garbage right now; False in a process that was not ready."""
    return getattr(_here, "collecting", False)


def refuse() -> None:
    """Raise ``ConfigurationError`` in a finalizer that the collector calls: what begins there might never end."""
    if in_collection():
        raise ConfigurationError(
            "a finalizer called this (the rest of a generator that was dropped, or a __del__), and the garbage "
            "collector runs those in the middle of anything; nothing was started. Close generators where they are "
            "used, as with contextlib.closing(...)"
        )


class _Left:
    """What is to be done soon, one after the other."""

    def __init__(self) -> None:
        self._turn = fork.new_lock()
        self.begin_again()

    def begin_again(self) -> None:
        """A forked child does not do what its parent was left."""
        self._works: deque[Callable[[], None]] = deque()
        self._called = False

    def put(self, work: Callable[[], None]) -> None:
        self._works.append(work)
        if not self._called:
            self._called = True
            with contextlib.suppress(RuntimeError):  # the interpreter is shutting down
                _thread.start_new_thread(self._start, ())

    def _start(self) -> None:
        self._called = False  # before it looks: who comes now calls another one
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=self._work, name=THREAD, daemon=True).start()

    def _work(self) -> None:
        while self._works and self._turn.acquire(blocking=False):  # else who has it does this one, too
            try:
                while self._works:
                    _do(self._works.popleft())
            finally:
                self._turn.release()


_left: Final = _Left()
fork.hooks(in_child=_left.begin_again)


def leave(work: Callable[[], None]) -> None:
    """Have ``work`` done soon, by another thread."""
    _left.put(work)


def finalize(work: Callable[[], None]) -> None:
    """Do ``work`` now, or soon on another thread if the garbage collector runs in this one (for adapters).

    So it may wait and take locks also where it closes what somebody dropped. Raises what ``work`` raises, if that is
    done now.
    """
    if in_collection():
        leave(work)
    else:
        work()


def _do(work: Callable[[], None]) -> None:
    try:
        work()
    except Exception:  # noqa: BLE001 - one thing that cannot be settled must not keep the next from it
        _log.exception("what was left to be settled could not be")
