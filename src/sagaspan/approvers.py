"""Who is asked about a call: a function of the request, or an ``Approver``; and what they can answer.

An answer is ``Approve()``, ``Deny("reason")`` or ``Edit({all new arguments})``; True and False will do. Anything else,
an exception and a timeout refuse. Only an ``Approver`` can answer ``LATER``: the request stays in the ledger, and
somebody decides it with ``guard.approvals`` or ``sagaspan approvals``.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from sagaspan._checks import check_choice, check_mapping, check_name, check_seconds, check_whole, described
from sagaspan._compensation import is_async_callable
from sagaspan.assurance import LEVELS, Assurance
from sagaspan.exceptions import ConfigurationError
from sagaspan.ledger.records import ApprovalState
from sagaspan.rendering import render_subject

LATER: Final = "later"
"""The answer of an approver that does not decide: somebody else does, later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """A question about exactly one call. ``args`` are what the tool would get, read back from what was hashed.

    ``digest`` stands for tool, scope and arguments: it is the hash of ``subject``. ``text`` is what people are shown of
    it, in rows of at most 76 columns, and ``shown`` its hash; ``cut`` are the arguments of which it has a part only.
    ``approvers`` people must agree, each with one of ``roles`` if there are any, and known at least as surely as
    ``assurance`` says; ``approved_by`` are those who have. ``edits`` is the request that this one took the place of.
    ``title`` is the name of the tool for people: of a tool of an MCP server, ``SERVER/TOOL``.
    """

    id: str
    tool: str
    args: dict[str, Any]
    digest: str
    state: ApprovalState
    reason: str | None
    run_id: str
    call_id: str
    namespace: str
    approvers: int
    roles: tuple[str, ...]
    four_eyes: bool
    requested_by: tuple[str, ...]
    approved_by: tuple[str, ...]
    edits: str | None
    facts: dict[str, Any]
    uninspectable: bool
    created: dt.datetime
    expires: dt.datetime
    ended: dt.datetime | None
    version: int
    assurance: str | None = None
    cut: tuple[str, ...] = ()
    shown: str = ""
    subject: str = field(repr=False, default="")
    text: str = field(repr=False, default="")
    title: str = ""

    @property
    def whole(self) -> str:
        """The arguments as in ``text``, but with nothing left out: all that ``digest`` covers, however long."""
        return render_subject(self.subject, whole=True).text


@dataclass(frozen=True, slots=True)
class Approve:
    """Yes, to exactly these arguments.

    ``by`` and ``roles``: who said so, if the approver knows that for sure, and how surely (``assurance``; None: it was
    nobody).
    """

    by: str | None = field(default=None, kw_only=True)
    roles: tuple[str, ...] = field(default=(), kw_only=True)
    assurance: Assurance | None = field(default="cli", kw_only=True)

    def __post_init__(self) -> None:
        _check_who(self.by, self.roles, self.assurance)


@dataclass(frozen=True, slots=True)
class Deny:
    """No; the ``reason`` is told to the model as data."""

    reason: str | None = None
    by: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_text("reason", self.reason)
        check_name("by", self.by, optional=True)


@dataclass(frozen=True, slots=True)
class Edit:
    """Yes, but with these ``arguments`` instead: all of them, by name."""

    arguments: Mapping[str, Any]
    by: str | None = field(default=None, kw_only=True)
    roles: tuple[str, ...] = field(default=(), kw_only=True)
    assurance: Assurance | None = field(default="cli", kw_only=True)

    def __post_init__(self) -> None:
        check_arguments(self.arguments)
        _check_who(self.by, self.roles, self.assurance)


def check_arguments(arguments: object) -> None:
    """Refuse what are no arguments by name."""
    check_mapping("arguments", arguments, "{'amount': 50}")
    for name in arguments if isinstance(arguments, Mapping) else ():
        if not isinstance(name, str):
            raise ConfigurationError(f"arguments have the name {name!r}, {described(name)}; they go by name")


