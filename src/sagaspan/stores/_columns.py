"""Records to rows and back: the statements every SQL store builds from the fields of the records."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, Final

from sagaspan.ledger.records import (
    ApprovalRecord,
    ApprovalState,
    AuditRow,
    BudgetRecord,
    CallRecord,
    CallState,
    ChainedRow,
    DeliveryRecord,
    FreezeRecord,
    LeaseRecord,
    LimitRecord,
    LockRecord,
    LoopRecord,
    Phase,
    RunRecord,
    RunState,
    UsageRecord,
    UsageTotals,
)

CALL_COLUMNS: Final = tuple(field.name for field in fields(CallRecord))
RUN_COLUMNS: Final = tuple(field.name for field in fields(RunRecord))
AUDIT_COLUMNS: Final = tuple(field.name for field in fields(AuditRow))
LEASE_COLUMNS: Final = tuple(field.name for field in fields(LeaseRecord))
LOCK_COLUMNS: Final = tuple(field.name for field in fields(LockRecord))
BUDGET_COLUMNS: Final = tuple(field.name for field in fields(BudgetRecord))
FREEZE_COLUMNS: Final = tuple(field.name for field in fields(FreezeRecord))
LOOP_COLUMNS: Final = tuple(field.name for field in fields(LoopRecord))
LIMIT_COLUMNS: Final = tuple(field.name for field in fields(LimitRecord))
APPROVAL_COLUMNS: Final = tuple(field.name for field in fields(ApprovalRecord))
DELIVERY_COLUMNS: Final = tuple(field.name for field in fields(DeliveryRecord))
USAGE_COLUMNS: Final = tuple(field.name for field in fields(UsageRecord))

# What never changes after a record's first claim; all other columns are saved with every transition.
_CALL_CONSTANTS: Final = frozenset(
    {"id", "namespace", "tool", "key_source", "generation", "idempotency_key", "fingerprint",
     "run_id", "parent_id", "phase",
     "compensates",
     "effect", "declared_write", "arguments", "compensate", "empty_safe", "expect", "pivot", "tool_call_id",
     "created_us", "claim_seq"}
)  # fmt: skip
_RUN_CONSTANTS: Final = frozenset(
    {"namespace", "id", "name", "parent_id", "conversation", "user", "tenant", "agent", "tags", "input",
     "input_fingerprint", "created_us"}
)  # fmt: skip

CALL_CHANGING: Final = tuple(name for name in CALL_COLUMNS if name not in _CALL_CONSTANTS)
RUN_CHANGING: Final = tuple(name for name in RUN_COLUMNS if name not in _RUN_CONSTANTS)
LOCK_CHANGING: Final = tuple(name for name in LOCK_COLUMNS if name not in ("namespace", "name"))

APPROVAL_CHANGING: Final = ("call_id", "state", "votes", "reason", "version", "ended_us")

call_values = attrgetter(*CALL_COLUMNS)
call_changes = attrgetter(*CALL_CHANGING, "id")
run_values = attrgetter(*RUN_COLUMNS)
run_changes = attrgetter(*RUN_CHANGING, "namespace", "id")
audit_values = attrgetter(*AUDIT_COLUMNS)
delivery_values = attrgetter(*DELIVERY_COLUMNS)
lease_values = attrgetter(*LEASE_COLUMNS)
approval_values = attrgetter(*APPROVAL_COLUMNS)
approval_changes = attrgetter(*APPROVAL_CHANGING, "id")
lock_values = attrgetter(*LOCK_COLUMNS)
lock_changes = attrgetter(*LOCK_CHANGING, "namespace", "name")


def call_record(row: Sequence[Any]) -> CallRecord:
    """The record of a row selected by ``CALL_COLUMNS``."""
    values = dict(zip(CALL_COLUMNS, row, strict=True))
    for name in ("declared_write", "empty_safe", "pivot"):
        values[name] = bool(values[name])
    try:
        values["state"] = CallState(values["state"])
        values["phase"] = Phase(values["phase"])
    except ValueError:
        values |= _dead_letter(values)
    return CallRecord(**values)


def _dead_letter(values: dict[str, Any]) -> dict[str, Any]:
    """A call whose row says what nobody knows may have happened: a person decides, and no run ends as if it had not."""
    return {
        "state": CallState.NEEDS_HUMAN,
        "phase": Phase(values["phase"]) if values["phase"] in list(Phase) else Phase.FORWARD,
        "declared_write": True,
        "empty_safe": False,
        "error_type": "store_error",
        "error_message": f"its row in the ledger has the state {values['state']!r} and the phase {values['phase']!r}, "
        "which this sagaspan does not know",
    }


def run_record(row: Sequence[Any]) -> RunRecord:
    """The record of a row selected by ``RUN_COLUMNS``.

    A state that nobody knows stays as it is: nothing is allowed in it, but the run can be looked at.
    """
    values = dict(zip(RUN_COLUMNS, row, strict=True))
    values["completing"] = bool(values["completing"])
    with contextlib.suppress(ValueError):
        values["state"] = RunState(values["state"])
    return RunRecord(**values)


def audit_row(row: Sequence[Any]) -> AuditRow:
    """The audit row of a row selected by ``AUDIT_COLUMNS``."""
    return AuditRow(**dict(zip(AUDIT_COLUMNS, row, strict=True)))


def lease_record(row: Sequence[Any]) -> LeaseRecord:
    """The lease of a row selected by ``LEASE_COLUMNS``."""
    return LeaseRecord(**dict(zip(LEASE_COLUMNS, row, strict=True)))


def approval_record(row: Sequence[Any]) -> ApprovalRecord:
    """The request of a row selected by ``APPROVAL_COLUMNS``; a state that nobody knows stays, and permits nothing."""
    values = dict(zip(APPROVAL_COLUMNS, row, strict=True))
    with contextlib.suppress(ValueError):
        values["state"] = ApprovalState(values["state"])
    return ApprovalRecord(**values)


def chained_row(row: Sequence[Any]) -> ChainedRow:
    """The row of the columns seq, number, content, hash and those of ``AUDIT_COLUMNS``."""
    seq, number, content, digest, *values = row
    return ChainedRow(seq, number, content, digest, audit_row(values))


def delivery_record(row: Sequence[Any]) -> DeliveryRecord:
    """What is to be delivered, of a row selected by ``DELIVERY_COLUMNS``."""
    values = dict(zip(DELIVERY_COLUMNS, row, strict=True))
    return DeliveryRecord(**{**values, "dead": bool(values["dead"])})


def lock_record(row: Sequence[Any]) -> LockRecord:
    """The lock of a row selected by ``LOCK_COLUMNS``."""
    return LockRecord(**dict(zip(LOCK_COLUMNS, row, strict=True)))


def budget_record(row: Sequence[Any]) -> BudgetRecord:
    """The budget of a row selected by ``BUDGET_COLUMNS``."""
    return BudgetRecord(**dict(zip(BUDGET_COLUMNS, row, strict=True)))


def limit_record(row: Sequence[Any]) -> LimitRecord:
    """The limit of a row selected by ``LIMIT_COLUMNS``."""
    values = dict(zip(LIMIT_COLUMNS, row, strict=True))
    return LimitRecord(**{**values, "hard": bool(values["hard"])})


budget_name = attrgetter("namespace", "scope", "unit", "window", "start_us")
limit_values = attrgetter(*LIMIT_COLUMNS)
loop_values = attrgetter(*LOOP_COLUMNS)
freeze_values = attrgetter(*FREEZE_COLUMNS)
usage_values = attrgetter(*USAGE_COLUMNS)


def usage_record(row: Sequence[Any]) -> UsageRecord:
    """The usage of a row selected by ``USAGE_COLUMNS``."""
    return UsageRecord(**dict(zip(USAGE_COLUMNS, row, strict=True)))


def usage_totals(row: Sequence[Any]) -> UsageTotals:
    """The totals of a row whose columns are the fields of ``UsageTotals``."""
    key, *numbers = row  # a server adds up to decimals
    return UsageTotals(**dict(zip(_TOTALS, (key, *map(int, numbers)), strict=True)))


_TOTALS: Final = tuple(field.name for field in fields(UsageTotals))
