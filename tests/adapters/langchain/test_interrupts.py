"""Approvals through LangGraph's interrupt: one question a task, answered for exactly what was shown, used once."""

from __future__ import annotations

import contextlib
import operator
from typing import Annotated, Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.tools import StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt
from pydantic import ValidationError

from sagaspan import ApprovalDenied, ApprovalPending, Approve, Edit, Guard
from tests.adapters.langchain.scripts import Step, answers, ask, calls_of, model, on, states

World = list[Any]
APPROVE = {"type": "approve"}
REJECT = {"type": "reject", "message": "too dear"}


def _tools(world: World) -> list[Any]:
    @tool
    def pay(to: str, amount: int = 5) -> str:
        """Pay."""
        world.append(("pay", to, amount))
        return f"paid {to}"

    @tool
    def refund(to: str, amount: int) -> str:
        """Refund."""
        world.append(("refund", to, amount))
        return f"refunded {to}"

    @tool
    def look(what: str) -> str:
        """Look."""
        world.append(("look", what))
        return "seen"

    @tool
    def confirm(question: str) -> str:
        """Ask a person something else."""
        world.append(("confirm", answer := interrupt(question)))
        return str(answer)

    return [pay, refund, look, confirm]


POLICIES = {"pay": {"effect": "write", "approve": "amount > 3"}, "refund": {"effect": "write", "approve": True}}


def _agent(world: World, *steps: Any, saver: Any = None) -> Any:
    return create_agent(model(*steps), _tools(world), checkpointer=saver or InMemorySaver(), name="payer")


def _shared(world: World, *steps: Any) -> Any:
    """A graph of one's own, in which all calls of a message run in one task."""
    chat = model(*steps)
    graph: Any = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [chat.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode(_tools(world)))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else "__end__")
    graph.add_edge("tools", "model")
    return graph.compile(checkpointer=InMemorySaver())


def _decide(*decisions: Any) -> Command[Any]:
    return Command(resume={"decisions": list(decisions)})


PAY: Step = ("pay", {"to": "A"})


def test_a_call_that_must_be_approved_pauses_the_agent(guard: Guard, world: World) -> None:
    """The question has LangChain's shape, the arguments with their defaults, and stands in the ledger too."""
    agent = guard.wrap(_agent(world, PAY), POLICIES)
    (asked,) = agent.invoke(ask(), on("t"))["__interrupt__"]
    assert asked.value["action_requests"][0]["name"] == "pay"
    assert asked.value["action_requests"][0]["args"] == {"to": "A", "amount": 5}
    (config,) = asked.value["review_configs"]
    assert config == {"action_name": "pay", "allowed_decisions": ["approve", "edit", "reject", "respond"]}
    assert [request.id for request in guard.approvals.list()] == asked.value["approval_ids"]
    assert (world, states(guard)) == ([], {"t/1": "paused"})
    agent.invoke(_decide(APPROVE), on("t"))
    assert (world, states(guard)) == ([("pay", "A", 5)], {"t/1": "completed"})
    assert [request.state for request in guard.approvals.list(status=[])] == ["consumed"]


async def test_the_same_awaited(guard: Guard, world: World) -> None:
    """It holds for ``ainvoke`` alike."""
    agent = guard.wrap(_agent(world, PAY), POLICIES)
    assert len((await agent.ainvoke(ask(), on("t")))["__interrupt__"]) == 1
    assert world == []
    await agent.ainvoke(_decide(APPROVE), on("t"))
    assert world == [("pay", "A", 5)]


def test_what_needs_no_approval_runs_at_once(guard: Guard, world: World) -> None:
    """The expression of the policy says whom to ask about."""
    guard.wrap(_agent(world, ("pay", {"to": "A", "amount": 3})), POLICIES).invoke(ask(), on("t"))
    assert world == [("pay", "A", 3)]


def test_a_no_is_told_to_the_model(guard: Guard, world: World) -> None:
    """With the reason, as data; the agent goes on."""
    agent = guard.wrap(_agent(world, PAY), POLICIES)
    agent.invoke(ask(), on("t"))
    (told,) = answers(agent.invoke(_decide(REJECT), on("t")))
    assert (told.status, world, states(guard)) == ("error", [], {"t/1": "completed"})
    assert "too dear" in told.text


def test_a_response_stands_in_the_place_of_the_tool(guard: Guard, world: World) -> None:
    """The tool does not run; the model reads the person's answer."""
    agent = guard.wrap(_agent(world, PAY), POLICIES)
    agent.invoke(ask(), on("t"))
    (told,) = answers(agent.invoke(_decide({"type": "respond", "message": "I paid in cash"}), on("t")))
    assert (told.text, told.status, world) == ("I paid in cash", "success", [])


