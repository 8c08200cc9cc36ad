"""CrewAI's classes for providers other than OpenAI: reserved before they send, booked with what the provider bills.

Anthropic and Bedrock run everywhere; the others where their SDK is installed (docs/contributing.md says how).
"""

from __future__ import annotations

import json
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from crewai import LLM, Agent, Crew
from crewai.tools import tool

from sagaspan import BudgetExceeded, Guard
from sagaspan_crewai._usage import counts_of
from tests.adapters.crewai.test_models import job
from tests.providers.replies import Reply, ToolCall
from tests.providers.server import ModelServer, Request

PAID = Reply(text="all done")
PAY = Reply(tool_calls=(ToolCall(name="pay", arguments={"amount": 1}),))


@tool("pay")
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


class Wire:
    """A provider that speaks Gemini's words, or Bedrock's: it asks for the tool first, then answers."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.input_tokens = self.output_tokens = 0
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def answer(self, path: str, body: str) -> tuple[int, str, bytes]:
        """Its status, kind and body; counting beforehand is free, and not offered."""
        kind, made = _KINDS.get(path.partition("?")[0].rpartition("/")[2].rpartition(":")[2], ("", None))
        if made is None:
            return 404, "application/json", b"{}"
        self.requests.append(path)
        has_tools = '"toolConfig"' in body or '"tools"' in body
        asks = has_tools and "functionResponse" not in body and "toolResult" not in body
        self.input_tokens += 120
        self.output_tokens += 12
        return 200, kind, made(asks)


def _gemini(asks: bool) -> dict[str, Any]:
    part = {"functionCall": {"name": "pay", "args": {"amount": 1}}} if asks else {"text": "all done"}
    usage = {
        "promptTokenCount": 120, "cachedContentTokenCount": 20, "candidatesTokenCount": 7, "thoughtsTokenCount": 5,
        "totalTokenCount": 132,
    }  # fmt: skip
    candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-2.5-flash"}


def _bedrock(asks: bool) -> dict[str, Any]:
    part = {"toolUse": {"toolUseId": "t", "name": "pay", "input": {"amount": 1}}} if asks else {"text": "all done"}
    return {
        "output": {"message": {"role": "assistant", "content": [part]}},
        "stopReason": "tool_use" if asks else "end_turn",
        "usage": {"inputTokens": 120, "outputTokens": 12, "totalTokens": 132},
        "metrics": {"latencyMs": 1},
    }


def _gemini_events(asks: bool) -> bytes:
    """The text in two pieces, or the function at once, each with what was used so far."""
    whole = _gemini(asks)
    pieces = [whole]
    if not asks:
        first = {"content": {"role": "model", "parts": [{"text": "all "}]}, "index": 0}
        pieces.insert(0, {"candidates": [first], "usageMetadata": {"promptTokenCount": 120, "totalTokenCount": 120}})
        whole["candidates"][0]["content"]["parts"] = [{"text": "done"}]
    return b"".join(b"data: %s\r\n\r\n" % json.dumps(piece).encode() for piece in pieces)


def _bedrock_events() -> bytes:
    """A text in two pieces."""
    used = _bedrock(asks=False)
    events = [
        ("messageStart", {"role": "assistant"}),
        *(("contentBlockDelta", {"delta": {"text": text}, "contentBlockIndex": 0}) for text in ("all ", "done")),
        ("contentBlockStop", {"contentBlockIndex": 0}),
        ("messageStop", {"stopReason": "end_turn"}),
        ("metadata", {name: used[name] for name in ("usage", "metrics")}),
    ]
    return b"".join(_framed(name, json.dumps(event).encode()) for name, event in events)


def _framed(name: str, payload: bytes) -> bytes:
    """One message of Amazon's event stream encoding: lengths, headers, payload, checksums."""
    told = {":event-type": name, ":content-type": "application/json", ":message-type": "event"}
    headers = b"".join(
        struct.pack(f"!B{len(key)}sBH{len(value)}s", len(key), key.encode(), 7, len(value), value.encode())
        for key, value in told.items()
    )
    prelude = struct.pack("!II", 16 + len(headers) + len(payload), len(headers))
    message = prelude + struct.pack("!I", zlib.crc32(prelude)) + headers + payload
    return message + struct.pack("!I", zlib.crc32(message))


