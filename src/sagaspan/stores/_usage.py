"""What calls used, added up, and the books of budgets beside what calls say of them: for every SQL store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sagaspan._frozen import replaced
from sagaspan.amounts import Unit
from sagaspan.ledger.records import OWN, BudgetRecord
from sagaspan.ledger.store import Booked
from sagaspan.stores import _columns as columns

Name = tuple[str, str, str, str, int]
_KINDS: Final = {
    "run": "c.run_id", "agent": "coalesce(u.agent, r.agent)", "user": "r.user", "tenant": "r.tenant", "tool": "c.tool",
    "model": "u.model",
}  # fmt: skip
_APART: Final = """
select e.namespace, e.call_id, e.amount, coalesce(u.cost, 0)
  from ({entries}) e left join "usage" u on u.call_id = e.call_id
 where e.scope = ? and e.amount <> coalesce(u.cost, 0)
 order by 1, 2
"""
"""The calls of which ``usage`` says another cost than they do themselves."""
_CLAIMED: Final = (
    "c.phase = 'forward' and (c.state not in ('refused', 'scheduled', 'awaiting_approval') or u.cost is not null)"
)
"""What was claimed; a call that is scheduled once more may have cost something before."""


def usage_query(
    namespace: str | None, which: Mapping[str, str], since_us: int, by: str | None, *, steers: bool = False
) -> tuple[str, list[Any]]:
    """The query of ``Store.usage_of`` and its values, with the columns of ``UsageTotals``.

    ``steers``: SQLite is told by which index to go.
    """
    conditions: list[str] = [_CLAIMED]
    values: list[Any] = []
    # With a plus no index is looked for, and a cross join begins on its left: of all calls, or runs, of a namespace or
    # user the last hour has few.
    by_time = steers and since_us and "run" not in which
    namespace_column = "+c.namespace" if by_time else "c.namespace"
    for column, value in [
        (namespace_column, namespace), *((_KINDS[kind], name) for kind, name in which.items())
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
select {key}, count(*), coalesce(sum(u.cost), 0), sum(case when u.prices like '%, assumed' then 1 else 0 end),
       coalesce(sum(u.input_tokens), 0), coalesce(sum(u.output_tokens), 0), coalesce(sum(u.cached_tokens), 0),
       coalesce(sum(u.reasoning_tokens), 0)
  from calls c {"cross" if by_time else ""} join runs r on r.namespace = c.namespace and r.id = c.run_id
       left join "usage" u on u.call_id = c.id
 where {" and ".join(conditions)}
 group by 1 order by 3 desc, 2 desc
""",  # noqa: S608
        values,
    )


def booked(
    fetch: Callable[[str, Sequence[Any]], list[Any]], namespace: str | None, *, entries: str, accounts: str
) -> list[Booked]:
    """See ``Store.booked_by_calls``; within a snapshot.

    ``entries``: the query for what calls say of budgets, by the ``{column}`` in which they do, of ``{which}`` calls,
    each ``{call}`` apart; ``accounts``: the table in which they are counted.
    """
    condition, of = ("true", ()) if namespace is None else ("{}namespace = ?", (namespace,))
    budgets = ", ".join(f'"{name}"' for name in columns.BUDGET_COLUMNS)
    rows = fetch(f"select {budgets} from {accounts} where {condition.format('')}", of)  # noqa: S608
    which = condition.format("c.")
    held, spent = (
        {
            tuple(row[:5]): int(row[5])
            for row in fetch(entries.format(column=column, which=which, call="''"), of) if row[1] != OWN
        }
        for column in ("reserved", "spent")
    )  # fmt: skip
    apart = fetch(_APART.format(entries=entries.format(column="spent", which=which, call="c.id")), (*of, OWN))
    counted: dict[Name, BudgetRecord] = {columns.budget_name(row): row for row in map(columns.budget_record, rows)}
    return [
        Booked(_named(name), counted.get(name), held.get(name, 0), spent.get(name, 0))
        for name in sorted({*counted, *held, *spent})
    ] + [_apart(*row) for row in apart]


def _apart(namespace: str, call_id: str, cost: int, usage: int) -> Booked:
    """A call of which ``usage`` says another cost than its own account."""
    name = BudgetRecord(namespace=namespace, scope=f"{OWN}:{call_id}", unit=Unit.USD)
    return Booked(name, replaced(name, spent=int(usage)), 0, int(cost))


def _named(name: Name) -> BudgetRecord:
    namespace, scope, unit, window, start_us = name
    return BudgetRecord(namespace=namespace, scope=scope, unit=unit, window=window, start_us=start_us)
