"""What became of a commit: one whose answer was lost is asked for as soon as the server answers again.

And one that was answered must still be there, else this is another server than before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sagaspan import _clock as clock
from sagaspan.exceptions import StoreUnavailable

_PAUSE_SECONDS: Final = 0.2
FORGOTTEN: Final = "select 1 from audit where namespace = {0} and run_id = {1} and to_state = 'forgotten'"
"""Where a commit that was on disk may not be any more, and nothing is wrong."""


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
