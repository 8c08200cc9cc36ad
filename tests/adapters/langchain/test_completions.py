"""Models of texts and embeddings are metered as chat models are: reserved before, booked with what they say."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import LLM, BaseLLM
from langchain_core.outputs import Generation, GenerationChunk, LLMResult
from langchain_core.tools import tool
from langchain_core.vectorstores import InMemoryVectorStore
from pydantic import BaseModel, PrivateAttr

from sagaspan import BudgetExceeded, ConfigurationError, Guard
from tests.adapters.langchain.scripts import ask, model
from tests.adapters.langchain.test_models import COST, PRICES

USED = {"prompt_tokens": 1000, "completion_tokens": 500}


class Texts(BaseLLM):
    """Completes several prompts in one request, and says what that took as OpenAI's does, or else as Ollama's."""

    model: str = "counted"
    max_tokens: int = 1000
    says: str = "in all"
    _sent: list[str] = PrivateAttr(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "counted"

    @property
    def sent(self) -> list[str]:
        return self._sent

    def _generate(self, prompts: list[str], stop: Any = None, run_manager: Any = None, **_: Any) -> LLMResult:
        self._sent.extend(prompts)
        beside = {"prompt_eval_count": 1000, "eval_count": 500} if self.says == "each" else None
        used = {name: count * len(prompts) for name, count in USED.items()}
        told = {"token_usage": used} if self.says == "in all" else None
        return LLMResult(
            generations=[[Generation(text="one two", generation_info=beside)] for _ in prompts], llm_output=told
        )

    def _stream(self, prompt: str, stop: Any = None, run_manager: Any = None, **_: Any) -> Iterator[GenerationChunk]:
        self._sent.append(prompt)
        yield GenerationChunk(text="one ")
        yield GenerationChunk(text="two", generation_info={"finish_reason": "stop", "token_usage": USED})


class Awaited(Texts):
    """The same with methods of its own for asynchronous callers."""

    async def _agenerate(self, prompts: list[str], stop: Any = None, run_manager: Any = None, **_: Any) -> LLMResult:
        return self._generate(prompts)

    async def _astream(
        self, prompt: str, stop: Any = None, run_manager: Any = None, **_: Any
    ) -> AsyncIterator[GenerationChunk]:
        for chunk in self._stream(prompt):
            yield chunk


class Plain(LLM):
    """The class that people derive their own from: one function, which says nothing of tokens."""

    model: str = "counted"
    max_tokens: int = 1000
    _sent: list[str] = PrivateAttr(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "counted"

    @property
    def sent(self) -> list[str]:
        return self._sent

    def _call(self, prompt: str, stop: Any = None, run_manager: Any = None, **_: Any) -> str:
        self._sent.append(prompt)
        return "one two"


class Vectors(BaseModel, Embeddings):
    """Embeddings of which one method asks another, as many do."""

    model: str = "counted"
    _sent: list[str] = PrivateAttr(default_factory=list)

    @property
    def sent(self) -> list[str]:
        return self._sent

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self._sent.extend(texts)
        return [[float(len(text)), 1.0] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


class Kept(Embeddings):
    """Embeddings that keep what others embed."""

    def __init__(self, behind: Embeddings) -> None:
        self.behind = behind
        self.known: dict[str, list[float]] = {}

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        new = [text for text in texts if text not in self.known]
        self.known.update(zip(new, self.behind.embed_documents(new), strict=True) if new else ())
        return [self.known[text] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


@pytest.fixture
def guard(tmp_path: Any) -> Iterator[Guard]:
    with Guard(f"sqlite:///{tmp_path}/ledger.db", prices=PRICES) as guard:
        yield guard


async def _complete(target: Any, way: str) -> int:
    """Ask ``target`` that way; how many prompts that is."""
    match way:
        case "invoke":
            assert target.invoke("a") == "one two"
        case "ainvoke":
            assert await target.ainvoke("a") == "one two"
        case "stream":
            assert "".join(target.stream("a")) == "one two"
        case "astream":
            assert "".join([chunk async for chunk in target.astream("a")]) == "one two"
        case "batch":
            assert target.batch(["a", "b"]) == ["one two"] * 2
            return 2
        case "abatch":
            assert await target.abatch(["a", "b"]) == ["one two"] * 2
            return 2
    return 1


WAYS = ("invoke", "ainvoke", "stream", "astream", "batch", "abatch")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [Texts, Awaited, Plain])
async def test_what_is_spent_is_what_was_asked(guard: Guard, kind: Any, way: str) -> None:
    """In every way to ask: prompts that are sent together are one request, and those of a plain model one each."""
    plain, guarded = kind(), guard.wrap(kind())
    assert isinstance(guarded, kind)
    prompts = await _complete(plain, way)
    async with guard.run("r", id="r", budget="1 USD"):
        await _complete(guarded, way)
    assert plain.sent == guarded.sent
    usage = guard.usage(run="r")
    assert (usage.calls, usage.reserved) == (prompts if kind is Plain else 1, 0)
    if kind is Plain:
        assert usage.spent > COST * prompts
    else:
        assert (usage.spent, usage.input_tokens, usage.output_tokens) == (COST * prompts, 1000 * prompts, 500 * prompts)
    with pytest.raises(BudgetExceeded):
        async with guard.run("poor", budget="0.0001 USD"):
            await _complete(guarded, way)
    assert plain.sent == guarded.sent


@pytest.mark.parametrize("says", ["each", "nothing"])
def test_where_it_says_what_it_used(guard: Guard, says: str) -> None:
    """Beside each completion is as good; what says nothing is booked with all that was reserved."""
    with guard.run("r", id="r"):
        guard.wrap(Texts(says=says)).batch(["a", "b"])
    assert (guard.usage(run="r").spent == 2 * COST) is (says == "each")
    assert guard.usage(run="r").spent >= 2 * COST


def test_within_a_wrapped_agent_they_are_reached(guard: Guard) -> None:
    """A tool that completes, and one that searches by embeddings: steps of the run, outside of it nobody's."""
    texts, vectors = Texts(), Vectors()
    store = InMemoryVectorStore(Kept(vectors))
    store.add_texts(["here", "there"])

    @tool
    def search(what: str) -> str:
        """Search."""
        return texts.invoke(str([found.page_content for found in store.similarity_search(what)]))

    built = create_agent(model(("search", {"what": "here?"}), ("search", {"what": "here?"})), [search])
    found = guard.coverage(built)
    assert (found.models, found.opaque) == (("counted", "scripted"), ())
    agent = guard.wrap(built, run_id="r")
    agent.invoke(ask())
    calls = [call.tool for call in guard.runs.get("r").calls]
    assert calls.count("embeddings counted") == 1  # the second time it is known
    assert calls.count("text_completion counted") == 2
    spent = guard.usage().calls
    texts.invoke("a")
    vectors.embed_query("b")
    assert guard.usage().calls == spent


async def test_embeddings_are_counted_once(guard: Guard) -> None:
    """However one method of theirs asks another; over the budget nothing is sent."""
    guarded = guard.wrap(Vectors())
    async with guard.run("r", id="r", budget="1 USD"):
        assert guarded.embed_query("abc") == await guarded.aembed_query("abc") == [3.0, 1.0]
        assert len(await guarded.aembed_documents(["a", "b"])) == 2
    assert (len(guarded.sent), guard.usage(run="r").calls) == (4, 3)
    with pytest.raises(BudgetExceeded), guard.run("poor", budget="0.000001 USD"):
        guarded.embed_documents(["a"])
    assert len(guarded.sent) == 4
    with pytest.raises(ConfigurationError, match="asks other embeddings"):
        guard.wrap(Kept(Vectors()))
