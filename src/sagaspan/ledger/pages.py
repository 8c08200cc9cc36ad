"""Pages of what a store lists, of those records alone that fit something the store does not ask about."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")
_PAGE: Final = 1000


def page_of(read: Callable[..., list[T]], fits: Callable[[T], bool], *, limit: int, offset: int) -> list[T]:
    """Return ``limit`` records from the one at ``offset`` on, of those that ``read(limit=, offset=)`` lists and fit."""
    found: list[T] = []
    for at in itertools.count(0, _PAGE):
        page = read(limit=_PAGE, offset=at)
        found += filter(fits, page)
        if len(page) < _PAGE or len(found) >= offset + limit:
            break
    return found[offset : offset + limit]
