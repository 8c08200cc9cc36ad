"""How long the answer to a request without a limit may be: no longer than the budgets in force can pay for.

Half of what is left, not all: calls beside this one need something too, and what it does not use comes back with its
settle. Only where half is next to nothing it may have the rest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from sagaspan._call import Call
from sagaspan._clock import now_us
from sagaspan.amounts import Unit
from sagaspan.ledger.limits import Limits
from sagaspan.ledger.store import ReserveChange, Store
from sagaspan.llm.demand import Demand
from sagaspan.llm.prices import Prices

LEAST_OUTPUT: Final = 16
"""No API takes a smaller limit, and no answer is worth it."""
WORTH_WAITING: Final = 1024
"""Output tokens that an answer is not cut below only because calls in flight have reserved what it needs."""


class Headroom(NamedTuple):
    """What is left for a call right now.

    ``output`` are the most output tokens a choice that every hard budget can pay for (None: no budget limits it),
    ``lacking`` is what a budget cannot reserve of it for an answer that is ``WORTH_WAITING`` for.
    """

    output: int | None
    lacking: ReserveChange | None


def headroom(
    limits: Limits, store: Store, prices: Prices, call: Call, demand: Demand, provider: str | None, most: int
) -> Headroom:
    """What the hard budgets of ``call`` have left for its answer, which has at ``most`` so many tokens."""
    limits.reload()  # the claim would notice a limit that was set meanwhile, and could only refuse
    found: list[int] = []
    lacking: ReserveChange | None = None
    worth = replace(demand, output_tokens=min(WORTH_WAITING, most))
    wanted = call.declare(costs=_costs(prices, call, worth, provider))
    for change in limits.reservations(wanted, now_us(), begins=False):  # the claim says it if the time is up
        if change.record.cap is None or change.record.unit == Unit.CALLS:
            continue
        row = store.budget(change.record)  # once: what is waited for and what is taken are of one moment
        left = max(change.record.cap - row.spent - row.overdraft - row.reserved, 0)
        if left < change.amount and lacking is None:
            lacking = change
        for share in (left // 2, left):
            bought = _bought(prices, call.model or "", demand, provider, change.record.unit, share)
            if bought is None or bought >= LEAST_OUTPUT:
                break
        if bought is not None:
            found.append(bought)
    return Headroom(max(min(found), LEAST_OUTPUT) if found else None, lacking)


def _costs(prices: Prices, call: Call, demand: Demand, provider: str | None) -> dict[str, int]:
    return {
        Unit.USD: prices.bound(call.model or "", demand, provider).nano_usd,
        Unit.TOKENS: demand.input_tokens + (demand.output_tokens or 0) * max(demand.choices, 1),
    }


def _bought(prices: Prices, model: str, demand: Demand, provider: str | None, unit: str, amount: int) -> int | None:
    if unit == Unit.USD:
        return prices.affordable(model, demand, amount, provider)
    return max(amount - demand.input_tokens, 0) // max(demand.choices, 1)
