"""The whole extension API: a layer takes a call and the next step, and returns a result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from sagaspan._call import Call, Result

CallNext = Callable[[Call], Awaitable[Result]]
"""The rest of the onion."""


class Middleware(Protocol):
    """One layer: enrich a copy of the call on the way in, look at the result on the way out.

    It waits only through ``call.io`` and ``call.sleep``, so that it serves synchronous calls too, and leaves no
    context variable set across ``call_next``.
    """

    async def __call__(self, call: Call, call_next: CallNext, /) -> Result: ...


def compose(middleware: Sequence[Middleware], endpoint: CallNext) -> CallNext:
    """Fold layers around ``endpoint``; the first of them is the outermost."""
    app = endpoint
    for layer in reversed(middleware):
        app = _bind(layer, app)
    return app


def _bind(layer: Middleware, call_next: CallNext) -> CallNext:
    async def step(call: Call) -> Result:
        return await layer(call, call_next)

    return step
