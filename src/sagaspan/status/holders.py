"""Who holds a run or a call that goes on, in words: which process, whether it lives, until when it answers for it."""

from __future__ import annotations

from typing import Any

from sagaspan import _owner as owner
from sagaspan._clock import now_us
from sagaspan.ledger.judgement import Judge, Verdict
from sagaspan.ledger.records import LeaseRecord, moment


def held_by(store: Any, holder: str, token: str) -> tuple[Verdict, str]:
    """What is known of the ``holder`` of ``token``, and the sentence that says so."""
    verdict = Judge(store).verdict(holder, token)
    if holder == owner.NOBODY:
        return verdict, "nobody; it was given back for a process that can go on with it"
    lease = store.lease_of(holder)
    proved = owner.proof(holder, token) is not owner.Proof.NONE
    where = "of this host" if proved else "elsewhere" if not owner.same_boot(holder) else "of another container"
    parts = holder.split(":")
    process = f"process {parts[2]} {where}" if len(parts) == 5 else f"{holder} {where}"
    return verdict, f"{process}, {_state(verdict, lease)}"


def _state(verdict: Verdict, lease: LeaseRecord | None) -> str:
    if verdict is Verdict.DEAD:
        return "which died" if lease is None else f"which died (last sign of life {_ago(lease.renewed_us)} ago)"
    if lease is None:
        return "without a lease"
    until = moment(lease.until_us).astimezone().strftime("%H:%M:%S")
    if verdict is Verdict.EXPIRED:
        return f"whose lease is over (last renewed {_ago(lease.renewed_us)} ago)"
    if now_us() > lease.until_us:
        return f"whose lease looks over by our clock (until {until}); recover watches it to be sure"
    return f"alive, lease until {until}"


def _ago(at_us: int) -> str:
    seconds = max((now_us() - at_us) / 1e6, 0.0)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
