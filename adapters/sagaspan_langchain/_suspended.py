"""A tool whose body asked a model, or an agent, whose provider failed: LangGraph goes on with it from the checkpoint.

What the body had called by then is on record, so it may run again, as after an interrupt: in the run that goes on. In
this one it is not run again, whoever retries it: what it calls would be taken for new calls there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from langgraph.errors import GraphBubbleUp

from sagaspan import Policy, Run
from sagaspan_langchain import _compat_tasks as tasks
from sagaspan_langchain import _errors as errors

_FAILED: Final = "__sagaspan_provider_failed__"
_of_runs: Final[WeakKeyDictionary[Run, dict[str, Exception]]] = WeakKeyDictionary()


def mark(error: Exception) -> None:
    """``error`` left a model's own code."""
    try:
        setattr(error, _FAILED, True)
    except AttributeError:  # of a class with slots: it ends the run as any error does
        return


def provider_raised(error: BaseException) -> bool:
    """Whether ``error`` itself left a model's own code: nothing of ours refused."""
    return getattr(error, _FAILED, False) is True


def provider_failed(error: BaseException | None) -> bool:
    """Whether ``error`` is, or was raised because of, one that left a model's own code."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if provider_raised(error):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def suspends(error: Exception, policy: Policy) -> bool:
    """Whether a body that ``error`` leaves is run again when the graph goes on.

    Not that of a declared write, which may have done what is on no record: nobody knows how that ended.
    """
    if (
        not provider_raised(error)
        or policy.declared_write
        or policy.critical is False
        or policy.error_means is not None
    ):
        return False
    config = tasks.config_here()
    return config is not None and tasks.checkpointer_of(config) is not None


class Suspendable(Protocol):
    """A call of a body, as far as it says which one it is, the same when it is made again."""

    body: Any
    invocation: Any
    arguments: Mapping[str, Any]
    raised: Exception | None


def note(run: Run | None, call: Suspendable, failure: Exception) -> bool:
    """Whether ``failure`` is what suspended ``call`` on its way out; it is remembered for the time of ``run``."""
    is_suspended = isinstance(failure, GraphBubbleUp) and errors.original(failure) is call.raised is not failure
    if is_suspended and run is not None and call.raised is not None:
        _of_runs.setdefault(run, {})[_name_of(call)] = call.raised
    return is_suspended


def check(run: Run | None, call: Suspendable) -> None:
    """Raise the error that suspended ``call`` in this run."""
    known = None if run is None else _of_runs.get(run)
    error = None if known is None else known.get(_name_of(call))
    if error is not None:
        raise error


def _name_of(call: Suspendable) -> str:
    return f"{call.body.tool.name} {call.invocation.tool_call_id} {call.arguments!r}"
