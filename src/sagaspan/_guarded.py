"""A function as a guarded one: it is called as before, and its signature is kept."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from sagaspan._backends import ASYNCIO
from sagaspan._checks import described
from sagaspan._compensation import name_of
from sagaspan._engine import Engine, call_sync
from sagaspan._tool import MARK, Tool, tool_behind
from sagaspan._tracebacks import outside
from sagaspan.exceptions import ConfigurationError


def guarded_function(engine: Engine, tool: Tool) -> Callable[..., Any]:
    """The function of ``tool``, each call of which goes through ``engine``."""
    function = tool.function

    if tool.is_async:

        @functools.wraps(function)
        async def guarded_async(*args: Any, **kwargs: Any) -> Any:
            try:
                arguments, context = tool.bind(args, kwargs)
                return await engine.call(tool, arguments, context=context, invoke=tool.invoke, backend=ASYNCIO)
            except Exception as error:
                error.__traceback__ = outside(error)
                raise

        guarded: Callable[..., Any] = guarded_async
    else:

        @functools.wraps(function)
        def guarded_sync(*args: Any, **kwargs: Any) -> Any:
            try:
                return call_sync(engine, tool, args, kwargs)
            except Exception as error:
                error.__traceback__ = outside(error)
                raise

        guarded = guarded_sync
    setattr(guarded, MARK, tool)
    return guarded


def check_function(function: Any, name: str | None) -> None:
    """Refuse what cannot be a tool; raises ``ConfigurationError``."""
    if not callable(function) or inspect.isclass(function):
        raise ConfigurationError(f"guard.tool takes a function, not {described(function)}{order(function)}")
    if tool_behind(function) is not None:
        raise ConfigurationError(
            f"the function {name_of(function)!r} is guarded already, and would be recorded twice; guard it once"
        )
    if name is None and name_of(function) == "<lambda>":
        raise ConfigurationError("a lambda has no name of its own; give it one: guard.tool('NAME')(lambda ...)")


def order(function: object) -> str:
    """What to do with a method that is decorated in the wrong order."""
    kind = type(function).__name__
    return f"; put @{kind} above @guard.tool" if isinstance(function, classmethod | staticmethod | property) else ""
