"""What a call of a tool costs: an amount, or a function of its arguments and its result (``cost=`` of a policy)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sagaspan._compensation import is_async_callable
from sagaspan.amounts import nano_usd
from sagaspan.exceptions import ConfigurationError

_RESULT: Final = "result"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """``fixed`` nano-USD a call, or what ``function`` says of the ``declared`` ones of the arguments and ``result``."""

    where: str
    fixed: int | None = None
    function: Callable[..., Any] | None = None
    declared: tuple[str, ...] = ()

    def bound(self, arguments: Mapping[str, Any]) -> int:
        """At most what a call with ``arguments`` costs, in nano-USD; ``result`` is None there.

        Raises ``ConfigurationError`` if that cannot be said.
        """
        return self._of(arguments, None)

    def of(self, arguments: Mapping[str, Any], result: Any) -> int:
        """What a call that returned ``result`` did cost, in nano-USD; raises ``ConfigurationError``."""
        return self._of(arguments, result)

    def _of(self, arguments: Mapping[str, Any], result: Any) -> int:
        if self.function is None:
            return self.fixed or 0
        values = {**arguments, _RESULT: result}
        try:
            value = self.function(**{name: values[name] for name in self.declared})
        except Exception as error:
            raise ConfigurationError(f"{self.where} failed: {type(error).__name__}: {error}") from error
        return nano_usd(value, what=self.where)


def cost_of(value: str | Callable[..., Any] | None, parameters: tuple[str, ...], *, where: str) -> Cost | None:
    """``cost=`` of a policy; raises ``ConfigurationError`` for what is no amount, or asks for what nobody can fill."""
    where = f"{where}: its cost"
    if value is None:
        return None
    if isinstance(value, str):
        return Cost(where=where, fixed=nano_usd(value, what=where))
    if is_async_callable(value):
        raise ConfigurationError(f"{where} is an async function, but it is called without a loop; use def")
    declared = tuple(inspect.signature(value).parameters)
    unknown = [name for name in declared if name not in (*parameters, _RESULT)]
    if unknown:
        can = ", ".join((*parameters, _RESULT))
        raise ConfigurationError(f"{where} takes {unknown[0]!r}, which nothing can fill; it can take {can}")
    return Cost(where=where, function=value, declared=declared)
