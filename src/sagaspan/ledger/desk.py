"""Where requests are made, found again and put to the approver of a guard.

One request is open for a call: who asks about it second attaches. A no, and a request that nobody decided in time, are
final for these arguments in that run. Errors, timeouts and missing approvers refuse (rule book (d) 3).
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Final

from sagaspan import _owner as owner
from sagaspan import codecs
from sagaspan._backends import UNWATCHED, BodyTimeout
from sagaspan._call import Call
from sagaspan._clock import monotonic, new_id, now_us
from sagaspan._commands import command
from sagaspan._compensation import is_async_callable
from sagaspan._console import Console, somebody_is_there
from sagaspan._context import approver_here, nothing_in_force
from sagaspan._tool import Reads
from sagaspan.approvers import LATER, Always, Approve, Approver, Callback, Deny, Edit, Inbox
from sagaspan.exceptions import (
    ApprovalDenied,
    ApprovalExpired,
    ApprovalPending,
    ConfigurationError,
    KeyConflict,
    ResolutionError,
)
from sagaspan.keys import BUSINESS_SCOPE, KeySource
from sagaspan.ledger import approvals, decisions
from sagaspan.ledger.approvals import Digest, Requirement, Vote
from sagaspan.ledger.asking import TRACEPARENT, Asking
from sagaspan.ledger.decisions import Condition
from sagaspan.ledger.edits import NoEdit
from sagaspan.ledger.records import ApprovalRecord, ApprovalState
from sagaspan.ledger.requests import OUTSIDE_RUN, View, request_in, view_of
from sagaspan.ledger.so_far import so_far
from sagaspan.ledger.store import ApprovalChange, Store
from sagaspan.rendering import cut

_log = logging.getLogger("sagaspan")
OUTSIDE: Final = "outside"
"""The scope of requests for calls outside any run: an equal call uses the approval, in whatever process."""

_PAUSE: Final = 0.5
_IN_PLACE: Final = ("auto", "inbox", "console")
"""Channels whose approvers answer at once, or must be asked by the very thread that can be interrupted."""

_SAID: Final = 100
_ENDED: Final = (ApprovalState.DENIED, ApprovalState.EXPIRED)


class Desk:
    """The requests of one guard, and its approver (None: nobody is asked here, and the log says where to decide)."""

    def __init__(self, store: Store, digest: Digest, approver: Approver | None) -> None:
        self._store = store
        self._digest = digest
        self._approver = approver
        self._warned = False
        self._asking: set[str] = set()

    async def ask(self, call: Call, plain: Mapping[str, Any]) -> ApprovalRecord:
        """An approved request for this call, or one with other arguments that took its place.

        Raises ``ApprovalDenied``, ``ApprovalExpired``, ``ApprovalPending``, ``KeyConflict`` or ``StoreError``.
        """
        asking = Asking(call)
        try:
            return await self._ask(call, plain, asking)
        finally:
            asking.end()

    async def _ask(self, call: Call, plain: Mapping[str, Any], asking: Asking) -> ApprovalRecord:
        named = approver_here.get() or self._approver
        # A question that answers itself is on disk with its answer, or its claim: nobody is told of it before.
        record, digest, view = await call.io(self._request, call, plain, asking, synced=not isinstance(named, Always))
        asking.record = record
        approver = named or self._default(call)
        deadline = monotonic() + approver.wait
        pause = 0.05
        while record.state is ApprovalState.PENDING and record.digest == digest:
            if record.id not in self._asking:
                asked = record.id
                self._asking.add(asked)
                try:
                    if view is None or view.record != record:
                        view = view_of(record, self._digest)
                    asking.record = record = await self._put_to(approver, call, view)
                finally:
                    self._asking.discard(asked)
            if record.state is ApprovalState.PENDING and record.digest == digest:
                if monotonic() >= deadline and record.id not in self._asking:
                    raise _pending(call, record)
                await call.sleep(pause)
                pause = min(pause * 1.5, _PAUSE)
                asking.record = record = await call.io(self._latest, record)
        _check_not_ended(call, record)
        self._check_whole(call, record)
        if record.digest != digest and record.state in approvals.OPEN:  # edited: it is judged as that call first
            return record
        if record.state is not ApprovalState.APPROVED:  # used by an equal call meanwhile
            return await self._ask(call, plain, asking)
        _check_executor(call, record)
        return record

    def _check_whole(self, call: Call, record: ApprovalRecord) -> None:
        """Refuse a request whose row was written by somebody else: what it asks about is not what was decided about."""
        try:
            is_whole = self._digest(json.loads(record.subject)) == record.digest
        except ValueError:
            is_whole = False
        if not is_whole:
            raise ApprovalDenied(
                f"tool {call.tool.name!r} did not run: the approval {record.id} cannot be used, because its row in the "
                f"ledger was changed. See: {command('approvals show', record.id)}"
            )

    # -- requests ----------------------------------------------------------------------------------------------

    def _request(
        self, call: Call, plain: Mapping[str, Any], asking: Asking, *, synced: bool
    ) -> tuple[ApprovalRecord, str, View | None]:
        """The open request for ``call``, or a new one and its view, and the digest of ``call``.

        Raises what was decided for good.
        """
        scope, key = address_of(call)
        subject = approvals.subject_of(namespace=call.run.namespace, scope=scope, tool=call.tool.name, arguments=plain)
        text, digest = approvals.subject_text(subject), self._digest(subject)
        required = self._required(call)
        policy = approvals.requirement_text(required)
        while True:
            found = self._store.approvals_about(call.run.namespace, scope, call.tool.name, key, digest)
            found = [decisions.as_due(self._store, record) for record in found]
            self._check_final(call, found, digest, asking)
            known = next((one for one in found if one.key == key and one.state in approvals.OPEN), None)
            if known is not None and known.digest == digest and known.policy == policy:
                return known, digest, None
            # Whom an edited call asks is seen when it is judged as that one, but never fewer than are asked now.
            if known is not None and took_place(known, found, digest) and _is_no_less(known, required):
                return known, digest, None
            changes: list[ApprovalChange] = []
            if known is not None:
                if known.digest != digest and call.key.source is KeySource.BUSINESS:
                    raise KeyConflict(
                        f"tool {call.tool.name!r} did not run: under the key {call.key.value!r} the request {known.id} "
                        "asks about other arguments. Use a new key, or the same arguments"
                    )
                why = "other arguments" if known.policy == policy else "another policy"
                changes = [approvals.supersede(known, now_us(), actor=owner.this_process(), why=why)]
            new = self._new(call, scope, key, text, digest, policy, asking.traceparent)
            if self._store.commit([*changes, approvals.ask(new.record, owner.this_process())], synced=synced):
                return new.record, digest, new

    def _required(self, call: Call) -> Requirement:
        """Who must agree to ``call``; to an edited one at least as many, and as surely, as to what was asked first."""
        own = requirement_for(call)
        edit = None if call.edited is None else self._store.approval(call.edited)
        return own if edit is None else own.no_less_than(approvals.requirement_of(edit))

    def _check_final(self, call: Call, found: list[ApprovalRecord], digest: str, asking: Asking) -> None:
        """A no stands for these arguments in this run, however often they are asked about."""
        for record in found:
            same = record.digest == digest or took_place(record, found, digest)
            if same and record.state in _ENDED and record.run_id == call.run.id:
                asking.record = record
                _check_not_ended(call, record)

    def _new(self, call: Call, scope: str, key: str, text: str, digest: str, policy: str, asked_in: str | None) -> View:
        now = self._store.now_us()
        requirement, compensate = call.tool.policy.approval, call.tool.policy.compensate
        facts = {
            "run": call.run.name, "title": call.tool.title or None, "effect": call.tool.policy.effect,
            "compensate": compensate if isinstance(compensate, str) else getattr(compensate, "__name__", None),
            "policy": call.policy,
            "gate": "; ".join(gate.says for gate in call.tool.gates), TRACEPARENT: asked_in,
            **({OUTSIDE_RUN: True} if call.run.is_session else so_far(self._store, call.run)),
        }  # fmt: skip
        lasts = approvals.DAY_SECONDS if requirement is None else requirement.expires_in
        new = ApprovalRecord(
            id=new_id(now), namespace=call.run.namespace, run_id=call.run.id, scope=scope, tool=call.tool.name, key=key,
            call_id=call.id, subject=text, digest=digest, policy=policy, edits=call.edited, facts=json.dumps(facts),
            requested_by=json.dumps(_executors(call)),
            created_us=now, expires_us=now + int(lasts * 1e6),
        )  # fmt: skip
        return view_of(new, self._digest).on_record()

    def _latest(self, record: ApprovalRecord) -> ApprovalRecord:
        """The request as it is now, or the one that took its place."""
        now = decisions.as_due(self._store, self._store.approval(record.id) or record)
        if now.state is not ApprovalState.SUPERSEDED:
            return now
        about = self._store.approvals_about(now.namespace, now.scope, now.tool, now.key)
        return next((one for one in about if one.state in approvals.OPEN), now)

    # -- the approver ------------------------------------------------------------------------------------------

    def _default(self, call: Call) -> Approver:
        """Who is asked where nobody said: the terminal if somebody is there, else the inbox, which the log names."""
        if not call.backend.is_async and somebody_is_there():
            return Console()
        if not self._warned:
            self._warned = True
            _log.warning(
                "this guard has no approver, so what must be approved waits in the ledger; decide it with "
                "`sagaspan approvals list`, or say approver='inbox' if that is meant"
            )
        return Inbox()

    async def _put_to(self, approver: Approver, call: Call, view: View) -> ApprovalRecord:
        """Ask ``approver``, and record what it says; a request that is not decided by that is returned as it was."""
        record = view.record
        answer = await self._answer(approver, call, view)
        if answer is LATER:
            return record
        try:
            return await call.io(self._decide, view, answer, approver.channel, call.tool.reads)
        except ResolutionError as error:
            if isinstance(error, NoEdit) and isinstance(approver, Callback):  # what is no decision refuses
                no = Deny(f"the approver's answer is no decision: {error}")
                return await call.io(self._decide, view, no, approver.channel, None)
            now = await call.io(self._latest, record)
            if now.state is ApprovalState.PENDING and now.version == record.version:  # it was no one who may say so
                _log.warning("%s", error)
            return now

    async def _answer(self, approver: Approver, call: Call, view: View) -> Any:
        request = request_in(view)
        is_async = getattr(approver, "is_async", None) or is_async_callable(approver.decide)

        def ask() -> Any:
            with nothing_in_force():
                return approver.decide(request)

        async def aask() -> Any:
            with nothing_in_force():
                return await approver.decide(request)

        left = max((view.record.expires_us - self._store.now_us()) / 1e6, 0.001)
        limits: Any = {"timeout": None if approver.channel in _IN_PLACE else left, "watch": UNWATCHED}
        try:
            answer = await call.backend.run_body(aask if is_async else ask, is_async=is_async, **limits)
            if inspect.isawaitable(answer):  # a plain function that hands on what another one will answer
                answer = await call.backend.run_body(lambda: _awaited(answer), is_async=True, **limits)
        except BodyTimeout:
            return Deny("nobody decided in time")
        except ConfigurationError as error:
            _log.warning(
                "the approver of tool %r answered what is no decision, so it is refused: %s", call.tool.name, error
            )
            return Deny(f"the approver's answer is no decision: {error}")
        except Exception as error:  # noqa: BLE001 - an approver that breaks has not agreed
            _log.warning("the approver of tool %r failed, so it is refused", call.tool.name, exc_info=error)
            return Deny(f"the approver failed: {type(error).__name__}")
        return _as_decision(answer, is_approver=not isinstance(approver, Callback))

    def _decide(self, view: View, answer: Any, channel: str, reads: Reads | None) -> ApprovalRecord:
        record = view.record
        by = answer.by or owner.os_user()  # an approver that names nobody speaks for who runs it
        if isinstance(answer, Deny):
            return decisions.deny(self._store, record, by=by, channel=channel, reason=answer.reason)
        vote = Vote(by=by, channel=channel, roles=tuple(answer.roles), assurance=answer.assurance, at_us=now_us())
        only = Condition(digest=record.digest)
        if isinstance(answer, Approve):
            return decisions.approve(
                self._store, record, vote, make_digest=self._digest, only=only, view=view, goes_on=True
            )
        try:
            plain = {name: codecs.to_json(value, name) for name, value in answer.arguments.items()}
            return decisions.edit(self._store, record, plain, vote, make_digest=self._digest, only=only, reads=reads)
        except (codecs.Unencodable, AttributeError) as problem:
            reason = f"the edit cannot be recorded: {problem}"
            return decisions.deny(self._store, record, by=by, channel=channel, reason=reason)


async def _awaited(answer: Awaitable[Any]) -> Any:
    with nothing_in_force():
        return await answer


def _as_decision(answer: Any, *, is_approver: bool) -> Any:
    """What was answered, as a decision; what is none refuses. Only an approver can leave it to others."""
    if answer is True:
        return Approve()
    if answer is False:
        return Deny()
    if isinstance(answer, Approve | Deny | Edit):
        return answer
    if is_approver and isinstance(answer, str) and answer == LATER:
        return LATER
    said = ascii(answer[:_SAID]) if isinstance(answer, str) else type(answer).__name__
    return Deny(f"the approver answered {said}, which is no decision (Approve(), Deny(), Edit(...), True or False)")


def took_place(record: ApprovalRecord, found: Sequence[ApprovalRecord], digest: str) -> bool:
    """Whether ``record`` took the place of a request with this digest, by an edit; ``found`` has those between."""
    by_id = {one.id: one for one in found}
    while record.edits is not None and record.edits in by_id:
        record = by_id[record.edits]
        if record.digest == digest:
            return True
    return False


def _is_no_less(record: ApprovalRecord, required: Requirement) -> bool:
    asked = approvals.requirement_of(record)
    return asked == asked.no_less_than(required)


def address_of(call: Call) -> tuple[str, str]:
    """Under which scope and key requests for ``call`` are found: never those of another run."""
    if call.run.is_session:
        return (OUTSIDE, call.key.fingerprint) if call.key.source is KeySource.UNIQUE else (OUTSIDE, call.key.value)
    if call.key.scope == BUSINESS_SCOPE:
        return f"run#{call.run.generation}:{call.run.id}/{BUSINESS_SCOPE}", call.key.value
    return call.key.scope, call.key.value


def requirement_for(call: Call) -> Requirement:
    """Who must agree to ``call``."""
    asked = call.tool.policy.approval
    if asked is None:
        return Requirement()
    return Requirement(
        approvers=asked.approvers, roles=tuple(sorted(asked.roles)), four_eyes=asked.four_eyes,
        assurance=asked.assurance,
    )  # fmt: skip


def _check_not_ended(call: Call, record: ApprovalRecord) -> None:
    if record.state is ApprovalState.EXPIRED:
        raise ApprovalExpired(
            f"tool {call.tool.name!r} did not run: nobody approved it in time (request {record.id}), which is a no for "
            "this run"
        )
    if record.state is ApprovalState.DENIED:
        why = "" if record.reason is None else f": {cut(codecs.legible(record.reason) or '')}"
        raise ApprovalDenied(
            f"tool {call.tool.name!r} did not run: request {record.id} was denied{why}. That is final for these "
            "arguments in this run"
        )


def _check_executor(call: Call, record: ApprovalRecord) -> None:
    """Four eyes: neither the user of this process nor who the run works for has approved the call."""
    if not approvals.requirement_of(record).excludes_who_asked:
        return
    votes = approvals.votes_of(record)
    for who in _executors(call):
        if any(approvals.is_among(who, one.people) for one in votes):
            raise ApprovalDenied(
                f"tool {call.tool.name!r} did not run: {who!r} approved it ({record.id}) and cannot run it too (four "
                "eyes). Let somebody else run it"
            )


def _executors(call: Call) -> list[str]:
    """Return who runs ``call``: the user of this process, the run's user and its agent."""
    return list(dict.fromkeys(filter(None, (owner.os_user(), call.run.user, call.run.agent))))


def _pending(call: Call, record: ApprovalRecord) -> ApprovalPending:
    again = "call it again" if call.run.is_session else f"enter the run {call.run.id!r} again"
    return ApprovalPending(
        f"tool {call.tool.name!r} waits for approval {record.id}: {command('approvals show', record.id)}; when "
        f"it is decided, {again}",
        approval_id=record.id,
    )
