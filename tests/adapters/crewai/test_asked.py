"""Models that tell CrewAI nothing and that nobody knew before: made where work is done, asked and forgotten."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from crewai import BaseLLM
from crewai.flow.flow import Flow, start

from sagaspan import BudgetExceeded, Guard
from tests.adapters.crewai.test_models import crew_with

ASKED: list[object] = []
"""What was really asked."""


@pytest.fixture(autouse=True)
def _nothing_asked() -> None:
    ASKED.clear()


class Own(BaseLLM):
    """The user's own; tells nothing."""

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        ASKED.append(messages)
        return "four words of it"

    async def acall(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        return Own.call(self, messages)


class Adding(Own):
    """One that adds up what it used."""

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        self._track_token_usage_internal({"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10})
        return super().call(messages)


class Asks:
    """What is no model by itself, but by its heirs."""

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> str:
        ASKED.append(messages)
        return "yes"


class InPieces(Own):
    """One whose answer comes piece by piece."""

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> Iterator[str]:
        ASKED.append(messages)
        for _ in range(50):
            yield "a word of it "

    async def acall(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncIterator[str]:
        async def pieces() -> AsyncIterator[str]:
            for piece in self.call(messages):
                yield piece

        return pieces()


def model(kind: type[BaseLLM] = Own, **options: Any) -> Any:
    return kind(model="gpt-4o", **options)


class Doing(Flow[Any]):
    """A flow whose only method does ``work``."""

    work: Any = None

    @start()
    def go(self) -> Any:
        """Begin."""
        return self.work()


class Awaiting(Doing):
    """One that awaits it."""

    @start()
    async def go(self) -> Any:
        """Begin."""
        return await self.work()


def of_a_class_of_its_own() -> Any:
    class Local(BaseLLM):
        def call(self, messages: Any, *args: Any, **kwargs: Any) -> str:
            ASKED.append(messages)
            return "four words of it"

    return Local(model="gpt-4o").call("hi")


def of_a_class_that_inherits_the_asking() -> Any:
    class Mixed(Asks, BaseLLM):
        pass

    return Mixed(model="gpt-4o").call("hi")


def in_a_thread_with_the_context() -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(contextvars.copy_context().run, model().call, "hi").result()


async def in_a_task() -> Any:
    return await asyncio.create_task(model().acall("hi"))


async def in_a_thread_of_the_loop() -> Any:
    return await asyncio.to_thread(lambda: model().call("hi"))


HELD = {"somewhere": [model()]}
"""A model that no code of a flow names."""


@pytest.mark.parametrize(
    "work",
    [
        of_a_class_of_its_own, of_a_class_that_inherits_the_asking, in_a_thread_with_the_context, in_a_task,
        in_a_thread_of_the_loop,
        lambda: model().call("hi"),
        lambda: model().call(messages=[{"role": "user", "content": "hi"}]),
        lambda: model().model_copy().call("hi"),
        lambda: Own.model_construct(model="gpt-4o", additional_params={}).call("hi"),
        lambda: HELD["somewhere"][0].call("hi"),
        lambda: getattr(model(), "call")("hi"),  # noqa: B009 - as code does that does not know its name
    ],
)  # fmt: skip
def test_a_model_that_work_makes_and_asks_by_itself_is_metered(guard: Guard, work: Callable[[], Any]) -> None:
    kind = Awaiting if asyncio.iscoroutinefunction(work) else Doing
    guard.wrap(kind(work=work)).kickoff()
    used = guard.usage(model="gpt-4o")
    assert len(ASKED) == used.calls == 1
    assert used.output_tokens > 0
    assert used.reserved == 0


@pytest.mark.parametrize("entry", ["kickoff", "kickoff_async", "akickoff"])
def test_what_it_adds_up_is_booked(guard: Guard, entry: str) -> None:
    flow = guard.wrap(Doing(work=lambda: model(Adding).call("hi")))
    flow.kickoff() if entry == "kickoff" else asyncio.run(getattr(flow, entry)())
    used = guard.usage(model="gpt-4o")
    assert (used.calls, used.input_tokens, used.output_tokens) == (1, 7, 3)


@pytest.mark.parametrize("budget", ["0.0001 USD", "1 calls"])
@pytest.mark.parametrize("how", ["call", "acall", "thread", "pieces"])
def test_none_is_asked_beyond_the_budget(guard: Guard, budget: str, how: str) -> None:
    """The second call of two where calls are counted; the flow does not get it back by catching all errors."""

    def ask() -> Any:
        if how == "thread":
            return in_a_thread_with_the_context()
        return list(model(InPieces).call("hi")) if how == "pieces" else model().call("hi")

    async def asked() -> None:
        for _ in range(2):
            with contextlib.suppress(Exception):
                await model().acall("hi") if how == "acall" else ask()

    with pytest.raises(BudgetExceeded):
        guard.wrap(Awaiting(work=asked), budget=budget).kickoff()
    assert len(ASKED) == (1 if budget == "1 calls" else 0)


# -- answers in pieces -------------------------------------------------------------------------------------------


async def read_awaited() -> str:
    return "".join([piece async for piece in await model(InPieces).acall("hi")])


@pytest.mark.parametrize("work", [lambda: "".join(model(InPieces).call("hi")), read_awaited])
def test_an_answer_in_pieces_is_booked_as_all_of_it_looks(guard: Guard, work: Callable[[], Any]) -> None:
    kind = Awaiting if asyncio.iscoroutinefunction(work) else Doing
    said = guard.wrap(kind(work=work)).kickoff()
    used = guard.usage(model="gpt-4o")
    assert (used.calls, used.output_tokens, used.reserved) == (1, -(-len(said) // 4), 0)


@pytest.mark.parametrize("how", ["call", "acall"])
def test_one_that_goes_on_past_the_budget_is_cut(guard: Guard, how: str) -> None:
    read: list[str] = []
    llm = model(InPieces, max_tokens=8)

    async def work() -> None:
        if how == "acall":
            async for piece in await llm.acall("hi"):
                read.append(piece)
        else:
            read.extend(iter(llm.call("hi")))

    with pytest.raises(BudgetExceeded):
        guard.wrap(Awaiting(work=work), budget="0.003 USD").kickoff()
    assert 1 < len(read) < 20
    assert guard.usage(model="gpt-4o").reserved == 0


@pytest.mark.parametrize("read", [0, 1])
def test_one_that_nobody_reads_to_its_end_is_booked_as_reserved(guard: Guard, read: int) -> None:
    held = []

    def work() -> None:
        held.append(model(InPieces, max_tokens=100).call("hi"))
        for _ in range(read):
            next(held[0])

    guard.wrap(Doing(work=work)).kickoff()
    used = guard.usage(model="gpt-4o")
    assert (used.calls, used.output_tokens, used.reserved) == (1, 100, 0)
    assert len(list(held[0])) == 50 - read


# -- what is beside, and after -----------------------------------------------------------------------------------


def state_of(*kinds: type) -> list[dict[str, Any]]:
    return [dict(vars(kind)) for kind in kinds]


def test_models_beside_a_guarded_kickoff_are_asked_as_ever(guard: Guard) -> None:
    """In another thread, of the same class, by a crew that nobody wrapped; and no class but the base is touched."""
    before, others = state_of(BaseLLM, Own), []

    def beside() -> None:
        others.append((model().call("beside"), crew_with(model()).kickoff().raw, state_of(Own)))

    def work() -> None:
        thread = threading.Thread(target=beside)
        thread.start()
        thread.join()
        model().call("within")

    guard.wrap(Doing(work=work)).kickoff()
    ((said, answer, during),) = others
    assert said == answer == "four words of it"
    assert during == before[1:]
    assert guard.usage().calls == 1
    assert state_of(BaseLLM, Own) == before


def test_a_class_that_is_made_within_a_kickoff_keeps_nothing_of_it(guard: Guard) -> None:
    made: list[Any] = []

    def work() -> None:
        class Local(Own):
            pass

        made.extend((Local, model(Local)))
        made[1].call("hi")

    guard.wrap(Doing(work=work)).kickoff()
    kind, llm = made
    assert kind.__getattribute__ is object.__getattribute__
    assert "sagaspan" not in repr(vars(kind))
    assert (llm.call("after"), guard.usage().calls) == ("four words of it", 1)


def test_a_kickoff_that_ends_does_not_disarm_another(guard: Guard) -> None:
    def work() -> None:
        guard.wrap(Doing(work=lambda: model().call("inner"))).kickoff()
        model().call("outer")

    guard.wrap(Doing(work=work)).kickoff()
    assert len(ASKED) == guard.usage(model="gpt-4o").calls == 2


def test_what_a_stopped_kickoff_left_in_a_thread_asks_no_model_that_was_known(guard: Guard) -> None:
    before, over, threads, known = state_of(BaseLLM), threading.Event(), [], model()

    def late() -> None:
        over.wait(60)
        with contextlib.suppress(Exception):
            known.call("late")

    def work() -> None:
        threads.append(threading.Thread(target=contextvars.copy_context().run, args=(late,)))
        threads[0].start()
        model().call("too dear")

    with pytest.raises(BudgetExceeded):
        guard.wrap(Doing(work=work), budget="0.0001 USD").kickoff()
    assert state_of(BaseLLM) == before
    over.set()
    threads.pop().join()
    assert ASKED == []
