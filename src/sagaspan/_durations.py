"""How long: seconds or a ``timedelta`` from code, ``90s``, ``10m``, ``2h`` or ``90d`` from the command line."""

from __future__ import annotations

import datetime as dt
from typing import Final

from sagaspan._checks import check_seconds

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def microseconds(duration: float | dt.timedelta, name: str) -> int:
    """``duration`` (seconds if it is a number) in microseconds; raises ``ConfigurationError`` with its ``name``."""
    seconds = duration.total_seconds() if isinstance(duration, dt.timedelta) else duration
    check_seconds(name, seconds)
    return round(seconds * 1e6)


def seconds_of(text: str) -> float:
    """The seconds of a text like ``90s``, ``10m``, ``2h``, ``90d`` or ``5``; raises ``ValueError``."""
    unit = _UNITS.get(text[-1:])
    seconds = float(text[:-1] if unit else text) * (unit or 1)
    if not 0 <= seconds < 1e10:
        raise ValueError(text)
    return seconds
