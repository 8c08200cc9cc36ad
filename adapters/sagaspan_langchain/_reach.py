"""How the tools and models are guarded that no copy of an agent holds: in closures, of sub-agents, made on the way.

While a step of a guarded agent runs, its ``Scope`` is in force, as a context variable that LangChain and LangGraph
carry into their threads and tasks. LangChain sends every call of a tool through ``BaseTool.run`` or ``arun``, every
request to a model through a few methods of ``BaseChatModel`` and ``BaseLLM``, and what is embedded through four of
``Embeddings``; within a scope these go on with the guarded twin of the object. Outside of one they are what they were:
agents that nobody wrapped do not change. In a thread that lost the context, the scope it was started in counts.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Final, cast

from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel, BaseLLM
from langchain_core.tools import BaseTool
from langgraph.pregel import Pregel

from sagaspan import Guard, Run, SagaspanError
from sagaspan.adapters import PolicyBook
from sagaspan_langchain import _branches as branches
from sagaspan_langchain import _checkpoints as checkpoints
from sagaspan_langchain import _errors as errors
from sagaspan_langchain import _hitl, _threads
from sagaspan_langchain._embeddings import METHODS, asks_others, guarded_embeddings, is_under_way
from sagaspan_langchain._marks import guard_of
from sagaspan_langchain._models import guarded_model
from sagaspan_langchain._subclasses import ainvoked, invoked, is_twin
from sagaspan_langchain._tools import guard_in_agent, refuse_bypass

_MOST_TWINS: Final = 1000
"""Agents that make tools and models for each request must not fill the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What a guarded agent reaches: under which policies, and which of its tools a compensation can be named after."""

    guard: Guard
    book: PolicyBook
    peers: Mapping[str, BaseTool]
    bypassed: Mapping[str, str] = field(default_factory=dict)
    _twins: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        """Within the block every tool and model is guarded."""
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
        for name, where in self.bypassed.items():
            refuse_bypass(self.guard, name, self.book, f"{where} calls its body directly")

    def tool(self, tool: BaseTool) -> BaseTool:
        """The guarded twin of ``tool``: the same one whoever holds it."""
        guarded: BaseTool = self._twin(tool, lambda: guard_in_agent(self.guard, tool, self.book, self.peers))
        return guarded

    def model(self, model: Any) -> Any:
        """The guarded twin of ``model``."""
        make = guarded_embeddings if isinstance(model, Embeddings) else guarded_model
        return self._twin(model, lambda: make(self.guard, model))

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
        _hitl.install(lambda: scope_in_force.get() is not None)  # it may be imported later than the rest
        if _is_hooked(BaseTool.run):
            return
        for base, name, hook in _HOOKS:
            _put(base, name, hook)
        for base, hooks in _BELOW:
            _hook_below(base, hooks)
            _hook_what_comes(base, hooks)
        _threads.install(_step_in_force)


_Hook = Callable[[Callable[..., Any]], Callable[..., Any]]
_Hooks = Mapping[str, _Hook]
_INSTALLED: Final = "__sagaspan_reaches__"
_lock = threading.Lock()


def _is_hooked(method: Any) -> bool:
    return getattr(method, _INSTALLED, None) is method  # a decorated copy of it has the attribute too


def _put(base: Any, name: str, hook: _Hook) -> None:
    hooked = hook(_callable(vars(base)[name]))
    setattr(hooked, _INSTALLED, hooked)
    setattr(base, name, hooked)


def _callable(method: Any) -> Callable[..., Any]:
    """``method`` as a function of its object: what other instrumentations put in its place learns that by binding."""
    if type(method) is FunctionType:  # a wrapper says that it is one, too
        return method

    @functools.wraps(method)
    def unbound(self: Any, *args: Any, **kwargs: Any) -> Any:
        return method.__get__(self, type(self))(*args, **kwargs)

    return unbound


def _hook_below(kind: Any, hooks: _Hooks) -> None:
    """Classes that override what is hooked may never call it."""
    for each in kind.__subclasses__():
        _hook_own(each, hooks)
        _hook_below(each, hooks)


def _hook_own(kind: Any, hooks: _Hooks) -> None:
    for name, hook in hooks.items():
        if name in vars(kind) and not _is_hooked(vars(kind)[name]) and not is_twin(kind):
            _put(kind, name, hook)


def _hook_what_comes(base: Any, hooks: _Hooks) -> None:
    original = base.__init_subclass__.__func__ if "__init_subclass__" in vars(base) else None

    def hooked(cls: Any, /, **options: Any) -> None:
        if original is None:
            super(base, cls).__init_subclass__(**options)
        else:
            original(cls, **options)
        _hook_own(cls, hooks)

    if original is not None:
        hooked = functools.wraps(original)(hooked)
    base.__init_subclass__ = classmethod(cast("Any", hooked))


@dataclass(frozen=True, slots=True)
class _Step:
    """A step of a guarded agent, for the threads that it starts."""

    scope: Scope
    run: Run | None


def _step_in_force() -> _Step | None:
    scope = scope_in_force.get()
    return None if scope is None else _Step(scope, scope.guard.current_run())


def _is_free(target: Any) -> bool:
    if guard_of(target) is not None:
        return False
    return scope_in_force.get() is not None or _threads.started_in() is not None


@contextlib.contextmanager
def _regained() -> Iterator[None]:
    """The scope in force; in a thread that lost it, that of the step which started it, with its run."""
    step: _Step | None = None if scope_in_force.get() is not None else _threads.started_in()
    if step is None:
        yield
        return
    with step.scope.in_force(), contextlib.ExitStack() as stack:
        if step.run is not None and step.scope.guard.current_run() is None:
            step.run.activate()
            stack.callback(step.run.deactivate)
        yield


def _guarded(target: Any) -> Any:
    step = _threads.started_in()
    scope = scope_in_force.get() or (None if step is None else step.scope)
    if scope is None or guard_of(target) is not None:
        return target
    try:
        return scope.tool(target) if isinstance(target, BaseTool) else scope.model(target)
    except SagaspanError as error:
        raise errors.leaving(error) from error.__cause__


def _tool_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(self: BaseTool, *args: Any, **kwargs: Any) -> Any:
        if not _is_free(self):
            return original(self, *args, **kwargs)
        with _regained():
            return invoked(original, _guarded(self), args, kwargs)

    return run


def _atool_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def arun(self: BaseTool, *args: Any, **kwargs: Any) -> Any:
        if not _is_free(self):
            return await original(self, *args, **kwargs)
        with _regained():
            return await ainvoked(original, _guarded(self), args, kwargs)

    return arun


def _model_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_free(self):
            return original(self, *args, **kwargs)
        with _regained():
            return original(_guarded(self), *args, **kwargs)

    return call


def _amodel_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def acall(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_free(self):
            return await original(self, *args, **kwargs)
        with _regained():
            return await original(_guarded(self), *args, **kwargs)

    return acall


def _embedding_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def embed(self: Embeddings, *args: Any, **kwargs: Any) -> Any:
        if not _is_counted(self):
            return original(self, *args, **kwargs)
        with _regained():
            return getattr(_guarded(self), original.__name__)(*args, **kwargs)

    return embed


def _aembedding_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def embed(self: Embeddings, *args: Any, **kwargs: Any) -> Any:
        if not _is_counted(self):
            return await original(self, *args, **kwargs)
        with _regained():
            return await getattr(_guarded(self), original.__name__)(*args, **kwargs)

    return embed


def _is_counted(target: Embeddings) -> bool:
    return _is_free(target) and not is_under_way(target) and not asks_others(target)


def _is_in_a_step(graph: Any) -> bool:
    return scope_in_force.get() is not None and guard_of(graph) is None


def _graph_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    def begins(graph: Any, config: Any) -> None:
        checkpoints.take_up(_run_here(), graph, config)

    return functools.wraps(original)(branches.pieces(original, _is_in_a_step, begins))


def _agraph_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    async def begins(graph: Any, config: Any) -> None:
        await checkpoints.atake_up(_run_here(), graph, config)

    return functools.wraps(original)(branches.apieces(original, _is_in_a_step, begins))


def _run_here() -> Run | None:
    scope = scope_in_force.get()
    return None if scope is None else scope.guard.current_run()


_BELOW: Final[tuple[tuple[Any, _Hooks], ...]] = (
    (BaseTool, {"run": _tool_hook, "arun": _atool_hook}),
    (Embeddings, {name: _aembedding_hook if name.startswith("a") else _embedding_hook for name in METHODS}),
)
_HOOKS: Final[tuple[tuple[Any, str, _Hook], ...]] = (
    (BaseTool, "run", _tool_hook),
    (BaseTool, "arun", _atool_hook),
    (BaseLLM, "generate", _model_hook),
    (BaseLLM, "agenerate", _amodel_hook),
    (BaseLLM, "stream", _model_hook),
    (BaseLLM, "astream", _model_hook),
    (BaseChatModel, "generate", _model_hook),
    (BaseChatModel, "agenerate", _amodel_hook),
    (BaseChatModel, "stream", _model_hook),
    (BaseChatModel, "astream", _model_hook),
    (BaseChatModel, "stream_events", _model_hook),
    (BaseChatModel, "astream_events", _model_hook),
    (Pregel, "stream", _graph_hook),
    (Pregel, "astream", _agraph_hook),
)
