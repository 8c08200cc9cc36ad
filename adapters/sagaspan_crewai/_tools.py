"""Guarding tools by themselves: copies of them, which are guarded wherever they are called."""

from __future__ import annotations

from typing import Any

from sagaspan import ConfigurationError, Guard
from sagaspan.adapters import PolicyBook
from sagaspan_crewai import _compat
from sagaspan_crewai._bodies import install
from sagaspan_crewai._places import MARK, places_of
from sagaspan_crewai._toolbox import Toolbox, aliases_of


def wrap_tools(guard: Guard, target: Any, book: PolicyBook) -> Any:
    """One tool, or a list or tuple of tools, guarded; the container keeps its type."""
    if not isinstance(target, list | tuple):
        return _copies(guard, [target], book, where=f"the tool {target.name!r}")[0]
    for item in target:
        if not _compat.is_tool(item):
            raise ConfigurationError(f"a {type(item).__qualname__} in a list of tools is not a tool of CrewAI")
    return type(target)(_copies(guard, list(target), book, where="this list of tools"))


def _copies(guard: Guard, tools: list[Any], book: PolicyBook, *, where: str) -> list[Any]:
    book.check_names([alias for tool in tools for alias in aliases_of(tool)], where=where)
    copies = []
    for tool in tools:
        if is_owned(tool):
            raise ConfigurationError(f"the tool {tool.name!r} is guarded already; wrap it once, with all its policies")
        copies.append(_bare_copy(tool))
    box = Toolbox(guard, (book,), copies)
    for copy in copies:
        install(copy, box)
        vars(copy)[OWNER] = box
    return copies


OWNER = "__sagaspan_owner__"


def is_owned(tool: Any) -> bool:
    """Whether ``tool`` is what ``wrap_tools`` made."""
    return OWNER in vars(tool)


def _bare_copy(tool: Any) -> Any:
    """A copy without what a wrapped crew may have put into the original."""
    copy = tool.model_copy()
    held = vars(copy)
    for place in places_of(copy):
        body = held.get(place)
        if hasattr(body, MARK) and place == "func":
            held[place] = getattr(body, MARK)
        elif hasattr(body, MARK):
            del held[place]
    return copy
