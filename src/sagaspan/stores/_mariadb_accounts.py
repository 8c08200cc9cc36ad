"""What MariaDB is asked about budgets in words of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from sagaspan.ledger.store import Booked
from sagaspan.stores import _columns as columns
from sagaspan.stores._reading import names, narrowed
from sagaspan.stores._usage import booked_of

ENTRIES: Final = """
select c.namespace, e.scope, e.unit, e."window", e.start_us, cast(sum(e.amount) as signed) as amount
  from (select namespace, id, run_id, version, {column} as entries from calls
         where {column} like '[%' and json_valid({column})) as c,
       json_table(c.entries, '$[*]' columns (
         scope varchar(600) path '$[0]', unit varchar(30) path '$[1]', "window" varchar(30) path '$[2]',
         start_us bigint path '$[3]', amount bigint path '$[4]')) as e
 where {which}
 group by c.namespace, binary e.scope, binary e.unit, binary e."window", e.start_us
"""
"""What calls say that they hold (``reserved``) or took (``spent``) of budgets; what is no list is passed over."""


def booked(fetch: Callable[[str, Sequence[Any]], list[Any]], namespace: str | None) -> list[Booked]:
    """See ``Store.booked_by_calls``; within a snapshot."""
    within, of = narrowed(namespace)
    query = f"select {names(columns.BUDGET_COLUMNS)} from budgets where true{within}"  # noqa: S608
    rows = [columns.budget_record(row) for row in fetch(query, of)]
    which = f"true{within.replace('namespace', 'c.namespace')}"
    held, spent = (
        {row[:5]: int(row[5]) for row in fetch(ENTRIES.format(column=column, which=which), of)}
        for column in ("reserved", "spent")
    )
    return booked_of(rows, held, spent)
