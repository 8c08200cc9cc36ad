"""The ledger's frozen records: a run, a call, a lock, an audit row; and how users see them.

Times are integer microseconds since the epoch (UTC) inside, aware ``datetime`` outside. ``arguments``, ``result``,
``input`` and ``output`` are encoded texts (``sagaspan.codecs``), ``locks`` are names and ``ahead`` are ids, one a line.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from sagaspan import codecs
from sagaspan._frozen import quick

SESSION: Final = "session"
"""The name of the run that calls outside any run share, and what stands where another run's input is fingerprinted."""
NO_RUN: Final = ""
"""Where audit rows are that are of no run: no run has this id."""
UNREADABLE: Final = ""
"""Under which name ``CallInfo.args`` holds what stands for arguments that cannot be read."""
SUPERSEDED: Final = "superseded:"
"""How the scope of a record starts whose key another one took over."""


class CallState(StrEnum):
    """Where a call is; the same words in code, SQL, spans, command line and docs."""

    AWAITING_APPROVAL = "awaiting_approval"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    UNKNOWN = "unknown"
    NEEDS_HUMAN = "needs_human"
    REFUSED = "refused"
    SCHEDULED = "scheduled"
    COMPENSATING = "compensating"
    COMPENSATED = "compensated"
    COMPENSATION_FAILED = "compensation_failed"


SETTLED: Final = (CallState.DONE, CallState.FAILED, CallState.REFUSED, CallState.COMPENSATED)
"""Where a call is when nobody has to do anything about it any more; all other states are open."""


class RunState(StrEnum):
    """Where a run is. ``failed``: it ended in an error and there was nothing to undo."""

    RUNNING = "running"
    PAUSED = "paused"
    HELD = "held"
    COMPLETED = "completed"
    FAILED = "failed"
    COMPENSATING = "compensating"
    COMPENSATED = "compensated"
    PARTIALLY_COMPENSATED = "partially_compensated"


class ApprovalState(StrEnum):
    """Where a request for approval is. ``superseded``: another request took its place, or its run is over."""

    PENDING = "pending"
    APPROVED = "approved"
    DENIED = "denied"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"
    CONSUMED = "consumed"


