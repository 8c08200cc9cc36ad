"""Budget: at most what a call costs is declared before it runs, so that its claim reserves it (rule book (c) 3)."""

from __future__ import annotations

from sagaspan._call import Call, Result
from sagaspan._middleware import CallNext
from sagaspan.amounts import Unit


class BudgetMiddleware:
    """Asks the policy's ``cost``; a tool without one only counts as a call."""

    async def __call__(self, call: Call, call_next: CallNext, /) -> Result:
        cost = call.tool.cost
        if cost is not None:
            call = call.declare(costs={**call.declared.costs, Unit.USD: cost.bound(call.arguments)})
        return await call_next(call)
