"""The accounts of budgets: what is used of each, and whether that is what its calls say.

``guard.budgets`` and ``sagaspan budgets`` are made of it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from urllib.parse import unquote

from sagaspan import _owner as owner
from sagaspan._backends import ASYNCIO
from sagaspan._carried import carried
from sagaspan._checks import check_choice
from sagaspan._clock import now_us
from sagaspan._usage import limit_changes
from sagaspan.amounts import MICRO, Unit, in_units
from sagaspan.budget import Budget, Budgets, Window, window_start
from sagaspan.exceptions import ResolutionError
from sagaspan.ledger.limits import budget_of, unsetting
from sagaspan.ledger.records import OWN, BudgetRecord, LimitRecord
from sagaspan.ledger.store import Booked, Store
from sagaspan.ledger.tool_names import ToolNames
from sagaspan.scopes import BudgetBook, Placed, check_scope, scope_of_run, spellings


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What is used of one budget, in US dollars, tokens or calls.

    ``limit`` is what operators set (``set_by``, ``set_at``, for ``set_for``: the scope or a glob), else what calls last
    found declared; None of a budget that refuses nothing, with ``hard`` False, and until the next call finds out once
    limits were changed. ``remaining`` is what is left of it, ``overdraft`` the part of ``spent`` that
    no call had reserved, as far as it does not fit. ``scope`` may be a glob of which nothing was used yet.
    """

    namespace: str
    scope: str
    unit: str
    window: str | None
    begins: dt.datetime | None
    spent: Decimal
    reserved: Decimal
    overdraft: Decimal
    limit: Decimal | None
    hard: bool
    remaining: Decimal | None
    set_for: str | None = None
    set_by: str | None = None
    set_at: dt.datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A budget that is not counted as its calls say, or a call whose cost is not recorded as it says itself.

    ``what`` is ``"reserved"``, ``"spent"`` (overdraft among it), or ``"usage"`` of a ``scope`` ``call:ID``.
    """

    namespace: str
    scope: str
    unit: str
    window: str | None
    begins: dt.datetime | None
    what: str
    counted: Decimal
    by_calls: Decimal


class Accounts:
    """The budgets of one namespace of a store (None: of all)."""

    def __init__(self, store: Store, namespace: str | None = None) -> None:
        self._store = store
        self._namespace = namespace

    def list(self, scope: str | None = None, *, past: bool = False) -> list[Account]:
        """The accounts of a scope (None: of all), with limits that hold for it and of which nothing was used yet.

        ``past``: also those of windows that are over. Raises ``ConfigurationError`` or ``StoreError``.
        """
        wanted = None if scope is None else check_scope(scope)
        # A limit may be set before the first run.
        names = sorted({"default", *self._store.namespaces()}) if self._namespace is None else [self._namespace]
        return [account for name in names for account in self._of(name, wanted, past=past)]

    async def alist(self, scope: str | None = None, *, past: bool = False) -> Sequence[Account]:
        """As ``list``, for asynchronous callers."""
        return await ASYNCIO.io(self.list, scope, past=past)

    def fsck(self) -> Sequence[Difference]:
        """Make the books anew from the calls; what is not as it is counted. Raises ``StoreError``."""
        booked = self._store.booked_by_calls(self._namespace)
        return [found for one in booked for found in _differences(one)]

    async def afsck(self) -> Sequence[Difference]:
        """As ``fsck``, for asynchronous callers."""
        return await ASYNCIO.io(self.fsck)

    def set(self, scope: str, budget: Budgets, *, actor: str | None = None) -> None:
        """Set what may be used of a scope or glob from now on, in every process; see ``Guard.set_budget``.

        What calls on record have used so far, in the window of now or for ever, is used of it.
        """
        assert self._namespace is not None  # noqa: S101 - limits are of one namespace
        scope = self._spelt(check_scope(scope))
        changes = limit_changes(self._namespace, scope, budget, actor=actor)
        # At once, and only then what was used: to add that up takes seconds where a window has a million calls.
        self._store.commit(changes, synced=True)
        budgets = tuple(budget_of(change.record) for change in changes)
        used = carried(self._store, self._namespace, scope, budgets, changes[0].record.at_us)
        if used:
            self._store.commit(used, synced=True)

    def unset(
        self, scope: str, *, unit: str | None = None, per: str | None = None, actor: str | None = None
    ) -> Sequence[Account]:
        """Take back what operators set of a scope or glob, in every process; what a guard declares holds again.

        ``unit`` and ``per`` (a window): only that. Returns what was set. Raises ``ConfigurationError``,
        ``ResolutionError`` if nothing was, or ``StoreError``.
        """
        assert self._namespace is not None  # noqa: S101 - limits are of one namespace
        scope = self._spelt(check_scope(scope))
        check_choice("unit", unit, (None, *map(str, Unit)))
        check_choice("per", per, (None, *map(str, Window)))
        while True:
            limits = [
                limit for limit in self._store.controls_of(self._namespace)[1]
                if limit.pattern == scope and unit in (None, limit.unit) and per in (None, limit.window)
            ]  # fmt: skip
            if not limits:
                raise ResolutionError(
                    f"nobody has set such a limit of {scope!r}; what a program declares is changed there "
                    "(see: sagaspan budgets list)"
                )
            at, who = now_us(), actor or owner.os_user()
            if self._store.commit([unsetting(limit, actor=who, at_us=at) for limit in limits], synced=True):
                return [_account(_unused(limit, at), limit) for limit in limits]

    async def aunset(
        self, scope: str, *, unit: str | None = None, per: str | None = None, actor: str | None = None
    ) -> Sequence[Account]:
        """As ``unset``, for asynchronous callers."""
        return await ASYNCIO.io(self.unset, scope, unit=unit, per=per, actor=actor)

    def _spelt(self, scope: str) -> str:
        """Return ``scope`` as a limit of it is set already, maybe under another name of the tool."""
        assert self._namespace is not None  # noqa: S101 - limits are of one namespace
        limits = self._store.controls_of(self._namespace)[1]
        return ToolNames(self._store, self._namespace).spelt_in(scope, [limit.pattern for limit in limits])

    def _of(self, namespace: str, scope: str | None, *, past: bool) -> Iterator[Account]:
        _, limits = self._store.controls_of(namespace)
        names = ToolNames(self._store, namespace)
        scope = None if scope is None else names.canonical(scope)
        book = _Limits(limits, names)
        used, now = set(), now_us()
        counted = (scope,) if scope is None or not scope.startswith("run:") else (scope, scope_of_run(scope[4:]))
        for row in (row for name in dict.fromkeys(counted) for row in self._store.budgets(namespace, name)):
            limit = book.of(row)
            is_now = row.start_us == window_start(_window(row.window), now)
            if is_now:
                used |= {(name, row.unit, row.window) for name in spellings(row.scope)}
            if past or is_now:
                yield _account(row, limit)
        for limit in limits if scope is None else book.all_of(scope):
            row = self._unused(scope or names.canonical(limit.pattern), limit, now)
            if (row.scope, row.unit, row.window) not in used:
                yield _account(row, limit)

    def _unused(self, scope: str, limit: LimitRecord, now: int) -> BudgetRecord:
        """The budget of a limit of which no call has used anything; of the time of a run something is."""
        row = _unused(limit, now, scope)
        run = self._store.get_run(limit.namespace, unquote(scope[4:])) if limit.unit == Unit.TIME else None
        if run is None:
            return row
        seconds = ((run.ended_us or now) - run.started_us) // MICRO
        return replace(row, spent=max(seconds, 0) * MICRO)


class _Limits:
    """What operators set, by the scopes that it holds for."""

    def __init__(self, limits: Sequence[LimitRecord], names: ToolNames) -> None:
        self._names = names
        by_pattern: dict[str, list[Budget]] = {}
        for limit in limits:
            by_pattern.setdefault(limit.pattern, []).append(budget_of(limit))
        self._book = BudgetBook(by_pattern, source="limits", checked=False)
        self._limits = {(limit.pattern, limit.unit, limit.window): limit for limit in limits}

    def all_of(self, scope: str) -> Sequence[LimitRecord]:
        """The limits that hold for a scope, or were set for a glob."""
        return [self._limits[pattern, budget.unit, budget.window or ""] for budget, pattern, _ in self._of(scope)]

    def of(self, row: BudgetRecord) -> LimitRecord | None:
        """The limit that holds for ``row``; None if a program says less than what was set for more than this scope."""
        for budget, pattern, _ in self._of(row.scope):
            if (budget.unit, budget.window or "") == (row.unit, row.window):
                limit = self._limits[pattern, row.unit, row.window]
                is_less = row.cap is not None and (not limit.hard or row.cap < limit.amount)
                written = {name for scope in self._names.scopes(row.scope) for name in spellings(scope)}
                return None if pattern not in written and is_less else limit
        return None

    def _of(self, scope: str) -> tuple[Placed, ...]:
        return self._book.of(*self._names.scopes(scope))


def _unused(limit: LimitRecord, now: int, scope: str | None = None) -> BudgetRecord:
    start = window_start(_window(limit.window), now)
    return BudgetRecord(
        namespace=limit.namespace, scope=scope or limit.pattern, unit=limit.unit, window=limit.window, start_us=start
    )


def _account(row: BudgetRecord, limit: LimitRecord | None) -> Account:
    unit, hard = Unit(row.unit), row.cap is not None if limit is None else limit.hard
    amount = row.cap if limit is None else limit.amount
    used = row.spent + row.overdraft
    return Account(
        namespace=row.namespace, scope=row.scope, unit=row.unit, window=row.window or None,
        begins=_moment(row.start_us),
        spent=in_units(used, unit), reserved=in_units(row.reserved, unit), overdraft=in_units(row.overdraft, unit),
        limit=None if amount is None else in_units(amount, unit), hard=hard,
        remaining=None if amount is None else in_units(max(amount - used - row.reserved, 0), unit),
        set_for=None if limit is None else limit.pattern, set_by=None if limit is None else limit.actor,
        set_at=None if limit is None else _moment(limit.at_us),
    )  # fmt: skip


def _differences(booked: Booked) -> Iterator[Difference]:
    name, counted = booked.name, booked.counted or booked.name
    is_of_call = name.scope.startswith(f"{OWN}:")
    pairs = (
        ("reserved", counted.reserved, booked.reserved),
        ("usage" if is_of_call else "spent", counted.spent + counted.overdraft, booked.spent + counted.forgotten),
    )
    for what, by_row, by_calls in pairs:
        if by_row != by_calls:
            unit = Unit(name.unit)
            yield Difference(
                namespace=name.namespace, scope=name.scope, unit=name.unit, window=name.window or None,
                begins=_moment(name.start_us), what=what, counted=in_units(by_row, unit),
                by_calls=in_units(by_calls, unit),
            )  # fmt: skip


def _window(text: str) -> Window | None:
    return Window(text) if text else None


def _moment(at_us: int) -> dt.datetime | None:
    return dt.datetime.fromtimestamp(at_us / 1e6, dt.UTC) if at_us else None
