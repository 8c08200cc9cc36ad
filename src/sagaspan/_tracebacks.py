"""Tracebacks without our own frames: who reads one looks for the line of the agent and that of the tool.

``SAGASPAN_TRACEBACKS=full`` keeps them all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import TracebackType
from typing import Final

from sagaspan.exceptions import SagaspanError

FULL: Final = "SAGASPAN_TRACEBACKS"
_PACKAGE: Final = __name__.partition(".")[0]


def outside(error: Exception) -> TracebackType | None:
    """The traceback of ``error`` without the frames of this package; whole if the fault is this package's own."""
    frames = list(_frames(error.__traceback__))
    ours_to_mend = bool(frames) and _is_ours(frames[-1]) and not isinstance(error, SagaspanError)
    if ours_to_mend or os.environ.get(FULL) == "full":
        return error.__traceback__
    kept: TracebackType | None = None
    for frame in reversed(frames):
        if not _is_ours(frame):
            kept = TracebackType(kept, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return kept


def _frames(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _is_ours(frame: TracebackType) -> bool:
    return str(frame.tb_frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE
