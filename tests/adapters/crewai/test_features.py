"""What CrewAI has of its own keeps its meaning under a guard: replay, memory, MCP, limits, caches; and bad input."""

from __future__ import annotations

import copy
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crewai import Crew, Task
from crewai.hooks.dispatch import InterceptionPoint, scoped_hooks
from crewai.tools import BaseTool, tool
from crewai.tools.tool_failure import ToolExecutionFailedError, ToolFailure, ToolFailurePolicy

import sagaspan_crewai._bodies as bodies
import sagaspan_crewai._compat as compat
from sagaspan import BudgetExceeded, CompensationFailed, ConfigurationError, Guard, Policy
from tests.adapters.crewai.scripts import Say, agent_of, ask, crew_of, model_of
from tests.adapters.crewai.test_tools import pay_tool, states

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_a_task_that_is_replayed_is_a_run(guard: Guard, world: list[object]) -> None:
    clerk = agent_of([Say("one"), ask("pay", amount=5), Say("two"), ask("pay", amount=6)], [pay_tool(world)])
    tasks = [Task(description=f"do {n}", expected_output="x", agent=clerk) for n in (1, 2)]
    wrapped = guard.wrap(Crew(agents=[clerk], tasks=tasks))
    wrapped.kickoff()
    assert wrapped.replay(str(tasks[1].id)).raw == "done"
    assert world == [5, 6]
    assert len(guard.runs.list()) == 2


def test_a_tool_that_says_itself_that_it_failed_has_failed(guard: Guard, world: list[object], native: bool) -> None:
    @tool("pay")
    def pay(amount: int) -> Any:
        """Pay."""
        world.append(amount)
        return ToolFailure(message="no card on file")

    crew = crew_of([ask("pay", amount=1)], [pay], native)
    output = guard.wrap(crew).kickoff()
    assert states(guard) == [("pay", "failed")]
    assert "no card on file" in model_of(crew).heard
    assert [record.failure.message for record in output.tasks_output[0].tool_failures] == ["no card on file"]


def test_a_tool_that_says_that_it_could_not_undo_has_not(guard: Guard, world: list[object], native: bool) -> None:
    @tool("refund")
    def refund(amount: int) -> Any:
        """Refund."""
        return ToolFailure(message="the till is closed")

    @tool("ship")
    def ship(to: str) -> str:
        """Ship."""
        raise ZeroDivisionError("no lorry")

    crew = crew_of([ask("pay", amount=1), ask("ship", to="x")], [pay_tool(world), refund, ship], native)
    with pytest.raises(CompensationFailed, match="NOT undone, a person must look: pay"):
        guard.wrap(crew, {"pay": Policy(compensate="refund"), "ship": Policy(critical=True)}).kickoff()
    assert ("pay", "compensation_failed") in states(guard)


def test_a_crew_that_shall_raise_for_failed_tools_does(guard: Guard, world: list[object], native: bool) -> None:
    @tool("pay")
    def pay(amount: int) -> Any:
        """Pay."""
        raise ZeroDivisionError("no card")

    options = {"tool_failure_policy": ToolFailurePolicy.RAISE}
    policies = {"book": Policy(compensate="unbook")}
    crew = crew_of(
        [ask("book", amount=1), ask("pay", amount=1)],
        [pay_tool(world, "book"), pay_tool(world, "unbook"), pay], native, agent=options,
    )  # fmt: skip
    with pytest.raises(ToolExecutionFailedError, match="no card"):
        guard.wrap(crew, policies).kickoff()
    assert world == [1, 1]


def test_a_limit_of_uses_keeps_its_meaning(guard: Guard, world: list[object]) -> None:
    crew = crew_of([ask("pay", amount=n) for n in range(4)], [pay_tool(world, max_usage_count=2)])
    guard.wrap(crew).kickoff()
    assert world == [0, 1]


