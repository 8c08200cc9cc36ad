"""``fail_open=True``: while the store is down, reads run unrecorded, and say so. Writes never.

It stands directly around the ledger, so that no other layer is passed by: a read that asks something of the claim (an
approval to use up, a reservation, a lock) fails closed like a write.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from sagaspan import _spans as spans
from sagaspan import semconv
from sagaspan._call import Call, Declared, Result
from sagaspan._clock import monotonic, now_us
from sagaspan._tool import Tool
from sagaspan.exceptions import StoreUnavailable
from sagaspan.ledger.attempts import run_attempts
from sagaspan.ledger.claims import new_record
from sagaspan.ledger.ledger import ONCE, Ledger
from sagaspan.ledger.limits import Limits
from sagaspan.ledger.records import RunRecord
from sagaspan.ledger.settling import outcome

_log = logging.getLogger("sagaspan")
RETRY_SECONDS: Final = 5.0
"""How long after a failure the store is not asked again for a read: each try may wait for a lock."""


class Outage:
    """What this process knows of the store being down; ``why`` is the sentence of the last failure."""

    def __init__(self) -> None:
        self.why = ""
        self._until = 0.0

    @property
    def goes_on(self) -> bool:
        """Whether the last failure was less than ``RETRY_SECONDS`` ago."""
        return monotonic() < self._until

    def began(self, error: StoreUnavailable) -> str:
        """The store was just found to be down."""
        self.why, self._until = str(error), monotonic() + RETRY_SECONDS
        return self.why


def may_run_unrecorded(tool: Tool) -> bool:
    """Whether a call of ``tool`` changes nothing, by declaration."""
    return tool.policy.effect == "read"


def unrecorded(run: RunRecord) -> RunRecord:
    """``run`` as one that the ledger does not know."""
    return replace(run, version=0)


class FailOpen:
    """The endpoint of the onion over a ledger that may be down."""

    def __init__(self, ledger: Ledger, outage: Outage, limits: Limits) -> None:
        self._ledger = ledger
        self._outage = outage
        self._limits = limits

    async def __call__(self, call: Call) -> Result:
        """As the ledger, or unrecorded if that is down and the call is a read of which the claim holds nothing."""
        if not may_run_unrecorded(call.tool) or replace(call.declared, observed=()) != Declared():
            return await self._ledger(call)
        if call.run.on_record and not self._outage.goes_on:
            try:
                return await self._ledger(call)
            except StoreUnavailable as error:  # of the claim: what the body raises is in the result
                self._outage.began(error)
        if self._limits.hold(call):  # nobody could count it, in no process
            raise StoreUnavailable(
                f"tool {call.tool.name!r} did not run: a budget or a rate holds for it, and {self._outage.why}"
            )
        return await _run_unrecorded(call, self._outage.why)

    async def serve(self, call: Call) -> Result | None:
        """The answer of the ledger; None if that is down, so that a read goes on to its end above."""
        if not may_run_unrecorded(call.tool):
            return await self._ledger.serve(call)
        if not call.run.on_record or (self._outage.goes_on and not call.replaying):
            return None
        try:
            return await self._ledger.serve(call)
        except StoreUnavailable as error:
            self._outage.began(error)
            if call.replaying:  # nothing is run in a run that is only replayed
                raise
            return None


async def _run_unrecorded(call: Call, why: str) -> Result:
    _log.warning("tool %r runs unrecorded (fail_open=True): %s", call.tool.name, why)
    spans.mark(call.span, semconv.UNRECORDED)
    ended = await run_attempts(
        call, retry=call.tool.policy.retry or ONCE, next_attempt=_nothing_to_record, late=lambda _: None
    )
    record = replace(new_record(call), state=ended.state, ended_us=now_us(), version=0, **outcome(ended))
    return Result(
        value=ended.value, error=ended.error, state=ended.state, outcome=semconv.OUTCOME_UNRECORDED, record=record
    )


async def _nothing_to_record() -> None:
    """Another attempt starts."""
