"""What a request can use at most, from the arguments of the SDKs' calls."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from anthropic.types import TextBlock, ToolUseBlock
from hypothesis import given
from hypothesis import strategies as st
from openai import NOT_GIVEN
from openai.types.chat import ChatCompletion
from openai.types.responses import Response
from pydantic import BaseModel

from sagaspan.llm.demand import Demand
from sagaspan.llm.demands import (
    IMAGE_TOKENS,
    chat_demand,
    embeddings_demand,
    messages_demand,
    responses_demand,
    text_tokens,
)
from tests.llm.payloads import OPENAI_CHAT, OPENAI_RESPONSE

HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "pay", "description": "Pay.", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("text", "most"), [("", 0), ("Hello", 5), ("é", 2), ("東京", 6), ("😀", 4), ("ﷺ", 33), ("\ud800", 3)]
)
def test_a_token_is_at_least_one_byte(text: str, most: int) -> None:
    """UTF-8, or the form that a tokenizer may normalise to, if longer: one Arabic ligature is eighteen letters."""
    assert text_tokens(text) == most


@given(st.text())
def test_no_form_of_a_text_has_more_tokens_than_its_bound(text: str) -> None:
    """Byte by byte, in every form that a tokenizer may bring it to."""
    for form in (text, unicodedata.normalize("NFKC", text), unicodedata.normalize("NFC", text)):
        assert len(form.encode()) <= text_tokens(text)


@pytest.mark.parametrize("read", [chat_demand, responses_demand, messages_demand, embeddings_demand])
@pytest.mark.parametrize("length", [0, 10, 100_000])
def test_everything_that_is_sent_counts(read: Any, length: int) -> None:
    """Messages, instructions, tools and schemas: no byte of them is free."""
    text = "x" * length
    everything = {
        chat_demand: {"messages": [{"role": "system", "content": text}, {"role": "user", "content": [
            {"type": "text", "text": text}]}], "tools": [{**TOOL, "x": text}], "response_format": {"schema": text}},
        responses_demand: {"input": [{"role": "user", "content": text}], "instructions": text, "tools": [TOOL, text],
                           "text": {"format": {"schema": {"description": text}}}},
        messages_demand: {"messages": [{"role": "user", "content": text}], "system": [{"type": "text", "text": text}],
                          "tools": [{"name": "pay", "input_schema": {"properties": {text: {}}}}],
                          "output_config": {"format": text}},
        embeddings_demand: {"input": [text, text, text, text]},
    }[read]  # fmt: skip
    demand = read({"model": "m", **everything})
    assert demand.input_tokens >= 4 * length
    assert demand.input_tokens <= 4 * length + 3000
    assert demand.open_ended is None


def test_limits_of_the_output() -> None:
    """Each API's own words; several choices each have theirs; no limit is None."""
    assert chat_demand({"messages": HELLO}).output_tokens is None
    assert chat_demand({"messages": HELLO, "max_tokens": 50}).output_tokens == 50
    assert chat_demand({"messages": HELLO, "max_tokens": 50, "max_completion_tokens": 70}).output_tokens == 70
    assert chat_demand({"messages": HELLO, "max_tokens": NOT_GIVEN, "n": NOT_GIVEN}).output_tokens is None
    assert chat_demand({"messages": HELLO, "max_tokens": 50, "n": 3}).choices == 3
    assert chat_demand({"messages": HELLO, "max_tokens": -5}).output_tokens is None
    assert responses_demand({"input": "Hello", "max_output_tokens": 50}).output_tokens == 50
    assert messages_demand({"messages": HELLO, "max_tokens": 50}).output_tokens == 50
    thinking = {"type": "enabled", "budget_tokens": 4000}
    assert messages_demand({"messages": HELLO, "max_tokens": 5000, "thinking": thinking}).output_tokens == 5000
    assert messages_demand({"messages": HELLO, "max_tokens": 50, "thinking": thinking}).output_tokens == 4050
    assert embeddings_demand({"input": "Hello"}).output_tokens == 0


