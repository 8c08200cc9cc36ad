"""JSON that every reader reads alike: no field twice, no NaN or Infinity, which are none of its numbers, and none that
is too large for one.
"""

from __future__ import annotations

import json
import math
from typing import Any


def loads(text: str | bytes) -> Any:
    """The data of ``text``; raises ``ValueError``."""
    try:
        return json.loads(text, object_pairs_hook=_no_doubles, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a field is there twice")
    return found


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:20]} is too large for a number")
    return number


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")
