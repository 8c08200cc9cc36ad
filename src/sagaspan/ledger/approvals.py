"""Requests for approval: pure functions from (request, event, now) to (request, audit row), and what they are about.

The table below is the rules, and the docs print it. What is decided about are the bytes of ``subject``: tool, scope and
arguments as canonical JSON, in which 1, 1.0, "1" and true are four things. Their digest is fixed when the request is
made; a request is used once, by the claim of its call, and by no other (rule book (d)).
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Final

from sagaspan.assurance import raised, reaches, stricter
from sagaspan.codecs import TAG
from sagaspan.exceptions import ResolutionError
from sagaspan.keys import canonical
from sagaspan.ledger.records import ApprovalRecord, ApprovalState, AuditRow
from sagaspan.ledger.store import ApprovalChange
from sagaspan.ledger.transitions import IllegalTransition

DAY_SECONDS: Final = 24 * 3600.0
"""How long a request is open where its policy does not say."""

MAX_REASON: Final = 1000
"""How many characters of a reason are kept: it is told to a model, and is nobody's essay."""


class ApprovalEvent(StrEnum):
    """What can happen to a request."""

    ASK = "ask"
    VOTE = "vote"
    APPROVE = "approve"
    DENY = "deny"
    EXPIRE = "expire"
    SUPERSEDE = "supersede"
    CONSUME = "consume"


class ApprovalSpent(Exception):
    """The approval that a claim was to use up is not there any more: it was used, taken back, or has expired."""


class AlreadyDone(Exception):
    """An irreversible call is done with these arguments (``record_id``): somebody is asked about doing it again."""

    def __init__(self, record_id: str) -> None:
        super().__init__("already done")
        self.record_id = record_id


_S, _E = ApprovalState, ApprovalEvent
APPROVAL_TABLE: Final[Mapping[tuple[ApprovalState | None, ApprovalEvent], ApprovalState]] = {
    (None, _E.ASK): _S.PENDING,
    (_S.PENDING, _E.VOTE): _S.PENDING,  # more have to agree
    (_S.PENDING, _E.APPROVE): _S.APPROVED,
    (_S.PENDING, _E.DENY): _S.DENIED,
    (_S.APPROVED, _E.DENY): _S.DENIED,  # taken back before it was used
    (_S.PENDING, _E.EXPIRE): _S.EXPIRED,
    (_S.APPROVED, _E.EXPIRE): _S.EXPIRED,
    (_S.PENDING, _E.SUPERSEDE): _S.SUPERSEDED,
    (_S.APPROVED, _E.SUPERSEDE): _S.SUPERSEDED,
    (_S.APPROVED, _E.CONSUME): _S.CONSUMED,
}
OPEN: Final = (_S.PENDING, _S.APPROVED)
_UNSEEN: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\uffa0\ufe00-\ufe0f\U000e0100-\U000e01ef]"
)
"""Letters and marks that are drawn as nothing (Default_Ignorable_Code_Point of Unicode, but for formats)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """Who must agree, as a request keeps it: another one is another policy, under which nothing was approved.

    This, not the version of a policy file, is what the claim compares: a version changes with every price in the file
    and would void what was approved, and what a decorator asks is in no version. The call itself is judged by the
    newest rules before its claim, which says by which (``CallRecord.policy``).
    """

    approvers: int = 1
    roles: tuple[str, ...] = ()
    four_eyes: bool = False
    assurance: str | None = None

    @property
    def excludes_who_asked(self) -> bool:
        """Whether who asked, or runs the call, cannot agree to it."""
        return self.four_eyes or self.approvers > 1

    def no_less_than(self, other: Requirement) -> Requirement:
        """This one, with as many people, and as sure of them, as ``other`` asks for, of the roles that both name.

        Where they have none in common it is those of ``other``, which was asked first.
        """
        both = tuple(sorted({*self.roles} & {*other.roles}))
        return Requirement(
            approvers=max(self.approvers, other.approvers),
            roles=both or other.roles or self.roles,
            four_eyes=self.four_eyes or other.four_eyes, assurance=stricter(self.assurance, other.assurance),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """One person, or function, that agreed: through which channel, with which roles, how surely that one, and when.

    ``shown`` is the hash of the text that was shown. ``on_behalf_of`` is who gave the right to (a grant).
    """

    by: str
    channel: str
    roles: tuple[str, ...] = ()
    assurance: str | None = None
    on_behalf_of: str | None = None
    shown: str = ""
    at_us: int = 0

    @property
    def people(self) -> tuple[str, ...]:
        """Who has a part in it: none of them may have another one."""
        return (self.by,) if self.on_behalf_of is None else (self.by, self.on_behalf_of)


def is_among(name: str, names: Iterable[str]) -> bool:
    """Whether one of ``names`` is this person, however it is spelt: what signs people in may write a name as it likes.

    Only ever used to refuse. Compatibility forms, case and blanks around do not count (Ada@X.com, ada@x.com).
    """
    return _spelt(name) in map(_spelt, names)


def _spelt(name: str) -> str:
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    return "".join(one for one in folded if not _is_unseen(one)) or name


def _is_unseen(character: str) -> bool:
    """Whether a name looks the same without it: blanks, controls, fillers, joiners, selectors of variants."""
    return unicodedata.category(character)[0] in "CZ" or _UNSEEN.match(character) is not None


def requirement_text(requirement: Requirement) -> str:
    """A requirement as a request keeps it."""
    return canonical({**asdict(requirement), "roles": sorted(requirement.roles)}).decode()


def requirement_of(record: ApprovalRecord) -> Requirement:
    """Who must agree to a request."""
    data = json.loads(record.policy)
    return Requirement(**{**data, "roles": tuple(data["roles"])})


def votes_of(record: ApprovalRecord) -> list[Vote]:
    """Who has agreed to a request so far."""
    return [Vote(**{**vote, "roles": tuple(vote["roles"])}) for vote in json.loads(record.votes)]


def requested_by(record: ApprovalRecord) -> tuple[str, ...]:
    """Who asked: the user of the process, and for whom its run works."""
    return tuple(json.loads(record.requested_by))


# -- what it is about ----------------------------------------------------------------------------------------------


def subject_of(*, namespace: str, scope: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What is decided about, as plain JSON data; ``arguments`` are plain (``codecs.to_json``)."""
    return {"arguments": exact(arguments), "namespace": namespace, "scope": scope, "tool": tool}


