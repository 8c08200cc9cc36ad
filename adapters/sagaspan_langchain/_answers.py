"""What an answer of a chat model says of the call: its usage, why it stopped, and its messages for the span."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import UsageMetadata, add_ai_message_chunks, add_usage
from langchain_core.outputs import ChatResult

from sagaspan.adapters import LlmCall
from sagaspan.llm.demands import likely_input
from sagaspan.llm.responses import read_usage
from sagaspan.llm.running import Running, likely_output

_REASONS: Final = ("finish_reason", "stop_reason", "done_reason")
_ROLES: Final = {"human": "user", "ai": "assistant", "AIMessageChunk": "assistant"}


def settle(call: LlmCall, result: ChatResult) -> None:
    """Tell ``call`` what ``result`` used; if that does not say it, all is booked that was reserved."""
    messages = [generation.message for generation in result.generations]
    reasons = [reason_of(one.message, one.generation_info) for one in result.generations]
    told = [_said(message) for message in messages] if call.tells else None
    call.messages(output=told, finish_reasons=[reason for reason in reasons if reason])
    # Every choice of an answer repeats the usage of the whole.
    said = next((one for one in messages if isinstance(one, AIMessage) and one.usage_metadata), None)
    named = {**(result.llm_output or {}), **(messages[0].response_metadata if messages else {})}
    if said is not None:
        _tell(call, said.usage_metadata, {**named, **said.response_metadata})
    else:
        _tell(call, (result.llm_output or {}).get("token_usage"), named)
    if call.usage is None and call.estimates:
        call.seen(likely_output([_said(message) for message in messages]), likely_input(call.demand))


class Answer:
    """A stream of chunks, or of protocol events: what they say adds up."""

    def __init__(self, call: LlmCall) -> None:
        self._call = call
        self._usage: UsageMetadata | None = None
        self._metadata: dict[str, Any] = {}
        self._reasons: list[str] = []
        self._chunks: list[AIMessageChunk] = []
        self._begun = False
        self._running = Running()
        self._interruption: BaseException | None = None

    def add(self, chunk: Any) -> None:
        """Read one piece on its way to the caller."""
        if not self._begun:
            self._begun = True
            self._call.streams()
        if self._call.counts or self._call.estimates:
            self._running.add(chunk if isinstance(chunk, dict) else chunk.message)
        if isinstance(chunk, dict):
            self._read_event(chunk)
            return
        message = chunk.message
        if getattr(message, "usage_metadata", None):
            self._usage = add_usage(self._usage, message.usage_metadata)
        self._metadata |= {**(chunk.generation_info or {}), **message.response_metadata}
        if reason := reason_of(message, chunk.generation_info):
            self._reasons = [reason]
        if self._call.tells:
            self._chunks.append(message)

    @property
    def came(self) -> int:
        """The output tokens that have come so far, at least; 0 if nobody has to know, as once it is over."""
        if self._reasons:
            return 0
        return max(self._running.tokens, self._usage["output_tokens"] if self._usage else 0)

    @contextlib.contextmanager
    def read_to_its_end(self) -> Iterator[None]:
        """Settle with what was said when the stream ends; one that somebody drops is not in doubt, but paid for."""
        try:
            yield
        except GeneratorExit as dropped:
            self._interruption = dropped
        self._tell()

    def raise_interruption(self) -> None:
        """Go on with being closed."""
        if self._interruption is not None:
            raise self._interruption

    def _read_event(self, event: dict[str, Any]) -> None:
        usage = event.get("usage")
        if isinstance(usage, dict) and "input_tokens" in usage:
            self._usage = usage  # type: ignore[assignment] # the same fields
        metadata = event.get("metadata") or event.get("response_metadata")
        if isinstance(metadata, dict):
            self._metadata |= metadata
        if isinstance(reason := event.get("reason") or self._metadata.get("finish_reason"), str):
            self._reasons = [reason]

    def _tell(self) -> None:
        said = None
        if self._chunks:
            said = [_said(_merged(*self._chunks))]
        self._call.messages(output=said, finish_reasons=self._reasons)
        if self._call.estimates:
            self._call.seen(self._running.likely, likely_input(self._call.demand))
        if self._interruption is not None and not self._reasons:
            return  # what a stream that was dropped has said so far is no final count
        _tell(self._call, self._usage, self._metadata)


def reason_of(message: BaseMessage, info: dict[str, Any] | None) -> str | None:
    """Why the model stopped, in its provider's words."""
    for source in (info or {}, message.response_metadata):
        for name in _REASONS:
            if isinstance(reason := source.get(name), str) and reason:
                return reason
    return None


def input_of(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    """What a model is asked, in the shape that goes on a span."""
    return [_said(message) for message in messages]


def _merged(whole: AIMessageChunk, *rest: AIMessageChunk) -> BaseMessage:
    return whole if not rest else add_ai_message_chunks(whole, *rest)


def _said(message: BaseMessage) -> dict[str, Any]:
    calls = [
        {"id": call["id"], "function": {"name": call["name"], "arguments": call["args"]}}
        for call in getattr(message, "tool_calls", ())
    ]
    role = _ROLES.get(message.type, message.type)
    content = message.content
    if calls and isinstance(content, list):  # the calls are told as such
        content = [block for block in content if isinstance(block, str) or block.get("type") != "tool_use"]
    answers = getattr(message, "tool_call_id", None)
    return {"role": role, "content": content, "tool_calls": calls, "tool_call_id": answers}


def _tell(call: LlmCall, usage: Any, metadata: dict[str, Any]) -> None:
    found = None if usage is None else read_usage({"usage_metadata": usage, "response_metadata": metadata})
    if found is None:
        return
    if found.input_tokens == 0:
        # A request always has some: of a stream LangChain reads only the last counts, where some servers leave it out.
        found = replace(found, input_tokens=call.demand.input_tokens)
    call.record_usage(found)
