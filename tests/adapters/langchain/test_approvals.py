"""Approvals in LangChain agents: a tool that waits pauses its thread, and the same thread goes on."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import ToolMessage

from sagaspan import ApprovalPending, Deny, Guard
from tests.adapters.langchain.scripts import ask, on, states
from tests.adapters.langchain.test_threads import Desk, World


@pytest.fixture
def desk(world: World) -> Desk:
    """Tools with effects."""
    return Desk(world)


@pytest.mark.parametrize("edited", [False, True])
def test_a_tool_that_waits_pauses_its_thread(guard: Guard, desk: Desk, world: World, edited: bool) -> None:
    """Decided elsewhere, ``None`` goes on in the same run, with the arguments that were approved."""
    policies = {"book": {**_fields(desk, "book"), "approve": True}}
    agent = guard.wrap(desk.agent(("book", {"city": "A"})), {**desk.policies, **policies})
    with guard.override(approver="inbox"), pytest.raises(ApprovalPending) as caught:
        agent.invoke(ask(), on("t"))
    assert (world, states(guard)) == ([], {"t/1": "paused"})
    if edited:
        guard.approvals.edit(caught.value.approval_id, {"city": "B"}, by="alice")
    else:
        guard.approvals.approve(caught.value.approval_id, by="alice")
    with guard.override(approver="inbox"):
        agent.invoke(None, on("t"))
    assert world == [("book", "B" if edited else "A")]
    assert states(guard) == {"t/1": "completed"}


def test_a_no_is_data_for_the_model(guard: Guard, desk: Desk, world: World) -> None:
    """The model reads that it did not run, why, and not to try again; the run goes on."""
    policies = {"book": {**_fields(desk, "book"), "approve": True}}
    agent = guard.wrap(desk.agent(("book", {"city": "A"})), {**desk.policies, **policies})
    with guard.override(approver=lambda _: Deny("too far")):
        answer = agent.invoke(ask(), on("t"))
    (told,) = [message for message in answer["messages"] if isinstance(message, ToolMessage)]
    assert '"too far"' in told.text.replace('\\"', '"')
    assert "forbidden" in told.text
    assert (world, states(guard)) == ([], {"t/1": "completed"})


def _fields(desk: Desk, name: str) -> dict[str, Any]:
    return dict(desk.policies[name])
