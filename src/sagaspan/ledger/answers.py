"""A record that exists: what the next call under its key is answered, whom it joins, or why it may be claimed again.

Time alone never permits a second run; only evidence or a person does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from opentelemetry.trace import Span, Tracer

from sagaspan import codecs, semconv
from sagaspan._backends import Backend
from sagaspan._call import Call, Result
from sagaspan._clock import monotonic, now_us
from sagaspan._commands import command, resolve_command
from sagaspan._probe import Probe
from sagaspan._waiting import Waiting
from sagaspan.exceptions import CallInProgress, KeyConflict, LoopDetected, OutcomeUnknown, RunClosed
from sagaspan.keys import KeySource
from sagaspan.ledger.encryption import check_fingerprint
from sagaspan.ledger.families import open_family, outermost
from sagaspan.ledger.in_doubt import FindProbe, declare_lost, earliest_sent_us, history, resolve_in_doubt
from sagaspan.ledger.judgement import Judge, Verdict
from sagaspan.ledger.records import CallRecord, CallState, RunRecord, call_info
from sagaspan.ledger.replays import replayed, scheduled_before
from sagaspan.ledger.resolution import IN_DOUBT, MARKS, PERMITTED, RESENT, permitted
from sagaspan.ledger.store import Store

JOIN_SECONDS: Final = 30.0
"""How long a call without ``timeout`` waits for one that runs elsewhere."""


@dataclass(frozen=True, slots=True)
class Again:
    """A record that may be claimed again, and why (None: nothing happened, or it is harmless)."""

    record: CallRecord
    why: str | None = None


class Answers:
    """What the records of one store answer."""

    def __init__(self, store: Store, judge: Judge, find_probe: FindProbe, tracer: Tracer) -> None:
        self._store = store
        self._judge = judge
        self._find_probe = find_probe
        self._tracer = tracer

    async def resolve(
        self, record: CallRecord, probe: Probe | None, backend: Backend, parent: Span | None = None
    ) -> CallRecord:
        """Find out about a call in doubt; see ``resolve_in_doubt``."""
        return await resolve_in_doubt(
            self._store, self._judge, record, probe=probe, backend=backend, tracer=self._tracer, parent=parent
        )

    async def find_out(self, step: CallRecord, call: Call) -> CallRecord:
        """As ``resolve``, for another call that ``call`` depends on."""
        return await self.resolve(step, self._find_probe(step), call.backend, call.span)

    async def answer(self, call: Call, record: CallRecord) -> Result | Again:
        """The recorded result, or why the call may be claimed again; raises what forbids both."""
        if record.fingerprint != call.key.fingerprint:
            if record.namespace not in self._store.seal.encryption:
                check_fingerprint(record.fingerprint, f"the call {record.id} of tool {call.tool.name!r}")
            raise KeyConflict(
                f"tool {call.tool.name!r}: the key {call.key.value!r} was used with other arguments (call "
                f"{record.id}); "
                "nothing ran. Use a new key, or the same arguments",
                call=call_info(record),
            )
        if call.tool.policy.defer or record.state is CallState.SCHEDULED:
            standing = await self._standing(call, record)
            if standing is not None:
                return standing
        if record.state is CallState.RUNNING:
            record, outcome = await self.await_owner(call, record)
        else:
            outcome = semconv.OUTCOME_REPLAYED
        if record.state in IN_DOUBT:
            record = await self.resolve(record, call.tool.probe, call.backend, call.span)
        if record.state is CallState.DONE:
            return replayed(call, record, outcome)
        if record.state in IN_DOUBT:
            return await self.again_in_doubt(call, record, scheduling=call.tool.policy.defer)
        return _claimable(call, record)

    async def _standing(self, call: Call, record: CallRecord) -> Result | None:
        """What a deferred call is answered that stands as scheduled, or was sent, in this run or one it is nested in.

        None: it is to be judged like any other. Raises ``CallInProgress`` if another run has scheduled it, and may yet
        drop it.
        """
        ours = await call.io(self._is_ours, call.run, record)
        if record.state is CallState.SCHEDULED and not (ours and call.tool.policy.defer):
            if record.run_id == call.run.id:  # it is not deferred any more
                return None
            raise CallInProgress(
                f"tool {call.tool.name!r}: the call {record.id} of the run {record.run_id!r} is scheduled under this "
                "key, and sent when that run completes; try again when it has",
                call=call_info(record),
            )
        if not ours:
            return None
        if record.state in IN_DOUBT:
            record = await self.resolve(record, call.tool.probe, call.backend, call.span)
        if record.state in IN_DOUBT and not call.replaying:
            await self.again_in_doubt(call, record)  # raises, unless it may be sent again
        standing = (CallState.SCHEDULED, CallState.RUNNING, CallState.DONE, *IN_DOUBT)
        return scheduled_before(call, record) if call.replaying or record.state in standing else None

    def _is_ours(self, run: RunRecord, record: CallRecord) -> bool:
        """Whether a call is of this run, or of one that ends with it."""
        if record.run_id == run.id:
            return True
        other = self._store.get_run(record.namespace, record.run_id)
        return other is not None and outermost(self._store, other).id == outermost(self._store, run).id

    async def again_in_doubt(self, call: Call, record: CallRecord, *, scheduling: bool = False) -> Again:
        """A call in doubt runs again only where that is harmless, or where a person permitted it.

        ``scheduling``: not now, but at a time that nobody knows, so that neither holds then.
        """
        policy = call.tool.policy
        if policy.rerunnable:
            return Again(record)
        rows = await call.io(history, self._store, record)
        if not scheduling and policy.may_resend(earliest_sent_us(record, rows), now_us()):
            return Again(record, RESENT)
        if not scheduling and permitted(rows):
            return Again(record, PERMITTED)
        why = codecs.legible(rows[-1].detail) if rows else None
        raise OutcomeUnknown(
            f"tool {call.tool.name!r} was started before (call {record.id}) and nobody knows if it happened"
            f"{f' ({why})' if why else ''}; it is not run again. {decide(record)}",
            call=call_info(record),
        )

    async def await_owner(self, call: Call, record: CallRecord) -> tuple[CallRecord, str]:
        """Join a call that runs elsewhere; a provably dead owner leaves it ``unknown``."""
        if record.id in call.ancestors:
            raise LoopDetected(
                f"tool {call.tool.name!r} calls itself with the same arguments and would wait for itself; "
                "give it a key= that differs, or repeat='new'",
                signature=call.key.value, count=1, call=call_info(record),
            )  # fmt: skip
        deadline = monotonic() + (call.tool.policy.timeout or JOIN_SECONDS)
        with Waiting(call, semconv.WAIT_OWNER) as waiting:
            while record.state is CallState.RUNNING:
                verdict = await call.io(self._judge.verdict, record.owner, record.id)
                if verdict is not Verdict.ALIVE:
                    return await call.io(declare_lost, self._store, record, verdict), semconv.OUTCOME_REPLAYED
                if monotonic() > deadline:
                    raise CallInProgress(
                        f"tool {call.tool.name!r}: call {record.id} is still running elsewhere ({record.owner}); "
                        "try again when it has ended",
                        call=call_info(record),
                    )
                await waiting.pause(JOIN_SECONDS)
                record = await call.io(self.reload, record)
        return record, semconv.OUTCOME_JOINED

    def reload(self, record: CallRecord) -> CallRecord:
        """The record as it is now."""
        return self._store.get_call(record.id) or record

    async def check_resolved(self, call: Call) -> None:
        """A resume that takes another path starts no write while an earlier one is in doubt, of any run it is in."""
        for other in await call.io(self._open_steps, call.run):
            if not other.declared_write or other.state not in (*IN_DOUBT, CallState.RUNNING):
                continue
            other = await self.find_out(other, call)
            if other.state in IN_DOUBT:
                raise OutcomeUnknown(
                    f"tool {call.tool.name!r} did not run: nobody knows whether {other.tool!r} of this run happened; "
                    f"a new write must not rest on a guess. {decide(other)}",
                    call=call_info(other), tool_ran="no",
                )  # fmt: skip

    def _open_steps(self, run: RunRecord) -> list[CallRecord]:
        return list(open_family(self._store, outermost(self._store, run)))


def _claimable(call: Call, record: CallRecord) -> Again:
    """Why a call that is over may be run (again) by this one; raises otherwise."""
    undone = record.state is CallState.COMPENSATED and call.key.source is KeySource.BUSINESS
    if record.state in (CallState.FAILED, CallState.REFUSED) or undone:
        return Again(record, marks(call))
    raise RunClosed(
        f"tool {call.tool.name!r}: its call {record.id} is {record.state}; a call that was undone is not run again in "
        "the same run. Reopen the run (reopen=True) or use a new run id",
        status=record.state, call=call_info(record),
    )  # fmt: skip


def marks(call: Call) -> str | None:
    """What the claim says of a tool whose missing second mark proves that nothing was sent."""
    return MARKS if call.tool.policy.marks_sending else None


def decide(record: CallRecord) -> str:
    """What whoever knows what became of a call in doubt does."""
    return f"Find out ({command('show', record.id)}), then say so: {resolve_command(record.id)}"
