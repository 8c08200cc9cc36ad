"""What an audit row says of the record that its transition wrote: hashes of its columns, in a format that has a number.

    content = format + sha256(what is written once) + sha256(what stands) + sha256(what changes)

The format is one byte; each of the three is the columns that ``COLUMNS`` names for it, in that order, as a compact JSON
array in UTF-8 in which true is 1. What is written once is only in the first row of a record. What stands is in each row
of a request, so that nobody can change it for the moment in which somebody decides; of calls and runs nothing is. A
later version that covers other columns is another format: a row says itself of which it is, and the chain is over that.

Format 0 has no number, and one hash over all columns that its row covers (``COLUMNS_0``): ledgers from before 0.1.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from json.encoder import encode_basestring as quoted
from operator import attrgetter
from typing import Any, Final, NamedTuple, Self

from sagaspan.ledger.records import ApprovalRecord, CallRecord, RunRecord

Record = CallRecord | RunRecord | ApprovalRecord

FORMAT: Final = 2
_SIZE: Final = 32


class Columns(NamedTuple):
    """Of one kind of record: what is written once, what stands and is said each time, and what a transition changes."""

    once: tuple[str, ...]
    stands: tuple[str, ...]
    changes: tuple[str, ...]

    def and_changes(self, *names: str) -> Self:
        """These, and more that a transition changes."""
        return self._replace(changes=(*self.changes, *names))


_FORMAT_1: Final[Mapping[type[Record], Columns]] = {
    CallRecord: Columns(
        ("tool", "arguments", "key_source", "generation", "idempotency_key", "fingerprint", "parent_id", "phase",
         "compensates", "effect", "declared_write", "compensate", "empty_safe", "expect", "pivot", "tool_call_id",
         "created_us"),
        (),
        ("scope", "key", "policy", "observed", "result", "result_lost", "error_type", "error_message", "locks",
         "reserved", "spent", "started_us", "ended_us"),
    ),
    RunRecord: Columns(
        ("name", "parent_id", "conversation", "user", "tenant", "agent", "tags", "input", "input_fingerprint",
         "created_us"),
        (),
        ("output", "error", "reason", "on_interrupt", "generation", "committed_seq", "completing", "ahead",
         "orphans", "started_us", "ended_us"),
    ),
    ApprovalRecord: Columns(
        ("subject",),
        ("scope", "tool", "key", "digest", "policy", "facts", "requested_by", "shown", "edits",
         "created_us", "expires_us"),
        ("call_id", "votes", "reason", "ended_us"),
    ),
}  # fmt: skip

# A format is never changed: rows of it are in ledgers. One that covers more is the next.
COLUMNS: Final[Mapping[int, Mapping[type[Record], Columns]]] = {
    1: _FORMAT_1,
    2: {
        CallRecord: _FORMAT_1[CallRecord].and_changes("scheduled_seq", "owner", "epoch", "attempts", "traceparent"),
        RunRecord: _FORMAT_1[RunRecord].and_changes("owner", "epoch", "traceparent"),
        ApprovalRecord: _FORMAT_1[ApprovalRecord],
    },
}


_Values = Callable[[Any], Any]


class _Getters(NamedTuple):
    """What reads the ``Columns`` of one kind of record off a record of it."""

    once: _Values
    stands: _Values | None
    changes: _Values


_GETTERS: Final[Mapping[int, Mapping[type[Any], _Getters]]] = {
    number: {
        kind: _Getters(attrgetter(*of.once), attrgetter(*of.stands) if of.stands else None, attrgetter(*of.changes))
        for kind, of in kinds.items()
    }
    for number, kinds in COLUMNS.items()
}
_NOW: Final = _GETTERS[FORMAT]
_MARK: Final = bytes([FORMAT])


def content_of(record: Record, *, is_new: bool) -> bytes:
    """What the row of a transition that wrote ``record`` says of it."""
    once, stands, changes = _NOW[type(record)]
    said = _hash(changes(record))
    if stands is not None:
        said = _hash(stands(record)) + said
    return _MARK + _hash(once(record)) + said if is_new else _MARK + said


def _hash(values: Any) -> bytes:
    if not isinstance(values, tuple):  # of one column, attrgetter gives that
        values = (values,)
    told = ["null" if one is None else quoted(one) if isinstance(one, str) else f"{one:d}" for one in values]
    return sha256(f"[{','.join(told)}]".encode()).digest()


# -- reading them ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Content:
    """What one row says of its record, in its format: three hashes, of which it may have not all."""

    format: int
    once: bytes | None
    stands: bytes | None
    changes: bytes

    @classmethod
    def read(cls, kind: type[Record], content: bytes) -> Content:
        """A content as it is stored; raises ``ValueError`` for one that is in no format that is known here."""
        if len(content) == _SIZE:
            return cls(0, None, None, content)
        getters = _GETTERS.get(content[0]) if content else None
        if getters is None:
            raise ValueError(_UNKNOWN)
        stands = getters[kind].stands is not None
        hashes = [content[at : at + _SIZE] for at in range(1, len(content), _SIZE)]
        if not hashes or len(hashes[-1]) != _SIZE or len(hashes) not in (1 + stands, 2 + stands):
            raise ValueError(_UNKNOWN)
        return cls(
            content[0], hashes[0] if len(hashes) > 1 + stands else None, hashes[-2] if stands else None, hashes[-1]
        )

    def unlike(self, record: Record) -> tuple[str, ...]:
        """The columns of which some are not in ``record`` as this row says, but for those that change later."""
        columns, getters = self._of(record)
        return (
            *(columns.once if self.once not in (None, _hash(getters.once(record))) else ()),
            *(columns.stands if getters.stands and self.stands != _hash(getters.stands(record)) else ()),
        )

    def unlike_now(self, record: Record) -> tuple[str, ...]:
        """The columns that change of which some are not in ``record`` as this row says."""
        columns, getters = self._of(record)
        return columns.changes if self.changes != _hash(getters.changes(record)) else ()

    def _of(self, record: Record) -> tuple[Columns, _Getters]:
        kind = type(record)
        return COLUMNS[self.format][kind], _GETTERS[self.format][kind]


_UNKNOWN: Final = "its content is in no format that this version of sagaspan knows"


# -- format 0 --------------------------------------------------------------------------------------------------------

COLUMNS_0: Final[Mapping[type[Record], Columns]] = {
    CallRecord: Columns(("tool", "arguments", "policy"), (), ("result", "result_lost", "error_type", "error_message")),
    RunRecord: Columns(("name", "input"), (), ("output", "error")),
    ApprovalRecord: Columns(("tool", "subject", "policy"), (), ("votes", "reason")),
}
_AT_FIRST: Final[dict[type[Any], dict[str, Any]]] = {
    CallRecord: {"result": None, "result_lost": None, "error_type": None, "error_message": None},
    RunRecord: {"output": None, "error": None},
    ApprovalRecord: {"votes": "[]", "reason": None},
}


def fits_format_0(record: Record, first: bytes, last: bytes | None, *, is_only: bool) -> bool:
    """Whether ``record`` is what its first and its last row say, both of format 0 (None: of nothing)."""
    if is_only:
        return first == _old(record, is_new=True)
    at_first: Any = replace(record, **_AT_FIRST[type(record)])
    begun = first in (_old(record, is_new=True), _old(at_first, is_new=True))
    return begun and last == _old(record, is_new=False)


def _old(record: Record, *, is_new: bool) -> bytes | None:
    columns = COLUMNS_0[type(record)]
    texts = tuple(getattr(record, name) for name in (*(columns.once if is_new else ()), *columns.changes))
    return _hash(texts) if is_new or texts.count(None) < len(texts) else None
