"""LangChain and LangGraph under a guard: agents, graphs and single tools, as they are.

Importing this package imports no framework; that happens when an object of one is wrapped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sagaspan_langchain._adapter import LangChainAdapter

if TYPE_CHECKING:
    from sagaspan_langchain._middleware import GuardMiddleware

adapter = LangChainAdapter()

__all__ = ["GuardMiddleware", "LangChainAdapter", "adapter"]


def __getattr__(name: str) -> Any:
    if name != "GuardMiddleware":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sagaspan_langchain._middleware import GuardMiddleware

    return GuardMiddleware
