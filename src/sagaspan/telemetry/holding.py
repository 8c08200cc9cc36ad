"""Whether somebody still writes to a trace file: its writer holds a lock on it for as long as it is open.

A name cannot say it. Process 1 of one container is not that of another, two services of one program are one process,
and a machine that slept for hours has files that only look old. Deleted or compressed then, they take all spans to come
with them. A kill -9 lets go of the lock.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

if sys.platform == "win32":

    def hold(descriptor: int) -> None:
        """Nothing to do: Windows deletes no file that is open."""

    def is_held(path: Path) -> bool:  # noqa: ARG001
        """False: the system says it when the file is to go."""
        return False

else:
    import fcntl

    def hold(descriptor: int) -> None:
        """Hold the file as one that is written to, until the last copy of ``descriptor`` is closed."""
        with contextlib.suppress(OSError):  # a file system without locks: its name has to do
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def is_held(path: Path) -> bool:
        """Whether somebody writes to the file, or nobody here may know."""
        try:
            descriptor = os.open(path, os.O_RDWR)
        except OSError:
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return False
