"""An answer that is still coming: its bytes are read on the way to the SDK, until they say what the call used.

It is read below the SDK's own parsing. So everything that can be done with an answer is metered by the same few lines:
streams, their helpers and context managers, raw responses, ``parse``. An answer may end in five ways, and each settles
the call: read to its end, closed, broken, dropped for the collector, or never looked at.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from sagaspan.adapters import LlmCall
from sagaspan.llm.demands import likely_input
from sagaspan.llm.running import Running, likely_output
from sagaspan.llm.streams import StreamUsage
from sagaspan.llm.transcript import Transcript

_METER: Final = "_sagaspan_meter"
_BLANK: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_SAYS: Final = re.compile(rb'"usage"\s*:\s*\{|"finish_reason"\s*:\s*"|"message_stop"|\[DONE\]')
"""Whether an event is worth parsing; in a text that the model wrote the quotes would be escaped."""


class Meter:
    """What an answer says of its use, byte by byte.

    ``hides_usage``: the user did not ask for the event that says it.
    """

    def __init__(self, call: LlmCall, *, is_stream: bool, hides_usage: bool) -> None:
        self.call = call
        self.ended = False
        self.pulling = False
        self._is_stream = is_stream
        self._looked = False
        self._hides_usage = hides_usage
        self._said = StreamUsage()
        self._running = Running() if is_stream and (call.counts or call.estimates) else None
        self._transcript = Transcript() if is_stream and call.tells else None
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        """Read ``data``; what of it (and of what was held back) the SDK is to see."""
        self._look_at(data)
        if not self._is_stream:
            self._rest += data
            return data
        *events, self._rest = self._split(self._rest + data)
        seen = [event for event in events if not self._read(event)]
        return b"".join(seen) if self._hides_usage else data

    def _look_at(self, first: bytes) -> None:
        """Tell by the ``first`` byte that says anything whether these are events: some servers answer as a whole."""
        if not self._looked and (start := first.lstrip()[:1]):
            self._looked = True
            if start == b"{":
                self._is_stream = self._hides_usage = False

    def rest(self) -> bytes:
        """What was held back for a blank line that never came."""
        return self._rest if self._hides_usage else b""

    @staticmethod
    def _split(data: bytes) -> list[bytes]:
        ends = [found.end() for found in _BLANK.finditer(data)]
        return [data[start:end] for start, end in zip([0, *ends], [*ends, len(data)], strict=True)]

    def _read(self, event: bytes) -> bool:
        """Read one event; whether nobody but us wanted it."""
        says = _SAYS.search(event) is not None
        if not says and self._transcript is None and self._running is None:
            return False
        lines = (line.removeprefix(b"data:") for line in event.splitlines() if line.startswith(b"data:"))
        text = b"\n".join(lines)
        if text.strip() == b"[DONE]":
            self._said = replace(self._said, is_over=True)
        data = _parsed(text)
        if not isinstance(data, dict):
            return False
        if self._running is not None:
            self._running.add(data)
        if says or self._transcript is not None:
            self._said = self._said.after(data)
        if self._transcript is not None:
            self._note(self._transcript, data)
        return self._hides_usage and data.get("choices") == []

    def _note(self, transcript: Transcript, data: dict[str, Any]) -> None:
        try:
            transcript.add(data)
        except Exception:  # noqa: BLE001 - an event of another shape: what is only told must not break the stream
            self._transcript = None

    @property
    def goes_on_past(self) -> int | None:
        """The tokens that have come, where they are more than is reserved and the answer is not over."""
        if self._running is None or self._said.is_over:
            return None
        tokens = self._came
        return tokens if tokens > self.call.covered else None

    @property
    def _came(self) -> int:
        said = self._said.usage
        return max(0 if self._running is None else self._running.tokens, 0 if said is None else said.output_tokens)

    def cover(self) -> None:
        """Have reserved what has come; raises ``BudgetExceeded`` where that cannot be."""
        if (tokens := self.goes_on_past) is not None:
            self.call.cover(tokens)

    async def acover(self) -> None:
        """As ``cover``, in a running loop."""
        if (tokens := self.goes_on_past) is not None:
            await self.call.acover(tokens)

    def tell(self) -> None:
        """Tell the call what it used, and why it ended, as far as the answer said it."""
        if not self._is_stream:
            settle(self.call, _parsed(self._rest))
            return
        self.call.came_to(self._came)
        if self._running is not None and self.call.estimates:
            self.call.seen(self._running.likely, likely_input(self.call.demand))
        reasons = self._said.finish_reasons
        said = None if self._transcript is None else self._transcript.messages(reasons)
        self.call.messages(output=said, finish_reasons=reasons)
        choices = self.call.demand.choices
        usage, most = self._said.final(choices), self.call.at_least
        if usage is not None:
            settle(self.call, usage)
        elif self._said.started is not None:
            # Anthropic says first what went in; what came out of a stream that was dropped nobody knows.
            running = self._said.usage or self._said.started
            settle(self.call, replace(running, output_tokens=max(most, running.output_tokens)))
        elif self._said.usage is not None and self._said.usage.output_tokens >= most:
            settle(self.call, self._said.usage)  # more than was reserved, and that much is sure

    def end(self, error: BaseException | None = None) -> None:
        """The answer is over, because of ``error`` or as it should be."""
        if not self.ended:
            self.ended = True
            self.tell()
            self.call.__exit__(None if error is None else type(error), error, None)

    async def aend(self, error: BaseException | None = None) -> None:
        """As ``end``, in a running loop."""
        if not self.ended:
            self.ended = True
            self.tell()
            await self.call.__aexit__(None if error is None else type(error), error, None)

    def drop(self) -> None:
        """The answer is gone, and whoever noticed must not wait."""
        if not self.ended:
            self.ended = True
            # Not here: a collector comes in the middle of any line, one that holds a lock of ours too.
            self.call.abandon(self.tell)


def settle(call: LlmCall, answer: Any) -> None:
    """Tell ``call`` what ``answer`` says, or what it looks like; else all is booked that was reserved."""
    if call.record_usage(answer) is None and call.estimates:
        call.seen(likely_output(answer), likely_input(call.demand))


def metered(response: Any, meter: Meter) -> Any:
    """``response`` of an HTTP client, read by ``meter`` too; the same object, whose class says so."""
    kind: Any = type(response)
    setattr(response, _METER, meter)
    response.__class__ = _metered_type(kind)
    return response


def _read(meter: Meter, pieces: Iterator[bytes], close: Callable[[], None]) -> Iterator[bytes]:
    """``pieces``, read by ``meter`` on the way."""
    if meter.ended:
        yield from pieces
        return
    try:
        while True:
            meter.call.reads()
            meter.pulling = True  # the response closes itself at its end, with more to come from a decoder
            try:
                data = next(pieces, None)
            finally:
                meter.pulling = False
            if data is None:
                break
            if seen := meter.feed(data):
                yield seen
            meter.cover()  # before the next piece is pulled
    except Exception as error:
        meter.end(error)
        close()  # what is cut must not go on being written, and billed
        raise
    rest = meter.rest()
    meter.end()
    if rest:
        yield rest


async def _aread(
    meter: Meter, pieces: AsyncIterator[bytes], close: Callable[[], Awaitable[None]]
) -> AsyncIterator[bytes]:
    """As ``_read``, in a running loop."""
    if meter.ended:
        async for data in pieces:
            yield data
        return
    try:
        while True:
            meter.call.reads()
            meter.pulling = True
            try:
                piece = await anext(pieces, None)
            finally:
                meter.pulling = False
            if piece is None:
                break
            if seen := meter.feed(piece):
                yield seen
            await meter.acover()
    except Exception as error:
        await meter.aend(error)
        await close()
        raise
    rest = meter.rest()
    await meter.aend()
    if rest:
        yield rest


@functools.cache
def _metered_type(kind: Any) -> Any:
    class Metered(kind):  # type: ignore[misc] # whatever the HTTP client's response is
        def iter_bytes(self, chunk_size: int | None = None) -> Iterator[bytes]:
            return _read(getattr(self, _METER), super().iter_bytes(chunk_size), self.close)

        def aiter_bytes(self, chunk_size: int | None = None) -> AsyncIterator[bytes]:
            return _aread(getattr(self, _METER), super().aiter_bytes(chunk_size), self.aclose)

        def close(self) -> None:
            try:
                super().close()
            finally:
                if not getattr(self, _METER).pulling:
                    getattr(self, _METER).end()

        async def aclose(self) -> None:
            try:
                await super().aclose()
            finally:
                if not getattr(self, _METER).pulling:
                    await getattr(self, _METER).aend()

        def __del__(self) -> None:
            getattr(self, _METER).drop()

    return named_as(Metered, kind)


def named_as(kind: Any, base: Any) -> Any:
    kind.__name__, kind.__qualname__, kind.__module__ = base.__name__, base.__qualname__, base.__module__
    return kind


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None