def test_a_prediction_is_billed_where_it_is_not_used() -> None:
    """OpenAI bills rejected tokens of a predicted output as output."""
    prediction = {"type": "content", "content": "x" * 1000}
    demand = chat_demand({"messages": HELLO, "max_tokens": 50, "prediction": prediction})
    assert demand.output_tokens is not None
    assert demand.output_tokens >= 1050


def test_embeddings_of_tokens() -> None:
    """Input that is tokens already counts one each."""
    assert 3000 <= embeddings_demand({"input": [[1, 2, 3]] * 1000}).input_tokens <= 8000
    assert embeddings_demand({"input": list(range(1000))}).input_tokens >= 1000
    numbers = chat_demand({"messages": HELLO, "tools": [{"enum": [10**30] * 100}]}).input_tokens
    assert numbers >= chat_demand({"messages": HELLO, "tools": [{"enum": []}]}).input_tokens + 3000


def test_images_count_by_the_piece() -> None:
    """Neither an address nor the bytes of a picture say how many tokens it is."""
    picture = "data:image/png;base64," + "A" * 1_000_000
    chat = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": picture}}] * 2}]
    demand = chat_demand({"messages": chat})
    assert 2 * IMAGE_TOKENS["openai"] <= demand.input_tokens <= 2 * IMAGE_TOKENS["openai"] + 3000
    assert demand.images
    source = {"type": "base64", "media_type": "image/png", "data": "A" * 100}
    messages = [{"role": "user", "content": [{"type": "image", "source": source}]}]
    assert messages_demand({"messages": messages, "max_tokens": 5}).input_tokens >= IMAGE_TOKENS["anthropic"]
    parts = [{"role": "user", "content": [{"type": "input_image", "image_url": "https://example.com/a.png"}]}]
    assert responses_demand({"input": parts}).input_tokens >= IMAGE_TOKENS["openai"]


def test_audio_counts_by_its_length() -> None:
    """A minute of it is six hundred tokens, whatever the format."""
    minute = "A" * (60 * 1000 * 4 // 3)
    part = {"type": "input_audio", "input_audio": {"data": minute, "format": "mp3"}}
    demand = chat_demand({"messages": [{"role": "user", "content": [part]}], "modalities": ["text", "audio"]})
    assert 600 <= demand.audio_tokens <= 5000
    assert demand.input_tokens >= demand.audio_tokens
    assert demand.speaks


@pytest.mark.parametrize(
    ("read", "arguments"),
    [
        (chat_demand, {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}]}),
        (responses_demand, {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]}),
        (responses_demand, {"input": "Go on", "previous_response_id": "resp_1"}),
        (responses_demand, {"input": "Go on", "conversation": "conv_1"}),
        (responses_demand, {"prompt": {"id": "pmpt_1"}}),
        (messages_demand, {"messages": [{"role": "user", "content": [
            {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "A"}}]}]}),
    ],
)  # fmt: skip
def test_what_cannot_be_counted_fills_the_context(read: Any, arguments: dict[str, Any]) -> None:
    """A file by reference, a stored conversation, a PDF: as much as the model can take in."""
    demand = read(arguments)
    assert demand.fills_context
    assert demand.open_ended is None


def test_a_document_of_text_is_text() -> None:
    """What is in the request itself is counted."""
    part = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x" * 5000}}
    demand = messages_demand({"messages": [{"role": "user", "content": [part]}]})
    assert not demand.fills_context
    assert demand.input_tokens >= 5000


@pytest.mark.parametrize(
    ("read", "tool", "searches"),
    [
        (responses_demand, {"type": "web_search"}, 10),
        (responses_demand, {"type": "code_interpreter", "container": {"type": "auto"}}, 0),
        (responses_demand, {"type": "mcp", "server_url": "https://example.com"}, 0),
        (messages_demand, {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}, 3),
        (messages_demand, {"type": "code_execution_20250825", "name": "code_execution"}, 0),
    ],
)
def test_tools_that_the_provider_runs_have_no_bound(read: Any, tool: dict[str, Any], searches: int) -> None:
    """They read on and on: the demand says so, and counts the searches that may be billed."""
    demand = read({"input": "x", "messages": HELLO, "tools": [tool]})
    assert demand.open_ended is not None
    assert tool["type"] in demand.open_ended
    assert demand.web_searches == searches


