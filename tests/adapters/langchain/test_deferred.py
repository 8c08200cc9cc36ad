"""Deferred tools of an agent: the model is told that they are scheduled, and they are sent when the run completes."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain.tools import InjectedState, ToolRuntime
from langchain_core.callbacks import CallbackManagerForToolRun
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolCallId, Tool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from sagaspan import ConfigurationError, Guard
from tests.adapters.langchain.scripts import answers, ask, model, on, states, steps_of
from tests.conftest import Worker

World = list[Any]


class Declined(Exception):
    """The bank says no."""


@pytest.fixture
def tools(world: World) -> list[BaseTool]:
    """A mail that can wait, a booking that can be undone, and a question."""

    @tool
    def mail(to: str, text: str = "hello") -> str:
        """Send a mail."""
        if to == "nobody":
            raise Declined(to)
        world.append(("mail", to, text))
        return "sent"

    @tool
    def book(city: str) -> str:
        """Book."""
        world.append(("book", city))
        if city == "Atlantis":
            raise Declined(city)
        return city

    @tool
    def confirm(question: str) -> str:
        """Ask a person."""
        return str(interrupt(question))

    return [mail, book, confirm]


POLICIES = {"mail": {"defer": True}, "book": {"compensate": lambda city: None}}
STEPS = (("mail", {"to": "ann"}), ("book", {"city": "Rome"}), ("mail", {"to": "bob", "text": "bye"}))


@pytest.mark.parametrize("is_async", [False, True])
def test_the_model_reads_that_it_is_scheduled(
    guard: Guard, tools: list[BaseTool], world: World, is_async: bool
) -> None:
    """It gets data like any other result; the mails go out when the invocation ends, in order."""
    agent = guard.wrap(create_agent(model(*STEPS), tools), POLICIES, run_id="r")
    output = asyncio.run(agent.ainvoke(ask())) if is_async else agent.invoke(ask())
    told = [json.loads(message.content) for message in answers(output) if message.name == "mail"]
    assert [answer["status"] for answer in told] == ["scheduled", "scheduled"]
    assert [guard.calls.get(answer["record"]).state for answer in told] == ["done", "done"]
    assert {message.status for message in answers(output)} == {"success"}
    assert world == [("book", "Rome"), ("mail", "ann", "hello"), ("mail", "bob", "bye")]
    assert states(guard) == {"r": "completed"}


def test_an_agent_that_fails_sends_nothing(guard: Guard, tools: list[BaseTool], world: World) -> None:
    """What it scheduled is dropped with what it did."""
    agent = guard.wrap(create_agent(model(*STEPS, ("book", {"city": "Atlantis"})), tools), POLICIES, run_id="r")
    with pytest.raises(Declined):
        agent.invoke(ask())
    assert world == [("book", "Rome"), ("book", "Atlantis")]
    assert [state for name, state in steps_of(guard, "r") if name == "mail"] == ["refused", "refused"]


def test_a_conversation_that_waits_keeps_it(guard: Guard, tools: list[BaseTool], world: World) -> None:
    """Interrupted, the turn is paused and nothing is sent; its answer completes the turn, and each goes out once."""
    agent = create_agent(
        model(*STEPS[:2], ("confirm", {"question": "sure?"}), STEPS[2]), tools, checkpointer=InMemorySaver()
    )
    agent = guard.wrap(agent, POLICIES)
    agent.invoke(ask(), on("t"))
    assert (states(guard), world) == ({"t/1": "paused"}, [("book", "Rome")])
    agent.invoke(Command(resume="yes"), on("t"))
    assert states(guard) == {"t/1": "completed"}
    assert world == [("book", "Rome"), ("mail", "ann", "hello"), ("mail", "bob", "bye")]


def test_a_mail_that_cannot_be_sent_is_the_callers_error(guard: Guard, tools: list[BaseTool], world: World) -> None:
    """The agent has ended well; its invocation raises what the tool raised, and the run is held."""
    agent = guard.wrap(create_agent(model(STEPS[1], ("mail", {"to": "nobody"})), tools), POLICIES, run_id="r")
    with pytest.raises(Declined) as caught:
        agent.invoke(ask())
    assert "failed, so it was not sent" in caught.value.__notes__[0]
    assert (states(guard), world) == ({"r": "held"}, [("book", "Rome")])


def test_every_kind_of_tool_is_sent_as_langchain_would_call_it(guard: Guard, world: World) -> None:
    """Methods of a class, tools of one input, artifacts, async bodies, the idempotency key."""

    class Method(BaseTool):
        name: str = "method"
        description: str = "A method."

        def _run(self, to: str, run_manager: CallbackManagerForToolRun | None = None) -> str:
            world.append(("method", self.name, to))
            return to

    @tool(response_format="content_and_artifact")
    def artifact(to: str) -> tuple[str, Any]:
        """With an artifact."""
        world.append(("artifact", to))
        return to, object()

    @tool
    async def late(to: str) -> str:
        """Async."""
        await asyncio.sleep(0)
        world.append(("late", to))
        return to

    @tool
    def keyed(to: str, idempotency_key: str = "") -> str:
        """With a key."""
        world.append(("keyed", to, len(idempotency_key)))
        return to

    single = Tool(name="single", description="One input.", func=lambda text: world.append(("single", text)))
    made = [Method(), artifact, late, keyed, single]
    steps = [(one.name, {"__arg1": "x"} if one is single else {"to": "x"}) for one in made]
    policies = {one.name: {"defer": True} for one in made}
    agent = guard.wrap(create_agent(model(*steps), made), policies, run_id="r")
    output = asyncio.run(agent.ainvoke(ask()))
    assert [json.loads(message.content)["tool"] for message in answers(output)] == [one.name for one in made]
    assert world == [("method", "method", "x"), ("artifact", "x"), ("late", "x"), ("keyed", "x", 40), ("single", "x")]
    assert set(steps_of(guard, "r")) == {(one.name, "done") for one in made}


def test_what_only_langchain_fills_cannot_wait(guard: Guard) -> None:
    """State, config, runtime and the call's id are of the moment: refused when it is wrapped, by name."""

    @tool
    def state(to: str, state: Annotated[dict, InjectedState]) -> None:
        """State."""

    @tool
    def config(to: str, config: RunnableConfig) -> None:
        """Config."""

    @tool
    def runtime(to: str, runtime: ToolRuntime) -> None:
        """Runtime."""

    @tool
    def tool_id(to: str, tool_id: Annotated[str, InjectedToolCallId]) -> None:
        """Id."""

    for one in (state, config, runtime, tool_id):
        with pytest.raises(ConfigurationError, match=f"LangChain does not fill '{one.name}'"):
            guard.wrap(one, {one.name: {"defer": True}})


