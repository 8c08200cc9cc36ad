"""A clock that moves only when it is told to: windows, leases and settle times are tested without waiting for them."""

from __future__ import annotations

import contextlib
import datetime as dt
import threading
from collections.abc import Iterator

from sagaspan import _clock as clock
from sagaspan.exceptions import ConfigurationError
from sagaspan.ledger.leases import lapse_all
from sagaspan.ledger.records import moment


class FrozenClock:
    """The time that sagaspan reads inside ``frozen_clock()``."""

    def __init__(self, wall_us: int, monotonic_us: int) -> None:
        self._wall_us = wall_us
        self._monotonic_us = monotonic_us
        self._skew_us = 0
        self._lock = threading.Lock()

    @property
    def now(self) -> dt.datetime:
        """The wall clock, UTC."""
        return moment(self.now_us())

    def advance(self, by: float | dt.timedelta) -> None:
        """Let so much time pass (seconds, or a ``timedelta``)."""
        seconds = by.total_seconds() if isinstance(by, dt.timedelta) else float(by)
        if not 0 <= seconds < float("inf"):
            raise ConfigurationError(f"a clock does not advance by {by!r}; give seconds or a timedelta")
        self.pass_by(seconds)

    @contextlib.contextmanager
    def skewed(self, by: float | dt.timedelta) -> Iterator[None]:
        """Let the wall clock be off by so much within the block, as on another machine; intervals are right there."""
        seconds = by.total_seconds() if isinstance(by, dt.timedelta) else float(by)
        before, self._skew_us = self._skew_us, round(seconds * 1e6)
        try:
            yield
        finally:
            self._skew_us = before

    # -- what sagaspan reads (``sagaspan._clock.Clock``) --------------------------------------------------------

    def now_us(self) -> int:
        """Microseconds since the epoch (UTC)."""
        return self._wall_us + self._skew_us

    def monotonic_us(self) -> int:
        """Microseconds of the clock that nobody sets."""
        return self._monotonic_us

    def pass_by(self, seconds: float) -> None:
        """Somebody waits so long: it takes no time, and the clock is later by that."""
        # A wait that rounds to nothing would not move the clock, and who waits for a deadline would wait for ever.
        microseconds = max(round(seconds * 1e6), 1) if seconds > 0 else 0
        with self._lock:
            self._wall_us += microseconds
            self._monotonic_us += microseconds


@contextlib.contextmanager
def frozen_clock(at: dt.datetime | None = None) -> Iterator[FrozenClock]:
    """Stop the time for sagaspan, in all threads, at ``at`` (None: now); ``advance`` moves it.

    sagaspan's own waits (the delay of a retry, ``wait=60``) take no time there and move the clock by as much. No lease
    is renewed behind your back: who works for longer than a lease without a call is as one that was stopped. A tool's
    ``timeout`` still counts real seconds, for its body is real. Raises ``ConfigurationError`` for a naive ``at``.
    """
    if at is not None and at.tzinfo is None:
        raise ConfigurationError(f"{at!r} has no time zone; say datetime(..., tzinfo=timezone.utc)")
    wall_us = clock.now_us() if at is None else round(at.timestamp() * 1e6)
    frozen = FrozenClock(wall_us, clock.boot_us())
    before = clock.put_in_place(frozen)
    lapse_all()
    try:
        yield frozen
    finally:
        clock.put_in_place(before)
        lapse_all()
