"""How many trace files are kept: the oldest go when a new one is begun, so that spans never fill the ledger's disk.

Only files that this sink names, and only those that nobody writes to any more: a file is left an hour after it was
begun at the latest, and is not held. A Collector's files are its own business.
"""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from sagaspan.exceptions import ConfigurationError
from sagaspan.telemetry.holding import is_held

ROTATE_BYTES: Final = 64 * 1024 * 1024
ROTATE_SECONDS: Final = 3600.0
_LEFT_SECONDS: Final = ROTATE_SECONDS + 300
_QUIET_SECONDS: Final = 60.0
_STAMP: Final = "%Y%m%dT%H%M%SZ"
_NAME: Final = re.compile(r".+-(\d{8}T\d{6}Z)-(\d+)-[0-9a-f]{8}\.jsonl(?:\.gz)?")
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)", re.IGNORECASE)
_SIZES: Final = {"mb": 10**6, "gb": 10**9, "tb": 10**12}
_TIMES: Final = {"h": 3600, "d": 86_400}


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Trace files are kept up to ``max_bytes`` together and ``max_seconds`` each (None: however many, however old)."""

    max_bytes: int | None = 5 * 10**9
    max_seconds: float | None = None

    @classmethod
    def parse(cls, text: str) -> Retention:
        """Of a text like ``30d``, ``5GB``, ``7d, 500MB`` or ``all``; raises ``ConfigurationError``."""
        if text.strip().lower() == "all":
            return cls(max_bytes=None)
        limits: dict[str, float] = {}
        rest = _PART.sub("", text).replace(",", "").strip()
        for number, unit in _PART.findall(text):
            kind, factors = ("max_bytes", _SIZES) if unit.lower() in _SIZES else ("max_seconds", _TIMES)
            if unit.lower() not in factors or kind in limits:
                rest = unit
            else:
                limits[kind] = float(number) * factors[unit.lower()]
        if rest or not limits:
            raise ConfigurationError(
                f"SAGASPAN_TRACE_RETENTION={text!r} cannot be read: write how old or how large trace files may get, "
                "such as '30d', '5GB' or '30d, 5GB', or 'all' to keep them"
            )
        size = limits.get("max_bytes")
        return cls(max_bytes=None if size is None else int(size), max_seconds=limits.get("max_seconds"))


def file_stamp() -> str:
    """The time in a file's name."""
    return f"{datetime.now(UTC):{_STAMP}}"


def forget_old(directory: Path, retention: Retention, *, dry_run: bool = False) -> list[Path]:
    """Delete what is beyond ``retention``, the oldest first; returns what is gone, or would be."""
    if retention.max_bytes is None and retention.max_seconds is None:
        return []
    now = time.time()
    left = _left(directory, now)
    total = sum(size for *_, size in left)
    gone = []
    for path, begun, is_left, size in left:
        too_old = retention.max_seconds is not None and now - begun > retention.max_seconds + ROTATE_SECONDS
        too_much = retention.max_bytes is not None and total > retention.max_bytes
        if is_left and (too_old or too_much) and not is_held(path):
            with contextlib.suppress(OSError):  # another process forgets too
                if not dry_run:
                    path.unlink()
                gone.append(path)
            total -= size
    return gone


def left_files(directory: Path) -> list[Path]:
    """Our files to which nobody writes any more, the oldest first."""
    return [path for path, _, is_left, _ in _left(directory, time.time()) if is_left and not is_held(path)]


def _left(directory: Path, now: float) -> list[tuple[Path, float, bool, int]]:
    """Our files, the oldest first: when each was begun, whether it looks as if nobody writes to it, and its size."""
    found = []
    for path in directory.iterdir():
        match = _NAME.fullmatch(path.name)
        with contextlib.suppress(OSError, ValueError):
            if match is not None:
                begun = datetime.fromisoformat(match[1]).timestamp()  # strptime would import a module in a call
                found.append((path, begun, match[2], path.stat()))
    newest: dict[str, float] = {}
    for _, begun, pid, _ in found:
        newest[pid] = max(begun, newest.get(pid, 0.0))
    return sorted(
        (
            (
                path,
                begun,
                now - begun > _LEFT_SECONDS or (begun < newest[pid] and now - status.st_mtime > _QUIET_SECONDS),
                status.st_size,
            )
            for path, begun, pid, status in found
        ),
        key=lambda file: (file[1], file[0].name),
    )
