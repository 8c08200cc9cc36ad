"""JSON that every reader reads alike: no field twice, and no NaN or Infinity, which are none of its numbers."""

from __future__ import annotations

import json
from typing import Any


def loads(text: str | bytes) -> Any:
    """The data of ``text``; raises ``ValueError``."""
    try:
        return json.loads(text, object_pairs_hook=_no_doubles, parse_constant=_no_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a field is there twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")
