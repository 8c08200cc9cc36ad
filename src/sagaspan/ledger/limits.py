"""Which budgets a call must fit into: those of its runs, of the guard, and those operators set while agents run.

What operators set lies in the store under a version, which every claim compares in its own transaction. So a new limit
holds from the next claim on, in every process, and whether or not its scope was ever used; a process that is behind has
its claim refused, reads the limits and claims again. Nothing is looked up otherwise.
"""

from __future__ import annotations

import datetime as dt
import logging
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Final, NamedTuple

from sagaspan import _metrics as metrics
from sagaspan._call import Call, Purse
from sagaspan._clock import now_us
from sagaspan._commands import command
from sagaspan._frozen import replaced
from sagaspan.amounts import Unit, in_units, show_amount
from sagaspan.budget import Budget, Window, told_at, window_end, window_start
from sagaspan.exceptions import BudgetExceeded, RateLimited, Refused
from sagaspan.keys import canonical
from sagaspan.ledger.freezes import frozen_by
from sagaspan.ledger.freezes import refusal as frozen_refusal
from sagaspan.ledger.holding import holding, placed_at
from sagaspan.ledger.judgement import Judge
from sagaspan.ledger.records import NO_RUN, AuditRow, BudgetRecord, FreezeRecord, LimitRecord, RunRecord
from sagaspan.ledger.room import NO_ROOM, Room, room_for
from sagaspan.ledger.store import Change, LimitChange, RateChange, ReserveChange, Store
from sagaspan.scopes import BudgetBook, scope_of_run, scope_of_tool_in_run, spellings

_log = logging.getLogger("sagaspan")
LIMIT_SET: Final = "limit.set"
LIMIT_UNSET: Final = "limit.unset"
_NO_BOOK: Final = BudgetBook(None)


def budget_of(limit: LimitRecord) -> Budget:
    """The budget that an operator set."""
    return Budget(
        limit=limit.amount, unit=Unit(limit.unit), window=Window(limit.window) if limit.window else None,
        soft=tuple(int(percent) for percent in limit.soft.split(",") if percent), hard=limit.hard,
    )  # fmt: skip


def setting(limit: LimitRecord) -> LimitChange:
    """What sets a limit, with its row in the audit trail."""
    return LimitChange(limit, _audited(limit, LIMIT_SET, "set"))


def unsetting(limit: LimitRecord, *, actor: str, at_us: int) -> LimitChange:
    """What takes a limit away, with its row in the audit trail, which says what it was."""
    return LimitChange(limit, _audited(replaced(limit, actor=actor, at_us=at_us), LIMIT_UNSET, "unset"), removes=True)


def _audited(limit: LimitRecord, event: str, to_state: str) -> AuditRow:
    said = {name: getattr(limit, name) for name in ("pattern", "unit", "window", "amount", "hard", "soft")}
    return AuditRow(
        at_us=limit.at_us, namespace=limit.namespace, run_id=NO_RUN, call_id=None, event=event, from_state=None,
        to_state=to_state, actor=limit.actor, detail=canonical(said).decode(),
    )  # fmt: skip


class _Plan(NamedTuple):
    """The budgets that calls are counted in, in the order in which all claims take their rows, so that no two wait for
    each other, and at which amounts it is told; ``timed`` are those of the clock, ``by_row`` names each by its row."""

    purse: Purse
    timed: Sequence[tuple[str, Budget]]
    counted: Sequence[tuple[str, Budget, tuple[int, ...]]]
    by_row: Mapping[tuple[str, str, str], Budget]


def _planned(purse: Purse, found: Sequence[tuple[str, Budget]]) -> _Plan:
    rows = [((scope, str(budget.unit), str(budget.window or "")), budget) for scope, budget in found]
    counted = sorted(((row, budget) for row, budget in rows if budget.unit is not Unit.TIME), key=itemgetter(0))
    return _Plan(
        purse=purse,
        timed=[(scope, budget) for scope, budget in found if budget.unit is Unit.TIME],
        counted=[(scope, budget, tuple(told_at(budget).values())) for (scope, _, _), budget in counted],
        by_row=dict(reversed(rows)),
    )


