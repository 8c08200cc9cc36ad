"""Streams that go on past what was reserved for them: extended while the budgets can pay for it, then cut."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import anthropic
import httpx
import openai
import pytest

from sagaspan import Budget, BudgetExceeded, ConfigurationError, Guard, StoreUnavailable
from tests.adapters.functions.test_unreadable import DONE, Body, chunk
from tests.providers.apis import CHAT, MESSAGE, RESPONSE

PRICES = {model: {"input": 0, "output": 10, "max_output": 5000} for model in ("gpt-4o", "gpt-5", "claude-sonnet-5")}
"""Ten dollars for a million tokens out: the hundred that are asked for are a tenth of a cent."""
A_HUNDRED = Decimal("0.001")
ANTHROPIC_S: Any = importlib.import_module(
    next(base for base in anthropic.DefaultHttpxClient.__mro__ if base.__name__ == "Client").__module__.split(".")[0]
)
"""httpx, or in newer ones httpx2."""
KINDS = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])


@pytest.fixture
def guard(store_url: str) -> Iterator[Guard]:
    with Guard(store_url, prices=PRICES) as guard:
        yield guard


def _event(**data: Any) -> bytes:
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode()


def _response(status: str, **more: Any) -> dict[str, Any]:
    return {
        "id": "r", "object": "response", "created_at": 1, "model": "gpt-5", "status": status, "output": [],
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "error": None, "incomplete_details": None,
        "instructions": None, "metadata": {}, "temperature": 1, "top_p": 1, **more,
    }  # fmt: skip


class Wire:
    """A provider that pays no heed to the limit of a request, in one of three dialects."""

    def __init__(self, dialect: str, words: int, *, used: int | None = None, by: int = 1) -> None:
        self.dialect, self.words, self.used, self.by = dialect, words, used or words, by
        self.sent = 0
        self.closed = False

    def __call__(self, request: Any) -> Any:
        counted = _Counted(self, Body(*self._pieces()))
        return self.http.Response(200, headers={"content-type": "text/event-stream"}, stream=counted)

    @property
    def http(self) -> Any:
        """The HTTP client of the SDK."""
        return ANTHROPIC_S if self.dialect == "messages" else httpx

    def _pieces(self) -> Iterator[bytes]:
        text = "word " * self.by
        pieces = self.words // self.by
        if self.dialect == "chat":
            yield from [chunk(text)] * pieces
            yield from (chunk(finish="stop"), chunk(used=self.used, empty=True), DONE)
        elif self.dialect == "responses":
            yield _event(type="response.created", sequence_number=0, response=_response("in_progress"))
            part = {"type": "output_text", "text": "", "annotations": []}
            item = {"type": "message", "id": "m", "role": "assistant", "status": "in_progress", "content": []}
            yield _event(type="response.output_item.added", sequence_number=0, output_index=0, item=item)
            place = {"item_id": "m", "output_index": 0, "content_index": 0, "sequence_number": 1}
            yield _event(type="response.content_part.added", part=part, **place)
            yield from [_event(type="response.output_text.delta", delta=text, logprobs=[], **place)] * pieces
            usage = {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": self.used,
                     "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 9 + self.used}  # fmt: skip
            yield _event(type="response.completed", sequence_number=2, response=_response("completed", usage=usage))
        else:
            head = {"id": "m", "type": "message", "role": "assistant", "model": "claude-sonnet-5", "content": [],
                    "stop_reason": None, "stop_sequence": None}  # fmt: skip
            yield _event(type="message_start", message={**head, "usage": {"input_tokens": 9, "output_tokens": 1}})
            yield _event(type="content_block_start", index=0, content_block={"type": "text", "text": ""})
            delta = {"type": "text_delta", "text": text}
            yield from [_event(type="content_block_delta", index=0, delta=delta)] * pieces
            yield _event(type="content_block_stop", index=0)
            stop = {"stop_reason": "end_turn", "stop_sequence": None}
            yield _event(type="message_delta", delta=stop, usage={"output_tokens": self.used})
            yield _event(type="message_stop")


_STREAMS = dict.fromkeys(
    one for library in (httpx, ANTHROPIC_S) for one in (library.SyncByteStream, library.AsyncByteStream)
)


class _Counted(*_STREAMS):  # type: ignore[misc]
    def __init__(self, wire: Wire, body: Body) -> None:
        self._wire, self._body = wire, body

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._body:
            self._wire.sent += 1
            yield piece

    async def __aiter__(self) -> Any:
        for piece in self:
            yield piece

    def close(self) -> None:
        self._wire.closed = True

    async def aclose(self) -> None:
        self._wire.closed = True


ASK: dict[str, Callable[[Any], Any]] = {
    "chat": lambda client: client.chat.completions.create(**CHAT, stream=True),
    "responses": lambda client: client.responses.create(**RESPONSE, stream=True),
    "messages": lambda client: client.messages.create(**MESSAGE, stream=True),
}
HELPERS: dict[str, Callable[[Any], Any]] = {
    "chat": lambda client: client.chat.completions.stream(**CHAT),
    "responses": lambda client: client.responses.stream(**RESPONSE),
    "messages": lambda client: client.messages.stream(**MESSAGE),
}
DIALECTS = pytest.mark.parametrize("dialect", ASK)


def _read(guard: Guard, wire: Wire, *, is_async: bool = False, ask: dict[str, Callable[[Any], Any]] = ASK) -> list[Any]:
    """What the user sees of one answer, up to what cuts it."""
    seen: list[Any] = []

    async def read() -> None:
        transport = wire.http.AsyncClient(transport=wire.http.MockTransport(wire))
        kind = anthropic.AsyncAnthropic if wire.dialect == "messages" else openai.AsyncOpenAI
        async with guard.wrap(kind(api_key="test", max_retries=0, http_client=transport)) as client:
            made = ask[wire.dialect](client)
            async with made if ask is HELPERS else await made as stream:
                async for event in stream:
                    seen.append(event)

    if is_async:
        asyncio.run(read())
        return seen
    kind = anthropic.Anthropic if wire.dialect == "messages" else openai.OpenAI
    transport = wire.http.Client(transport=wire.http.MockTransport(wire))
    with ask[wire.dialect](guard.wrap(kind(api_key="test", max_retries=0, http_client=transport))) as stream:
        seen.extend(stream)
    return seen


def _extensions(guard: Guard) -> int:
    return sum(row.event == "extend" for row in guard._store.audit_of("default", "r"))


@KINDS
@DIALECTS
def test_a_stream_that_goes_on_past_its_limit_is_cut(guard: Guard, dialect: str, is_async: bool) -> None:
    """At what the budget can pay for; the line is closed, what came is booked, and the run stops."""
    wire = Wire(dialect, 1500)
    with (
        pytest.raises(BudgetExceeded, match="was cut: to go on past") as caught,
        guard.run("r", id="r", budget="0.01 USD"),
    ):
        _read(guard, wire, is_async=is_async)
    assert caught.value.tool_ran == "yes"
    assert 250 < wire.sent < 1050
    assert wire.closed
    used = guard.usage(run="r")
    (account,) = guard.budgets.list("run:r")
    assert Decimal("0.0095") < used.spent <= Decimal("0.01")
    assert (account.reserved, account.overdraft) == (0, 0)
    assert guard.runs.get("r").reason == "budget"
    assert _extensions(guard) < 15
    assert not guard.budgets.fsck()


@KINDS
@DIALECTS
def test_helpers_are_cut_too(guard: Guard, dialect: str, is_async: bool) -> None:
    """As context managers, with the same error."""
    wire = Wire(dialect, 1500)
    with pytest.raises(BudgetExceeded), guard.run("r", id="r", budget="0.01 USD"):
        _read(guard, wire, is_async=is_async, ask=HELPERS)
    assert wire.closed
    assert guard.usage(run="r").spent <= Decimal("0.01")


@DIALECTS
def test_a_stream_is_extended_while_there_is_budget(guard: Guard, dialect: str) -> None:
    """It ends as its provider ends it, is booked exactly, and took few commits."""
    with guard.run("r", id="r", budget="1 USD"):
        _read(guard, Wire(dialect, 1000))
        assert guard.usage(run="r").reserved == 0
    assert guard.usage(run="r").spent == 10 * A_HUNDRED
    assert 1 <= _extensions(guard) < 10
    assert not guard.budgets.fsck()


@DIALECTS
def test_a_stream_within_its_limit_is_never_cut(guard: Guard, dialect: str) -> None:
    """However tight the budget, and however long its words: the limit of the request is reserved."""
    with guard.run("r", id="r", budget="0.001 USD"):
        seen = _read(guard, Wire(dialect, 100))
    assert seen
    assert _extensions(guard) == 0
    assert guard.usage(run="r").spent == A_HUNDRED


@pytest.mark.parametrize(
    "piece", ["-" * 80 + "\n", " " * 79 + "x", "responsibilities " * 2], ids=["rule", "blank", "long"]
)
def test_a_stream_of_rules_and_blanks_within_its_limit_is_never_cut(guard: Guard, piece: str) -> None:
    """A rule and a row of blanks are a token each, however long: what counts is what no tokenizer goes below."""

    def serve(request: httpx.Request) -> httpx.Response:
        pieces = [*[chunk(piece)] * 50, chunk(finish="stop"), chunk(used=100, empty=True), DONE]
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Body(*pieces))

    transport = httpx.Client(transport=httpx.MockTransport(serve))
    client = guard.wrap(openai.OpenAI(api_key="test", http_client=transport))
    with guard.run("r", id="r", budget="0.001 USD"):
        assert len(list(ASK["chat"](client))) == 51
    assert guard.usage(run="r").spent == A_HUNDRED


def test_pages_at_once_are_counted_too(guard: Guard) -> None:
    """A server that sends four hundred words a piece."""
    wire = Wire("chat", 80_000, by=400)
    with pytest.raises(BudgetExceeded), guard.run("r", id="r", budget="0.02 USD"):
        _read(guard, wire)
    assert wire.sent < 15
    assert guard.usage(run="r").spent >= Decimal("0.0195")


def test_a_running_count_of_the_server_s_own_is_believed(guard: Guard) -> None:
    """It sees what is hidden from us."""
    seen: list[int] = []

    def serve(request: httpx.Request) -> httpx.Response:
        def pieces() -> Iterator[bytes]:
            for used in range(50, 1500, 50):
                seen.append(used)
                yield chunk("a", used=used)

        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Body(*pieces()))

    transport = httpx.Client(transport=httpx.MockTransport(serve))
    client = guard.wrap(openai.OpenAI(api_key="test", http_client=transport))
    with pytest.raises(BudgetExceeded), guard.run("r", id="r", budget="0.01 USD"):
        list(ASK["chat"](client))
    assert Decimal("0.01") <= guard.usage(run="r").spent < Decimal("0.011")


def test_who_only_watches_cuts_nothing(store_url: str) -> None:
    """Neither a soft budget nor observe mode does, and what was used is booked."""
    for options in ({"budget": Budget("0.002 USD", hard=False)}, {"budget": "0.002 USD", "mode": "observe"}):
        with Guard(store_url, prices=PRICES, **options) as guard, guard.run("r", id=f"r{len(options)}") as run:
            _read(guard, Wire("chat", 1000))
            assert run.usage.spent == 10 * A_HUNDRED
            assert "extend" not in [row.event for row in guard._store.audit_of("default", run.id)]


def test_an_outage_cuts_only_what_a_hard_budget_holds(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    """An outage is no way around a limit, and no reason to break an answer that has none."""

    def down(*_: Any) -> Any:
        raise StoreUnavailable("it is down")

    for budget, cut in ((Budget("0.002 USD", hard=False), False), (Budget("1 USD"), True)):
        expected = pytest.raises(StoreUnavailable) if cut else contextlib.nullcontext()
        with guard.run("r", budget=budget), monkeypatch.context() as patched, expected:
            patched.setattr(guard._store, "controls_of", down)
            _read(guard, Wire("chat", 1000))


def test_a_limit_that_is_lowered_meanwhile_cuts(guard: Guard) -> None:
    """The next extension meets what holds then, in every process."""
    wire = Wire("chat", 1500)
    transport = httpx.Client(transport=httpx.MockTransport(wire))
    client = guard.wrap(openai.OpenAI(api_key="test", http_client=transport))
    with pytest.raises(BudgetExceeded) as caught, guard.run("r", id="r", budget="1 USD"):
        for count, _ in enumerate(ASK["chat"](client)):
            if count == 10:
                guard.set_budget("model:gpt-4o", "0.002 USD")
    assert caught.value.scope == "model:gpt-4o"


def test_a_call_by_hand_is_extended_and_cut(guard: Guard) -> None:
    """Whoever streams with another client says how far the answer has come, and that much is booked."""
    tokens = 0
    with (
        pytest.raises(BudgetExceeded),
        guard.run("r", id="r", budget="0.01 USD"),
        guard.llm_call("gpt-4o", max_output_tokens=100) as call,
    ):
        call.streams()
        for tokens in range(1, 1500):
            call.cover(tokens)
    assert Decimal("0.0095") < guard.usage(run="r").spent <= Decimal("0.01")
    assert guard.usage(run="r").spent == tokens * A_HUNDRED / 100
    assert guard.usage(run="r").reserved == 0


def test_what_is_no_count_settles_nothing_and_reserves_nothing(guard: Guard) -> None:
    """It is refused with the first piece, and the call is settled with what came before."""
    for count in (10.0, "10", -1, 10**12, True):
        with (
            pytest.raises(ConfigurationError, match="it must be a plain int from 0 to"),
            guard.run("r", budget="0.01 USD", on_budget="hold") as run,
            guard.llm_call("gpt-4o", max_output_tokens=100) as call,
        ):
            call.streams()
            call.cover(50)
            call.cover(count)  # type: ignore[arg-type]
        assert (guard.usage(run=run.id).spent, guard.usage(run=run.id).reserved) == (A_HUNDRED, 0)


def test_time_cuts_no_answer_that_began_in_time(guard: Guard) -> None:
    """A wall clock refuses the next call; what runs is extended and read to its end."""
    with pytest.raises(BudgetExceeded, match="has worked for"), guard.run("r", id="r", budget="1 USD"):
        call = guard.llm_call("gpt-4o", max_output_tokens=100)
        with call:
            call.streams()
            guard.set_budget("run:r", "0.000001 s")
            call.cover(1000)
            call.record_usage(input_tokens=0, output_tokens=900)
        with guard.llm_call("gpt-4o", max_output_tokens=100):
            raise AssertionError("it was sent")
    assert guard.usage(run="r").spent == 9 * A_HUNDRED
