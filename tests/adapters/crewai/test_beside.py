"""What a wrapped crew leaves as it is: its tools, the hooks and handlers of the process, and other crews."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from crewai import BaseLLM, Crew
from crewai.events import crewai_event_bus, stream_context
from crewai.events.event_context import get_current_parent_id
from crewai.events.types.tool_usage_events import ToolUsageFinishedEvent
from crewai.hooks import before_tool_call, clear_all_tool_call_hooks
from crewai.hooks.dispatch import InterceptionPoint, clear_all, get_hooks, get_scoped_hooks
from crewai.tools import tool

from sagaspan import BudgetExceeded, Guard, Policy
from tests.adapters.crewai.entries import ENTRIES, prepared
from tests.adapters.crewai.scripts import ask, crew_of, model_of
from tests.adapters.crewai.test_tools import pay_tool, states

WRITE = Policy(effect="write")


@pytest.fixture
def hook() -> Iterator[Callable[[Any], None]]:
    """A hook of the user's, for the whole process."""

    def seen(_context: Any) -> None:
        """Let everything pass."""

    before_tool_call(seen)
    yield seen
    clear_all_tool_call_hooks()


def global_state() -> Any:
    """All that CrewAI has for the whole process, and of this context, to hear of what goes on."""
    bus = crewai_event_bus
    return (
        {point: list(get_hooks(point)) for point in InterceptionPoint},
        {point: list(get_scoped_hooks(point)) for point in InterceptionPoint},
        {kind: set(handlers) for kind, handlers in bus._sync_handlers.items()},
        {kind: set(handlers) for kind, handlers in bus._async_handlers.items()},
        stream_context._stream_sinks.get(),
        get_current_parent_id(),
        dict(vars(BaseLLM)),
    )


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.usefixtures("hook")
def test_tools_are_the_same_objects_and_the_process_is_as_it_was(guard: Guard, world: list[object], name: str) -> None:
    """Before the work, while a model decides, while the tool runs, and after it."""
    pay, during = pay_tool(world), []

    @tool("look")
    def look(at: str) -> str:
        """Look."""
        during.append(global_state()[0])
        return "seen"

    make, enter = ENTRIES[name]
    target = make([ask("look", at="x"), ask("pay", amount=5)], [pay, look])
    prepared(name, target)
    world.clear()
    before, held = global_state(), list(tools_of(target))
    enter(guard.wrap(target, {"pay": Policy(effect="write")}))
    assert world == [5]
    assert [id(each) for each in tools_of(target)] == [id(each) for each in held]
    assert held == [pay, look]
    assert global_state() == before
    assert during == [before[0]]


def test_a_crew_that_was_stopped_is_not_the_parent_of_the_next_one(
    store_url: str, world: list[object], native: bool
) -> None:
    """Its own scope of events was left open: the next crew's belonged to it, and code's calls counted as an agent's."""
    before = global_state()
    with Guard(store_url, budget="1 calls") as guard, pytest.raises(BudgetExceeded):
        guard.wrap(crew_of([ask("pay", amount=1)] * 3, [pay_tool(world)], native)).kickoff()
    assert global_state() == before


def tools_of(target: Any) -> Iterator[Any]:
    """The tools of the one agent that has any."""
    crew = getattr(target, "crew", None) or target
    agents = crew.agents if isinstance(crew, Crew) else [crew]
    yield from next(agent.tools for agent in agents if agent.tools)


def test_a_crew_beside_a_wrapped_one_is_not_guarded(guard: Guard, world: list[object]) -> None:
    """They share a tool, and both are at work with it at the same time."""
    both = threading.Barrier(2, timeout=60)

    @tool("pay")
    def pay(amount: int) -> str:
        """Pay."""
        both.wait()
        world.append(amount)
        return "paid"

    script = [ask("pay", amount=1)]
    wrapped, other = guard.wrap(crew_of(script, [pay]), {"pay": WRITE}), crew_of([ask("pay", amount=2)], [pay])

    async def side_by_side() -> None:
        await asyncio.gather(wrapped.kickoff_async(), other.kickoff_async())

    asyncio.run(side_by_side())
    assert sorted(world, key=str) == [1, 2]
    assert states(guard) == [("pay", "done")]


def test_two_guards_at_work_side_by_side_keep_their_own_books(world: list[object], tmp_path: Any) -> None:
    both = threading.Barrier(2, timeout=60)

    @tool("pay")
    def pay(amount: int) -> str:
        """Pay."""
        both.wait()
        world.append(amount)
        return "paid"

    with Guard(f"sqlite:///{tmp_path}/a.db") as one, Guard(f"sqlite:///{tmp_path}/b.db") as two:
        crews = [guard.wrap(crew_of([ask("pay", amount=1)], [pay]), {"pay": WRITE}) for guard in (one, two)]

        async def side_by_side() -> None:
            await asyncio.gather(*(crew.kickoff_async() for crew in crews))

        asyncio.run(side_by_side())
        assert world == [1, 1]
        assert states(one) == states(two) == [("pay", "done")]
        assert one.usage().calls == two.usage().calls == 3


def test_hooks_that_are_cleared_in_the_middle_of_a_run_do_not_disarm_it(
    guard: Guard, world: list[object], native: bool
) -> None:
    """By a tool, a callback, or the model: what follows is guarded as what was before."""

    @tool("clean")
    def clean(what: str) -> str:
        """Clean up."""
        clear_all()
        clear_all_tool_call_hooks()
        return "clean"

    script = [ask("pay", amount=1), ask("clean", what="hooks"), ask("pay", amount=1), ask("pay", amount=2)]
    crew = crew_of(script, [pay_tool(world), clean], native)
    with guard.override(approver="auto-deny"):
        guard.wrap(crew, {"pay": Policy(effect="write", approve="amount == 2")}).kickoff()
    assert world == [1]
    assert "ApprovalDenied" in model_of(crew).heard


def test_handlers_of_the_user_hear_what_they_heard(guard: Guard, world: list[object]) -> None:
    heard: list[str] = []
    with crewai_event_bus.scoped_handlers():

        @crewai_event_bus.on(ToolUsageFinishedEvent)
        def finished(_source: Any, event: Any) -> None:
            heard.append(event.tool_name)

        guard.wrap(crew_of([ask("pay", amount=1)], [pay_tool(world)])).kickoff()
        crewai_event_bus.flush()
    assert heard == ["pay"]
