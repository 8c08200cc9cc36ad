"""Tools of MCP servers: a call is sent once, and what the server answers with an error is one.

CrewAI's client sends a call that is not answered in time again, three times in all. And of the three kinds of such
tools two drop the mark by which a server says that it failed, and give its words as if they were a result.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any, Final
from urllib.parse import urlsplit

from sagaspan import ConfigurationError
from sagaspan_crewai import _compat
from sagaspan_crewai._compat import ToolFailure, ToolFailureReason
from sagaspan_crewai._failures import McpError, NotReached

_log: Final = logging.getLogger("sagaspan")
_ADAPTED: Final = frozenset({"crewai_tools.adapters.mcp_adapter", "mcpadapt.crewai_adapter"})
"""Where the classes of ``MCPServerAdapter`` are made, one for each tool."""
_STARTS_OTHERS: Final = re.compile(
    r"(python|pypy)[\d.]*(\.exe)?|node|npx|npm|pnpm|bunx?|deno|uvx?|pipx|docker|podman|env|sh|bash|run|exec|tool|dlx|x"
)
"""Programs, and words after them, that only start the program that is meant."""
_SUFFIX: Final = re.compile(r"(?<=.)(@[\w.-]+|\.(py|m?js|ts|exe|sh))$")
_CALLS: Final = "func"
"""What those call the function that asks the server."""


def asking(tool: Any) -> Callable[..., Any] | None:
    """What does the work of ``tool`` if an MCP server does it, and raises for its errors; None for another tool.

    Raises ``ConfigurationError`` for one of a kind that has changed, whose errors nobody would see.
    """
    if isinstance(tool, _compat.MCPNativeTool):
        return _native(tool)
    if isinstance(tool, _compat.MCPToolWrapper):
        return _native(_compat.native_mcp_tool(tool))
    if _is_adapted(tool):
        return _adapted(tool)
    return None


def names_of(tool: Any) -> tuple[str, ...]:
    """What the server calls ``tool``, where CrewAI calls it something else."""
    return (tool.original_tool_name,) if isinstance(tool, _compat.MCPNativeTool | _compat.MCPToolWrapper) else ()


def title_of(tool: Any) -> str:
    """Return what people are shown of a tool of an MCP server, ``SERVER/TOOL``; empty for another tool.

    CrewAI puts the whole address or command line before the tool's own name, cuts that and appends a hash.
    """
    if not names_of(tool):
        return ""
    if isinstance(tool, _compat.MCPToolWrapper):
        server = _short_address(str(tool.mcp_server_params.get("url") or "")) or tool.server_name
    else:
        server = tool.server_reference or _short_name(tool)
    return f"{server}/{tool.original_tool_name}"


def _short_name(tool: Any) -> str:
    transport = tool._client_factory().transport  # noqa: SLF001 - see _compat; it connects to nothing
    if (url := getattr(transport, "url", None)) is not None:
        return _short_address(url) or tool.server_name
    words = [re.split(r"[\\/]", word)[-1] for word in (transport.command, *transport.args) if word[:1] != "-"]
    program = next((word for word in words if word and not _STARTS_OTHERS.fullmatch(word.lower())), words[0])
    return _SUFFIX.sub("", program) or program


def _short_address(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]


# -- tools with a client of CrewAI's ------------------------------------------------------------------------------


class _Client:
    """A client that sends a call once, and whose answer stands whatever becomes of the line after it."""

    def __init__(self, client: Any) -> None:
        client.max_retries = 1
        self._client = client

    async def connect(self) -> None:
        try:
            await self._client.connect()
        except Exception as error:
            raise NotReached(f"the MCP server could not be reached, so it was asked for nothing: {error}") from error

    async def call_tool_result(self, name: str, arguments: dict[str, Any]) -> Any:
        return await self._client.call_tool_result(name, arguments)

    async def disconnect(self) -> None:
        try:
            await self._client.disconnect()
        except Exception as error:  # noqa: BLE001 - it has answered, or failed, before
            _log.debug("hanging up on an MCP server failed: %r", error)  # on Python 3.11 it mostly does


def _native(tool: Any) -> Callable[..., Any]:
    def asked(**arguments: Any) -> Any:
        copy = tool.model_copy()  # the tool itself stays as it is, for others
        vars(copy)["_client_factory"] = lambda: _Client(tool._client_factory())  # noqa: SLF001 - see _compat
        try:
            return type(copy)._run(copy, **arguments)  # noqa: SLF001 - its body
        except RuntimeError as error:
            if isinstance(error.__cause__, NotReached):
                raise error.__cause__ from error.__cause__.__cause__
            raise

    return asked


# -- tools of crewai-tools ----------------------------------------------------------------------------------------


def _is_adapted(tool: Any) -> bool:
    return type(tool).__module__ in _ADAPTED


def _adapted(tool: Any) -> Callable[..., Any]:
    method = type(tool)._run  # noqa: SLF001 - its body
    names = method.__code__.co_freevars
    if _CALLS not in names:
        raise ConfigurationError(
            f"the tool {tool.name!r} of an MCP server is of a {type(tool).__module__} that sagaspan does not know: "
            "nobody would see which of the server's answers are errors; give the agent the server itself "
            "(mcps=[...]), or install the crewai-tools that goes with your crewai"
        )
    cells = tuple(
        CellType(_checked(cell.cell_contents)) if name == _CALLS else cell
        for name, cell in zip(names, method.__closure__, strict=True)
    )
    body = FunctionType(method.__code__, method.__globals__, method.__name__, method.__defaults__, cells)
    body.__kwdefaults__ = method.__kwdefaults__
    return lambda **arguments: body(tool, **arguments)


def _checked(call: Callable[..., Any]) -> Callable[..., Any]:
    def checked(arguments: Any) -> Any:
        result = call(arguments)
        if getattr(result, "isError", False):
            said = "\n".join(str(getattr(part, "text", part)) for part in result.content)
            raise McpError(ToolFailure(message=said or "an error", reason=ToolFailureReason.MCP_ERROR))
        return result

    return checked
