"""What is booked for a call of a model: what it spends of budgets, and the row that says what it used."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

from sagaspan._call import Call
from sagaspan.amounts import Unit
from sagaspan.ledger.budgets import Spent
from sagaspan.ledger.records import UsageRecord
from sagaspan.llm.prices import ASSUMED, Price
from sagaspan.llm.usage import Usage

_COUNTS: Final = tuple(field.name for field in fields(Usage))
ESTIMATED: Final = "estimated"
AS_RESERVED: Final = "as reserved"


def spent_on(
    usage: Usage, cost: Price, call: Call, *, at_us: int, provider: str | None, how: str | None = None
) -> Spent:
    """``usage`` for ``cost``, which ``call`` spent; ``how`` the counts were found, if nobody said them."""
    assert call.model is not None  # noqa: S101 - it is a call of a model
    row = UsageRecord(
        call_id=call.id, namespace=call.run.namespace, run_id=call.run.id, at_us=at_us, tool=call.tool.name,
        model=call.model, provider=provider, agent=call.run.agent, cost=cost.nano_usd, prices=_source(cost, how),
        input_tokens=usage.input_tokens, output_tokens=usage.output_tokens,
        cached_tokens=usage.cache_read_tokens, reasoning_tokens=usage.reasoning_tokens,
    )  # fmt: skip
    amounts: dict[str, int] = {Unit.USD: cost.nano_usd, Unit.TOKENS: usage.total_tokens, Unit.CALLS: 1}
    return Spent(amounts=amounts, usage=row)


def _source(cost: Price, how: str | None) -> str:
    if how is None:
        return cost.source
    rest = ASSUMED if cost.missing else ""  # it stands at the end, where usage looks for it
    return f"{cost.source.removesuffix(rest)}, {how}{rest}"


def told(usage: Usage) -> dict[str, Any]:
    """``usage`` as the result of its call, without what is nothing."""
    counts = ((name, getattr(usage, name)) for name in _COUNTS)
    return {name: count for name, count in counts if count}
