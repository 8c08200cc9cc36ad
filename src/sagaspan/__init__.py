"""sagaspan: a safety net under AI agents that people already have.

Sagas (automatic compensation in reverse) and idempotency (done once, through crashes and retries) as
OpenTelemetry-native middleware. Every name is imported at its first use: ``import sagaspan`` imports no framework,
no DuckDB and no exporter.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sagaspan._audit import AuditReport
    from sagaspan._call import Call, Result
    from sagaspan._coverage import Coverage
    from sagaspan._estimates import calculate_cost, estimate_tokens
    from sagaspan._guard import Guard
    from sagaspan._middleware import CallNext, Middleware, compose
    from sagaspan._probe import Applied, Unsure
    from sagaspan._prune import Pruned
    from sagaspan._recovery import Recovery
    from sagaspan._run import Run
    from sagaspan._tool import Tool
    from sagaspan._undone import Undone
    from sagaspan.approvers import ApprovalRequest, Approve, Approver, Deny, Edit, Inbox
    from sagaspan.budget import Budget
    from sagaspan.exceptions import (
        ApprovalDenied,
        ApprovalExpired,
        ApprovalPending,
        BudgetExceeded,
        CallInProgress,
        CircuitOpen,
        CompensationFailed,
        ConfigurationError,
        KeyConflict,
        LockConflict,
        LoopDetected,
        NotApplied,
        OutcomeUnknown,
        PolicyDenied,
        RateLimited,
        Refused,
        ReplayDivergence,
        ResolutionError,
        RunClosed,
        RunConflict,
        RunError,
        RunInProgress,
        SagaspanError,
        SchemaOutdated,
        ScopeFrozen,
        StoreError,
        StoreUnavailable,
        ToolTimeout,
    )
    from sagaspan.ledger.records import ApprovalState, CallInfo, CallState, RunInfo, RunState
    from sagaspan.ledger.verifying import AuditFinding
    from sagaspan.notify import Notify
    from sagaspan.policy import Approval, Policy, Retry
    from sagaspan.telemetry import configure_metrics, configure_tracing
    from sagaspan.webhooks import Webhook

_HOMES = {
    "sagaspan._audit": ("AuditReport",),
    "sagaspan._call": ("Call", "Result"),
    "sagaspan._estimates": ("calculate_cost", "estimate_tokens"),
    "sagaspan._guard": ("Guard",),
    "sagaspan._middleware": ("CallNext", "Middleware", "compose"),
    "sagaspan._prune": ("Pruned",),
    "sagaspan._recovery": ("Recovery",),
    "sagaspan._undone": ("Undone",),
    "sagaspan._probe": ("Applied", "Unsure"),
    "sagaspan._run": ("Run",),
    "sagaspan._tool": ("Tool",),
    "sagaspan.approvers": ("ApprovalRequest", "Approve", "Approver", "Deny", "Edit", "Inbox"),
    "sagaspan.webhooks": ("Webhook",),
    "sagaspan.notify": ("Notify",),
    "sagaspan.budget": ("Budget",),
    "sagaspan._coverage": ("Coverage",),
    "sagaspan.ledger.records": ("ApprovalState", "CallInfo", "CallState", "RunInfo", "RunState"),
    "sagaspan.ledger.verifying": ("AuditFinding",),
    "sagaspan.policy": ("Approval", "Policy", "Retry"),
    "sagaspan.telemetry": ("configure_metrics", "configure_tracing"),
    "sagaspan.exceptions": (
        "ApprovalDenied", "ApprovalExpired", "ApprovalPending", "BudgetExceeded", "CallInProgress", "CircuitOpen",
        "CompensationFailed", "ConfigurationError", "KeyConflict", "LockConflict", "LoopDetected", "NotApplied",
        "OutcomeUnknown", "PolicyDenied", "RateLimited", "Refused", "ReplayDivergence", "ResolutionError",
        "RunClosed", "RunConflict", "RunError",
        "RunInProgress", "SagaspanError", "SchemaOutdated", "ScopeFrozen", "StoreError", "StoreUnavailable",
        "ToolTimeout",
    ),
}  # fmt: skip
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Applied",
    "Approval",
    "ApprovalDenied",
    "ApprovalExpired",
    "ApprovalPending",
    "ApprovalRequest",
    "ApprovalState",
    "Approve",
    "Approver",
    "AuditFinding",
    "AuditReport",
    "Budget",
    "BudgetExceeded",
    "Call",
    "CallInProgress",
    "CallInfo",
    "CallNext",
    "CallState",
    "CircuitOpen",
    "CompensationFailed",
    "ConfigurationError",
    "Coverage",
    "Deny",
    "Edit",
    "Guard",
    "Inbox",
    "KeyConflict",
    "LockConflict",
    "LoopDetected",
    "Middleware",
    "NotApplied",
    "Notify",
    "OutcomeUnknown",
    "Policy",
    "PolicyDenied",
    "Pruned",
    "RateLimited",
    "Recovery",
    "Refused",
    "ReplayDivergence",
    "ResolutionError",
    "Result",
    "Retry",
    "Run",
    "RunClosed",
    "RunConflict",
    "RunError",
    "RunInProgress",
    "RunInfo",
    "RunState",
    "SagaspanError",
    "SchemaOutdated",
    "ScopeFrozen",
    "StoreError",
    "StoreUnavailable",
    "Tool",
    "ToolTimeout",
    "Undone",
    "Unsure",
    "Webhook",
    "__version__",
    "calculate_cost",
    "compose",
    "configure_metrics",
    "configure_tracing",
    "estimate_tokens",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("sagaspan")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'sagaspan' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
