"""What somebody would be asked about a call before it is made: for frameworks that ask about several calls at once.

It goes through the layers that say whether somebody is asked, and ends where the others would claim: nothing runs, and
only the request is left in the ledger, which the call itself finds again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sagaspan import codecs
from sagaspan._call import Call, Result
from sagaspan._tool import Reads
from sagaspan.approvers import ApprovalRequest
from sagaspan.exceptions import ApprovalDenied, ApprovalExpired, ApprovalPending, SagaspanError
from sagaspan.ledger.approvals import Digest, subject_of, votes_of
from sagaspan.ledger.desk import Desk, address_of, took_place
from sagaspan.ledger.edits import as_read, changed
from sagaspan.ledger.records import ApprovalRecord, ApprovalState
from sagaspan.ledger.requests import request_of
from sagaspan.ledger.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A call that its policy asks about. ``digest`` stands for its scope, tool and arguments.

    ``request`` is what waits for an answer, None if it is decided, or done already. ``channels`` are those by which
    somebody agreed to an equal call of this run before; ``denied``: somebody did not. ``edited`` are the arguments that
    a person has put in the place of these. ``tool`` is called so, and ``reads`` its arguments like that.
    """

    digest: str
    arguments: dict[str, Any]
    request: ApprovalRequest | None
    channels: frozenset[str]
    denied: bool = False
    edited: dict[str, Any] | None = None
    tool: str = ""
    reads: Reads | None = None

    def changes(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """What an edit changes, as the tool's schema reads it: of JSON data by name, which may leave some out.

        Raises ``ResolutionError`` for what cannot be in the place of these arguments.
        """
        found = as_read(self.tool, self.reads, self.arguments, {**self.arguments, **arguments})
        return {name: found[name] for name in changed(self.arguments, found)}

    def with_changes(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """All arguments with such ``changes``, for an ``Edit``."""
        return {name: codecs.decode(codecs.dump(value)) for name, value in {**self.arguments, **changes}.items()}

    @property
    def changed(self) -> dict[str, Any]:
        """Those of ``edited`` that are others now."""
        if self.edited is None:
            return {}
        before = self.with_changes({})
        return {name: value for name, value in self.edited.items() if value != before[name]}


_AGREED: Final = (ApprovalState.APPROVED, ApprovalState.CONSUMED)


class Asking:
    """The innermost layer of such a call: it claims nothing, and raises ``Asked``."""

    def __init__(
        self,
        store: Store,
        desk: Desk,
        make_digest: Digest,
        serve: Callable[[Call], Awaitable[Result | None]],
        plain: Callable[[Any, Mapping[str, Any]], dict[str, Any]],
    ) -> None:
        self._store = store
        self._desk = desk
        self._digest = make_digest
        self._serve = serve
        self._plain = plain

    async def __call__(self, call: Call, /) -> Result:
        if not any(gate.asks(call.arguments) for gate in call.tool.gates):
            raise Asked(None)
        plain = self._plain(call.tool, call.arguments)
        scope, key = address_of(call)
        subject = subject_of(namespace=call.run.namespace, scope=scope, tool=call.tool.name, arguments=plain)
        digest = self._digest(subject)
        request, denied = None, False
        if await self._serve(call) is None:
            try:
                record: ApprovalRecord | None = await self._desk.ask(call, plain)
            except ApprovalPending as pending:
                record = await call.io(self._store.approval, pending.approval_id)
            except (ApprovalDenied, ApprovalExpired):
                denied, record = True, None
            if record is not None and record.state is ApprovalState.PENDING:  # also one that an edit made of it
                request = request_of(record, self._digest)
        about = await call.io(self._store.approvals_about, call.run.namespace, scope, call.tool.name, key, digest)
        channels = frozenset(vote.channel for one in about if one.digest == digest for vote in votes_of(one))
        instead = next((one for one in about if one.state in _AGREED and took_place(one, about, digest)), None)
        edited = None if instead is None else request_of(instead, self._digest).args
        question = Question(
            digest=digest,
            arguments=plain,
            request=request,
            channels=channels,
            denied=denied,
            edited=edited,
            tool=call.tool.name,
            reads=call.tool.reads,
        )
        raise Asked(question)


class Asked(Exception):
    """What was found out."""

    def __init__(self, question: Question | None) -> None:
        super().__init__("asked")
        self.question = question


async def asked(calling: Awaitable[Result]) -> Question | None:
    """The question about a call that goes through ``Asking``; None if there is none, or if it would be refused."""
    try:
        await calling
    except Asked as found:
        return found.question
    except SagaspanError:
        pass  # the call itself meets it, and says so
    return None
