"""Commits of many threads of a process in one transaction of the server, where they would wait for each other anyway.

Who comes while few are on their way sends his own. Who comes later waits, and those that wait go together as soon as
one is back: one flush, and one turn at a row that all of them count in. So a budget that a thousand workers share is
passed from process to process, not from call to call, and no call is told more room than there is. Each is saved or
refused for itself, and answered when all of them are on disk.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

import psycopg

from sagaspan import _fork as fork
from sagaspan.exceptions import StoreError
from sagaspan.stores._fate import WAIT_SECONDS, Again, Lost

AT_ONCE: Final = 2
"""So many are on their way before others wait for company."""
MOST: Final = 32
"""So many go together: each is a subtransaction, of which a server remembers 64 without looking them up."""
ANSWER_SECONDS: Final = 60.0
"""A connection that is dead is known to be by then."""

Answer = dict[str, Any]
Send = Callable[[Sequence[str]], list[Answer]]
_groupings: Final[weakref.WeakSet[Grouping]] = weakref.WeakSet()


class _Place:
    """One request that waits; whoever is woken with ``leads`` sends these, his own first."""

    __slots__ = ("answer", "error", "leads", "request", "wakes")

    def __init__(self, request: str) -> None:
        self.request = request
        self.wakes = threading.Lock()
        self.wakes.acquire()
        self.leads: list[_Place] = []
        self.answer: Answer | None = None
        self.error: BaseException | None = None


class Grouping:
    """``send`` takes requests that it sends in one transaction, and answers each, or none if they do not fit together.

    It raises what the store does.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._lock = fork.new_lock()
        self.begin()
        _groupings.add(self)

    def begin(self) -> None:
        """Nobody is on the way: in a forked child those that are, are the parent's."""
        self._on_their_way = 0
        self._waiting: list[_Place] = []

    def send(self, request: str) -> Answer:
        """The answer to ``request``, alone or with others; raises as for one that was sent alone."""
        with self._lock:
            mine = None if self._on_their_way < AT_ONCE else _Place(request)
            if mine is None:
                self._on_their_way += 1
            else:
                self._waiting.append(mine)
        if mine is None:
            try:
                return self._send((request,))[0]
            finally:
                self._next()
        self._wait(mine)
        if mine.leads:
            self._lead(mine.leads)
        if mine.answer is None and not _is_lost(mine.error):
            # They do not fit together, or the server said no, maybe for another's sake.
            return self._send((request,))[0]
        if mine.answer is None:
            raise _lost(mine.error)
        return mine.answer

    def _wait(self, mine: _Place) -> None:
        try:
            if mine.wakes.acquire(timeout=WAIT_SECONDS) or self._left(mine):
                return
            if not mine.wakes.acquire(timeout=ANSWER_SECONDS):
                mine.error = psycopg.OperationalError("whoever sent it along does not come back")
        except BaseException:  # Ctrl-C; what was sent with others may be saved, as it may be when it is sent alone
            self._left(mine)
            for other in mine.leads[1:]:
                other.wakes.release()  # each for itself: nothing was sent
            if mine.leads:
                self._next()
            raise

    def _left(self, mine: _Place) -> bool:
        """Whether ``mine`` waits no more: nobody had taken it along."""
        with self._lock:
            if mine in self._waiting:
                self._waiting.remove(mine)
                return True
        return False

    def _lead(self, group: list[_Place]) -> None:
        try:
            answers = self._send([place.request for place in group])
            for place, answer in zip(group, answers, strict=bool(answers)):
                place.answer = answer
        except BaseException as error:
            for place in group:
                place.error = error
            if not isinstance(error, Exception):
                raise
        finally:
            for place in group[1:]:
                place.wakes.release()
            self._next()

    def _next(self) -> None:
        """One is back: those that wait go, or nobody does."""
        with self._lock:
            group, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
            if not group:
                self._on_their_way -= 1
                return
            group[0].leads = group
            group[0].wakes.release()


def _is_lost(error: BaseException | None) -> bool:
    """Whether it is open if what was sent is saved; without an error nothing was sent."""
    return error is not None and not isinstance(error, StoreError | Again)


def _lost(error: BaseException | None) -> Lost:
    return Lost(error.error if isinstance(error, Lost) else psycopg.OperationalError(f"it was interrupted: {error!r}"))


def _in_child() -> None:
    for grouping in list(_groupings):
        grouping.begin()


fork.hooks(in_child=_in_child)
