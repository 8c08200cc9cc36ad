"""A wrapped crew stops for a budget, a loop, an abort or a question, out of every entry point, and is undone."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import threading
import traceback
from typing import Any

import pytest
from crewai import Crew, Process, Task
from crewai.flow.flow import Flow, listen, start
from crewai.tools import tool

from sagaspan import ApprovalPending, BudgetExceeded, Guard, Policy
from tests.adapters.crewai.entries import ENTRIES, prepared
from tests.adapters.crewai.scripts import Ask, Scripted, agent_of, ask, crew_of, model_of
from tests.adapters.crewai.test_tools import states

TWO_CALLS = "2 calls"


def shop(world: list[object]) -> tuple[Any, Any]:
    @tool("book")
    def book(room: str) -> str:
        """Book."""
        world.append(f"book {room}")
        return f"booked {room}"

    @tool("cancel")
    def cancel(room: str) -> str:
        """Cancel."""
        world.append(f"cancel {room}")
        return "cancelled"

    return book, cancel


UNDONE: dict[str, Any] = {"book": Policy(compensate="cancel")}
SCRIPT = [ask("book", room="a"), ask("book", room="b"), ask("book", room="c")]


@pytest.mark.parametrize("name", ENTRIES)
def test_everything_waits_for_approval_and_goes_on_with_the_same_run(
    guard: Guard, world: list[object], name: str, native: bool
) -> None:
    make, enter = ENTRIES[name]
    tools = shop(world)
    policies = {"book": Policy(compensate=tools[1].func, approve="room == 'b'")}

    def again() -> Any:
        target = make(SCRIPT[:2], tools, native)
        prepared(name, target)
        return enter(guard.wrap(target, policies, run_id="trip"))

    with pytest.raises(ApprovalPending) as pending:
        again()
    assert world == ["book a"]
    assert [str(run.status) for run in guard.runs.list()] == ["paused"]
    guard.approvals.approve(pending.value.approval_id)
    again()
    assert world == ["book a", "book b"]
    assert [str(run.status) for run in guard.runs.list()] == ["completed"]


def test_an_approver_in_the_process_is_asked_while_the_crew_waits(
    guard: Guard, world: list[object], native: bool
) -> None:
    asked: list[Any] = []
    policies = {"book": Policy(approve=True)}
    with guard.override(approver=lambda request: asked.append(request.args) or True):
        guard.wrap(crew_of(SCRIPT[:1], shop(world), native), policies).kickoff()
    assert (asked, world) == ([{"room": "a"}], ["book a"])


def test_an_approver_that_raises_refuses(guard: Guard, world: list[object], native: bool) -> None:
    crew = crew_of(SCRIPT[:1], shop(world), native)
    with guard.override(approver=lambda _request: 1 / 0):
        assert guard.wrap(crew, {"book": Policy(approve=True)}).kickoff().raw == "done"
    assert world == []
    assert "ApprovalDenied" in model_of(crew).heard


class Closed(io.StringIO):
    """A standard input that is closed, as of a service, or at its end, as with ``</dev/null``."""

    def __init__(self, *, closed: bool) -> None:
        super().__init__()
        if closed:
            self.close()


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "at its end"])
def test_a_terminal_without_input_lets_nothing_run(
    guard: Guard, world: list[object], native: bool, closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the hook that CrewAI documents for approvals lets the tool run: there an error of a hook is swallowed."""
    monkeypatch.setattr("sys.stdin", Closed(closed=closed))
    crew = crew_of(SCRIPT[:1], shop(world), native)
    with guard.override(approver="console"), contextlib.suppress(ApprovalPending):
        guard.wrap(crew, {"book": Policy(approve=True)}, run_id="trip").kickoff()
    assert world == []
    denied = "ApprovalDenied" in model_of(crew).heard
    waiting = [request.args for request in guard.approvals.list()]
    assert denied if closed else waiting == [{"room": "a"}]


def test_a_process_without_input_lets_nothing_run(guard: Guard, world: list[object], native: bool) -> None:
    """The descriptor itself is at its end."""
    ours, theirs = os.pipe()
    os.close(theirs)
    with os.fdopen(ours) as empty, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", empty)
        with guard.override(approver="console"), pytest.raises(ApprovalPending):
            guard.wrap(crew_of(SCRIPT[:1], shop(world), native), {"book": Policy(approve=True)}).kickoff()
    assert world == []


def test_an_abort_ends_the_kickoff_and_undoes_it(guard: Guard, world: list[object], native: bool) -> None:
    book, cancel = shop(world)

    @tool("panic")
    def panic(why: str) -> str:
        """Stop."""
        run = guard.current_run()
        assert run is not None
        run.abort(why)
        return "stopping"

    crew = crew_of([SCRIPT[0], ask("panic", why="fire"), SCRIPT[1]], [book, cancel, panic], native)
    with guard.run("day") as run, pytest.raises(Exception, match="was aborted"):
        guard.wrap(crew, UNDONE).kickoff()
    assert world == ["book a", "cancel a"]
    assert (str(run.status), run.reason) == ("compensated", "aborted")


