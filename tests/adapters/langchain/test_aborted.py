"""A stream that is dropped or cancelled: no span stays open, the run is held, the books are closed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

from sagaspan import Guard
from tests.adapters.langchain.scripts import answers, ask, model, on, states, steps_of
from tests.cancelling import was_cancelled

World = list[Any]
MODES: tuple[Any, ...] = ("values", "updates", "messages", "debug", ["updates", "messages"])


class Open(SpanProcessor):
    """The spans that have begun and have not ended, and those that have."""

    def __init__(self) -> None:
        self.open: dict[int, str] = {}
        self.ended: list[ReadableSpan] = []

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self.open[span.context.span_id] = span.name

    def on_end(self, span: ReadableSpan) -> None:
        assert span.context is not None
        del self.open[span.context.span_id]
        self.ended.append(span)

    def says(self, prefix: str) -> list[tuple[str, Any]]:
        """The status of the ended spans of such a name, and their error."""
        return [
            (span.status.status_code.name, dict(span.attributes or {}).get("error.type"))
            for span in self.ended
            if span.name.startswith(prefix)
        ]


@pytest.fixture
def spans() -> Open:
    return Open()


@pytest.fixture
def traced(tmp_path: Path, spans: Open) -> Iterator[Guard]:
    provider = TracerProvider()
    provider.add_span_processor(spans)
    prices = {name: {"input": 1, "output": 1} for name in ("scripted", "slow")}
    with Guard(f"sqlite:///{tmp_path}/traced.db", prices=prices, tracer_provider=provider) as guard:
        yield guard


@pytest.fixture
def begun() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
def waits(begun: asyncio.Event) -> BaseTool:
    @tool
    async def waits(forever: bool) -> str:
        """Wait."""
        if forever:
            begun.set()
            await asyncio.Event().wait()
        return "done"

    return waits


def _agent(guard: Guard, waits: BaseTool) -> Any:
    steps = (("waits", {"forever": False}), ("waits", {"forever": True}))
    made = create_agent(model(*steps), [waits], checkpointer=InMemorySaver(), name="waiter")
    return guard.wrap(made, {"waits": {"effect": "read"}})


async def _cancelled(task: asyncio.Task[Any], begun: asyncio.Event) -> None:
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("mode", MODES, ids=str)
async def test_a_stream_of_an_agent_that_is_closed(traced: Guard, spans: Open, waits: BaseTool, mode: Any) -> None:
    """Its run is held as interrupted, and its span says that it was left."""
    stream = _agent(traced, waits).astream(ask(), on("t"), stream_mode=mode)
    await anext(stream)
    await anext(stream)
    await stream.aclose()
    assert (spans.open, states(traced)) == ({}, {"t/1": "held"})
    assert spans.says("sagaspan ") == [("ERROR", "GeneratorExit")]
    assert traced.runs.list()[0].reason == "interrupted"


@pytest.mark.parametrize("mode", MODES, ids=str)
async def test_a_stream_of_an_agent_that_is_cancelled(
    traced: Guard, spans: Open, waits: BaseTool, begun: asyncio.Event, mode: Any
) -> None:
    """So are its tool and that tool's span."""

    async def read() -> None:
        async for _ in _agent(traced, waits).astream(ask(), on("t"), stream_mode=mode):
            pass

    await _cancelled(asyncio.create_task(read()), begun)
    assert (spans.open, states(traced)) == ({}, {"t/1": "held"})
    assert spans.says("sagaspan ") == [("ERROR", "asyncio.exceptions.CancelledError")]
    assert spans.says("execute_tool") == [("UNSET", None), ("ERROR", "asyncio.exceptions.CancelledError")]
    assert steps_of(traced, "t/1") == [("waits", "done"), ("waits", "unknown")]


async def test_an_awaited_agent_that_is_cancelled(
    traced: Guard, spans: Open, waits: BaseTool, begun: asyncio.Event
) -> None:
    """The same without a stream."""
    await _cancelled(asyncio.create_task(_agent(traced, waits).ainvoke(ask(), on("t"))), begun)
    assert (spans.open, states(traced)) == ({}, {"t/1": "held"})


async def test_an_answer_that_is_cancelled_anywhere_can_be_given_again(traced: Guard, spans: Open) -> None:
    """Before the run is entered, while it takes up what was done, and at every step."""

    @tool
    def confirm() -> str:
        """Ask a person."""
        return str(interrupt("sure?"))

    made = create_agent(model(("confirm", {})), [confirm], checkpointer=InMemorySaver(), name="asker")
    agent = traced.wrap(made)
    for wait in itertools.count(1):
        thread = on(f"t{wait}")
        await agent.ainvoke(ask(), thread)
        cancelled = await was_cancelled(agent.ainvoke(Command(resume="yes"), thread), wait)
        assert not spans.open
        if not cancelled:
            break
        await agent.ainvoke(Command(resume="yes") if agent.get_state(thread).next else None, thread)
        assert answers(agent.get_state(thread).values)[0].content == "yes"
    assert {*states(traced).values()} == {"completed"}


class Slow(BaseChatModel):
    """Streams a few words, then nothing for ever."""

    begun: Any

    @property
    def _llm_type(self) -> str:
        return "slow"

    def _generate(self, messages: Any, *args: Any, **options: Any) -> ChatResult:
        raise NotImplementedError

    async def _astream(self, messages: Any, *args: Any, **options: Any) -> Any:
        for word in ("Once ", "upon "):
            yield ChatGenerationChunk(message=AIMessageChunk(content=word))
        self.begun.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize("how", ["closed", "cancelled"])
async def test_a_stream_of_a_model(traced: Guard, spans: Open, begun: asyncio.Event, how: str) -> None:
    """What a provider may have made by then is booked as reserved, and nothing stays reserved."""
    chat = traced.wrap(Slow(begun=begun))

    async def read() -> None:
        async for _ in chat.astream("tell", max_tokens=50):
            pass

    async with traced.run("r", id="r"):
        if how == "closed":
            stream = chat.astream("tell", max_tokens=50)
            await anext(stream)
            await stream.aclose()
        else:
            await _cancelled(asyncio.create_task(read()), begun)
    for _ in range(1000):  # what the garbage collector closed is settled by another thread
        if not spans.open:
            break
        await asyncio.sleep(0.01)
    used = traced.usage(run="r")
    assert (spans.open, used.reserved, used.output_tokens) == ({}, 0, 50)
    assert len(spans.says("chat slow")) == 1
