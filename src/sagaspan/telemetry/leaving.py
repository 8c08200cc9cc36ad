"""How long a program's end waits for endpoints that are down: under two seconds, for all exporters of ours together.

They are shut down one after the other, so each gets an equal share of what is left.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from sagaspan import _fork as fork

SECONDS: Final = 1.9  # what they do beside waiting is to be within two as well


class Patience:
    """The time that exporters have together from when the first of them is shut down."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = fork.new_lock()
        self._exporters = 0
        self._until = float("-inf")

    def join(self) -> None:
        """There is one more exporter."""
        with self._lock:
            self._exporters += 1

    def take_ms(self) -> int:
        """One of them is shut down now; how many milliseconds it has."""
        with self._lock:
            now = self._clock()
            if now >= self._until:  # the first, or one long after others that the program shut down itself
                self._until = now + SECONDS
            share = (self._until - now) / max(self._exporters, 1)
            self._exporters = max(self._exporters - 1, 0)
            return int(share * 1000)


patience: Final = Patience()
"""That of this process."""