def check_text(name: str, value: object) -> None:
    """Refuse what is neither a text nor None."""
    if value is not None and not isinstance(value, str):
        raise ConfigurationError(f"{name}={value!r} is {described(value)}, not a text")
    if value is not None:
        check_whole(name, value)


def check_roles(roles: object) -> None:
    """Refuse what is no collection of names: ``"finance"`` would be the roles f, i, n ..."""
    if isinstance(roles, str | bytes) or not isinstance(roles, Collection):
        raise ConfigurationError(f"roles={roles!r} is {described(roles)}; write a list, such as roles=['finance']")
    for role in roles:
        check_name("roles", role)


def _check_who(by: object, roles: object, assurance: object) -> None:
    check_name("by", by, optional=True)
    check_roles(roles)
    check_choice("assurance", assurance, (None, *LEVELS))


class Approver(Protocol):
    """Answers requests. ``channel`` says in the audit trail how; ``wait`` is how long to wait after ``LATER``."""

    channel: str
    wait: float

    def decide(self, request: ApprovalRequest, /) -> Any:
        """``Approve``, ``Deny``, ``Edit``, True, False or ``LATER``, or an awaitable of it."""


class Inbox:
    """Nobody is asked here: the request waits in the ledger until it is decided elsewhere.

    ``wait``: seconds to wait for that in the call, which then goes on within a second; 0: ``ApprovalPending`` at once.
    """

    channel = "inbox"

    def __init__(self, *, wait: float = 0) -> None:
        check_seconds("wait", wait)
        self.wait = wait

    def decide(self, _: ApprovalRequest, /) -> Any:
        """Not here."""
        return LATER


class Callback:
    """A function of the request, sync or async."""

    channel = "callback"
    wait = 0.0

    def __init__(self, function: Callable[[ApprovalRequest], Any | Awaitable[Any]]) -> None:
        self._function = function
        self.is_async = is_async_callable(function)

    def decide(self, request: ApprovalRequest, /) -> Any:
        """What the function answers."""
        return self._function(request)


class Always:
    """The same answer to everything: only where it is named."""

    channel = "auto"
    wait = 0.0

    def __init__(self, answer: Approve | Deny) -> None:
        self._answer = answer

    def decide(self, request: ApprovalRequest, /) -> Any:
        """The answer; nobody agrees unseen to what cannot be shown."""
        if request.uninspectable and isinstance(self._answer, Approve):
            return Deny("some of its arguments cannot be shown, so nobody approves them automatically")
        return self._answer


def _console() -> Approver:
    from sagaspan._console import Console

    return Console()


_NAMED: Final[Mapping[str, Callable[[], Approver]]] = {
    "console": _console,
    "inbox": Inbox,
    "auto-approve": lambda: Always(Approve(by="auto-approve", assurance=None)),
    "auto-deny": lambda: Always(Deny("this guard denies everything", by="auto-deny")),
}


def approver_of(approver: Any) -> Approver | None:
    """The approver that ``Guard(approver=...)`` names; raises ``ConfigurationError``."""
    if approver is None:
        return None
    if isinstance(approver, str):
        if approver not in _NAMED:
            words = ", ".join(repr(name) for name in _NAMED)
            raise ConfigurationError(f"approver={approver!r} is not one of {words}, nor a function or an Approver")
        return _NAMED[approver]()
    if callable(getattr(approver, "decide", None)) and not isinstance(approver, type):
        for name in ("channel", "wait"):
            if not hasattr(approver, name):
                raise ConfigurationError(f"the approver {described(approver)} has no {name!r}; see sagaspan.Approver")
        found: Approver = approver
        return found
    if callable(approver) and not isinstance(approver, type):
        return Callback(approver)
    raise ConfigurationError(f"approver takes a function, an Approver or a name, not {described(approver)}")