class _Known(NamedTuple):
    """The limits and freezes of one ``version``, what was ``found`` by scope, and the ``plans`` made of that."""

    version: int
    set_: BudgetBook
    found: dict[tuple[str, ...], tuple[Budget, ...]]
    plans: dict[tuple[str, tuple[str, ...], str | None, str | None, int | None], _Plan]
    freezes: tuple[FreezeRecord, ...]


class Limits:
    """The budgets of one guard over one store, as far as this process knows them.

    ``marks_soft``: soft limits that are crossed go on record, because somebody is to be told.
    """

    def __init__(
        self, store: Store, namespace: str, declared: BudgetBook, *, of_every_run: tuple[Budget, ...] = ()
    ) -> None:
        self._store = store
        self._namespace = namespace
        self._declared = declared
        self._of_every_run = of_every_run
        self.marks_soft = False
        self.observes = False
        self._said: set[str] = set()
        self._take(0, _NO_BOOK, ())

    def _take(self, version: int, set_: BudgetBook, freezes: tuple[FreezeRecord, ...]) -> None:
        # One tuple: a claim in another thread sees the limits with their version, or neither.
        self._known: _Known = _Known(version, set_, {}, {}, freezes)

    def declare(self, budgets: BudgetBook, of_every_run: tuple[Budget, ...]) -> None:
        """Go by other budgets of the guard from the next claim on."""
        known = self._known
        self._declared, self._of_every_run = budgets, of_every_run
        self._take(known.version, known.set_, known.freezes)

    @property
    def version(self) -> int:
        """The version of the controls that this process knows."""
        return self._known.version

    def reload(self, since: int | None = None) -> bool:
        """Read the limits in force; whether they are other than at version ``since`` (None: than those known).

        A claim says which version it was made under: another thread may have read the next one already.
        """
        known = self.version
        version, limits = self._store.controls_of(self._namespace)
        if version != known:
            by_pattern: dict[str, list[Budget]] = {}
            for limit in limits:
                by_pattern.setdefault(limit.pattern, []).append(budget_of(limit))
            # Read after the version, so they are at least as new: a claim under an older version is refused anyway.
            freezes = tuple(self._store.freezes_of(self._namespace))
            self._take(version, BudgetBook(by_pattern, source="limits", checked=False), freezes)
        return version != (known if since is None else since)

    def purse_of(self, run: RunRecord, given: Purse) -> Purse:
        """The budgets of ``run`` and of those it is nested in: as ``given`` here, else as its calls found them last.

        What a run was given is known only where it was entered, but its rows keep the caps.
        """
        known, purse = dict(given), []
        inside: RunRecord | None = run
        while inside is not None:
            scope = scope_of_run(inside.id)
            purse.append((scope, known.get(scope) or self._on_record(scope)))
            outer = inside.parent_id
            inside = None if outer is None else self._store.get_run(self._namespace, outer)
        return tuple(purse)

    def _on_record(self, scope: str) -> tuple[Budget, ...]:
        rows = sorted(self._store.budgets(self._namespace, scope), key=lambda row: row.start_us)
        found = {
            (row.unit, row.window): Budget(
                limit=row.cap or 0, unit=Unit(row.unit), window=Window(row.window) if row.window else None,
                hard=row.cap is not None, soft=(),
            )
            for row in rows
        }  # fmt: skip
        return tuple(found.values())

    def of(self, *scopes: str, own: tuple[Budget, ...] = ()) -> tuple[Budget, ...]:
        """The budgets of a scope: those that operators set, that the guard declares, and its ``own`` (of a run).

        The scope of a tool has a spelling for each of its names.
        """
        known = self._known
        if own:
            given = placed_at(scopes[0], own, self._of_every_run)
            return holding(known.set_.of(*scopes), self._declared.of(*scopes), given)
        budgets = known.found.get(scopes)
        if budgets is None:
            budgets = known.found[scopes] = holding(known.set_.of(*scopes), self._declared.of(*scopes))
            if len(known.found) > _REMEMBERED:
                known.found.clear()
        return budgets

    def frozen(self, call: Call) -> FreezeRecord | None:
        """The freeze that holds for ``call``, as far as this process knows."""
        freezes = self._known.freezes
        return frozen_by(freezes, all_scopes_of(call)) if freezes else None

    def check_frozen(self, call: Call) -> None:
        """Refuse a call that is frozen right now; raises ``ScopeFrozen`` or ``StoreError``."""
        self.reload()
        record = self.frozen(call)
        if record is not None:
            raise frozen_refusal(call, record)

    def reservations(self, call: Call, at_us: int, *, begins: bool = True) -> list[ReserveChange]:
        """What ``call`` reserves, in the order of scopes; raises ``BudgetExceeded`` for a run that is out of time.

        Time is up for what ``begins``; what has begun in time is not cut for it.
        """
        none = not (len(self._known.set_) or len(self._declared) or any(budgets for _, budgets in call.purse))
        if none and call.tool.policy.max_calls is None:
            return []
        plan, costs = self._plan_of(call), call.declared.costs
        if begins and not self.observes:
            for scope, budget in plan.timed:
                _check_time(call, scope, budget, at_us)
        return [
            ReserveChange(row_of(self._namespace, scope, budget, at_us), costs[budget.unit], soft)
            for scope, budget, soft in plan.counted
            if budget.unit in costs
        ]

    def timed_out(self, call: Call, at_us: int) -> BudgetExceeded | None:
        """Why a call of a run that is out of time would be refused, where that is only observed."""
        try:
            for scope, budget in self._plan_of(call).timed:
                _check_time(call, scope, budget, at_us)
        except BudgetExceeded as error:
            return error
        return None

    def budget_for(self, call: Call, row: BudgetRecord) -> Budget | None:
        """The budget of ``call`` that is counted in ``row``; None if nobody declares it any more."""
        return self._plan_of(call).by_row.get((row.scope, row.unit, row.window))

    def _plan_of(self, call: Call) -> _Plan:
        """What ``call`` is counted in: the same for all calls of its tool in its run, until somebody sets a limit."""
        plans, agent, most = self._known.plans, call.agent, call.tool.policy.max_calls
        key = call.run.id, call.tool.known_as, call.model, agent, most
        plan = plans.get(key)
        if plan is None or plan.purse is not call.purse:
            if len(plans) >= _REMEMBERED:
                plans.clear()
            self._say_uncounted(call.run)
            names = _own_scopes_of(call)
            plan = plans[key] = _planned(
                call.purse,
                [
                    *((scope, budget) for scope, own in call.purse for budget in self.of(scope, own=own)),
                    *((scope, budget) for scope in scopes_of_run(call.run, agent) for budget in self.of(scope)),
                    *((names[0], budget) for budget in self.of(*names)),
                    *self._of_tool_in_run(call),
                ],
            )
        return plan

    def _say_uncounted(self, run: RunRecord) -> None:
        """Log, once a kind, that a budget of users or tenants counts nothing of a run that names none."""
        for kind, name in (("user", run.user), ("tenant", run.tenant)):
            if name or kind in self._said or kind not in self._known.set_.kinds | self._declared.kinds:
                continue
            self._said.add(kind)
            _log.warning(
                "there is a budget of %s:..., and the run %r names no %s, so its calls do not count in it; write "
                "guard.run(..., %s=...)", kind, run.id, kind, kind,
            )  # fmt: skip

    def _of_tool_in_run(self, call: Call) -> list[tuple[str, Budget]]:
        """What one tool may use in one run: the policy's ``max_calls``, and what is set or declared of just that."""
        scopes, most = _scopes_of_tool_in_run(call), call.tool.policy.max_calls
        own = () if most is None else (Budget(limit=most, unit=Unit.CALLS, soft=()),)
        endings = tuple(f"/{name}" for name in call.tool.known_as)
        set_, declared = (book.of(*scopes, endings=endings) for book in (self._known.set_, self._declared))
        return [(scopes[0], budget) for budget in holding(set_, declared, placed_at(scopes[0], own))]

    def hold(self, call: Call) -> bool:
        """Whether a hard budget, a rate or a freeze holds for ``call``, as far as this process knows."""
        if self.frozen(call) is not None:
            return True
        reserves = self.reservations(call, now_us())
        return call.tool.policy.rate is not None or any(change.record.cap is not None for change in reserves)

    def look(self, call: Call) -> None:
        """Refuse a call that is frozen or does not fit, before a person is asked about it; nothing is reserved.

        What only calls have reserved that run now may be free when he has answered. Raises ``ScopeFrozen``,
        ``BudgetExceeded`` or ``StoreError``.
        """
        self.check_frozen(call)
        for change in self.reservations(call, now_us(), begins=call.scheduled is None):
            used = self._store.budget(change.record)
            cap = change.record.cap
            if cap is None or used.spent + used.overdraft + used.reserved + change.amount <= cap:
                continue
            if not room_for(self._store, Judge(self._store), change).in_flight:
                raise self._exceeded(call, change)

    def caps_money(self, call: Call) -> bool:
        """Whether a hard budget of money holds for ``call``, as far as this process knows."""
        return self.caps(call, Unit.USD)

    def caps(self, call: Call, *units: Unit, begins: bool = True) -> bool:
        """As ``caps_money``, of any of ``units``; ``begins`` as of ``reservations``."""
        if self.observes:
            return False
        counted = call.declare(costs=dict.fromkeys(units, 0))
        return any(change.record.cap is not None for change in self.reservations(counted, now_us(), begins=begins))

    def refusal(self, call: Call, refused: Change, room: Room = NO_ROOM) -> Refused:
        """The error of a call whose claim a budget refused (it waited in vain for ``room``), or a rate."""
        if isinstance(refused, ReserveChange):
            if not self.observes:
                metrics.refusal("budget_exceeded", refused.record.scope, refused.record.unit)
            return self._exceeded(call, refused, room=room)
        assert isinstance(refused, RateChange)  # noqa: S101 - nothing else of a claim can be refused
        metrics.refusal("rate_limited", refused.name, Unit.CALLS)
        return self._too_fast(call, refused)

    def cut(self, call: Call, refused: ReserveChange, room: Room) -> BudgetExceeded:
        """The error of a call whose answer went on past what was reserved for it, and could not reserve more."""
        metrics.refusal("budget_exceeded", refused.record.scope, refused.record.unit)
        what = f"the answer of {call.tool.name!r} was cut: to go on past what is reserved for it, it needs"
        error = self._exceeded(call, refused, what, room=room)
        error.tool_ran = "yes"
        return error

    def _too_fast(self, call: Call, change: RateChange) -> RateLimited:
        arrival = self._store.arrival_of(change.namespace, change.name) or change.now_ns
        wait = max(arrival + change.interval_ns - change.now_ns - change.burst * change.interval_ns, 0) / 1e9
        return RateLimited(
            f"tool {call.tool.name!r} did not run: it may be called {call.tool.policy.rate} by all processes together; "
            f"try again in {wait:.3g} s",
            retry_after=wait,
        )

    def _exceeded(
        self, call: Call, change: ReserveChange, what: str | None = None, *, room: Room = NO_ROOM
    ) -> BudgetExceeded:
        """The error of a call whose reservation ``change`` was refused; ``what`` is how its message begins."""
        less = "" if call.model is None or what or change.record.unit == Unit.CALLS else _LESS
        what = what or f"tool {call.tool.name!r} did not run: it needs"
        wanted, now = change.record, self._store.budget(change.record)
        unit, window = Unit(wanted.unit), Window(wanted.window) if wanted.window else None
        limit, used = wanted.cap or 0, now.spent + now.overdraft
        resets = window_end(window, wanted.start_us) if window else None
        left = max(limit - used - now.reserved, 0)
        return BudgetExceeded(
            f"{what} {show_amount(change.amount, unit)}, and the budget of "
            f"{wanted.scope!r} ({show_amount(limit, unit)}{f'/{window}' if window else ''}) has "
            f"{show_amount(left, unit)} left{_and_reserved(now.reserved, unit)}. "
            f"{less}{_when_ended(room, wanted) if room.in_flight else _remedy(call, wanted, resets)}",
            scope=wanted.scope,
            limit=in_units(limit, unit),
            spent=in_units(used, unit),
            reserved=in_units(now.reserved, unit),
            requested=in_units(change.amount, unit),
            resets_at=None if resets is None else dt.datetime.fromtimestamp(resets / 1e6, dt.UTC),
            in_flight=room.in_flight,
        )


