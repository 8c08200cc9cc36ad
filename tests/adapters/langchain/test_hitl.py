"""LangChain's own human-in-the-loop middleware: our questions have its format, and its own are answered as ours are."""

from __future__ import annotations

import inspect
from typing import Any

import langgraph.errors
import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain.agents.middleware.human_in_the_loop import HITLRequest, HITLResponse
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt
from pydantic import BaseModel, TypeAdapter, ValidationError

from sagaspan import Guard
from tests.adapters.langchain.scripts import answers, ask, model, on, states, steps_of

World = list[Any]
PAY = {"to": "A", "amount": 5}
ANSWERS: dict[str, tuple[dict[str, Any], str]] = {
    "approve": ({"type": "approve"}, "paid 5 to A"),
    "edit": ({"type": "edit", "edited_action": {"name": "pay", "args": {"to": "A", "amount": 4}}}, "paid 4 to A"),
    "reject": ({"type": "reject"}, "ApprovalDenied"),
    "reject, and why": ({"type": "reject", "message": "too dear"}, "too dear"),
    "respond": ({"type": "respond", "message": "paid by hand"}, "paid by hand"),
}
WRONG: dict[str, Any] = {
    "no list": {"decisions": {"type": "approve"}},
    "a bare word": "approve",
    "another word": {"decisions": [{"type": "accept"}]},
    "no message": {"decisions": [{"type": "respond"}]},
    "no action": {"decisions": [{"type": "edit", "args": PAY}]},
}


@pytest.fixture
def agent(guard: Guard) -> Any:
    @tool
    def pay(to: str, amount: int) -> str:
        """Pay."""
        return f"paid {amount} to {to}"

    made = create_agent(model(("pay", PAY)), [pay], checkpointer=InMemorySaver())
    return guard.wrap(made, {"pay": {"effect": "write", "approve": True}})


def _is(kind: Any, value: Any) -> bool:
    try:
        TypeAdapter(kind).validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


def test_a_question_is_a_request_of_langchain_s(agent: Any) -> None:
    """With all four decisions, which LangChain's type knows, one review for each action, and what is paid."""
    (paused,) = agent.invoke(ask(), on("t"))["__interrupt__"]
    request = TypeAdapter(HITLRequest).validate_python(paused.value, strict=True)
    (action,), (review,) = request["action_requests"], request["review_configs"]
    assert (action["name"], action["args"], review["action_name"]) == ("pay", PAY, "pay")
    assert review["allowed_decisions"] == ["approve", "edit", "reject", "respond"]


@pytest.mark.parametrize("name", ANSWERS)
def test_its_answers_are_ours(agent: Any, name: str) -> None:
    """Each decision that LangChain's type knows is taken."""
    decision, said = ANSWERS[name]
    answer = {"decisions": [decision]}
    assert _is(HITLResponse, answer)
    agent.invoke(ask(), on("t"))
    (message,) = answers(agent.invoke(Command(resume=answer), on("t")))
    assert said in str(message.content)


@pytest.mark.parametrize("name", WRONG)
def test_what_it_does_not_know_is_none(agent: Any, name: str) -> None:
    """It is refused, and the right answer works then."""
    assert not _is(HITLResponse, WRONG[name])
    agent.invoke(ask(), on("t"))
    with pytest.raises(ValidationError):
        agent.invoke(Command(resume=WRONG[name]), on("t"))
    (message,) = answers(agent.invoke(Command(resume={"decisions": [{"type": "approve"}]}), on("t")))
    assert message.content == "paid 5 to A"


# -- the middleware itself, in a guarded agent -----------------------------------------------------------------

LOOK = {"look": {"compensate": lambda what: world_of_compensations.append(what)}}
world_of_compensations: World = []


class Amount(BaseModel):
    """What a tool asks for itself."""

    amount: int


@tool
def look(what: str) -> str:
    """Look."""
    return "seen"


@tool
def pay(to: str, amount: int) -> str:
    """Pay."""
    return f"paid {amount} to {to}"


@tool
def pay_what(to: str) -> str:
    """Pay what a person says."""
    return f"paid {interrupt('how much?', response_schema=Amount).amount} to {to}"


