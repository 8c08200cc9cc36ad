"""Where CrewAI keeps the body of a tool, and by which other ways it, or the user's code, gets at what a tool does.

A tool made of a function keeps that; a tool that is a class does its work in ``_run``. A class of the user's may do it,
or a part of it, in ``run``, ``arun`` or ``_arun`` as well, which are bodies then like the others.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final

from sagaspan.adapters import MadeWith
from sagaspan_crewai import _compat
from sagaspan_crewai._failures import checked
from sagaspan_crewai._mcp import asking

MARK: Final = "__sagaspan_crewai__"
"""The attribute by which a guarded body names the one it guards."""

_METHODS: Final = ("run", "arun", "_run", "_arun")
_OWN: Final = "crewai"


def places_of(tool: Any) -> tuple[str, ...]:
    """The attributes by which ``tool`` is made to do its work, all of which are to be guarded."""
    if isinstance(tool, _compat.CrewStructuredTool):
        return ("func",)
    body = "func" if keeps_function(tool) else "_run"
    return (body, *(name for name in _METHODS if name != body and _is_the_users(type(tool), name)))


def keeps_function(tool: Any) -> bool:
    """Whether ``tool`` is made of a function."""
    return isinstance(tool, _compat.FunctionTool | _compat.CrewStructuredTool)


def entry_of(tool: Any) -> str:
    """The place by which a model's call comes in."""
    return "run" if "run" in places_of(tool) else places_of(tool)[0]


def body_of(tool: Any, place: str | None = None) -> Callable[..., Any]:
    """What the user wrote at ``place``, or the body of ``tool``, unguarded; a method of a class is not bound."""
    place = place or places_of(tool)[0]
    if place != "func":
        method: Callable[..., Any] = getattr(type(tool), place)
        return method
    function: Callable[..., Any] = tool.func
    return getattr(function, MARK, function)


def made_with(tool: Any) -> MadeWith | None:
    """What tells ``tool`` from another one of its class; None of one that keeps a function, which tells itself."""
    return None if keeps_function(tool) else MadeWith(tool, type(tool), _compat.BaseTool)


def bound(tool: Any, place: str | None = None) -> Callable[..., Any]:
    """What runs the unguarded body at ``place`` with the model's arguments."""
    place = place or places_of(tool)[0]
    body = body_of(tool, place)
    return body if place == "func" else functools.partial(body, tool)


def worker(tool: Any, place: str, run: Callable[..., Any]) -> Callable[..., Any]:
    """What a guarded call does in place of ``run``, the unguarded body at ``place``: it asks an MCP server once."""
    return (asking(tool) if place == "_run" else None) or run


def effect_of(tool: Any) -> Callable[..., Any]:
    """What does the work of ``tool`` where no model asks, as to undo; raises if the tool says that it failed."""
    place = entry_of(tool)
    run = bound(tool, place)
    body, work = body_of(tool, place), worker(tool, place, run)
    if inspect.iscoroutinefunction(body):

        @functools.wraps(body)
        async def adone(**arguments: Any) -> Any:
            return checked(await work(**arguments))

        done: Callable[..., Any] = adone
    else:

        @functools.wraps(body)
        def sync_done(**arguments: Any) -> Any:
            return checked(work(**arguments))

        done = sync_done
    done.__signature__ = inspect.signature(run)  # type: ignore[attr-defined] # as inspect reads it
    return done


def _is_the_users(kind: type, name: str) -> bool:
    owner = next(each for each in kind.__mro__ if name in vars(each))
    return owner.__module__.partition(".")[0] != _OWN
