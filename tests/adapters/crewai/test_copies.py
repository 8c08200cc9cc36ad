"""Copies of the tools and models of a wrapped crew: they do their own work, not that of the original."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from crewai import BaseLLM
from crewai.tools import BaseTool, tool

from sagaspan import Guard, Policy
from tests.adapters.crewai.scripts import Scripted, ask, crew_of, model_of
from tests.adapters.crewai.test_tools import states

COPIES = [copy.copy, lambda thing: thing.model_copy(), lambda thing: thing.model_copy(deep=True)]
KINDS = ["copy", "model-copy", "deep"]


class Pay(BaseTool):
    """A tool that is a class, with a field of its own."""

    name: str = "pay"
    description: str = "Pay."
    account: str = "till"
    world: Any = None

    def _run(self, amount: int) -> str:
        self.world.append((self.account, amount))
        return f"paid {amount}"


@pytest.mark.parametrize("copied", COPIES[:2], ids=KINDS[:2])
def test_a_copy_of_a_tool_does_its_own_work(
    guard: Guard, world: list[object], native: bool, copied: Callable[[Any], Any]
) -> None:
    """Guarded or not, it pays from its own account."""
    till = Pay(world=world)
    guard.wrap(crew_of([], [till]), {"pay": Policy(effect="write")})
    safe = copied(till)
    safe.account = "safe"
    safe.run(amount=1)
    guard.wrap(crew_of([ask("pay", amount=5)], [safe], native), {"pay": Policy(effect="write")}).kickoff()
    assert world == [("safe", 1), ("safe", 5)]
    assert states(guard) == [("pay", "done")]


def test_a_copy_of_a_function_is_guarded_by_its_own_name(guard: Guard, world: list[object], native: bool) -> None:
    @tool("pay")
    def pay(amount: int) -> str:
        """Pay."""
        world.append(amount)
        raise OSError("no answer")

    guard.wrap(crew_of([], [pay]))
    refund = pay.model_copy(update={"name": "refund"})
    guard.wrap(crew_of([ask("refund", amount=5)], [refund], native)).kickoff()
    assert world == [5]
    assert states(guard) == [("refund", "failed")]


class Silent(BaseLLM):
    """A model that tells CrewAI nothing of its calls."""

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> str:
        return f"{self.model} speaks"


@pytest.mark.parametrize("copied", COPIES, ids=KINDS)
def test_a_copy_of_a_model_is_asked_itself(guard: Guard, copied: Callable[[Any], Any]) -> None:
    crew = crew_of([], [], agent={"llm": Silent(model="one")})
    guard.wrap(crew).kickoff()
    other = copied(crew.agents[0].llm)
    other.model = "two"
    assert other.call("hello") == "two speaks"


def test_a_model_that_was_metered_can_be_sent_elsewhere(guard: Guard) -> None:
    crew = crew_of([], [])
    guard.wrap(crew).kickoff()
    assert isinstance(pickle.loads(pickle.dumps(model_of(crew))), Scripted)
