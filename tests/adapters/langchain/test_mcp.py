"""Tools of a real MCP server through langchain-mcp-adapters: an error that the server answers proves nothing."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.tools import BaseTool, ToolException, tool
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import convert_mcp_tool_to_langchain_tool
from mcp.types import Tool as MCPTool

import tests.adapters.mcp_server as mcp_server
from sagaspan import Guard, OutcomeUnknown, Policy, Retry
from tests.adapters.langchain.scripts import answers, ask, calls_of, model, states, steps_of

LOG: list[str] = []
"""What really happened at the server."""

ARGS = {"title": "a"}
ERRORS = ["break_ticket", "refuse_ticket", "drop_ticket"]
"""Raised by the server's tool, said by it (``isError``), and in place of an answer (a JSON-RPC error)."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with mcp_server.over_http(mcp_server.served(LOG.append)) as url:
        yield url


@pytest.fixture
def log() -> list[str]:
    LOG.clear()
    return LOG


async def tools_at(url: str) -> list[BaseTool]:
    """The tools of the server, as langchain-mcp-adapters gives them."""
    return await MultiServerMCPClient({"desk": {"transport": "streamable_http", "url": url}}).get_tools()


def invoke(guard: Guard, url: str, what: str, policy: Policy, **options: Any) -> dict[str, Any]:
    """Let an agent call one tool of the server, once."""

    async def invoked() -> dict[str, Any]:
        agent = create_agent(model((what, ARGS)), await tools_at(url))
        return await guard.wrap(agent, {what: policy}, run_id="r", **options).ainvoke(ask())

    return asyncio.run(invoked())


@pytest.mark.parametrize("what", ERRORS)
def test_an_error_of_the_server_is_unknown_and_not_sent_again(
    guard: Guard, url: str, log: list[str], what: str
) -> None:
    """The run is held: the server did the work before it answered with the error."""
    policy = Policy(effect="write", retry=Retry(attempts=3, initial_delay=0))
    if what == "drop_ticket":  # no ToolException: langchain-mcp-adapters lets it leave the agent
        with pytest.raises(Exception, match="the line is dead"):
            invoke(guard, url, what, policy)
    else:
        invoke(guard, url, what, policy)
    assert log == [f"{what.removesuffix('_ticket')} a"]
    assert steps_of(guard, "r") == [(what, "unknown")]
    assert states(guard) == {"r": "held"}


def test_the_model_hears_what_the_server_said(guard: Guard, url: str, log: list[str]) -> None:
    """The message is the one that an agent without a guard gets."""
    output = invoke(guard, url, "refuse_ticket", Policy(effect="write"))
    (answer,) = answers(output)
    assert (answer.status, answer.text) == ("error", "the desk is closed")


def test_a_critical_write_in_doubt_holds_its_run(guard: Guard, url: str, log: list[str]) -> None:
    """Its compensation waits until a person or a probe has decided."""
    policy = Policy(critical=True, compensate="close_ticket")
    with pytest.raises(ToolException, match="on fire") as raised:
        invoke(guard, url, "break_ticket", policy)
    assert log == ["break a"]
    assert steps_of(guard, "r") == [("break_ticket", "unknown")]
    assert states(guard) == {"r": "held"}
    assert "undone nothing" not in "".join(getattr(raised.value, "__notes__", ()))


@pytest.mark.parametrize("means", [{"error_means": "failed"}, {"not_applied": (ToolException,)}])
def test_the_policy_says_what_an_error_of_the_server_means(
    guard: Guard, url: str, log: list[str], means: dict[str, Any]
) -> None:
    invoke(guard, url, "break_ticket", Policy(effect="write", retry=Retry(attempts=3, initial_delay=0), **means))
    assert log == ["break a"] * 3
    assert steps_of(guard, "r") == [("break_ticket", "failed")]
    assert states(guard) == {"r": "completed"}


def test_a_read_is_sent_again(guard: Guard, url: str, log: list[str]) -> None:
    invoke(guard, url, "break_ticket", Policy(effect="read", retry=Retry(attempts=3, initial_delay=0)))
    assert log == ["break a"] * 3
    assert states(guard) == {"r": "completed"}


def test_a_tool_of_a_server_over_stdio_alone(guard: Guard, tmp_path: Path) -> None:
    """A tool that is wrapped by itself, of a program that the client starts."""
    log = tmp_path / "log"
    server = {"transport": "stdio", "command": sys.executable, "args": [mcp_server.__file__, str(log)]}

    async def called() -> None:
        found = {one.name: one for one in await MultiServerMCPClient({"desk": server}).get_tools()}
        pay = guard.wrap(found["break_ticket"], {"break_ticket": Policy(key="title")})
        async with guard.run("r"):
            await pay.ainvoke(ARGS)
            with pytest.raises(OutcomeUnknown):
                await pay.ainvoke(ARGS)

    asyncio.run(called())
    assert log.read_text() == "break a\n"


def test_a_server_that_cannot_be_reached_leaves_the_call_unknown(guard: Guard) -> None:
    """The client reports a group of errors, and does not say whether one of them came after the call was sent."""
    found = MCPTool(name="pay", inputSchema={"type": "object", "properties": {"title": {"type": "string"}}})
    connection: Any = {"transport": "streamable_http", "url": "http://127.0.0.1:9/mcp"}
    pay = guard.wrap(convert_mcp_tool_to_langchain_tool(None, found, connection=connection), {"pay": {"key": "title"}})

    async def called() -> None:
        async with guard.run("job", id="r"):
            with pytest.raises(ExceptionGroup):
                await pay.ainvoke(ARGS)

    asyncio.run(called())
    assert steps_of(guard, "r") == [("pay", "unknown")]


def test_a_tool_exception_of_an_own_tool_proves_that_nothing_happened(guard: Guard) -> None:
    """The ``raise`` is in the author's own code, whichever class the error has."""
    attempts = []

    @tool
    def charge(amount: int) -> str:
        """Charge a card."""
        attempts.append(amount)
        raise ToolException("no such card")

    charge.handle_tool_error = True
    agent = create_agent(model(("charge", {"amount": 1})), [charge])
    policies = {"charge": Policy(effect="write", retry=Retry(attempts=3, initial_delay=0))}
    guard.wrap(agent, policies, run_id="r").invoke(ask())
    assert attempts == [1, 1, 1]
    assert [str(call.state) for call in calls_of(guard, "r")] == ["failed"]
