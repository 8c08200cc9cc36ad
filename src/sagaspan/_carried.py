"""What was used before anybody limited it counts, as far as calls on record say it.

A budget is counted from the call on that first falls under it. Who limits a user to 20 USD a day at noon means the day,
though: setting a limit looks once at what its scopes have used in the window so far, and the limit begins with that.
What calls that run just then will cost is not on record yet, and not counted in a budget that is new to them.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from urllib.parse import unquote

from sagaspan._names import is_glob
from sagaspan.amounts import Unit
from sagaspan.budget import Budget, window_start
from sagaspan.ledger.limits import row_of
from sagaspan.ledger.records import RunRecord, RunState, UsageTotals
from sagaspan.ledger.store import CarryChange, Store
from sagaspan.ledger.tool_names import ToolNames
from sagaspan.scopes import scope_of_run, scope_of_tool_in_run, spellings

_OPEN = (RunState.RUNNING, RunState.PAUSED, RunState.HELD)
_PAGE = 1000


def carried(store: Store, namespace: str, pattern: str, budgets: tuple[Budget, ...], at_us: int) -> list[CarryChange]:
    """What the scopes of ``pattern`` have used of ``budgets`` in the windows of now; raises ``StoreUnavailable``."""
    return [
        CarryChange(row_of(namespace, scope, budget, at_us), used)
        for budget in budgets if budget.unit is not Unit.TIME
        for scope, totals in _used(store, namespace, pattern, window_start(budget.window, at_us))
        if (used := _amount(totals, budget.unit)) and not (scope.startswith("tool:") and totals.input_tokens)
    ]  # fmt: skip


def _amount(totals: UsageTotals, unit: Unit) -> int:
    amounts: Mapping[Unit, int] = {
        Unit.USD: totals.cost, Unit.TOKENS: totals.input_tokens + totals.output_tokens, Unit.CALLS: totals.calls
    }  # fmt: skip
    return amounts[unit]


def _used(store: Store, namespace: str, pattern: str, since_us: int) -> Iterator[tuple[str, UsageTotals]]:
    """Each scope of ``pattern`` that has used something since then, and what."""
    kind, _, name = pattern.partition(":")
    if kind == "run":
        yield from _used_by_runs(store, namespace, name, since_us)
    elif not is_glob(name):
        for one in sorted({name, *(ToolNames(store, namespace).tools(name) if kind == "tool" else ())}):
            for totals in store.usage_of(namespace, {kind: one}, since_us=since_us):
                yield f"{kind}:{one}", totals
    else:
        names = ToolNames(store, namespace)
        for totals in store.usage_of(namespace, {}, since_us=since_us, by=kind):
            known_as = () if totals.key is None else names.of(totals.key) if kind == "tool" else (totals.key,)
            if any(fnmatch.fnmatchcase(f"{kind}:{one}", pattern) for one in known_as):
                yield f"{kind}:{totals.key}", totals


def _used_by_runs(store: Store, namespace: str, name: str, since_us: int) -> Iterator[tuple[str, UsageTotals]]:
    found = False
    for id_ in dict.fromkeys((name, unquote(name))):
        run = store.get_run(namespace, id_)
        if run is not None and f"run:{name}" in spellings(scope_of_run(id_)):
            found = True
            yield scope_of_run(id_), _of_run(store, run, since_us)
    outer, _, tool = name.rpartition("/")
    for whose, which in dict.fromkeys(((outer, tool), (unquote(outer), unquote(tool)))):  # of one tool in one run
        is_meant = f"run:{name}" in spellings(scope_of_tool_in_run(whose, which))
        if outer and is_meant and store.get_run(namespace, whose) is not None:
            found = True
            for one in sorted({which, *ToolNames(store, namespace).tools(which)}):
                for totals in store.usage_of(namespace, {"run": whose, "tool": one}, since_us=since_us):
                    yield scope_of_tool_in_run(whose, one), totals
    for run in () if found else _open_runs(store, namespace):  # no other one calls anything
        if fnmatch.fnmatchcase(run.id, name):
            yield scope_of_run(run.id), _of_run(store, run, since_us)


def _open_runs(store: Store, namespace: str) -> Iterator[RunRecord]:
    for offset in range(0, 100 * _PAGE, _PAGE):
        runs = store.list_runs(states=_OPEN, namespace=namespace, limit=_PAGE, offset=offset)
        yield from runs
        if len(runs) < _PAGE:
            return


def _of_run(store: Store, run: RunRecord, since_us: int) -> UsageTotals:
    """What a run and those nested in it have used: they spend of its budget too."""
    totals = UsageTotals()
    for one in store.usage_of(run.namespace, {"run": run.id}, since_us=since_us):
        totals = _sum(totals, one)
    for child in store.children_of(run.namespace, run.id):
        totals = _sum(totals, _of_run(store, child, since_us))
    return totals


def _sum(one: UsageTotals, other: UsageTotals) -> UsageTotals:
    return UsageTotals(
        cost=one.cost + other.cost, calls=one.calls + other.calls,
        input_tokens=one.input_tokens + other.input_tokens, output_tokens=one.output_tokens + other.output_tokens,
    )  # fmt: skip
