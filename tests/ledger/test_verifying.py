"""What a walk along a chain finds: whatever was pruned and says so is well, and one row less is not."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import combinations
from types import FrameType
from typing import Any

import pytest

from sagaspan.ledger import chain
from sagaspan.ledger.records import AuditRow, ChainedRow
from sagaspan.ledger.verifying import AuditFinding, Walk

ROWS = 8


def appended(rows: list[ChainedRow], row: AuditRow) -> None:
    """``row`` at the end of a chain that has the first row of the ledger."""
    last = rows[-1] if rows else None
    before = chain.START if last is None or last.number is None or last.hash is None else (last.number, last.hash)
    number, digest = chain.link(before, len(rows) + 1, row, None)
    rows.append(ChainedRow(len(rows) + 1, number, None, digest, row))


def a_chain() -> list[ChainedRow]:
    rows: list[ChainedRow] = []
    for number in range(ROWS):
        row = AuditRow(at_us=number, namespace="n", run_id="r", call_id=f"c-{number}", event="claim", from_state=None,
                       to_state="running", actor="a")  # fmt: skip
        appended(rows, row)
    return rows


def pruned(rows: list[ChainedRow], numbers: Sequence[int]) -> list[ChainedRow]:
    """The chain without these rows, and with one that says so."""
    gone = [(row.number, row.number, row.hash) for row in rows if row.number in numbers]
    told = list(rows)
    appended(told, chain.forgetting("n", "r", gone, actor="a", at_us=1))  # type: ignore[arg-type] # they have one
    return [row for row in told if row.number not in numbers]


def walked(rows: Sequence[ChainedRow]) -> list[AuditFinding]:
    walk = Walk("n", "r")
    for row in rows:
        walk.take(row)
    return walk.end()


@pytest.mark.parametrize("more", [0, 1, 3])
def test_whatever_was_pruned_is_well_if_a_row_says_so(more: int) -> None:
    """Any rows, one by one or many, and whatever came after that; but no row that nobody told of."""
    rows = a_chain()
    for count in range(1, ROWS + 1):
        for numbers in combinations(range(1, ROWS + 1), count):
            left = pruned(rows, numbers)
            gap = [row for row in left if row.seq <= ROWS]
            full = [*rows, left[-1]]
            for number in range(more):
                appended(full, AuditRow(at_us=number, namespace="n", run_id="r", call_id=None, event="e",
                                        from_state=None, to_state="t", actor="a"))  # fmt: skip
            kept = [*gap, *full[ROWS:]]
            assert walked(kept) == [], numbers
            for row in gap:
                named = {number for one in walked([one for one in kept if one is not row])
                         for number in range(one.number or 0, (one.until or one.number or 0) + 1)}  # fmt: skip
                assert row.number in named, (numbers, row.number)


def steps_of(pieces: int) -> int:
    """Return how many lines of code a walk runs along a chain that was pruned in so many pieces."""
    rows: list[ChainedRow] = []
    for number in range(2 * pieces):
        appended(rows, AuditRow(at_us=number, namespace="n", run_id="r", call_id=f"c-{number}", event="claim",
                                from_state=None, to_state="running", actor="a"))  # fmt: skip
    left, steps = pruned(rows, range(1, 2 * pieces, 2)), 0

    def count(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal steps
        steps += event == "line"
        return count if "verifying" in frame.f_code.co_filename or frame.f_code.co_name == "<genexpr>" else None

    before = sys.gettrace()
    sys.settrace(count)
    try:
        findings = walked(left)
    finally:
        sys.settrace(before)
    assert findings == []
    return steps


def test_a_chain_that_was_pruned_in_twice_the_pieces_takes_twice_the_steps() -> None:
    """Each hole is compared with what was pruned there, and not with all that was ever pruned."""
    assert steps_of(400) / steps_of(200) < 2.4