def test_an_edit_changes_the_arguments(guard: Guard, world: World) -> None:
    """The tool runs with what the person wrote, once."""
    agent = guard.wrap(_agent(world, PAY), POLICIES)
    agent.invoke(ask(), on("t"))
    edit = {"type": "edit", "edited_action": {"name": "pay", "args": {"to": "B", "amount": 4}}}
    agent.invoke(_decide(edit), on("t"))
    assert (world, calls_of(guard, "t/1")[0].tool) == ([("pay", "B", 4)], "pay")


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_an_edit_to_another_tool_is_judged_by_the_policy_of_that(guard: Guard, world: World, way: str) -> None:
    """It is a call of that tool, approved as such; the one that was asked for is denied, and does not run."""
    agent = guard.wrap(_agent(world, PAY), POLICIES)
    agent.invoke(ask(), on("t"))
    edit = _decide({"type": "edit", "edited_action": {"name": "refund", "args": {"to": "A", "amount": 9}}})
    agent.invoke(edit, on("t")) if way == "invoke" else await agent.ainvoke(edit, on("t"))
    assert world == [("refund", "A", 9)]
    assert [call.tool for call in calls_of(guard, "t/1")] == ["refund"]
    requests = {request.tool: request.state for request in guard.approvals.list(status=[])}
    assert requests == {"pay": "denied", "refund": "consumed"}


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
@pytest.mark.parametrize("end", ["approve", "reject", "elsewhere", "third"])
async def test_an_edit_to_a_tool_that_several_must_approve(guard: Guard, world: World, way: str, end: str) -> None:
    """Whoever edits is one of those who must agree, no more; the others are asked about that call."""
    policies = {**POLICIES, "refund": {"effect": "write", "approve": True, "approval": {"approvers": 2}}}
    agent = guard.wrap(_agent(world, PAY), policies)

    async def go(given: Any, by: str) -> Any:
        return agent.invoke(given, _as(by)) if way == "invoke" else await agent.ainvoke(given, _as(by))

    await go(ask(), "nobody")
    edit = _decide({"type": "edit", "edited_action": {"name": "refund", "args": {"to": "A", "amount": 9}}})
    for again in (edit, _decide(APPROVE)):  # the second by the same person, who is not counted twice
        (asked,) = (await go(again, "alice"))["__interrupt__"]
        assert asked.value["action_requests"][0]["args"] == {"to": "A", "amount": 9}
    assert (world, states(guard), guard.approvals.list()[0].approved_by) == ([], {"t/1": "paused"}, ("alice",))
    match end:
        case "elsewhere":
            guard.approvals.approve(guard.approvals.list()[0].id, by="bob")
            output = await go(None, "bob")
        case "third":
            output = await go(
                _decide({"type": "edit", "edited_action": {"name": "look", "args": {"what": "x"}}}), "bob"
            )
        case _:
            output = await go(_decide(APPROVE if end == "approve" else REJECT), "bob")
    done = {"reject": [], "third": [("look", "x")]}.get(end, [("refund", "A", 9)])
    named = ("look", {"what": "x"}) if end == "third" else ("refund", {"to": "A", "amount": 9})
    assert (world, _called(output), states(guard)) == (done, [named], {"t/1": "completed"})


@pytest.mark.parametrize("build", [_agent, _shared])
def test_each_answer_is_for_its_call(guard: Guard, world: World, build: Any) -> None:
    """Calls of one message that run side by side get the answer to their own question, in LangGraph's order or not."""
    agent = guard.wrap(build(world, [PAY, ("look", {"what": "x"}), ("refund", {"to": "B", "amount": 1})]), POLICIES)
    asked = agent.invoke(ask(), on("t"))["__interrupt__"]
    if build is _shared:
        assert [one["name"] for one in asked[0].value["action_requests"]] == ["pay", "refund"]
        assert world == []  # one question, before anything of the task has begun
        resume: Any = _decide(REJECT, APPROVE)
    else:
        by_tool = {one.value["action_requests"][0]["name"]: one.id for one in asked}
        answer = {"pay": REJECT, "refund": APPROVE}
        resume = Command(resume={id_: {"decisions": [answer[name]]} for name, id_ in by_tool.items()})
    agent.invoke(resume, on("t"))
    assert sorted(world) == [("look", "x"), ("refund", "B", 1)]
    assert states(guard) == {"t/1": "completed"}


def test_two_equal_calls_are_two_questions(guard: Guard, world: World) -> None:
    """Each is approved for itself; a no to the first is a no to these arguments in the run."""
    policies = {"pay": {"approve": True}}
    agent = guard.wrap(_shared(world, [PAY, PAY]), policies)
    (asked,) = agent.invoke(ask(), on("t"))["__interrupt__"]
    assert len(asked.value["action_requests"]) == 2
    agent.invoke(_decide(APPROVE, APPROVE), on("t"))
    assert world == [("pay", "A", 5)] * 2


