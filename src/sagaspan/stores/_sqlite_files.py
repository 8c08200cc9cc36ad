"""The files of an open SQLite ledger: the database, its log (``-wal``) and the index of the log (``-shm``).

SQLite writes to whatever it has open. If a log is deleted or replaced, its process continues to write to a file that no
other process reads. If an index is, two processes stop to see each other's locks, and overwrite each other's commits.
So each commit first compares the files at these paths with those that SQLite has open. A claim does so afterwards, too.

SQLite's own locks belong to the process: any ``open(ledger).close()`` in it drops them. The next process to close the
ledger then takes itself for its last user, and deletes the log. A lock of an open file description (Linux) on the same
bytes survives that, and every SQLite respects it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import struct
import sys
from pathlib import Path
from typing import Final

from sagaspan import _clock as clock
from sagaspan.exceptions import StoreUnavailable

if sys.platform == "linux":
    import fcntl

    _SET, _GET = fcntl.F_OFD_SETLK, fcntl.F_OFD_GETLK
    _READ, _WRITE, _NONE = fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK

_LOCK: Final = struct.Struct("hhqqi0q")
"""``struct flock``: type, whence, start, length, process."""
_SHARED: Final = (0x40000002, 510)
"""The bytes that each connection locks for reading while it is open, and the last one to close for writing."""
_WAL_MODE: Final = b"\x02\x02"
"""Bytes 18 and 19 of a database in WAL mode (sqlite.org/fileformat2.html)."""
_INDEX: Final = struct.Struct("=16xI76xI")
"""The head of an index: how many frames its log has, and how many are in the database (sqlite.org/walformat.html)."""

_REMEDY: Final = (
    "Stop every process that uses this ledger, then start them again; never delete, move or replace its -wal and -shm"
)

Identity = tuple[int, int]


class LedgerFiles:
    """The files of the ledger at ``path``; opened, held and closed with the store's connection."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log, self._index = f"{path}-wal", f"{path}-shm"
        self._known: tuple[tuple[str, Identity | None], ...] = ()
        self._database: Identity | None = None
        self._connection: sqlite3.Connection | None = None
        self._held: int | None = None
        self._pid = 0

    def refuse_another(self) -> None:
        """Raise ``StoreUnavailable`` if the ledger was closed only for a fork, and another file is at its path now."""
        if self._database is not None and _identity(str(self._path)) != self._database:
            raise self._displaced()

    def open(self, *, patience: float) -> None:
        """Open the ledger beside SQLite, before it does; raise ``StoreUnavailable`` if its log or index was deleted.

        ``patience``: for how many seconds another process may be in the middle of opening or closing it.
        """
        self.close()  # what an opening that failed has left
        if sys.platform != "linux":
            return
        with contextlib.suppress(OSError):  # SQLite says what is wrong with it
            self._held, self._pid = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC), os.getpid()
        if self._held is not None and os.pread(self._held, 2, 18) == _WAL_MODE:
            try:
                self._refuse_torn(self._held, clock.monotonic() + patience)
            except BaseException:
                self.close()
                raise

    def hold(self, connection: sqlite3.Connection, *, has_log: bool) -> None:
        """Protect the log that ``connection`` has opened, and remember its files."""
        self._connection = connection
        connection.execute("select count(*) from sqlite_master").fetchone()  # which makes log and index, if need be
        if self._held is not None and has_log:
            self._lock(self._held, _READ)
        paths = (str(self._path), self._log, self._index) if has_log else (str(self._path),)
        self._known = tuple((path, _identity(path)) for path in paths)
        self._database = self._known[0][1]

    def are_in_place(self) -> bool:
        """Return whether all files that SQLite has open are still at their paths."""
        try:
            for path, known in self._known:
                found = os.stat(path)  # noqa: PTH116 - three at each commit
                if (found.st_dev, found.st_ino) != known:
                    return False
        except OSError:
            return False
        return True

    def check(self, *, synced: bool = True) -> None:
        """Raise ``StoreUnavailable`` unless all files are in place.

        What is not synced may still be written to a ledger that was moved as a whole: it is put back with it.
        """
        if not self.are_in_place() and (synced or not self._is_database_displaced()):
            raise self._displaced()

    def close(self) -> None:
        """Close the connection, and then the files.

        SQLite must not write a log into a ledger that is not its own any more: then the lock is kept until it is
        closed, so that SQLite does not take itself for the last user.
        """
        if self._connection is not None:
            if not self.are_in_place():
                self._save_log(self._connection)
            elif self._held is not None:
                self._lock(self._held, _NONE)
            self._connection.close()
            self._connection = None
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def forget(self) -> None:
        """Whatever is at the path at the next opening is the ledger."""
        self._database = None

    def __del__(self) -> None:
        if self._pid == os.getpid():  # a forked child has no part in the connections of its parent
            self.close()

    # -- a log or an index that is not there ---------------------------------------------------------------

    def _displaced(self) -> StoreUnavailable:
        """Save what can be saved, and say what happened."""
        if self._connection is None or self._is_database_displaced():
            return StoreUnavailable(
                f"the ledger {self._path} was moved, deleted or replaced while it was in use; nothing was started. "
                "Put it back with its -wal and -shm: a process that starts without them knows nothing of the calls "
                "that they record, and makes them again"
            )
        missing = [path for path, known in self._known if _identity(path) != known]
        if self._log not in missing:
            outcome = "All that was recorded before is in the log"
        elif self._save_log(self._connection):
            outcome = "All that was recorded before was written into the ledger"
        else:
            outcome = (
                "What was recorded last may be missing from the ledger: before you start anything again, compare it "
                "with what the tools did"
            )
        names = " and ".join(missing) or "a side file"
        return StoreUnavailable(
            f"{names} was deleted or replaced while the ledger was in use; nothing was started. {outcome}. {_REMEDY}"
        )

    def _is_database_displaced(self) -> bool:
        path, known = self._known[0]
        return _identity(path) != known

    def _save_log(self, connection: sqlite3.Connection) -> bool:
        """Write a deleted log into the ledger; return whether all of it is there.

        Not if another log with content is at its path: who wrote that knows nothing of ours, and either would
        overwrite pages of the other.
        """
        if connection.in_transaction:
            connection.execute("rollback")
        if self._is_database_displaced() or _size(self._log):
            return False
        try:
            ((is_busy, frames, saved),) = connection.execute("pragma wal_checkpoint(full)").fetchall()
        except sqlite3.Error:
            return False
        return not is_busy and frames == saved

    def _refuse_torn(self, held: int, deadline: float) -> None:
        """Raise ``StoreUnavailable`` if SQLite would begin a second log or index beside one that was deleted.

        Others open and close the ledger meanwhile. So records are missing only if they are so twice, by the same index.
        """
        torn: Identity | None = None
        while True:
            holder = self._holder(held)
            missing = [path for path in (self._log, self._index) if _identity(path) is None]
            before, torn = torn, None
            if holder is None:
                torn = _identity(self._index) if not _size(self._log) and self._lacks_frames() else None
                if torn is None:
                    return
                if torn == before:
                    raise StoreUnavailable(
                        f"{self._log} was deleted before it was written into the ledger: what was recorded last is "
                        "lost; nothing was started. Put the log back, or restore a backup. Or compare the ledger with "
                        f"what the tools did, and accept the loss: rm {self._index}"
                    )
            elif not missing:
                return
            elif clock.monotonic() >= deadline:
                raise StoreUnavailable(
                    f"{' and '.join(missing)} was deleted while {holder} has the ledger open; nothing was started. "
                    f"{_REMEDY}"
                )
            clock.sleep(0.01)

    def _holder(self, held: int) -> str | None:
        """Return who has the ledger open, or None."""
        try:
            answer = fcntl.fcntl(held, _GET, _LOCK.pack(_WRITE, os.SEEK_SET, *_SHARED, 0))
        except OSError:  # not on this file system
            return None
        kind, _, _, _, pid = _LOCK.unpack(answer[: _LOCK.size])
        if kind == _NONE:
            return None
        return f"process {pid}" if pid > 0 else "a process"

    def _lacks_frames(self) -> bool:
        """Return whether the index that is left of a log has more frames than were written into the ledger.

        Read only where no process has the ledger open: to close the index drops the locks of this process on it.
        """
        try:
            frames, saved = _INDEX.unpack(Path(self._index).read_bytes()[: _INDEX.size])
        except (OSError, struct.error):
            return False
        return bool(frames > saved)

    def _lock(self, held: int, kind: int) -> None:
        with contextlib.suppress(OSError):  # not on this file system: a deleted log is still noticed
            fcntl.fcntl(held, _SET, _LOCK.pack(kind, os.SEEK_SET, *_SHARED, 0))


def _identity(path: str) -> Identity | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - as above
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116 - as above
    except OSError:
        return 0
