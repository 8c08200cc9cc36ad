"""A budget, a loop, an abort or Ctrl-C ends the work out of every entry point, and what was done is undone."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from crewai import Crew, Task
from crewai.tools import tool

from sagaspan import BudgetExceeded, Guard, LoopDetected, Policy, RunClosed
from sagaspan_crewai._interrupts import ctrl_c
from sagaspan_crewai._session import session_in_force
from tests.adapters.crewai.entries import ENTRIES, asynchronous, prepared
from tests.adapters.crewai.scripts import agent_of, ask, crew_of
from tests.adapters.crewai.test_stops import shop
from tests.adapters.crewai.test_tools import states

BOOK = Policy(compensate="cancel", cost="1 USD", approve="room == 'forbidden'")


def wrapped(guard: Guard, name: str, script: list[Any], tools: list[Any], native: bool = True, **options: Any) -> Any:
    """The target of the entry ``name``, which knows ``tools`` also where the guard cannot see them."""
    target = ENTRIES[name][0](script, tools, native)
    prepared(name, target)
    cancel = next(each for each in tools if each.name == "cancel")
    policies = {"book": BOOK.replace(compensate=cancel.func) if name.startswith("flow") else BOOK}
    if any(each.name.startswith("look") for each in tools):
        policies["look*"] = Policy(loop=2)
    return guard.wrap(target, policies, **options)


def end_of(guard: Guard) -> tuple[str, str | None]:
    (run,) = guard.runs.list()
    return str(run.status), run.reason


@pytest.mark.parametrize("name", ENTRIES)
def test_a_refused_call_does_nothing_and_a_budget_ends_it(
    guard: Guard, world: list[object], name: str, native: bool
) -> None:
    script = [ask("book", room=room) for room in ("a", "forbidden", "b", "c", "d")]
    target = wrapped(guard, name, script, list(shop(world)), native, budget="2.5 USD")
    with guard.override(approver="auto-deny"), pytest.raises(BudgetExceeded):
        ENTRIES[name][1](target)
    assert world == ["book a", "book b", "cancel b", "cancel a"]
    assert end_of(guard) == ("compensated", "budget")


@pytest.mark.parametrize("name", ENTRIES)
def test_going_in_circles_ends_it(guard: Guard, world: list[object], name: str) -> None:
    @tool("look")
    def look(at: str) -> str:
        """Look."""
        world.append(f"look {at}")
        return "nothing new"

    script = [ask("book", room="a"), *[ask("look", at="x")] * 6]
    with pytest.raises(LoopDetected):
        ENTRIES[name][1](wrapped(guard, name, script, [look, *shop(world)]))
    assert world == ["book a", "look x", "look x", "cancel a"]
    assert end_of(guard) == ("compensated", "loop")


@pytest.mark.parametrize("name", ENTRIES)
def test_an_abort_ends_it(guard: Guard, world: list[object], name: str) -> None:
    @tool("panic")
    def panic(why: str) -> str:
        """Stop."""
        run = guard.current_run()
        assert run is not None
        run.abort(why)
        return "stopping"

    script = [ask("book", room="a"), ask("panic", why="fire"), ask("book", room="b")]
    with pytest.raises(RunClosed, match="aborted"):
        ENTRIES[name][1](wrapped(guard, name, script, [panic, *shop(world)], native=False))
    assert world == ["book a", "cancel a"]
    assert end_of(guard) == ("compensated", "aborted")


# -- Ctrl-C ------------------------------------------------------------------------------------------------------


@pytest.fixture
def ctrl_c_is_heard() -> Iterator[None]:
    """As in a terminal: a job in the background of a shell ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupted_shop(world: list[object]) -> list[Any]:
    """A shop in which somebody presses Ctrl-C while a room is booked."""
    book, cancel = shop(world)

    @tool("book")
    def slow(room: str) -> str:
        """Book."""
        if room == "b":
            session = session_in_force.get()
            time.sleep(0.05)  # a main thread on its way to sleep hears of it when it wakes, once the call is done
            os.kill(os.getpid(), signal.SIGINT)
            until(lambda: ctrl_c() is not None or (session is not None and session.stopped is not None))
        return str(book.func(room))

    return [slow, cancel]


def until(happened: Callable[[], bool]) -> None:
    """Wait for it; a test that waits in vain fails later."""
    end = time.monotonic() + 300
    while not happened() and time.monotonic() < end:
        time.sleep(0.001)


@pytest.mark.usefixtures("ctrl_c_is_heard")
@pytest.mark.parametrize("name", ENTRIES)
def test_ctrl_c_ends_it_when_the_call_in_flight_is_done(guard: Guard, world: list[object], name: str) -> None:
    script = [ask("book", room=room) for room in "abcd"]
    target = wrapped(guard, name, script, interrupted_shop(world), on_interrupt="compensate")
    with pytest.raises(KeyboardInterrupt):
        ENTRIES[name][1](target)
    until(lambda: end_of(guard)[0] != "running")
    assert world == ["book a", "book b", "cancel b", "cancel a"]
    assert end_of(guard) == ("compensated", "interrupted")


