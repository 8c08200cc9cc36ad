"""Commits that a server has answered and may not have on its disk yet: kept until a later one is there for certain.

Whoever only settles does not wait for the disk, since the next claim's flush makes that durable, too. A server that
crashes before loses it, and unlike after a power cut of one machine those who were answered live on. So each new
connection, and after a crash all are new, first looks whether what was answered is there, and saves it again if not:
before anything that rests on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from sagaspan import _fork as fork
from sagaspan.ledger.store import Change

MOST: Final = 64
"""So many are kept; then the next commit is one that waits for the disk."""


class Unflushed:
    """The commits of one store, in their order."""

    def __init__(self) -> None:
        self._kept: list[tuple[int, Sequence[Change]]] = []
        self._number = 0
        self._lock = fork.new_lock()
        self._mending = fork.new_lock()

    @property
    def is_full(self) -> bool:
        """Whether it is time for a flush."""
        return len(self._kept) >= MOST

    def newest(self) -> int:
        """The number of the newest: what is answered after this was asked may be older than the flush that follows."""
        return self._number

    def keep(self, changes: Sequence[Change]) -> None:
        """A commit that was answered, and did not wait for the disk."""
        with self._lock:
            self._number += 1
            self._kept.append((self._number, changes))

    def flushed(self, upto: int) -> None:
        """All up to this number are on disk."""
        if self._kept:
            with self._lock:
                self._kept = [one for one in self._kept if one[0] > upto]

    def mend(self, is_known: Callable[[Sequence[Change]], bool], save: Callable[[Sequence[Change]], None]) -> None:
        """``save`` again, onto the disk, what the server does not know any more."""
        if not self._kept:
            return
        with self._mending:
            kept, saved = self._kept[:], 0
            for number, changes in kept:
                if not is_known(changes):
                    save(changes)
                    saved = number
            self.flushed(saved)
