"""Tools whose class does its work, or a part of it, elsewhere than in ``_run``: guarded there, or refused."""

from __future__ import annotations

from typing import Any

import pytest
from crewai.flow.flow import Flow, start
from crewai.tools import BaseTool
from crewai.tools.base_tool import Tool

from sagaspan import ConfigurationError, Guard, Policy
from tests.adapters.crewai.scripts import agent_of, ask, crew_of, model_of
from tests.adapters.crewai.test_tools import states


class Paying(BaseTool):
    """A tool that keeps its effects in itself."""

    name: str = "pay"
    description: str = "Pay."
    world: list[Any] = []  # noqa: RUF012 - pydantic copies it

    def _run(self, amount: int) -> str:
        self.world.append(f"_run {amount}")
        return f"paid {amount}"


class InRun(Paying):
    """Does all in ``run``."""

    def run(self, *_args: Any, **kwargs: Any) -> str:
        self.world.append(f"run {kwargs['amount']}")
        return f"paid {kwargs['amount']}"


class AroundRun(Paying):
    """Does something in ``run``, and the rest where CrewAI wants it."""

    def run(self, *args: Any, **kwargs: Any) -> Any:
        self.world.append("run")
        return super().run(*args, **kwargs)


class OnBothWays(Paying):
    """Has an asynchronous body beside the other."""

    async def _arun(self, amount: int) -> str:
        self.world.append(f"_arun {amount}")
        return self._run(amount)


class OfFunction(Tool[..., Any]):
    """Is made of a function, and does more than that."""

    world: list[Any] = []  # noqa: RUF012 - pydantic copies it

    def _run(self, amount: int) -> Any:
        self.world.append("_run")
        return super()._run(amount=amount)


WRITE = {"pay": Policy(effect="write")}


@pytest.mark.parametrize(("kind", "once"), [(InRun, ["run 5"]), (AroundRun, ["run", "_run 5"])])
def test_what_run_does_is_done_once(guard: Guard, kind: type[Paying], once: list[str]) -> None:
    pay = kind()
    crew = crew_of([ask("pay", amount=5)] * 2, [pay])
    guard.wrap(crew, WRITE).kickoff()
    assert pay.world == once
    assert states(guard) == [("pay", "done")]
    assert "paid 5" in model_of(crew).heard


@pytest.mark.parametrize("kind", [InRun, AroundRun])
def test_a_denied_call_does_nothing_in_run_either(guard: Guard, native: bool, kind: type[Paying]) -> None:
    pay = kind()
    with guard.override(approver="auto-deny"):
        guard.wrap(crew_of([ask("pay", amount=5)], [pay], native), {"pay": Policy(approve=True)}).kickoff()
    assert pay.world == []


async def test_an_asynchronous_body_is_guarded_with_the_other_one_in_it(guard: Guard) -> None:
    pay = OnBothWays()
    guarded = guard.wrap(pay, WRITE)
    async with guard.run("day"):
        assert await guarded.arun(amount=5) == await guarded.arun(amount=5) == "paid 5"
    assert pay.world == ["_arun 5", "_run 5"]


def test_a_class_made_of_a_function_that_overrides_its_body_is_guarded_in_both(guard: Guard, native: bool) -> None:
    def body(amount: int) -> str:
        """Pay."""
        pay.world.append(f"func {amount}")
        return f"paid {amount}"

    pay = OfFunction(name="pay", description="Pay.", func=body)
    guard.wrap(crew_of([ask("pay", amount=5)] * 3, [pay], native), WRITE).kickoff()
    assert [each for each in pay.world if each != "_run"] == ["func 5"]
    assert pay.world.count("_run") == (0 if native else 1)


def test_a_compensation_does_what_run_does(guard: Guard) -> None:
    undo = InRun(name="refund")
    crew = crew_of([ask("pay", amount=5), RuntimeError("down")] * 3, [Paying(), undo], agent={"max_retry_limit": 0})
    with pytest.raises(RuntimeError):
        guard.wrap(crew, {"pay": Policy(compensate="refund")}).kickoff()
    assert undo.world == ["run 5"]


class Hidden(Flow[Any]):
    """A flow that makes its tools where nobody sees it."""

    made: Any = None

    @start()
    def go(self) -> Any:
        return self.made[0]().kickoff("go").raw


@pytest.mark.parametrize("kind", [InRun, AroundRun])
def test_one_that_is_seen_too_late_does_not_run(guard: Guard, kind: type[Paying]) -> None:
    pay = kind()
    with pytest.raises(ConfigurationError, match=r"does its work in run\(\).*: wrap the tool itself"):
        guard.wrap(Hidden(made={0: lambda: agent_of([ask("pay", amount=5)], [pay])})).kickoff()
    assert pay.world == []
    wrapped = guard.wrap(pay, WRITE)
    guard.wrap(Hidden(made={0: lambda: agent_of([ask("pay", amount=5)] * 2, [wrapped])})).kickoff()
    assert len([each for each in pay.world if each.endswith(" 5")]) == 1
