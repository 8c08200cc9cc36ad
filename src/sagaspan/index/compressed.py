"""Compressed trace files: gzip, zstd, and what the Collector's ``file`` exporter writes with ``compression: zstd``.

That is no zstd file: each message is a frame of its own behind its length in four bytes, which other tools cannot read.
A file is told by its first bytes, whatever it is called. What is new in it is unpacked into a file of its own, whole
members or frames at a time, so that a file that is still being written to is read as far as it is whole.

A small file can unpack to any size. One that unpacks to more than a multiple of its size is refused for good, and one
that would take more than half of the free disk is refused until there is room.
"""

from __future__ import annotations

import errno
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
_UNPACK: Final = f"""
select line from read_csv(
    ?, columns = {{'line': 'VARCHAR'}}, auto_detect = false, header = false, delim = '\x01', quote = '', escape = '',
    comment = '', compression = 'zstd', max_line_size = {_LONGEST_LINE}, null_padding = true, strict_mode = false,
    ignore_errors = true
)
"""  # noqa: S608 - our own number
_ROWS: Final = 1024
MULTIPLE: Final = 100
"""How many times its size a file may unpack to. Spans compress to a twentieth; a run of equal bytes to a thousandth."""

ALWAYS: Final = 64 * 1024 * 1024
"""Bytes that a file may unpack to, however small it is."""


class TooLarge(Exception):
    """The file unpacks to more than it may, up to its byte ``end``."""

    def __init__(self, end: int, most: int) -> None:
        super().__init__(f"it unpacks to more than {most:,} bytes, {MULTIPLE} times its size")
        self.end = end


def most_unpacked(size: int) -> int:
    """How many bytes ``size`` compressed ones may be."""
    return max(size * MULTIPLE, ALWAYS)


def is_compressed(stream: BinaryIO) -> bool:
    """Whether the file begins as one that is read here."""
    return _kind(stream) is not None


@contextmanager
def unpacked(stream: BinaryIO, start: int, target: Path) -> Iterator[tuple[BinaryIO, int] | None]:
    """What stands in the file from byte ``start`` on, as lines, and the byte up to which that is; None if nothing does.

    ``target`` is where it is unpacked to, for as long as the block lasts. Raises ``OSError`` if it cannot be, and
    ``TooLarge`` if it must not be.
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
        with _new(target) as file, gzip.GzipFile(fileobj=stream) as unzipped:
            lines = _Bounded(file, target, start, size)
            shutil.copyfileobj(unzipped, lines, 1024 * 1024)
            lines.write(b"\n")
        return size
    with _new(part) as frames:
        end = _copy_frames(stream, start, size, frames) if kind == "frames" else _copy_all(stream, size, frames)
    if end > start:
        with _new(target) as file:
            _unzstd(part, _Bounded(file, target, start, end))
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


def _unzstd(part: Path, lines: _Bounded) -> None:
    """By DuckDB, which has zstd; Python has it from 3.14 on."""
    import duckdb

    try:
        with duckdb.connect() as connection:
            found = connection.execute(_UNPACK, [str(part)])
            while rows := found.fetchmany(_ROWS):
                lines.write("".join(f"{line or ''}\n" for (line,) in rows).encode())
    except duckdb.Error as error:
        raise OSError(0, str(error).splitlines()[0]) from error


class _Bounded:
    """What is unpacked of the bytes from ``start`` to ``end``, and no more than there may be, or is room for."""

    def __init__(self, file: BinaryIO, target: Path, start: int, end: int) -> None:
        self._file = file
        self._end = end
        self._most = most_unpacked(end - start)
        self._room = shutil.disk_usage(target.parent).free // 2
        self._written = 0

    def write(self, data: bytes, /) -> int:
        self._written += len(data)
        if self._written > self._most:
            raise TooLarge(self._end, self._most)
        if self._written > self._room:
            raise OSError(errno.ENOSPC, "what it unpacks to would fill the disk")
        return self._file.write(data)


def _new(path: Path) -> BinaryIO:
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