@pytest.mark.parametrize("wrong", ["yes", {"decisions": []}, {"decisions": [{"type": "maybe"}]}, [APPROVE], True])
def test_a_wrong_answer_is_refused_and_the_right_one_works_then(guard: Guard, world: World, wrong: Any) -> None:
    """An answer of another shape is an error of who gave it: the question stays open, and nothing ran."""
    agent = guard.wrap(_agent(world, PAY), POLICIES)
    agent.invoke(ask(), on("t"))
    with pytest.raises(ValidationError):
        agent.invoke(Command(resume=wrong), on("t"))
    assert world == []
    agent.invoke(_decide(APPROVE), on("t"))
    assert world == [("pay", "A", 5)]


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
@pytest.mark.parametrize("shape", ["agent", "as a tool", "in a node", "in a run"])
async def test_a_wrong_answer_undoes_nothing(guard: Guard, world: World, shape: str, way: str) -> None:
    """The question is still open: the run waits for the right answer with all that it has done."""
    policies = {**POLICIES, "look": {"compensate": lambda what: world.append(("undone", what))}}
    steps: tuple[Step, ...] = (("look", {"what": "x"}), PAY)
    match shape:
        case "as a tool":
            inner = create_agent(model(*steps), _tools(world))
            consult = StructuredTool.from_function(
                lambda: inner.invoke(ask())["messages"][-1].text, name="consult", description="Consult."
            )
            built = guard.wrap(create_agent(model(("consult", {})), [consult], checkpointer=InMemorySaver()), policies)
        case "in a node":
            graph: Any = StateGraph(MessagesState)
            graph.add_node("inner", guard.wrap(create_agent(model(*steps), _tools(world)), policies))
            graph.add_edge(START, "inner")
            built = graph.compile(checkpointer=InMemorySaver())
        case _:
            built = guard.wrap(_agent(world, *steps), policies)

    async def go(given: Any) -> None:
        async with guard.run("r", id="r") if shape == "in a run" else contextlib.nullcontext():
            built.invoke(given, on("t")) if way == "invoke" else await built.ainvoke(given, on("t"))

    await go(ask())
    with pytest.raises(ValidationError) as caught:
        await go(Command(resume="yes"))
    assert type(caught.value) is ValidationError
    assert (world, [*states(guard).values()]) == ([("look", "x")], ["held" if shape == "in a run" else "paused"])
    await go(_decide(APPROVE))
    assert (world, [*states(guard).values()]) == ([("look", "x"), ("pay", "A", 5)], ["completed"])


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_an_answer_that_does_not_say_to_which_question_undoes_nothing(
    guard: Guard, world: World, way: str
) -> None:
    """Where two tasks ask, LangGraph refuses one answer before it begins; then one that names its question is taken."""
    policies = {**POLICIES, "look": {"compensate": lambda what: world.append(("undone", what))}}
    both = [("pay", {"to": "A"}), ("pay", {"to": "B"})]
    agent = guard.wrap(_agent(world, ("look", {"what": "x"}), both), policies)

    async def go(given: Any) -> Any:
        return agent.invoke(given, on("t")) if way == "invoke" else await agent.ainvoke(given, on("t"))

    asked = (await go(ask()))["__interrupt__"]
    with pytest.raises(RuntimeError, match="multiple pending interrupts"):
        await go(_decide(APPROVE))
    assert (world, states(guard)) == ([("look", "x")], {"t/1": "paused"})
    await go(Command(resume={one.id: {"decisions": [APPROVE]} for one in asked}))
    assert (sorted(world[1:]), states(guard)) == ([("pay", "A", 5), ("pay", "B", 5)], {"t/1": "completed"})


def test_half_an_edit_of_what_was_denied_elsewhere_undoes_nothing(guard: Guard, world: World) -> None:
    """It is looked at before LangGraph checks its shape."""
    policies = {**POLICIES, "look": {"compensate": lambda what: world.append(("undone", what))}}
    agent = guard.wrap(_agent(world, ("look", {"what": "x"}), PAY), policies)
    agent.invoke(ask(), on("t"))
    guard.approvals.deny(guard.approvals.list()[0].id, "no")
    with pytest.raises(ValidationError):
        agent.invoke(_decide({"type": "edit"}), on("t"))
    assert (world, states(guard)) == ([("look", "x")], {"t/1": "paused"})


