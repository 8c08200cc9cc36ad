"""Usage from responses: the SDKs' own objects and plain dicts read the same, and nothing is guessed."""

from __future__ import annotations

import copy
from typing import Any
from unittest.mock import Mock

import boto3
import ollama
import pytest
from anthropic.types import Message
from anthropic.types.beta import BetaMessage
from botocore.stub import Stubber
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage
from openai.types import CreateEmbeddingResponse
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from sagaspan import ConfigurationError
from sagaspan.llm.responses import read_usage
from sagaspan.llm.usage import COUNTS, Usage
from tests.llm.payloads import (
    ANTHROPIC_MESSAGE,
    BEDROCK_CONVERSE,
    COHERE_CHAT,
    COHERE_CHAT_V1,
    GEMINI,
    LANGCHAIN_USAGE,
    OLLAMA_CHAT,
    OPENAI_CHAT,
    OPENAI_EMBEDDINGS,
    OPENAI_RESPONSE,
)

ANTHROPIC = Usage(
    input_tokens=1750, output_tokens=300, cache_read_tokens=1000, cache_write_tokens=700, cache_write_1h_tokens=200,
    web_searches=2, model="claude-sonnet-4-5-20250929", service_tier="standard", geo="us",
)  # fmt: skip
KNOWN = [
    (ChatCompletion, OPENAI_CHAT, Usage(
        input_tokens=1200, output_tokens=300, cache_read_tokens=1024, reasoning_tokens=128, input_audio_tokens=40,
        output_audio_tokens=20, model="gpt-4o-2024-08-06", service_tier="default",
    )),
    (Response, OPENAI_RESPONSE, Usage(
        input_tokens=800, output_tokens=200, cache_read_tokens=512, cache_write_tokens=100, reasoning_tokens=64,
        web_searches=1, file_searches=1, model="gpt-5-2025-08-07", service_tier="priority",
    )),
    (CreateEmbeddingResponse, OPENAI_EMBEDDINGS, Usage(input_tokens=8, model="text-embedding-3-small")),
    (Message, ANTHROPIC_MESSAGE, ANTHROPIC),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "payload", "usage"), KNOWN, ids=lambda value: getattr(value, "__name__", ""))
def test_objects_of_the_sdks_and_their_dicts_read_the_same(kind: Any, payload: dict[str, Any], usage: Usage) -> None:
    """The SDK's object, its dump, the JSON that was sent, and the usage by itself."""
    response = kind.model_validate(payload)
    assert read_usage(response) == usage
    assert read_usage(payload) == usage
    assert read_usage(response.model_dump()) == usage
    inner = read_usage(payload["usage"])
    assert inner is not None
    assert [getattr(inner, name) for name in COUNTS[:4]] == [getattr(usage, name) for name in COUNTS[:4]]


OF_OTHERS = {
    "ollama": (OLLAMA_CHAT, Usage(input_tokens=26, output_tokens=282, model="llama3.2")),
    "gemini": (GEMINI, Usage(
        input_tokens=1030, output_tokens=250, cache_read_tokens=600, cache_audio_read_tokens=40, input_audio_tokens=100,
        reasoning_tokens=50, model="gemini-2.5-flash",
    )),
    "bedrock": (BEDROCK_CONVERSE, Usage(
        input_tokens=1825, output_tokens=100, cache_read_tokens=300, cache_write_tokens=1500, cache_write_1h_tokens=500,
    )),
    "cohere": (COHERE_CHAT, Usage(input_tokens=5, output_tokens=418)),
    "cohere v1": (COHERE_CHAT_V1, Usage(input_tokens=5, output_tokens=418)),
}  # fmt: skip


@pytest.mark.parametrize("provider", OF_OTHERS)
def test_documented_answers_of_other_providers_are_read(provider: str) -> None:
    """Ollama, Gemini, Bedrock Converse and Cohere each count under names of their own."""
    payload, usage = OF_OTHERS[provider]
    assert read_usage(payload) == usage


