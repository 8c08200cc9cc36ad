"""What a thread must not begin while it is in the middle of it: it would wait for itself, or break what it has begun.

That is no mistake of threads but of what interrupts one: a signal handler runs between any two lines of the main
thread, a finalizer in the middle of any. It is told at once that it came to the wrong moment, and has changed nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sagaspan.exceptions import StoreUnavailable

if TYPE_CHECKING:
    from threading import RLock


def is_inside(lock: RLock) -> bool:
    """Whether this thread has ``lock``."""
    return lock._is_owned()  # type: ignore[attr-defined,no-any-return]  # noqa: SLF001 - as ``threading.Condition`` asks


def once(lock: RLock, where: object) -> RLock:
    """``lock``, for ``with``, unless this thread has it already: then it raises ``StoreUnavailable``.

    There is no moment between the question and the answer: a handler that comes there has left again before ``with``.
    """
    if is_inside(lock):
        raise StoreUnavailable(
            f"this thread is in the middle of {where} already: a signal handler or a finalizer called it there, and "
            "would wait for itself; nothing was started, let a thread of its own do it"
        )
    return lock
