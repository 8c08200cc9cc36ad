"""How a run ends: one pure decision from what left it and what is still open (design, section 3, "Who triggers")."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from sagaspan.exceptions import (
    ApprovalPending,
    BudgetExceeded,
    CallInProgress,
    LoopDetected,
    OutcomeUnknown,
    RunClosed,
    RunInProgress,
    ScopeFrozen,
    StoreUnavailable,
    ToolTimeout,
)
from sagaspan.ledger.transitions import RunEvent

_HOLDING: Final = (RunInProgress, CallInProgress, RunClosed, StoreUnavailable, OutcomeUnknown)
PIVOT: Final = "pivot"
"""Why a run is held that would have been undone, had its pivot not been done."""

PAUSED: Final = "paused"
"""Why a run is paused that somebody has paused."""

_STOPS: Final = (BudgetExceeded, LoopDetected)
_INTERRUPTIONS: Final = (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit, SystemExit, ScopeFrozen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The event that ends a run, and its ``reason`` (one word)."""

    event: RunEvent
    reason: str | None = None


def ending_of(
    error: BaseException | None,
    *,
    aborted: bool,
    paused: bool,
    unresolved: bool,
    unsent: bool = False,
    pivoted: bool = False,
    on_interrupt: str,
    on_budget: str = "compensate",
    resumable: bool = False,
) -> Ending:
    """What becomes of a run that ``error`` (or nothing) leaves.

    ``unresolved``: a declared write may or may not have happened, so nothing is compensated by a guess. Where none
    is, a ``ToolTimeout`` is an error like others: it was a read, or a probe found out. ``unsent``: a deferred call
    that ``commit()`` let go could not be sent; only an abort gives up what was committed. ``pivoted``: its pivot is
    done, so it only goes forward; an abort undoes what came after that. ``resumable``: the framework can go on where
    ``error`` stopped it, so it is an interruption like others.
    """
    error = _deciding(error)
    if paused or isinstance(error, ApprovalPending):
        return Ending(event=RunEvent.PAUSE, reason="approval" if isinstance(error, ApprovalPending) else "interrupt")
    if isinstance(error, ScopeFrozen) and error.pauses and not aborted:
        return Ending(event=RunEvent.PAUSE, reason=PAUSED)
    reason = "aborted" if aborted else _reason(error)
    if reason is None:
        return Ending(event=RunEvent.HOLD, reason="unresolved") if unresolved else Ending(event=RunEvent.COMPLETE)
    if unsent and not aborted:
        return Ending(event=RunEvent.HOLD, reason="unresolved" if unresolved else "unsent")
    if not unresolved and isinstance(error, ToolTimeout):
        return _undone("aborted" if aborted else "error", forward=pivoted and not aborted)
    if not aborted and isinstance(error, _HOLDING):
        return Ending(event=RunEvent.HOLD, reason=reason)
    if not aborted and isinstance(error, _STOPS) and on_budget == "hold":
        return Ending(event=RunEvent.HOLD, reason=reason)
    if not aborted and (resumable or isinstance(error, _INTERRUPTIONS)) and on_interrupt == "hold":
        return Ending(event=RunEvent.HOLD, reason=reason)
    if unresolved:
        return Ending(event=RunEvent.HOLD, reason=reason)
    return _undone(reason, forward=pivoted and not aborted)


def _undone(reason: str, *, forward: bool) -> Ending:
    return Ending(event=RunEvent.HOLD, reason=PIVOT) if forward else Ending(event=RunEvent.COMPENSATE, reason=reason)


def _deciding(error: BaseException | None) -> BaseException | None:
    """The error of a group (of an ``asyncio.TaskGroup``, say) that decides: one that undoes before one that waits."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [_deciding(inner) for inner in error.exceptions]
    return min(
        leaves, key=lambda leaf: isinstance(leaf, (ApprovalPending, *_HOLDING)) + isinstance(leaf, ApprovalPending)
    )


def _reason(error: BaseException | None) -> str | None:
    if error is None:
        return None
    for kinds, reason in _REASONS:
        if isinstance(error, kinds):
            return reason
    return "error"


_REASONS: Final[tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], str], ...]] = (
    (OutcomeUnknown, "unresolved"),
    (_HOLDING, "blocked"),
    (BudgetExceeded, "budget"),
    (LoopDetected, "loop"),
    (ScopeFrozen, "frozen"),
    (_INTERRUPTIONS, "interrupted"),
)