def test_a_stop_within_the_body_of_a_declared_write_leaves_it_to_somebody(guard: Guard, world: list[object]) -> None:
    """What else that body had done nobody knows, so nothing is undone by a guess."""

    @guard.tool(effect="write")
    def organize() -> None:
        guard.wrap(crew_of(SCRIPT, shop(world)), UNDONE).kickoff()

    with pytest.raises(BudgetExceeded), guard.run(id="trip", budget="3 calls"):
        organize()
    assert world == ["book a"]
    assert str(guard.runs.get("trip").status) == "held"
    assert [call.tool for call in guard.calls.list() if str(call.state) == "unknown"] == ["organize"]


def test_a_critical_failure_ends_the_kickoff_as_that_error(guard: Guard, world: list[object], native: bool) -> None:
    @tool("charge")
    def charge(amount: int) -> str:
        """Charge."""
        world.append(amount)
        raise ZeroDivisionError("no card")

    crew = crew_of([SCRIPT[0], ask("charge", amount=1), SCRIPT[1]], [*shop(world), charge], native)
    policies = {**UNDONE, "charge": Policy(critical=True, error_means="failed")}
    with pytest.raises(ZeroDivisionError, match="no card") as raised:
        guard.wrap(crew, policies).kickoff()
    assert world == ["book a", 1, "cancel a"]
    frames = traceback.extract_tb(raised.value.__traceback__)
    assert frames[-1].name == "charge"
    assert not [frame for frame in frames if "site-packages/crewai" in frame.filename]


def test_an_error_of_the_user_undoes_and_passes_through(guard: Guard, world: list[object]) -> None:
    def broken(_output: Any) -> None:
        raise ValueError("my callback")

    crew = crew_of(SCRIPT[:1], shop(world), task={"callback": broken})
    with pytest.raises(ValueError, match="my callback"):
        guard.wrap(crew, UNDONE).kickoff()
    assert world == ["book a", "cancel a"]


@pytest.mark.parametrize("name", ["crew-kickoff", "crew-akickoff"])
def test_asynchronous_tasks_end_too_and_the_call_in_flight_is_waited_for(
    guard: Guard, world: list[object], name: str
) -> None:
    book, cancel = shop(world)
    begun, refused = threading.Event(), threading.Event()

    @tool("slow")
    def slow(room: str) -> str:
        """Book slowly."""
        begun.set()
        refused.wait(60)
        world.append(f"book {room}")
        return "slow"

    def price(room: str) -> str:
        begun.wait(60)
        threading.Timer(0.05, refused.set).start()  # the refusal is about to be
        return "9 USD"

    patient = agent_of([ask("slow", room="s"), ask("book", room="never")], [slow, cancel])
    hasty = agent_of([ask("book", room="dear")], [book], role="Hasty")
    jobs = [
        Task(description="one", expected_output="x", agent=patient, async_execution=True),
        Task(description="two", expected_output="x", agent=hasty, async_execution=True),
        Task(description="three", expected_output="x", agent=agent_of([], role="Last")),
    ]
    policies = {"book": Policy(compensate="cancel", cost=price), "slow": Policy(compensate="cancel")}
    wrapped = guard.wrap(Crew(agents=[patient, hasty], tasks=jobs), policies, budget="1 USD")
    with pytest.raises(BudgetExceeded):
        ENTRIES[name][1](wrapped)
    assert world == ["book s", "cancel s"]


def hierarchy(world: list[object], native: bool, manager: list[Any], worker: list[Any], **options: Any) -> Crew:
    clerk = agent_of(worker, shop(world), native)
    boss = agent_of(manager, (), native, role="Boss", allow_delegation=True)
    job = Task(description="do", expected_output="x")
    return Crew(agents=[clerk], tasks=[job], manager_agent=boss, process=Process.hierarchical, **options)


DELEGATE = ask("delegate_work_to_coworker", task="book", context="none", coworker="Clerk")


def test_a_delegated_worker_that_waits_for_approval_goes_on_later(
    guard: Guard, world: list[object], native: bool
) -> None:
    policies = {"book": Policy(compensate="cancel", approve="room == 'b'")}

    def again() -> Any:
        crew = hierarchy(world, native, [DELEGATE], SCRIPT[:2])
        return guard.wrap(crew, policies, run_id="trip").kickoff()

    with pytest.raises(ApprovalPending) as pending:
        again()
    guard.approvals.approve(pending.value.approval_id)
    assert again().raw == "done"
    assert world == ["book a", "book b"]


