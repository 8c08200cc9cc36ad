"""Where a line stands that could not be read, and what is wrong with it: enough for a person to find and judge it."""

from __future__ import annotations

import json
from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from sagaspan.index.rows import DamagedLine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sagaspan.index.files import Slice

REPORTED_PER_BATCH: Final = 1000  # a binary file that is called .jsonl must not fill the index with its lines


def has_text(line: bytes) -> bool:
    """False for the lines that DuckDB's reader passes over."""
    return bool(line.strip(b" \t\r"))


def damaged_lines(rows: Sequence[int], slices: Sequence[Slice], first_rows: Sequence[int]) -> list[DamagedLine]:
    """The staged ``rows`` as places in the files. ``first_rows`` is where each slice begins in the staged table."""
    by_slice: dict[int, set[int]] = {}
    for row in rows[:REPORTED_PER_BATCH]:
        index = bisect_right(first_rows, row) - 1
        by_slice.setdefault(index, set()).add(row - first_rows[index])
    located = [line for index, wanted in by_slice.items() for line in _lines_of(slices[index], wanted)]
    if len(rows) > REPORTED_PER_BATCH:
        last = located[-1]
        reason = f"{len(rows) - REPORTED_PER_BATCH} more damaged lines after this one are not listed"
        located.append(DamagedLine(path=last.path, line=last.line, position=last.position, reason=reason))
    return located


def too_long(slices: Sequence[Slice]) -> list[DamagedLine]:
    """What was passed over: lines that do not fit in a batch, and files that unpack to too much."""
    return [
        DamagedLine(path=piece.path, line=piece.first_line, position=piece.position, reason=piece.passed_over)
        for piece in slices
        if not piece.data
    ]


def _lines_of(piece: Slice, wanted: set[int]) -> Iterator[DamagedLine]:
    row, position = 0, piece.position
    for number, line in enumerate(piece.data.split(b"\n"), piece.first_line):
        if has_text(line):
            if row in wanted:
                yield DamagedLine(path=piece.path, line=number, position=position, reason=_reason(line))
            row += 1
        position += len(line) + 1


def _reason(line: bytes) -> str:
    try:
        json.loads(line)
    except UnicodeDecodeError:
        return "holds bytes that are not UTF-8; skipped, the other lines are in"
    except (ValueError, RecursionError) as error:
        return f"is not JSON ({error}), perhaps cut off by a crash; skipped, the other lines are in"
    return "is no OTLP trace line (no list of resourceSpans); skipped, move other files out of this folder"
