"""Which bytes of which trace files are new: whole lines only, each byte once, whatever became of the file's
name.

A file is known by its device, its inode and the SHA-1 of its first bytes. The name does not count, because a
Collector renames at rotation; the inode alone does not either, because it is used again. Only bytes that were
read go into the hash, so a file that was seen short is still itself when it has grown.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, BinaryIO, Final

from sagaspan.index.compressed import TooLarge, is_compressed, unpacked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HEAD: Final = 256  # bytes
BATCH_BYTES: Final = 128 * 1024 * 1024
"""What one transaction of a sync takes in."""

PACKED: Final = (".gz", ".zst")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFile:
    """A row of ``files``: how far this file has been read.

    Of a compressed file ``size`` bytes are in, and behind these ``position`` bytes of what is unpacked there.
    """

    device: int
    inode: int
    head_length: int
    head_sha1: str
    path: str
    position: int
    lines: int
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """New whole lines of one file; ``after`` is what ``files`` says once they are in. ``data`` is
    empty for what was passed over for good, and ``passed_over`` says why."""

    before: KnownFile | None
    after: KnownFile
    path: Path
    position: int
    first_line: int
    data: bytes
    passed_over: str = "is longer than a batch and was skipped; the other lines are in"


class FileLedger:
    """The files as the index knows them, found by device, inode and head."""

    def __init__(self, known: list[KnownFile]) -> None:
        self._known: dict[tuple[int, int], list[KnownFile]] = defaultdict(list)
        for file in known:
            self._known[file.device, file.inode].append(file)

    def find(self, stream: BinaryIO) -> KnownFile | None:
        """The entry of this open file, or None if it has never been read."""
        status = os.fstat(stream.fileno())
        candidates = self._known.get((status.st_dev, status.st_ino), ())
        if not candidates:
            return None
        stream.seek(0)
        head = stream.read(HEAD)
        return next((file for file in candidates if _sha1(head[: file.head_length]) == file.head_sha1), None)


def trace_files(directory: Path) -> list[Path]:
    """The trace files, by name: ours, and a Collector's, which may be called ``.json`` and be compressed."""
    found = (path for path in directory.iterdir() if not path.name.startswith("."))
    return sorted(path for path in found if is_trace_file(path) and _may_be_read(path))


