"""Tools of a wrapped crew: each body runs once for one decision, and what it did is on record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from crewai import Agent, Crew, Task
from crewai.events import stream_context
from crewai.flow.flow import Flow, start
from crewai.hooks import clear_all_tool_call_hooks
from crewai.hooks.dispatch import InterceptionPoint, clear_all, get_hooks, get_scoped_hooks
from crewai.tools import BaseTool, tool

from sagaspan import ApprovalPending, BudgetExceeded, ConfigurationError, Guard, Policy, ScopeFrozen
from tests.adapters.crewai.scripts import Ask, Say, agent_of, ask, crew_of, model_of


def pay_tool(world: list[object], name: str = "pay", **options: Any) -> Any:
    @tool(name, **options)
    def pay(amount: int) -> str:
        """Pay."""
        world.append(amount)
        return f"paid {amount}"

    return pay


def failing_tool(world: list[object]) -> Any:
    @tool("pay")
    def pay(amount: int) -> str:
        """Pay."""
        world.append(amount)
        return str(json.loads("the line is dead"))

    return pay


class PayTool(BaseTool):
    """A tool that is a class."""

    name: str = "pay"
    description: str = "Pay."
    world: list[Any] = []  # noqa: RUF012 - pydantic copies it

    def _run(self, amount: int, note: str = "none") -> str:
        self.world.append((amount, note))
        return f"paid {amount}"


def states(guard: Guard) -> list[tuple[str, str]]:
    calls = [call for run in reversed(guard.runs.list()) for call in guard._store.calls_of(run.namespace, run.id)]
    return [(call.tool, str(call.state)) for call in calls if not call.tool.startswith("chat ")]


def test_a_call_runs_once_and_is_on_record(guard: Guard, world: list[object], native: bool) -> None:
    crew = crew_of([ask("pay", amount=5)], [pay_tool(world)], native)
    output = guard.wrap(crew).kickoff()
    assert (output.raw, world) == ("done", [5])
    assert "paid 5" in model_of(crew).heard
    assert states(guard) == [("pay", "done")]


def test_a_tool_that_is_a_class_keeps_its_state_and_its_defaults(guard: Guard, native: bool) -> None:
    pay = PayTool()
    crew = crew_of([ask("pay", amount=5), ask("pay", amount=5, note="none"), ask("pay", amount=6)], [pay], native)
    guard.wrap(crew, {"pay": Policy(effect="write")}).kickoff()
    assert pay.world == [(5, "none"), (6, "none")]
    assert "already done at " in model_of(crew).heard


def test_a_tool_that_fails_runs_once_for_one_decision(guard: Guard, world: list[object], native: bool) -> None:
    crew = crew_of([ask("pay", amount=5)], [failing_tool(world)], native)
    output = guard.wrap(crew).kickoff()
    assert world == [5]
    assert output.raw == "done"
    assert "JSONDecodeError" in model_of(crew).heard
    assert states(guard) == [("pay", "unknown")]


def test_a_cache_function_that_breaks_does_not_run_the_body_again(
    guard: Guard, world: list[object], native: bool
) -> None:
    pay = pay_tool(world)
    pay.cache_function = lambda _args, _result: 1 / 0
    guard.wrap(crew_of([ask("pay", amount=5)], [pay], native, cache=True)).kickoff()
    assert world == [5]


def test_an_asynchronous_tool_runs_once(guard: Guard, world: list[object], native: bool) -> None:
    @tool("pay")
    async def pay(amount: int) -> str:
        """Pay."""
        world.append(amount)
        return f"paid {amount}"

    crew = crew_of([ask("pay", amount=5)], [pay], native)
    guard.wrap(crew).kickoff()
    assert world == [5]
    assert "paid 5" in model_of(crew).heard
    assert states(guard) == [("pay", "done")]


def test_parallel_calls_of_one_answer_each_run_once(guard: Guard, world: list[object]) -> None:
    crew = crew_of([[Ask("pay", amount=amount) for amount in range(5)]], [pay_tool(world)])
    guard.wrap(crew).kickoff()
    assert sorted(world) == [0, 1, 2, 3, 4]
    assert states(guard) == [("pay", "done")] * 5


def test_the_original_and_other_crews_with_the_same_tool_stay_as_they_are(guard: Guard, world: list[object]) -> None:
    pay = pay_tool(world)
    crew = crew_of([ask("pay", amount=1), Say(), ask("pay", amount=2)], [pay])
    before = pay.model_dump(exclude={"func", "current_usage_count"})
    hooks = {point: (get_hooks(point), get_scoped_hooks(point)) for point in InterceptionPoint}
    wrapped = guard.wrap(crew)
    assert isinstance(wrapped, Crew)
    assert wrapped.agents[0].tools[0] is pay is crew.agents[0].tools[0]
    wrapped.kickoff()
    crew.kickoff()
    crew_of([ask("pay", amount=3)], [pay]).kickoff()
    assert world == [1, 2, 3]
    assert states(guard) == [("pay", "done")]
    assert pay.model_dump(exclude={"func", "current_usage_count"}) == before
    assert {point: (get_hooks(point), get_scoped_hooks(point)) for point in InterceptionPoint} == hooks
    assert stream_context._stream_sinks.get() == ()


def test_hooks_that_the_user_clears_do_not_disarm_the_guard(guard: Guard, world: list[object], native: bool) -> None:
    def cleared(_messages: Any) -> Any:
        clear_all()
        clear_all_tool_call_hooks()
        return ask("pay", amount=5)

    pay = pay_tool(world)
    policies = {"pay": Policy(effect="write")}
    guard.wrap(crew_of([cleared, ask("pay", amount=5)], [pay], native), policies).kickoff()
    assert world == [5]


def test_a_task_that_crewai_starts_again_is_answered_with_what_was_done(
    guard: Guard, world: list[object], native: bool
) -> None:
    script = [ask("pay", amount=5), ask("pay", amount=6)]
    crew = crew_of([*script, RuntimeError("the model is down"), *script, *script], [pay_tool(world)], native)
    assert guard.wrap(crew).kickoff().raw == "done"
    assert world == [5, 6, 5, 6]


def test_a_guardrail_that_refuses_the_answer_does_not_repeat_what_was_done(
    guard: Guard, world: list[object], native: bool
) -> None:
    verdicts = [(False, "longer please"), (True, "fine")]
    task = {"guardrail": lambda _output: verdicts.pop(0)}
    crew = crew_of([ask("pay", amount=5), Say("short"), ask("pay", amount=5)], [pay_tool(world)], native, task=task)
    assert guard.wrap(crew).kickoff().raw == "fine"
    assert world == [5]


def sent_back(world: list[object], script: list[Any], native: bool, *verdicts: bool) -> Agent:
    """An agent whose guardrail gives ``verdicts``, one an answer."""
    given = iter(verdicts)
    return agent_of(script, [pay_tool(world)], native, guardrail=lambda output: (next(given), output.raw))


def test_what_an_agent_alone_is_sent_back_for_does_not_repeat_what_was_done(
    guard: Guard, world: list[object], native: bool
) -> None:
    script = [ask("pay", amount=5), Say(), ask("pay", amount=5), ask("pay", amount=6)]
    guard.wrap(sent_back(world, script, native, False, True)).kickoff("go")
    assert world == [5, 6]


def test_a_new_kickoff_of_an_agent_alone_is_answered_with_nothing_old(
    guard: Guard, world: list[object], native: bool
) -> None:
    pay = ask("pay", amount=5)
    script = [pay, Say(), ask("pay", amount=6), Say(), pay]
    agent = sent_back(world, script, native, True, False, True)

    class Twice(Flow[Any]):
        @start()
        def work(self) -> None:
            agent.kickoff("go")
            agent.kickoff("once more")

    guard.wrap(Twice()).kickoff()
    assert world == [5, 6, 5]


def test_the_same_run_id_answers_from_the_ledger(guard: Guard, world: list[object], native: bool) -> None:
    for _ in range(2):
        crew = crew_of([ask("pay", amount=5)], [pay_tool(world)], native)
        assert guard.wrap(crew, run_id="order-17").kickoff().raw == "done"
        assert "paid 5" in model_of(crew).heard
    assert world == [5]


def test_items_of_a_batch_are_separate_runs(guard: Guard, world: list[object]) -> None:
    crew = crew_of([ask("pay", amount=5), Say(), ask("pay", amount=5)], [pay_tool(world)])
    wrapped = guard.wrap(crew, {"pay": Policy(effect="write")}, run_id="batch")
    outputs = wrapped.kickoff_for_each([{}, {}])
    assert [output.raw for output in outputs] == ["done", "done"]
    assert world == [5, 5]
    assert {run.id for run in guard.runs.list()} == {"batch/1", "batch/2"}


def test_items_of_a_batch_within_a_run_are_separate_too(guard: Guard, world: list[object]) -> None:
    crew = crew_of([ask("pay", amount=5), Say(), ask("pay", amount=5)], [pay_tool(world)])
    with guard.run("day"):
        guard.wrap(crew, {"pay": Policy(effect="write")}).kickoff_for_each([{}, {}])
    assert world == [5, 5]


def test_a_kickoff_joins_the_run_in_force(guard: Guard, world: list[object]) -> None:
    crew = crew_of([ask("pay", amount=5)], [pay_tool(world)])
    with guard.run("day") as run:
        guard.wrap(crew).kickoff()
        assert "pay" in [call.tool for call in run.calls]
    assert len(guard.runs.list()) == 1


def test_a_policy_for_a_tool_that_the_crew_does_not_have_is_refused(guard: Guard, world: list[object]) -> None:
    with pytest.raises(ConfigurationError, match="did you mean pay"):
        guard.wrap(crew_of([], [pay_tool(world)]), {"payy": Policy(effect="write")})


def test_a_policy_finds_its_tool_by_the_name_its_author_gave_it(guard: Guard, world: list[object]) -> None:
    crew = crew_of([ask("pay_a_bill", amount=5)] * 2, [pay_tool(world, "Pay a bill")])
    guard.wrap(crew, {"Pay a bill": Policy(effect="write")}).kickoff()
    assert world == [5]
    assert states(guard) == [("pay_a_bill", "done")]


def test_a_wrapped_crew_is_not_wrapped_again(guard: Guard, world: list[object]) -> None:
    wrapped = guard.wrap(crew_of([], [pay_tool(world)]))
    with pytest.raises(ConfigurationError, match="is guarded already"):
        guard.wrap(wrapped)


def test_something_else_of_crewai_is_refused(guard: Guard) -> None:
    with pytest.raises(ConfigurationError, match="wrap the crew"):
        guard.wrap(Task(description="d", expected_output="x"))


def test_a_denied_call_reaches_the_model_and_never_becomes_the_answer(
    guard: Guard, world: list[object], native: bool
) -> None:
    pay = pay_tool(world, result_as_answer=True)
    crew = crew_of([ask("pay", amount=5)], [pay], native)
    with guard.override(approver="auto-deny"):
        output = guard.wrap(crew, {"pay": Policy(approve=True)}).kickoff()
    assert world == []
    assert output.raw == "done"
    assert "ApprovalDenied" in model_of(crew).heard


def test_a_result_that_is_the_answer_stays_it(guard: Guard, world: list[object], native: bool) -> None:
    crew = crew_of([ask("pay", amount=5)], [pay_tool(world, result_as_answer=True)], native)
    assert guard.wrap(crew).kickoff().raw == "paid 5"


# -- tools by themselves -----------------------------------------------------------------------------------------


def test_a_wrapped_tool_is_guarded_wherever_it_is_called(guard: Guard, world: list[object], native: bool) -> None:
    pay = guard.wrap(pay_tool(world), {"pay": Policy(effect="write")})
    crew = crew_of([ask("pay", amount=5)], [pay], native)
    with guard.run("day"):
        crew.kickoff()
        assert pay.run(amount=5) == "paid 5"
    assert world == [5]


def test_a_wrapped_tool_raises_to_code_and_tells_a_model(guard: Guard, world: list[object], native: bool) -> None:
    pay = guard.wrap(failing_tool(world))
    with pytest.raises(json.JSONDecodeError):
        pay.run(amount=1)
    crew = crew_of([ask("pay", amount=2)], [pay], native)
    assert crew.kickoff().raw == "done"
    assert world == [1, 2]
    assert "JSONDecodeError" in model_of(crew).heard


def test_a_list_of_tools_stays_a_list(guard: Guard, world: list[object]) -> None:
    original = pay_tool(world)
    (pay,) = guard.wrap([original], {"pay": Policy(effect="write")})
    with guard.run("day"):
        pay.run(amount=5)
        pay.run(amount=5)
        original.run(amount=5)
    assert world == [5, 5]


# -- agents alone ------------------------------------------------------------------------------------------------


def test_an_agent_alone_is_guarded(guard: Guard, world: list[object], native: bool) -> None:
    agent = agent_of([ask("pay", amount=5)] * 2, [pay_tool(world)], native)
    wrapped = guard.wrap(agent, {"pay": Policy(effect="write")})
    assert isinstance(wrapped, Agent)
    assert wrapped.kickoff("go").raw == "done"
    assert world == [5]
    assert [(run.name, run.agent) for run in guard.runs.list()] == [("Clerk", "Clerk")]


async def test_an_agent_alone_is_guarded_inside_a_running_loop(guard: Guard, world: list[object]) -> None:
    policies = {"pay": Policy(effect="write")}
    for kickoff in ("kickoff", "kickoff_async", "akickoff"):
        agent = agent_of([ask("pay", amount=5)] * 2, [pay_tool(world)])
        await getattr(guard.wrap(agent, policies), kickoff)("go")
    assert world == [5, 5, 5]


def test_what_the_model_is_told_of_an_error_is_data(guard: Guard, world: list[object]) -> None:
    crew = crew_of([ask("pay", amount=5)], [failing_tool(world)])
    guard.wrap(crew).kickoff()
    (told,) = [message["content"] for message in model_of(crew).seen[-1] if message["role"] == "tool"]
    assert json.loads(told)["status"] == "unknown"


# -- the names of a tool -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Send Money", "send_money", "Send*", "send_*"])
def test_a_tool_goes_by_its_authors_name_and_by_that_of_models(
    store_url: str, world: list[object], tmp_path: Path, name: str
) -> None:
    """In the policies of a wrap and of a guard, in a policy file and its rules, in budgets and freezes."""

    def stopped(error: type[BaseException], wrapped: Any = None, **options: Any) -> None:
        with Guard(store_url, approver="inbox", **options) as guard, pytest.raises(error):
            guard.wrap(crew_of([ask("send_money", amount=5)], [pay_tool(world, "Send Money")]), wrapped).kickoff()

    file = tmp_path / "p.toml"
    stopped(ApprovalPending, {name: Policy(approve=True)})
    stopped(ApprovalPending, policies={name: Policy(approve=True)})
    file.write_text(f'[tools."{name}"]\napprove = true\n')
    stopped(ApprovalPending, policies=file)
    file.write_text(f'[[rules]]\ntools = "{name}"\naction = "approve"\n')
    stopped(ApprovalPending, policies=file)
    stopped(BudgetExceeded, budgets={f"tool:{name}": "0 calls"})
    with Guard(store_url) as other:
        other.freeze(f"tool:{name}", reason="incident 7")
    stopped(ScopeFrozen)
    assert world == []


@pytest.mark.parametrize("name", ["Sent Money", "Send Mone?s*"])
def test_a_policy_that_fits_no_tool_of_the_crew_is_refused(guard: Guard, world: list[object], name: str) -> None:
    crew = crew_of([ask("send_money", amount=5)], [pay_tool(world, "Send Money")])
    with pytest.raises(ConfigurationError, match=r"did you mean Send Money"):
        guard.wrap(crew, {name: Policy(approve=True)})
    with pytest.raises(ConfigurationError, match=r"did you mean Send Money"):
        guard.wrap(pay_tool(world, "Send Money"), {name: Policy(approve=True)})
    own = Guard(guard._store.url, policies={name: Policy(approve=True)})
    with own, pytest.raises(ConfigurationError, match=r"did you mean Send Money"):
        own.wrap(crew).kickoff()
    assert world == []
