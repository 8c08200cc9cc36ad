"""Requests that cost money and that nobody here can count: sent, but not past a hard budget of money."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from opentelemetry.util.types import AttributeValue

from sagaspan import _spans as spans
from sagaspan import semconv
from sagaspan._call import Call
from sagaspan.exceptions import PolicyDenied, StoreUnavailable

if TYPE_CHECKING:
    from sagaspan._engine import Engine


async def let_by(engine: Engine, call: Call, what: str, attributes: Mapping[str, AttributeValue]) -> None:
    """Let ``what`` by, which ``call`` stands for; ``attributes`` are of the span of a refusal.

    Raises ``PolicyDenied`` where a hard budget of money holds, which it would escape, or ``StoreError``.
    """
    try:
        # Nothing is claimed, so nothing would notice a budget that another process has set meanwhile.
        await call.io(engine.limits.reload)
    except StoreUnavailable:
        if engine.outage is None or engine.limits.caps_money(call):
            raise
    if not engine.limits.caps_money(call):
        return
    error = PolicyDenied(
        f"{what} are not sent: nobody here counts what they cost, and a hard budget of money holds. Use a client "
        "that is not guarded, within `with guard.llm_call(MODEL, ...) as call:` and with call.settle(...); or give "
        "the run a soft budget (hard=False)"
    )
    span = spans.start(engine.tracer, call.tool.name, attributes)
    spans.end(span, {semconv.CALL_EXECUTED: False}, error)
    raise error