@pytest.mark.parametrize("build", [_agent, _shared])
def test_an_edit_is_read_as_the_model_s_arguments_are(guard: Guard, world: World, build: Any) -> None:
    """By the tool's own schema: what that refuses is no answer, and the body gets no text for a number."""
    agent = guard.wrap(build(world, PAY), POLICIES)
    agent.invoke(ask(), on("t"))

    def edit(amount: str) -> Command[Any]:
        return _decide({"type": "edit", "edited_action": {"name": "pay", "args": {"to": "B", "amount": amount}}})

    with pytest.raises(ValidationError, match="amount"):
        agent.invoke(edit("lots"), on("t"))
    assert (world, states(guard)) == ([], {"t/1": "paused"})
    agent.invoke(edit("4"), on("t"))
    assert (world, calls_of(guard, "t/1")[0].args) == ([("pay", "B", 4)], {"to": "B", "amount": 4})


@pytest.mark.parametrize("answer", [APPROVE, REJECT])
def test_an_answer_counts_only_for_what_was_shown(guard: Guard, world: World, answer: Any) -> None:
    """Arguments that changed between the question and the answer are asked about anew."""
    agent = guard.wrap(_agent(world, PAY), POLICIES)
    agent.invoke(ask(), on("t"))
    message = agent.get_state(on("t")).values["messages"][-1]
    (call,) = message.tool_calls
    changed = AIMessage("", id=message.id, tool_calls=[{**call, "args": {"to": "the thief"}}])
    agent.update_state(on("t"), {"messages": [changed]})
    (asked,) = agent.invoke(_decide(APPROVE), on("t"))["__interrupt__"]
    assert asked.value["action_requests"][0]["args"]["to"] == "the thief"
    assert world == []
    agent.invoke(_decide(answer), on("t"))
    assert world == ([("pay", "the thief", 5)] if answer is APPROVE else [])


def test_decided_elsewhere_none_goes_on(guard: Guard, world: World) -> None:
    """The question is in the ledger: who approves it there need not answer the interrupt."""
    agent = guard.wrap(_agent(world, PAY), POLICIES)
    agent.invoke(ask(), on("t"))
    guard.approvals.approve(guard.approvals.list()[0].id, by="alice")
    agent.invoke(None, on("t"))
    assert (world, states(guard)) == ([("pay", "A", 5)], {"t/1": "completed"})


@pytest.mark.parametrize("build", [_agent, _shared])
def test_a_question_of_a_tool_itself_gets_its_own_answer(guard: Guard, world: World, build: Any) -> None:
    """A tool that interrupts in its body, behind an approval: neither answer is taken for the other."""
    policies = {**POLICIES, "confirm": {"approve": True}}
    steps = [("pay", {"to": "A"}), ("confirm", {"question": "sure?"})]
    agent = guard.wrap(build(world, steps if build is _shared else steps[1]), policies)
    decisions = [APPROVE] * (2 if build is _shared else 1)
    agent.invoke(ask(), on("t"))
    (asked,) = agent.invoke(_decide(*decisions), on("t"))["__interrupt__"]
    assert asked.value == "sure?"
    agent.invoke(Command(resume="quite"), on("t"))
    assert world == [*([("pay", "A", 5)] if build is _shared else []), ("confirm", "quite")]
    assert states(guard) == {"t/1": "completed"}


def test_so_does_that_of_a_tool_beside_one_that_was_approved(guard: Guard, world: World) -> None:
    """What was approved is done by then, and its answer is still the first of the task."""
    agent = guard.wrap(_shared(world, [PAY, ("confirm", {"question": "sure?"})]), POLICIES)
    agent.invoke(ask(), on("t"))
    (asked,) = agent.invoke(_decide(APPROVE), on("t"))["__interrupt__"]
    assert (asked.value, world) == ("sure?", [("pay", "A", 5)])
    agent.invoke(Command(resume="quite"), on("t"))
    assert world == [("pay", "A", 5), ("confirm", "quite")]


def test_without_a_checkpointer_the_guard_s_approver_is_asked(world: World, tmp_path: Any) -> None:
    """An interrupt could never be answered there."""
    guard = Guard(f"sqlite:///{tmp_path}/ledger.db", approver=lambda request: request.args["amount"] < 9)
    agent = guard.wrap(create_agent(model(PAY), _tools(world)), POLICIES)
    agent.invoke(ask(), on("t"))
    assert world == [("pay", "A", 5)]


def test_another_process_answers(guard: Guard, world: World) -> None:
    """The question is in the checkpoint and in the ledger, not in an object: another agent over both goes on."""
    saver = InMemorySaver()
    guard.wrap(_agent(world, PAY, saver=saver), POLICIES).invoke(ask(), on("t"))
    guard.wrap(_agent(world, PAY, saver=saver), POLICIES).invoke(_decide(APPROVE), on("t"))
    assert world == [("pay", "A", 5)]


# -- code of a node that calls a tool itself -------------------------------------------------------------------


ONE = {"pay": POLICIES["pay"]}


def _plain(work: Any) -> Any:
    """A graph whose one node calls tools itself; what it gets stands in its message."""

    def act(state: Any) -> Any:
        return {"messages": [AIMessage(str(work()))]}

    graph: Any = StateGraph(MessagesState)
    graph.add_node("act", act)
    graph.add_edge(START, "act")
    return graph.compile(checkpointer=InMemorySaver())


