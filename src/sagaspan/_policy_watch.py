"""The policy file is looked at while agents run: what was changed holds from the next call on, or not at all.

Once a second at most, by a call: one comparison of clocks a call, one ``stat`` a second, nothing for a guard without a
file. A content that cannot be put in force, as a whole, changes nothing and is told of.

Who saves a file empties it first, and the half of it that is there already may be valid: with fewer rules. So a content
holds only once nobody has touched the file for a second, and an empty file says nothing at all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sagaspan import _fork as fork
from sagaspan._clock import monotonic, now_us
from sagaspan._policy_file import PolicyFile
from sagaspan.exceptions import ConfigurationError
from sagaspan.policy import read_policy_text

_log = logging.getLogger("sagaspan")
LOOK_SECONDS: Final = 1.0

Stamp = tuple[int, int, int] | None


class PolicyWatch:
    """One policy file in force, and what is wrong with a later content of it (``problem``), if anything is.

    ``tell`` puts on record that there is a problem with what was in force before, or (None) none any more.
    """

    def __init__(
        self,
        file: PolicyFile,
        stamp: Stamp,
        put_in_force: Callable[[PolicyFile], None],
        tell: Callable[[PolicyFile, str | None], None],
    ) -> None:
        self.problem: str | None = None
        self._tell = tell
        self._file = file
        self._stamp = self._seen = stamp
        self._put_in_force = put_in_force
        self._next = monotonic() + LOOK_SECONDS
        self._looking = fork.new_sign()

    @property
    def is_due(self) -> bool:
        """Whether a second has passed since somebody looked."""
        return monotonic() >= self._next

    def look(self) -> None:
        """Put a changed file in force; never raises for what is in it."""
        if self._looking.locked():  # somebody else is at it, or this thread, and a handler of signals came
            return
        with self._looking:
            self._next = monotonic() + LOOK_SECONDS
            stamp, seen = stamp_of(self._file.path), self._seen
            self._seen = stamp
            if stamp != self._stamp and (stamp == seen or _is_at_rest(stamp)):
                self._read_anew(stamp)

    def _read_anew(self, stamp: Stamp) -> None:
        path, before = self._file.path, self._file.version
        try:
            file = _read(path)
            if stamp_of(path) != stamp:  # written while it was read: the next look tells
                return
            self._stamp = stamp
            if file.version != before:
                self._put_in_force(file)
        except Exception as error:  # noqa: BLE001 - whatever it is, the old content stays in force
            self._stamp = stamp
            self.problem = str(error)
            _log.error(
                "the policy file %s was changed and cannot be put in force, so version %s of it stays: %s",
                path, before, error,
            )  # fmt: skip
            self._tell(self._file, self.problem)
            return
        mended = self.problem is not None
        self._file, self.problem = file, None
        if mended:
            self._tell(file, None)
        if mended or file.version != before:
            _log.warning(
                "the policy file %s was changed: version %s is in force instead of %s", path, file.version, before
            )


def _read(path: Path) -> PolicyFile:
    file = PolicyFile.read(path)
    if not file.tables and not read_policy_text(path).strip():
        raise ConfigurationError(f"{path} is empty; if nothing of it is to hold, write a comment that says so")
    return file


def _is_at_rest(stamp: Stamp) -> bool:
    """Whether nobody has written for a second; a file of a clock that is ahead has to be looked at twice."""
    return stamp is None or now_us() - stamp[0] // 1000 >= LOOK_SECONDS * 1e6


def stamp_of(path: Path) -> Stamp:
    """What tells one content of a file from another without reading it; None if it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