_KINDS: dict[str, tuple[str, Callable[[bool], bytes]]] = {
    "generateContent": ("application/json", lambda asks: json.dumps(_gemini(asks)).encode()),
    "streamGenerateContent": ("text/event-stream", _gemini_events),
    "converse": ("application/json", lambda asks: json.dumps(_bedrock(asks)).encode()),
    "converse-stream": ("application/vnd.amazon.eventstream", lambda _: _bedrock_events()),
}
"""What is answered where, by the last word of the path."""


def _handler(wire: Wire) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            """The test says what is worth saying."""

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
            status, kind, data = wire.answer(self.path, body)
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler


@pytest.fixture
def wire() -> Iterator[Wire]:
    wire = Wire()
    yield wire
    wire.close()


# -- the classes --------------------------------------------------------------------------------------------------


def _of_anthropic(server: Any, **options: Any) -> Any:
    pytest.importorskip("anthropic")
    return LLM(model="anthropic/claude-sonnet-4-5", base_url=server.url, api_key="k", **options)


def _of_azure(server: Any, **options: Any) -> Any:
    pytest.importorskip("azure.ai.inference", reason="install azure-ai-inference")
    return LLM(model="azure/gpt-4o", endpoint=f"{server.url}/v1", api_key="k", **options)


def _of_litellm(server: Any, **options: Any) -> Any:
    pytest.importorskip("litellm", reason="install litellm")
    return LLM(model="openai/gpt-4o-mini", is_litellm=True, base_url=f"{server.url}/v1", api_key="k", **options)


def _of_gemini(server: Any, **options: Any) -> Any:
    genai = pytest.importorskip("google.genai", reason="install google-genai")
    http = genai.types.HttpOptions(base_url=server.url)
    limit = options.pop("max_tokens")
    return LLM(
        model="gemini/gemini-2.5-flash", api_key="k", client_params={"http_options": http}, max_output_tokens=limit,
        **options,
    )  # fmt: skip


def _of_bedrock(server: Any, **options: Any) -> Any:
    pytest.importorskip("boto3")
    model = "bedrock/anthropic.claude-3-5-sonnet-20241022-v2:0"
    return LLM(model=model, aws_access_key_id="a", aws_secret_access_key="b", region_name="us-east-1", **options)


MAKES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "anthropic": (_of_anthropic, {}),
    "anthropic-stream": (_of_anthropic, {"stream": True}),
    "bedrock": (_of_bedrock, {}),
    "gemini": (_of_gemini, {}),
    "gemini-stream": (_of_gemini, {"stream": True}),
    "azure": (_of_azure, {}),
    "azure-stream": (_of_azure, {"stream": True}),
    "litellm": (_of_litellm, {}),
    "litellm-stream": (_of_litellm, {"stream": True}),
}
OVER_WIRE = ("gemini", "gemini-stream", "bedrock")


@pytest.fixture(params=MAKES)
def provider(
    request: pytest.FixtureRequest, wire: Wire, model_server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, Callable[[], Crew]]:
    """A provider, and what makes a crew whose model is there."""
    name: str = request.param
    server: Any = wire if name in OVER_WIRE else model_server
    monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", wire.url)
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    model_server.answers = _in_turn
    make, options = MAKES[name]
    llm = make(server, max_tokens=100, **options)

    def made() -> Crew:
        clerk = Agent(role="Clerk", goal="g", backstory="b", llm=llm, tools=[pay], max_retry_limit=0)
        return Crew(agents=[clerk], tasks=[job(clerk)])

    return server, made


def _in_turn(request: Request) -> Reply:
    return PAID if "paid 1" in json.dumps(request.body["messages"]) else PAY


def generated(server: Any) -> int:
    """The requests that cost something."""
    if isinstance(server, Wire):
        return len(server.requests)
    return len(server.bills)


def test_what_a_provider_bills_is_what_is_booked(guard: Guard, provider: tuple[Any, Callable[[], Crew]]) -> None:
    """Of answers that ask for a tool, too; and nothing stays reserved."""
    server, make = provider
    assert guard.wrap(make()).kickoff().raw == "all done"
    used = guard.usage()
    assert used.calls == generated(server) + 1 == 3
    assert (used.input_tokens, used.output_tokens) == (server.input_tokens, server.output_tokens)
    assert used.spent > 0
    assert used.reserved == 0


