"""The span sink: when a span ends its line is in the file, by one ``write(2)``, before the caller goes on.

There is no queue to overflow in a burst or to lose under ``kill -9``, and no lock to wait for: the kernel
appends a line whole, so any number of threads share one file and every process has its own. What cannot be
written is counted in ``dropped`` and logged once; the traced program never sees an error from here. A file that is
large or an hour old is left for a new one, never renamed; a full disk is left alone for a while.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import re
import secrets
import time
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Final, Literal

from opentelemetry.sdk.resources import SERVICE_NAME
from opentelemetry.sdk.trace import SpanProcessor

from sagaspan._checks import check_choice
from sagaspan.telemetry.encoding import SpanEncoder
from sagaspan.telemetry.holding import hold
from sagaspan.telemetry.retention import ROTATE_BYTES, ROTATE_SECONDS, Retention, file_stamp, forget_old

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan, Span

Fsync = Literal["off", "interval", "always"]

_logger = logging.getLogger("sagaspan")

# O_EXCL: a name that exists, or a link planted under it, is never written through.
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_FULL_SECONDS: Final = 30.0  # a disk that is full is not asked again before that
_SYNC_SECONDS: Final[dict[str, float | None]] = {"off": None, "interval": 1.0, "always": 0.0}
_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


class JsonLinesSpanProcessor(SpanProcessor):
    """Append every sampled span to ``<directory>/<service>-<utc start>-<pid>-<random>.jsonl`` as it ends.

    ``service_name`` only names the file; None takes the resource's ``service.name``. The directory (0700) and
    the file (0600) are made when the first span ends, and again, under a new name, in a forked child, after
    ``max_bytes`` and after an hour. ``retention`` is how much of what was written is kept.

    A span that was written survives its process, but not a power cut within the seconds that the system keeps it in
    memory. ``fsync="always"`` has each on the disk before the caller goes on, ``"interval"`` at most a second of them
    is not, as long as spans end, and none after ``force_flush`` or ``shutdown``. Raises ``ConfigurationError``.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        service_name: str | None = None,
        max_bytes: int = ROTATE_BYTES,
        retention: Retention | None = None,
        fsync: Fsync = "off",
    ) -> None:
        check_choice("fsync", fsync, tuple(_SYNC_SECONDS))
        self.directory = Path(directory)
        self._sync_seconds = _SYNC_SECONDS[fsync]
        self._max_bytes = max(1, max_bytes)
        self._retention = retention or Retention()
        self._full_until = 0.0
        self._service_name = service_name
        self._encoder = SpanEncoder()
        self._file: _TraceFile | None = None
        self._opened: dict[int, _TraceFile] = {}
        self._drops: dict[int, int] = {}
        self._logged = False
        self._closed = False

    @property
    def dropped(self) -> int:
        """How many spans could not be written."""
        return sum(list(self._drops.values()))

    @property
    def path(self) -> Path | None:
        """The file this process writes to; None before its first span."""
        file = self._file
        return file.path if file is not None and file.pid == os.getpid() else None

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Nothing happens at a span's start: only finished spans are written."""

    def on_end(self, span: ReadableSpan) -> None:
        """Write the span's line. Never raises an ``Exception``."""
        try:
            if not span.context.trace_flags.sampled:
                return
            if self._closed:
                self._drop("the processor was shut down before the span ended")
                return
            now = time.monotonic()
            if now < self._full_until:
                self._drop("the disk is full")
                return
            line = self._encoder.encode(span)
            # Our own reference: a shutdown in another thread then cannot close the descriptor under our
            # write.
            file = self._file
            if file is None or file.pid != os.getpid() or file.is_over(self._max_bytes, now):
                file = self._open(span, file)
            self._write(file, line)
            if self._sync_seconds is not None and now >= file.synced + self._sync_seconds:
                file.synced = now
                _to_disk(file.descriptor)
        except OSError as error:
            if error.errno in _FULL:
                self._full_until = time.monotonic() + _FULL_SECONDS
            self._drop(f"{type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001 - telemetry never breaks what it watches
            self._drop(f"{type(error).__name__}: {error}")

    def shutdown(self) -> None:
        """Close the file, as soon as the last thread that is writing lets go of it.

        Later spans are dropped.
        """
        self._closed = True
        self.force_flush()
        self._file = None
        self._opened.clear()

    def force_flush(self, timeout_millis: int = 30000) -> bool:  # noqa: ARG002 - nothing is ever buffered
        """True: a span that has ended is already in the file; with ``fsync``, whether it is on the disk."""
        file = self._file
        if self._sync_seconds is not None and file is not None and file.pid == os.getpid():
            try:
                _to_disk(file.descriptor)
            except OSError:
                return False
        return True

    def _open(self, span: ReadableSpan, before: _TraceFile | None) -> _TraceFile:
        pid = os.getpid()
        while True:
            followers = self._opened if before is None or before.pid != pid else before.followers
            file = followers.get(pid) or self._begin(span, followers)
            if not file.is_over(self._max_bytes, time.monotonic()):
                break
            before = file
        self._file, self._opened = file, {pid: file}
        return file

    def _begin(self, span: ReadableSpan, followers: dict[int, _TraceFile]) -> _TraceFile:
        opened = _TraceFile(self.directory, self._service_name or str(span.resource.attributes.get(SERVICE_NAME, "")))
        # Two threads may arrive here at once; setdefault lets one win without a lock that a fork could leave
        # held.
        winner = followers.setdefault(opened.pid, opened)
        if winner is not opened:
            opened.path.unlink()
        else:
            forget_old(self.directory, self._retention)
            if self._sync_seconds is not None:
                _name_to_disk(self.directory)
        return winner

    def _write(self, file: _TraceFile, line: bytes) -> None:
        try:
            written = os.write(file.descriptor, line)
            while written < len(line):
                # A torn line ends this file: the next span's line must not be glued to it.
                file.is_torn = True
                written += os.write(file.descriptor, line[written:])
        except OSError:
            if not file.size and not file.is_torn:
                file.discard()
            raise
        file.is_torn = False
        # Threads may lose counts of each other; then the file gets a little larger.
        file.size += written

    def _drop(self, reason: str) -> None:
        # One counter a thread: `+= 1` on a shared one loses counts, and a lock may be held across a fork.
        thread = get_ident()
        self._drops[thread] = self._drops.get(thread, 0) + 1
        if not self._logged:
            self._logged = True
            _logger.warning(
                "A span could not be written to %s (%s). Spans are being lost; this is logged once. "
                "Check that the directory is writable and the disk not full.",
                self.directory,
                reason,
            )


class _TraceFile:
    """An open trace file of one process.

    Its descriptor closes when the last reference goes, and not before.
    """

    __slots__ = ("__weakref__", "descriptor", "followers", "is_torn", "path", "pid", "size", "synced", "until")

    def __init__(self, directory: Path, service: str) -> None:
        self.pid = os.getpid()
        self.path = directory / _file_name(service, self.pid)
        self.size = 0
        self.is_torn = False
        self.synced = -math.inf
        # What comes after it, in this process: threads that leave it, however late, all go there.
        self.followers: dict[int, _TraceFile] = {}
        self.until = time.monotonic() + ROTATE_SECONDS
        # One mkdir a process, and none on a span's way after the first.
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.descriptor = os.open(self.path, _FLAGS, 0o600)
        hold(self.descriptor)

    def is_over(self, max_bytes: int, now: float) -> bool:
        """Whether the next span begins a new file."""
        return self.is_torn or self.size >= max_bytes or now >= self.until

    def discard(self) -> None:
        """Nothing could be written to it: leave no empty file behind."""
        self.until = 0.0
        with contextlib.suppress(OSError):
            self.path.unlink()

    def __del__(self) -> None:
        # AttributeError: never opened, or an interpreter that is going away.
        with contextlib.suppress(OSError, AttributeError, TypeError):
            os.close(self.descriptor)


_to_disk: Final = getattr(os, "fdatasync", os.fsync)


def _name_to_disk(directory: Path) -> None:
    """A file whose name is not on the disk is lost with all that is in it."""
    with contextlib.suppress(OSError):  # Windows opens no directories
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _file_name(service: str, pid: int) -> str:
    safe = re.sub(r"[^A-Za-z0-9_-]+", "_", service)[:64].strip("_-") or "spans"
    return f"{safe}-{file_stamp()}-{pid}-{secrets.token_hex(4)}.jsonl"
