"""The lock beside the index: whoever syncs holds it alone, whoever reads shares it, and a kill -9 releases
it.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from sagaspan.exceptions import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE: Final = 60.0  # seconds
_POLL: Final = 0.02  # seconds


@contextmanager
def locked(path: Path, *, shared: bool = False, patience: float = PATIENCE) -> Iterator[float]:
    """Hold the file lock at ``path``; wait at most ``patience`` seconds for it. Gives how many it took.

    Raises ``StoreUnavailable`` if others keep it longer, or the file cannot be made.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StoreUnavailable(f"cannot open the lock {path} ({error.strerror}); check who may write there") from error
    try:
        started = time.monotonic()
        _wait(descriptor, path, shared=shared, patience=patience)
        yield time.monotonic() - started
    finally:
        os.close(descriptor)


def _wait(descriptor: int, path: Path, *, shared: bool, patience: float) -> None:
    deadline = time.monotonic() + patience
    while not _try_lock(descriptor, shared=shared):
        if time.monotonic() > deadline:
            raise StoreUnavailable(
                f"another sagaspan has held {path} for {patience:g} s: wait for its sync or query to end, or end it"
            )
        time.sleep(_POLL)


if sys.platform == "win32":
    import msvcrt

    def _try_lock(descriptor: int, *, shared: bool) -> bool:  # noqa: ARG001 - Windows has no shared kind here
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _try_lock(descriptor: int, *, shared: bool) -> bool:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