_REMEMBERED: Final = 10_000
_LESS: Final = "With a smaller max_tokens the request needs less. "
_GENERATED: Final = re.compile(r"run:.*(?<!-[0-9a-f]{4})-([0-9a-f]{12}|[0-9a-f]{32})(/.*)?")
"""The scope of a run whose id we made, so that no later run has it; not one that a user named by a UUID."""


def _when_ended(room: Room, wanted: BudgetRecord) -> str:
    if not room.why:
        return "The run goes on: call again when they have ended, or let fewer calls run at once"
    return f"{room.why}. The run goes on: reserve less around it, or {_raised(wanted)}"


def _raised(wanted: BudgetRecord) -> str:
    """How a limit is raised: of just that window, for one of another takes nothing of it back."""
    if _GENERATED.fullmatch(wanted.scope):
        return "give such runs a larger budget= in code (Guard, guard.run or guard.wrap)"
    return f"raise it: {command('budgets set', wanted.scope, 'AMOUNT', per=wanted.window or None)}"


def row_of(namespace: str, scope: str, budget: Budget, at_us: int) -> BudgetRecord:
    """The row in which ``budget`` of ``scope`` is counted at ``at_us``; its cap is the limit, if that is a hard one."""
    cap = budget.limit if budget.hard else None
    return _row(namespace, scope, budget.unit, budget.window, window_start(budget.window, at_us), cap)


