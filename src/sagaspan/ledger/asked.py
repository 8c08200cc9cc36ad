"""What one incarnation of a resumed run has asked for, of what the ledger has from the earlier ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sagaspan.ledger.records import CallRecord


class Asked:
    """The books of one incarnation.

    What asks is the block that runs again; a call that is answered from its record answers for all that its body had
    called, and a framework's own checkpoint for what was done up to it.
    """

    def __init__(self) -> None:
        self._calls: set[str] = set()
        self._answered: set[str] = set()
        self._runs: set[str] = set()
        self._until_us = 0

    def call(self, call_id: str, *, answered: bool) -> None:
        """A call was made; ``answered`` from its record, so that its body did not ask again for what it had called."""
        self._calls.add(call_id)
        if answered:
            self._answered.add(call_id)

    def run(self, run_id: str) -> None:
        """A nested run was entered: it looks after its own calls."""
        self._runs.add(run_id)

    def elsewhere(self, call_ids: Collection[str], until_us: int) -> None:
        """A checkpoint answers for these calls, and for all that ended up to ``until_us``."""
        self._calls.update(call_ids)
        self._answered.update(call_ids)
        self._until_us = max(self._until_us, until_us)

    def is_answered(self, call_id: str) -> bool:
        """Whether a call was answered from its record, or by a checkpoint."""
        return call_id in self._answered

    def has_run(self, run_id: str) -> bool:
        """Whether a nested run was entered."""
        return run_id in self._runs

    def covers(self, call: CallRecord, by_id: Mapping[str, CallRecord]) -> bool:
        """Whether a call was asked for, or answered for by what it was made in."""
        if call.id in self._calls or (call.ended_us or call.started_us) <= self._until_us:
            return True
        above = by_id.get(call.parent_id or "")
        while above is not None:
            if above.id in self._answered:
                return True
            above = by_id.get(above.parent_id or "")
        return False
