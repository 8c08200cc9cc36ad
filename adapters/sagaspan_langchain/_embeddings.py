"""Embeddings under a guard: what is asked of a provider is reserved before it is sent.

LangChain's embeddings return vectors and nothing else, so a request is booked with the most that it can have used.
Those that only keep what others embed (a cache) are none themselves: the ones behind them are asked, and counted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

from langchain_core.embeddings import Embeddings

from sagaspan import Guard, semconv
from sagaspan.adapters import LlmCall
from sagaspan.llm.demands import embeddings_demand
from sagaspan_langchain._marks import guard_of, subclass, twin

METHODS: Final = ("embed_documents", "embed_query", "aembed_documents", "aembed_query")
_asked: ContextVar[Any] = ContextVar("sagaspan_langchain_embeddings", default=None)
"""The state of the embeddings whose request is under way: one of their methods may call another."""


def guarded_embeddings(guard: Guard, target: Embeddings) -> Embeddings:
    """``target`` with every request metered; one that is guarded already stays as it is."""
    if guard_of(target) is not None:
        return target
    guarded: Embeddings = twin(target, _class_of(guard, type(target)))
    return guarded


def asks_others(target: Embeddings) -> bool:
    """Whether ``target`` holds embeddings that it asks instead of a provider."""
    return any(isinstance(held, Embeddings) for held in getattr(target, "__dict__", {}).values())


def is_under_way(target: Embeddings) -> bool:
    """Whether this is within a request that ``target`` makes and that is counted."""
    return _asked.get() is getattr(target, "__dict__", target)


def name_of(target: Embeddings) -> str:
    """The model that is asked for, or what asks for it."""
    names = (getattr(target, name, None) for name in ("model", "model_name"))
    return next((name for name in names if isinstance(name, str) and name), type(target).__name__)


@functools.lru_cache(1000)
def _class_of(guard: Guard, base: type[Embeddings]) -> type[Embeddings]:
    members: dict[str, Any] = {}
    for name in METHODS:
        method = getattr(base, name)
        # LangChain's own asks one of the others.
        if method is not getattr(Embeddings, name):
            members[name] = (_awaited if name.startswith("a") else _called)(guard, method)
    made: type[Embeddings] = subclass(guard, base, members)
    return made


def _begun(guard: Guard, model: Embeddings, given: Any) -> LlmCall:
    demand = embeddings_demand({"input": given})
    return guard.llm_call(name_of(model), demand=demand, operation=semconv.OPERATION_EMBEDDINGS)


def _called(guard: Guard, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def embed(self: Embeddings, given: Any, *args: Any, **options: Any) -> Any:
        own = twin(self, type(self).__base__)
        with _begun(guard, self, given):
            token = _asked.set(own.__dict__)
            try:
                return method(own, given, *args, **options)
            finally:
                _asked.reset(token)

    return embed


def _awaited(guard: Guard, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    async def embed(self: Embeddings, given: Any, *args: Any, **options: Any) -> Any:
        own = twin(self, type(self).__base__)
        async with _begun(guard, self, given):
            token = _asked.set(own.__dict__)
            try:
                return await method(own, given, *args, **options)
            finally:
                _asked.reset(token)

    return embed
