"""The hash chain of the audit trail: each row is bound to the one before it in its run, and to what was recorded.

    hash = sha256(hash of the row before + content + the row as compact JSON in UTF-8)

The JSON is ``[seq, number, at_us, namespace, run_id, call_id, approval_id, event, from_state, to_state, actor, digest,
detail]``, where ``number`` counts the rows of the chain from 1; before the first row there are 32 zero bytes.
``content`` is the sha256 of what the transition wrote of its record, the columns that ``written`` names as a compact
JSON array, or 32 zero bytes if that was nothing. All of it is over what is stored: who has no codec verifies what is
encrypted too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from hashlib import sha256
from json.encoder import encode_basestring as quoted
from operator import attrgetter
from typing import Any, Final

from sagaspan.keys import canonical
from sagaspan.ledger.records import ApprovalRecord, AuditRow, CallRecord, RunRecord

Record = CallRecord | RunRecord | ApprovalRecord

CHAINED_FROM: Final = "audit chained from"
"""The name of the fact, in no namespace, that is the number of the ledger's first row with a hash (none: the first)."""

FORGET: Final = "forget"
"""The event of a row that stands for rows of its chain that were pruned."""

Gap = tuple[int, int, bytes]
"""The numbers of the first and the last of rows that were pruned, and the hash of the last."""

# What a transition writes of its record once, and each time.
_ONCE: Final[dict[type[Record], tuple[str, ...]]] = {
    CallRecord: ("tool", "arguments", "policy"), RunRecord: ("name", "input"),
    ApprovalRecord: ("tool", "subject", "policy"),
}  # fmt: skip
_EACH_TIME: Final[dict[type[Record], tuple[str, ...]]] = {
    CallRecord: ("result", "result_lost", "error_type", "error_message"), RunRecord: ("output", "error"),
    ApprovalRecord: ("votes", "reason"),
}  # fmt: skip
_Texts = Callable[[Any], tuple[str | None, ...]]
_LATER: Final[dict[type[Any], _Texts]] = {kind: attrgetter(*names) for kind, names in _EACH_TIME.items()}
_FIRST: Final[dict[type[Any], _Texts]] = {kind: attrgetter(*names, *_EACH_TIME[kind]) for kind, names in _ONCE.items()}

Link = tuple[int, bytes]
"""Where a chain is: the number and the hash of its last row."""

_NOTHING: Final = bytes(32)
START: Final[Link] = (0, _NOTHING)


def link(before: Link, seq: int, row: AuditRow, content: bytes | None) -> Link:
    """The place of ``row`` after ``before``; ``seq`` is its number in the ledger."""
    call_id, approval_id, from_state, digest, detail = (
        row.call_id, row.approval_id, row.from_state, row.digest, row.detail,
    )  # fmt: skip
    number = before[0] + 1
    text = (
        f"[{seq},{number},{row.at_us},{quoted(row.namespace)},{quoted(row.run_id)},"
        f"{'null' if call_id is None else quoted(call_id)},{'null' if approval_id is None else quoted(approval_id)},"
        f"{quoted(row.event)},{'null' if from_state is None else quoted(from_state)},{quoted(row.to_state)},"
        f"{quoted(row.actor)},{'null' if digest is None else quoted(digest)},"
        f"{'null' if detail is None else quoted(detail)}]"
    )
    return number, sha256(before[1] + (content or _NOTHING) + text.encode()).digest()


def content_of(record: Record, *, is_new: bool) -> bytes | None:
    """The hash of what a transition writes of ``record``; None if that is nothing, and not its first."""
    texts = (_FIRST if is_new else _LATER)[type(record)](record)
    if not is_new and texts.count(None) == len(texts):
        return None
    told = ",".join(["null" if text is None else quoted(text) for text in texts])
    return sha256(f"[{told}]".encode()).digest()


def written(kind: type[Record], *, is_new: bool) -> tuple[str, ...]:
    """The columns that ``content_of`` is over."""
    return (*(_ONCE[kind] if is_new else ()), *_EACH_TIME[kind])


def forgetting(namespace: str, run_id: str, gaps: Sequence[Gap], *, actor: str, at_us: int) -> AuditRow:
    """The row that stands for rows that ``actor`` prunes, so that nobody takes away any without leaving one."""
    said = [[first, last, digest.hex()] for first, last, digest in gaps]
    return AuditRow(
        at_us=at_us, namespace=namespace, run_id=run_id, call_id=None, event=FORGET, from_state=None,
        to_state="forgotten", actor=actor, detail=canonical(said).decode(),
    )  # fmt: skip


def gaps_of(row: AuditRow) -> list[Gap]:
    """What a row of ``forgetting`` stands for; raises ``ValueError`` if it cannot be read."""
    try:
        return [(int(first), int(last), bytes.fromhex(digest)) for first, last, digest in json.loads(row.detail or "")]
    except TypeError as error:
        raise ValueError(f"it does not say which rows were pruned: {row.detail!r}") from error