class Phase(StrEnum):
    """Whether a call goes forward or undoes another one."""

    FORWARD = "forward"
    COMPENSATION = "compensation"


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One call: unique by (namespace, scope, tool, key). ``version`` counts writes, ``epoch`` counts owners.

    ``claim_seq`` is its place in the order in which calls were claimed. A deferred call takes a place when it is
    scheduled, and a new one when it is sent; ``scheduled_seq`` keeps the first of them from then on. ``reserved`` is
    what it holds of budgets, ``spent`` what it has taken of them (``ledger.budgets``). ``policy`` is the version of the
    policy file that it was claimed under last, ``observed`` what a guard that only observes would have refused it for.
    """

    id: str
    namespace: str
    scope: str
    tool: str
    key: str
    key_source: str
    generation: int = 0
    idempotency_key: str
    fingerprint: str
    run_id: str
    parent_id: str | None = None
    phase: Phase = Phase.FORWARD
    compensates: str | None = None
    state: CallState
    effect: str | None = None
    declared_write: bool = False
    arguments: str
    result: str | None = None
    result_lost: str | None = None
    error_type: str | None = None
    error_message: str | None = None
    compensate: str | None = None
    empty_safe: bool = False
    expect: str | None = None
    pivot: bool = False
    locks: str | None = None
    reserved: str | None = None
    spent: str | None = None
    tool_call_id: str | None = None
    owner: str
    epoch: int = 1
    attempts: int = 0
    version: int = 1
    claim_seq: int = 0
    scheduled_seq: int | None = None
    policy: str | None = None
    observed: str | None = None
    traceparent: str | None = None
    created_us: int
    started_us: int
    ended_us: int | None = None

    @property
    def place(self) -> int:
        """Where the call was asked for, in the order of claims: what a ``commit()`` after it covers."""
        return self.claim_seq if self.scheduled_seq is None else self.scheduled_seq


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run: unique by (namespace, id). ``generation`` counts reopenings.

    What was claimed up to ``committed_seq`` is committed, but for the calls ``ahead`` (``sagaspan.ledger.committed``).
    ``completing``: its block has ended well, for good; what is left is to undo ``orphans`` (ids of calls), if that is
    wanted, and to send what was deferred.
    """

    namespace: str
    id: str
    name: str
    parent_id: str | None = None
    conversation: str | None = None
    user: str | None = None
    tenant: str | None = None
    agent: str | None = None
    tags: str = "{}"
    input: str | None = None
    input_fingerprint: str
    output: str | None = None
    state: RunState
    reason: str | None = None
    error: str | None = None
    on_interrupt: str = "hold"
    generation: int = 0
    committed_seq: int = 0
    completing: bool = False
    ahead: str | None = None
    orphans: str | None = None
    owner: str
    epoch: int = 1
    version: int = 1
    traceparent: str | None = None
    created_us: int
    started_us: int
    ended_us: int | None = None

    @property
    def is_session(self) -> bool:
        """Whether these are the calls outside any run (a user may call a run of his own "session")."""
        return self.input_fingerprint == SESSION

    @property
    def on_record(self) -> bool:
        """Whether the ledger knows this run; with ``fail_open`` one may be entered while the store is down."""
        return self.version > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRecord:
    """A question about exactly one call: one is open by (namespace, scope, tool, key). ``version`` counts writes.

    ``subject`` are the bytes that are decided about, as canonical JSON (``ledger.approvals``), and ``digest`` is their
    hash, fixed when the request is made. ``policy`` says who must agree, ``facts`` what is shown beside the subject,
    ``requested_by`` who asked; all three are JSON, and so are the ``votes``. ``shown`` is the hash of the text that
    people were shown of it first. ``edits`` is the request that this one took the place of, with other arguments.
    """

    id: str
    namespace: str
    run_id: str
    scope: str
    tool: str
    key: str
    call_id: str
    subject: str
    digest: str
    policy: str
    facts: str
    requested_by: str
    shown: str = ""
    edits: str | None = None
    state: ApprovalState = ApprovalState.PENDING
    votes: str = "[]"
    reason: str | None = None
    version: int = 1
    created_us: int
    expires_us: int
    ended_us: int | None = None


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """One transition, as it was decided: who (``actor``: a process or a person), what, from which state to which.

    Of a call, a request for approval, or the run itself. ``digest`` is that of what was decided about, of a request;
    of a claim and a denial the version of the policy file. ``run_id`` is ``NO_RUN`` for what is of none: limits that
    operators set.
    """

    at_us: int
    namespace: str
    run_id: str
    call_id: str | None
    approval_id: str | None = None
    event: str
    from_state: str | None
    to_state: str
    actor: str
    digest: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class ChainedRow:
    """An audit row as it is stored, with its place in the chain of its run (``ledger.chain``).

    ``number`` and ``hash`` are None for rows from before there were chains.
    """

    seq: int
    number: int | None
    content: bytes | None
    hash: bytes | None
    row: AuditRow


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryRecord:
    """A notification that is to be delivered to one hook. ``id`` is what its receiver tells it from others by.

    ``payload`` is JSON; ``about`` says for people what it is about. ``dead``: it was tried often enough.
    """

    id: str
    namespace: str
    hook: str
    kind: str
    about: str
    payload: str
    attempts: int = 0
    next_us: int
    error: str | None = None
    dead: bool = False
    created_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """Until when a process answers for its open calls and runs. ``beats`` counts renewals.

    ``until_us`` is its wall clock, ``until_boot_us`` the monotonic clock of its machine since boot.
    """

    owner: str
    renewed_us: int
    until_us: int
    until_boot_us: int
    ttl_us: int
    beats: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRecord:
    """Who took a semantic lock last: a run, or a call outside any run (``call_id``). ``version`` counts takings.

    It is held until that run or call is over; nothing is written then.
    """

    namespace: str
    name: str
    run_id: str
    call_id: str | None = None
    taken_us: int
    version: int = 1


OWN: Final = "call"
"""The scope of a call's own account: what it may cost, and what it did. No budget has it."""


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetRecord:
    """What is used of one budget: unique by all of its first five fields; amounts in the unit (``sagaspan.amounts``).

    ``window`` is ``""`` where it lasts as long as its scope, and ``start_us`` 0 there. ``cap`` is what the database
    itself checks ``spent + reserved`` against; None for a budget that is only watched. ``overdraft`` is what calls used
    beyond what they had reserved, and what did not fit under the cap: nothing is admitted until it does. ``forgotten``
    is the part of ``spent + overdraft`` whose calls were pruned.
    """

    namespace: str
    scope: str
    unit: str
    window: str = ""
    start_us: int = 0
    cap: int | None = None
    spent: int = 0
    reserved: int = 0
    overdraft: int = 0
    forgotten: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRecord:
    """A limit that was set while agents run; ``pattern`` is a scope or a glob, ``soft`` percents with commas."""

    namespace: str
    pattern: str
    unit: str
    window: str = ""
    amount: int
    hard: bool = True
    soft: str = ""
    actor: str
    at_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopRecord:
    """What a run has to remember of loops beside its calls (``sagaspan._signals``): of this ``generation`` of it."""

    namespace: str
    run_id: str
    generation: int
    entries: str = "[]"
    refusals: int = 0
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FreezeRecord:
    """What an operator stopped: ``scope`` is ``"all"``, a scope or a glob of them (``ledger.freezes``)."""

    namespace: str
    scope: str
    reason: str
    actor: str
    at_us: int


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRecord:
    """What one call cost and used, written when it is settled: ``cost`` in nano-USD, assumed where ``prices`` says so.

    ``cached_tokens`` are part of the input, ``reasoning_tokens`` of the output. ``prices`` says which prices.
    """

    call_id: str
    namespace: str
    run_id: str
    at_us: int
    tool: str
    model: str | None = None
    provider: str | None = None
    agent: str | None = None
    cost: int | None = None
    prices: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageTotals:
    """What several calls cost and used together; ``key`` is what they have in common, if they are grouped."""

    key: str | None = None
    calls: int = 0
    cost: int = 0
    unpriced: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CallInfo:
    """A call as users see it. ``result`` and ``args`` are what was recorded (see ``sagaspan.codecs``).

    What is recorded but cannot be read is a ``codecs.Unreadable``; of arguments it stands under the name ``""``.
    """

    id: str
    tool: str
    state: CallState
    args: dict[str, Any]
    result: Any
    result_lost: str | None
    error: str | None
    attempts: int
    replayed: bool
    run_id: str
    phase: Phase
    compensates: str | None
    compensate: str | None
    effect: str | None
    pivot: bool
    idempotency_key: str
    key: str
    policy: str | None
    observed: tuple[str, ...]
    locks: tuple[str, ...]
    tool_call_id: str | None
    traceparent: str | None
    owner: str
    started: dt.datetime
    ended: dt.datetime | None
    version: int
    namespace: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """A run as users see it; ``calls`` are in the order they were claimed, compensations among them.

    ``created``: when it was first entered; ``started``: when it was entered last.
    ``locks``: the semantic locks it holds, also for the runs nested in it.
    ``completing``: its block has ended well, and what was deferred is being sent, or still to be. ``orphans``: ids of
    writes that were done before it was resumed and not asked for again.
    """

    id: str
    name: str
    status: RunState
    reason: str | None
    error: str | None
    parent_id: str | None
    conversation: str | None
    user: str | None
    tenant: str | None
    agent: str | None
    tags: dict[str, Any]
    input: Any
    output: Any
    on_interrupt: str
    completing: bool
    orphans: tuple[str, ...]
    reopened: int
    traceparent: str | None
    owner: str
    created: dt.datetime
    started: dt.datetime
    ended: dt.datetime | None
    namespace: str
    locks: tuple[str, ...] = ()
    calls: tuple[CallInfo, ...] = field(default=(), repr=False)


