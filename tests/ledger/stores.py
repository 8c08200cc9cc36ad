"""Stores that differ from the house's in what they can do, or that know what was read of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sagaspan.stores.sqlite import SqliteStore


class Earlier:
    """A store as somebody made it before stores could count and sift."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        if name in ("tally_of", "open_calls_of"):
            raise AttributeError(name)
        return getattr(self._store, name)


class Weighed(SqliteStore):
    """A store that knows how many rows were read of it."""

    rows = 0

    def _fetch(self, query: str, values: Sequence[Any]) -> list[Any]:
        found = super()._fetch(query, values)
        self.rows += len(found)
        return found
