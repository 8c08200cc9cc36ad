"""What PostgreSQL is asked about budgets and usage in words of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from sagaspan.ledger.store import Booked
from sagaspan.stores import _columns as columns
from sagaspan.stores._reading import names, narrowed
from sagaspan.stores._usage import booked_of, usage_query

__all__ = ["ENTRIES", "booked", "usage_query"]

ENTRIES: Final = """
select c.namespace, e.value->>0 as scope, e.value->>1 as unit, e.value->>2 as "window",
       (e.value->>3)::bigint as start_us, sum((e.value->>4)::bigint)::bigint as amount
  from calls c cross join lateral jsonb_array_elements(c.{column}::jsonb) as e (value)
 where c.{column} like '[%' and {which}
 group by 1, 2, 3, 4, 5
"""
"""What calls say that they hold (``reserved``) or took (``spent``) of budgets; what is no list is passed over."""


def booked(fetch: Callable[[str, Sequence[Any]], list[Any]], namespace: str | None) -> list[Booked]:
    """See ``Store.booked_by_calls``; within a snapshot."""
    within, of = narrowed(namespace)
    query = f"select {names(columns.BUDGET_COLUMNS)} from accounts where true{within}"  # noqa: S608
    rows = [columns.budget_record(row) for row in fetch(query, of)]
    which = f"true{within.replace('namespace', 'c.namespace')}"
    held, spent = (
        {row[:5]: row[5] for row in fetch(ENTRIES.format(column=column, which=which), of)}
        for column in ("reserved", "spent")
    )
    return booked_of(rows, held, spent)