def test_the_cache_of_a_crew_keeps_its_meaning_and_holds_no_failures(
    guard: Guard, world: list[object], native: bool
) -> None:
    script = [ask("pay", amount=1), ask("pay", amount=2), ask("pay", amount=1)]
    crew = crew_of(script, [pay_tool(world)], native, cache=True)
    guard.wrap(crew).kickoff()
    assert world == [1, 2]
    world.clear()

    @tool("pay")
    def flaky(amount: int) -> str:
        """Pay."""
        world.append(amount)
        return str(1 / (len(world) - 1))

    guard.wrap(crew_of(script, [flaky], native, cache=True)).kickoff()
    assert world == [1, 2, 1]


def test_a_tool_keeps_its_usage_of_other_tools(guard: Guard, world: list[object], native: bool) -> None:
    inner = pay_tool(world, "inner")

    @tool("outer")
    def outer(amount: int) -> str:
        """Pay twice."""
        return str(inner.run(amount=amount)) + str(inner.run(amount=amount))

    crew = crew_of([ask("outer", amount=1)], [outer, inner], native)
    guard.wrap(crew, {"inner": Policy(effect="write")}).kickoff()
    assert world == [1]
    assert sorted(states(guard)) == [("inner", "done"), ("outer", "done")]


def test_scoped_hooks_of_the_user_stay(guard: Guard, world: list[object]) -> None:
    seen: list[str] = []
    with scoped_hooks({InterceptionPoint.PRE_TOOL_CALL: [lambda hook: seen.append(hook.tool_name)]}):
        guard.wrap(crew_of([ask("pay", amount=1)], [pay_tool(world)])).kickoff()
    assert (seen, world) == (["pay"], [1])


def test_a_tool_that_another_guard_function_declares_keeps_its_policy(guard: Guard, world: list[object]) -> None:
    @guard.tool("pay", effect="write")
    def pay(amount: int) -> str:
        """Pay."""
        world.append(amount)
        return "paid"

    crew = crew_of([ask("pay", amount=1)] * 2, [tool("pay")(pay)])
    guard.wrap(crew).kickoff()
    assert world == [1]
    with pytest.raises(ConfigurationError, match="guarded already"):
        guard.wrap(crew_of([], [tool("pay")(pay)]), {"pay": Policy(effect="read")})


def test_the_key_of_a_call_reaches_a_body_that_asks_for_it(guard: Guard, world: list[object], native: bool) -> None:
    class Pay(BaseTool):
        name: str = "pay"
        description: str = "Pay."

        def _run(self, amount: int, idempotency_key: str = "") -> str:
            world.append(idempotency_key)
            return "paid"

    crew = crew_of([ask("pay", amount=1, idempotency_key="of the model's")], [Pay()], native)
    guard.wrap(crew).kickoff()
    (key,) = world
    assert len(str(key)) > 20


def test_an_agent_in_a_crew_that_is_not_wrapped_is_guarded_itself(guard: Guard, world: list[object]) -> None:
    agent = guard.wrap(agent_of([ask("pay", amount=1)] * 2, [pay_tool(world)]), {"pay": Policy(effect="write")})
    job = Task(description="do", expected_output="x", agent=agent)
    assert Crew(agents=[agent], tasks=[job]).kickoff().raw == "done"
    assert world == [1]


@pytest.mark.parametrize("is_wrapped", [True, False], ids=["guarded-crew", "plain-crew"])
def test_a_wrapped_agent_is_guarded_in_the_items_of_a_batch(
    guard: Guard, world: list[object], is_wrapped: bool
) -> None:
    """CrewAI copies it for each item."""
    script = [*[ask("pay", amount=1)] * 2, Say(), *[ask("pay", amount=1)] * 2]
    agent = guard.wrap(agent_of(script, [pay_tool(world)]), {"pay": Policy(effect="write")})
    crew = Crew(agents=[agent], tasks=[Task(description="do", expected_output="x", agent=agent)])
    (guard.wrap(crew) if is_wrapped else crew).kickoff_for_each([{}, {}])
    assert world == [1, 1]
    assert states(guard) == [("pay", "done")] * 2


