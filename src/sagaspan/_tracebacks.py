"""Tracebacks without our own frames: who reads one looks for the line of the agent and that of the tool.

``SAGASPAN_TRACEBACKS=full`` keeps them all.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from types import TracebackType
from typing import Final

from sagaspan.exceptions import SagaspanError

FULL: Final = "SAGASPAN_TRACEBACKS"
_OURS: Final = frozenset({"sagaspan", "sagaspan_crewai", "sagaspan_functions", "sagaspan_langchain"})
_BETWEEN: Final = frozenset({"asyncio", "concurrent", "contextlib", "functools", "threading"})
"""What frameworks run a tool with."""


def outside(error: Exception, frameworks: Collection[str] = ()) -> TracebackType | None:
    """Return the traceback of ``error`` without our frames, and without those of ``frameworks`` (names of packages).

    It is whole if the fault is our own. Of a framework's own error the frame that raised it stays.
    """
    frames = list(_frames(error.__traceback__))
    is_refusal = isinstance(error, SagaspanError)
    ours_to_mend = bool(frames) and _package(frames[-1]) in _OURS and not is_refusal
    if ours_to_mend or os.environ.get(FULL) == "full":
        return error.__traceback__
    hidden = _OURS.union(frameworks, _BETWEEN) if frameworks else _OURS
    kept: TracebackType | None = None
    for frame in reversed(frames):
        if _package(frame) not in hidden or (frame is frames[-1] and not is_refusal):
            kept = TracebackType(kept, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return kept


def _frames(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _package(frame: TracebackType) -> str:
    return str(frame.tb_frame.f_globals.get("__name__")).partition(".")[0]
