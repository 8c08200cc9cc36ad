"""What somebody is told of a run before he decides about one more call of it, and what is read for that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sagaspan import Guard
from sagaspan.stores import connect
from tests.ledger.stores import Earlier, Weighed


class Backwards:
    """A codec that anybody can break."""

    def encode(self, data: bytes) -> bytes:
        return bytes(255 - one for one in data)

    decode = encode


def _told(guard: Guard, calls: int, run: str = "a", tools: int = 1) -> dict[str, Any]:
    """What is said of a run that has made so many calls of each of some tools, after one that failed."""
    seen: dict[str, Any] = {}
    pay = guard.tool("pay", approve=True, effect="write")(lambda amount: None)
    fails = guard.tool("fails", compensate=lambda: None)(_fails)
    made = [
        guard.tool(f"book-{number}", compensate=_cancel, cost="0.05 USD", repeat="new", loop=False)(_booked)
        for number in range(tools)
    ]

    def look(request: Any) -> bool:
        seen.update((name, request.facts[name]) for name in ("calls", "cost", "undo"))
        return True

    with guard.override(approver=look), guard.run(id=run):
        with pytest.raises(LookupError):
            fails()
        for book in made:
            for _ in range(calls):
                book()
        pay(5)
    return seen


def _booked() -> str:
    return "booked"


def _cancel() -> None:
    """Nothing is left of it."""


def _fails() -> None:
    raise LookupError


def test_what_would_be_undone_is_named_newest_first_and_the_rest_is_counted(guard: Guard) -> None:
    """A call that failed would not be; ten kinds are named."""
    told = _told(guard, calls=2, tools=12)
    assert (told["calls"], told["cost"]) == (25, "1.2 USD")
    named = ", ".join(f"book-{number} by _cancel (2)" for number in range(11, 1, -1))
    assert told["undo"] == f"{named}, and 2 more"


def test_what_is_read_for_a_request_does_not_grow_with_its_run(tmp_path: Path) -> None:
    """Two numbers and a few names are shown, so no more is read: a run may have made ten thousand calls."""
    read = []
    for calls in (2, 40):
        store = Weighed(tmp_path / f"{calls}.db")
        with Guard(store) as guard:
            assert _told(guard, calls)["calls"] == calls + 1
        read.append(store.rows)
    assert read[0] == read[1]


def test_a_store_that_cannot_count_says_the_same(store_url: str) -> None:
    """Who made a store of his own before that is not to change it: its calls are read, as they were."""
    earlier: Any = Earlier(connect(store_url))
    with Guard(earlier) as guard, Guard(store_url) as other:
        assert _told(guard, 3, tools=11) == _told(other, 3, run="b", tools=11)


def test_an_encrypted_ledger_says_the_same(store_url: str, tmp_path: Path) -> None:
    """Names of tools are no content, so they are counted without reading any."""
    with Guard(store_url) as guard, Guard(f"sqlite:///{tmp_path}/other.db", codec=Backwards()) as other:
        told = _told(guard, 3)
        assert told == _told(other, 3)
        assert told["undo"] == "book-0 by _cancel (3)"
