"""The adapter of plain callables and of clients of models: the original stays unguarded, a guarded one comes back."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from sagaspan import Budget, ConfigurationError, Guard
from sagaspan.adapters import PolicyBook, guard_function, model_name, tool_behind
from sagaspan_functions._clients import guard_client, is_client


class FunctionsAdapter:
    """Knows functions, methods and other callables, lists or tuples of them, and clients of OpenAI and Anthropic."""

    def knows(self, target: object) -> bool:
        """Whether ``target`` is a callable, a non-empty list or tuple of callables, or a client of a model's API."""
        if is_client(target):
            return True
        if isinstance(target, list | tuple):
            return bool(target) and all(_is_function(item) for item in target)
        return _is_function(target)

    def wrap(
        self,
        guard: Guard,
        target: Any,
        book: PolicyBook,
        *,
        name: str | None,
        run_id: str | None,
        budget: tuple[Budget, ...] | None,
        on_interrupt: Any,
    ) -> Any:
        """``target`` guarded. ``name`` names a single function's tool; what is wrapped here opens no run of its own."""
        if run_id is not None or budget is not None or on_interrupt is not None:
            raise ConfigurationError(
                "a wrapped function or client opens no run, so it takes no run_id, budget or on_interrupt; call it in "
                "guard.run(...), or give its tool or model a budget: Guard(budgets={'tool:NAME': '20 USD/day'})"
            )
        if is_client(target):
            return _client(guard, target, book, name)
        functions = list(target) if isinstance(target, list | tuple) else [target]
        if name is not None and len(functions) > 1:
            raise ConfigurationError("name= is for one function; a list keeps its functions' own names")
        names = [name or _name(function) for function in functions]
        where = "this list of functions" if len(functions) > 1 else f"the function {names[0]!r}"
        book.check_names([*names, *map(model_name, names)], where=where)
        guarded = [_guard(guard, function, name, book) for function, name in zip(functions, names, strict=True)]
        return type(target)(guarded) if isinstance(target, list | tuple) else guarded[0]


def _client(guard: Guard, client: Any, book: PolicyBook, name: str | None) -> Any:
    if name is not None:
        raise ConfigurationError(f"a client is no tool and has no name={name!r}; its models have budgets: model:NAME")
    book.check_names([], where=f"this {type(client).__name__}, which has no tools,")
    return guard_client(guard, client)


def _guard(guard: Guard, function: Callable[..., Any], name: str, book: PolicyBook) -> Callable[..., Any]:
    if tool_behind(function) is not None:
        raise ConfigurationError(f"the function {name!r} is guarded already; put its policy in @guard.tool(...)")
    return guard_function(guard, function, name, book)


def _is_function(target: object) -> bool:
    return callable(target) and not inspect.isclass(target)


def _name(function: Callable[..., Any]) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)