DECIDED = {
    "approve": (APPROVE, [("pay", "A", 5)], "paid A"),
    "edit": ({"type": "edit", "edited_action": {"name": "pay", "args": {"to": "B"}}}, [("pay", "B", 5)], "paid B"),
    "reject": (REJECT, [], "too dear"),
    "respond": ({"type": "respond", "message": "in cash"}, [], "in cash"),
    "another": ({"type": "edit", "edited_action": {"name": "look", "args": {}}}, [], "cannot call"),
}


@pytest.mark.parametrize("decision", DECIDED)
@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_a_node_that_calls_a_gated_tool_pauses(guard: Guard, world: World, way: str, decision: str) -> None:
    """It asks where it calls it, with the same request; what it called before is not done again."""
    pay, _, look, _ = _tools(world)

    def work() -> str:
        look.invoke({"what": "x"})
        try:
            return str(pay.invoke({"to": "A"}))
        except ApprovalDenied as denied:
            return str(denied)

    agent = guard.wrap(_plain(work), ONE)
    answer, done, told = DECIDED[decision]

    async def go(given: Any) -> Any:
        return agent.invoke(given, on("t")) if way == "invoke" else await agent.ainvoke(given, on("t"))

    (asked,) = (await go(ask()))["__interrupt__"]
    assert asked.value["action_requests"][0]["args"] == {"to": "A", "amount": 5}
    assert (world, states(guard)) == ([("look", "x")], {"t/1": "paused"})
    assert told in (await go(_decide(answer)))["messages"][-1].text
    assert (world, states(guard)) == ([("look", "x"), *done], {"t/1": "completed"})


async def test_so_does_one_that_awaits_it(guard: Guard, world: World) -> None:
    """A coroutine of a node, with a tool that is called in a thread and one that is awaited."""

    @tool
    async def send(to: str) -> str:
        """Send."""
        world.append(("send", to))
        return "sent"

    pay, *_ = _tools(world)

    async def act(state: Any) -> Any:
        return {"messages": [AIMessage(await send.ainvoke({"to": "A"}) + await pay.ainvoke({"to": "A"}))]}

    graph: Any = StateGraph(MessagesState)
    graph.add_node("act", act)
    graph.add_edge(START, "act")
    agent = guard.wrap(graph.compile(checkpointer=InMemorySaver()), {"*": {"approve": True, "effect": "write"}})
    await agent.ainvoke(ask(), on("t"))
    (asked,) = (await agent.ainvoke(_decide(APPROVE), on("t")))["__interrupt__"]
    assert (asked.value["action_requests"][0]["name"], world) == ("pay", [("send", "A")])
    await agent.ainvoke(_decide(APPROVE), on("t"))
    assert world == [("send", "A"), ("pay", "A", 5)]


def _pay(pay: Any, to: str) -> str:
    """Pay, or say that a person denied it: code gets that as an exception."""
    try:
        return str(pay.invoke({"to": to}))
    except ApprovalDenied as denied:
        return str(denied)


@pytest.mark.parametrize("first", [APPROVE, REJECT])
def test_each_question_of_a_node_gets_its_own_answer(guard: Guard, world: World, first: Any) -> None:
    """Also with a question of the node's own between them."""
    pay, *_ = _tools(world)

    def work() -> str:
        told = [_pay(pay, "A"), interrupt("sure?"), _pay(pay, "B")]
        return str(told[1])

    agent = guard.wrap(_plain(work), ONE)
    agent.invoke(ask(), on("t"))
    (asked,) = agent.invoke(_decide(first), on("t"))["__interrupt__"]
    assert asked.value == "sure?"
    (asked,) = agent.invoke(Command(resume="quite"), on("t"))["__interrupt__"]
    assert asked.value["action_requests"][0]["args"]["to"] == "B"
    assert world == ([("pay", "A", 5)] if first is APPROVE else [])
    output = agent.invoke(_decide(APPROVE), on("t"))
    assert output["messages"][-1].text == "quite"
    assert world == [*([("pay", "A", 5)] if first is APPROVE else []), ("pay", "B", 5)]


def test_an_answer_to_one_question_of_a_node_is_not_that_to_another(guard: Guard, world: World) -> None:
    """What its code asks about now was not shown: it is asked about anew."""
    pay, *_ = _tools(world)
    to = ["A"]
    agent = guard.wrap(_plain(lambda: pay.invoke({"to": to[0]})), ONE)
    agent.invoke(ask(), on("t"))
    to[0] = "the thief"
    (asked,) = agent.invoke(_decide(APPROVE), on("t"))["__interrupt__"]
    assert (asked.value["action_requests"][0]["args"]["to"], world) == ("the thief", [])


