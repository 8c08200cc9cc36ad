"""The time of a server that many hosts share, told without asking it each time."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from sagaspan import _clock as clock


class ServerTime:
    """Requests, links and grants end by the server's clock, whatever the clocks of the hosts are set to.

    Each new connection and each beat of a lease says what time it is there; in between the clock of this boot counts
    on, which nobody sets.
    """

    _ahead: int | None = None
    """Microseconds by which the time there is ahead of that clock."""

    def _connected(self) -> AbstractContextManager[Any]:
        """A connection for the block; a new one has asked for the time."""
        raise NotImplementedError

    def _it_is(self, now_us: int) -> None:
        self._ahead = now_us - clock.boot_us()

    def now_us(self) -> int:
        """The time by which requests expire: the server's; see ``Store.now_us``."""
        if not clock.is_real():
            return clock.now_us()
        if self._ahead is None:
            with self._connected():
                pass
        return clock.boot_us() + (self._ahead or 0)