def test_a_kickoff_in_a_thread_ends_when_it_is_cancelled(guard: Guard, world: list[object]) -> None:
    book, cancel = shop(world)
    begun = threading.Event()

    @tool("book")
    def slow(room: str) -> str:
        """Book."""
        session = session_in_force.get()
        assert session is not None
        begun.set()
        until(lambda: session.stopped is not None)
        return str(book.func(room))

    async def cancelled() -> None:
        crew = guard.wrap(crew_of([ask("book", room=room) for room in "ab"], [slow, cancel]), {"book": BOOK})
        task = asyncio.create_task(crew.kickoff_async())
        await asyncio.to_thread(begun.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert world == ["book a", "cancel a"]
        assert end_of(guard) == ("compensated", "interrupted")

    asyncio.run(cancelled())


@pytest.mark.parametrize("make", [crew_of, asynchronous])
def test_a_tool_that_exits_ends_it_as_that(guard: Guard, world: list[object], make: Any) -> None:
    @tool("leave")
    def leave(code: int) -> None:
        """Leave."""
        sys.exit(code)

    script = [ask("book", room="a"), ask("leave", code=3), ask("book", room="b")]
    target = guard.wrap(make(script, [leave, *shop(world)]), {"book": BOOK})
    with pytest.raises(SystemExit, match="3"):
        target.kickoff()
    assert world == ["book a", "cancel a"]


class Wordless(Exception):
    """An error that cannot be said."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("name", [name for name in ENTRIES if "kickoff" in name and "each" not in name])
def test_an_error_that_cannot_be_said_ends_it_all_the_same(guard: Guard, world: list[object], name: str) -> None:
    """CrewAI swallows an exception that fails while it is made within a hook, and the next tool would run."""

    @tool("fail")
    def fail(why: str) -> str:
        """Fail."""
        raise Wordless

    script = [ask("book", room="a"), ask("fail", why="x"), ask("book", room="b")]
    target = ENTRIES[name][0](script, [fail, *(tools := shop(world))], name.startswith("crew-a"))
    policies = {"book": BOOK.replace(compensate=tools[1].func), "fail": Policy(critical=True, error_means="failed")}
    with pytest.raises(Wordless):
        ENTRIES[name][1](guard.wrap(target, policies))
    assert world == ["book a", "cancel a"]


IN_THREADS = ["delegated", "delegated-akickoff", "asynchronous-task", "asynchronous-task-akickoff", "limit-of-time"]


@pytest.mark.parametrize("name", IN_THREADS)
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, ZeroDivisionError])
def test_a_hard_stop_hangs_nobody(guard: Guard, world: list[object], name: str, kind: type[BaseException]) -> None:
    """Where CrewAI would wait for ever for a thread whose error it did not expect."""

    @tool("fail")
    def fail(why: str) -> str:
        """Fail."""
        raise kind(why)

    script = [ask("book", room="a"), ask("fail", why="x"), ask("book", room="b")]
    target = ENTRIES[name][0](script, [fail, *shop(world)], True)
    policies = {"book": BOOK, "fail": Policy(critical=True, error_means="failed")}
    raised: list[type[BaseException]] = []

    def kicked_off() -> None:
        try:
            ENTRIES[name][1](guard.wrap(target, policies, on_interrupt="compensate"))
        except BaseException as error:
            raised.append(type(error))

    thread = threading.Thread(target=kicked_off, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert raised == [kind]
    assert world == ["book a", "cancel a"]


# -- a tool that does not return -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "timeout"), [("Patient", 0.2), ("Hasty", None)])
def test_a_tool_that_does_not_return_holds_the_run(
    guard: Guard, world: list[object], first: str, timeout: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CrewAI waits for it, as it always did, unless it has a ``timeout``; else leaving the run waits 30 s."""
    monkeypatch.setattr("sagaspan._leaving.GRACE_SECONDS", 0.2)
    begun, released = threading.Event(), threading.Event()

    @tool("hang")
    def hang(room: str) -> str:
        """Hang."""
        begun.set()
        released.wait(60)
        world.append(f"hang {room}")
        return "late"

    def price(room: str) -> str:
        begun.wait(60)
        return "9 USD"

    agents = [
        agent_of([ask("hang", room="s")], [hang], role="Patient"),
        agent_of([ask("book", room="dear")], shop(world), role="Hasty"),
    ]
    agents.sort(key=lambda agent: agent.role != first)
    jobs = [Task(description="do", expected_output="x", agent=agent, async_execution=True) for agent in agents]
    last = Task(description="sum up", expected_output="x", agent=agent_of([], role="Last"))
    policies = {"book": Policy(compensate="cancel", cost=price), "hang": Policy(effect="write", timeout=timeout)}
    crew = guard.wrap(Crew(agents=agents, tasks=[*jobs, last]), policies, budget="1 USD")
    with pytest.raises(BudgetExceeded) as stopped:
        crew.kickoff()
    assert world == []
    assert end_of(guard) == ("held", "budget")
    assert "nobody knows whether 'hang' happened" in stopped.value.__notes__[0]
    released.set()
    until(lambda: states(guard) == [("hang", "done")])
    assert states(guard) == [("hang", "done")]