@lru_cache(maxsize=1024)  # of the calls of a run, mostly the same
def _row(namespace: str, scope: str, unit: Unit, window: Window | None, start_us: int, cap: int | None) -> BudgetRecord:
    return BudgetRecord(
        namespace=namespace, scope=scope, unit=unit, window=window or "", start_us=start_us, cap=cap,
    )  # fmt: skip


def scopes_of_run(run: RunRecord, agent: str | None = None) -> list[str]:
    """The scopes that a run joins, beside its own."""
    parts: Mapping[str, str | None] = {"agent": agent or run.agent, "tenant": run.tenant, "user": run.user}
    return [f"{kind}:{name}" for kind, name in parts.items() if name]


def _own_scopes_of(call: Call) -> tuple[str, ...]:
    """The scope of the tool, under each of its names, the canonical one first; or that of the model."""
    return tuple(f"tool:{name}" for name in call.tool.known_as) if call.model is None else (f"model:{call.model}",)


def all_scopes_of(call: Call) -> list[str]:
    """Every scope that ``call`` is in, those of the runs around its own among them, under each name of its tool."""
    runs = (name for scope, _ in call.purse for name in spellings(scope))
    return [f"run:{call.run.id}", *runs, *scopes_of_run(call.run, call.agent), *_own_scopes_of(call)]


