"""Compressed trace files: gzip, zstd, and what the Collector's ``file`` exporter writes with ``compression: zstd``.

That is no zstd file: each message is a frame of its own behind its length in four bytes, which other tools cannot read.
A file is told by its first bytes, whatever it is called. What is new in it is unpacked into a file of its own, whole
members or frames at a time, so that a file that is still being written to is read as far as it is whole.
"""

from __future__ import annotations

import gzip
import os
import shutil
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
# A frame that holds a newline: messages of the Collector end without one.
_NEWLINE: Final = _ZSTD + b"\x20\x01\x09\x00\x00\x0a"
_PREFIX: Final = 4
_PART: Final = 8 * 1024 * 1024  # compressed bytes that are unpacked at once
_LONGEST_LINE: Final = 256 * 1024 * 1024
_UNPACK: Final = """
copy (
    select line from read_csv(
        ?, columns = {'line': 'VARCHAR'}, auto_detect = false, header = false, delim = '\x01', quote = '', escape = '',
        comment = '', compression = 'zstd', max_line_size = $LONGEST, null_padding = true, strict_mode = false,
        ignore_errors = true
    )
) to '$TARGET' (format csv, header false, delimiter '\x01', quote '', escape '')
"""


def is_compressed(stream: BinaryIO) -> bool:
    """Whether the file begins as one that is read here."""
    return _kind(stream) is not None


@contextmanager
def unpacked(stream: BinaryIO, start: int, target: Path) -> Iterator[tuple[BinaryIO, int] | None]:
    """What stands in the file from byte ``start`` on, as lines, and the byte up to which that is; None if nothing does.

    ``target`` is where it is unpacked to, for as long as the block lasts. Raises ``OSError`` if it cannot be.
    """
    part = target.with_suffix(".part")
    try:
        end = _unpack(stream, start, target, part)
        if end <= start:
            yield None
            return
        with target.open("rb") as lines:
            yield lines, end
    except (EOFError, zlib.error) as error:
        raise OSError(0, f"not a whole compressed file: {error}") from error
    finally:
        part.unlink(missing_ok=True)
        target.unlink(missing_ok=True)


def _kind(stream: BinaryIO) -> str | None:
    stream.seek(0)
    head = stream.read(_PREFIX + len(_ZSTD))
    if head.startswith(_GZIP):
        return "gzip"
    if head.startswith(_ZSTD):
        return "zstd"
    return "frames" if head[_PREFIX:] == _ZSTD else None


def _unpack(stream: BinaryIO, start: int, target: Path, part: Path) -> int:
    kind, size = _kind(stream), os.fstat(stream.fileno()).st_size
    stream.seek(start)
    if start >= size:
        return start
    if kind == "gzip":
        with _new(target) as lines, gzip.GzipFile(fileobj=stream) as unzipped:
            shutil.copyfileobj(unzipped, lines, 1024 * 1024)
            lines.write(b"\n")
        return size
    with _new(part) as frames:
        end = _copy_frames(stream, start, size, frames) if kind == "frames" else _copy_all(stream, size, frames)
    if end > start:
        _unzstd(part, target)
    return end


def _copy_frames(stream: BinaryIO, start: int, size: int, out: BinaryIO) -> int:
    """The next messages that are whole; returns where they end."""
    end = start
    while end - start < _PART:
        prefix = stream.read(_PREFIX)
        length = int.from_bytes(prefix, "big")
        if len(prefix) < _PREFIX or end + _PREFIX + length > size:
            break
        frame = stream.read(length)
        if not frame.startswith(_ZSTD):
            raise OSError(0, f"at byte {end} is no zstd frame")
        out.write(frame)
        out.write(_NEWLINE)
        end += _PREFIX + length
    return end


def _copy_all(stream: BinaryIO, size: int, out: BinaryIO) -> int:
    shutil.copyfileobj(stream, out, 1024 * 1024)
    return size


def _unzstd(part: Path, target: Path) -> None:
    """By DuckDB, which has zstd; Python has it from 3.14 on."""
    import duckdb

    quoted = str(target).replace("'", "''")
    statement = _UNPACK.replace("$TARGET", quoted).replace("$LONGEST", str(_LONGEST_LINE))
    _new(target).close()
    try:
        with duckdb.connect() as connection:
            connection.execute(statement, [str(part)])
    except duckdb.Error as error:
        raise OSError(0, str(error).splitlines()[0]) from error


def _new(path: Path) -> BinaryIO:
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
