"""The steps of a run, by what a rollback makes of them (rule book (b) 2).

An undo of an ancestor stands for all below it; what a ``commit()`` protects or a pivot has left behind is not undone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sagaspan.ledger import pivots
from sagaspan.ledger.committed import is_committed
from sagaspan.ledger.families import family, outermost
from sagaspan.ledger.records import CallRecord, CallState, Phase, RunRecord, RunState
from sagaspan.ledger.resolution import IN_DOUBT, is_unsent
from sagaspan.ledger.store import Store

CLOSED_WITH_OUTER: Final = (RunState.COMPLETED, RunState.PAUSED, RunState.HELD)
"""States in which a nested run is undone with the one it is in."""

WITH_OUTER: Final = "outer run"
"""The ``reason`` of a nested run that was."""

_HAPPENED: Final = (CallState.DONE, CallState.COMPENSATING, CallState.COMPENSATION_FAILED)
_UNSURE: Final = (CallState.UNKNOWN, CallState.NEEDS_HUMAN, CallState.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """A run's steps by what a rollback makes of them; ``undoable`` in the order of undoing.

    ``kept`` are those that are not undone any more, because a pivot after them is done; ``safe`` the ids of those that
    may be undone while they are in doubt.
    """

    undoable: tuple[CallRecord, ...]
    kept: tuple[CallRecord, ...]
    not_compensable: tuple[CallRecord, ...]
    unresolved: tuple[CallRecord, ...]
    safe: frozenset[str]
    undeclared: tuple[CallRecord, ...]
    unsent: tuple[CallRecord, ...]
    undone: bool

    @property
    def expected(self) -> tuple[CallRecord, ...]:
        """What is undone if those that say they are running have lost their process."""
        lost = [call for call in self.unresolved if call.state is CallState.RUNNING and call.id in self.safe]
        return tuple(sorted((*self.undoable, *lost), key=lambda call: call.claim_seq, reverse=True))

    @property
    def happened(self) -> bool:
        """Whether there is anything to undo, or that should be, or that was before this process took over."""
        return bool(self.undoable or self.kept or self.not_compensable or self.undone)


def steps_of(store: Store, run: RunRecord) -> Steps:
    """The steps of ``run`` and of the runs nested in it that count, newest first."""
    everything = [call for call in family(store, run) if call.phase is Phase.FORWARD]
    not_committed = on_their_own(uncommitted(everything, run))
    root = outermost(store, run)
    line = pivots.line(everything if root.id == run.id else family(store, root))
    calls = [call for call in not_committed if call.place >= line]
    safe = frozenset(call.id for call in calls if call.empty_safe and call.compensate and call.state in _UNSURE)
    in_doubt = [call for call in on_their_own(everything) if call.state in _UNSURE]
    return Steps(
        undoable=tuple(
            call
            for call in calls
            if (call.state in _HAPPENED and call.compensate is not None) or (call.state in IN_DOUBT and call.id in safe)
        ),
        kept=tuple(
            call
            for call in not_committed
            if call.place < line and call.state in _HAPPENED and call.compensate is not None
        ),
        not_compensable=tuple(
            call
            for call in not_committed
            if call.state is CallState.DONE and call.declared_write and call.compensate is None
        ),
        # A commit does not end a doubt: it only says that what happened stays.
        unresolved=tuple(call for call in in_doubt if call.declared_write or call.compensate is not None),
        safe=safe,
        undeclared=tuple(
            call
            for call in not_committed
            if call.state is CallState.DONE and call.effect is None and not call.declared_write
        ),
        unsent=tuple(call for call in everything if is_unsent(call)),
        undone=any(call.state is CallState.COMPENSATED and _is_undone_with(store, run, call) for call in not_committed),
    )


def _is_undone_with(store: Store, run: RunRecord, call: CallRecord) -> bool:
    """Whether ``call`` was undone with ``run``, and not by a nested run that undid itself."""
    if call.run_id == run.id:
        return True
    inner = store.get_run(call.namespace, call.run_id)
    return inner is not None and (inner.state in CLOSED_WITH_OUTER or inner.reason == WITH_OUTER)


def uncommitted(calls: Sequence[CallRecord], run: RunRecord) -> list[CallRecord]:
    """Those of ``calls`` that no ``commit()`` of ``run`` protects; what a deferred call called is committed with it."""
    by_id = {call.id: call for call in calls}
    return [call for call in calls if not _is_protected(call, by_id, run)]


def _is_protected(call: CallRecord, by_id: dict[str, CallRecord], run: RunRecord) -> bool:
    if is_committed(run, call):
        return True
    above = by_id.get(call.parent_id or "")
    while above is not None:
        if above.scheduled_seq is not None and is_committed(run, above):
            return True
        above = by_id.get(above.parent_id or "")
    return False


def on_their_own(calls: Sequence[CallRecord]) -> list[CallRecord]:
    """Those for which no other of ``calls`` is undone, newest first."""
    by_id = {call.id: call for call in calls}
    own = [call for call in calls if not _covered(call, by_id)]
    return sorted(own, key=lambda call: call.claim_seq, reverse=True)


def _covered(call: CallRecord, by_id: dict[str, CallRecord]) -> bool:
    """Whether a done ancestor with a compensation undoes for this call too."""
    parent = by_id.get(call.parent_id or "")
    while parent is not None:
        if parent.compensate is not None and parent.state in (*_HAPPENED, CallState.COMPENSATED):
            return True
        parent = by_id.get(parent.parent_id or "")
    return False