def _scopes_of_tool_in_run(call: Call) -> tuple[str, ...]:
    return tuple(scope_of_tool_in_run(call.run.id, name) for name in call.tool.known_as)


def _check_time(call: Call, scope: str, budget: Budget, at_us: int) -> None:
    used = at_us - call.run.started_us
    if used < budget.limit or not budget.hard:
        return
    raise BudgetExceeded(
        f"tool {call.tool.name!r} did not run: the run {call.run.id!r} has worked for "
        f"{used / 1e6:.0f} s, and its budget is {show_amount(budget.limit, budget.unit)}. Give it more (budget=), or "
        "go on in a new run",
        scope=scope, limit=in_units(budget.limit, budget.unit), spent=in_units(used, budget.unit),
        reserved=in_units(0, budget.unit), requested=in_units(0, budget.unit),
    )  # fmt: skip


def _and_reserved(reserved: int, unit: Unit) -> str:
    return f" ({show_amount(reserved, unit)} are reserved by calls that have not ended)" if reserved else ""


def _remedy(call: Call, record: BudgetRecord, resets_us: int | None) -> str:
    raised = _raised(record)
    if record.scope == _scopes_of_tool_in_run(call)[0] and call.tool.policy.max_calls is not None:
        alone = "" if _GENERATED.fullmatch(record.scope) else f", or of this run alone{raised[8:]}"
        raised = f"raise max_calls in the policy of {call.tool.name!r}{alone}"
    if resets_us is None:
        return f"Find out why, or {raised}"
    at = dt.datetime.fromtimestamp(resets_us / 1e6, dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"It is whole again at {at}; or {raised}"
