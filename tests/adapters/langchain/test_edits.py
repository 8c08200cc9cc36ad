"""Edits of a person's, wherever they are made: read by the tool's schema as a model's arguments are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from pydantic import BaseModel, ValidationError

from sagaspan import ApprovalRequest, Edit, Guard, ResolutionError
from tests.adapters.langchain.scripts import answers, ask, model, on, states

World = list[Any]


class Order(BaseModel):
    """What is paid for."""

    id: int
    quantity: int = 1


ASKED = {"to": "A", "amount": 5, "card": "4111", "order": {"id": 1, "quantity": 2}, "tags": []}
DONE = {**ASKED, "order": Order(id=1, quantity=2), "rate": 1.0}
ROUTES = ("interrupt", "ledger", "approver")
FITTING: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a number as text": ({"amount": "4"}, {"amount": 4}),
    "a model within": ({"order": {"id": "7"}}, {"order": Order(id=7)}),
    "a list": ({"tags": ["1", 2]}, {"tags": [1, 2]}),
    "a whole number for another": ({"rate": 2}, {"rate": 2.0}),
}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no number": ({"amount": "lots"}, "amount: Input should be a valid integer|amount"),
    "half a model": ({"order": {"quantity": 2}}, "id"),
    "an argument it has not": ({"nope": 1}, "it has amount, card, nope, order, rate, tags, to"),
    "what is redacted": ({"card": "4222"}, "'card' of 'pay' is redacted"),
}


def _agent(world: World, *, checkpointer: Any) -> Any:
    @tool
    def pay(to: str, amount: int, card: str, order: Order, tags: list[int], rate: float = 1.0) -> str:
        """Pay."""
        world.append({"to": to, "amount": amount, "card": card, "order": order, "tags": tags, "rate": rate})
        return "paid"

    return create_agent(model(("pay", ASKED)), [pay], checkpointer=checkpointer)


def _edited(guard: Guard, world: World, route: str, edit: dict[str, Any]) -> Any:
    """What the agent answers after ``edit``, made through ``route``; what is redacted is given back as it was shown."""

    def decide(request: ApprovalRequest) -> Edit:
        return Edit({**request.args, **edit})

    checkpointer = None if route == "approver" else InMemorySaver()
    agent = guard.wrap(
        _agent(world, checkpointer=checkpointer), {"pay": {"effect": "write", "approve": True, "redact": ["card"]}}
    )
    if route == "approver":
        with guard.override(approver=decide):
            return agent.invoke(ask())
    (asked,) = agent.invoke(ask(), on("t"))["__interrupt__"]
    if route == "interrupt":
        args = {**asked.value["action_requests"][0]["args"], **edit}
        decision = {"type": "edit", "edited_action": {"name": "pay", "args": args}}
        return agent.invoke(Command(resume={"decisions": [decision]}), on("t"))
    (request,) = guard.approvals.list()
    guard.approvals.edit(request.id, decide(request).arguments, by="alice")
    return agent.invoke(None, on("t"))


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", FITTING)
def test_an_edit_is_read_by_the_tool_s_schema(guard: Guard, world: World, route: str, name: str) -> None:
    """The body gets what it would of a model; what is redacted stays, and so does the model's message about it."""
    edit, becomes = FITTING[name]
    output = _edited(guard, world, route, edit)
    assert world == [{**DONE, **becomes}]
    (call,) = output["messages"][1].tool_calls
    assert call["args"]["card"] == "4111"
    assert {name: call["args"][name] for name in edit} != {name: ASKED.get(name) for name in edit}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_is_refused_and_says_why(guard: Guard, world: World, route: str, name: str) -> None:
    """Where somebody can be told, the question stays open; what a function answers is a no, told to the model."""
    edit, why = WRONG[name]
    if route == "approver":
        (told,) = answers(_edited(guard, world, route, edit))
        assert (told.status, world) == ("error", [])
        assert "no decision" in told.text
        return
    with pytest.raises((ResolutionError, ValidationError), match=why):
        _edited(guard, world, route, edit)
    assert (world, states(guard)) == ([], {"t/1": "paused"})
    assert len(guard.approvals.list()) == 1


@pytest.mark.parametrize(
    ("edit", "done"), [({"rate": 3}, {"rate": 3}), ({"amount": "4"}, None), ({"order": {"id": 7}}, None)]
)
def test_an_edit_that_knew_no_schema_runs_only_as_what_was_agreed_to(
    guard: Guard, tmp_path: Path, world: World, edit: dict[str, Any], done: dict[str, Any] | None
) -> None:
    """As one on the command line: what the schema reads as something else nobody has agreed to."""
    agent = guard.wrap(_agent(world, checkpointer=InMemorySaver()), {"pay": {"effect": "write", "approve": True}})
    agent.invoke(ask(), on("t"))
    with Guard(f"sqlite:///{tmp_path}/ledger.db") as elsewhere:
        (request,) = elsewhere.approvals.list()
        elsewhere.approvals.edit(request.id, {**request.args, **edit}, by="alice")
    (told,) = answers(agent.invoke(None, on("t")))
    assert world == ([] if done is None else [{**DONE, **done}])
    assert told.status == ("error" if done is None else "success")
    assert done is not None or "nobody agreed to" in told.text