def _may_be_read(path: Path) -> bool:
    """Reading a pipe would wait for whoever writes; what cannot be looked at is named by who tries to read it."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return True


def is_trace_file(path: Path) -> bool:
    """Whether a file is called as one: ``a.jsonl``, ``a-2026-11-21T10-00-00.000.json``, ``a.jsonl.gz``."""
    suffixes = path.suffixes
    packed = suffixes[-1:] and suffixes[-1] in PACKED
    return (suffixes[-2:-1] if packed else suffixes[-1:]) in ([".jsonl"], [".json"])


def new_slices(path: Path, ledger: FileLedger, room: Callable[[], int], limit: int) -> Iterator[Slice]:
    """The new lines of one file in slices of at most ``room()`` bytes.

    A line beyond ``limit`` bytes is passed over. Raises ``OSError`` if the file cannot be read, or not be unpacked.
    """
    with path.open("rb") as stream:
        known = ledger.find(stream)
        if not is_compressed(stream):
            yield from _slices_of(path, stream, known, room, limit, stream)
            return
        done = 0 if known is None else known.size
        while True:
            try:
                with unpacked(stream, done, path.with_name(".unpacked")) as part:
                    if part is None:
                        return
                    lines, done = part
                    last = known
                    for piece in _slices_of(path, lines, known, room, limit, stream):
                        is_last = lines.tell() >= os.fstat(lines.fileno()).st_size
                        last = replace(piece.after, position=0, size=done) if is_last else piece.after
                        yield replace(piece, after=last)
                    known = last
            except TooLarge as problem:
                refused = _refused(path, stream, known, done, problem)
                known, done = refused.after, problem.end
                yield refused


def _refused(path: Path, stream: BinaryIO, known: KnownFile | None, start: int, problem: TooLarge) -> Slice:
    """Pass over the bytes from ``start`` on, for good: trying them again would take as long each time."""
    after = replace(known or identified(stream, path, problem.end), position=0, size=problem.end)
    reason = f"was skipped ({problem}); if you trust the file, unpack it beside this name"
    return Slice(before=known, after=after, path=path, position=start, first_line=0, data=b"", passed_over=reason)


def _slices_of(
    path: Path, stream: BinaryIO, known: KnownFile | None, room: Callable[[], int], limit: int, file: BinaryIO
) -> Iterator[Slice]:
    """The lines of ``stream`` behind what is known of it; ``file`` is what it was unpacked from, if it was."""
    while True:
        position, line = (known.position, known.lines) if known else (0, 0)
        stream.seek(position)
        data = _whole_lines(stream, room(), limit)
        if data is None:
            return
        skipped = 0 if data else _line_length(stream, position)
        if not data and not skipped:
            return
        end = position + (len(data) or skipped)
        stream.seek(end)
        after = _advanced(known, file, path, end, line + (data.count(b"\n") or 1))
        yield Slice(
            before=known,
            after=after,
            path=path,
            position=position,
            first_line=line + 1,
            data=data,
        )
        known = after


def cut(piece: Slice) -> tuple[Slice, ...]:
    """The slice in two at a line's end near its middle; nothing if it is a single line."""
    middle = piece.data.find(b"\n", len(piece.data) // 2) + 1
    if middle in (0, len(piece.data)):
        middle = piece.data.rfind(b"\n", 0, len(piece.data) - 1) + 1
    if not middle:
        return ()
    position, lines = piece.position + middle, piece.first_line - 1 + piece.data.count(b"\n", 0, middle)
    between = replace(piece.after, position=position, lines=lines)
    first = replace(piece, after=between, data=piece.data[:middle])
    rest = replace(piece, before=between, position=position, first_line=lines + 1, data=piece.data[middle:])
    return first, rest


def size_of(path: Path) -> int:
    """The file's size in bytes, 0 if it is gone."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _whole_lines(stream: BinaryIO, room: int, limit: int) -> bytes | None:
    """Bytes up to the last newline; None if there is no whole line, empty if the line does not fit in
    ``limit``.
    """
    position = stream.tell()
    data = stream.read(room)
    end = data.rfind(b"\n") + 1
    if end:
        return data[:end]
    if len(data) < room:
        return None
    if room < limit:
        stream.seek(position)
        return _whole_lines(stream, limit, limit)
    return b""


def _line_length(stream: BinaryIO, position: int) -> int:
    """The length of an overlong line with its newline, 0 while it has none; read in pieces, it may be
    gigabytes.
    """
    stream.seek(position)
    while piece := stream.read(1024 * 1024):
        if (found := piece.find(b"\n")) >= 0:
            return stream.tell() - len(piece) + found + 1 - position
    return 0


def _advanced(known: KnownFile | None, stream: BinaryIO, path: Path, position: int, lines: int) -> KnownFile:
    if known is not None and known.head_length == HEAD:
        return replace(known, path=spelt_out(path), position=position, lines=lines)
    return replace(identified(stream, path, position), position=position, lines=lines)


def identified(stream: BinaryIO, path: Path, length: int) -> KnownFile:
    """The open file as it is found again, by at most its first ``length`` bytes; nothing of it is read so far."""
    status, at = os.fstat(stream.fileno()), stream.tell()
    stream.seek(0)
    head = stream.read(min(HEAD, length))
    stream.seek(at)
    return KnownFile(
        device=status.st_dev,
        inode=status.st_ino,
        head_length=len(head),
        head_sha1=_sha1(head),
        path=spelt_out(path),
        position=0,
        lines=0,
    )


def spelt_out(path: Path | str) -> str:
    """The path as a text that the index can hold: a name on disk may be no UTF-8."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _sha1(head: bytes) -> str:
    return hashlib.sha1(head, usedforsecurity=False).hexdigest()