def test_objects_of_the_sdks_of_other_providers_are_read() -> None:
    """Ollama's class, Gemini's where it is installed, and what boto3 makes of what Bedrock sends."""
    assert read_usage(ollama.ChatResponse.model_validate(OLLAMA_CHAT)) == OF_OTHERS["ollama"][1]
    client = boto3.client("bedrock-runtime", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
    with Stubber(client) as stub:  # it checks the answer against the service's own description
        stub.add_response("converse", BEDROCK_CONVERSE)
        assert read_usage(client.converse(modelId="m", messages=[])) == OF_OTHERS["bedrock"][1]


def test_an_object_of_the_sdk_of_gemini_is_read() -> None:
    """It has the same names in snake case, and its kinds of content are an enum."""
    types = pytest.importorskip("google.genai.types")
    assert read_usage(types.GenerateContentResponse.model_validate(GEMINI)) == OF_OTHERS["gemini"][1]


def test_what_the_cache_gave_and_took_is_input() -> None:
    """Anthropic's count leaves both out, however little it is."""
    counts = {
        "input_tokens": 5000,
        "output_tokens": 1,
        "cache_read_input_tokens": 10,
        "cache_creation_input_tokens": 20,
    }
    usage = read_usage({"usage": counts})
    assert usage is not None
    assert (usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens) == (5030, 10, 20)


def test_langchain_messages() -> None:
    """``usage_metadata`` counts the whole input; the model is in the response's metadata."""
    message = AIMessage(
        "Hello.", usage_metadata=LANGCHAIN_USAGE, response_metadata={"model_name": "claude-x", "service_tier": "batch"}
    )
    usage = Usage(
        input_tokens=1750, output_tokens=300, cache_read_tokens=1000, cache_write_tokens=700, cache_write_1h_tokens=200,
        input_audio_tokens=3, reasoning_tokens=128, output_audio_tokens=4, model="claude-x", service_tier="batch",
    )  # fmt: skip
    assert read_usage(message) == usage
    assert read_usage(message.usage_metadata) == Usage(**{name: getattr(usage, name) for name in COUNTS})


def test_plain_numbers() -> None:
    """What a person writes by hand, and a ``Usage`` itself."""
    assert read_usage({"input_tokens": 950, "output_tokens": 480}) == Usage(input_tokens=950, output_tokens=480)
    assert read_usage({"input_tokens": 9, "cache_read_tokens": 4}) == Usage(input_tokens=9, cache_read_tokens=4)
    assert read_usage(ANTHROPIC) is ANTHROPIC


def test_side_inferences_are_counted() -> None:
    """Anthropic bills a compaction and leaves it out of the totals."""
    payload = copy.deepcopy(ANTHROPIC_MESSAGE)
    payload["usage"]["iterations"] = [
        {"type": "message", "input_tokens": 50, "output_tokens": 300, "cache_read_input_tokens": 1000,
         "cache_creation_input_tokens": 700},
        {"type": "compaction", "input_tokens": 5000, "output_tokens": 400, "cache_read_input_tokens": 100,
         "cache_creation_input_tokens": 0},
    ]  # fmt: skip
    usage = read_usage(payload)
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens) == (1750 + 5100, 700, 1100)
    assert read_usage(BetaMessage.model_validate(payload)) == usage


@pytest.mark.parametrize(
    ("counts", "input_tokens", "output_tokens"),
    [
        # xAI and Gemini's compatible endpoint leave the reasoning out of the completion.
        ({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 115,
          "completion_tokens_details": {"reasoning_tokens": 100}}, 10, 105),
        ({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 115}, 10, 105),
        # A proxy that reports Anthropic's cache in OpenAI's words.
        ({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15,
          "prompt_tokens_details": {"cached_tokens": 1000}}, 1010, 5),
        ({"prompt_tokens": 10, "completion_tokens": 5,
          "completion_tokens_details": {"reasoning_tokens": 100}}, 10, 105),
        ({"prompt_tokens": 10, "total_tokens": 10}, 10, 0),
    ],
)  # fmt: skip
def test_a_server_that_contradicts_itself_is_read_as_the_dearer(
    counts: dict[str, Any], input_tokens: int, output_tokens: int
) -> None:
    """No reading is cheaper than any of the numbers it rests on."""
    usage = read_usage({"usage": counts})
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens) == (input_tokens, output_tokens)


