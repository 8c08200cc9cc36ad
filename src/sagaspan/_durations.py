"""How long: seconds or a ``timedelta`` from code, a text such as ``90s`` or ``90d`` from the command line."""

from __future__ import annotations

import datetime as dt
from typing import Final

from sagaspan._checks import check_seconds

_UNITS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


def microseconds(duration: float | dt.timedelta, name: str) -> int:
    """``duration`` (seconds if it is a number) in microseconds; raises ``ConfigurationError`` with its ``name``."""
    seconds = duration.total_seconds() if isinstance(duration, dt.timedelta) else duration
    check_seconds(name, seconds)
    return round(seconds * 1e6)


def seconds_of(text: str) -> float:
    """Return the seconds of a text such as ``90s``, ``10m``, ``2h`` or ``90d``; raise ``ValueError`` for all else.

    A number without a unit is refused: ``90`` means days to one person and seconds to another.
    """
    unit = next((unit for unit in _UNITS if text.endswith(unit)), "")  # ms comes before s
    seconds = float(text.removesuffix(unit)) * _UNITS[unit] if unit else -1
    if not 0 <= seconds < 1e10:
        raise ValueError(text)
    return seconds
