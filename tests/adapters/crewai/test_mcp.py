"""Tools of a real MCP server, by each way in which CrewAI has them: sent once, refused unsent, errors never done."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from crewai import Crew
from crewai.mcp import MCPServerHTTP, MCPServerStdio
from crewai.mcp.tool_resolver import MCPToolResolver
from crewai.tools import tool
from crewai.tools.mcp_tool_wrapper import MCPToolWrapper
from crewai.utilities.string_utils import sanitize_tool_name
from pydantic import BaseModel

import tests.adapters.mcp_server as mcp_server
from sagaspan import ApprovalPending, CompensationFailed, Guard, Policy
from sagaspan.webhooks import question_of
from tests.adapters.crewai.scripts import agent_of, ask, crew_of, model_of
from tests.adapters.crewai.test_models import job
from tests.adapters.crewai.test_tools import states
from tests.cli.conftest import Sagaspan, home, sagaspan  # noqa: F401 - fixtures

LOG: list[str] = []
"""What really happened at the server."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with mcp_server.over_http(mcp_server.served(LOG.append)) as url:
        yield url


@pytest.fixture
def log() -> list[str]:
    LOG.clear()
    return LOG


class Ticket(BaseModel):
    """The arguments of every tool."""

    title: str


class Desk:
    """How an agent has the tools of the server, and what it calls them there."""

    def __init__(self, url: str, kind: str) -> None:
        self.url = url
        self.kind = kind

    def name(self, what: str) -> str:
        server = "desk" if self.kind == "address" else MCPToolResolver._extract_server_name(self.url)
        return sanitize_tool_name(f"{server}_{what}")

    def crew(self, script: list[tuple[str, dict[str, Any]]], native: bool = True, **agent: Any) -> Crew:
        lines = [ask(self.name(what), **arguments) for what, arguments in script]
        if self.kind == "server":
            clerk = agent_of(lines, agent.pop("tools", ()), native, mcps=[MCPServerHTTP(url=self.url)], **agent)
            return Crew(agents=[clerk], tasks=[job(clerk)])
        wanted = dict.fromkeys(what for what, _ in script)
        return crew_of(lines, [*(self.tool(what) for what in wanted), *agent.pop("tools", ())], native, agent=agent)

    def tool(self, what: str) -> MCPToolWrapper:
        """As ``mcps=["https://..."]`` makes it."""
        return MCPToolWrapper({"url": self.url}, what, {"args_schema": Ticket}, "desk")


@pytest.fixture(params=["server", "address"])
def desk(url: str, log: list[str], request: pytest.FixtureRequest) -> Desk:
    return Desk(url, request.param)


def test_a_call_reaches_the_server_once(guard: Guard, log: list[str], desk: Desk, native: bool) -> None:
    """Also when the model asks for it twice, and when the run is resumed."""
    for _ in range(2):
        crew = desk.crew([("open_ticket", {"title": "a"})] * 2, native)
        wrapped = guard.wrap(crew, {"open_ticket": Policy(effect="write")}, run_id="monday")
        assert wrapped.kickoff().raw == "done"
        assert "opened a" in model_of(crew).heard
    assert log == ["open a"]
    assert states(guard) == [(desk.name("open_ticket"), "done")]


@pytest.mark.parametrize("what", ["break_ticket", "refuse_ticket", "drop_ticket"])
def test_an_error_of_the_server_is_unknown(guard: Guard, log: list[str], desk: Desk, what: str) -> None:
    """Raised by the tool, said by it, or in place of an answer, where CrewAI's client would send the call again."""
    crew = desk.crew([(what, {"title": "a"})])
    assert guard.wrap(crew).kickoff().raw == "done"
    assert log == [f"{what.removesuffix('_ticket')} a"]
    assert states(guard) == [(desk.name(what), "unknown")]
    assert "forbidden" in model_of(crew).heard


