"""Chat models under a guard: reserved before they are sent, settled with what they used, the same answers as before."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ModelFallbackMiddleware, ModelRetryMiddleware
from langchain_core.caches import InMemoryCache
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel, PrivateAttr

from sagaspan import BudgetExceeded, Guard, PolicyDenied, RunClosed
from tests.adapters.langchain.scripts import ask, model_calls_of, states

PRICES = {"counted": {"input": 1, "output": 2}, "scripted": {"input": 0, "output": 0}}
"""US dollars per million tokens: an answer of 1000 and 500 tokens costs 0.002."""
COST = Decimal("0.002")


class Counted(BaseChatModel):
    """Answers with its text, word by word if asked so, and knows how often it was really asked."""

    model: str = "counted"
    max_tokens: int = 1000
    text: str = "one two three"
    reports: bool = True
    fails: int = 0
    native: bool = False
    _requests: list[str] = PrivateAttr(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "counted"

    @property
    def requests(self) -> int:
        return len(self._requests)

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self.bind(tools=[convert_to_openai_tool(one) for one in tools])

    def _asked(self, how: str) -> None:
        self._requests.append(how)
        if len(self._requests) <= self.fails:
            raise ConnectionResetError("the provider is away")

    def _usage(self) -> Any:
        used = {"input_tokens": 1000, "output_tokens": 500, "total_tokens": 1500}
        return used if self.reports else None

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
        self._asked("generate")
        message = AIMessage(self.text, usage_metadata=self._usage(), response_metadata={"finish_reason": "stop"})
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _chunks(self) -> Iterator[ChatGenerationChunk]:
        for word in self.text.split():
            yield ChatGenerationChunk(message=AIMessageChunk(word))
        last = AIMessageChunk("", usage_metadata=self._usage(), response_metadata={"finish_reason": "stop"})
        yield ChatGenerationChunk(message=last)

    def _stream(self, messages: Any, stop: Any = None, run_manager: Any = None, **_: Any) -> Iterator[Any]:
        self._asked("stream")
        yield from self._chunks()


class Awaited(Counted):
    """The same with methods of its own for asynchronous callers."""

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
        return self._generate(messages)

    async def _astream(self, messages: Any, stop: Any = None, run_manager: Any = None, **_: Any) -> AsyncIterator[Any]:
        self._asked("astream")
        for chunk in self._chunks():
            yield chunk


@pytest.fixture
def guard(tmp_path: Any) -> Iterator[Guard]:
    with Guard(f"sqlite:///{tmp_path}/ledger.db", prices=PRICES) as guard:
        yield guard


async def _use(model: Any, way: str) -> int:
    """Ask ``model`` that way; how many requests that should be."""
    match way:
        case "invoke":
            assert model.invoke("hi").text == "one two three"
        case "ainvoke":
            assert (await model.ainvoke("hi")).text == "one two three"
        case "stream":
            assert [chunk.text for chunk in model.stream("hi")][:3] == ["one", "two", "three"]
        case "astream":
            assert [chunk.text async for chunk in model.astream("hi")][:3] == ["one", "two", "three"]
        case "batch":
            assert len(model.batch(["a", "b", "c"])) == 3
            return 3
        case "abatch":
            assert len(await model.abatch(["a", "b"])) == 2
            return 2
        case "generate":
            model.generate([[HumanMessage("a")], [HumanMessage("b")]])
            return 2
        case "events":
            assert [e async for e in model.astream_events("hi", version="v2")][-1]["event"] == "on_chat_model_end"
    return 1


WAYS = ["invoke", "ainvoke", "stream", "astream", "batch", "abatch", "generate", "events"]


@pytest.mark.parametrize("kind", [Counted, Awaited])
@pytest.mark.parametrize("way", WAYS)
async def test_what_is_spent_is_the_sum_of_what_was_asked(guard: Guard, kind: type[Counted], way: str) -> None:
    """Every request is one record with the usage that its answer says; nothing is counted twice or not at all."""
    plain = kind()
    expected = await _use(plain, way)
    assert plain.requests == expected
    guarded = guard.wrap(kind())
    async with guard.run("r", id="r", budget="1 USD"):
        await _use(guarded, way)
    assert guarded.requests == expected
    assert len(model_calls_of(guard, "r")) == expected
    usage = guard.usage(run="r")
    assert (usage.spent, usage.reserved) == (COST * expected, 0)
    assert (usage.input_tokens, usage.output_tokens) == (1000 * expected, 500 * expected)


@pytest.mark.parametrize("way", WAYS)
async def test_nothing_is_sent_that_the_budget_cannot_pay_for(guard: Guard, way: str) -> None:
    """Over the budget no request leaves: not one, in none of the ways to ask."""
    guarded = guard.wrap(Awaited())
    with pytest.raises(BudgetExceeded):
        async with guard.run("r", id="r", budget="0.0001 USD"):
            await _use(guarded, way)
    assert guarded.requests == 0
    assert guard.usage(run="r").spent == 0


async def test_a_guarded_model_is_the_model_that_it_was(guard: Guard) -> None:
    """Type, name, settings and state are kept; the original stays unguarded."""
    original = Counted()
    guarded = guard.wrap(original)
    assert isinstance(guarded, Counted)
    assert (type(guarded).__name__, guarded.get_name(), guarded.model) == ("Counted", original.get_name(), "counted")
    assert guarded.get_input_jsonschema() == original.get_input_jsonschema()
    original.invoke("hi")
    assert guarded.requests == 1
    assert guard.usage().calls == 0


def test_what_is_made_of_it_is_guarded_too(guard: Guard) -> None:
    """Bound options, a retry, a fallback and a chain ask the guarded model."""
    guarded = guard.wrap(Counted())
    with guard.run("r", id="r"):
        (guarded.bind(stop=["."]) | (lambda message: message.text)).invoke("hi")
        guarded.with_config(tags=["x"]).invoke("hi")
        guarded.with_fallbacks([guarded]).invoke("hi")
        guarded.model_copy(update={"text": "x"}).invoke("hi")
    assert len(model_calls_of(guard, "r")) == 4


def test_structured_output_is_metered(guard: Guard) -> None:
    """The model is asked through LangChain's own parsing."""

    class Answer(BaseModel):
        """An answer."""

        text: str

    guarded = guard.wrap(Counted())
    with guard.run("r", id="r"):
        guarded.with_structured_output(Answer, include_raw=True).invoke("hi")
    assert guard.usage(run="r").spent == COST


