"""What became of a commit whose answer was lost: the server is asked for it, as soon as it answers again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sagaspan import _clock as clock
from sagaspan.exceptions import StoreUnavailable

_PAUSE_SECONDS: Final = 0.2


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
