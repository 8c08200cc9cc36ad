"""``guard.approvals``: what waits for approval, and deciding it; for web apps, and what the command line uses.

Who calls this has seen to it who the person is: ``by`` and ``roles`` are taken as they are given.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

from sagaspan import _owner as owner
from sagaspan import codecs
from sagaspan._backends import ASYNCIO
from sagaspan._checks import check_choice, check_count, check_mapping, check_name
from sagaspan._clock import now_us
from sagaspan.approvers import ApprovalRequest
from sagaspan.exceptions import ConfigurationError
from sagaspan.keys import fingerprint
from sagaspan.ledger import decisions
from sagaspan.ledger.approvals import Digest, Vote
from sagaspan.ledger.records import ApprovalState
from sagaspan.ledger.requests import request_of
from sagaspan.ledger.store import Store

Requests: TypeAlias = list[ApprovalRequest]


class Approvals:
    """The requests of a store, or of one ``namespace`` of it; ``channel`` is how they are decided here."""

    def __init__(
        self, store: Store, namespace: str | None = None, digest: Digest = fingerprint, *, channel: str = "api"
    ) -> None:
        self._store = store
        self._namespace = namespace
        self._digest = digest
        self._channel = channel

    def list(
        self,
        *,
        status: Sequence[ApprovalState | str] | str = ApprovalState.PENDING,
        run: str | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> Requests:
        """Requests in the state or states ``status`` (empty: all) of a ``run`` (None: of all), newest first."""
        check_count("limit", limit, least=1)
        check_count("offset", offset)
        wanted = [status] if isinstance(status, str) else list(status)
        for state in wanted:
            check_choice("status", str(state), [known.value for known in ApprovalState])
        found = self._store.list_approvals(
            states=[ApprovalState(state) for state in wanted], namespace=self._namespace, run_id=run, limit=limit,
            offset=offset,
        )  # fmt: skip
        now = [decisions.as_due(self._store, record) for record in found]
        return [request_of(record) for record in now if not wanted or record.state in wanted]

    def get(self, id: str) -> ApprovalRequest | None:  # noqa: A002 - the contract's word
        """The request ``id``, or None."""
        check_name("id", id)
        record = self._store.approval(id)
        return None if record is None else request_of(decisions.as_due(self._store, record))

    def approve(
        self,
        id: str,  # noqa: A002 - the contract's word
        *,
        by: str | None = None,
        roles: Collection[str] = (),
        digest: str | None = None,
    ) -> ApprovalRequest:
        """Agree to exactly what the request asks; with ``digest`` only if it still asks that.

        ``by`` None is the user of this process. Raises ``ResolutionError`` for who cannot agree, and for a request
        that is decided.
        """
        record = decisions.get(self._store, id)
        return request_of(decisions.approve(self._store, record, self._vote(by, roles), digest=digest))

    def deny(
        self,
        id: str,  # noqa: A002 - the contract's word
        reason: str | None = None,
        *,
        by: str | None = None,
    ) -> ApprovalRequest:
        """Say no, which ends it, also if it was approved and not used yet; the ``reason`` is told to the model."""
        record = decisions.get(self._store, id)
        self._store.seal.learn(record.namespace, record.tool)  # a reason is not written in clear beside what is not
        who = by or owner.os_user()
        return request_of(decisions.deny(self._store, record, by=who, channel=self._channel, reason=reason))

    def edit(
        self,
        id: str,  # noqa: A002 - the contract's word
        arguments: Mapping[str, Any],
        *,
        by: str | None = None,
        roles: Collection[str] = (),
        digest: str | None = None,
    ) -> ApprovalRequest:
        """Agree to other ``arguments`` (all of them, by name): a new request takes the place of this one.

        Its editor is one of those who must agree. Raises as ``approve``, and for arguments of other names.
        """
        check_mapping("arguments", arguments, "{'amount': 50}")
        record = decisions.get(self._store, id)
        try:
            plain = {name: codecs.to_json(value, name) for name, value in arguments.items()}
        except codecs.Unencodable as problem:
            raise ConfigurationError(f"the edit of {id} cannot be recorded: {problem}; pass plain data") from problem
        vote = self._vote(by, roles)
        edited = decisions.edit(self._store, record, plain, vote, make_digest=self._digest, digest=digest)
        return request_of(edited)

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

    def _vote(self, by: str | None, roles: Collection[str]) -> Vote:
        return Vote(by=by or owner.os_user(), channel=self._channel, roles=tuple(sorted(roles)), at_us=now_us())
