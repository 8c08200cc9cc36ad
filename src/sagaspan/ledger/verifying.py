"""What was done to an audit trail: each row that was altered, taken out, put in or moved, by its number in its chain.

A row follows the one before it by its hash alone. Only where none follows do the numbers say what is missing. What was
pruned is explained by a later row of the same chain (``chain.forgetting``), and by nothing else.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from operator import attrgetter, itemgetter
from typing import Final

from sagaspan.ledger import chain
from sagaspan.ledger.chain import FORGET, START, Gap, Link
from sagaspan.ledger.records import ChainedRow


class Problem(StrEnum):
    """What was done. ``record``: to what the ledger says itself, which its history does not lead to."""

    ALTERED = "altered"
    MISSING = "missing"
    INSERTED = "inserted"
    MOVED = "moved"
    UNCHAINED = "unchained"
    TRUNCATED = "truncated"
    REPLACED = "replaced"
    RECORD = "record"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFinding:
    """Something that nobody did through this library: in which run, at which ``number`` of its chain, and what.

    ``number`` is None where it is not about one row; the last of several that are missing is ``until``.
    """

    namespace: str
    run: str
    number: int | None
    problem: Problem
    what: str
    until: int | None = None
    seq: int | None = None


_AT_ODDS: Final = 8
"""So many rows in a row that follow nothing are kept until one follows one of them."""


@dataclass(slots=True)
class _Hole:
    """Numbers that no row had where they belong; ``row`` stands after them, ``between`` are those left at odds."""

    first: int
    last: int
    row: ChainedRow
    found: dict[int, bytes] = field(default_factory=dict)
    between: list[ChainedRow] = field(default_factory=list)


class Walk:
    """One walk along a chain: ``take`` its rows in the order of the ledger, then ``end`` it."""

    def __init__(self, namespace: str, run_id: str, *, chained_from: int = 1, anchor: Link | None = None) -> None:
        self._finding = partial(AuditFinding, namespace=namespace, run=run_id)
        self._chained_from = chained_from
        self._anchor = anchor
        self.rows = 0
        self.outside = 0
        self.forgotten = 0
        self.head = START
        self.findings: list[AuditFinding] = []
        self._odd: list[ChainedRow] = []
        self._holes: list[_Hole] = []
        self._gaps: list[Gap] = []
        self._ends: defaultdict[int, list[Link]] = defaultdict(list)

    # -- one row after the other -------------------------------------------------------------------------------

    def take(self, row: ChainedRow) -> None:
        """The next row of the ledger that is of this chain."""
        if row.number is None or row.hash is None:
            self._take_unchained(row)
            return
        self.rows += 1
        if self._anchor is not None and row.number == self._anchor[0] and row.hash != self._anchor[1]:
            self._find(row, Problem.REPLACED, "it is not the row that the anchor has")
        if row.row.event == FORGET:
            self._learn(row)
        if self._follows(row, self.head):
            self._leave(self._odd)
            self._odd = []
            self._go_on(row)
            return
        for odd in self._odd:
            if any(self._follows(row, link) for link in self._links(odd)):
                self._adopt(odd)
                self._leave(self._odd)
                self._odd = []
                self._go_on(row)
                return
        self._odd.append(row)
        if len(self._odd) > _AT_ODDS:
            self._adopt(self._odd[0])

    def end(self) -> list[AuditFinding]:
        """What was found in all."""
        while self._odd:
            self._adopt(min(self._odd, key=lambda row: (row.number or 0) <= self.head[0]))
        self._gaps.sort()
        for _, last, digest in self._gaps:
            self._ends[last].append((last, digest))
        for hole in self._holes:
            self._close(hole)
        self._check_anchor()
        return self.findings

    def _take_unchained(self, row: ChainedRow) -> None:
        if row.seq < self._chained_from and row.number is None and row.hash is None and not self.rows:
            self.outside += 1
        else:
            self._find(row, Problem.UNCHAINED, "it has no place in the chain: it was put in, or its place taken away")

    def _follows(self, row: ChainedRow, before: Link) -> bool:
        return chain.link(before, row.seq, row.row, row.content)[1] == row.hash

    def _links(self, odd: ChainedRow) -> Iterator[Link]:
        """What a row that follows ``odd`` may be bound to: what that has, and what it would have."""
        yield odd.number or 0, odd.hash or b""
        yield chain.link(self.head, odd.seq, odd.row, odd.content)

    def _go_on(self, row: ChainedRow) -> None:
        number = self.head[0] + 1
        if row.number != number:
            self._find(row, Problem.ALTERED, f"it is number {number} of its chain and says {row.number}", number=number)
        self.head = number, row.hash or b""

    def _adopt(self, odd: ChainedRow) -> None:
        """Take ``odd`` for a row of the chain, though it does not follow, with those before it that go up to it."""
        for row in self._odd:
            if row is not odd and row.seq < odd.seq:
                if self.head[0] < (row.number or 0) < (odd.number or 0):
                    self._jump_to(row)
                else:
                    self._leave([row])
        self._odd = [row for row in self._odd if row.seq > odd.seq]
        if (odd.number or 0) > self.head[0]:
            self._jump_to(odd)
        else:
            self._leave([odd])

    def _jump_to(self, row: ChainedRow) -> None:
        number = row.number or 0
        if number > self.head[0] + 1:
            self._holes.append(_Hole(self.head[0] + 1, number - 1, row))
        else:
            self._find(row, Problem.ALTERED, "it is not as it was written, or the one before it is not")
        self.head = number, row.hash or b""

    def _leave(self, rows: list[ChainedRow]) -> None:
        for row in rows:
            number = row.number or 0
            at = bisect_right(self._holes, number, key=attrgetter("first")) - 1  # they come in the order of numbers
            hole = self._holes[at] if at >= 0 else None
            if hole is None or number > hole.last or number in hole.found:
                self._find(row, Problem.INSERTED, "there is another row of this number, or no place for it")
            else:
                hole.found[number] = row.hash or b""
                hole.between.append(row)

    def _learn(self, row: ChainedRow) -> None:
        try:
            self._gaps += chain.gaps_of(row.row)
        except ValueError as error:
            self._find(row, Problem.ALTERED, str(error))

    # -- what is not there -------------------------------------------------------------------------------------

    def _close(self, hole: _Hole) -> None:
        for row in hole.between:  # a row that was pruned later may say what was before it
            hole.found[row.number or 0] = row.hash or b""
            if not any(self._follows(row, before) for before in self._ends.get((row.number or 0) - 1, ())):
                self._find(row, Problem.MOVED, f"it stands after number {hole.last + 1}")
        first, known = hole.first, {number: number for number in hole.found}
        for at in range(bisect_left(self._gaps, hole.first, key=itemgetter(0)), len(self._gaps)):
            gap_first, gap_last, digest = self._gaps[at]
            if gap_first > hole.last:
                break
            if gap_first <= gap_last <= hole.last:
                known[gap_first] = gap_last
                self.forgotten += gap_last - gap_first + 1
                hole.found[gap_last] = digest
        for number, last in (*sorted(known.items()), (hole.last + 1, hole.last + 1)):
            if number > first:
                self._find_missing(first, number - 1)
            first = max(first, last + 1)
        before = hole.found.get(hole.last)
        if before is not None and not self._follows(hole.row, (hole.last, before)):
            self._find(hole.row, Problem.ALTERED, "it is not as it was written, or not where it was")

    def _find_missing(self, first: int, last: int) -> None:
        what = "it is not there" if first == last else f"they are not there, up to number {last}"
        self.findings.append(
            self._finding(number=first, until=last, problem=Problem.MISSING,
                    what=f"{what}, and no row says that it was pruned")
        )  # fmt: skip

    def _check_anchor(self) -> None:
        if self._anchor is None:
            return
        number, digest = self._anchor
        if number > self.head[0]:
            self.findings.append(
                self._finding(number=self.head[0] + 1, until=number, problem=Problem.TRUNCATED,
                        what=f"the anchor has {number} rows, and the chain ends after {self.head[0]}")
            )  # fmt: skip
        elif any(last == number and pruned != digest for _, last, pruned in self._gaps):
            self.findings.append(
                self._finding(number=number, problem=Problem.REPLACED,
                        what="what was pruned is not what the anchor has")
            )  # fmt: skip

    def _find(self, row: ChainedRow, problem: Problem, what: str, *, number: int | None = None) -> None:
        named = row.number if number is None else number
        about = f"{row.row.event} ({row.row.call_id or row.row.approval_id or 'run'}): {what}"
        self.findings.append(self._finding(number=named, problem=problem, what=about, seq=row.seq))