def test_an_error_of_the_server_is_what_the_policy_says(guard: Guard, log: list[str], desk: Desk) -> None:
    crew = desk.crew([("break_ticket", {"title": "a"})])
    guard.wrap(crew, {"break_ticket": Policy(error_means="failed")}).kickoff()
    assert log == ["break a"]
    assert states(guard) == [(desk.name("break_ticket"), "failed")]


def test_a_write_that_is_in_doubt_holds_the_run(guard: Guard, log: list[str], desk: Desk) -> None:
    crew = desk.crew([("break_ticket", {"title": "a"})] * 2)
    guard.wrap(crew, {"break_ticket": Policy(effect="write")}).kickoff()
    assert log == ["break a"]
    assert [str(run.status) for run in guard.runs.list()] == ["held"]


def test_a_denied_call_never_reaches_the_server(guard: Guard, log: list[str], desk: Desk) -> None:
    crew = desk.crew([("open_ticket", {"title": "a"})])
    with guard.override(approver="auto-deny"):
        assert guard.wrap(crew, {"open_ticket": Policy(approve=True)}).kickoff().raw == "done"
    assert log == []
    assert "ApprovalDenied" in model_of(crew).heard


def test_a_gated_call_waits_and_is_sent_once(guard: Guard, log: list[str], desk: Desk) -> None:
    def again() -> Any:
        crew = desk.crew([("open_ticket", {"title": "a"})])
        return guard.wrap(crew, {"open_ticket": Policy(approve="title == 'a'")}, run_id="monday").kickoff()

    with pytest.raises(ApprovalPending) as pending:
        again()
    assert log == []
    guard.approvals.approve(pending.value.approval_id)
    assert again().raw == "done"
    assert log == ["open a"]


def test_a_crew_that_is_not_wrapped_asks_as_ever(log: list[str], url: str) -> None:
    """And gets the words of an error as CrewAI gives them."""
    crew = Desk(url, "address").crew([("break_ticket", {"title": "a"})])
    crew.kickoff()
    assert log == ["break a"]
    assert "the desk is on fire" in model_of(crew).heard
    assert "status" not in model_of(crew).heard


def test_a_server_that_cannot_be_reached_was_asked_for_nothing(guard: Guard) -> None:
    """So the call has failed, and holds nothing."""
    crew = Desk("http://127.0.0.1:9/mcp", "address").crew([("open_ticket", {"title": "a"})])
    guard.wrap(crew, {"open_ticket": Policy(effect="write")}).kickoff()
    assert states(guard) == [("desk_open_ticket", "failed")]
    assert [str(run.status) for run in guard.runs.list()] == ["completed"]


def test_a_tool_of_the_server_undoes(guard: Guard, log: list[str], desk: Desk) -> None:
    """Named as the server does, also where CrewAI has yet to ask for its tools."""
    policies = {"open_ticket": Policy(compensate="close_ticket"), "pay": Policy(critical=True)}
    with pytest.raises(ZeroDivisionError):
        guard.wrap(failing_after_a_ticket(desk, "close_ticket"), policies).kickoff()
    assert log == ["open a", "close a"]
    assert [str(run.status) for run in guard.runs.list()] == ["compensated"]


def test_an_error_while_it_undoes_is_no_compensation(guard: Guard, log: list[str], url: str) -> None:
    policies = {"open_ticket": Policy(compensate="refuse_ticket"), "pay": Policy(critical=True)}
    with pytest.raises(CompensationFailed, match="NOT undone, a person must look: desk_open_ticket"):
        guard.wrap(failing_after_a_ticket(Desk(url, "address"), "refuse_ticket"), policies).kickoff()
    assert log[:2] == ["open a", "refuse a"]
    assert ("desk_open_ticket", "compensation_failed") in states(guard)


def failing_after_a_ticket(desk: Desk, undo: str) -> Crew:
    @tool("pay")
    def pay(amount: int) -> str:
        """Pay."""
        raise ZeroDivisionError("no card")

    tools = [pay] if desk.kind == "server" else [pay, desk.tool(undo)]
    crew = desk.crew([("open_ticket", {"title": "a"})], tools=tools)
    model_of(crew)._script.insert(1, ask("pay", amount=1))
    return crew


