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

STREAMS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "kickoff": (streamed, lambda crew: crew.kickoff()),
    "kickoff_async": (streamed, lambda crew: crew.kickoff_async()),
    "akickoff": (streamed, lambda crew: crew.akickoff()),
    "kickoff_for_each": (streamed, lambda crew: crew.kickoff_for_each([{}])),
    "kickoff_for_each_async": (streamed, lambda crew: crew.kickoff_for_each_async([{}])),
    "akickoff_for_each": (streamed, lambda crew: crew.akickoff_for_each([{}])),
    "flow-stream_events": (in_flow, lambda flow: flow.stream_events()),
    "flow-astream": (in_flow, lambda flow: flow.astream()),
}


async def closed_at(moment: threading.Event, enter: Callable[[Any], Any], target: Any) -> None:
    """Read a piece of the stream, and close it at ``moment``."""
    stream = enter(target)
    if asyncio.iscoroutine(stream):
        stream = await stream
    stream = stream[0] if isinstance(stream, list) else stream
    if stream._async_iterator is None:
        next(iter(stream))
        moment.wait(20)
        stream.close()
        return
    pieces = aiter(stream)
    await anext(pieces)
    await asyncio.to_thread(moment.wait, 20)
    await stream.aclose()


@pytest.mark.parametrize("name", STREAMS)
def test_closing_a_stream_ends_its_kickoff_when_the_call_in_flight_is_done(
    guard: Guard, world: list[object], name: str
) -> None:
    make, enter = STREAMS[name]
    book, cancel = shop(world)
    begun = threading.Event()

    @tool("book")
    def slow(room: str) -> str:
        """Book."""
        if room == "b":
            session = session_in_force.get()
            begun.set()
            until(lambda: session is None or session.is_stopping)
        return str(book.func(room))

    policies = {"book": Policy(compensate=cancel.func)}
    target = guard.wrap(make([ask("book", room=room) for room in "abcd"], [slow, cancel]), policies)
    asyncio.run(closed_at(begun, enter, target))
    assert world == ["book a", "book b", "cancel b", "cancel a"]
    assert end_of(guard) == ("compensated", "interrupted")


@pytest.fixture
def without_collection() -> Iterator[None]:
    """What closes, closes by itself."""
    gc.disable()
    yield
    gc.enable()


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
