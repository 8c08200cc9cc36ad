"""Requests that cost money and that nobody here can count: sent, but not past a hard budget of money."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sagaspan import _llm_spans as llm_spans
from sagaspan import _spans as spans
from sagaspan._call import Call
from sagaspan.exceptions import PolicyDenied, StoreUnavailable

if TYPE_CHECKING:
    from sagaspan._engine import Engine


async def let_by(engine: Engine, call: Call, what: str, asked: llm_spans.Asked) -> None:
    """Let ``what`` by, which ``call`` stands for.

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
        "that is not guarded, within `with guard.llm_call(MODEL, ...) as call:` and with call.record_usage(...); or "
        "give "
        "the run a soft budget (hard=False)"
    )
    span = spans.start(engine.tracer, call.tool.name, llm_spans.opening(asked, call, None))
    llm_spans.refused(asked, span, error)
    raise error
