"""What became of what a server was told: an error of its driver is one of three, and says the same on each of them.

A commit whose answer was lost is asked for as soon as the server answers again. And one that was answered must still be
there, else this is another server than before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sagaspan import _clock as clock
from sagaspan.exceptions import StoreUnavailable

WAIT_SECONDS: Final = 10.0
"""How long to wait for a lock of somebody else, for a connection, and for a server that is being started again."""
FORGOTTEN: Final = "select 1 from audit where namespace = ? and run_id = ? and to_state = 'forgotten'"
"""Where a commit that was on disk may not be any more, and nothing is wrong."""

LOCKED: Final = (
    f"the ledger {{where}} stayed locked for {WAIT_SECONDS:.0f} s by another; nothing was started, try again"
)
GONE: Final = "the ledger at {where} is gone, or this is another server than before ({said}); nothing was started"
FORBIDDEN: Final = "this user may not use the ledger {where} so ({said}); grant it, or name another user"
FULL: Final = "the disk of the ledger {where} is full; nothing was started, make room and try again"
READ_ONLY: Final = "the ledger {where} is read-only now (a standby, or a replica?); nothing was started"
UNUSABLE: Final = "the ledger {where} cannot be used ({said}); try again, or look at the server"

_PAUSE_SECONDS: Final = 0.2


class Fate(Exception):
    """``error`` is that of the driver."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Lost(Fate):
    """The connection is gone, and with it the answer."""


class Again(Fate):
    """The server gave up for the sake of another: nothing is committed, and the same may be sent again."""


class Refused(Fate):
    """The server, or the driver, said no: nothing is committed."""


class Migrated(Exception):
    """Somebody has migrated the ledger since the connection was made, or is at it: nothing is committed."""


def said(error: Exception) -> str:
    """What an error says first, in one line; libpq puts two blanks where its parts meet, and a newline behind."""
    text = str(error.args[-1] if error.args else error)
    return " ".join((text.strip().splitlines() or [type(error).__name__])[0].split())


def found_out(knows: Callable[[], bool], seconds: float) -> bool:
    """What ``knows`` says, waiting so long for a server that is being started again: else nobody would know.

    Raises ``StoreUnavailable`` if it is not up by then.
    """
    deadline = clock.monotonic() + seconds
    while True:
        try:
            return knows()
        except StoreUnavailable:
            if clock.monotonic() >= deadline:
                raise
        clock.sleep(_PAUSE_SECONDS)


def older(where: str) -> StoreUnavailable:
    """The error for a server that lacks what it said was on its disk: it would be done again."""
    return StoreUnavailable(
        f"the ledger {where} is older than it was: a commit that was on its disk is not there (a fail-over to a "
        "standby that lagged, or a backup?); nothing was started. Look at what was lost, and start this program again"
    )
