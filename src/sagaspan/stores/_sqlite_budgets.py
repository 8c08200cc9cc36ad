"""The statements of budgets, limits, usage and rates in SQLite: each change is one statement with its own condition."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any, Final

from sagaspan.ledger.store import LimitChange, RateChange, ReserveChange, SpendChange, UsageChange
from sagaspan.stores import _columns as columns

# What was overdrawn counts as spent as soon as it fits.
_RESERVE: Final = """
insert into budgets (namespace, scope, unit, window, start_us, cap, spent, reserved, overdraft)
select ?1, ?2, ?3, ?4, ?5, ?6, 0, ?7, 0 where ?6 is null or ?7 <= ?6
    on conflict do update
   set cap = ?6, spent = spent + overdraft, reserved = reserved + ?7, overdraft = 0
 where ?6 is null or spent + overdraft + reserved + ?7 <= ?6
"""
# Both sides read the row as it was before the statement.
_SPEND: Final = """
update budgets
   set reserved = reserved - ?6,
       spent = spent + min(?7, coalesce(cap - spent - reserved + ?6, ?7)),
       overdraft = overdraft + ?7 - min(?7, coalesce(cap - spent - reserved + ?6, ?7))
 where namespace = ?1 and scope = ?2 and unit = ?3 and window = ?4 and start_us = ?5
"""
_SET_LIMIT: Final = f"""
insert into limits ({", ".join(columns.LIMIT_COLUMNS)}) values ({", ".join("?" * len(columns.LIMIT_COLUMNS))})
    on conflict (namespace, pattern, unit, window) do update
   set amount = excluded.amount, hard = excluded.hard, soft = excluded.soft, actor = excluded.actor,
       at_us = excluded.at_us
"""  # noqa: S608
_MOVE_CONTROLS: Final = """
insert into controls (namespace, version) values (?, 1) on conflict do update set version = version + 1
"""
_SAVE_USAGE: Final = f"""
insert or replace into usage ({", ".join(columns.USAGE_COLUMNS)}) values ({", ".join("?" * len(columns.USAGE_COLUMNS))})
"""  # noqa: S608
# As sagaspan.rate.rate_step: a kept time is between now and a full bucket from now. ?3 now, ?4 interval, ?5 full.
_RATE: Final = """
insert into rates (namespace, name, arrival_ns) values (?1, ?2, ?3 + ?4)
    on conflict do update
   set arrival_ns = min(max(arrival_ns, ?3), ?3 + ?5) + ?4
 where min(max(arrival_ns, ?3), ?3 + ?5) + ?4 <= ?3 + ?5
"""

_KINDS: Final = {
    "run": "c.run_id", "agent": "coalesce(u.agent, r.agent)", "user": "r.user", "tenant": "r.tenant", "tool": "c.tool",
    "model": "u.model",
}  # fmt: skip
_CLAIMED: Final = "c.phase = 'forward' and c.state not in ('refused', 'scheduled', 'awaiting_approval')"


def usage_query(
    namespace: str | None, which: Mapping[str, str], since_us: int, by: str | None
) -> tuple[str, list[Any]]:
    """The query of ``Store.usage_of`` and its values, with the columns of ``UsageTotals``."""
    conditions: list[str] = [_CLAIMED]
    values: list[Any] = []
    for column, value in [
        ("c.namespace", namespace), *((_KINDS[kind], name) for kind, name in which.items())
    ]:  # fmt: skip
        if value is not None:
            conditions.append(f"{column} = ?")
            values.append(value)
    if since_us:
        conditions.append("c.created_us >= ?")
        values.append(since_us)
    key = "null" if by is None else _KINDS[by]
    return (
        f"""
select {key}, count(*), coalesce(sum(u.cost), 0), coalesce(sum(u.prices like '%, assumed'), 0),
       coalesce(sum(u.input_tokens), 0), coalesce(sum(u.output_tokens), 0), coalesce(sum(u.cached_tokens), 0),
       coalesce(sum(u.reasoning_tokens), 0)
  from calls c join runs r on r.namespace = c.namespace and r.id = c.run_id left join usage u on u.call_id = c.id
 where {" and ".join(conditions)}
 group by 1 order by 3 desc, 2 desc
""",  # noqa: S608
        values,
    )


BudgetChange = ReserveChange | SpendChange | UsageChange | LimitChange | RateChange


def save(connection: sqlite3.Connection, change: BudgetChange) -> bool:
    """Save one change; whether its condition held."""
    execute = connection.execute
    if isinstance(change, ReserveChange):
        name = columns.budget_name(change.record)
        return execute(_RESERVE, (*name, change.record.cap, change.amount)).rowcount == 1
    if isinstance(change, RateChange):
        full = change.burst * change.interval_ns
        values = (change.namespace, change.name, change.now_ns, change.interval_ns, full)
        return execute(_RATE, values).rowcount == 1
    if isinstance(change, SpendChange):
        execute(_SPEND, (*columns.budget_name(change.record), change.reserved, change.spent))
    elif isinstance(change, UsageChange):
        execute(_SAVE_USAGE, columns.usage_values(change.record))
    else:
        execute(_SET_LIMIT, columns.limit_values(change.record))
        execute(_MOVE_CONTROLS, (change.record.namespace,))
    return True