_LAST_US: Final = 253_370_764_800_000_000  # the year 9999


def moment(microseconds: int) -> dt.datetime:
    """An aware UTC ``datetime`` of microseconds since the epoch; a time that no calendar has is the nearest it has."""
    return dt.datetime.fromtimestamp(min(max(microseconds, 0), _LAST_US) / 1e6, tz=dt.UTC)


def call_info(record: CallRecord, *, replayed: bool = False) -> CallInfo:
    """The user's view of a call record."""
    return CallInfo(
        id=record.id,
        tool=record.tool,
        state=record.state,
        args=_arguments(record.arguments),
        result=None if record.result is None else codecs.shown(record.result),
        result_lost=codecs.legible(record.result_lost),
        error=_error(record.error_type, codecs.legible(record.error_message)),
        attempts=record.attempts,
        replayed=replayed,
        run_id=record.run_id,
        phase=record.phase,
        compensates=record.compensates,
        compensate=record.compensate,
        effect=record.effect,
        pivot=record.pivot,
        idempotency_key=record.idempotency_key,
        key=record.key,
        policy=record.policy,
        observed=names_of(record.observed),
        locks=names_of(record.locks),
        tool_call_id=record.tool_call_id,
        traceparent=record.traceparent,
        owner=record.owner,
        started=moment(record.started_us),
        ended=None if record.ended_us is None else moment(record.ended_us),
        version=record.version,
        namespace=record.namespace,
    )


def is_encrypted(call: CallInfo) -> bool:
    """Whether something that was recorded of a call is encrypted and cannot be read here."""
    return any(isinstance(value, codecs.Encrypted) for value in (*call.args.values(), call.result))


def names_of(lines: str | None) -> tuple[str, ...]:
    """The names in a column that holds one a line: the locks that a call took, the orphans of a run."""
    return tuple(lines.split("\n")) if lines else ()


def run_info(record: RunRecord, calls: tuple[CallInfo, ...] = (), locks: tuple[str, ...] = ()) -> RunInfo:
    """The user's view of a run record."""
    return RunInfo(
        id=record.id,
        name=record.name,
        status=record.state,
        reason=record.reason,
        error=codecs.legible(record.error),
        parent_id=record.parent_id,
        conversation=record.conversation,
        user=record.user,
        tenant=record.tenant,
        agent=record.agent,
        tags=_arguments(record.tags),
        input=None if record.input is None else codecs.shown(record.input),
        output=None if record.output is None else codecs.shown(record.output),
        on_interrupt=record.on_interrupt,
        completing=record.completing,
        orphans=names_of(record.orphans),
        reopened=record.generation,
        traceparent=record.traceparent,
        owner=record.owner,
        created=moment(record.created_us),
        started=moment(record.started_us),
        ended=None if record.ended_us is None else moment(record.ended_us),
        namespace=record.namespace,
        locks=locks,
        calls=calls,
    )


def _arguments(text: str) -> dict[str, Any]:
    value = codecs.shown(text)
    if isinstance(value, dict):
        return value
    return {UNREADABLE: value if isinstance(value, codecs.Unreadable) else codecs.Unreadable("<no arguments>")}


def _error(kind: str | None, message: str | None) -> str | None:
    if kind is None:
        return None
    return f"{kind}: {message}" if message else kind
