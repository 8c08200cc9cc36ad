"""Agents without a framework: plain callables, clients of models, and the tool calls that a model asks for."""

from __future__ import annotations

from sagaspan_functions._adapter import FunctionsAdapter
from sagaspan_functions._tools import FunctionTools

adapter = FunctionsAdapter()

__all__ = ["FunctionTools", "FunctionsAdapter", "adapter"]
