"""The function that finds out whether a call happened, and what it can answer (rule book (a) 6).

``Applied(result)``: it happened. ``NotApplied`` (returned or raised, the class or an instance): it did not.
``Unsure()``, and anything else: nobody knows. An exception is no answer either.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sagaspan._compensation import fillable, is_async_callable, name_of
from sagaspan.exceptions import ConfigurationError, NotApplied

if TYPE_CHECKING:
    from sagaspan.ledger.records import CallInfo

RESERVED: Final = ("idempotency_key", "call")
"""What a probe can ask for besides the call's arguments; these names win."""

NOT_GIVEN: Final[Any] = object()
"""No result: it happened, and nobody knows what it returned."""


@dataclass(frozen=True, slots=True)
class Applied:
    """It happened. ``result`` is what the tool would have returned; left out, nobody knows."""

    result: Any = NOT_GIVEN


@dataclass(frozen=True, slots=True)
class Unsure:
    """The probe cannot say, and why."""

    reason: str = ""


Answer = Applied | NotApplied | Unsure


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A probing function, checked against the call it is asked about. ``settle``: how long its source may lag (s)."""

    name: str
    function: Callable[..., Any]
    is_async: bool
    declared: frozenset[str]
    takes_all: bool
    timeout: float | None
    settle: float

    def arguments(self, call: CallInfo) -> dict[str, Any]:
        """The keyword arguments that ask about ``call``."""
        available: dict[str, Any] = {**call.args, "idempotency_key": call.idempotency_key, "call": call}
        wanted = self.declared | set(call.args) if self.takes_all else self.declared
        return {name: available[name] for name in wanted if name in available}


def probe_of(
    function: Callable[..., Any],
    parameters: Collection[str],
    *,
    where: str,
    timeout: float | None = None,
    settle: float = 0.0,
) -> Probe:
    """``function`` as the probe of a call with ``parameters``; raises ``ConfigurationError`` if it cannot be filled."""
    name = name_of(function)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(f"{where}: the probe {name!r} is a generator, which runs nothing when it is called")
    declared, takes_all = fillable(function, parameters, RESERVED, where=where, what=f"probe {name!r}")
    return Probe(
        name=name,
        function=function,
        is_async=is_async_callable(function),
        declared=declared,
        takes_all=takes_all,
        timeout=timeout,
        settle=settle,
    )


def answer_of(value: Any) -> Answer:
    """What a probe that returned ``value`` says; a bare class stands for an instance."""
    if isinstance(value, Applied | NotApplied | Unsure):
        return value
    if value in (Applied, NotApplied, Unsure):
        answer: Answer = value()
        return answer
    return Unsure(f"it answered {type(value).__name__}, not Applied, NotApplied or Unsure")
