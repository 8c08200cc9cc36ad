"""What was used, and setting what may be: ``guard.usage``, ``guard.set_budget``, ``sagaspan usage`` and ``budgets``."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING

from sagaspan import _owner as owner
from sagaspan._checks import described
from sagaspan._clock import now_us
from sagaspan.amounts import Unit, in_units
from sagaspan.budget import Budget, Budgets, Window, budgets_of
from sagaspan.exceptions import ConfigurationError
from sagaspan.ledger.limits import row_of, setting
from sagaspan.ledger.records import BudgetRecord, LimitRecord, UsageTotals
from sagaspan.ledger.store import LimitChange, Store
from sagaspan.ledger.tool_names import ToolNames
from sagaspan.scopes import check_scope, scope_of_run

if TYPE_CHECKING:
    from sagaspan._engine import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """What calls used. Amounts of money are US dollars; ``calls`` counts tools and models.

    ``key`` is what the calls have in common, where they are told apart. ``reserved`` is held by calls that have not
    ended; ``limit`` and ``remaining`` are of the tightest hard budget of money of the scope. ``unpriced`` calls are of
    models without a known price; they count as the dearest known.
    """

    key: str | None = None
    spent: Decimal
    reserved: Decimal = Decimal(0)
    limit: Decimal | None = None
    remaining: Decimal | None = None
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    unpriced: int = 0


def spending_of(
    engine: Engine,
    which: Mapping[str, str],
    since: dt.timedelta | dt.datetime | None,
    *,
    own: tuple[Budget, ...] | None = None,
) -> Spending:
    """The spending of all calls that fit ``which`` (kinds of scopes and names); see ``Guard.usage``.

    ``own`` are the budgets that a run was given; None: those that its latest call found.
    """
    names = ToolNames(engine.store, engine.namespace)
    which = {kind: names.canonical(f"{kind}:{name}").partition(":")[2] for kind, name in which.items()}
    totals = engine.store.usage_of(engine.namespace, which, since_us=since_us(since))
    found = _spending(totals[0] if totals else UsageTotals())
    if len(which) != 1:
        return found
    kind, name = next(iter(which.items()))
    scope = scope_of_run(name) if kind == "run" else f"{kind}:{name}"
    engine.limits.reload()
    if own is None and "run" in which:
        own = _given_to_run(engine, which["run"], scope)
    return _with_budgets(engine, scope, engine.limits.of(*names.scopes(scope), own=own or ()), found)


def _given_to_run(engine: Engine, run_id: str, scope: str) -> tuple[Budget, ...]:
    """The budgets of a run as far as they are on record, else those that every run is given."""
    found = {
        (row.unit, row.window): Budget(
            limit=row.cap, unit=Unit(row.unit), window=Window(row.window) if row.window else None
        )
        for row in sorted(engine.store.budgets(engine.namespace, scope), key=lambda row: row.start_us)
        if row.cap is not None
    }
    if found:
        return tuple(found.values())
    run = engine.store.get_run(engine.namespace, run_id)
    return engine.budget if run is None or run.parent_id is None else ()


def usage_by(
    store: Store,
    namespace: str | None,
    which: Mapping[str, str],
    by: str | None,
    since: dt.timedelta | dt.datetime | None,
) -> list[Spending]:
    """The spending of all calls that fit ``which``, for each of a kind of scope ``by``, the most expensive first."""
    return [_spending(totals) for totals in store.usage_of(namespace, which, since_us=since_us(since), by=by)]


def _spending(totals: UsageTotals) -> Spending:
    return Spending(
        key=totals.key, spent=in_units(totals.cost, Unit.USD), calls=totals.calls, unpriced=totals.unpriced,
        input_tokens=totals.input_tokens, output_tokens=totals.output_tokens, cached_tokens=totals.cached_tokens,
        reasoning_tokens=totals.reasoning_tokens,
    )  # fmt: skip


def _with_budgets(engine: Engine, scope: str, budgets: tuple[Budget, ...], found: Spending) -> Spending:
    """``found`` with what is reserved and left of the tightest budget of money."""
    money = [budget for budget in budgets if budget.unit is Unit.USD]
    rows = [(budget, engine.store.budget(row_of(engine.namespace, scope, budget, now_us()))) for budget in money]
    hard = [(_left(budget, row), budget) for budget, row in rows if budget.hard]
    reserved = max((row.reserved for _, row in rows), default=0)
    tightest = min(hard, key=lambda one: one[0], default=None)
    return replace(
        found, reserved=in_units(reserved, Unit.USD),
        limit=None if tightest is None else in_units(tightest[1].limit, Unit.USD),
        remaining=None if tightest is None else in_units(tightest[0], Unit.USD),
    )  # fmt: skip


def _left(budget: Budget, row: BudgetRecord) -> int:
    return max(budget.limit - row.spent - row.overdraft - row.reserved, 0)


def since_us(since: dt.timedelta | dt.datetime | None) -> int:
    """The moment that ``since`` means, in microseconds since the epoch; 0 is always."""
    if since is None:
        return 0
    if isinstance(since, dt.timedelta):
        return now_us() - int(since.total_seconds() * 1e6)
    if not isinstance(since, dt.datetime):
        raise ConfigurationError(
            f"since={since!r} is {described(since)}; write a timedelta, or a datetime with its time zone"
        )
    if since.tzinfo is None:
        raise ConfigurationError(f"since={since} has no time zone; say which, e.g. datetime.now(UTC)")
    return int(since.timestamp() * 1e6)


def limit_changes(namespace: str, scope: str, budget: Budgets, *, actor: str | None = None) -> list[LimitChange]:
    """What sets ``budget`` as the limit of a scope or glob; raises ``ConfigurationError``."""
    check_scope(scope)
    at, budgets = now_us(), budgets_of(budget, where=scope)
    if not budgets:
        raise ConfigurationError(
            f"{budget!r} sets no limit of {scope!r}; say an amount such as '20 USD/day', or take back what was set: "
            f"guard.budgets.unset({scope!r})"
        )
    return [setting(_limit(namespace, scope, one, actor, at)) for one in budgets]


def _limit(namespace: str, scope: str, budget: Budget, actor: str | None, at_us: int) -> LimitRecord:
    if budget.unit is Unit.TIME and not scope.startswith("run:"):
        raise ConfigurationError(f"only a run has a wall clock; give {str(budget)!r} to 'run:ID', not to {scope!r}")
    return LimitRecord(
        namespace=namespace, pattern=scope, unit=budget.unit, window=budget.window or "", amount=budget.limit,
        hard=budget.hard, soft=",".join(map(str, budget.soft)), actor=actor or owner.os_user(), at_us=at_us,
    )  # fmt: skip