AGENT = """
from langchain.agents import create_agent
from langchain_core.tools import tool
sys.path.insert(0, os.environ["TEST_ROOT"])
from tests.adapters.langchain.scripts import ask, model
@tool
def mail(to: str) -> str:
    "Send a mail."
    effect(f"mail-{to}")
    return to
agent = create_agent(model(("mail", {"to": "ann"}), ("mail", {"to": "bob"})), [mail])
agent = guard.wrap(agent, {"mail": {"defer": True}}, run_id="a")
"""


def test_another_process_sends_what_an_agent_deferred(
    worker: Worker, store_url: str, pytestconfig: pytest.Config
) -> None:
    """Killed between the decision and the first mail, ``recover`` where the agent is wrapped too sends both."""
    root = {"TEST_ROOT": str(pytestconfig.rootpath)}
    crash = """
from sagaspan.stores.sqlite import SqliteStore
save = SqliteStore.commit
def commit(self, changes, *, synced):
    saved = save(self, changes, synced=synced)
    if any(getattr(change, "audit", None) and change.audit.event == "run.finish" for change in changes):
        die()
    return saved
SqliteStore.commit = commit
agent.invoke(ask())
"""
    died = worker.run(AGENT + crash, **root)
    assert died.returncode == -9, died.stderr
    assert worker.effects == []
    done = worker.run(AGENT + "print(*(run.id for run in guard.recover().completed))", **root)
    assert (done.stdout, worker.effects) == ("a\n", ["mail-ann", "mail-bob"]), done.stderr
