"""What a model is told of an error, in a loop of a framework or provider: data it can act on, never a bare text.

Data is for what the model can act on: nothing ran, or nobody knows, and then never an invitation to try again. What
must end the run is not told but raised.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Final

from sagaspan._commands import resolve_command
from sagaspan.exceptions import (
    BudgetExceeded,
    CallInProgress,
    CircuitOpen,
    LockConflict,
    LoopDetected,
    OutcomeUnknown,
    RateLimited,
    Refused,
    SagaspanError,
    ScopeFrozen,
)
from sagaspan.ledger.records import CallInfo, CallState

_CALL: Final = "__sagaspan_call__"
_STATUS: Final = {"no": "refused", "yes": "done", "unknown": "unknown"}
_REPEATABLE: Final = ("read", "idempotent")


def told(error: BaseException) -> dict[str, Any] | None:
    """What the model is told instead of ``error`` of the guard; None if it is not for the model."""
    if not isinstance(error, SagaspanError):
        return None
    if not isinstance(error, OutcomeUnknown) and (not isinstance(error, Refused) or isinstance(error, ScopeFrozen)):
        return None
    if isinstance(error, LoopDetected) and error.stops:
        return None
    if isinstance(error, BudgetExceeded) and not error.in_flight:
        return None
    data: dict[str, Any] = {"status": _STATUS[error.tool_ran], "retry": "forbidden", "error": type(error).__name__}
    if isinstance(error, RateLimited | CallInProgress | LockConflict | CircuitOpen | BudgetExceeded):
        data["retry"] = "later"
    if isinstance(error, RateLimited):
        data["retry_after"] = error.retry_after
    if error.call is not None:
        data["record"] = error.call.id
        if error.tool_ran == "unknown":
            data["next"] = str(resolve_command(error.call.id))
    return {**data, "message": str(error)}


def told_of_tool(error: Exception, effect: str | None) -> dict[str, Any]:
    """What the model is told of an ``error`` that the body of a tool with that ``effect`` raised."""
    call = call_of(error)
    unknown = call is not None and call.state is not CallState.FAILED
    data: dict[str, Any] = {"status": "unknown" if unknown else "failed", "error": type(error).__name__}
    if unknown and effect not in _REPEATABLE:
        data["retry"] = "forbidden"
    if call is not None:
        data["record"] = call.id
    return {**data, "message": str(error)}


def beside(value: Any, remarks: Sequence[str]) -> Any:
    """What the model is told of a call that returned ``value``: with ``remarks`` on it, if there are any."""
    return {"status": "done", "message": ". ".join(remarks), "result": value} if remarks else value


def remember_call(error: BaseException, call: CallInfo) -> None:
    """Have ``error``, which the body of ``call`` raised, know it."""
    with contextlib.suppress(Exception):  # somebody's own class, which may forbid it
        setattr(error, _CALL, call)


def call_of(error: BaseException) -> CallInfo | None:
    """The call whose body raised ``error``, or which the guard's ``error`` is about."""
    call = error.call if isinstance(error, SagaspanError) else getattr(error, _CALL, None)
    return call if isinstance(call, CallInfo) else None
