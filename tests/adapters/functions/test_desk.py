"""``examples/desk.py``: ten lines of a hand-written loop, by a real client, against the provider on the loopback."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import openai
import pytest

from sagaspan import BudgetExceeded
from tests.providers.replies import Reply, ToolCall
from tests.providers.server import ModelServer

DESK = Path(__file__).parents[3] / "examples" / "desk.py"
LOOK = Reply(text="", tool_calls=(ToolCall(name="find_order", arguments={"order": "order-17"}, id="a"),))
REFUND = Reply(text="", tool_calls=(ToolCall(name="refund", arguments={"order": "order-17", "amount": 20}, id="b"),))


@pytest.fixture
def desk() -> Iterator[ModuleType]:
    """The example as a program imports it, with a ledger of this test's own."""
    spec = importlib.util.spec_from_file_location("desk", DESK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with module.guard:
        yield module


def test_the_desk_looks_up_refunds_and_answers(desk: Any, model_server: ModelServer) -> None:
    """One refund, every request and every call on record, and the money that the model cost."""
    model_server.say(LOOK, REFUND, Reply(text="It is paid back."))
    assert desk.answer(model_server.openai(), "Pay order-17 back.", ticket="t1") == "It is paid back."
    assert desk.REFUNDS == [("order-17", 20.0)]
    run = desk.guard.runs.get("t1")
    assert [call.tool for call in run.calls] == ["chat gpt-4o", "find_order", "chat gpt-4o", "refund", "chat gpt-4o"]
    assert desk.guard.usage(run="t1").spent > 0
    told = [message for message in model_server.requests[2].body["messages"] if message["role"] == "tool"]
    assert [message["tool_call_id"] for message in told] == ["a", "b"]
    assert json.loads(told[0]["content"]) == desk.ORDERS["order-17"]


def test_the_same_ticket_refunds_nothing_twice(
    desk: Any, model_server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stopped after the refund, and asks the model all over again, whose calls have other ids."""
    run = desk.tools.run

    def stopped(message: Any) -> Any:
        items = run(message)
        if desk.REFUNDS:
            raise KeyboardInterrupt
        return items

    model_server.say(LOOK, REFUND)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(desk.tools, "run", stopped)
        desk.answer(model_server.openai(), "Pay order-17 back.", ticket="t1")
    again = replace(REFUND, tool_calls=(replace(REFUND.tool_calls[0], id="other"),))
    model_server.say(LOOK, again, Reply(text="It is paid back."))
    assert desk.answer(model_server.openai(), "Pay order-17 back.", ticket="t1") == "It is paid back."
    assert desk.REFUNDS == [("order-17", 20.0)]


def test_a_desk_that_fails_takes_back_what_it_did(desk: Any, model_server: ModelServer) -> None:
    """The provider is down after the refund: the refund is charged again."""
    model_server.say(REFUND, Reply(status=500))
    with pytest.raises(openai.InternalServerError):
        desk.answer(model_server.openai(), "Pay order-17 back.", ticket="t1")
    assert desk.REFUNDS == [("order-17", 20.0), ("order-17", -20.0)]
    assert desk.guard.runs.get("t1").status == "compensated"


def test_a_desk_that_costs_too_much_is_stopped(desk: Any, model_server: ModelServer) -> None:
    """Before the request that would not fit, and what it did is taken back."""
    model_server.default = REFUND
    desk.guard.set_budget("run:*", "0.5 USD")
    model_server.say(REFUND, Reply(text="", tool_calls=REFUND.tool_calls, output_tokens=16_000, input_tokens=150_000))
    with pytest.raises(BudgetExceeded):
        desk.answer(model_server.openai(), "Pay order-17 back.", ticket="t1")
    assert desk.REFUNDS == [("order-17", 20.0), ("order-17", -20.0)]
    assert desk.guard.runs.get("t1").reason == "budget"
    assert len(model_server.requests) == 2