def test_a_question_of_a_node_is_decided_elsewhere(guard: Guard, world: World) -> None:
    """In the ledger, as others; and a wrong answer is refused there too."""
    pay, *_ = _tools(world)
    agent = guard.wrap(_plain(lambda: pay.invoke({"to": "A"})), ONE)
    agent.invoke(ask(), on("t"))
    with pytest.raises(ValidationError):
        agent.invoke(Command(resume="yes"), on("t"))
    guard.approvals.approve(guard.approvals.list()[0].id, by="alice")
    agent.invoke(None, on("t"))
    assert world == [("pay", "A", 5)]


def _delegating(world: World, work: Any) -> list[Any]:
    pay, _, look, _ = _tools(world)

    @tool
    def delegate(to: str) -> str:
        """Delegate."""
        look.invoke({"what": to})
        return str(work(pay, to))

    @tool
    async def adelegate(to: str) -> str:
        """Delegate."""
        await look.ainvoke({"what": to})
        return str(await pay.ainvoke({"to": to}))

    return [delegate, adelegate]


@pytest.mark.parametrize("decision", ["approve", "edit", "reject", "respond"])
@pytest.mark.parametrize("way", ["delegate", "adelegate"])
async def test_within_the_body_of_another_tool_it_pauses(guard: Guard, world: World, way: str, decision: str) -> None:
    """Where that is the only call of its task, as in ``create_agent``: its code has an order, as that of a node."""
    tools = _delegating(world, lambda pay, to: pay.invoke({"to": to}))
    built = create_agent(model([(way, {"to": "A"})]), tools, checkpointer=InMemorySaver())
    agent = guard.wrap(built, {**ONE, "look": {"effect": "write"}})
    answer, done, told = DECIDED[decision]
    (asked,) = (await agent.ainvoke(ask(), on("t")))["__interrupt__"]
    assert asked.value["action_requests"][0]["args"] == {"to": "A", "amount": 5}
    assert (world, states(guard)) == ([("look", "A")], {"t/1": "paused"})
    (message,) = answers(await agent.ainvoke(_decide(answer), on("t")))
    assert told in message.text
    assert (world, states(guard)) == ([("look", "A"), *done], {"t/1": "completed"})


def test_so_does_one_that_asks_twice_beside_another_task(guard: Guard, world: World) -> None:
    """Two calls of one message are two tasks there, and each answer is for the question that it is given to."""
    work = lambda pay, to: (_pay(pay, to), _pay(pay, f"{to}2"))[1]  # noqa: E731
    steps = [("delegate", {"to": "A"}), ("delegate", {"to": "B"})]
    agent = guard.wrap(create_agent(model(steps), _delegating(world, work), checkpointer=InMemorySaver()), ONE)
    asked = agent.invoke(ask(), on("t"))["__interrupt__"]
    by_person = {one.value["action_requests"][0]["args"]["to"]: one.id for one in asked}
    resume: dict[str, Any] = {by_person["A"]: {"decisions": [APPROVE]}, by_person["B"]: {"decisions": [REJECT]}}
    asked = agent.invoke(Command(resume=resume), on("t"))["__interrupt__"]
    assert sorted(one.value["action_requests"][0]["args"]["to"] for one in asked) == ["A2", "B2"]
    agent.invoke(Command(resume={one.id: {"decisions": [APPROVE]} for one in asked}), on("t"))
    assert sorted(one for one in world if one[0] == "pay") == [("pay", "A", 5), ("pay", "A2", 5), ("pay", "B2", 5)]


