"""Compressing trace files that nobody writes to any more and that are in the index whole: a twentieth of their size.

The compressed file is another one to the index, and must not be read again: that it has been read is committed before
it has its name, and the original goes last. Killed in between, both are there, and both are known.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
from dataclasses import astuple, replace
from typing import TYPE_CHECKING, BinaryIO, Final

from sagaspan.index.compressed import most_unpacked
from sagaspan.index.files import FileLedger, identified
from sagaspan.index.sync import REMEMBER, known_files
from sagaspan.index.transaction import transaction

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from duckdb import DuckDBPyConnection

_PART: Final = ".gz.part"  # behind a dot, as files are called that no sync looks at
_LEVEL: Final = 6


def pack_files(connection: DuckDBPyConnection, directory: Path, files: Iterable[Path]) -> list[Path]:
    """Compress those of ``files``, in ``directory``, that are in the index whole; returns what they are now."""
    for stale in directory.glob(f".*{_PART}"):  # of somebody who was killed
        stale.unlink(missing_ok=True)
    ledger, packed = FileLedger(known_files(connection)), []
    for path in files:
        with contextlib.suppress(FileNotFoundError), path.open("rb") as stream:  # retention was faster
            known = ledger.find(stream)
            if path.suffix == ".jsonl" and known is not None and known.position == os.fstat(stream.fileno()).st_size:
                packed.append(_pack(connection, path, stream, known.lines))
    return [path for path in packed if path is not None]


def _pack(connection: DuckDBPyConnection, path: Path, stream: BinaryIO, lines: int) -> Path | None:
    """The compressed file; None if it is one that no sync would unpack."""
    target, part = path.with_name(f"{path.name}.gz"), path.with_name(f".{path.name}{_PART}")
    part.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "w+b") as out:
            stream.seek(0)
            with gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=out, mtime=0) as into:
                shutil.copyfileobj(stream, into, 1024 * 1024)
            out.flush()
            os.fsync(out.fileno())
            size = out.tell()
            if stream.tell() > most_unpacked(size):
                return None
            known = replace(identified(out, target, size), position=0, lines=lines, size=size)
        with transaction(connection):
            connection.execute(REMEMBER, astuple(known))
        part.rename(target)
    finally:
        part.unlink(missing_ok=True)
    path.unlink()
    return target
