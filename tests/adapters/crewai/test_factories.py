"""Flows whose methods make their agents and tools anew: the same tools, as far as a run is concerned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from crewai.flow.flow import Flow, listen, start
from crewai.tools import BaseTool, tool
from pydantic import PrivateAttr, SecretStr

from sagaspan import ConfigurationError, Guard, Policy
from tests.adapters.crewai.scripts import ask, crew_of
from tests.adapters.crewai.test_tools import states

WRITE = Policy(effect="write")


def make_tools(world: list[object], account: str = "till") -> list[Any]:
    """The tools of one agent, as many flows make them."""

    @tool("pay")
    def pay(amount: int) -> str:
        """Pay."""
        world.append((account, amount))
        return f"paid {amount}"

    return [pay]


class Twice(Flow[Any]):
    """Two methods, each with a crew of its own, and tools of its own."""

    world: Any = None
    native: bool = True
    accounts: Any = ("till", "till")
    amounts: Any = (5, 5)
    breaks: bool = False

    def _crew(self, number: int) -> Any:
        script = [ask("pay", amount=self.amounts[number])]
        return crew_of(script, make_tools(self.world, self.accounts[number]), self.native)

    @start()
    def first(self) -> Any:
        """One."""
        return self._crew(0).kickoff().raw

    @listen(first)
    def second(self) -> Any:
        """The other."""
        if self.breaks:
            raise KeyboardInterrupt
        return self._crew(1).kickoff().raw


def test_an_equal_write_of_two_methods_is_done_once(guard: Guard, world: list[object], native: bool) -> None:
    guard.wrap(Twice(world=world, native=native), {"pay": WRITE}).kickoff()
    assert world == [("till", 5)]
    assert states(guard) == [("pay", "done")]


def test_a_repeat_that_is_meant_is_said(guard: Guard, world: list[object], native: bool) -> None:
    """Equal calls are numbered through the whole run, whichever method makes them; other arguments are other calls."""
    guard.wrap(Twice(world=world, native=native), {"pay": Policy(effect="write", repeat="new")}).kickoff()
    assert world == [("till", 5)] * 2
    guard.wrap(Twice(world=world, native=native, amounts=(1, 2)), {"pay": WRITE}).kickoff()
    assert world[2:] == [("till", 1), ("till", 2)]


@pytest.mark.parametrize("repeat", [None, "new"])
def test_a_resumed_flow_is_answered_with_what_it_did(
    guard: Guard, world: list[object], native: bool, repeat: Any
) -> None:
    policies = {"pay": Policy(effect="write", repeat=repeat)}
    flow = Twice(world=world, native=native, breaks=True)
    with pytest.raises(KeyboardInterrupt):
        guard.wrap(flow, policies, run_id="order-1").kickoff()
    assert world == [("till", 5)]
    for _ in range(2):
        guard.wrap(Twice(world=world, native=native), policies, run_id="order-1").kickoff()
    assert world == [("till", 5)] * (1 if repeat is None else 2)


def test_tools_that_only_share_a_name_are_refused(guard: Guard, world: list[object], native: bool) -> None:
    """The second would silently not pay from its account."""
    flow = guard.wrap(Twice(world=world, native=native, accounts=("till", "safe")), {"pay": WRITE})
    with pytest.raises(ConfigurationError, match="different names"):
        flow.kickoff()
    assert world == [("till", 5)]


class Pay(BaseTool):
    """A tool that is a class, with fields of its own."""

    name: str = "pay"
    description: str = "Pay."
    account: str = "till"
    limits: Any = None
    world: Any = None
    _bank: str = PrivateAttr("here")

    def __init__(self, bank: str = "here", **fields: Any) -> None:
        super().__init__(**fields)
        self._bank = bank

    def _run(self, amount: int) -> str:
        self.world.append((self.account, amount))
        return f"paid {amount}"


class Branches(Flow[Any]):
    """Two methods, each with a crew and a tool of the class."""

    native: bool = True
    tools: Any = ()

    @start()
    def first(self) -> Any:
        """One."""
        return crew_of([ask("pay", amount=5)], [self.tools[0]], self.native).kickoff().raw

    @listen(first)
    def second(self) -> Any:
        """The other."""
        return crew_of([ask("pay", amount=5)], [self.tools[1]], self.native).kickoff().raw


@pytest.mark.parametrize(
    "other",
    [
        {"account": "safe"},
        {"limits": {"day": 5}},
        {"limits": Path("day")},
        {"limits": SecretStr("a")},
        {"bank": "there"},
    ],
    ids=["a-value", "several", "a-path", "a-secret", "private"],
)
def test_objects_of_one_class_that_differ_in_a_plain_field_are_refused(
    guard: Guard, world: list[object], native: bool, other: dict[str, Any]
) -> None:
    """The second would silently not pay from its account."""
    flow = Branches(native=native, tools=[Pay(world=world), Pay(world=world, **other)])
    with pytest.raises(ConfigurationError, match="different names"):
        guard.wrap(flow, {"pay": WRITE}).kickoff()
    assert world == [("till", 5)]


def test_objects_of_one_class_that_are_alike_are_one_tool(guard: Guard, world: list[object], native: bool) -> None:
    """What a flow makes in each of its methods pays once for equal arguments, whatever client each of them holds."""
    flow = Branches(native=native, tools=[Pay(world=world), Pay(world=world)])
    guard.wrap(flow, {"pay": WRITE}).kickoff()
    assert world == [("till", 5)]
    assert states(guard) == [("pay", "done")]
