"""Saga: what undoes a call, and the locks it needs, are declared before its action.

So one claim registers all of it (rule book (b) 1 and 12).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sagaspan._call import Call, Result
from sagaspan._compensation import Compensation
from sagaspan._middleware import CallNext
from sagaspan._tool import Tool


class SagaMiddleware:
    """``compensation_for`` finds the compensation of a tool, ``lock_names`` the locks that a call takes.

    Both raise ``ConfigurationError`` before the body runs.
    """

    def __init__(
        self,
        compensation_for: Callable[[Tool], Compensation | None],
        lock_names: Callable[[Tool, Mapping[str, Any]], tuple[str, ...]],
    ) -> None:
        self._compensation_for = compensation_for
        self._lock_names = lock_names

    async def __call__(self, call: Call, call_next: CallNext, /) -> Result:
        policy = call.tool.policy
        if policy.compensate is not None:
            call = call.declare(compensation=self._compensation_for(call.tool))
        if policy.lock is not None:
            call = call.declare(locks=self._lock_names(call.tool, call.arguments))
        return await call_next(call)
