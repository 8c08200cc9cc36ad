"""Deciding requests: what an approver, a web app and the command line do with them, each in one commit.

A decision is bound to the request as it was read: whoever comes second finds it decided, and is told so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sagaspan import _owner as owner
from sagaspan import codecs
from sagaspan._clock import new_id, now_us
from sagaspan._commands import command
from sagaspan._tool import Reads
from sagaspan.exceptions import ResolutionError
from sagaspan.ledger import approvals
from sagaspan.ledger.approvals import OPEN, Digest, Vote
from sagaspan.ledger.asking import decided
from sagaspan.ledger.edits import as_read
from sagaspan.ledger.records import ApprovalRecord, ApprovalState, RunState
from sagaspan.ledger.requests import View, view_of
from sagaspan.ledger.store import ApprovalChange, NonceChange, Store

_OVER: Final = (RunState.COMPLETED, RunState.COMPENSATED)


def get(store: Store, approval_id: str) -> ApprovalRecord:
    """Return the request of this id as it is now; raises ``ResolutionError`` if there is none."""
    record = store.approval(approval_id)
    if record is None:
        raise ResolutionError(f"there is no request {approval_id!r}; see: sagaspan approvals list", tool_ran="no")
    return as_now(store, record)


def as_now(store: Store, record: ApprovalRecord) -> ApprovalRecord:
    """Return ``record`` as it is now, on record: superseded too if its run is over, so that nothing can use it."""
    record = as_due(store, record)
    while record.state in OPEN and _is_left(store, record):
        change = approvals.supersede(record, store.now_us(), actor=owner.this_process(), why="its run is over")
        if store.commit([change], synced=False):
            return change.record
        record = store.approval(record.id) or record
    return record


def _is_left(store: Store, record: ApprovalRecord) -> bool:
    run = store.get_run(record.namespace, record.run_id)
    return run is not None and not run.is_session and run.state in _OVER


def as_due(store: Store, record: ApprovalRecord) -> ApprovalRecord:
    """``record`` as it is now: one that nobody decided in time is expired, on record."""
    while approvals.is_due(record, now := store.now_us()):
        change = approvals.expire(record, now, owner.this_process())
        if store.commit([change], synced=False):
            return _counted(change.record, "")
        record = store.approval(record.id) or record
    return record


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What a decision holds for: the ``digest`` of the arguments, the hash of the text that was ``shown`` (None: of
    whatever they are now), and the nonce that it uses up.
    """

    digest: str | None = None
    shown: str | None = None
    once: NonceChange | None = None


ANYWAY: Final = Condition()


def approve(
    store: Store,
    record: ApprovalRecord,
    vote: Vote,
    *,
    make_digest: Digest,
    only: Condition = ANYWAY,
    view: View | None = None,
    goes_on: bool = False,
) -> ApprovalRecord:
    """``vote`` for a request, if it is (still) as ``only`` says; raises ``ResolutionError``.

    ``view``: what was shown of it, if that is at hand. ``goes_on``: the call that asks waits for nothing else.
    """
    record = as_now(store, record)
    view = _informed(record, make_digest, only, view)
    change = approvals.vote(record, replace(vote, shown=view.shown), uninspectable=view.is_uninspectable)
    # The claim that uses it up is on disk before the tool starts, and this with it. Lost before, it was no yes.
    with_claim = goes_on and change.record.state is ApprovalState.APPROVED
    return _counted(_saved(store, change.record, [change], only, synced=not with_claim), vote.channel)


def deny(
    store: Store, record: ApprovalRecord, *, by: str, channel: str, reason: str | None, only: Condition = ANYWAY
) -> ApprovalRecord:
    """End a request with a no; raises ``ResolutionError`` if it has ended."""
    record = as_now(store, record)
    _check_open(record)
    _check_digest(record, only.digest)
    change = approvals.deny(record, now_us(), by=by, channel=channel, reason=reason)
    return _counted(_saved(store, change.record, [change], only), channel)


