"""The function that undoes a call, and how it gets what it asks for by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sagaspan._checks import signature_of
from sagaspan._sameness import same_callable
from sagaspan.exceptions import ConfigurationError

if TYPE_CHECKING:
    from sagaspan.ledger.records import CallInfo

RESERVED: Final = ("result", "compensation_data", "idempotency_key", "call")
"""What a compensation can ask for besides the forward arguments; these names win."""

OF_THE_RESULT: Final = frozenset({"result", "compensation_data"})
"""What nobody knows of a call that was in doubt when it was undone."""

_FILLABLE = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """A function that is told of a recorded call what it declares, by name.

    ``optional``: what it can do without, because it has defaults for it.
    """

    name: str
    function: Callable[..., Any]
    is_async: bool
    declared: frozenset[str]
    optional: frozenset[str]
    takes_all: bool

    def arguments(self, forward: CallInfo, idempotency_key: str) -> dict[str, Any]:
        """The keyword arguments that tell it of ``forward``."""
        available: dict[str, Any] = {
            **forward.args,
            "result": forward.result,
            "compensation_data": _compensation_data(forward.result),
            "idempotency_key": idempotency_key,
            "call": forward,
        }
        wanted = self.declared | set(forward.args) if self.takes_all else self.declared
        if forward.result_lost is not None:
            wanted -= OF_THE_RESULT
        return {name: available[name] for name in wanted if name in available}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compensation(Handler):
    """A compensating function, checked against the call it undoes; its ``idempotency_key`` is its own.

    ``expect`` is asked before: True says that undoing overwrites nothing but what the call itself did. ``timeout`` is
    that of the tool that it is, if it is one.
    """

    module: str
    expect: Handler | None = None
    timeout: float | None = None


def compensation_of(
    function: Callable[..., Any],
    parameters: Collection[str],
    *,
    where: str,
    name: str | None = None,
    empty_safe: bool = False,
    expect: Callable[..., Any] | None = None,
    timeout: float | None = None,
) -> Compensation:
    """``function`` as the compensation of a call with ``parameters``.

    Raises ``ConfigurationError`` if it, or ``expect``, declares a parameter that nothing can fill, a reserved name that
    is also a parameter of the call, or, where it is ``empty_safe``, needs the result, which nobody knows in doubt.
    """
    fields = _handler(function, parameters, where=where, what="compensation", name=name, empty_safe=empty_safe)
    asked = None
    if expect is not None:
        asked = Handler(**_handler(expect, parameters, where=where, what="expectation", empty_safe=empty_safe))
    module = getattr(function, "__module__", None) or ""
    return Compensation(**fields, module=module, expect=asked, timeout=timeout)


def _handler(
    function: Callable[..., Any],
    parameters: Collection[str],
    *,
    where: str,
    what: str,
    name: str | None = None,
    empty_safe: bool,
) -> dict[str, Any]:
    """The fields of ``function`` as a ``Handler``; see ``compensation_of``."""
    name = name or name_of(function)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(f"{where}: the {what} {name!r} is a generator, which runs nothing when it is called")
    declared, takes_all = fillable(function, parameters, RESERVED, where=where, what=f"{what} {name!r}")
    clash = sorted(declared & set(parameters) & set(RESERVED))
    if clash:
        raise ConfigurationError(
            f"{where}: the {what} {name!r} declares {clash[0]!r}, which is reserved but also an argument of the "
            "call; rename the argument"
        )
    optional = _optional(function)
    if empty_safe and (needed := sorted((declared & OF_THE_RESULT) - optional)):
        raise ConfigurationError(
            f"{where}: empty_safe=True, but the {what} {name!r} needs {needed[0]!r}, which nobody knows of a "
            f"call in doubt; give it a default ({needed[0]}=None) and let it find the effect by call.idempotency_key"
        )
    return {
        "name": name, "function": function, "is_async": is_async_callable(function), "declared": declared,
        "optional": optional, "takes_all": takes_all,
    }  # fmt: skip


def name_of(function: Callable[..., Any]) -> str:
    """What a function is called if nobody says otherwise."""
    return str(getattr(function, "__name__", type(function).__name__))


def same_handler(one: Handler | None, other: Handler | None) -> bool:
    """Whether both do the same, or neither is there."""
    if one is None or other is None:
        return one is other
    return same_callable(one.function, other.function)


def is_async_callable(function: Callable[..., Any]) -> bool:
    """Whether calling ``function`` gives an awaitable."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def fillable(
    function: Callable[..., Any], parameters: Collection[str], reserved: Collection[str], *, where: str, what: str
) -> tuple[frozenset[str], bool]:
    """The parameters of ``function`` that a call can fill by name, and whether it takes all of them (``**kwargs``).

    Raises ``ConfigurationError`` for a parameter that nothing can fill; ``what`` names the function.
    """
    declared, takes_all = set(), False
    for parameter in signature_of(function, f"{where}: the {what}").parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            takes_all = True
        elif parameter.kind in _FILLABLE and parameter.name in {*parameters, *reserved}:
            declared.add(parameter.name)
        elif parameter.default is parameter.empty and parameter.kind is not inspect.Parameter.VAR_POSITIONAL:
            raise ConfigurationError(
                f"{where}: nothing can fill the parameter {parameter.name!r} of the {what}; it can take "
                f"the call's arguments ({', '.join(parameters) or 'none'}) and {', '.join(reserved)}"
            )
    return frozenset(declared), takes_all


def _optional(function: Callable[..., Any]) -> frozenset[str]:
    parameters = inspect.signature(function).parameters.values()
    return frozenset(parameter.name for parameter in parameters if parameter.default is not parameter.empty)


def _compensation_data(result: Any) -> Any:
    return result.get("compensation_data") if isinstance(result, Mapping) else None