def test_a_server_over_stdio_is_asked_once(guard: Guard, tmp_path: Path) -> None:
    """A program that CrewAI starts: once to look, once for the call."""
    log = tmp_path / "log"
    server = MCPServerStdio(command=sys.executable, args=[mcp_server.__file__, str(log)], cache_tools_list=True)
    name = sanitize_tool_name(f"{sys.executable}_{mcp_server.__file__}_{log}_break_ticket")
    clerk = agent_of([ask(name if name[0].isalpha() else f"mcp_{name}", title="a")], mcps=[server])
    assert guard.wrap(Crew(agents=[clerk], tasks=[job(clerk)])).kickoff().raw == "done"
    assert log.read_text().split("\n") == ["break a", ""]
    ((_, state),) = states(guard)
    assert state == "unknown"


def over_stdio(tmp_path: Path) -> tuple[MCPServerStdio, str]:
    """The server as a program, and what CrewAI calls its ``open_ticket``: a command line with a hash."""
    server = MCPServerStdio(command=sys.executable, args=[mcp_server.__file__, str(tmp_path / "log")])
    line = MCPToolResolver._ensure_letter_prefix(f"{server.command}_{'_'.join(server.args)}")
    return server, sanitize_tool_name(f"{line}_open_ticket")


def test_people_see_the_short_name_of_a_server_and_the_tools_own(
    guard: Guard,
    tmp_path: Path,
    sagaspan: Sagaspan,  # noqa: F811
) -> None:
    """In approvals, status, lists, notices and webhooks: never the command line with a hash that CrewAI makes of it."""
    server, hashed = over_stdio(tmp_path)
    store = ("--store", guard._store.url)

    def kickoff() -> Any:
        clerk = agent_of([ask(hashed, title="a")], mcps=[server])
        crew = Crew(agents=[clerk], tasks=[job(clerk)])
        return guard.wrap(crew, {"mcp_server/open_*": Policy(effect="write", approve=True)}, run_id="monday").kickoff()

    with pytest.raises(ApprovalPending) as pending:
        kickoff()
    request = guard.approvals.get(pending.value.approval_id)
    assert request is not None
    assert (request.tool, request.title) == (hashed, "mcp_server/open_ticket")
    assert question_of(request)["title"] == "mcp_server/open_ticket"
    shown = [
        request.text, *(sagaspan(*words, *store).out for words in (
            ("status",), ("approvals", "list"), ("approvals", "list", "--tool", "open_ticket"),
            ("approvals", "show", request.id), ("show", request.id), ("runs", "show", "monday"),
        )),
    ]  # fmt: skip
    guard.approvals.approve(request.id)
    kickoff()
    (call,) = [one for one in guard.calls.list(open=False) if one.tool == hashed]
    shown += [
        sagaspan(*words, *store).out for words in (
            ("calls", "list", "--all", "--tool", "mcp_server/open_ticket"), ("show", call.id),
            ("runs", "show", "monday"),
        )
    ]  # fmt: skip
    for text in shown:
        assert "mcp_server/open_ticket" in text
        assert hashed not in text


def test_an_error_is_none_of_the_results_of_crewai_tools(guard: Guard, log: list[str], url: str) -> None:
    """Whose ``MCPServerAdapter`` drops what marks it."""
    tools = pytest.importorskip("crewai_tools", reason="install crewai-tools[mcp]")
    with tools.MCPServerAdapter({"url": url, "transport": "streamable-http"}) as found:
        crew = crew_of([ask("open_ticket", title="a")] * 2 + [ask("refuse_ticket", title="a")], list(found))
        policies = {"open_ticket": Policy(effect="write")}
        assert guard.wrap(crew, policies).kickoff().raw == "done"
        assert log == ["open a", "refuse a"]
        assert states(guard) == [("open_ticket", "done"), ("refuse_ticket", "unknown")]
        assert "opened a" in model_of(crew).heard
        assert found["open_ticket"].run(title="b") == "opened b"  # by itself it is as it was