class Trip(Flow[Any]):
    """A flow that kicks a crew off, and asks an agent."""

    crew: Any = None
    agent: Any = None

    @start()
    def plan(self) -> Any:
        return self.crew.kickoff().raw

    @listen(plan)
    def book(self, _planned: Any) -> Any:
        return self.agent.kickoff("go")


@pytest.mark.parametrize("how", ["kickoff", "kickoff_async", "akickoff"])
def test_a_flow_stops_with_what_it_kicked_off(guard: Guard, world: list[object], how: str) -> None:
    trip = Trip(crew=crew_of(SCRIPT[:1], shop(world)), agent=agent_of(SCRIPT[1:], shop(world)))
    wrapped = guard.wrap(trip, {"book": Policy(compensate=shop(world)[1].func, cost="1 USD")}, budget="2.5 USD")
    assert isinstance(wrapped, Trip)
    with pytest.raises(BudgetExceeded):
        wrapped.kickoff() if how == "kickoff" else asyncio.run(getattr(wrapped, how)())
    assert world == ["book a", "book b", "cancel b", "cancel a"]
    assert [run.name for run in guard.runs.list()] == ["Trip"]


class Stubborn(Trip):
    """A flow that goes on whatever happens."""

    @start()
    def plan(self) -> Any:
        with contextlib.suppress(Exception):
            self.crew.kickoff()
        return "went on"


def test_a_flow_that_swallows_the_stop_is_stopped_all_the_same(guard: Guard, world: list[object]) -> None:
    trip = Stubborn(crew=crew_of(SCRIPT, shop(world)), agent=agent_of(SCRIPT, shop(world)))
    policies = {"book": Policy(compensate=shop(world)[1].func, approve="room == 'b'")}
    with pytest.raises(ApprovalPending):
        guard.wrap(trip, policies).kickoff()
    assert world == ["book a"]


def test_parallel_calls_end_before_anything_is_undone(guard: Guard, world: list[object]) -> None:
    rooms = [[Ask("book", room=room) for room in "abcdef"]]
    crew = crew_of(rooms, shop(world))
    with pytest.raises(BudgetExceeded):
        guard.wrap(crew, {"book": Policy(compensate="cancel", cost="1 USD")}, budget="3.5 USD").kickoff()
    booked = [str(what)[5:] for what in world if str(what).startswith("book")]
    assert len(booked) == 3
    assert sorted(str(what)[7:] for what in world[3:]) == sorted(booked)


def test_a_budget_of_money_stops_before_a_model_is_asked(guard: Guard, world: list[object], native: bool) -> None:
    crew = crew_of(SCRIPT, shop(world), native)
    with pytest.raises(BudgetExceeded):
        guard.wrap(crew, budget=TWO_CALLS).kickoff()
    assert world == ["book a"]
    assert len(model_of(crew).seen) == 1
    assert isinstance(model_of(crew), Scripted)


def test_all_questions_of_a_turn_are_asked_together(guard: Guard, world: list[object]) -> None:
    def again() -> Any:
        crew = crew_of([[Ask("book", room=room) for room in "abcd"]], shop(world))
        return guard.wrap(crew, {"book": Policy(compensate="cancel", approve=True)}, run_id="trip").kickoff()

    with pytest.raises(ApprovalPending):
        again()
    waiting = guard.approvals.list()
    assert sorted(request.args["room"] for request in waiting) == ["a", "b", "c", "d"]
    assert world == []
    for request in waiting:
        guard.approvals.approve(request.id)
    assert again().raw == "done"
    assert sorted(str(what) for what in world) == ["book a", "book b", "book c", "book d"]


@pytest.mark.parametrize("swallows", [False, True], ids=["passes-on", "swallows"])
def test_a_crew_in_the_body_of_a_tool_that_waits_for_approval_goes_on_later(
    guard: Guard, world: list[object], native: bool, swallows: bool
) -> None:
    """The tool around it is asked again: neither in doubt, nor done with the words that it made of the pause."""

    @tool("pay")
    def pay(amount: int) -> str:
        """Pay."""
        world.append(amount)
        return "paid"

    @tool("department")
    def department(question: str) -> str:
        """Ask a department."""
        try:
            return str(crew_of([ask("pay", amount=5)], [pay], native).kickoff().raw)
        except Exception as error:
            if swallows:
                return f"sorry: {error}"
            raise

    policies = {"pay": Policy(effect="write", approve=True), "department": Policy(effect="write")}

    def kickoff() -> str:
        crew = crew_of([ask("department", question="may I?")], [department, pay], native)
        return str(guard.wrap(crew, policies, run_id="order-1").kickoff().raw)

    with pytest.raises(ApprovalPending) as pending:
        kickoff()
    guard.approvals.approve(pending.value.approval_id)
    for _ in range(2):
        assert kickoff() == "done"
    assert world == [5]
    assert states(guard) == [("department", "done"), ("pay", "done")]
