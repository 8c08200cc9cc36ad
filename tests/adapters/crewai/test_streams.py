"""Streams: closing one ends its kickoff; an answer that goes on past what the budget can pay for is cut."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from crewai import Agent, Crew
from crewai.tools import tool

from sagaspan import BudgetExceeded, Guard, Policy
from sagaspan_crewai._session import session_in_force
from tests.adapters.crewai.entries import in_flow, streamed
from tests.adapters.crewai.scripts import ask
from tests.adapters.crewai.test_ends import end_of, until
from tests.adapters.crewai.test_models import job, of_openai
from tests.adapters.crewai.test_stops import shop
from tests.providers.replies import Reply
from tests.providers.server import ModelServer

Enter = Callable[[Any], Any]
READ_IN_A_THREAD: dict[str, tuple[Any, Enter]] = {
    "kickoff": (streamed, lambda crew: crew.kickoff()),
    "kickoff_for_each": (streamed, lambda crew: crew.kickoff_for_each([{}])[0]),
    "flow": (in_flow, lambda flow: flow.stream_events()),
}
AWAITED: dict[str, tuple[Any, Enter]] = {
    "kickoff_async": (streamed, lambda crew: crew.kickoff_async()),
    "akickoff": (streamed, lambda crew: crew.akickoff()),
    "kickoff_for_each_async": (streamed, lambda crew: crew.kickoff_for_each_async([{}])),
    "akickoff_for_each": (streamed, lambda crew: crew.akickoff_for_each([{}])),
    "flow": (in_flow, lambda flow: flow.astream()),
}


def slow_shop(world: list[object], begun: threading.Event) -> list[Any]:
    """A shop that books room b when nobody wants it any more."""
    book, cancel = shop(world)

    @tool("book")
    def slow(room: str) -> str:
        """Book."""
        if room == "b":
            session = session_in_force.get()
            begun.set()
            until(lambda: session is None or session.is_stopping)
        return str(book.func(room))

    return [slow, cancel]


def wrapped(guard: Guard, make: Any, tools: list[Any]) -> Any:
    policies = {"book": Policy(compensate=tools[1].func)}
    return guard.wrap(make([ask("book", room=room) for room in "abcd"], tools), policies)


@pytest.fixture
def without_collection() -> Iterator[None]:
    """What closes, closes by itself."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("name", READ_IN_A_THREAD)
def test_closing_a_stream_ends_its_kickoff(guard: Guard, world: list[object], name: str) -> None:
    """When the call in flight is done, and then it is undone."""
    make, enter = READ_IN_A_THREAD[name]
    begun = threading.Event()
    stream = enter(wrapped(guard, make, slow_shop(world, begun)))
    next(iter(stream))
    begun.wait(60)
    stream.close()
    assert world == ["book a", "book b", "cancel b", "cancel a"]
    assert end_of(guard) == ("compensated", "interrupted")


@pytest.mark.parametrize("name", AWAITED)
def test_closing_an_awaited_stream_ends_its_kickoff(guard: Guard, world: list[object], name: str) -> None:
    """Also where a thread works on it, which is waited for."""
    make, enter = AWAITED[name]
    begun = threading.Event()

    async def closed() -> None:
        made = enter(wrapped(guard, make, slow_shop(world, begun)))
        stream = await made if asyncio.iscoroutine(made) else made
        await anext(aiter(stream))
        await asyncio.to_thread(begun.wait, 20)
        await stream.aclose()
        assert world == ["book a", "book b", "cancel b", "cancel a"]
        assert end_of(guard) == ("compensated", "interrupted")

    asyncio.run(closed())


@pytest.mark.usefixtures("without_collection")
@pytest.mark.parametrize("name", READ_IN_A_THREAD)
def test_dropping_a_stream_ends_its_kickoff(guard: Guard, world: list[object], name: str) -> None:
    make, enter = READ_IN_A_THREAD[name]
    begun = threading.Event()
    stream = enter(wrapped(guard, make, slow_shop(world, begun)))
    for _ in stream:
        break
    begun.wait(60)
    del stream
    assert world == ["book a", "book b", "cancel b", "cancel a"]
    assert end_of(guard) == ("compensated", "interrupted")


