"""The settle: what a call came to is written once, kept while it cannot be, and a late result is evidence."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from sagaspan import _fork as fork
from sagaspan import _owner as owner
from sagaspan import codecs
from sagaspan._call import Call
from sagaspan._clock import now_us
from sagaspan._reentry import once
from sagaspan._spans import error_message, error_type
from sagaspan.exceptions import ConfigurationError, OutcomeUnknown, StoreError
from sagaspan.ledger import too_large, transitions
from sagaspan.ledger.attempts import Ended, body_token
from sagaspan.ledger.budgets import Spent, settling
from sagaspan.ledger.claims import Claim
from sagaspan.ledger.costs import spent_by
from sagaspan.ledger.in_doubt import record_body_ended, record_late_result
from sagaspan.ledger.leases import Lease
from sagaspan.ledger.limits import Limits
from sagaspan.ledger.records import CallRecord, CallState, call_info
from sagaspan.ledger.resolution import BODY_ENDED, BODY_RUNS
from sagaspan.ledger.soft_limits import marked, tell
from sagaspan.ledger.store import CallChange, Change, Store
from sagaspan.ledger.transitions import CallEvent

_log = logging.getLogger("sagaspan")
_ENDINGS: Final = {
    CallState.DONE: CallEvent.SUCCEED,
    CallState.FAILED: CallEvent.FAIL,
    CallState.UNKNOWN: CallEvent.LOSE,
}


class Settling:
    """Settles the calls of one store; ``leftovers`` are those whose end could not be recorded yet."""

    def __init__(self, store: Store, lease: Lease, limits: Limits) -> None:
        self._store = store
        self._lease = lease
        self._limits = limits
        self.leftovers: dict[str, tuple[Sequence[Change], CallRecord, Ended, Spent | None]] = {}
        self._lock = fork.new_lock()
        lease.settle = self.settle_leftovers
        lease.forked.append(self.leftovers.clear)

    def settle_leftovers(self) -> None:
        """Save what could not be recorded when it ended; raises ``StoreError`` if it still cannot."""
        with once(self._lock, "what could not be recorded before"):
            for call_id, (changes, record, ended, spent) in list(self.leftovers.items()):
                if not too_large.saved(self._store, changes, synced=False)[0]:
                    self._settle_taken_over(record, ended, spent)
                del self.leftovers[call_id]
                owner.drop(call_id)

    def settle(self, call: Call, claim: Claim, ended: Ended, spent: Spent | None = None) -> CallRecord:
        """Write what ``call`` came to; returns the record as it is then, also where that could not be written yet."""
        record = claim.record
        kept = replace(ended, value=self._store.seal.cleaned(ended.value, call.secrets))
        if not owner.is_self(record.owner):  # forked inside the body: its end is for the parent to record
            return record
        # Nobody decides about a read either, so what one in doubt reserved is spent rather than kept for ever.
        undecided = ended.state is CallState.UNKNOWN and record.effect == "read" and record.locks is None
        after, audit = transitions.move_call(
            record,
            _ENDINGS[ended.state],
            now_us(),
            detail=_how(record, ended),
            **outcome(kept),
            **({"reserved": None} if undecided or spent is not None else {}),
        )
        if spent is None and after.state is CallState.DONE:
            spent = spent_by(call, after, ended.value)
        changes: Sequence[Change] = settling(record, CallChange(after, audit, record.version), spent)
        if self._limits.marks_soft:
            changes = marked(call, self._limits, changes)
        after = _booked_in(changes, after)
        try:
            commit, saved = too_large.saved(self._store, changes, synced=False)
            after = _booked_in(saved, after)
            if not commit:
                after = self._settle_taken_over(record, kept, spent)
            elif commit.used:
                tell(call, self._limits, changes, commit.used)
        except StoreError as problem:
            # What succeeded must not be broken by its recording; the next claim fails closed until it is saved.
            _log.error(
                "call %s of tool %r ended but could not be recorded yet (%s); it is kept, and written as soon as the "
                "ledger can be; do not repeat it", record.id, record.tool, type(problem.__cause__ or problem).__name__,
            )  # fmt: skip
            self.leftovers[record.id] = changes, after, kept, spent
            self._lease.hurry()
        for step in claim.settled():
            step()
        return after

    def save_mark(self, call: Call, claim: Claim) -> None:
        """The second mark, on disk before the request is sent; raises if the call was taken over."""
        if not owner.is_self(claim.record.owner):
            raise ConfigurationError(
                f"tool {call.tool.name!r}: sending() was called in a process that was forked inside its body; call it "
                "before the fork"
            )
        after, audit = transitions.move_call(claim.record, CallEvent.SENDING, now_us())
        if not self._store.commit([CallChange(after, audit, claim.record.version)], synced=True):
            raise fenced(call, claim.record)
        claim.record = after

    def _settle_taken_over(self, record: CallRecord, ended: Ended, spent: Spent | None) -> CallRecord:
        """Somebody judged us dead meanwhile: a result is evidence, anything else changes nothing.

        Returns what is on record now: what was not written has the version of what was, and would pass for it.
        """
        if ended.state is CallState.DONE:
            self._settle_late(record, ended.value, spent, given_up=False, dedupes=False)
        return self._store.get_call(record.id) or record

    def late(self, call: Call, claim: Claim) -> Callable[[Any], None]:
        """Told of a result that came after its call was given up: it is evidence once the call is settled."""

        dedupes = call.tool.policy.downstream_dedupes_for is not None

        def arrived(value: Any) -> None:
            def settle() -> None:
                spent = spent_by(call, claim.record, value)
                kept = self._store.seal.cleaned(value, call.secrets)
                self._settle_late(claim.record, kept, spent, given_up=True, dedupes=dedupes)

            if not claim.keep(settle):
                settle()

        return arrived

    def gone(self, claim: Claim) -> Callable[[], None]:
        """Told that a body given up has ended without a result: it cannot land any more."""

        def ended() -> None:
            if not claim.keep(settle):
                settle()

        def settle() -> None:
            try:
                record_body_ended(self._store, claim.record)
            except StoreError:
                _log.exception("the end of the body of call %s could not be recorded", claim.record.id)

        return ended

    def _settle_late(
        self, record: CallRecord, value: Any, spent: Spent | None, *, given_up: bool, dedupes: bool
    ) -> None:
        try:
            record_late_result(self._store, record, value, spent, given_up=given_up, dedupes=dedupes)
        except StoreError:
            _log.exception("the late result of call %s could not be recorded; it stays unknown", record.id)


def _booked_in(changes: Sequence[Change], record: CallRecord) -> CallRecord:
    """``record`` as the first of ``changes`` saves it."""
    first = changes[0]
    return first.record if isinstance(first, CallChange) else record


def outcome(ended: Ended) -> dict[str, Any]:
    """The columns of a record whose body ended so."""
    if ended.error is not None:
        return {"error_type": error_type(ended.error), "error_message": error_message(ended.error)}
    try:
        return {"result": codecs.encode(ended.value), "result_lost": None}
    except codecs.Unencodable as problem:
        # Done is done: never run it again for want of a way to write its result down.
        return {"result": None, "result_lost": str(problem)}


def _how(record: CallRecord, ended: Ended) -> str | None:
    """What the audit row of a settle says beside the state."""
    if ended.state is CallState.UNKNOWN:
        over = owner.provably_dead(owner.this_process(), body_token(record.id))
        return BODY_ENDED if over else BODY_RUNS
    return "suspended" if ended.suspended else None


def fenced(call: Call, record: CallRecord) -> OutcomeUnknown:
    """The error of a worker whose call was taken over."""
    return OutcomeUnknown(
        f"tool {call.tool.name!r}: call {record.id} was taken over by another worker; this one stops",
        call=call_info(record),
    )
