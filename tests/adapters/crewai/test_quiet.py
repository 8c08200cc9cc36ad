"""What CrewAI prints when a guarded kickoff is stopped: nothing that looks like a fault of the user's."""

from __future__ import annotations

import pytest
from crewai.events import event_context

from sagaspan import BudgetExceeded, Guard
from tests.adapters.crewai.entries import ENTRIES
from tests.adapters.crewai.scripts import ask, crew_of
from tests.adapters.crewai.test_tools import pay_tool


@pytest.mark.parametrize("name", ["crew-kickoff", "delegated", "asynchronous-task-akickoff", "flow-kickoff"])
def test_a_stop_prints_no_warning_of_events(
    store_url: str, world: list[object], native: bool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(event_context._console, "print", lambda *args, **_: said.extend(map(str, args)))
    make, enter = ENTRIES[name]
    target = make([ask("pay", amount=1)] * 3, [pay_tool(world)], native)
    with Guard(store_url, budget="1 calls") as guard, pytest.raises(BudgetExceeded):
        enter(guard.wrap(target))
    assert [line for line in said if "Warning" in line] == []


def test_what_crewai_says_of_others_it_says_as_ever(guard: Guard, world: list[object]) -> None:
    """Also within a kickoff that is not stopped; how the user wants it said is his to choose."""
    chosen = event_context.EventContextConfig(empty_pop_behavior=event_context.MismatchBehavior.RAISE)
    found: list[object] = []

    def look(said: object) -> str:
        found.append(event_context._event_context_config.get())
        return "done"

    token = event_context._event_context_config.set(chosen)
    try:
        guard.wrap(crew_of([look])).kickoff()
        assert event_context._event_context_config.get() is chosen
    finally:
        event_context._event_context_config.reset(token)
    (within,) = found
    for name in ("max_stack_depth", "mismatch_behavior", "empty_pop_behavior"):
        assert getattr(within, name) == getattr(chosen, name)
