"""What an agent reaches, as far as it can be read: its tools and models in nodes, chains, closures and sub-agents.

Wrapping does not depend on it: within a guarded agent whatever is called is guarded. It is for what must be known
before: whether a policy's name fits a tool, and for ``guard.coverage``.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel, BaseLLM
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.tools import BaseTool
from langgraph.prebuilt import ToolNode
from langgraph.pregel import Pregel
from langgraph.pregel.remote import RemoteGraph
from pydantic import BaseModel

from sagaspan import Coverage
from sagaspan.adapters import tool_behind
from sagaspan_langchain import _compat
from sagaspan_langchain._bypasses import called_directly, codes_of, way_past_the_body
from sagaspan_langchain._embeddings import name_of
from sagaspan_langchain._marks import guard_of, own_class

_FRAMEWORKS: Final = ("langchain", "langchain_core", "langchain_classic", "langgraph", "sagaspan", "pydantic")
_MOST_FUNCTIONS: Final = 5
"""How deep functions that call functions are read; what is deeper is guarded, and not known before."""


@dataclass(slots=True)
class Found:
    """What was found: tools by name, models, what nobody sees into, and where code calls the body of a tool itself."""

    tools: dict[str, BaseTool] = field(default_factory=dict)
    models: dict[str, Any] = field(default_factory=dict)
    opaque: dict[str, None] = field(default_factory=dict)
    bypassed: dict[str, str] = field(default_factory=dict)
    _seen: dict[int, Any] = field(default_factory=dict)

    def coverage(self) -> Coverage:
        """As users see it."""
        return Coverage(tools=tuple(sorted(self.tools)), models=tuple(sorted(self.models)), opaque=tuple(self.opaque))

    def read(self, target: Any, depth: int = 0, where: str = "") -> None:
        """Find what ``target`` reaches."""
        if id(target) in self._seen or depth > _MOST_FUNCTIONS:
            return
        self._seen[id(target)] = target  # kept, so that no other object has its id meanwhile
        for inner, deeper, place in self._within(target, where):
            self.read(inner, depth + deeper, place)

    def _within(self, target: Any, where: str) -> Iterator[tuple[Any, int, str]]:
        if isinstance(target, BaseTool):
            self.tools.setdefault(target.name, target)
            if (way := way_past_the_body(own_class(target))) is not None:
                self.opaque[f"the tool {target.name!r}: its class runs it in {way!r}, past the guard"] = None
            bodies = (vars(target).get(name) for name in ("func", "coroutine"))
            yield from ((body, 1, f"the tool {target.name!r}") for body in bodies if body is not None)
        elif isinstance(target, BaseChatModel | BaseLLM):
            self.models.setdefault(_compat.name_of(target), target)
        elif isinstance(target, Embeddings):
            others = [held for held in getattr(target, "__dict__", {}).values() if isinstance(held, Embeddings)]
            if not others:
                self.models.setdefault(name_of(target), target)
            yield from ((one, 0, where) for one in others)
        elif isinstance(target, RemoteGraph):
            self.opaque[f"{target.name}: a graph that runs elsewhere"] = None
        elif isinstance(target, ToolNode):
            yield from ((tool, 0, where) for tool in _compat.tools_of(target).values())
        elif isinstance(target, Pregel):
            yield from ((node.bound, 0, f"the node {name!r}") for name, node in target.nodes.items())
        elif isinstance(target, dict) and isinstance(target.get("type"), str):
            self.opaque[f"{target.get('name') or target['type']}: a tool that the provider runs"] = None
        else:
            yield from ((inner, 0, where) for inner in _parts(target))
            yield from ((inner, 1, where) for function in _functions(target) for inner in self._in(function, where))

    def _in(self, function: Any, where: str) -> Iterable[Any]:
        root = (getattr(function, "__module__", None) or "").partition(".")[0]
        if tool_behind(function) is not None:
            return []
        if root in _FRAMEWORKS or root.startswith(("langchain_", "sagaspan_")):
            cells = (cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell))
            return [value for value in cells if _is_of_interest(value)]
        if where.startswith("the node"):
            self.opaque[f"{where}: code of its own; the tools and models that it calls are guarded"] = None
        named = _named_in(function)
        for name in called_directly(function):
            tool = named.get(name)
            if isinstance(tool, BaseTool) and guard_of(tool) is None and tool_behind(vars(tool).get("func")) is None:
                self.bypassed[tool.name] = where or "a function"
                self.opaque[f"the tool {tool.name!r}: {where or 'a function'} calls its body, past the guard"] = None
        return [value for value in named.values() if _is_of_interest(value)]


def found_in(*targets: Any) -> Found:
    """What ``targets`` reach."""
    found = Found()
    for target in targets:
        found.read(target)
    return found


def _parts(target: Any) -> list[Any]:
    """What a container, a chain or any other object of the framework is made of."""
    if isinstance(target, dict):
        return [value for value in target.values() if _is_of_interest(value)]
    if isinstance(target, list | tuple | set | frozenset):
        return [value for value in target if _is_of_interest(value) or isinstance(value, dict)]
    if isinstance(target, functools.partial):
        return [target.func, *target.args, *target.keywords.values()]
    if isinstance(target, types.MethodType):
        return [target.__self__] if _is_of_interest(target.__self__) else _parts_of(target.__self__)
    return _parts_of(target) if isinstance(target, Runnable) or _is_part(target) else []


def _parts_of(target: Any) -> list[Any]:
    return [value for value in getattr(target, "__dict__", {}).values() if _is_of_interest(value)]


def _functions(target: Any) -> list[Any]:
    if isinstance(target, types.FunctionType):
        return [target]
    if isinstance(target, types.MethodType):
        return [target.__func__]
    if isinstance(target, RunnableLambda):
        return [
            function
            for name in ("func", "afunc")
            if isinstance(function := getattr(target, name, None), types.FunctionType)
        ]
    return []


def _named_in(function: types.FunctionType) -> dict[str, Any]:
    """What the code of ``function``, with that of the functions within it, names of what is around it."""
    names = {name for code in codes_of(function.__code__) for name in code.co_names}
    around = {name: function.__globals__[name] for name in names if name in function.__globals__}
    closed = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {**around, **{name: cell.cell_contents for name, cell in closed if _is_filled(cell)}}


def _is_of_interest(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_is_of_interest(item) or isinstance(item, dict) for item in value[:200])
    if isinstance(value, dict):
        return any(_is_of_interest(item) for item in list(value.values())[:200])
    kinds = (Runnable, Embeddings, types.FunctionType, types.MethodType, functools.partial)
    return (isinstance(value, kinds) or _is_part(value)) and not inspect.isclass(value)


def _is_part(value: Any) -> bool:
    """Whether ``value`` is of the framework's classes that hold runnables and are none, as the agent of an executor."""
    return isinstance(value, BaseModel) and type(value).__module__.startswith(("langchain_classic.agents",))


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