def test_each_attempt_of_a_retry_and_of_a_fallback_is_counted(guard: Guard) -> None:
    """What failed on the way is in doubt and booked as reserved; what answered is booked with its usage."""
    failing = guard.wrap(Counted(fails=1))
    with guard.run("r", id="r"):
        failing.with_retry(stop_after_attempt=2, wait_exponential_jitter=False).invoke("hi")
    assert failing.requests == 2
    assert [str(call.state) for call in model_calls_of(guard, "r")] == ["unknown", "done"]


def test_what_the_cache_answers_is_free(guard: Guard) -> None:
    """An answer of LangChain's cache asks nobody, and costs nothing."""
    guarded = guard.wrap(Counted(cache=InMemoryCache()))
    with guard.run("r", id="r"):
        for _ in range(3):
            guarded.invoke("hi")
    assert guarded.requests == 1
    assert guard.usage(run="r").spent == COST


@pytest.mark.parametrize("how", ["closed", "dropped"])
def test_an_abandoned_stream_is_booked_as_reserved(guard: Guard, how: str) -> None:
    """Nobody knows what it cost, so all is booked that it could; nothing is in doubt, and nothing stays reserved."""
    guarded = guard.wrap(Counted())
    with guard.run("r", id="r", budget="1 USD"):
        stream = guarded.stream("hi")
        next(stream)
        if how == "closed":
            stream.close()
        else:
            del stream
            gc.collect()
    (call,) = model_calls_of(guard, "r")
    usage = guard.usage(run="r")
    assert (call.state, usage.reserved) == ("done", 0)
    assert usage.spent > COST


class Running(Counted):
    """One that says at once what went in, as Anthropic's does, and what came out only at the end."""

    def _chunks(self) -> Iterator[ChatGenerationChunk]:
        asked: Any = {"input_tokens": 1, "output_tokens": 0, "total_tokens": 1}
        yield ChatGenerationChunk(message=AIMessageChunk("one", usage_metadata=asked))
        yield from super()._chunks()


@pytest.mark.parametrize("how", ["stream", "astream"])
async def test_a_stream_that_goes_on_past_its_limit_is_cut(store_url: str, how: str) -> None:
    """At what the budget can pay for; one that keeps to its limit is not."""
    seen = []
    for model, words in ((Counted(max_tokens=100), 100), (Counted(max_tokens=100), 3000)):
        model.text = "worded. " * words
        budget = "0.002 USD" if words > 100 else "0.0002 USD"
        with (
            Guard(store_url, prices={"counted": {"input": 0, "output": 2}}) as guard,
            contextlib.suppress(BudgetExceeded),
        ):
            async with guard.run("r", id=f"r{words}", budget=budget):
                if how == "stream":
                    seen += list(guard.wrap(model).stream("hi"))
                else:
                    seen += [chunk async for chunk in guard.wrap(model).astream("hi")]
    assert guard.runs.get("r100").status == "completed"
    assert guard.runs.get("r3000").reason == "budget"
    assert Decimal("0.0019") < guard.usage(run="r3000").spent <= Decimal("0.002")