@pytest.mark.parametrize("why", ["others", "gated"])
def test_where_it_has_no_order_it_waits_in_the_ledger(guard: Guard, world: World, why: str) -> None:
    """Beside other calls of its task, and in a tool that asks itself, no answer could be told to be its own."""
    (delegate, _), (*_, look, _) = _delegating(world, lambda pay, to: pay.invoke({"to": to})), _tools(world)
    graph: Any = StateGraph(MessagesState)
    calls = [("delegate", {"to": "A"}), *([("look", {"what": "x"})] if why == "others" else [])]
    chat = model(calls)
    graph.add_node("model", lambda state: {"messages": [chat.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([delegate, look]))
    graph.add_edge(START, "model")
    graph.add_edge("model", "tools")
    policies = {**ONE, "delegate": {"approve": "to == 'Z'"}} if why == "gated" else ONE
    agent = guard.wrap(graph.compile(checkpointer=InMemorySaver()), policies)
    with pytest.raises(ApprovalPending) as caught:
        agent.invoke(ask(), on("t"))
    assert (("pay", "A", 5) not in world, states(guard)) == (True, {"t/1": "paused"})
    guard.approvals.approve(caught.value.approval_id, by="alice")
    agent.invoke(None, on("t"))
    assert ("pay", "A", 5) in world


# -- several people --------------------------------------------------------------------------------------------


def _as(person: str) -> dict[str, Any]:
    """The config of a conversation, for somebody whom LangGraph's server knows."""
    return {"configurable": {"thread_id": "t", "langgraph_auth_user_id": person}}


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
@pytest.mark.parametrize("build", [_agent, _shared])
async def test_several_people_answer_one_after_the_other(guard: Guard, world: World, way: str, build: Any) -> None:
    """The same question is asked until as many have agreed; nobody is counted twice, and it is done once."""
    policies = {"refund": {"effect": "write", "approve": True, "approval": {"approvers": 2}}}
    agent = guard.wrap(build(world, [("refund", {"to": "A", "amount": 9})]), policies)

    async def go(given: Any, config: Any) -> Any:
        return agent.invoke(given, config) if way == "invoke" else await agent.ainvoke(given, config)

    (asked,) = (await go(ask(), on("t")))["__interrupt__"]
    for person in ("alice", "alice"):
        (again,) = (await go(_decide(APPROVE), _as(person)))["__interrupt__"]
        assert again.value["approval_ids"] == asked.value["approval_ids"]
    assert (world, guard.approvals.list()[0].approved_by) == ([], ("alice",))
    await go(_decide(APPROVE), _as("bob"))
    assert (world, states(guard)) == ([("refund", "A", 9)], {"t/1": "completed"})


def test_beside_other_questions_such_an_edit_waits_in_the_ledger(guard: Guard, world: World) -> None:
    """It is not made before the second person agrees, and what was approved beside it is done once."""
    refund = {"effect": "write", "approve": True, "approval": {"approvers": 2}}
    agent = guard.wrap(_shared(world, [PAY, ("pay", {"to": "C"})]), {**POLICIES, "refund": refund})
    agent.invoke(ask(), on("t"))
    other = {"type": "edit", "edited_action": {"name": "refund", "args": {"to": "A", "amount": 9}}}
    with pytest.raises(ApprovalPending) as caught:
        agent.invoke(_decide(other, APPROVE), _as("alice"))
    assert (world, states(guard)) == ([("pay", "C", 5)], {"t/1": "paused"})
    with pytest.raises(ApprovalPending):
        agent.invoke(None, on("t"))
    assert world == [("pay", "C", 5)]
    guard.approvals.approve(caught.value.approval_id, by="bob")
    output = agent.invoke(None, on("t"))
    assert (world, states(guard)) == ([("pay", "C", 5), ("refund", "A", 9)], {"t/1": "completed"})
    assert _called(output) == [("refund", {"to": "A", "amount": 9}), ("pay", {"to": "C"})]


def test_an_edit_needs_as_many(guard: Guard, world: World) -> None:
    """Who edits has agreed to that, and the others are shown it."""
    policies = {"refund": {"effect": "write", "approve": True, "approval": {"approvers": 2}}}
    agent = guard.wrap(_agent(world, ("refund", {"to": "A", "amount": 9})), policies)
    agent.invoke(ask(), on("t"))
    edit = {"type": "edit", "edited_action": {"name": "refund", "args": {"amount": 8}}}
    (asked,) = agent.invoke(_decide(edit), _as("alice"))["__interrupt__"]
    assert "8" in asked.value["action_requests"][0]["description"]
    agent.invoke(_decide(APPROVE), _as("bob"))
    assert world == [("refund", "A", 8)]


def test_one_no_of_several_people_ends_it(guard: Guard, world: World) -> None:
    """As everywhere: the first no is final."""
    policies = {"refund": {"effect": "write", "approve": True, "approval": {"approvers": 2}}}
    agent = guard.wrap(_agent(world, ("refund", {"to": "A", "amount": 9})), policies)
    agent.invoke(ask(), on("t"))
    agent.invoke(_decide(APPROVE), _as("alice"))
    (told,) = answers(agent.invoke(_decide(REJECT), _as("bob")))
    assert (told.status, world) == ("error", [])


# -- the model's message after an edit -------------------------------------------------------------------------


def _called(output: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(call["name"], call["args"]) for one in output["messages"] for call in getattr(one, "tool_calls", ())]


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
@pytest.mark.parametrize("build", [_agent, _shared])
async def test_the_message_names_what_really_ran(guard: Guard, world: World, way: str, build: Any) -> None:
    """Edits to another tool and to other arguments, side by side; what was not edited stays."""
    agent = guard.wrap(build(world, [PAY, ("pay", {"to": "C"}), ("look", {"what": "x"})]), POLICIES)

    async def go(given: Any) -> Any:
        return agent.invoke(given, on("t")) if way == "invoke" else await agent.ainvoke(given, on("t"))

    asked = (await go(ask()))["__interrupt__"]
    other = {"type": "edit", "edited_action": {"name": "refund", "args": {"to": "A", "amount": 9}}}
    same = {"type": "edit", "edited_action": {"name": "pay", "args": {"to": "D"}}}
    if build is _shared:
        output = await go(_decide(other, same))
    else:
        resume = {
            one.id: {"decisions": [other if one.value["action_requests"][0]["args"]["to"] == "A" else same]}
            for one in asked
        }
        output = await go(Command(resume=resume))
    assert sorted(world) == [("look", "x"), ("pay", "D", 5), ("refund", "A", 9)]
    assert _called(output) == [("refund", {"to": "A", "amount": 9}), ("pay", {"to": "D"}), ("look", {"what": "x"})]
    assert [one.name for one in answers(output)] == ["refund", "pay", "look"]
    assert len([one for one in output["messages"] if isinstance(one, AIMessage)]) == 2


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
@pytest.mark.parametrize("build", [_agent, _shared])
async def test_so_it_does_after_an_edit_elsewhere(guard: Guard, world: World, way: str, build: Any) -> None:
    """In the ledger while the graph is paused; also where the task runs again because another tool of it asks."""
    policies = {"pay": POLICIES["pay"]}
    agent = guard.wrap(build(world, [PAY, ("confirm", {"question": "sure?"})]), policies)

    async def go(given: Any) -> Any:
        return agent.invoke(given, on("t")) if way == "invoke" else await agent.ainvoke(given, on("t"))

    await go(ask())
    guard.approvals.edit(guard.approvals.list()[0].id, {"to": "B", "amount": 4}, by="alice")
    (asked,) = (await go(None))["__interrupt__"]
    assert (asked.value, world) == ("sure?", [("pay", "B", 4)])
    output = await go(Command(resume={asked.id: "quite"}))
    assert _called(output) == [("pay", {"to": "B", "amount": 4}), ("confirm", {"question": "sure?"})]
    assert world == [("pay", "B", 4), ("confirm", "quite")]


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
@pytest.mark.parametrize("build", [_agent, _shared])
async def test_so_it_does_after_that_of_an_approver(guard: Guard, world: World, way: str, build: Any) -> None:
    """Where no checkpointer is in force; what he only agrees to stays."""
    built = build(world, [("pay", {"to": "A"}), ("pay", {"to": "B"}), ("look", {"what": "x"})])
    built.checkpointer = None
    agent = guard.wrap(built, POLICIES)

    def decide(request: Any) -> Any:
        return Edit({"to": "A", "amount": 4}) if request.args["to"] == "A" else Approve()

    with guard.override(approver=decide):
        output = agent.invoke(ask()) if way == "invoke" else await agent.ainvoke(ask())
    assert sorted(world) == [("look", "x"), ("pay", "A", 4), ("pay", "B", 5)]
    assert _called(output) == [("pay", {"to": "A", "amount": 4}), ("pay", {"to": "B"}), ("look", {"what": "x"})]
    assert len([one for one in output["messages"] if isinstance(one, AIMessage)]) == 2


def test_a_state_that_only_appends_keeps_its_message(guard: Guard, world: World) -> None:
    """A second one would stand there beside the first."""

    class Appending(TypedDict):
        """A state without LangGraph's own way to merge messages."""

        messages: Annotated[list[Any], operator.add]

    graph: Any = StateGraph(Appending)
    calls = [{"name": "pay", "args": {"to": "A"}, "id": "c"}]
    graph.add_node("model", lambda state: {"messages": [AIMessage("", id="m", tool_calls=calls)]})
    graph.add_node("tools", ToolNode(_tools(world)))
    graph.add_edge(START, "model")
    graph.add_edge("model", "tools")
    agent = guard.wrap(graph.compile(checkpointer=InMemorySaver()), POLICIES)
    agent.invoke({"messages": []}, on("t"))
    output = agent.invoke(_decide({"type": "edit", "edited_action": {"name": "pay", "args": {"to": "B"}}}), on("t"))
    assert (_called(output), world) == ([("pay", {"to": "A"})], [("pay", "B", 5)])


def test_an_edit_to_another_tool_outlives_a_question_of_that_tool(guard: Guard, world: World) -> None:
    """The task runs again as a whole: what was asked for first is denied by then, and the other is still meant."""
    agent = guard.wrap(_agent(world, PAY), POLICIES)
    agent.invoke(ask(), on("t"))
    edit = {"type": "edit", "edited_action": {"name": "confirm", "args": {"question": "sure?"}}}
    (asked,) = agent.invoke(_decide(edit), on("t"))["__interrupt__"]
    assert asked.value == "sure?"
    output = agent.invoke(Command(resume="quite"), on("t"))
    assert (world, _called(output)) == ([("confirm", "quite")], [("confirm", {"question": "sure?"})])