@pytest.mark.parametrize("copied", [copy.copy, lambda crew: crew.model_copy(), lambda crew: crew.copy()])
def test_a_copy_of_what_is_wrapped_is_guarded_too(
    guard: Guard, world: list[object], copied: Callable[[Any], Any]
) -> None:
    crew = guard.wrap(crew_of([ask("pay", amount=1)] * 2, [pay_tool(world)]), {"pay": Policy(effect="write")})
    copied(crew).kickoff()
    assert world == [1]
    assert states(guard) == [("pay", "done")]


# -- bad input ---------------------------------------------------------------------------------------------------


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> Any:
    compat.check.cache_clear()
    yield monkeypatch
    compat.check.cache_clear()


def test_an_older_crewai_is_refused_with_what_to_upgrade_to(guard: Guard, checked: pytest.MonkeyPatch) -> None:
    checked.setattr(compat, "version", lambda _name: "1.14.7")
    with pytest.raises(ConfigurationError, match=r"needs crewai>=1.15.21, and 1.14.7 is installed; upgrade it"):
        guard.wrap(crew_of([]))


def test_a_crewai_that_changed_is_refused_where_it_is_wrapped(guard: Guard, checked: pytest.MonkeyPatch) -> None:
    checked.delattr(compat.Crew, "akickoff")
    with pytest.raises(ConfigurationError, match=r"Crew.akickoff is gone"):
        guard.wrap(crew_of([]))


def test_an_error_of_the_adapter_itself_fails_closed(
    guard: Guard, world: list[object], native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew = crew_of([ask("pay", amount=1), ask("pay", amount=2)], [pay_tool(world)], native)
    wrapped = guard.wrap(crew)

    def broken(_tool: Any, _structured: Any) -> None:
        raise RuntimeError("building it failed")

    monkeypatch.setattr("sagaspan_crewai._hooks.install_late", broken)
    with pytest.raises(RuntimeError, match="building it failed"):
        wrapped.kickoff()
    assert world == []


def test_an_answer_that_cannot_be_made_runs_nothing(
    guard: Guard, world: list[object], native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_error: Exception) -> None:
        raise RuntimeError("building it failed")

    monkeypatch.setattr(bodies, "told", broken)
    crew = crew_of([ask("pay", amount=1)], [pay_tool(world)], native)
    with guard.override(approver="auto-deny"), pytest.raises(RuntimeError, match="building it failed"):
        guard.wrap(crew, {"pay": Policy(approve=True)}).kickoff()
    assert world == []


def test_options_of_a_run_make_no_sense_for_a_tool(guard: Guard, world: list[object]) -> None:
    with pytest.raises(ConfigurationError, match="so it takes no budget"):
        guard.wrap(pay_tool(world), budget="1 USD")
    with pytest.raises(ConfigurationError, match="is not a tool of CrewAI"):
        guard.wrap([pay_tool(world), 5])


# -- the example -------------------------------------------------------------------------------------------------


def test_the_example_books_and_cancels(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], store_url: str
) -> None:
    monkeypatch.setenv("SAGASPAN_STORE", store_url)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    runpy.run_path(str(EXAMPLES / "guarded_crew.py"), run_name="__main__")
    assert "540 EUR are charged" in capsys.readouterr().out
    monkeypatch.setenv("CREW_CARD", "declined")
    with pytest.raises(Exception, match="declined 540 EUR"):
        runpy.run_path(str(EXAMPLES / "guarded_crew.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert said.index("a seat to Lisbon is booked") < said.index("the seat to Lisbon is free again")
    sys.modules.pop("crew", None)


def test_a_budget_of_the_guard_holds_for_a_crew(store_url: str, world: list[object]) -> None:
    with Guard(store_url, budget="2 calls") as guard, pytest.raises(BudgetExceeded):
        guard.wrap(crew_of([ask("pay", amount=1)] * 3, [pay_tool(world)])).kickoff()