def test_a_running_count_of_an_abandoned_stream_is_not_what_it_cost(guard: Guard) -> None:
    """What was said before the end is no final count."""
    with guard.run("r", id="r"):
        stream = guard.wrap(Running()).stream("hi")
        next(stream)
        stream.close()
    assert guard.usage(run="r").spent > COST


def test_an_answer_without_usage_is_booked_as_reserved(guard: Guard) -> None:
    """A provider that does not say what it took is not free."""
    with guard.run("r", id="r"):
        guard.wrap(Counted(reports=False)).invoke("hi")
    assert guard.usage(run="r").spent > COST


def test_a_model_nobody_prices_is_refused_under_a_budget_of_money(guard: Guard) -> None:
    """Without a price nothing bounds what it costs, so a hard budget lets it not by."""
    stranger = guard.wrap(Counted(model="a-stranger"))
    with pytest.raises(PolicyDenied, match="a-stranger"), guard.run("r", budget="1 USD"):
        stranger.invoke("hi")
    assert stranger.requests == 0


# -- in agents -------------------------------------------------------------------------------------------------


def _agent(model: Any, **options: Any) -> Any:
    @tool
    def look(city: str) -> str:
        """Look."""
        return city

    return create_agent(model, [look], name="trip", **options)


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream"])
async def test_the_models_of_a_wrapped_agent_are_metered(guard: Guard, way: str) -> None:
    """The model stands in a closure of the compiled agent; wrapping that is enough."""
    model = Counted()
    agent = guard.wrap(_agent(model), budget="1 USD")
    match way:
        case "invoke":
            agent.invoke(ask())
        case "ainvoke":
            await agent.ainvoke(ask())
        case "stream":
            list(agent.stream(ask(), stream_mode="messages"))
        case "astream":
            [chunk async for chunk in agent.astream(ask(), stream_mode="messages")]
    (run,) = guard.runs.list()
    assert model.requests == len(model_calls_of(guard, run.id)) == 1
    assert guard.usage(run=run.id).spent == COST
    assert guard.usage(agent="trip").spent == COST


def test_its_budget_ends_the_agent_before_the_request(guard: Guard) -> None:
    """No retry and no fallback of LangChain's takes "over budget" for a failure of the provider."""
    model, other = Counted(), Counted()
    middleware = [ModelFallbackMiddleware(other), ModelRetryMiddleware(max_retries=3, initial_delay=0.0)]
    with pytest.raises(BudgetExceeded) as caught:
        guard.wrap(_agent(model, middleware=middleware), budget="0.0001 USD").invoke(ask())
    assert type(caught.value) is BudgetExceeded
    assert (model.requests, other.requests) == (0, 0)
    assert {(run.status, run.reason) for run in guard.runs.list()} == {("failed", "budget")}


def test_a_model_that_a_node_asks_is_metered(guard: Guard) -> None:
    """A node of one's own, and an agent that it asks, are inside the wrap."""
    model = Counted()
    inner = _agent(model)
    graph: Any = StateGraph(MessagesState)
    graph.add_node("asks", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("delegates", lambda state: inner.invoke(state))
    graph.add_edge(START, "asks")
    graph.add_edge("asks", "delegates")
    guard.wrap(graph.compile(), run_id="r").invoke(ask())
    assert model.requests == len(model_calls_of(guard, "r")) == 2


def test_the_same_agent_unwrapped_is_not_metered(guard: Guard) -> None:
    """Guarding one agent changes nothing for those that share its model."""
    model = Counted()
    guard.wrap(_agent(model), run_id="r").invoke(ask())
    _agent(model).invoke(ask())
    model.invoke("hi")
    assert (model.requests, len(guard.runs.list()), guard.usage().calls) == (3, 1, 1)


def test_a_completed_run_that_is_replayed_asks_its_model_outside_of_it(guard: Guard) -> None:
    """The model is asked again, which costs; but a completed run has no new steps."""
    agent = guard.wrap(_agent(Counted()), run_id="r")
    agent.invoke(ask())
    agent.invoke(ask())
    assert len(model_calls_of(guard, "r")) == 1
    assert guard.usage().spent == 2 * COST
    assert states(guard)["r"] == "completed"


def test_an_aborted_run_asks_no_model(guard: Guard) -> None:
    """What was aborted spends nothing more."""
    guarded = guard.wrap(Counted())
    with guard.run("r") as run:
        run.abort("enough")
        with pytest.raises(RunClosed):
            guarded.invoke("hi")
    assert guarded.requests == 0
