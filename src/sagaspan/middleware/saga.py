"""Saga: what undoes a call is declared before its action, so the claim registers both at once (rule book (b) 1)."""

from __future__ import annotations

from collections.abc import Callable

from sagaspan._call import Call, Result
from sagaspan._compensation import Compensation
from sagaspan._middleware import CallNext
from sagaspan._tool import Tool


class SagaMiddleware:
    """``compensation_for`` finds the compensation of a tool, or raises ``ConfigurationError`` before the body runs."""

    def __init__(self, compensation_for: Callable[[Tool], Compensation | None]) -> None:
        self._compensation_for = compensation_for

    async def __call__(self, call: Call, call_next: CallNext, /) -> Result:
        if call.tool.policy.compensate is None:
            return await call_next(call)
        return await call_next(call.declare(compensation=self._compensation_for(call.tool)))
