"""What a tool returns, or an MCP server answers, to say that it failed: as errors, which say what the ledger needs."""

from __future__ import annotations

from typing import Any

from sagaspan import NotApplied
from sagaspan_crewai._compat import ToolFailure, ToolFailureReason


class ToolSaysFailed(NotApplied):
    """A tool returned a ``ToolFailure``: its own word that it did not do what it was asked."""

    def __init__(self, failure: ToolFailure) -> None:
        super().__init__(failure.as_agent_message())
        self.failure = failure


class McpError(Exception):
    """An MCP server answered with an error, which does not say whether anything happened."""

    def __init__(self, failure: ToolFailure) -> None:
        super().__init__(failure.as_agent_message())
        self.failure = failure


class NotReached(NotApplied):
    """An MCP server could not be connected to, so it was asked for nothing."""


def checked(result: Any) -> Any:
    """``result`` of a body; raises ``ToolSaysFailed`` or ``McpError`` for one that says that it failed."""
    if isinstance(result, ToolFailure):
        raise McpError(result) if result.reason is ToolFailureReason.MCP_ERROR else ToolSaysFailed(result)
    return result
