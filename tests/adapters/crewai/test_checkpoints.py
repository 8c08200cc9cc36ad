"""What CrewAI keeps of its own: a wrapped crew or flow goes on from it, guarded; not in a run that goes on as well."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crewai import Agent, Crew, Task
from crewai.events import crewai_event_bus
from crewai.flow.async_feedback import HumanFeedbackPending
from crewai.flow.flow import Flow, listen, start
from crewai.flow.human_feedback import human_feedback
from crewai.flow.persistence import SQLiteFlowPersistence, persist
from crewai.state.checkpoint_config import CheckpointConfig
from crewai.tools import BaseTool

from sagaspan import ApprovalPending, ConfigurationError, Guard, Policy
from tests.adapters.crewai.scripts import ask, crew_of
from tests.adapters.crewai.test_models import of_openai
from tests.adapters.crewai.test_tools import pay_tool, states
from tests.providers.replies import Reply, ToolCall
from tests.providers.server import ModelServer

WORLD: list[object] = []
"""Outside the tool, which a checkpoint makes anew."""
ASKED = {"pay": Policy(approve="amount == 2")}


class Pay(BaseTool):
    """A tool that a checkpoint can find again."""

    name: str = "pay"
    description: str = "Pay."

    def _run(self, amount: int) -> str:
        WORLD.append(amount)
        return f"paid {amount}"


def pays(amount: int) -> Reply:
    return Reply(tool_calls=(ToolCall(name="pay", arguments={"amount": amount}),))


@pytest.fixture
def make(tmp_path: Path, model_server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Crew]:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    WORLD.clear()

    def made() -> Crew:
        clerk = Agent(role="Clerk", goal="g", backstory="b", llm=of_openai(model_server), tools=[Pay()])
        tasks = [Task(description=f"do {n}", expected_output="x", agent=clerk) for n in (1, 2)]
        return Crew(agents=[clerk], tasks=tasks, checkpoint=CheckpointConfig(location=str(tmp_path / "checkpoints")))

    return made


@pytest.fixture
def checkpoint(guard: Guard, make: Callable[[], Crew], model_server: ModelServer, tmp_path: Path) -> CheckpointConfig:
    """Of a crew that waits for an approval in its second task."""
    for _ in range(50):  # CrewAI writes it beside the crew's work, and gives up where that changes what it writes
        model_server.say(pays(1), Reply(text="one"), pays(2))
        with pytest.raises(ApprovalPending):
            guard.wrap(make(), ASKED, run_id="trip").kickoff()
        crewai_event_bus.flush()
        if written := list((tmp_path / "checkpoints").rglob("*.json")):
            break
    return CheckpointConfig(location=str(tmp_path / "checkpoints"), restore_from=str(written[0]))


def entered(name: str, guard: Guard, crew: Crew, checkpoint: CheckpointConfig, run_id: str) -> Any:
    if name == "kickoff":
        return guard.wrap(crew, ASKED, run_id=run_id).kickoff(from_checkpoint=checkpoint)
    return guard.wrap(Crew.from_checkpoint(checkpoint), ASKED, run_id=run_id).kickoff()


@pytest.mark.parametrize("name", ["kickoff", "from_checkpoint"])
def test_a_crew_goes_on_from_its_checkpoint_under_the_guard(
    guard: Guard, make: Callable[[], Crew], checkpoint: CheckpointConfig, model_server: ModelServer, name: str
) -> None:
    model_server.say(pays(3), Reply(text="two"))
    assert entered(name, guard, make(), checkpoint, "another").raw == "two"
    assert WORLD == [1, 3]
    assert states(guard)[-1] == ("pay", "done")
    model_server.say(pays(2), Reply(text="two"))
    with pytest.raises(ApprovalPending):
        entered(name, guard, make(), checkpoint, "third")
    assert WORLD == [1, 3]


@pytest.mark.parametrize("name", ["kickoff", "from_checkpoint"])
def test_a_checkpoint_does_not_go_on_in_a_run_that_goes_on_too(
    guard: Guard, make: Callable[[], Crew], checkpoint: CheckpointConfig, model_server: ModelServer, name: str
) -> None:
    with pytest.raises(ConfigurationError, match="both say what was done"):
        entered(name, guard, make(), checkpoint, "trip")
    for request in guard.approvals.list():
        guard.approvals.approve(request.id)
    model_server.say(pays(1), Reply(text="one"), pays(2), Reply(text="two"))
    assert guard.wrap(make(), ASKED, run_id="trip").kickoff().raw == "two"
    assert WORLD == [1, 2]


# -- flows -------------------------------------------------------------------------------------------------------


class Slow:
    """Somebody whose feedback takes days."""

    def request_feedback(self, context: Any, flow: Any) -> str:
        raise HumanFeedbackPending(context=context)


@pytest.fixture
def trips(tmp_path: Path, world: list[object]) -> tuple[type[Flow[Any]], SQLiteFlowPersistence]:
    store = SQLiteFlowPersistence(str(tmp_path / "flows.db"))
    pay = pay_tool(world)

    class Trip(Flow[Any]):
        @start()
        @human_feedback(message="go on?", provider=Slow())  # type: ignore[arg-type]
        def first(self) -> Any:
            return crew_of([ask("pay", amount=1)], [pay]).kickoff().raw

        @listen(first)
        def second(self) -> Any:
            return crew_of([ask("pay", amount=1), ask("pay", amount=2)], [pay]).kickoff().raw

    return persist(store)(Trip), store


def test_a_flow_that_waited_for_feedback_goes_on_in_a_run_of_its_own(
    guard: Guard, world: list[object], trips: tuple[type[Flow[Any]], SQLiteFlowPersistence]
) -> None:
    kind, store = trips
    waiting = guard.wrap(kind(), {"pay": Policy(effect="write")}, run_id="trip").kickoff()
    assert isinstance(waiting, HumanFeedbackPending)
    again = kind.from_pending(waiting.context.flow_id, store)
    with pytest.raises(ConfigurationError, match="both say what was done"):
        guard.wrap(again, run_id="trip").resume("yes")
    assert world == [1]
    assert guard.wrap(again, run_id="the rest").resume("yes") == "done"
    assert world == [1, 1, 2]
    assert {run.id: str(run.status) for run in guard.runs.list()} == {"trip": "completed", "the rest": "completed"}


def test_a_flow_that_is_persisted_does_nothing_twice_in_the_same_run(
    guard: Guard, world: list[object], tmp_path: Path
) -> None:
    """It begins anew, with its state, and is answered with what it did."""
    pay = pay_tool(world)

    @persist(SQLiteFlowPersistence(str(tmp_path / "flows.db")))
    class Trip(Flow[Any]):
        @start()
        def first(self) -> None:
            self.state["paid"] = crew_of([ask("pay", amount=1)], [pay]).kickoff().raw

        @listen(first)
        def second(self) -> Any:
            return crew_of([ask("pay", amount=2)], [pay]).kickoff().raw

    flow = Trip()
    with pytest.raises(ApprovalPending) as pending:
        guard.wrap(flow, ASKED, run_id="trip").kickoff()
    guard.approvals.approve(pending.value.approval_id)
    again = guard.wrap(Trip(), ASKED, run_id="trip")
    assert again.kickoff(inputs={"id": flow.flow_id}) == "done"
    assert again.state["paid"] == "done"
    assert world == [1, 2]
