"""``GuardMiddleware``: ``guard.wrap`` for people who build their agent with ``create_agent(middleware=[...])``.

LangChain tells a middleware neither when an invocation begins nor that it failed, so from inside a run could be opened
but never ended. The middleware is therefore only the word that the agent shall be guarded: the graph that is compiled
with it is wrapped right there, before anybody has it.
"""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

from langchain.agents.middleware import AgentMiddleware
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel

from sagaspan import ConfigurationError, Guard
from sagaspan.adapters import PolicyBook
from sagaspan_langchain import _compat
from sagaspan_langchain import _errors as errors
from sagaspan_langchain._marks import guard_of
from sagaspan_langchain._reach import scope_in_force

_DEEPEST: Final = 12
"""How many functions around each other are read: LangChain puts one or two around a middleware's, tracing others."""
_FRAMEWORKS: Final = ("langchain", "langsmith", __package__)
"""Where they are from; what traces a function goes by the module of that."""


class GuardMiddleware(AgentMiddleware[Any, Any, Any]):
    """Guards the agent it is given to: ``create_agent(model, tools, middleware=[GuardMiddleware(guard, {...})])``.

    The arguments are those of ``guard.wrap``, and so is all that the agent does from then on: its runs, approvals,
    budgets and rollbacks. Its place among other middleware does not matter. A policy for a tool that the agent does
    not have raises ``ConfigurationError`` in ``create_agent``.
    """

    def __init__(
        self,
        guard: Guard,
        policies: Any = None,
        *,
        name: str | None = None,
        run_id: str | None = None,
        budget: Any = None,
        on_interrupt: Any = None,
    ) -> None:
        super().__init__()
        _compat.check()
        PolicyBook(policies, source="GuardMiddleware(policies)")  # refused here, where it is written
        self._guard = guard
        self._wrap = functools.partial(
            guard.wrap, policies=policies, name=name, run_id=run_id, budget=budget, on_interrupt=on_interrupt
        )
        _install()

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Sees to it that the agent is guarded indeed; by this method it is found in a graph."""
        self._check()
        return handler(request)

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """As ``wrap_model_call``, in a running loop."""
        self._check()
        return await handler(request)

    def around(self, graph: Any) -> Any:
        """``graph``, which was compiled with this middleware, guarded."""
        return self._wrap(graph)

    def _check(self) -> None:
        scope = scope_in_force.get()
        if scope is None or scope.guard is not self._guard:
            raise errors.leaving(
                ConfigurationError(
                    "this agent has a GuardMiddleware, but was not built by create_agent as that is known: it would "
                    "run unguarded; leave the middleware out, and give the agent to guard.wrap"
                )
            )


def _install() -> None:
    """Let graphs that are compiled with such a middleware be guarded; once a process."""
    kind: Any = StateGraph
    with _lock:
        original = kind.compile
        if getattr(original, _INSTALLED, False):
            return

        @functools.wraps(original)
        def compiled(self: Any, *args: Any, **options: Any) -> Any:
            graph = original(self, *args, **options)
            middleware = None if guard_of(graph) is not None else next(_middleware_of(graph), None)
            return graph if middleware is None else middleware.around(graph)

        setattr(compiled, _INSTALLED, True)
        kind.compile = compiled


_INSTALLED: Final = "__sagaspan_guards__"
_lock = threading.Lock()


def _middleware_of(graph: Any) -> Iterator[GuardMiddleware]:
    """The middleware whose methods the nodes of ``graph`` itself call: in the closures that LangChain made of them."""
    seen: set[int] = set()
    for node in graph.nodes.values():
        for function in (getattr(node.bound, name, None) for name in ("func", "afunc")):
            yield from _held_by(function, seen, 0)


def _held_by(value: Any, seen: set[int], depth: int) -> Iterator[GuardMiddleware]:
    if id(value) in seen or depth > _DEEPEST or isinstance(value, Pregel):
        return
    seen.add(id(value))
    if isinstance(value, types.MethodType):
        if isinstance(value.__self__, GuardMiddleware):
            yield value.__self__
    elif isinstance(value, functools.partial):
        yield from _held_by(value.func, seen, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _held_by(item, seen, depth + 1)
    elif isinstance(value, types.FunctionType) and value.__module__.partition(".")[0] in _FRAMEWORKS:
        for cell in value.__closure__ or ():
            try:
                inner = cell.cell_contents
            except ValueError:  # not filled yet
                continue
            yield from _held_by(inner, seen, depth + 1)
