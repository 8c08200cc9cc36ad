"""The changes of a commit as one JSON text, for a database that saves them in one statement of its own.

``locks`` names the runs that are written to (true) or relied on (false): of a claim its own run and the controls of its
namespace, of a nested run the one around it. ``nests`` names the namespaces in which a run is nested in another one,
``sagas`` those of barriers: what is nested in what may not change while one of them is looked at. ``takes`` names runs
that are taken only if nobody else has their lock, each with the place of its change.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from sagaspan.amounts import Unit
from sagaspan.ledger import chain, contents
from sagaspan.ledger.records import NO_RUN, AuditRow, BudgetRecord
from sagaspan.ledger.store import (
    ApprovalChange,
    Barrier,
    CallChange,
    CarryChange,
    Change,
    DeliveryChange,
    FreezeChange,
    HookChange,
    LimitChange,
    LockChange,
    LoopChange,
    NonceChange,
    NoteChange,
    RateChange,
    ReserveChange,
    RunChange,
    SpendChange,
    UsageChange,
)
from sagaspan.stores import _columns as columns

Told = dict[str, Any]
_NUL: Final = "\x00"
_SHOWN_NUL: Final = "\u2400"
_TEXTS: Final = ("error_message", "error", "reason", "detail", "result_lost", "about", "requested_by", "votes")
"""What people read and nothing is found by: a character that no server holds is shown there instead of refused."""


def in_order(changes: Sequence[Change]) -> Sequence[Change]:
    """``changes``, those of budgets sorted by their names: so nobody who holds the row of one waits in a circle."""
    places = [
        place for place, change in enumerate(changes) if isinstance(change, ReserveChange | SpendChange | CarryChange)
    ]
    found: list[Any] = [changes[place] for place in places]
    wanted = sorted(found, key=lambda change: columns.budget_name(change.record))
    if wanted == found:
        return changes
    ordered = list(changes)
    for place, change in zip(places, wanted, strict=True):
        ordered[place] = change
    return ordered


def may_go_together(changes: Sequence[Change]) -> bool:
    """Whether others may be saved in the same transaction: of a claim or a settle, all that it waits for can be said.

    A key that is not of a run is in no order with those of others: who claims it waits for whoever claims it, too.
    """
    at = _budgets_begin(changes)
    return len({type(change) for change in changes[at:]}) <= 1 and all(
        isinstance(change, UsageChange | LoopChange)
        or (isinstance(change, CallChange) and change.record.scope.startswith("run:"))
        for change in changes[:at]
    )


def told(changes: Sequence[Change], *, slices: int = 0) -> str:
    """The text; raises ``ValueError`` for what no text can hold.

    ``slices``: into so many a budget is cut where many count in it at once; 0 for none.
    """
    locks: dict[tuple[str, str], bool] = {}
    said = [_TELL[type(change)](change, locks) for change in changes]
    at = _budgets_begin(changes)
    request = {"changes": said[:at], "budgets": said[at:], **_nesting(changes),
               "locks": [[*run, exclusive] for run, exclusive in locks.items()]}  # fmt: skip
    if takes := [[change.record.namespace, change.record.id, place] for place, change in enumerate(changes)
                 if isinstance(change, RunChange) and change.takes]:  # fmt: skip
        request["takes"] = takes
    if slices:
        request["slices"] = slices
        for change, one in zip(changes, said, strict=True):
            if isinstance(change, ReserveChange):
                one["soft"] = change.soft
    return json.dumps(request, ensure_ascii=False, separators=(",", ":"))


def _budgets_begin(changes: Sequence[Change]) -> int:
    """From where on ``changes`` are all of budgets: they can be booked after those of others."""
    at = len(changes)
    while at and isinstance(changes[at - 1], ReserveChange | SpendChange):
        at -= 1
    return at


def _nesting(changes: Sequence[Change]) -> Told:
    sagas = [[change.namespace, change.run_id] for change in changes if isinstance(change, Barrier)]
    nests = {
        change.record.namespace
        for change in changes
        if isinstance(change, RunChange) and change.record.parent_id and not change.expected_version
    }
    return ({"sagas": sagas} if sagas else {}) | ({"nests": sorted(nests)} if nests else {})


def audits_of(changes: Sequence[Change]) -> list[tuple[AuditRow, bytes | None]]:
    """The audit rows that a commit appends for certain, in order, with what they say of their records."""
    return [
        (_shown(change.audit), _content_of(change))
        for change in changes
        if isinstance(change, CallChange | RunChange | ApprovalChange | LimitChange | FreezeChange | NoteChange)
    ]


def _content_of(
    change: CallChange | RunChange | ApprovalChange | LimitChange | FreezeChange | NoteChange,
) -> bytes | None:
    if isinstance(change, LimitChange | FreezeChange | NoteChange):
        return None  # it is in the row
    return contents.content_of(_shown(change.record), is_new=not change.expected_version)


def _shown(record: Any) -> Any:
    """``record`` as a server can hold it."""
    changed = {
        name: text.replace(_NUL, _SHOWN_NUL)
        for name in _TEXTS
        if isinstance(text := getattr(record, name, None), str) and _NUL in text
    }
    return replace(record, **changed) if changed else record


def _record(names: Sequence[str], values: Sequence[Any]) -> Told:
    return {
        name: +value if isinstance(value, bool) else value
        for name, value in zip(names, values, strict=True)
        if value is not None
    }


def _row(row: AuditRow, content: bytes | None, locks: dict[tuple[str, str], bool]) -> Told:
    row = _shown(row)
    locks[row.namespace, row.run_id] = True
    said = _record(columns.AUDIT_COLUMNS, columns.audit_values(row)) | {"tail": chain.tail(row)}
    return said if content is None else said | {"content": f"\\x{content.hex()}"}


def _audited(change: Any, locks: dict[tuple[str, str], bool]) -> Told:
    return {"audit": [_row(change.audit, _content_of(change), locks)]}


def _call(change: CallChange, locks: dict[tuple[str, str], bool]) -> Told:
    record = _shown(change.record)
    said = {"kind": "call", "version": change.expected_version, **_audited(change, locks)}
    if change.expected_version:
        said["record"] = _record((*columns.CALL_CHANGING, "id", "namespace"),
                                 (*columns.call_changes(record), record.namespace))  # fmt: skip
    else:
        said["record"] = _record(columns.CALL_COLUMNS, columns.call_values(record))
    if change.claims:
        run = change.run_id or record.run_id
        said["fence"] = [run, change.run_epoch, change.controls]
        locks.setdefault((record.namespace, run), False)
        locks.setdefault((record.namespace, NO_RUN), False)
    return said


def _run(change: RunChange, locks: dict[tuple[str, str], bool]) -> Told:
    record = _shown(change.record)
    said = {"kind": "run", "version": change.expected_version, **_audited(change, locks)}
    if change.expected_version:
        said["record"] = _record((*columns.RUN_CHANGING, "namespace", "id", "parent_id"),
                                 (*columns.run_changes(record), record.parent_id))  # fmt: skip
    else:
        said["record"] = _record(columns.RUN_COLUMNS, columns.run_values(record))
    if change.outer_epoch:
        said["outer"] = change.outer_epoch
        locks.setdefault((record.namespace, record.parent_id or NO_RUN), False)
    return said


def _approval(change: ApprovalChange, locks: dict[tuple[str, str], bool]) -> Told:
    record = _shown(change.record)
    said = {"kind": "approval", "version": change.expected_version, **_audited(change, locks),
            "record": _record(columns.APPROVAL_COLUMNS, columns.approval_values(record))}  # fmt: skip
    return said if change.consumes_at is None else said | {"consumes": change.consumes_at}


def _lock(change: LockChange, _: object) -> Told:
    return {"kind": "lock", "version": change.expected_version,
            "record": _record(columns.LOCK_COLUMNS, columns.lock_values(change.record))}  # fmt: skip


def _budget(record: BudgetRecord) -> Told:
    return _record((*columns.BUDGET_COLUMNS[:5], "cap"), (*columns.budget_name(record), record.cap))


def _reserve(change: ReserveChange, _: object) -> Told:
    return {"kind": "reserve", "record": _budget(change.record), "amount": change.amount}


def _spend(change: SpendChange, locks: dict[tuple[str, str], bool]) -> Told:
    marks = [{"at": mark.at, "audit": _row(mark.audit, None, locks)} for mark in change.marks]
    return {"kind": "spend", "record": _budget(change.record), "reserved": change.reserved, "spent": change.spent,
            "marks": marks}  # fmt: skip


def _usage(change: UsageChange, _: object) -> Told:
    return {"kind": "usage", "record": _record(columns.USAGE_COLUMNS, columns.usage_values(change.record))}


def _limit(change: LimitChange, locks: dict[tuple[str, str], bool]) -> Told:
    said = {"kind": "limit", **_audited(change, locks),
            "record": _record(columns.LIMIT_COLUMNS, columns.limit_values(change.record))}  # fmt: skip
    said["scopes"] = expression_of(change.record.pattern)
    return said | {"removes": True} if change.removes else said


def _carry(change: CarryChange, _: object) -> Told:
    return {"kind": "carry", "record": _budget(change.record), "used": change.used,
            "counts": int(change.record.unit == Unit.CALLS)}  # fmt: skip


def _freeze(change: FreezeChange, locks: dict[tuple[str, str], bool]) -> Told:
    said = {"kind": "freeze", **_audited(change, locks),
            "record": _record(columns.FREEZE_COLUMNS, columns.freeze_values(_shown(change.record)))}  # fmt: skip
    return said | {"lifts": True} if change.lifts else said


def _loop(change: LoopChange, _: object) -> Told:
    return {"kind": "loop", "version": change.expected_version,
            "record": _record(columns.LOOP_COLUMNS, columns.loop_values(change.record))}  # fmt: skip


def _rate(change: RateChange, _: object) -> Told:
    return {"kind": "rate", "record": {"namespace": change.namespace, "name": change.name}, "now": change.now_ns,
            "interval": change.interval_ns, "full": change.burst * change.interval_ns}  # fmt: skip


def _nonce(change: NonceChange, _: object) -> Told:
    return {"kind": "nonce", "now": change.now_us,
            "record": {"namespace": change.namespace, "id": change.id, "until_us": change.until_us}}  # fmt: skip


def _hook(change: HookChange, _: object) -> Told:
    said = {"kind": "hook", "record": {"namespace": change.namespace, "name": change.name, "cursor": change.cursor}}
    return said if change.expected is None else said | {"expected": change.expected}


def _delivery(change: DeliveryChange, _: object) -> Told:
    said = {"kind": "delivery",
            "record": _record(columns.DELIVERY_COLUMNS, columns.delivery_values(_shown(change.record)))}  # fmt: skip
    if change.done:
        return said | {"done": True}
    return said if change.expected_attempts is None else said | {"expected": change.expected_attempts}


def _barrier(change: Barrier, _: object) -> Told:
    return {"kind": "barrier", "record": {"namespace": change.namespace, "run_id": change.run_id},
            "but": list(change.but)}  # fmt: skip


def _note(change: NoteChange, locks: dict[tuple[str, str], bool]) -> Told:
    return {"kind": "note", **_audited(change, locks)}


_TELL: Final[dict[type[Any], Callable[[Any, Any], Told]]] = {
    CallChange: _call, RunChange: _run, ApprovalChange: _approval, LockChange: _lock, ReserveChange: _reserve,
    SpendChange: _spend, UsageChange: _usage, LimitChange: _limit, CarryChange: _carry, FreezeChange: _freeze,
    LoopChange: _loop, RateChange: _rate, NonceChange: _nonce, HookChange: _hook, DeliveryChange: _delivery,
    Barrier: _barrier, NoteChange: _note,
}  # fmt: skip


def expression_of(glob: str) -> str:
    """A pattern of SQLite's GLOB as a regular expression of SQL servers."""
    parts = re.findall(r"\[\^?\]?[^\]]*\]|.", glob, re.DOTALL)
    return "^" + "".join(_piece(part) for part in parts) + "$"


def _piece(part: str) -> str:
    if part == "*":
        return ".*"
    if part == "?":
        return "."
    if len(part) > 1:
        return part.replace("\\", "\\\\")
    return re.sub(r"([^\w\s])", r"\\\1", part)
