"""How the tools and models are guarded that no copy of an agent holds: in closures, of sub-agents, made on the way.

While a step of a guarded agent runs, its ``Scope`` is in force, as a context variable that LangChain and LangGraph
carry into their threads and tasks. LangChain sends every call of a tool through ``BaseTool.run`` or ``arun``, and every
call of a chat model through a few methods of ``BaseChatModel``; within a scope these go on with the guarded twin of the
object. Outside of one they are what they were: agents that nobody wrapped do not change.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

from langchain_core.language_models import BaseChatModel
from langchain_core.tools import BaseTool

from sagaspan import Guard
from sagaspan.adapters import PolicyBook
from sagaspan_langchain._marks import guard_of
from sagaspan_langchain._models import guarded_model
from sagaspan_langchain._subclasses import ainvoked, invoked
from sagaspan_langchain._tools import guard_in_agent

_MOST_TWINS: Final = 1000
"""Agents that make tools and models for each request must not fill the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What a guarded agent reaches: under which policies, and which of its tools a compensation can be named after."""

    guard: Guard
    book: PolicyBook
    peers: Mapping[str, BaseTool]
    _twins: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        """Within the block every tool and chat model is guarded."""
        token = scope_in_force.set(self)
        try:
            yield
        finally:
            scope_in_force.reset(token)

    def prepare(self) -> None:
        """Guard the tools that are known now: a policy that does not fit one is an error before anything ran."""
        for tool in self.peers.values():
            if guard_of(tool) is None:
                self.tool(tool)

    def tool(self, tool: BaseTool) -> BaseTool:
        """The guarded twin of ``tool``: the same one whoever holds it."""
        guarded: BaseTool = self._twin(tool, lambda: guard_in_agent(self.guard, tool, self.book, self.peers))
        return guarded

    def model(self, model: BaseChatModel) -> BaseChatModel:
        """The guarded twin of ``model``."""
        guarded: BaseChatModel = self._twin(model, lambda: guarded_model(self.guard, model))
        return guarded

    def _twin(self, target: Any, make: Callable[[], Any]) -> Any:
        if guard_of(target) is not None:
            return make() if isinstance(target, BaseTool) else target
        with self._lock:
            known = self._twins.get(id(target))
            if known is None:
                while len(self._twins) >= _MOST_TWINS:
                    self._twins.pop(next(iter(self._twins)))
                known = self._twins[id(target)] = (target, make())
        return known[1]


scope_in_force: ContextVar[Scope | None] = ContextVar("sagaspan_langchain_scope", default=None)


def install() -> None:
    """Let LangChain's calls find the scope in force; once a process."""
    with _lock:
        if getattr(BaseTool.run, _INSTALLED, False):
            return
        for base, name, hook in _HOOKS:
            hooked = hook(getattr(base, name))
            setattr(hooked, _INSTALLED, True)
            setattr(base, name, hooked)


_INSTALLED: Final = "__sagaspan_reaches__"
_lock = threading.Lock()


def _is_free(target: Any) -> bool:
    return scope_in_force.get() is not None and guard_of(target) is None


def _guarded(target: Any) -> Any:
    scope = scope_in_force.get()
    if scope is None or guard_of(target) is not None:
        return target
    return scope.tool(target) if isinstance(target, BaseTool) else scope.model(target)


def _tool_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(self: BaseTool, *args: Any, **kwargs: Any) -> Any:
        if not _is_free(self):
            return original(self, *args, **kwargs)
        return invoked(original, _guarded(self), args, kwargs)

    return run


def _atool_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def arun(self: BaseTool, *args: Any, **kwargs: Any) -> Any:
        if not _is_free(self):
            return await original(self, *args, **kwargs)
        return await ainvoked(original, _guarded(self), args, kwargs)

    return arun


def _model_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: BaseChatModel, *args: Any, **kwargs: Any) -> Any:
        return original(_guarded(self), *args, **kwargs)

    return call


def _amodel_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def acall(self: BaseChatModel, *args: Any, **kwargs: Any) -> Any:
        return await original(_guarded(self), *args, **kwargs)

    return acall


_HOOKS: Final[tuple[tuple[Any, str, Callable[[Callable[..., Any]], Callable[..., Any]]], ...]] = (
    (BaseTool, "run", _tool_hook),
    (BaseTool, "arun", _atool_hook),
    (BaseChatModel, "generate", _model_hook),
    (BaseChatModel, "agenerate", _amodel_hook),
    (BaseChatModel, "stream", _model_hook),
    (BaseChatModel, "astream", _model_hook),
    (BaseChatModel, "stream_events", _model_hook),
    (BaseChatModel, "astream_events", _model_hook),
)
