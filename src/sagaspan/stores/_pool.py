"""A few connections to a database server that many threads share; it has no thread of its own and survives a fork.

The connection that was used last is lent first, so a quiet process keeps one. One that was idle for long is tried
before it is lent: a server that was restarted meanwhile is no error of the next call. Who waits longest is served next.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from sagaspan import _fork as fork
from sagaspan._clock import monotonic

T = TypeVar("T")

IDLE_SECONDS: Final = 5.0
_inherited: Final[list[object]] = []
_pools: Final[weakref.WeakSet[Pool]] = weakref.WeakSet()  # type: ignore[type-arg] # of any driver


class Full(Exception):
    """All connections were lent for too long."""


class Turns:
    """Lets ``size`` threads go on at once, and the others in the order in which they came.

    A semaphore lets a thread that comes back pass all that wait: of hundreds some would wait until they give up.
    """

    def __init__(self, size: int) -> None:
        self._free = size
        self._lock = fork.new_lock()
        self._queue: deque[threading.Lock] = deque()

    def take(self, seconds: float) -> bool:
        """Whether it is this thread's turn within ``seconds``; who had one gives it back."""
        with self._lock:
            if self._free and not self._queue:
                self._free -= 1
                return True
            mine = threading.Lock()
            mine.acquire()
            self._queue.append(mine)
        try:
            return mine.acquire(timeout=seconds) or self._leave(mine)
        except BaseException:  # Ctrl-C while it waits
            if self._leave(mine):
                self.give_back()
            raise

    def _leave(self, mine: threading.Lock) -> bool:
        """Whether it is this thread's turn after all: it was given it in the moment in which it gave up."""
        with self._lock:
            if mine in self._queue:
                self._queue.remove(mine)
                return False
        return True

    def give_back(self) -> None:
        """Whoever waits longest is next."""
        with self._lock:
            if self._queue:
                self._queue.popleft().release()
            else:
                self._free += 1


class Pool(Generic[T]):
    """Lends what ``connect`` makes, ``size`` of them at most; ``close`` and ``works`` are told of one."""

    def __init__(
        self, connect: Callable[[], T], close: Callable[[T], None], works: Callable[[T], bool], *, size: int
    ) -> None:
        self._connect, self._close, self._works, self._size = connect, close, works, size
        self._idle: list[tuple[T, float]] = []
        self._lock = fork.new_lock()
        self._turns = Turns(size)
        weakref.finalize(self, _close_all, self._idle, close)
        _pools.add(self)

    def begin_in_child(self) -> None:
        """Leave what the parent has open alone: closing it here would end it there."""
        _inherited.extend(self._idle)
        self._idle.clear()
        self._turns = Turns(self._size)

    @contextlib.contextmanager
    def lend(self, seconds: float) -> Iterator[T]:
        """A connection of its own for the block; one that raised is closed. Raises ``Full`` after ``seconds``."""
        turns = self._turns
        if not turns.take(seconds):
            raise Full
        try:
            connection = self._take()
            try:
                yield connection
            except BaseException:
                with contextlib.suppress(Exception):
                    self._close(connection)
                raise
            with self._lock:
                self._idle.append((connection, monotonic()))
        finally:
            turns.give_back()

    def _take(self) -> T:
        while True:
            with self._lock:
                if not self._idle:
                    break
                connection, since = self._idle.pop()
            if monotonic() - since < IDLE_SECONDS or self._works(connection):
                return connection
            with contextlib.suppress(Exception):
                self._close(connection)
        return self._connect()

    def clear(self) -> None:
        """Close all that nobody uses."""
        with self._lock:
            idle = self._idle[:]
            self._idle.clear()
        _close_all(idle, self._close)


def _close_all(idle: list[tuple[T, float]], close: Callable[[T], None]) -> None:
    for connection, _ in idle:
        with contextlib.suppress(Exception):
            close(connection)


def _in_child() -> None:
    for pool in list(_pools):
        pool.begin_in_child()


fork.hooks(in_child=_in_child)
