"""Agents without a framework: plain callables, guarded one by one or as a list."""

from __future__ import annotations

from sagaspan_functions._adapter import FunctionsAdapter

adapter = FunctionsAdapter()

__all__ = ["FunctionsAdapter", "adapter"]
