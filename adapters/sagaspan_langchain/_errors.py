"""What an error of the guard becomes in an agent: data for the model, or the end of the run as that very error.

Data is for what the model can act on: nothing ran, or nobody knows. The rest must end the run, and only subclasses of
``GraphBubbleUp`` pass every error handler and retry of LangGraph and LangChain's middleware (langchain.md, fact 3).
"""

from __future__ import annotations

from typing import Any, Final

from langgraph.errors import GraphBubbleUp

from sagaspan import (
    BudgetExceeded,
    CallInProgress,
    LockConflict,
    LoopDetected,
    OutcomeUnknown,
    RateLimited,
    Refused,
    SagaspanError,
    ScopeFrozen,
)

_ENDING: Final = (BudgetExceeded, ScopeFrozen)
_ORIGINAL: Final = "__sagaspan_original__"


class Leaving(GraphBubbleUp):
    """Carries an error whose type cannot have a second base; a guarded graph raises the error itself."""


def told(error: BaseException) -> dict[str, Any] | None:
    """What the model is told instead of ``error``, or None if it is not for the model."""
    if not isinstance(error, SagaspanError):
        return None
    if not isinstance(error, OutcomeUnknown) and (not isinstance(error, Refused) or _ends(error)):
        return None
    data: dict[str, Any] = {"status": _STATUS[error.tool_ran], "retry": "forbidden", "error": type(error).__name__}
    if isinstance(error, RateLimited | CallInProgress | LockConflict):
        data["retry"] = "later"
    if isinstance(error, RateLimited):
        data["retry_after"] = error.retry_after
    if error.call is not None:
        data["record"] = error.call.id
        if error.tool_ran == "unknown":
            data["next"] = f"sagaspan calls resolve {error.call.id} OUTCOME --note WHY"
    return {**data, "message": str(error)}


def _ends(error: Refused) -> bool:
    return isinstance(error, _ENDING) or (isinstance(error, LoopDetected) and error.stops)


_STATUS: Final = {"no": "refused", "yes": "done", "unknown": "unknown"}


def leaving(error: BaseException) -> BaseException:
    """``error`` so that nothing between here and the caller swallows it; still an instance of its own type."""
    if isinstance(error, GraphBubbleUp) or not isinstance(error, Exception):
        return error
    try:
        kind = _with_second_base(type(error))
        # Not through __init__, whose arguments are the type's own business.
        carrier: Exception = kind.__new__(kind, *error.args)
        carrier.args = error.args
        carrier.__dict__.update(error.__dict__)
    except TypeError:
        carrier = Leaving(f"{type(error).__name__}: {error}")
    setattr(carrier, _ORIGINAL, error)
    return carrier.with_traceback(error.__traceback__)


def original(error: BaseException) -> BaseException:
    """The error that ``leaving`` made this one of, or ``error`` itself."""
    found: BaseException = getattr(error, _ORIGINAL, error)
    return found


def _with_second_base(kind: type[Exception]) -> type[Exception]:
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    # What a type keeps outside its attributes, as OSError does, is not copied: the text comes from the error itself.
    return type(kind.__name__, (kind, GraphBubbleUp), {**names, "__str__": lambda self: str(original(self))})