def _asking(mode: str, **how: Any) -> Any:
    """An agent whose second call that middleware asks about, or whose tool itself asks with a schema."""
    if mode == "of a tool":
        return create_agent(model(("look", {"what": "x"}), ("pay_what", {"to": "A"})), [look, pay_what], **how)
    how_it_asks: Any = {} if mode == "batched" else {"interrupt_mode": mode}
    asks: Any = HumanInTheLoopMiddleware({"pay": True}, **how_it_asks)
    return create_agent(model(("look", {"what": "x"}), ("pay", PAY)), [look, pay], middleware=[asks], **how)


def _around(mode: str) -> Any:
    """An agent with one of those in the closure of a tool."""
    inner = _asking(mode)

    @tool
    def consult() -> str:
        """Consult."""
        return str(inner.invoke(ask())["messages"][-2].text)

    return create_agent(model(("consult", {})), [consult], checkpointer=InMemorySaver())


RIGHT: dict[str, Any] = {
    "batched": {"decisions": [{"type": "approve"}]},
    "per_call": {"type": "approve"},
    "of a tool": {"amount": 5},
}


per_call = pytest.mark.skipif(
    "interrupt_mode" not in inspect.signature(HumanInTheLoopMiddleware).parameters, reason="LangChain has no such mode"
)
says_so = pytest.mark.skipif(
    not hasattr(langgraph.errors, "is_invalid_resume"), reason="LangGraph does not tell such an error from others"
)


@pytest.mark.parametrize("within", ["the agent", "a tool's closure"])
@pytest.mark.parametrize(
    ("mode", "wrong"),
    [
        *(("batched", wrong) for wrong in WRONG.values()),
        ("batched", {"decisions": []}),
        ("batched", {"decisions": [{"type": "approve"}] * 2}),
        pytest.param("per_call", "approve", marks=[per_call, says_so]),
        pytest.param("of a tool", {"amount": "much"}, marks=says_so),
    ],
)
async def test_a_wrong_answer_to_its_own_question_undoes_nothing(
    guard: Guard, mode: str, wrong: Any, within: str
) -> None:
    """It is refused while the question is open, whoever asks with it or with a schema, and the right one works then."""
    world_of_compensations.clear()
    agent: Any = guard.wrap(
        _asking(mode, checkpointer=InMemorySaver()) if within == "the agent" else _around(mode), LOOK
    )
    assert agent.invoke(ask(), on("t"))["__interrupt__"]
    with pytest.raises(ValidationError):
        if within == "the agent":
            await agent.ainvoke(Command(resume=wrong), on("t"))
        else:
            agent.invoke(Command(resume=wrong), on("t"))
    assert (states(guard), world_of_compensations) == ({"t/1": "paused"}, [])
    output = agent.invoke(Command(resume=RIGHT[mode]), on("t"))
    assert answers(output)[-1].text == "paid 5 to A"
    assert (states(guard), world_of_compensations) == ({"t/1": "completed"}, [])
    assert steps_of(guard, "t/1").count(("look", "done")) == 1


@pytest.mark.parametrize("decision", [{"type": "reject", "message": None}, {"type": "approve", "why": "so"}])
def test_what_it_reads_itself_is_not_refused(guard: Guard, decision: Any) -> None:
    """Wrapping makes nobody's client wrong."""
    bare, agent = (_asking("batched", checkpointer=InMemorySaver()) for _ in range(2))
    told = []
    for one in (bare, guard.wrap(agent)):
        one.invoke(ask(), on("t"))
        told.append(answers(one.invoke(Command(resume={"decisions": [decision]}), on("t")))[-1].status)
    assert told == [told[0]] * 2


def test_another_error_of_the_middleware_ends_the_run(guard: Guard) -> None:
    """As any error of an agent does."""
    world_of_compensations.clear()

    def describe(*about: Any) -> str:
        raise ValueError("no words")

    on_pay: Any = {"allowed_decisions": ["approve"], "description": describe}
    asks: Any = HumanInTheLoopMiddleware({"pay": on_pay})
    made: Any = create_agent(
        model(("look", {"what": "x"}), ("pay", PAY)), [look, pay], middleware=[asks], checkpointer=InMemorySaver()
    )
    agent: Any = guard.wrap(made, LOOK)
    with pytest.raises(ValueError, match="no words"):
        agent.invoke(ask(), on("t"))
    assert (states(guard), world_of_compensations) == ({"t/1": "compensated"}, ["x"])
