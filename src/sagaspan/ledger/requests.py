"""A request as people and approvers see it: everything from the bytes that were hashed, and none of it obeyed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from sagaspan import codecs
from sagaspan._characters import folded, visible, word
from sagaspan._commands import command
from sagaspan.approvers import ApprovalRequest
from sagaspan.ledger.approvals import ApprovalEvent, Digest, arguments_of, requested_by, requirement_of, votes_of
from sagaspan.ledger.records import ApprovalRecord, ApprovalState, AuditRow, moment
from sagaspan.rendering import Rendered, cut, few, render_subject

_DENIED: Final = f"approval.{ApprovalEvent.DENY}"
OUTSIDE_RUN: Final = "outside a run"
"""The fact of a request for a call that was made outside any run."""


@dataclass(frozen=True, slots=True)
class View:
    """A request as people are shown it: worked out once, for who is asked, who agrees and what is recorded of that."""

    record: ApprovalRecord
    rendered: Rendered
    text: str
    shown: str

    @property
    def is_uninspectable(self) -> bool:
        """Whether something of what it asks about cannot be shown."""
        return bool(self.rendered.uninspectable)

    def on_record(self) -> View:
        """The same, of the request that says what was shown of it."""
        return replace(self, record=replace(self.record, shown=self.shown))


def view_of(record: ApprovalRecord, make_digest: Digest) -> View:
    """What people are shown of a request as it is now; ``make_digest`` makes the hash of its text."""
    rendered = render_subject("" if codecs.is_encrypted(record.subject) else record.subject)
    text = _text(record, rendered)
    return View(record, rendered, text, make_digest(text))


def request_of(record: ApprovalRecord, make_digest: Digest) -> ApprovalRequest:
    """The user's view of a request; ``make_digest`` makes the hash of its text."""
    return request_in(view_of(record, make_digest))


def request_in(view: View) -> ApprovalRequest:
    """The same, of what has been worked out."""
    record, rendered = view.record, view.rendered
    required = requirement_of(record)
    return ApprovalRequest(
        id=record.id, tool=record.tool, args=_args(record), digest=record.digest, state=record.state,
        reason=codecs.legible(record.reason), run_id=record.run_id, call_id=record.call_id, namespace=record.namespace,
        approvers=required.approvers, roles=required.roles, four_eyes=required.excludes_who_asked,
        requested_by=requested_by(record), approved_by=tuple(one.by for one in votes_of(record)), edits=record.edits,
        facts=facts_of(record), uninspectable=view.is_uninspectable, created=moment(record.created_us),
        expires=moment(record.expires_us), ended=None if record.ended_us is None else moment(record.ended_us),
        version=record.version, assurance=required.assurance, cut=rendered.cut, shown=view.shown, text=view.text,
        subject="" if codecs.is_encrypted(record.subject) else record.subject, title=_title(record),
    )  # fmt: skip


def facts_of(record: ApprovalRecord) -> dict[str, Any]:
    """What is shown beside the subject."""
    facts = json.loads(record.facts)
    return facts if isinstance(facts, dict) else {}


def _title(record: ApprovalRecord) -> str:
    """Return the name of the tool as people are shown it."""
    return str(facts_of(record).get("title") or record.tool)


def _args(record: ApprovalRecord) -> dict[str, Any]:
    try:
        value = codecs.decode(codecs.dump(arguments_of(record)))
    except (ValueError, KeyError, TypeError, RecursionError):
        return {"": codecs.Unreadable("<cannot be read>")}
    return value if isinstance(value, dict) else {}


