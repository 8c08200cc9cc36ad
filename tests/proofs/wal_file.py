"""SQLite's write-ahead log as bytes (sqlite.org/fileformat2.html, section 4): where its frames begin and end."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

HEADER: Final = 32
FRAME_HEADER: Final = 24


@dataclass(frozen=True, slots=True)
class Wal:
    """The frames of a log that are in force: ``commits[n]``: whether frame n ends a transaction."""

    page: int
    commits: tuple[bool, ...]

    def __len__(self) -> int:
        return len(self.commits)

    def offset(self, frame: int) -> int:
        """Where frame number ``frame`` begins: the length of a log of so many whole frames."""
        return HEADER + frame * (FRAME_HEADER + self.page)

    def whole(self, frame: int) -> int:
        """How many of the first ``frame`` frames belong to transactions that are whole."""
        return next((n for n in range(frame, 0, -1) if self.commits[n - 1]), 0)


def read(data: bytes) -> Wal:
    """The log of ``data``; frames of before it was begun again, which may follow, are not of it."""
    if len(data) < HEADER:
        return Wal(4096, ())
    (page,) = struct.unpack_from(">I", data, 8)
    salt = data[16:24]
    commits = []
    for start in range(HEADER, len(data) - FRAME_HEADER - page + 1, FRAME_HEADER + page):
        (size,) = struct.unpack_from(">I", data, start + 4)
        if data[start + 8 : start + 16] != salt:
            break
        commits.append(size > 0)
    return Wal(page, tuple(commits))
