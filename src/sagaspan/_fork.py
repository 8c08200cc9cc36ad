"""What a forked child must not inherit: its parent's other threads are gone, and with them whoever held a lock.

A child finds every lock made here free, and is told to forget what only its parent goes on with.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from threading import RLock

_locks: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


_forks = 0


def forks() -> int:
    """How often this process was forked: its children may do things in its runs that it is not told of."""
    return _forks


def new_lock() -> RLock:
    """A lock that is free in a forked child, whoever held it in the parent.

    Whoever has it may take it again: a signal handler runs in the middle of any line of the main thread, and would
    wait for that for ever. What must not be begun twice is entered by ``sagaspan._reentry.once``.
    """
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def new_sign() -> threading.Lock:
    """As ``new_lock``, to show that somebody is at work (``locked``); it is not taken where this thread may be that."""
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def hooks(
    *,
    before: Callable[[], None] = lambda: None,
    in_parent: Callable[[], None] = lambda: None,
    in_child: Callable[[], None],
) -> None:
    """Call these around every fork of this process, where there is such a thing."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=before, after_in_parent=in_parent, after_in_child=in_child)


def _free_all() -> None:
    for lock in _locks:
        lock._at_fork_reinit()  # noqa: SLF001 - as the standard library's own modules do


def _count() -> None:
    global _forks
    _forks += 1


hooks(in_parent=_count, in_child=_free_all)
