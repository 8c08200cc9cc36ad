"""What the claim and the settle of one call say of its costs and its rate, from its tool's policy."""

from __future__ import annotations

import logging
from typing import Any

from sagaspan import _metrics as metrics
from sagaspan import semconv
from sagaspan._call import Call
from sagaspan._clock import now_us
from sagaspan.amounts import Unit
from sagaspan.exceptions import ConfigurationError
from sagaspan.ledger.budgets import Spent
from sagaspan.ledger.records import CallRecord, UsageRecord
from sagaspan.ledger.store import RateChange

_log = logging.getLogger("sagaspan")


def rate_of(call: Call) -> tuple[RateChange, ...]:
    """What the claim of ``call`` takes of its tool's rate; what was scheduled took it then."""
    rate = call.tool.policy.rate
    if rate is None or (call.scheduled is not None and call.scheduled.scheduled_seq is None):
        return ()
    namespace, name = call.run.namespace, f"tool:{call.tool.name}"
    return (RateChange(namespace, name, now_us() * 1000, rate.interval_ns, rate.burst),)


def spent_by(call: Call, record: CallRecord, value: Any) -> Spent | None:
    """What a call that returned ``value`` did cost; None where its tool does not say."""
    if call.tool.cost is None:
        return None
    try:
        cost = call.tool.cost.of(call.arguments, value)
    except ConfigurationError as error:
        # Done is done: what it cost at most is what it reserved.
        _log.error("%s; call %s is booked with all it had reserved", error, record.id)
        cost = call.declared.costs.get(Unit.USD, 0)
    agent = call.agent or call.run.agent
    metrics.cost(cost, semconv.GEN_AI_TOOL_NAME, record.tool, agent)
    if call.span.is_recording():  # not that of a call whose result came late
        call.span.set_attribute(semconv.COST_USD, cost / 1e9)
    usage = UsageRecord(
        call_id=record.id, namespace=record.namespace, run_id=record.run_id, at_us=record.ended_us or record.started_us,
        tool=record.tool, agent=agent, cost=cost,
    )  # fmt: skip
    return Spent(amounts={Unit.USD: cost}, usage=usage)
