"""The clocks and the ids of the ledger: every time it reads, and every wait, comes from here.

So that ``sagaspan.testing.frozen_clock`` can put a clock in their place that moves only when it is told to. (Bodies
and their ``timeout`` take real time, and so do spans: the OpenTelemetry SDK reads the clock for itself.)
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import Protocol


class Clock(Protocol):
    """What stands in for the clocks of this machine."""

    def now_us(self) -> int:
        """Microseconds since the epoch (UTC)."""

    def monotonic_us(self) -> int:
        """Microseconds of the clock that nobody sets."""

    def pass_by(self, seconds: float) -> None:
        """Somebody waits so long."""


_stand_in: Clock | None = None
_MOMENT = 0.0005
"""Seconds of real time in which other threads get on, while somebody waits on a clock that stands still."""


def now_us() -> int:
    """Microseconds since the epoch (UTC)."""
    return time.time_ns() // 1000 if _stand_in is None else _stand_in.now_us()


def monotonic() -> float:
    """Seconds of a clock that nobody sets, for measuring how long something takes."""
    return time.monotonic() if _stand_in is None else _stand_in.monotonic_us() / 1e6


def boot_us() -> int:
    """Microseconds on the clock that every process of this boot shares and nobody sets."""
    return time.monotonic_ns() // 1000 if _stand_in is None else _stand_in.monotonic_us()


def sleep(seconds: float) -> None:
    """Wait ``seconds``."""
    if _stand_in is None:
        time.sleep(seconds)
    else:
        _stand_in.pass_by(seconds)
        if threading.active_count() > 1:
            time.sleep(min(seconds, _MOMENT))


async def asleep(seconds: float) -> None:
    """As ``sleep``, for a running loop."""
    if _stand_in is None:
        await asyncio.sleep(seconds)
    else:
        _stand_in.pass_by(seconds)
        await asyncio.sleep(min(seconds, _MOMENT))


def is_real() -> bool:
    """Whether time passes by itself."""
    return _stand_in is None


def put_in_place(clock: Clock | None) -> Clock | None:
    """Read ``clock`` from now on (None: this machine's); returns what was read before."""
    global _stand_in
    before, _stand_in = _stand_in, clock
    return before


def new_id(at_us: int) -> str:
    """A 32-digit hex id that sorts by time, so that a growing ledger appends to its index instead of scattering."""
    return f"{at_us:014x}{os.urandom(9).hex()}"
