"""What the index was last synced with, noted beside it: while that is as it was, nobody opens it to find nothing.

Opening the index takes longer than all else that a command does. The note is a hint that is compared as a whole: files
by name, inode, size and time of change, taken before they were read, and the index itself; whatever differs in any of
it, or cannot be read, is looked at properly.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sagaspan.index.files import trace_files
from sagaspan.index.sql import SCHEMA_VERSION

if TYPE_CHECKING:
    from pathlib import Path

Listing = list[list[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """The trace files that are in the index whole (None: not known), the index, and how far the ledger is copied."""

    files: Listing | None
    index: Listing
    ledger: dict[str, Any]
    version: int = SCHEMA_VERSION


def listing(directory: Path) -> Listing:
    """The trace files as they are now."""
    return _described(trace_files(directory))


def read_stamp(index: Path) -> Stamp | None:
    """The note beside ``index``; None if there is none, or the index has changed since."""
    try:
        noted = Stamp(**json.loads(_place(index).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    current = noted.version == SCHEMA_VERSION and noted.index and noted.index == _described([index])
    return noted if current and not _log(index).exists() else None


def write_stamp(index: Path, files: Listing | None, ledger: dict[str, Any]) -> None:
    """Note that the index, which is closed, holds all of ``files``, and so much of the ledger."""
    place = _place(index)
    part = place.with_name(f"{place.name}.{secrets.token_hex(4)}")
    text = json.dumps(asdict(Stamp(files=files, index=_described([index]), ledger=ledger)))
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
            stream.write(text)
        part.replace(place)
    except OSError:  # a full disk: the next sync looks for itself
        with contextlib.suppress(OSError):
            part.unlink()


def _place(index: Path) -> Path:
    return index.with_name(".synced")


def _log(index: Path) -> Path:
    """What DuckDB leaves beside the index where it was killed."""
    return index.with_name(f"{index.name}.wal")


def _described(paths: list[Path]) -> Listing:
    found = []
    for path in paths:
        with contextlib.suppress(OSError):
            status = path.stat()
            found.append([path.name, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns])
    return found
