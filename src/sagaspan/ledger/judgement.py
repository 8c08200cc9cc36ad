"""Whether a holder still works: proof first, its lease where nothing is proved (rule book (a) 4).

``dead`` and ``expired`` both allow one thing only: what was ``running`` becomes ``unknown``, and a run is taken over
under the next epoch. Neither ever permits a second run by itself.

Clocks decide as little as they can. A lease of this machine is read by the monotonic clock since boot, which nobody
sets. For a holder of another machine, or of an earlier boot, wall clocks may differ by any amount: its lease counts as
over once we have watched it stand still for longer than it lasts, or at once where it ended longer ago than clocks
are ever wrong. A ledger on a server has one clock for all: there a lease is over when it is over.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from sagaspan import _fork as fork
from sagaspan import _owner as owner
from sagaspan._clock import boot_us, monotonic, now_us
from sagaspan.ledger.records import LeaseRecord

if TYPE_CHECKING:
    from sagaspan.ledger.store import Store

CLOCK_TOLERANCE_US: Final = 2 * 3600 * 1_000_000
"""How far apart the wall clocks of two machines may be."""

_WATCH: Final = 4 / 3  # of the lease: it is renewed every third, so at least three beats were missed


class Verdict(StrEnum):
    """What is known of a holder. ``expired``: its lease is over, but nothing proves that it is dead."""

    ALIVE = "alive"
    DEAD = "dead"
    EXPIRED = "expired"


LOST: Final = {
    Verdict.DEAD: "its process died",
    Verdict.EXPIRED: "its process stopped renewing its lease",
}
"""What the history of a call or run says when it is taken from such a holder."""


class Judge:
    """Judges the holders of one ledger; it remembers the leases it watches."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._watched: dict[str, tuple[int, float]] = {}
        self._lock = fork.new_lock()

    def verdict(self, holder: str, token: str) -> Verdict:
        """What is known of the ``holder`` of ``token`` (a call's id, or a run's token). Raises ``StoreUnavailable``."""
        proof = owner.proof(holder, token)
        if proof is not owner.Proof.NONE:
            return Verdict(proof)
        lease = self._store.lease_of(holder)
        if lease is None:  # of a version before leases, or forgotten a day after its end
            return Verdict.EXPIRED
        if owner.same_boot(holder):
            over = boot_us() > lease.until_boot_us
        else:
            tolerance = 0 if self._store.keeps_time else CLOCK_TOLERANCE_US
            over = now_us() - lease.until_us > tolerance or self._seconds_to_watch(lease) <= 0
        return Verdict.EXPIRED if over else Verdict.ALIVE

    def is_over(self, holder: str, token: str) -> bool:
        """Whether ``holder`` is dead or expired, so that what it was doing may be judged."""
        return self.verdict(holder, token) is not Verdict.ALIVE

    def seconds_to_watch(self, holder: str) -> float:
        """How long a lease that looks over must still be seen to stand still; 0 if watching would not help."""
        lease = None if owner.same_boot(holder) else self._store.lease_of(holder)
        if lease is None or now_us() <= lease.until_us:
            return 0.0
        return max(self._seconds_to_watch(lease), 0.0)

    def _seconds_to_watch(self, lease: LeaseRecord) -> float:
        now = monotonic()
        with self._lock:
            beats, since = self._watched.get(lease.owner, (0, now))
            if beats != lease.beats:
                since = now
                self._watched[lease.owner] = lease.beats, since
        return since + lease.ttl_us / 1e6 * _WATCH - now
