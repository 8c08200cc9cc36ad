"""The hash chain of the audit trail: each row is bound to the one before it in its run, and to what was recorded.

    hash = sha256(hash of the row before + content + the row as compact JSON in UTF-8)

The JSON is ``[seq, number, at_us, namespace, run_id, call_id, approval_id, event, from_state, to_state, actor, digest,
detail]``, where ``number`` counts the rows of the chain from 1; before the first row there are 32 zero bytes.
``content`` is what the transition wrote of its record (``ledger.contents``), or 32 zero bytes if that was nothing. All
of it is over what is stored: who has no codec verifies what is encrypted too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from json.encoder import encode_basestring as quoted
from typing import Final

from sagaspan.keys import canonical
from sagaspan.ledger.records import AuditRow

CHAINED_FROM: Final = "audit chained from"
"""The name of the fact, in no namespace, that is the number of the ledger's first row with a hash (none: the first)."""

FORGET: Final = "forget"
"""The event of a row that stands for rows of its chain that were pruned."""

FORGET_RECORDS: Final = "forget.records"
"""The event of a row that names calls and requests that were pruned; their rows are pruned after it."""

Gap = tuple[int, int, bytes]
"""The numbers of the first and the last of rows that were pruned, and the hash of the last."""

Link = tuple[int, bytes]
"""Where a chain is: the number and the hash of its last row."""

_NOTHING: Final = bytes(32)
START: Final[Link] = (0, _NOTHING)


def link(before: Link, seq: int, row: AuditRow, content: bytes | None) -> Link:
    """The place of ``row`` after ``before``; ``seq`` is its number in the ledger."""
    number = before[0] + 1
    text = f"[{seq},{number},{tail(row)}"
    return number, sha256(before[1] + (content or _NOTHING) + text.encode()).digest()


def tail(row: AuditRow) -> str:
    """The JSON of ``row`` after its two numbers, which a database gives it."""
    call_id, approval_id, from_state, digest, detail = (
        row.call_id, row.approval_id, row.from_state, row.digest, row.detail,
    )  # fmt: skip
    return (
        f"{row.at_us},{quoted(row.namespace)},{quoted(row.run_id)},"
        f"{'null' if call_id is None else quoted(call_id)},{'null' if approval_id is None else quoted(approval_id)},"
        f"{quoted(row.event)},{'null' if from_state is None else quoted(from_state)},{quoted(row.to_state)},"
        f"{quoted(row.actor)},{'null' if digest is None else quoted(digest)},"
        f"{'null' if detail is None else quoted(detail)}]"
    )


def forgetting(namespace: str, run_id: str, gaps: Sequence[Gap], *, actor: str, at_us: int) -> AuditRow:
    """The row that stands for rows that ``actor`` prunes, so that nobody takes away any without leaving one."""
    said = [[first, last, digest.hex()] for first, last, digest in gaps]
    return AuditRow(
        at_us=at_us, namespace=namespace, run_id=run_id, call_id=None, event=FORGET, from_state=None,
        to_state="forgotten", actor=actor, detail=canonical(said).decode(),
    )  # fmt: skip


def forgetting_records(namespace: str, run_id: str, ids: Sequence[str], *, actor: str, at_us: int) -> AuditRow:
    """Return the row that names the calls or requests that ``actor`` prunes, written in the transaction that does."""
    return AuditRow(
        at_us=at_us, namespace=namespace, run_id=run_id, call_id=None, event=FORGET_RECORDS, from_state=None,
        to_state="forgotten", actor=actor, detail=canonical(list(ids)).decode(),
    )  # fmt: skip


def records_in(detail: str | None) -> frozenset[str]:
    """Return the ids that the detail of ``forgetting_records`` names; none if it cannot be read."""
    try:
        return frozenset(id_ for id_ in json.loads(detail or "[]") if isinstance(id_, str))
    except (ValueError, TypeError):
        return frozenset()


def gaps_between(rows: Sequence[Link]) -> list[Gap]:
    """What pruned rows leave, of their places in order: those that follow each other are one gap."""
    found: list[Gap] = []
    for number, digest in rows:
        follows = found and found[-1][1] == number - 1
        found[-1:] = [(found[-1][0], number, digest)] if follows else [*found[-1:], (number, number, digest)]
    return found


def gaps_of(row: AuditRow) -> list[Gap]:
    """What a row of ``forgetting`` stands for; raises ``ValueError`` if it cannot be read."""
    try:
        return [(int(first), int(last), bytes.fromhex(digest)) for first, last, digest in json.loads(row.detail or "")]
    except TypeError as error:
        raise ValueError(f"it does not say which rows were pruned: {row.detail!r}") from error
