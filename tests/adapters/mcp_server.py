"""A real MCP server: over HTTP in a thread of the test, or over stdio as a program (``python mcp_server.py LOG``)."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from mcp.server.fastmcp import FastMCP
from mcp.shared.exceptions import UrlElicitationRequiredError
from mcp.types import CallToolResult, TextContent


def served(effect: Callable[[str], None]) -> FastMCP:
    """A desk for tickets, all of whose tools have the effect that they are asked for before anything goes wrong."""
    server = FastMCP("desk", log_level="CRITICAL")

    @server.tool()
    def open_ticket(title: str) -> str:
        """Open a ticket."""
        effect(f"open {title}")
        return f"opened {title}"

    @server.tool()
    def close_ticket(title: str) -> str:
        """Close a ticket."""
        effect(f"close {title}")
        return f"closed {title}"

    @server.tool()
    def break_ticket(title: str) -> str:
        """Open a ticket, and fail."""
        effect(f"break {title}")
        raise ValueError("the desk is on fire")

    @server.tool()
    def refuse_ticket(title: str) -> CallToolResult:
        """Say that it failed."""
        effect(f"refuse {title}")
        return CallToolResult(content=[TextContent(type="text", text="the desk is closed")], isError=True)

    @server.tool()
    def drop_ticket(title: str) -> str:
        """Open a ticket, and answer the request itself with an error."""
        effect(f"drop {title}")
        raise UrlElicitationRequiredError([], "the line is dead")

    return server


@contextlib.contextmanager
def over_http(server: FastMCP) -> Iterator[str]:
    """``server`` on the loopback; gives its address."""
    import uvicorn

    config = uvicorn.Config(
        server.streamable_http_app(), port=0, log_level="critical", ws="none", timeout_graceful_shutdown=1
    )
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    try:
        while not running.started:
            assert thread.is_alive()
            time.sleep(0.005)
        port = running.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        running.should_exit = True
        thread.join(60)


if __name__ == "__main__":
    log = Path(sys.argv[1])

    def kept(what: str) -> None:
        with log.open("a") as file:
            file.write(f"{what}\n")

    served(kept).run("stdio")
