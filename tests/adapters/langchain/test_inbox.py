"""Answers as Agent Inbox sends them: to a question in LangChain's format, and in its own older one."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt
from pydantic import ValidationError

from sagaspan import Guard
from tests.adapters.langchain.scripts import answers, ask, model, on, states

World = list[Any]
PAY = {"to": "A", "amount": 5, "tags": ["x"], "urgent": False, "note": None}
SHOWN = {"action": "pay", "args": PAY}
EDITED = {"action": "pay", "args": {**PAY, "to": "B", "amount": "4", "tags": '["y", "z"]', "urgent": "true"}}
DONE = {"to": "B", "amount": 4, "tags": ["y", "z"], "urgent": True, "note": None}
TOUCHED = {"action": "pay", "args": {**PAY, "tags": '["x"]', "amount": "5", "note": "null"}}
OLDER: dict[str, tuple[Any, dict[str, Any] | str]] = {
    "accept": ({"type": "accept", "args": SHOWN}, PAY),
    "accept, every field as text": ({"type": "accept", "args": TOUCHED}, PAY),
    "accept, and nothing": ({"type": "accept", "args": None}, PAY),
    "edit": ({"type": "edit", "args": EDITED}, DONE),
    "respond": ({"type": "response", "args": "too dear"}, "too dear"),
    "ignore": ({"type": "ignore", "args": None}, "ApprovalDenied"),
}
NEWER = {"accept": "approve", "response": "reject"}
WRONG: dict[str, Any] = {
    "an accept of what was shown before": [{"type": "accept", "args": {"action": "pay", "args": {**PAY, "amount": 7}}}],
    "an accept of another tool": {"decisions": [{"type": "approve", "args": {"action": "look", "args": PAY}}]},
    "an edit that is a text": [{"type": "edit", "args": "B"}],
    "an edit without a tool": {"decisions": [{"type": "edit", "args": {"args": PAY}}]},
    "an edit of an argument it has not": [{"type": "edit", "args": {"action": "pay", "args": {**PAY, "amount": "x"}}}],
    "a response that is none": [{"type": "response", "args": None}],
    "another word": [{"type": "maybe", "args": None}],
    "LangChain's word in the older format": [{"type": "approve", "args": None}],
    "the older word in LangChain's format": {"decisions": [{"type": "accept", "args": SHOWN}]},
    "two for one": [{"type": "accept", "args": None}] * 2,
    "none": [],
    "no list": {"type": "accept", "args": None},
}


def _tools(world: World) -> list[Any]:
    @tool
    def pay(to: str, amount: int, tags: list[str], urgent: bool, note: str | None = None) -> str:
        """Pay."""
        world.append({"to": to, "amount": amount, "tags": tags, "urgent": urgent, "note": note})
        return "paid"

    @tool
    def confirm(question: str) -> str:
        """Ask a person something else, in a format that our questions have too."""
        world.append((question, answer := interrupt({"action_requests": [question]})))
        return str(answer)

    return [pay, confirm]


@pytest.fixture
def agent(guard: Guard, world: World) -> Any:
    made = create_agent(model(("pay", PAY)), _tools(world), checkpointer=InMemorySaver())
    return guard.wrap(made, {"pay": {"effect": "write", "approve": True}})


@pytest.mark.parametrize("format_", ["newer", "older"])
@pytest.mark.parametrize("name", OLDER)
def test_its_answers_are_taken(agent: Any, world: World, name: str, format_: str) -> None:
    """What its buttons say, in both formats: a field that somebody was in comes as text, and is what it says."""
    response, done = OLDER[name]
    newer = {"decisions": [{**response, "type": NEWER.get(response["type"], response["type"])}]}
    agent.invoke(ask(), on("t"))
    (message,) = answers(agent.invoke(Command(resume=[response] if format_ == "older" else newer), on("t")))
    assert world == ([] if isinstance(done, str) else [done])
    assert (message.status, (done if isinstance(done, str) else "paid") in message.text) == (
        "error" if isinstance(done, str) else "success",
        True,
    )


@pytest.mark.parametrize("name", WRONG)
def test_what_it_does_not_send_is_refused(agent: Any, guard: Guard, world: World, name: str) -> None:
    """Nothing runs, and the right answer works then; a yes counts only for what is asked, not for an old page."""
    agent.invoke(ask(), on("t"))
    with pytest.raises(ValidationError):
        agent.invoke(Command(resume=WRONG[name]), on("t"))
    assert (world, states(guard)) == ([], {"t/1": "paused"})
    agent.invoke(Command(resume=[{"type": "accept", "args": SHOWN}]), on("t"))
    assert (world, states(guard)) == ([PAY], {"t/1": "completed"})


def _beside(world: World) -> Any:
    """A graph of one's own, in which both calls of a message run in one task."""
    graph: Any = StateGraph(MessagesState)
    calls = [{"name": "pay", "args": PAY, "id": "p"}, {"name": "confirm", "args": {"question": "sure?"}, "id": "c"}]
    graph.add_node("model", lambda state: {"messages": [AIMessage("", tool_calls=calls)]})
    graph.add_edge(START, "model")
    graph.add_node("tools", ToolNode(_tools(world)))
    graph.add_edge("model", "tools")
    return graph.compile(checkpointer=InMemorySaver())


def _in_a_node(world: World) -> Any:
    pay, confirm = _tools(world)

    def both(state: Any) -> None:
        pay.invoke(PAY)
        confirm.invoke({"question": "sure?"})

    graph: Any = StateGraph(MessagesState)
    graph.add_node("both", both)
    graph.add_edge(START, "both")
    return graph.compile(checkpointer=InMemorySaver())


@pytest.mark.parametrize("build", [_beside, _in_a_node])
@pytest.mark.parametrize("own", [[{"type": "accept", "args": None}], {"decisions": [{"type": "approve"}]}])
def test_a_tool_that_asks_so_itself_gets_its_own_answer(guard: Guard, world: World, own: Any, build: Any) -> None:
    """An answer belongs to the question that was shown, whatever its shape; nobody's yes is another's."""
    built = guard.wrap(build(world), {"pay": {"effect": "write", "approve": True}})
    built.invoke(ask(), on("t"))
    (asked,) = built.invoke(Command(resume=[{"type": "accept", "args": SHOWN}]), on("t"))["__interrupt__"]
    assert (asked.value, world) == ({"action_requests": ["sure?"]}, [PAY])
    built.invoke(Command(resume=own), on("t"))
    assert (world, states(guard)) == ([PAY, ("sure?", own)], {"t/1": "completed"})


@pytest.mark.parametrize("late", ["yes", [{"type": "accept", "args": SHOWN}]])
def test_an_answer_that_comes_too_late_is_nobody_else_s(guard: Guard, world: World, late: Any) -> None:
    """What was asked is decided elsewhere by then; what a tool asks after it is still to be answered."""
    built = guard.wrap(_beside(world), {"pay": {"effect": "write", "approve": True}})
    built.invoke(ask(), on("t"))
    guard.approvals.approve(guard.approvals.list()[0].id, by="alice")
    (asked,) = built.invoke(Command(resume=late), on("t"))["__interrupt__"]
    assert (asked.value, world) == ({"action_requests": ["sure?"]}, [PAY])