def test_a_provider_is_not_asked_for_what_a_budget_does_not_hold(
    guard: Guard, provider: tuple[Any, Callable[[], Crew]]
) -> None:
    server, make = provider
    with pytest.raises(BudgetExceeded):
        guard.wrap(make(), budget="0.000001 USD").kickoff()
    assert generated(server) == 0
    with pytest.raises(BudgetExceeded):
        guard.wrap(make(), budget="2 calls").kickoff()
    assert generated(server) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("made_by", ["anthropic", "openai"])
def test_a_model_without_a_limit_gets_one_that_a_small_budget_can_pay_for(
    guard: Guard, model_server: ModelServer, made_by: str, stream: bool
) -> None:
    """Each request is sent with a limit of its own; the model of the user is left alone."""
    model_server.answers = _in_turn
    if made_by == "anthropic":
        llm = _of_anthropic(model_server, stream=stream)
    else:
        llm = LLM(model="openai/gpt-4o", base_url=f"{model_server.url}/v1", api_key="k", stream=stream)
    before = (llm.max_tokens, getattr(llm, "max_completion_tokens", None))
    clerk = Agent(role="Clerk", goal="g", backstory="b", llm=llm, tools=[pay], max_retry_limit=0)
    guard.wrap(Crew(agents=[clerk], tasks=[job(clerk)]), budget="0.1 USD").kickoff()
    limits = [
        next(request.body[name] for name in ("max_completion_tokens", "max_tokens") if name in request.body)
        for request in model_server.requests
        if not request.path.endswith("count_tokens")
    ]
    assert len(limits) == 2
    assert all(16 <= limit <= 10_000 for limit in limits)
    assert (llm.max_tokens, getattr(llm, "max_completion_tokens", None)) == before


def test_a_limit_of_the_users_own_is_never_changed(guard: Guard, model_server: ModelServer) -> None:
    """What it asks for does not fit: the error names ``max_tokens``, and no scope that no later run has."""
    llm = _of_anthropic(model_server, max_tokens=60_000)
    clerk = Agent(role="Clerk", goal="g", backstory="b", llm=llm, tools=[pay], max_retry_limit=0)
    with pytest.raises(BudgetExceeded, match="With a smaller max_tokens") as caught:
        guard.wrap(Crew(agents=[clerk], tasks=[job(clerk)]), budget="0.1 USD").kickoff()
    assert "budget= in code" in str(caught.value)
    assert "budgets set" not in str(caught.value)
    assert generated(model_server) == 0


def test_a_stream_of_bedrocks_is_booked_as_it_is_billed(
    guard: Guard, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of text: CrewAI's class drops the tools that a model asks for in a stream."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", wire.url)
    clerk = Agent(role="Clerk", goal="g", backstory="b", llm=_of_bedrock(wire, max_tokens=100, stream=True))
    crew = Crew(agents=[clerk], tasks=[job(clerk)])
    assert guard.wrap(crew).kickoff().raw == "all done"
    used = guard.usage()
    assert (used.calls, len(wire.requests), used.reserved) == (1, 1, 0)
    assert (used.input_tokens, used.output_tokens) == (wire.input_tokens, wire.output_tokens)
    with pytest.raises(BudgetExceeded):
        guard.wrap(crew, budget="0.000001 USD").kickoff()
    assert len(wire.requests) == 1


@pytest.mark.parametrize(
    ("said", "counts"),
    [
        ({"inputTokens": 100, "cacheReadInputTokens": 20, "outputTokens": 12, "totalTokens": 132}, (120, 12, 20)),
        ({"input_tokens": 120, "cached_prompt_tokens": 20, "output_tokens": 12, "total_tokens": 132}, (120, 12, 20)),
        ({"prompt_tokens": 90, "prompt_tokens_details": {"cached_tokens": 20}, "completion_tokens": 12}, (90, 12, 20)),
        ({"prompt_token_count": 100, "candidates_token_count": 12, "total_tokens": 140}, (100, 40, 0)),
    ],
    ids=["bedrock", "anthropic", "litellm", "gemini, whose own tools are in the sum alone"],
)  # fmt: skip
def test_each_provider_has_words_of_its_own(said: dict[str, Any], counts: tuple[int, int, int]) -> None:
    found = counts_of(said)
    assert found is not None
    assert (found["input_tokens"], found["output_tokens"], found["cache_read_tokens"]) == counts


def test_no_word_of_a_count_is_no_usage() -> None:
    assert [counts_of(said) for said in (None, {}, {"total_tokens": 0}, {"prompt_tokens": "many"})] == [None] * 4