@pytest.mark.usefixtures("without_collection")
def test_the_collector_does_not_wait_for_the_thread_of_a_stream(guard: Guard, world: list[object]) -> None:
    """It runs in the middle of anything, and the thread may wait for just that."""
    book, cancel = shop(world)
    begun, collected, in_time = threading.Event(), threading.Event(), []

    @tool("book")
    def slow(room: str) -> str:
        """Book."""
        if room == "b":
            session = session_in_force.get()
            begun.set()
            in_time.append(collected.wait(60))
            until(lambda: session is None or session.is_stopping)
        return str(book.func(room))

    crew = streamed([ask("book", room=room) for room in "abcd"], [slow, cancel])
    lies_in_a_cycle = [guard.wrap(crew, {"book": Policy(compensate=cancel.func)}).kickoff()]
    lies_in_a_cycle.append(lies_in_a_cycle)
    for _ in lies_in_a_cycle[0]:
        break
    begun.wait(60)
    del lies_in_a_cycle
    gc.collect()
    collected.set()
    until(lambda: end_of(guard)[0] != "running" and len(world) > 3)
    assert in_time == [True]
    assert world == ["book a", "book b", "cancel b", "cancel a"]


@pytest.mark.usefixtures("without_collection")
@pytest.mark.parametrize("name", AWAITED)
def test_dropping_an_awaited_stream_ends_its_kickoff(guard: Guard, world: list[object], name: str) -> None:
    make, enter = AWAITED[name]
    begun = threading.Event()

    async def dropped() -> None:
        made = enter(wrapped(guard, make, slow_shop(world, begun)))
        stream = await made if asyncio.iscoroutine(made) else made
        async for _ in stream:
            break
        await asyncio.to_thread(begun.wait, 20)
        del made, stream
        if "for_each" in name:
            gc.collect()  # CrewAI has the stream of a batch lie in a cycle
        await asyncio.to_thread(until, lambda: end_of(guard)[0] == "compensated")
        assert world == ["book a", "book b", "cancel b", "cancel a"]
        assert end_of(guard) == ("compensated", "interrupted")

    asyncio.run(dropped())


@pytest.mark.usefixtures("without_collection")
def test_an_answer_that_goes_on_past_its_limit_is_cut(guard: Guard, model_server: ModelServer) -> None:
    """Of a provider that does not keep to it: at what the budget can pay for; its line is closed."""
    model_server.say(Reply(text="worded " * 1500))
    llm = of_openai(model_server, stream=True, max_tokens=100, additional_params={"max_completion_tokens": 5000})
    agent = Agent(role="R", goal="g", backstory="b", llm=llm)
    with pytest.raises(BudgetExceeded, match="was cut: to go on past"):
        guard.wrap(Crew(agents=[agent], tasks=[job(agent)]), budget="2000 tokens").kickoff()
    used = guard.usage(model="gpt-4o-mini")
    assert 100 < used.output_tokens < 1000
    assert used.input_tokens + used.output_tokens < 2010  # the piece that did not fit has come
    assert len(model_server.requests) == 1
    until(lambda: not model_server._connections)
    assert not model_server._connections
    assert end_of(guard)[1] == "budget"


def test_an_answer_within_its_limit_is_not(guard: Guard, model_server: ModelServer) -> None:
    model_server.say(Reply(text="worded " * 90))
    agent = Agent(role="R", goal="g", backstory="b", llm=of_openai(model_server, stream=True, max_tokens=100))
    guard.wrap(Crew(agents=[agent], tasks=[job(agent)]), budget="2000 tokens").kickoff()
    assert guard.usage(model="gpt-4o-mini").output_tokens == model_server.output_tokens == 90