def subject_text(subject: Mapping[str, Any]) -> str:
    """The bytes that are hashed and shown, as text."""
    return canonical(subject).decode()


def arguments_of(record: ApprovalRecord) -> dict[str, Any]:
    """The arguments in a request, as plain JSON data; raises ``ValueError`` if they cannot be read."""
    arguments = json.loads(record.subject)["arguments"]
    if not isinstance(arguments, dict):
        raise ValueError("they are no arguments")
    return arguments


def exact(data: Any) -> Any:
    """Plain JSON data in which a whole float is told from an integer: canonical JSON writes both as 1."""
    if type(data) is float and data.is_integer():
        return {TAG: "float", "value": repr(data)}
    if isinstance(data, dict):
        return {name: exact(item) for name, item in data.items()}
    return [exact(item) for item in data] if isinstance(data, list) else data


# -- transitions ---------------------------------------------------------------------------------------------------


def ask(record: ApprovalRecord, actor: str) -> ApprovalChange:
    """A new request."""
    return ApprovalChange(record, _row(record, ApprovalEvent.ASK, None, record.created_us, actor))


def vote(record: ApprovalRecord, by: Vote, *, uninspectable: bool = False) -> ApprovalChange:
    """One more agrees; with the last of them it is approved. Raises ``ResolutionError`` for who cannot agree.

    ``uninspectable``: something of what it asks about cannot be shown.
    """
    check_may_vote(record, by, uninspectable=uninspectable)
    votes = [*votes_of(record), by]
    enough = len(votes) >= requirement_of(record).approvers
    event = ApprovalEvent.APPROVE if enough else ApprovalEvent.VOTE
    text = json.dumps([asdict(one) for one in votes])
    return _move(record, event, by.at_us, actor=by.by, detail=_how(by), votes=text)


def _how(by: Vote) -> str:
    """How somebody agreed, for the audit trail."""
    instead = "" if by.on_behalf_of is None else f" for {by.on_behalf_of}"
    return f"by {by.channel}{instead} assurance {by.assurance or 'none'} shown {by.shown}"