@pytest.mark.parametrize("kind", ["bash_20250124", "text_editor_20250728", "computer_20250124", "memory_20250818"])
def test_tools_that_run_here_are_bounded(kind: str) -> None:
    """A definition of the provider's whose work the caller does is only a few more instructions."""
    assert messages_demand({"messages": HELLO, "tools": [{"type": kind, "name": "x"}]}).open_ended is None


def test_other_ways_to_search() -> None:
    """OpenAI's search models, and servers of MCP."""
    demand = chat_demand({"messages": HELLO, "web_search_options": {}})
    assert (demand.web_searches, demand.open_ended) == (1, "the provider searches the web")
    assert chat_demand({"messages": HELLO, "web_search_options": NOT_GIVEN}).open_ended is None
    assert messages_demand({"messages": HELLO, "mcp_servers": [{"url": "x"}]}).open_ended is not None
    file_search = responses_demand({"input": "x", "tools": [{"type": "file_search", "vector_store_ids": ["v"]}]})
    assert file_search.file_searches == 10


def test_caches_and_terms() -> None:
    """What is asked for decides the price: caching for an hour, a tier, a speed, a region."""
    cached = [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
    demand = messages_demand(
        {"messages": HELLO, "system": cached, "speed": "fast", "inference_geo": "us", "service_tier": "auto"}
    )
    assert demand.caches
    assert demand.caches_1h
    assert (demand.speed, demand.geo, demand.service_tier) == ("fast", "us", "auto")
    assert not messages_demand({"messages": HELLO}).caches
    short = [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]
    assert messages_demand({"messages": HELLO, "system": short}).caches_1h is False
    assert chat_demand({"messages": HELLO, "service_tier": "flex"}).service_tier == "flex"


def test_what_the_sdks_returned_can_be_sent_back() -> None:
    """Their objects count like the dicts they become."""
    completion = ChatCompletion.model_validate(OPENAI_CHAT)
    said = completion.choices[0].message
    assert chat_demand({"messages": [said]}) == chat_demand({"messages": [said.model_dump(exclude_none=True)]})
    blocks = [
        TextBlock(type="text", text="x" * 500),
        ToolUseBlock(type="tool_use", id="t", name="pay", input={"a": "y" * 500}),
    ]
    assert messages_demand({"messages": [{"role": "assistant", "content": blocks}]}).input_tokens >= 1000
    output = Response.model_validate(OPENAI_RESPONSE).output
    assert responses_demand({"input": output}).input_tokens > responses_demand({"input": []}).input_tokens + 100


def test_a_model_as_format_counts_as_its_schema() -> None:
    """``parse`` turns a class into a schema, which is sent."""

    class Answer(BaseModel):
        """A long description of what is wanted: this text is part of the schema, and so of the request."""

        number: int

    assert (
        chat_demand({"messages": HELLO, "response_format": Answer}).input_tokens
        > chat_demand({"messages": HELLO}).input_tokens + 100
    )


def test_nesting_breaks_nothing() -> None:
    """A schema deeper than Python's stack is counted all the same."""
    nested: Any = {"x": "end"}
    for _ in range(5000):
        nested = {"properties": nested}
    assert chat_demand({"messages": HELLO, "tools": [nested]}).input_tokens > 5000


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20))  # fmt: skip
def test_whatever_is_sent_has_a_demand(content: Any) -> None:
    """Nonsense is the API's to refuse; counting it does not fail."""
    for read in (chat_demand, responses_demand, embeddings_demand, messages_demand):
        assert isinstance(read({"messages": content, "input": content, "tools": content, "system": content}), Demand)


def test_the_larger_of_two_limits_counts() -> None:
    """Servers differ in which of the two they heed."""
    for small, large in (("max_completion_tokens", "max_tokens"), ("max_tokens", "max_completion_tokens")):
        assert chat_demand({"messages": [], small: 10, large: 100_000}).output_tokens == 100_000
