"""What may be forgotten: runs and calls that are over, and that nobody relies on any more (rule book (a) 9).

A run is forgotten whole, with its audit rows and with the runs nested in it, so what stays can still be undone,
resolved and checked. Calls outside a run are forgotten one by one. What is forgotten is new when it comes again: a run
id is opened, a key is called.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sagaspan.keys import BUSINESS_SCOPE
from sagaspan.ledger.records import SETTLED, CallRecord, CallState, RunRecord, RunState
from sagaspan.ledger.resolution import DUPLICATE
from sagaspan.ledger.store import Family

SETTLED_RUNS: Final = (RunState.COMPLETED, RunState.FAILED, RunState.COMPENSATED)


class Kept(StrEnum):
    """Why something old is kept. ``open``: it goes on, is in doubt or needs a person; ``key``: its key is relied on."""

    OPEN = "open"
    KEY = "key"
    RECENT = "recent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Forget what ended before ``before_us``, with ``forget_keys`` also what a business key stands for.

    ``undecided`` are the ids of calls that happened after all when nobody expected it: a person decides about them.
    """

    before_us: int
    forget_keys: bool
    undecided: frozenset[str] = frozenset()

    def is_recent(self, record: RunRecord | CallRecord) -> bool:
        """Whether it ended too late to be forgotten."""
        return record.ended_us is None or record.ended_us >= self.before_us


def kept_because(family: Family, rules: Rules) -> Kept | None:
    """Why a run is kept, with those nested in it; None if it may be forgotten."""
    if any(run.state not in SETTLED_RUNS for run in family.runs):
        return Kept.OPEN
    if any(rules.is_recent(run) for run in family.runs):
        return Kept.RECENT
    reasons = [call_kept_because(call, rules) for call in family.calls]
    return next((reason for reason in Kept if reason in reasons), None)


def call_kept_because(call: CallRecord, rules: Rules) -> Kept | None:
    """As ``kept_because``, for one call. An effect that came twice is open until the extra one is undone."""
    extra = call.scope.startswith(DUPLICATE) and call.state is not CallState.COMPENSATED
    if call.state not in SETTLED or extra or call.id in rules.undecided:
        return Kept.OPEN
    if call.scope == BUSINESS_SCOPE and call.state is CallState.DONE and not rules.forget_keys:
        return Kept.KEY
    return Kept.RECENT if rules.is_recent(call) else None