@pytest.mark.parametrize(
    "response",
    [
        None, "text", 5, {}, [], {"usage": None}, {"usage": {}}, {"usage": {"prompt_tokens": None}},
        {"usage": {"prompt_tokens": -1, "completion_tokens": 5}}, {"usage": {"prompt_tokens": 10.0}},
        {"usage": {"prompt_tokens": 5, "completion_tokens": -5}},
        {"usage": {"prompt_tokens": True}}, {"usage": {"prompt_tokens": "12"}},
        {"usage": {"prompt_tokens": 5, "completion_tokens": float("nan")}},
        {"usage": {"prompt_tokens": 5, "completion_tokens": 1.5}}, {"usage": {"input_tokens": 10**15}},
        {"usage": {"prompt_tokens": 5, "prompt_tokens_details": {"audio_tokens": 9}}},
        {"usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": "7"}}, {"usage": {"inputTokens": -1}},
        {"usage": {"billed_units": {"input_tokens": 1.5}}}, {"model": "m", "eval_count": 5},
        {"meta": {"billed_units": {}}},
        Mock(), Mock(usage=Mock()), Mock(spec=[]), object(),
    ],
)  # fmt: skip
def test_what_cannot_be_trusted_is_not_read(response: Any) -> None:
    """Negative, fractional, absurd or missing counts are no usage: the caller keeps what was reserved."""
    assert read_usage(response) is None


words = st.sampled_from([
    "prompt_tokens", "completion_tokens", "total_tokens", "input_tokens", "output_tokens", "cache_read_input_tokens",
    "cache_creation_input_tokens", "prompt_tokens_details", "input_tokens_details", "input_token_details",
    "completion_tokens_details", "cached_tokens", "reasoning_tokens", "cache_creation", "iterations", "usage", "type",
    "promptTokenCount", "promptTokensDetails", "modality", "tokenCount", "inputTokens", "cacheDetails", "billed_units",
])  # fmt: skip
junk = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.integers(0, 100), st.floats(), st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=6)),
)


@settings(suppress_health_check=[HealthCheck.too_slow])  # the data is drawn slowly on a busy machine
@given(st.dictionaries(words, junk, max_size=8))
def test_no_answer_breaks_the_reader(counts: dict[str, Any]) -> None:
    """A call that succeeded never fails for its bookkeeping, and what is read is never less than what was said."""
    usage = read_usage({"usage": counts})
    if usage is not None:
        said = [counts.get(name) for name in ("prompt_tokens", "completion_tokens", "total_tokens")]
        if all(type(value) is int for value in said):
            assert usage.input_tokens >= said[0]
            assert usage.output_tokens >= said[1]
            assert usage.total_tokens >= said[2]


@pytest.mark.parametrize(
    "counts",
    [
        {"input_tokens": -1}, {"input_tokens": True}, {"input_tokens": 1.0}, {"input_tokens": 10**13},
        {"cache_read_tokens": 1}, {"input_tokens": 5, "cache_read_tokens": 3, "cache_write_tokens": 3},
        {"output_tokens": 5, "reasoning_tokens": 6}, {"input_tokens": 9, "cache_write_1h_tokens": 1},
        {"input_tokens": 9, "input_audio_tokens": 5, "input_image_tokens": 5},
    ],
)  # fmt: skip
def test_hostile_counts_are_refused(counts: dict[str, Any]) -> None:
    """Usage that a person states is checked: no negative count, no part larger than its whole."""
    with pytest.raises(ConfigurationError, match="usage"):
        Usage(**counts)


def test_usages_add_up() -> None:
    """Every count, and who served the first."""
    both = ANTHROPIC + Usage(input_tokens=1, output_tokens=2, model="other")
    assert (both.input_tokens, both.output_tokens, both.total_tokens) == (1751, 302, 2053)
    assert both.model == ANTHROPIC.model
