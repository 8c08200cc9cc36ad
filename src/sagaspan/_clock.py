"""The clock and the ids of the ledger."""

from __future__ import annotations

import os
import time


def now_us() -> int:
    """Microseconds since the epoch (UTC)."""
    return time.time_ns() // 1000


def new_id(at_us: int) -> str:
    """A 32-digit hex id that sorts by time, so that a growing ledger appends to its index instead of scattering."""
    return f"{at_us:014x}{os.urandom(9).hex()}"