def _text(record: ApprovalRecord, rendered: Rendered) -> str:
    facts = facts_of(record)
    notes = [
        ("warning", "; ".join(_warnings(rendered))),
        ("shortened", _shortened(record, rendered)),
        ("letters", few(rendered.scripts)),
        ("run", _run(record, facts)),
        ("effect", facts.get("effect") or "undeclared"),
        ("undone by", facts.get("compensate") or "nothing"),
        ("so far", _so_far(facts)),
        ("would undo", facts.get("undo")),
        ("why asked", facts.get("gate")),
        ("policy", facts.get("policy")),
        ("asked by", ", ".join(map(word, requested_by(record)))),
        ("needs", _needs(record)),
        ("approved by", _listed(_agreements(record))),
        ("denied", None if record.reason is None else cut(codecs.legible(record.reason) or "")),
        ("edits", record.edits),
        ("state", record.state),
        ("expires", moment(record.expires_us).strftime("%Y-%m-%d %H:%M:%S UTC")),
        ("digest", record.digest),
    ]
    about = [f"{name:<12}{visible(value)}" for name, value in notes if value]
    return folded("\n".join(part for part in (word(_title(record)), rendered.text, *about) if part))


def _run(record: ApprovalRecord, facts: dict[str, Any]) -> str:
    if facts.get(OUTSIDE_RUN):
        return f"none: it was called outside a run ({word(record.run_id)})"
    return " ".join(word(name) for name in (facts.get("run"), record.run_id) if name)


def _warnings(rendered: Rendered) -> Iterator[str]:
    """What somebody should know before he agrees."""
    if rendered.uninspectable:
        yield f"{few(rendered.uninspectable)} cannot be inspected"
    if rendered.redacted:
        yield f"{few(rendered.redacted)} is redacted: who agrees has not seen it"
    if rendered.mixed:
        yield few(rendered.mixed)


def _shortened(record: ApprovalRecord, rendered: Rendered) -> str | None:
    return (
        f"{few(rendered.cut)}; all of it: {command('approvals show', record.id, full=True)}" if rendered.cut else None
    )


def _so_far(facts: dict[str, Any]) -> str | None:
    """What the run had done by the time it asked."""
    if "calls" not in facts:
        return None
    cost = f", {facts['cost']}" if facts.get("cost") else ""
    return f"{facts['calls']} call{'' if facts['calls'] == 1 else 's'} in this run{cost}"


def denials_of(audit: Iterable[AuditRow]) -> dict[str | None, AuditRow]:
    """Who said no to which request: a request has the names of those who agreed alone."""
    return {row.approval_id: row for row in audit if row.event == _DENIED}


def decided_by(record: ApprovalRecord, denials: Mapping[str | None, AuditRow]) -> str:
    """Return who agreed or said no and by which channel, for people."""
    return _listed(decisions_of(record, denials))


def decisions_of(record: ApprovalRecord, denials: Mapping[str | None, AuditRow]) -> list[tuple[str, str]]:
    """Return each person who agreed or said no, and the channel."""
    if record.state is ApprovalState.DENIED:
        no = denials.get(record.id)
        return [] if no is None else [_said(no)]
    return _agreements(record)


def said_by(row: AuditRow) -> str:
    """Return who decided, and by which channel, of the row of the audit trail that says so."""
    return _listed([_said(row)])


def _said(row: AuditRow) -> tuple[str, str]:
    return word(row.actor), word((row.detail or "").removeprefix("by "))


def _agreements(record: ApprovalRecord) -> list[tuple[str, str]]:
    return [
        (f"{word(one.by)} for {word(one.on_behalf_of)}" if one.on_behalf_of else word(one.by), word(one.channel))
        for one in votes_of(record)
    ]


def _listed(decisions: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{who} ({channel})" for who, channel in decisions)


def _needs(record: ApprovalRecord) -> str:
    required = requirement_of(record)
    people = "1 person" if required.approvers == 1 else f"{required.approvers} different people"
    who = f", each with one of the roles {', '.join(map(word, required.roles))}" if required.roles else ""
    sure = f", known by {required.assurance} or surer" if required.assurance else ""
    return people + who + sure + (", none of them who asked" if required.excludes_who_asked else "")
