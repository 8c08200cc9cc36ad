"""Where a call waits: pauses that grow, and one short span for all of them: a trace says where its time went."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

from opentelemetry.trace import Span

from sagaspan import _spans as spans
from sagaspan import semconv
from sagaspan._call import Call
from sagaspan._context import current_run
from sagaspan.ledger.records import Phase

_SHORTEST: Final = 0.005
_LONGEST: Final = 0.25


def check_goes_on(call: Call) -> None:
    """Refuse ``call``, which has only waited yet, if its run was aborted or stops meanwhile; raises ``RunClosed``."""
    run = current_run.get()
    if run is not None and run.id == call.run.id and call.phase is Phase.FORWARD:
        run.check_goes_on(call.tool)


class Waiting:
    """The waiting of ``call`` for ``what`` (``semconv.WAIT_...``), within ``with``; no span if it never has to."""

    def __init__(self, call: Call, what: str) -> None:
        self._call = call
        self._what = what
        self._pause = _SHORTEST
        self._span: Span | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._span is not None:
            spans.end(self._span, {})

    async def pause(self, left: float) -> None:
        """Wait a little longer than the last time, at most ``left`` seconds."""
        await self.sleep(min(self._pause, left))
        self._pause = min(self._pause * 1.5, _LONGEST)

    async def sleep(self, seconds: float) -> None:
        """Wait so long."""
        if self._span is None:
            self._span = spans.start(
                self._call.tracer, semconv.SPAN_WAIT.format(what=self._what),
                {semconv.WAIT_FOR: self._what, semconv.OPENINFERENCE_SPAN_KIND: semconv.KIND_CHAIN},
                parent=self._call.span,
            )  # fmt: skip
        await self._call.sleep(seconds)
