"""Flushes of the WAL: those for a crowd, when it is time for a checkpoint, and what follows from one that failed.

SQLite would sync each commit before anybody else can write. Where several threads have something to be synced, it is
written without that, and whoever comes first then flushes the file for all that was written until that moment, while
others write on. Those who came meanwhile share the next flush, and sleep until then: whose commit is on disk goes on,
although the next flush is under way. The WAL is one log: a flush of it makes durable all that was committed before it
began, by whichever connection.

Nothing can be flushed again that could not be flushed: the kernel has forgotten that it was to be written, and what is
written behind the gap is lost with it in a power cut. So after a flush that failed, whether here or in SQLite, nothing
more is claimed in this process.

Therefore no flush may fail unheard. SQLite also flushes the log where it is long and goes into the ledger (a
checkpoint), does so within any commit, and keeps a failure to itself (``sqlite3WalDefaultHook``): the next claim's
flush would be told that all is well. So the store makes the checkpoints itself, and asks here when it is time. Another
process hears of the failure by its own file: Linux (4.13) tells each open file once what could not be written.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from pathlib import Path
from typing import Final

from sagaspan import _fork as fork
from sagaspan._reentry import is_inside, once
from sagaspan.exceptions import StoreUnavailable
from sagaspan.stores._sleeping import Sleeper

LONG: Final = 1000
"""Frames, as SQLite's own ``wal_autocheckpoint`` has it."""

_HEADER: Final = 32
_FRAME_HEADER: Final = 24


class Flushing:
    """What is to be flushed of the WAL of the ledger at ``path``, which is opened and closed with its connection."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mine = fork.new_lock()
        self._lock = fork.new_sign()
        self._log: int | None = None
        self._error: Exception | None = None
        self.begin()

    def begin(self) -> None:
        """Nothing is written, and nobody comes; in a forked child those are the parent's."""
        self._coming: deque[None] = deque()  # as many as commits are on their way: of a deque no count is lost
        self._asleep: deque[Sleeper] = deque()
        self._written = 0
        self._flushed = 0

    def open(self) -> bool:
        """The log is there; False where it cannot be opened, or flushed by itself: SQLite goes on with all of it."""
        if hasattr(os, "fdatasync"):
            with contextlib.suppress(OSError):
                self._log = os.open(f"{self._path}-wal", os.O_RDONLY)
        return self._log is not None

    def close(self) -> None:
        """Flush what somebody still waits for (who is told if that fails), and let the log go."""
        with once(self._mine, f"a flush of the ledger {self._path}"), self._lock:
            log, self._log = self._log, None
            if log is None:
                return
            if self._flushed < self._written and self._error is None:
                with contextlib.suppress(StoreUnavailable):
                    self._to_disk(log)
            os.close(log)
        self._wake()

    def __del__(self) -> None:
        if self._log is not None:
            os.close(self._log)

    @property
    def is_crowded(self) -> bool:
        """Whether others have something to be synced, too."""
        return len(self._coming) > 1 and self._log is not None

    @property
    def is_long(self) -> bool:
        """Whether it is time for a checkpoint: frame ``LONG`` has the salts of this log (sqlite.org/fileformat2.html).

        After a flush that failed it never is: what the checkpoint before may have lost is only in the log.
        """
        if self._log is None or self._error is not None:
            return False
        header = os.pread(self._log, _HEADER, 0)
        page, salts = int.from_bytes(header[8:12]), header[16:24]
        return bool(salts) and os.pread(self._log, 8, _HEADER + (LONG - 1) * (_FRAME_HEADER + page) + 8) == salts

    def check(self) -> None:
        """Raises ``StoreUnavailable`` once a flush failed: nothing is on disk for certain any more."""
        if self._error is not None:
            raise self._failed(self._error)

    def comes(self) -> None:
        """Somebody has something to be synced, until he ``goes``; raises as ``check``."""
        self.check()
        self._coming.append(None)

    def goes(self) -> None:
        """It is synced, or came to nothing."""
        self._coming.pop()

    def written(self) -> int:
        """A commit was written that is to be flushed; its number. One at a time."""
        self._written += 1
        return self._written

    def flush(self, number: int) -> None:
        """Return when the commit with this number is on disk; raises ``StoreUnavailable``."""
        while self._flushed < number:
            if is_inside(self._mine):  # a signal handler came into a flush: what it wrote has one of its own
                self._flush()
            elif self._lock.locked():
                self._sleep()
            else:
                self._flush_next(number)

    def failed(self, error: Exception) -> StoreUnavailable:
        """A flush failed: nothing more is claimed; what to tell those whom it was for."""
        self._error = error
        return self._failed(error)

    def _sleep(self) -> None:
        """Return when the flush that goes on is over."""
        sleeper = Sleeper()
        self._asleep.append(sleeper)
        if self._lock.locked():  # else who had it may have woken the others already
            sleeper.sleep()

    def _flush_next(self, number: int) -> None:
        try:
            with self._mine, self._lock:
                if self._flushed < number:
                    self._flush()
        finally:
            self._wake()

    def _flush(self) -> None:
        self.check()
        assert self._log is not None  # noqa: S101 - it is not closed before all is flushed, or that has failed
        self._to_disk(self._log)

    def _to_disk(self, log: int) -> None:
        written = self._written  # before the flush begins: what is written meanwhile may miss it
        try:
            os.fdatasync(log)
        except OSError as error:
            raise self.failed(error) from error
        self._flushed = max(self._flushed, written)

    def _wake(self) -> None:
        with contextlib.suppress(IndexError):  # another flush is over as well, and wakes them
            for _ in range(len(self._asleep)):
                self._asleep.popleft().wake()

    def _failed(self, error: Exception) -> StoreUnavailable:
        why = getattr(error, "strerror", None) or error
        return StoreUnavailable(
            f"the disk of the ledger {self._path} failed ({why}), and what was written last may be "
            "lost; nothing was started, and this process starts nothing more: see to the disk, and start it again"
        )
