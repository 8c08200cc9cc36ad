"""How long the answer to a request without a limit may be: no longer than the budgets in force can pay for.

Half of what is left, not all: calls beside this one need something too, and what it does not use comes back with its
settle. Only where half is next to nothing it may have the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sagaspan._call import Call
from sagaspan._clock import now_us
from sagaspan.amounts import Unit
from sagaspan.exceptions import BudgetExceeded
from sagaspan.ledger.limits import Limits
from sagaspan.ledger.store import Store
from sagaspan.llm.demand import Demand
from sagaspan.llm.prices import Prices

LEAST_OUTPUT: Final = 16
"""No API takes a smaller limit, and no answer is worth it."""


def affordable_output(
    limits: Limits, store: Store, prices: Prices, call: Call, demand: Demand, provider: str | None
) -> int | None:
    """The most output tokens a choice that every hard budget of ``call`` can pay for; None: no budget limits it."""
    found = list(_of_each_budget(limits, store, prices, call, demand, provider))
    return max(min(found), LEAST_OUTPUT) if found else None


def _of_each_budget(
    limits: Limits, store: Store, prices: Prices, call: Call, demand: Demand, provider: str | None
) -> Iterator[int]:
    limits.reload()  # the claim would notice a limit that was set meanwhile, and could only refuse
    try:
        rows = limits.reservations(call.declare(costs={Unit.USD: 0, Unit.TOKENS: 0}), now_us())
    except BudgetExceeded:  # out of time: the claim says so
        return
    for change in rows:
        if change.record.cap is None:
            continue
        row = store.budget(change.record)
        left = max(change.record.cap - row.spent - row.overdraft - row.reserved, 0)
        for share in (left // 2, left):
            bought = _bought(prices, call.model or "", demand, provider, change.record.unit, share)
            if bought is None or bought >= LEAST_OUTPUT:
                break
        if bought is not None:
            yield bought


def _bought(prices: Prices, model: str, demand: Demand, provider: str | None, unit: str, amount: int) -> int | None:
    if unit == Unit.USD:
        return prices.affordable(model, demand, amount, provider)
    return max(amount - demand.input_tokens, 0) // max(demand.choices, 1)