def edit(
    store: Store,
    record: ApprovalRecord,
    arguments: Mapping[str, Any],
    vote: Vote,
    *,
    make_digest: Digest,
    only: Condition = ANYWAY,
    reads: Reads | None = None,
) -> ApprovalRecord:
    """A new request with all ``arguments`` (plain JSON data) in the place of this one; its editor agrees to it.

    Raises ``ResolutionError`` for arguments of other names, those that ``reads`` refuses, redacted ones, and for who
    could not agree.
    """
    record = as_now(store, record)
    _informed(record, make_digest, only)
    arguments = as_read(record.tool, reads, approvals.arguments_of(record), arguments)
    subject = approvals.subject_of(
        namespace=record.namespace, scope=record.scope, tool=record.tool, arguments=arguments
    )
    now = store.now_us()
    new = replace(
        record, id=new_id(now), subject=approvals.subject_text(subject), digest=make_digest(subject), edits=record.id,
        version=1, votes="[]", created_us=now, expires_us=now + record.expires_us - record.created_us,
    )  # fmt: skip
    view = view_of(new, make_digest).on_record()
    new = view.record
    agreed = approvals.vote(new, replace(vote, shown=new.shown), uninspectable=view.is_uninspectable)
    changes = [
        approvals.supersede(record, now, actor=vote.by, why=f"edited as {new.id}"),
        approvals.ask(new, vote.by),
        agreed,
    ]
    return _counted(_saved(store, agreed.record, changes, only), vote.channel)


def _counted(record: ApprovalRecord, channel: str) -> ApprovalRecord:
    decided(record, channel)
    return record


def _informed(record: ApprovalRecord, make_digest: Digest, only: Condition, view: View | None = None) -> View:
    """What the request says now; raises ``ResolutionError`` if that is not what was shown."""
    _check_open(record)
    _check_readable(record)
    _check_digest(record, only.digest)
    if view is None or view.record != record:
        view = view_of(record, make_digest)
    if only.shown is not None and only.shown != view.shown:
        raise ResolutionError(
            f"the request {record.id} says something else by now than what was shown; look again: "
            f"{command('approvals show', record.id)}",
            tool_ran="no",
        )
    return view


def _saved(
    store: Store, record: ApprovalRecord, changes: Sequence[ApprovalChange], only: Condition, *, synced: bool = True
) -> ApprovalRecord:
    once = [] if only.once is None else [only.once]
    refused = store.commit([*once, *changes], synced=synced).refused
    if isinstance(refused, NonceChange):
        raise ResolutionError(
            f"this decides the request {record.id} only once, and was used before; nothing was decided", tool_ran="no"
        )
    if refused is not None:
        raise _stale(record)
    return record


def _check_open(record: ApprovalRecord) -> None:
    if record.state not in OPEN:
        raise ResolutionError(
            f"the request {record.id} for {record.tool!r} is {record.state}; nothing was decided", tool_ran="no"
        )


def _check_readable(record: ApprovalRecord) -> None:
    if codecs.is_encrypted(record.subject):
        raise ResolutionError(
            f"what the request {record.id} asks about is encrypted, and there is no codec here that reads it, so "
            "nobody can agree to it here; use the guard that has it (--app MODULE:GUARD)",
            tool_ran="no",
        )


def _check_digest(record: ApprovalRecord, digest: str | None) -> None:
    if digest is not None and digest != record.digest:
        raise ResolutionError(
            f"the request {record.id} is about other arguments than those with the digest {digest!r}; look again: "
            f"{command('approvals show', record.id)}",
            tool_ran="no",
        )


def _stale(record: ApprovalRecord) -> ResolutionError:
    return ResolutionError(
        f"the request {record.id} for {record.tool!r} was decided by somebody else meanwhile; nothing was decided now",
        tool_ran="no",
    )
