"""What a walk along a chain finds: whatever was pruned and says so is well, and one row less is not."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

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