def check_may_vote(record: ApprovalRecord, by: Vote, *, uninspectable: bool) -> None:
    """Refuse who cannot agree to a request: who asked (four eyes), who has already, who has none of its roles, and
    of whom it is not sure enough who it is.
    """
    required, tool = requirement_of(record), record.tool
    if record.state is not ApprovalState.PENDING:
        raise ResolutionError(
            f"the request {record.id} for {tool!r} is {record.state}; nothing was decided", tool_ran="no"
        )
    asked = [name for name in by.people if is_among(name, requested_by(record))]
    if required.excludes_who_asked and asked:
        raise ResolutionError(
            f"{asked[0]!r} asked for {tool!r} and cannot approve it too; let somebody else decide {record.id}",
            tool_ran="no",
        )
    voters = [name for one in votes_of(record) for name in one.people]
    agreed = [name for name in by.people if is_among(name, voters)]
    if agreed:
        raise ResolutionError(
            f"{min(agreed)!r} has approved the request {record.id} already; {required.approvers} different people must",
            tool_ran="no",
        )
    if required.roles and not set(required.roles) & set(by.roles):
        raise ResolutionError(
            f"{by.people[-1]!r} has none of the roles {', '.join(required.roles)} that may approve {tool!r}",
            tool_ran="no",
        )
    needed = raised(required.assurance) if uninspectable else required.assurance
    if not reaches(by.assurance, needed):
        hidden = ", because some of its arguments cannot be shown" if uninspectable else ""
        raise ResolutionError(
            f"{by.by!r} is known by {by.assurance or 'nothing'} ({by.channel}), and {tool!r} is approved by who is "
            f"known by {needed} or surer{hidden}",
            tool_ran="no",
        )


def deny(record: ApprovalRecord, now_us: int, *, by: str, channel: str, reason: str | None) -> ApprovalChange:
    """Somebody said no, which ends it."""
    text = (reason or "").strip()[:MAX_REASON] or None
    return _move(record, ApprovalEvent.DENY, now_us, actor=by, detail=f"by {channel}", reason=text)


def expire(record: ApprovalRecord, now_us: int, actor: str) -> ApprovalChange:
    """Nobody decided in time, or the approval was not used in time."""
    return _move(record, ApprovalEvent.EXPIRE, now_us, actor=actor)


def supersede(record: ApprovalRecord, now_us: int, *, actor: str, why: str) -> ApprovalChange:
    """Another request takes its place."""
    return _move(record, ApprovalEvent.SUPERSEDE, now_us, actor=actor, detail=why)


def consume(record: ApprovalRecord, now_us: int, *, actor: str, call_id: str) -> ApprovalChange:
    """The claim of its call uses it up."""
    change = _move(record, ApprovalEvent.CONSUME, now_us, actor=actor, detail=f"call {call_id}", call_id=call_id)
    return replace(change, consumes_at=now_us)


def is_due(record: ApprovalRecord, now_us: int) -> bool:
    """Whether an open request is past its end."""
    return record.state in OPEN and record.expires_us <= now_us


Digest = Callable[[Any], str]
"""The hash of plain JSON data; keyed where a codec hides what is recorded."""


def _move(
    record: ApprovalRecord, event: ApprovalEvent, now_us: int, *, actor: str, detail: str | None = None, **changes: Any
) -> ApprovalChange:
    state = APPROVAL_TABLE.get((record.state, event))
    if state is None:
        raise IllegalTransition(f"request {record.id}: {event} is not allowed in state {record.state}")
    if state not in OPEN:
        changes["ended_us"] = now_us
    after = replace(record, state=state, version=record.version + 1, **changes)
    return ApprovalChange(after, _row(after, event, record.state, now_us, actor, detail), record.version)


def _row(
    record: ApprovalRecord,
    event: ApprovalEvent,
    before: ApprovalState | None,
    now_us: int,
    actor: str,
    detail: str | None = None,
) -> AuditRow:
    # Not under the id of the call: what is in doubt of a call is judged by the rows that have it.
    return AuditRow(
        at_us=now_us, namespace=record.namespace, run_id=record.run_id, call_id=None, approval_id=record.id,
        event=f"approval.{event}", from_state=before, to_state=record.state, actor=actor, digest=record.digest,
        detail=detail,
    )  # fmt: skip
