"""What a framework's tools have to be told apart by, and their functions as the ledger takes them (for adapters)."""

from __future__ import annotations

import functools
import inspect
import keyword
from collections.abc import Callable, Collection, Iterable
from typing import Any


def is_from(target: object, packages: Collection[str]) -> bool:
    """Whether ``target`` is of a class of one of these packages, or a list or tuple with such an object among it.

    Told by where its class and those above it were made, so that nothing has to be imported to know it.
    """
    if isinstance(target, list | tuple):
        return any(_is_of(item, packages) for item in target)
    return _is_of(target, packages)


def _is_of(target: object, packages: Collection[str]) -> bool:
    return any(kind.__module__.partition(".")[0] in packages for kind in type(target).__mro__)


def under_name(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """``function`` under the name the ledger shall record, with its own signature and its module."""
    inner = _innermost(function)
    if inspect.iscoroutinefunction(inner):

        async def awaited(**arguments: Any) -> Any:
            return await function(**arguments)

        named: Callable[..., Any] = awaited
    else:

        def called(**arguments: Any) -> Any:
            return function(**arguments)

        named = called
    named.__name__ = name
    named.__module__ = getattr(inner, "__module__", "")
    named.__signature__ = inspect.signature(function)  # type: ignore[attr-defined] # as inspect reads it
    return named


def keyword_signature(names: Iterable[str]) -> inspect.Signature:
    """The signature of a function that takes ``names`` by keyword; what cannot be written as one is left out."""
    kind = inspect.Parameter.KEYWORD_ONLY
    writable = [name for name in names if name.isidentifier() and not keyword.iskeyword(name)]
    return inspect.Signature([inspect.Parameter(name, kind) for name in writable])


def _innermost(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function
