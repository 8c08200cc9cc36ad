"""``guard.approvals``: what waits for approval, and deciding it; for web apps, and what the command line uses.

Who calls this has seen to it who the person is: ``by``, ``roles`` and ``assurance`` are taken as they are given. Only a
link and a signed reply say themselves whose they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeAlias

from sagaspan import _owner as owner
from sagaspan import codecs
from sagaspan._backends import ASYNCIO
from sagaspan._checks import check_choice, check_count, check_mapping, check_name, check_seconds, described
from sagaspan._clock import now_us
from sagaspan._tool import Reads
from sagaspan.approvers import ApprovalRequest, Approve, Deny, Edit, check_arguments, check_roles, check_text
from sagaspan.assurance import LEVELS, Assurance, weaker
from sagaspan.exceptions import ConfigurationError, ResolutionError
from sagaspan.expressions import Expression
from sagaspan.keys import fingerprint
from sagaspan.ledger import approvals, decisions
from sagaspan.ledger.approvals import Digest, Vote
from sagaspan.ledger.decisions import Condition
from sagaspan.ledger.grants import Grant, Link, grant_of, link_of, new_nonce, nonce_id, token_of
from sagaspan.ledger.records import ApprovalRecord, ApprovalState
from sagaspan.ledger.requests import request_of
from sagaspan.ledger.store import NonceChange, Store
from sagaspan.ledger.tool_names import ToolNames, only_of_tool

Requests: TypeAlias = list[ApprovalRequest]
Decision: TypeAlias = Approve | Deny | Edit
GRANT_SECONDS: Final = 8 * 3600.0
LONGEST_GRANT_SECONDS: Final = 30 * 24 * 3600.0


class Approvals:
    """The requests of a store, or of one ``namespace`` of it; ``channel`` is how they are decided here."""

    def __init__(
        self,
        store: Store,
        namespace: str | None = None,
        digest: Digest = fingerprint,
        *,
        channel: str = "api",
        reads: Callable[[str], Reads | None] = lambda tool: None,  # noqa: ARG005 - of a tool that nobody knows here
    ) -> None:
        self._store = store
        self._namespace = namespace
        self._digest = digest
        self._channel = channel
        self._reads = reads

    def list(
        self,
        *,
        status: Sequence[ApprovalState | str] | str = ApprovalState.PENDING,
        run: str | None = None,
        tool: str | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> Requests:
        """Requests in the state or states ``status`` (empty: all) of a ``run`` (None: of all), newest first.

        ``tool``: only of the tool of this name, or of a glob of names.
        """
        check_count("limit", limit, least=1)
        check_count("offset", offset)
        wanted = [status] if isinstance(status, str) else list(status)
        for state in wanted:
            check_choice("status", str(state), [known.value for known in ApprovalState])
        states = [ApprovalState(state) for state in wanted]
        read = functools.partial(self._store.list_approvals, states=states, namespace=self._namespace, run_id=run)
        found = only_of_tool(self._store, tool, read, limit=limit, offset=offset)
        now = [decisions.as_now(self._store, record) for record in found]
        return [self._view(record) for record in now if not wanted or record.state in wanted]

    def get(self, id: str) -> ApprovalRequest | None:  # noqa: A002 - the contract's word
        """The request ``id``, or None, also if it is one of another namespace."""
        check_name("id", id)
        record = self._store.approval(id)
        if record is None or not self._is_ours(record):
            return None
        return self._view(decisions.as_now(self._store, record))

    def approve(
        self,
        id: str,  # noqa: A002 - the contract's word
        *,
        by: str | None = None,
        roles: Collection[str] = (),
        assurance: Assurance | None = "cli",
        digest: str | None = None,
        shown: str | None = None,
        grant: str | None = None,
    ) -> ApprovalRequest:
        """Agree to exactly what the request asks; with ``digest``, or ``shown``, only if it still asks, or says, that.

        ``by`` None is the user of this process; ``assurance`` is how sure it is that it is him. With a ``grant`` he
        agrees for who gave it. Raises ``ResolutionError`` for who cannot agree, and for a request that is decided.
        """
        record = self._ours(id)
        vote = self._vote(record, by, roles, assurance, grant)
        only = Condition(digest=digest, shown=shown)
        return self._view(decisions.approve(self._store, record, vote, make_digest=self._digest, only=only))

    def deny(
        self,
        id: str,  # noqa: A002 - the contract's word
        reason: str | None = None,
        *,
        by: str | None = None,
        digest: str | None = None,
    ) -> ApprovalRequest:
        """Say no, which ends it, also if it was approved and not used yet; the ``reason`` is told to the model."""
        record = self._ours(id)
        check_name("by", by, optional=True)
        return self._denied(record, reason, by or owner.os_user(), self._channel, Condition(digest=digest))

    def edit(
        self,
        id: str,  # noqa: A002 - the contract's word
        arguments: Mapping[str, Any],
        *,
        by: str | None = None,
        roles: Collection[str] = (),
        assurance: Assurance | None = "cli",
        digest: str | None = None,
        shown: str | None = None,
    ) -> ApprovalRequest:
        """Agree to other ``arguments`` (all of them, by name): a new request takes the place of this one.

        Its editor is one of those who must agree. Raises as ``approve``, and for arguments of other names, those that
        the tool's schema refuses, where it is known here, and redacted ones, which stay what they are.
        """
        record = self._ours(id)
        vote = self._vote(record, by, roles, assurance, None)
        return self._edited(record, arguments, vote, Condition(digest=digest, shown=shown))

    # -- links and grants --------------------------------------------------------------------------------------

    def link(
        self,
        id: str,  # noqa: A002 - the contract's word
        *,
        by: str,
        roles: Collection[str] = (),
        expires_in: float | None = None,
    ) -> str:
        """A token with which who holds it decides the request as ``by``, once: put it in a link that only he gets.

        It is about the request as it is now, and ends with it, or after ``expires_in`` seconds.
        """
        check_name("by", by)
        check_roles(roles)
        record = self._ours(id)
        until = record.expires_us
        if expires_in is not None:
            check_seconds("expires_in", expires_in)
            until = min(until, self._store.now_us() + int(expires_in * 1e6))
        link = Link(
            namespace=record.namespace, request=record.id, digest=record.digest, by=by, roles=tuple(sorted(roles)),
            nonce=new_nonce(), expires_us=until,
        )  # fmt: skip
        return token_of(link, self._store.seal.key(record.namespace))

    def linked(self, token: str) -> ApprovalRequest:
        """The request that a link is about, to show it; raises ``ResolutionError`` for one that is not good."""
        return self._view(self._followed(token)[0])

    def redeem(self, token: str, answer: Decision) -> ApprovalRequest:
        """Decide with a link: ``Approve()``, ``Deny("reason")`` or ``Edit({...})``, as whom it was made for.

        Raises ``ResolutionError`` for a link that is forged, over or used, or of which the request has changed.
        """
        record, link = self._followed(token)
        only = self._once(record, link.nonce, link.expires_us, link.digest)
        return self._carried_out(record, answer, by=link.by, roles=link.roles, channel="link", only=only)

    def delegate(
        self,
        to: str,
        *,
        by: str | None = None,
        roles: Collection[str] = (),
        assurance: Assurance | None = "cli",
        tools: str = "*",
        when: str | None = None,
        expires_in: float = GRANT_SECONDS,
    ) -> str:
        """A grant with which ``to`` agrees for ``by`` (None: the user of this process), with these ``roles``.

        For calls of ``tools`` (a glob) for whose arguments ``when`` (CEL, ``"amount <= 1000"``) holds, for
        ``expires_in`` seconds (8 h, at most 30 days). Who agrees with it is named together with who gave it, and
        neither agrees again. It cannot be handed on.
        """
        check_name("to", to)
        check_name("by", by, optional=True)
        check_roles(roles)
        check_name("tools", tools)
        check_choice("assurance", assurance, (None, *LEVELS))
        check_seconds("expires_in", expires_in)
        if expires_in == 0:
            raise ConfigurationError("a grant that ends at once is none; give an expires_in of some seconds")
        if expires_in > LONGEST_GRANT_SECONDS:
            raise ConfigurationError("a grant ends after 30 days at the latest; give a shorter expires_in")
        if when is not None:
            Expression(when, where="the grant, when")
        grant = Grant(
            namespace=self._one_namespace(), by=by or owner.os_user(), roles=tuple(sorted(roles)), assurance=assurance,
            to=to, tools=tools, when=when, nonce=new_nonce(), expires_us=self._store.now_us() + int(expires_in * 1e6),
        )  # fmt: skip
        if approvals.is_among(to, (grant.by,)):
            raise ConfigurationError(f"{to!r} needs no grant of his own; name somebody else")
        return token_of(grant, self._store.seal.key(grant.namespace))

    # -- signed replies ----------------------------------------------------------------------------------------

    def receive(self, headers: Mapping[str, str], body: bytes, *, secret: str) -> ApprovalRequest:
        """Carry out a reply of a webhook's receiver that comes later, by a request of its own (docs/approvals.md).

        Raises ``ResolutionError`` for one that is forged, older than five minutes, used before, or of a request that is
        decided or asks something else.
        """
        from sagaspan.webhooks import Refused, key_of, reply_of, verified

        check_mapping("headers", headers, "request.headers")
        if not isinstance(body, bytes):
            raise ConfigurationError(f"body takes the bytes that were received, not {described(body)}")
        try:
            message, data = verified(headers, body, key_of(secret), now_us() / 1e6)
            reply = reply_of(data)
        except Refused as problem:
            raise ResolutionError(f"this is no reply that decides anything: {problem}", tool_ran="no") from problem
        record = decisions.get(self._store, reply.request)
        self._check_namespace(record)
        only = self._once(record, message, self._store.now_us() + REMEMBERED_US, reply.digest)
        return self._carried_out(record, reply.answer, by=reply.by, roles=reply.roles, channel="webhook", only=only)

    # -- asynchronous callers ----------------------------------------------------------------------------------

    async def alist(self, **which: Any) -> Requests:
        """As ``list``, for asynchronous callers."""
        return await ASYNCIO.io(self.list, **which)

    async def aget(self, id: str) -> ApprovalRequest | None:  # noqa: A002 - the contract's word
        """As ``get``, for asynchronous callers."""
        return await ASYNCIO.io(self.get, id)

    async def aapprove(self, id: str, **how: Any) -> ApprovalRequest:  # noqa: A002 - the contract's word
        """As ``approve``, for asynchronous callers."""
        return await ASYNCIO.io(self.approve, id, **how)

    async def adeny(self, id: str, reason: str | None = None, **how: Any) -> ApprovalRequest:  # noqa: A002
        """As ``deny``, for asynchronous callers."""
        return await ASYNCIO.io(self.deny, id, reason, **how)

    async def aedit(self, id: str, arguments: Mapping[str, Any], **how: Any) -> ApprovalRequest:  # noqa: A002
        """As ``edit``, for asynchronous callers."""
        return await ASYNCIO.io(self.edit, id, arguments, **how)

    async def alink(self, id: str, **whose: Any) -> str:  # noqa: A002 - the contract's word
        """As ``link``, for asynchronous callers."""
        return await ASYNCIO.io(self.link, id, **whose)

    async def alinked(self, token: str) -> ApprovalRequest:
        """As ``linked``, for asynchronous callers."""
        return await ASYNCIO.io(self.linked, token)

    async def aredeem(self, token: str, answer: Decision) -> ApprovalRequest:
        """As ``redeem``, for asynchronous callers."""
        return await ASYNCIO.io(self.redeem, token, answer)

    async def adelegate(self, to: str, **what: Any) -> str:
        """As ``delegate``, for asynchronous callers."""
        return await ASYNCIO.io(self.delegate, to, **what)

    async def areceive(self, headers: Mapping[str, str], body: bytes, *, secret: str) -> ApprovalRequest:
        """As ``receive``, for asynchronous callers."""
        return await ASYNCIO.io(self.receive, headers, body, secret=secret)

    # -- carrying out ------------------------------------------------------------------------------------------

    def _view(self, record: ApprovalRecord) -> ApprovalRequest:
        return request_of(record, self._digest)

    def _carried_out(
        self,
        record: ApprovalRecord,
        answer: Decision,
        *,
        by: str,
        roles: Collection[str],
        channel: Any,
        only: Condition,
    ) -> ApprovalRequest:
        """Do what somebody answered who is known by ``channel``, which is a level of assurance too."""
        if isinstance(answer, Deny):
            return self._denied(record, answer.reason, by, channel, only)
        vote = Vote(by=by, channel=channel, roles=tuple(sorted(roles)), assurance=channel, at_us=now_us())
        if isinstance(answer, Edit):
            return self._edited(record, answer.arguments, vote, only)
        if not isinstance(answer, Approve):
            raise ConfigurationError(f"an answer is Approve(), Deny() or Edit(), not {type(answer).__name__}")
        return self._view(decisions.approve(self._store, record, vote, make_digest=self._digest, only=only))

    def _denied(
        self, record: ApprovalRecord, reason: str | None, by: str, channel: str, only: Condition
    ) -> ApprovalRequest:
        check_text("reason", reason)
        self._store.seal.learn(record.namespace, record.tool)  # a reason is not written in clear beside what is not
        return self._view(decisions.deny(self._store, record, by=by, channel=channel, reason=reason, only=only))

    def _edited(
        self, record: ApprovalRecord, arguments: Mapping[str, Any], vote: Vote, only: Condition
    ) -> ApprovalRequest:
        check_arguments(arguments)
        try:
            plain = {name: codecs.to_json(value, name) for name, value in arguments.items()}
        except codecs.Unencodable as problem:
            raise ConfigurationError(
                f"the edit of {record.id} cannot be recorded: {problem}; pass plain data"
            ) from problem
        how: Any = {"make_digest": self._digest, "only": only, "reads": self._reads(record.tool)}
        return self._view(decisions.edit(self._store, record, plain, vote, **how))

    def _vote(
        self,
        record: ApprovalRecord,
        by: str | None,
        roles: Collection[str],
        assurance: Assurance | None,
        grant: str | None,
    ) -> Vote:
        check_name("by", by, optional=True)
        check_roles(roles)
        check_choice("assurance", assurance, (None, *LEVELS))
        vote = Vote(
            by=by or owner.os_user(), channel=self._channel, roles=tuple(sorted(roles)), assurance=assurance,
            at_us=now_us(),
        )  # fmt: skip
        return vote if grant is None else self._in_the_name_of(record, vote, grant)

    def _in_the_name_of(self, record: ApprovalRecord, vote: Vote, token: str) -> Vote:
        """``vote`` for who gave the grant; raises ``ResolutionError`` if that is not about this person and call."""
        grant = grant_of(token, self._store.seal.key(record.namespace), self._store.now_us())
        if grant.to != vote.by:
            raise ResolutionError(
                f"the grant of {grant.by!r} is for {grant.to!r}, not for {vote.by!r}; nothing was decided",
                tool_ran="no",
            )
        names = ToolNames(self._store, record.namespace).of(record.tool)
        if grant.namespace != record.namespace or not grant.covers(*names) or not _holds(grant, record):
            raise ResolutionError(
                f"the grant of {grant.by!r} is about {grant.tools!r}{f' when {grant.when}' if grant.when else ''}, not "
                f"about the request {record.id}; nothing was decided",
                tool_ran="no",
            )
        return Vote(
            by=vote.by, channel=vote.channel, roles=grant.roles, assurance=weaker(vote.assurance, grant.assurance),
            on_behalf_of=grant.by, at_us=vote.at_us,
        )  # fmt: skip

    def _followed(self, token: str) -> tuple[ApprovalRecord, Link]:
        """The request of a link, whose namespace says itself with which secret it was signed."""
        link = link_of(token, self._store.seal.key(self._one_namespace()), self._store.now_us())
        record = decisions.get(self._store, link.request)
        self._check_namespace(record)
        return record, link

    def _once(self, record: ApprovalRecord, nonce: str, until_us: int, digest: str) -> Condition:
        now = self._store.now_us()
        used = NonceChange(namespace=record.namespace, id=nonce_id(nonce), until_us=until_us, now_us=now)
        return Condition(digest=digest, once=used)

    def _one_namespace(self) -> str:
        return "default" if self._namespace is None else self._namespace

    def _ours(self, id: str) -> ApprovalRecord:  # noqa: A002 - the contract's word
        """The request ``id``; raises ``ResolutionError`` if there is none, or it is one of another namespace."""
        check_name("id", id)
        record = self._store.approval(id)
        if record is not None and not self._is_ours(record):
            self._check_namespace(record)
        return decisions.get(self._store, id)

    def _is_ours(self, record: ApprovalRecord) -> bool:
        return self._namespace is None or record.namespace == self._namespace

    def _check_namespace(self, record: ApprovalRecord) -> None:
        if record.namespace != self._one_namespace():
            raise ResolutionError(
                f"the request {record.id} is not of the namespace {self._one_namespace()!r}; nothing was decided",
                tool_ran="no",
            )


REMEMBERED_US: Final = 3600 * 1_000_000
"""How long the nonce of a signed reply is remembered: longer than one is good for."""


def _holds(grant: Grant, record: ApprovalRecord) -> bool:
    """Whether the condition of a grant holds for what is asked: only a plain True does."""
    if grant.when is None:
        return True
    try:
        arguments = codecs.decode(codecs.dump(approvals.arguments_of(record)))
        return Expression(grant.when, where="the grant, when").evaluate(arguments) is True
    except Exception:  # noqa: BLE001 - what cannot be judged is not covered
        return False
