"""LangChain and LangGraph under a guard: agents, graphs and single tools, as they are.

Importing this package imports no framework; that happens when an object of one is wrapped.
"""

from __future__ import annotations

from sagaspan_langchain._adapter import LangChainAdapter

adapter = LangChainAdapter()

__all__ = ["LangChainAdapter", "adapter"]
