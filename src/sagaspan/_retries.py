"""When a compensation that failed is tried again: growing random pauses, and an end to it (rule book (b) 5)."""

from __future__ import annotations

import random
from typing import Final

from sagaspan._clock import now_us
from sagaspan._rollback import undo_of
from sagaspan.ledger.judgement import Judge
from sagaspan.ledger.records import CallRecord, CallState
from sagaspan.ledger.store import Store
from sagaspan.ledger.transitions import WORLD_CHANGED
from sagaspan.policy import Retry

ATTEMPTS: Final = 8
"""How often a compensation is tried in all, before it is left to a person."""

PATIENCE_US: Final = 3600 * 1_000_000
ONCE: Final = Retry()
"""The attempts of one round."""

_AT_ONCE: Final = 3  # attempts that a rollback makes itself
_FIRST_PAUSE_US: Final = 60 * 1_000_000


def due_us(store: Store, judge: Judge, step: CallRecord) -> int | None:
    """When the next attempt to undo ``step`` is due; None if a person must look."""
    if step.error_type == WORLD_CHANGED:  # that does not pass by itself
        return None
    undo = undo_of(store, step)
    if undo is None:
        return None
    if undo.state is CallState.RUNNING:  # nobody waits for it any more; a second one waits until it is over
        return now_us() + (0 if judge.is_over(undo.owner, undo.id) else _FIRST_PAUSE_US)
    return _next_attempt_us(undo)


def _next_attempt_us(undo: CallRecord) -> int | None:
    """When a compensation that failed is tried again (full jitter); None after ``ATTEMPTS`` or an hour."""
    if undo.attempts >= ATTEMPTS or undo.state not in (CallState.FAILED, CallState.UNKNOWN):
        return None
    pause = _FIRST_PAUSE_US * 2 ** max(undo.attempts - _AT_ONCE, 0)
    # The same for everybody who asks, so that it need not be written down.
    jitter = random.Random(f"{undo.id}:{undo.attempts}").random()  # noqa: S311 - spreads, hides nothing
    due = (undo.ended_us or undo.started_us) + round(pause * jitter)
    return due if max(due, now_us()) <= undo.created_us + PATIENCE_US else None
