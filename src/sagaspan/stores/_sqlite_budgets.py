"""The statements of budgets, limits, usage and rates in SQLite: each change is one statement with its own condition."""

from __future__ import annotations

import sqlite3
from typing import Final

from sagaspan.amounts import Unit
from sagaspan.ledger.store import (
    Booked,
    CarryChange,
    FreezeChange,
    LimitChange,
    LoopChange,
    RateChange,
    ReserveChange,
    SpendChange,
    UsageChange,
)
from sagaspan.stores import _columns as columns
from sagaspan.stores._usage import booked

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
returning spent + overdraft
"""
_CARRY: Final = """
insert into budgets (namespace, scope, unit, window, start_us, cap, spent, reserved, overdraft, forgotten)
values (?1, ?2, ?3, ?4, ?5, null, ?6, 0, 0, ?6)
    on conflict do update
   set cap = null, spent = spent + max(?6 - spent - overdraft - ?7 * reserved, 0),
       forgotten = forgotten + max(?6 - spent - overdraft - ?7 * reserved, 0)
"""
_SET_LIMIT: Final = f"""
insert into limits ({", ".join(columns.LIMIT_COLUMNS)}) values ({", ".join("?" * len(columns.LIMIT_COLUMNS))})
    on conflict (namespace, pattern, unit, window) do update
   set amount = excluded.amount, hard = excluded.hard, soft = excluded.soft, actor = excluded.actor,
       at_us = excluded.at_us
"""  # noqa: S608
_UNSET_LIMIT: Final = """
delete from limits where namespace = ? and pattern = ? and unit = ? and window = ? and at_us = ?
"""
# The next claim finds what holds; until then the accounts must not show what held before.
_FORGET_CAP: Final = """
update budgets set cap = null
 where namespace = ?1 and (scope = ?2 or scope glob ?2) and unit = ?3 and window = ?4 and cap is not null
"""
_MOVE_CONTROLS: Final = """
insert into controls (namespace, version) values (?, 1) on conflict do update set version = version + 1
"""
_FREEZE: Final = f"""
insert into freezes ({", ".join(columns.FREEZE_COLUMNS)}) values ({", ".join("?" * len(columns.FREEZE_COLUMNS))})
    on conflict do nothing
"""  # noqa: S608
_UNFREEZE: Final = "delete from freezes where namespace = ? and scope = ? and at_us = ?"
_SAVE_USAGE: Final = f"""
insert or replace into usage ({", ".join(columns.USAGE_COLUMNS)}) values ({", ".join("?" * len(columns.USAGE_COLUMNS))})
"""  # noqa: S608
_SAVE_LOOP: Final = """
insert into loops (namespace, run_id, generation, entries, refusals, version)
select ?1, ?2, ?3, ?4, ?5, ?6
 where ?7 = 0 or exists (select 1 from loops where namespace = ?1 and run_id = ?2)
    on conflict do update
   set generation = ?3, entries = ?4, refusals = ?5, version = ?6
 where version = ?7
"""
# As sagaspan.rate.rate_step: a kept time is between now and a full bucket from now. ?3 now, ?4 interval, ?5 full.
_RATE: Final = """
insert into rates (namespace, name, arrival_ns) values (?1, ?2, ?3 + ?4)
    on conflict do update
   set arrival_ns = min(max(arrival_ns, ?3), ?3 + ?5) + ?4
 where min(max(arrival_ns, ?3), ?3 + ?5) + ?4 <= ?3 + ?5
"""

_ENTRIES: Final = """
select c.namespace, json_extract(value, '$[0]') as scope, json_extract(value, '$[1]') as unit,
       json_extract(value, '$[2]') as window, json_extract(value, '$[3]') as start_us,
       sum(json_extract(value, '$[4]')) as amount, {call} as call_id
  from calls c, json_each(c.{column})
 where c.{column} is not null and json_valid(c.{column}) and {which}
 group by 1, 2, 3, 4, 5, 7
"""

KINDS: Final = (ReserveChange, UsageChange, LimitChange, CarryChange, LoopChange, RateChange, FreezeChange)
BudgetChange = ReserveChange | UsageChange | LimitChange | CarryChange | LoopChange | RateChange | FreezeChange


def spend(connection: sqlite3.Connection, change: SpendChange) -> int:
    """Settle a reservation; what is used of its budget then."""
    values = (*columns.budget_name(change.record), change.reserved, change.spent)
    row = connection.execute(_SPEND, values).fetchone()
    return 0 if row is None else int(row[0])  # pruned meanwhile


def booked_by_calls(connection: sqlite3.Connection, namespace: str | None) -> list[Booked]:
    """See ``Store.booked_by_calls``."""
    connection.execute("begin")
    try:
        return booked(
            lambda query, values: connection.execute(query, values).fetchall(), namespace,
            entries=_ENTRIES, accounts="budgets",
        )  # fmt: skip
    finally:
        connection.execute("rollback")


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
    if isinstance(change, FreezeChange):
        frozen = change.record
        if change.lifts:
            saved = execute(_UNFREEZE, (frozen.namespace, frozen.scope, frozen.at_us))
        else:
            saved = execute(_FREEZE, columns.freeze_values(frozen))
        execute(_MOVE_CONTROLS, (frozen.namespace,))
        return saved.rowcount == 1
    if isinstance(change, LoopChange):
        return execute(_SAVE_LOOP, (*columns.loop_values(change.record), change.expected_version)).rowcount == 1
    if isinstance(change, CarryChange):
        counts = change.record.unit == Unit.CALLS
        execute(_CARRY, (*columns.budget_name(change.record), change.used, counts))
        return True
    if isinstance(change, UsageChange):
        execute(_SAVE_USAGE, columns.usage_values(change.record))
        return True
    return _save_limit(connection, change)


def _save_limit(connection: sqlite3.Connection, change: LimitChange) -> bool:
    limit, saved = change.record, True
    name = (limit.namespace, limit.pattern, limit.unit, limit.window)
    if change.removes:
        saved = connection.execute(_UNSET_LIMIT, (*name, limit.at_us)).rowcount == 1
    else:
        connection.execute(_SET_LIMIT, columns.limit_values(limit))
    connection.execute(_FORGET_CAP, name)
    connection.execute(_MOVE_CONTROLS, (limit.namespace,))
    return saved
