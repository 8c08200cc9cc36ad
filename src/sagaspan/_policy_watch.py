"""The policy file is looked at while agents run: what was changed holds from the next call on, or not at all.

Once a second at most, by a call: one comparison of clocks a call, one ``stat`` a second, nothing for a guard without a
file. A content that cannot be put in force, as a whole, changes nothing and is told of.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sagaspan import _fork as fork
from sagaspan._clock import monotonic
from sagaspan._policy_file import PolicyFile

_log = logging.getLogger("sagaspan")
LOOK_SECONDS: Final = 1.0

Stamp = tuple[int, int, int] | None


class PolicyWatch:
    """One policy file in force, and what is wrong with a later content of it (``problem``), if anything is."""

    def __init__(self, file: PolicyFile, stamp: Stamp, put_in_force: Callable[[PolicyFile], None]) -> None:
        self.problem: str | None = None
        self._file = file
        self._stamp = stamp
        self._put_in_force = put_in_force
        self._next = monotonic() + LOOK_SECONDS
        self._lock = fork.new_lock()

    @property
    def is_due(self) -> bool:
        """Whether a second has passed since somebody looked."""
        return monotonic() >= self._next

    def look(self) -> None:
        """Put a changed file in force; never raises for what is in it."""
        if not self._lock.acquire(blocking=False):  # somebody else is at it
            return
        try:
            self._next = monotonic() + LOOK_SECONDS
            stamp = stamp_of(self._file.path)
            if stamp != self._stamp:
                self._stamp = stamp
                self._read_anew()
        finally:
            self._lock.release()

    def _read_anew(self) -> None:
        path, before = self._file.path, self._file.version
        try:
            file = PolicyFile.read(path)
            if file.version != before:
                self._put_in_force(file)
        except Exception as error:  # noqa: BLE001 - whatever it is, the old content stays in force
            self.problem = str(error)
            _log.error(
                "the policy file %s was changed and cannot be put in force, so version %s of it stays: %s",
                path, before, error,
            )  # fmt: skip
            return
        mended = self.problem is not None
        self._file, self.problem = file, None
        if mended or file.version != before:
            _log.warning(
                "the policy file %s was changed: version %s is in force instead of %s", path, file.version, before
            )


def stamp_of(path: Path) -> Stamp:
    """What tells one content of a file from another without reading it; None if it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
