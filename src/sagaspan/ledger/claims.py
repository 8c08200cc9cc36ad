"""The record that a call claims: a new one, one that may run again, or the next under a key whose call is over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sagaspan import _owner as owner
from sagaspan._call import Call
from sagaspan._clock import now_us
from sagaspan._spans import traceparent_of
from sagaspan.keys import idempotency_key
from sagaspan.ledger import transitions
from sagaspan.ledger.answers import Again
from sagaspan.ledger.attempts import UntilSettled
from sagaspan.ledger.records import AuditRow, CallRecord, CallState
from sagaspan.ledger.tasks import with_task


class Claim(UntilSettled):
    """The record in hand, which changes with every attempt.

    ``in_doubt``: an attempt before this claim may have applied, so a clean failure of this one proves nothing of it.
    ``resent``: it is only claimed because the service does its key once.
    """

    __slots__ = ("in_doubt", "record", "resent")

    def __init__(self, record: CallRecord, *, in_doubt: bool = False, resent: bool = False) -> None:
        super().__init__()
        self.record = record
        self.in_doubt = in_doubt
        self.resent = resent


def new_record(call: Call) -> CallRecord:
    """The record of a call as it is claimed."""
    now = now_us()
    policy, compensation = call.tool.policy, call.declared.compensation
    waits = policy.defer
    return CallRecord(
        id=call.id,
        namespace=call.run.namespace,
        scope=call.key.scope,
        tool=call.tool.name,
        key=call.key.value,
        key_source=call.key.source,
        generation=call.generation,
        idempotency_key=call.idempotency_key,
        fingerprint=call.key.fingerprint,
        run_id=call.run.id,
        parent_id=call.ancestors[-1] if call.ancestors else None,
        state=CallState.SCHEDULED if waits else CallState.RUNNING,
        effect=policy.effect,
        declared_write=policy.declared_write,
        arguments=call.encoded,
        compensate=None if compensation is None else compensation.name,
        empty_safe=policy.empty_safe,
        pivot=policy.pivot,
        expect=None if compensation is None or compensation.expect is None else compensation.expect.name,
        locks=lock_names(call),
        tool_call_id=call.tool_call_id,
        owner=owner.this_process(),
        epoch=0 if waits else 1,
        attempts=0 if waits else 1,
        policy=call.policy,
        observed="\n".join(call.declared.observed) or None,
        traceparent=traceparent_of(call.span),
        created_us=now,
        started_us=now,
    )


def lock_names(call: Call) -> str | None:
    """The locks a call takes, as recorded: what undoes it later takes them again."""
    return "\n".join(call.declared.locks) or None


def why_opened(call: Call, why: str | None) -> str | None:
    """What the first row of a claim says; ``why`` there is one is not said of a deferred call, which is none yet."""
    return with_task(None if call.tool.policy.defer else why, call.task)


def taken_again(call: Call, again: Again) -> tuple[CallRecord, AuditRow]:
    """A record of this run that may run again: claimed by this call, or scheduled if it is deferred."""
    who: dict[str, Any] = {
        "owner": owner.this_process(), "now_us": now_us(), "traceparent": traceparent_of(call.span),
        "locks": lock_names(call), "policy": call.policy,
    }  # fmt: skip
    if call.tool.policy.defer:
        return transitions.schedule_again(again.record, **who)
    return transitions.claim_again(again.record, detail=with_task(again.why, call.task), **who)


def next_generation(call: Call, existing: CallRecord) -> Call:
    """The call under a key whose earlier call is over: after an undone one, downstream must not answer for that one."""
    generation = existing.generation + (existing.state is CallState.COMPENSATED)
    key = idempotency_key(call.run.namespace, call.key.scope, call.tool.name, call.key.value, generation)
    return replace(call, generation=generation, idempotency_key=key)
