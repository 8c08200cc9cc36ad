"""What a run's calls were asked and answered of late, and what it was refused for going in circles (rule book (f)).

It lives with the run's object and is read back from the ledger when a run is resumed, so that a loop does not begin
anew with every process.
"""

from __future__ import annotations

from collections.abc import Sequence

from sagaspan import loops
from sagaspan.ledger.records import CallRecord, CallState, Phase

_KNOWN = (CallState.DONE, CallState.FAILED, CallState.UNKNOWN, CallState.NEEDS_HUMAN)


class Signals:
    """The ring of one run. Threads may lose a signal to each other, never more than that."""

    def __init__(self) -> None:
        self.ring: loops.Ring = ()
        self.refusals = 0
        self._told: set[str] = set()

    def load(self, calls: Sequence[CallRecord]) -> None:
        """Begin with the calls of earlier incarnations, in claim order."""
        told = [call for call in calls if call.phase is Phase.FORWARD and call.state in _KNOWN]
        self.ring = tuple(signal_of(call) for call in told[-loops.RING :])

    def add(self, record: CallRecord, *, counts: bool) -> None:
        """Remember how a call ended."""
        self.ring = loops.after(self.ring, signal_of(record, counts=counts))

    def first_time(self, signature: str) -> bool:
        """Whether nobody was told of this loop before."""
        if signature in self._told:
            return False
        self._told.add(signature)
        return True

    def may_repeat(self, args: str) -> bool:
        """Whether a call with arguments of the hash ``args`` could go on with a loop at all."""
        ring = self.ring
        return bool(ring) and (ring[-1].error is not None or args in map(loops.ARGS, ring))


def signal_of(record: CallRecord, *, counts: bool = True) -> loops.Signal:
    """A recorded call as a signal."""
    result = None if record.result is None else str(hash(record.result))
    ended = record.ended_us or record.started_us
    return loops.Signal(record.tool, record.fingerprint, result, record.error_type, record.started_us, ended, counts)
