"""The changes of a commit as SQL for MariaDB and MySQL: what must not be is an error of one statement.

A duplicate key, a budget over its cap, a rate that must wait are errors of the tables themselves; a version that nobody
has any more is one that ``_IF_NOT`` makes. Each statement knows the change it is of and the errors by which that is
refused, and a commit ends with the first error. All values are literals here: the whole text is sent at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Final, NamedTuple
from zlib import crc32

from pymysql.constants import ER
from pymysql.converters import escape_string

from sagaspan.amounts import Unit
from sagaspan.ledger import chain
from sagaspan.ledger.records import NO_RUN, AuditRow, BudgetRecord
from sagaspan.ledger.store import (
    ApprovalChange,
    Barrier,
    CallChange,
    CarryChange,
    Change,
    DeliveryChange,
    FreezeChange,
    HookChange,
    LimitChange,
    LockChange,
    LoopChange,
    NonceChange,
    NoteChange,
    RateChange,
    ReserveChange,
    RunChange,
    SpendChange,
    UsageChange,
)
from sagaspan.stores import _columns as columns
from sagaspan.stores._migrate import migrations
from sagaspan.stores._reading import names
from sagaspan.stores._requests import expression_of
from sagaspan.stores._sqlite_audit import content_of

DUPLICATE: Final = ER.DUP_ENTRY
_NO_NULL: Final = ER.BAD_NULL_ERROR
_OVER: Final = (4025, 3819)
"""A check of the table, as MariaDB and as MySQL number it."""
_OUT_OF_RANGE: Final = 1690
_IF_NOT: Final = "set @refused = exp(if({}, 0, 10000))"
"""An error unless the condition holds: no number is so large."""
_ZEROS: Final = f"x'{'00' * 32}'"
_PLACES: Final = 4096
FEED: Final = 0
"""The place that every writer shares until its rows can be seen."""


MIGRATED: Final = -2
"""The place of what refuses a commit for another reason than a change of it."""
_IS_KNOWN: Final = "(select count(*) = {0} and sum(number in ({1})) = {0} and min(finished) = 1 from migrations)"


class Statement(NamedTuple):
    """``sql`` of the change number ``place``; with one of the errors ``refuses`` the change is refused."""

    sql: str
    place: int
    refuses: tuple[int, ...] = ()


def literal(value: Any) -> str:
    """A value as it stands in SQL."""
    if value is None:
        return "null"
    if isinstance(value, str):
        return f"'{escape_string(value)}'"
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    return str(int(value))


def place_of(namespace: str, run_id: str) -> int:
    """Which row stands for a run: who holds it has the run, and maybe others, for itself."""
    return 1 + crc32(f"{namespace}\x1f{run_id}".encode()) % (_PLACES - 1)


def statements(changes: Sequence[Change]) -> list[Statement]:
    """All of a commit but its beginning and its end; the locks come first, in one order."""
    locks: dict[int, bool] = {FEED: False}
    takes = {
        place_of(change.record.namespace, change.record.id): number
        for number, change in enumerate(changes)
        if isinstance(change, RunChange) and change.takes
    }
    said = [
        Statement(sql, place, tuple(refuses))
        for place, change in enumerate(changes)
        for sql, *refuses in _TELL[type(change)](change, locks)
    ]
    locking = (lock for place in sorted(locks) for lock in _lock_statements(place, locks[place], takes.get(place)))
    return [_fence(), *locking, *said]


@cache
def _fence() -> Statement:
    """Refuses a program that was at work while somebody migrated: it knows neither the tables nor their rules."""
    numbers = [migration.number for migration in migrations("mariadb")]
    is_known = _IS_KNOWN.format(len(numbers), ", ".join(map(str, numbers)))
    return Statement(_IF_NOT.format(is_known), MIGRATED, (_OUT_OF_RANGE,))


def _lock_statements(place: int, is_exclusive: bool, taken_by: int | None) -> Iterator[Statement]:
    """``taken_by``: the change that takes a run whose holder is gone; who has the place already is at it."""
    if taken_by is None:
        yield Statement(_locking(place, is_exclusive), -1)
        return
    refused = (_OUT_OF_RANGE,)
    yield Statement(f"{_locking(place, True)} skip locked", taken_by, refused)
    yield Statement(_IF_NOT.format(f"@place = {place}"), taken_by, refused)


def _locking(place: int, is_exclusive: bool) -> str:
    return (
        f"select n into @place from places where n = {place} {'for update' if is_exclusive else 'lock in share mode'}"  # noqa: S608
    )


def used_of(changes: Sequence[Change]) -> str:
    """What is used of the budgets of all ``SpendChange`` in their order, as an expression: numbers with commas."""
    found = [
        f"coalesce((select spent + overdraft from budgets where {_budget(change.record)}), 0)"  # noqa: S608
        for change in changes
        if isinstance(change, SpendChange)
    ]
    return f"concat_ws(',', {', '.join(found)})" if found else "''"


Told = Iterator[tuple[Any, ...]]
"""Statements of a change, each followed by the errors that refuse it."""
Locks = dict[int, bool]


def _values(values: Sequence[Any]) -> str:
    return ", ".join(map(literal, values))


def _is(of: Sequence[str], values: Sequence[Any]) -> str:
    return " and ".join(f'"{name}" = {literal(value)}' for name, value in zip(of, values, strict=True))


def _sets(of: Sequence[str], values: Sequence[Any]) -> str:
    return ", ".join(f'"{name}" = {literal(value)}' for name, value in zip(of, values, strict=True))


def _checked(statement: str) -> Told:
    """A statement about one row, and an error if there is none."""
    yield statement, _OUT_OF_RANGE
    yield _IF_NOT.format("row_count() = 1"), _OUT_OF_RANGE


def _insert(table: str, of: Sequence[str], values: Sequence[Any]) -> str:
    return f'insert into "{table}" ({names(of)}) values ({_values(values)})'  # noqa: S608


def append(row: AuditRow, content: bytes | None, locks: Locks, *, when: str = "") -> Told:
    """The next link of the chain of its run; its number is ``last_insert_id()`` then. ``when``: only if that holds."""
    locks[place_of(row.namespace, row.run_id)] = True
    run = _is(("namespace", "run_id"), (row.namespace, row.run_id))
    yield (f"set @number = 0, @hash = {_ZEROS}",)
    yield (f"select number, hash into @number, @hash from audit where {run} order by seq desc limit 1",)  # noqa: S608
    values = f"{_values(columns.audit_values(row))}, @number + 1, {literal(content)}"
    source = f"select {values} from places where n = {FEED} and {when}" if when else f"values ({values})"  # noqa: S608
    yield (f"insert into audit ({names(columns.AUDIT_COLUMNS)}, number, content) {source}",)
    hashed = f"@hash, coalesce(content, {_ZEROS}), '[', seq, ',', number, ',', {literal(chain.tail(row))}"
    yield (
        f"update audit set hash = unhex(sha2(concat({hashed}), 256)) where seq = last_insert_id() and hash is null",  # noqa: S608
    )


def _audited(change: Any, locks: Locks) -> Told:
    yield from append(change.audit, content_of(change), locks)


def _call(change: CallChange, locks: Locks) -> Told:
    record = change.record
    yield from _audited(change, locks)
    if change.claims:
        run = change.run_id or record.run_id
        locks.setdefault(place_of(record.namespace, run), False)
        locks.setdefault(place_of(record.namespace, NO_RUN), False)
        controls = f"(select version from controls where {_is(('namespace',), (record.namespace,))})"  # noqa: S608
        running = _is(("namespace", "id", "epoch", "state"), (record.namespace, run, change.run_epoch, "running"))
        fence = f"exists (select 1 from runs where {running}) and coalesce({controls}, 0) = {change.controls:d}"  # noqa: S608
        yield _IF_NOT.format(fence), _OUT_OF_RANGE
    if not change.expected_version:
        values = ", ".join(
            "last_insert_id()" if name == "claim_seq" else literal(value)
            for name, value in zip(columns.CALL_COLUMNS, columns.call_values(record), strict=True)
        )
        yield f"insert into calls ({names(columns.CALL_COLUMNS)}) values ({values})", DUPLICATE  # noqa: S608
        return
    *values_now, _ = columns.call_changes(record)
    claimed = ", claim_seq = last_insert_id()" if change.claims else ""
    which = _is(("id", "version"), (record.id, change.expected_version))
    yield from _checked(f"update calls set {_sets(columns.CALL_CHANGING, values_now)}{claimed} where {which}")  # noqa: S608


def _run(change: RunChange, locks: Locks) -> Told:
    record = change.record
    yield from _audited(change, locks)
    if change.outer_epoch:
        outer = (record.namespace, record.parent_id, change.outer_epoch, "running")
        locks.setdefault(place_of(record.namespace, record.parent_id or NO_RUN), False)
        running = _is(("namespace", "id", "epoch", "state"), outer)
        yield _IF_NOT.format(f"exists (select 1 from runs where {running})"), _OUT_OF_RANGE  # noqa: S608
    if not change.expected_version:
        yield _insert("runs", columns.RUN_COLUMNS, columns.run_values(record)), DUPLICATE
        return
    *values, namespace, run_id = columns.run_changes(record)
    which = _is(("namespace", "id", "version"), (namespace, run_id, change.expected_version))
    yield from _checked(f"update runs set {_sets(columns.RUN_CHANGING, values)} where {which}")  # noqa: S608


def _approval(change: ApprovalChange, locks: Locks) -> Told:
    record = change.record
    yield from _audited(change, locks)
    if not change.expected_version:
        yield _insert("approvals", columns.APPROVAL_COLUMNS, columns.approval_values(record)), DUPLICATE
        return
    *values, approval_id = columns.approval_changes(record)
    which = _is(("id", "version"), (approval_id, change.expected_version))
    if change.consumes_at is not None:
        as_given = _is(("state", "digest", "policy"), ("approved", record.digest, record.policy))
        which = f"{which} and {as_given} and expires_us > {change.consumes_at:d}"
    yield from _checked(f"update approvals set {_sets(columns.APPROVAL_CHANGING, values)} where {which}")  # noqa: S608


def _lock(change: LockChange, _: object) -> Told:
    if not change.expected_version:
        yield _insert("locks", columns.LOCK_COLUMNS, columns.lock_values(change.record)), DUPLICATE
        return
    *values, namespace, name = columns.lock_changes(change.record)
    which = _is(("namespace", "name", "version"), (namespace, name, change.expected_version))
    yield from _checked(f"update locks set {_sets(columns.LOCK_CHANGING, values)} where {which}")  # noqa: S608


def _budget(record: BudgetRecord) -> str:
    return _is(columns.BUDGET_COLUMNS[:5], columns.budget_name(record))


# A statement sets one column after the other here, and each sees what those before it were set to: so the order.
def _reserve(change: ReserveChange, _: object) -> Told:
    values = (*columns.budget_name(change.record), change.record.cap, 0, change.amount, 0)
    sets = (
        f"cap = {literal(change.record.cap)}, spent = spent + overdraft, reserved = reserved + {change.amount:d}, "
        "overdraft = 0"
    )
    yield f"{_insert('budgets', columns.BUDGET_COLUMNS[:9], values)} on duplicate key update {sets}", *_OVER


def _spend(change: SpendChange, locks: Locks) -> Told:
    spent = f"{change.spent:d}"
    fits = f"least({spent}, coalesce(cap - spent - reserved + {change.reserved:d}, {spent}))"
    which = _budget(change.record)
    sets = (
        f"overdraft = overdraft + {spent} - {fits}, spent = spent + {fits}, reserved = reserved - {change.reserved:d}"
    )
    yield (f"update budgets set {sets} where {which}",)  # noqa: S608
    for mark in change.marks:
        crossed = f"spent + overdraft - {spent} < {mark.at:d} and {mark.at:d} <= spent + overdraft"
        when = f"exists (select 1 from budgets where {which} and {crossed})"  # noqa: S608
        yield from append(mark.audit, None, locks, when=when)


def _usage(change: UsageChange, _: object) -> Told:
    yield (
        _insert("usage", columns.USAGE_COLUMNS, columns.usage_values(change.record)).replace("insert", "replace", 1),
    )


def _move_controls(namespace: str) -> str:
    return (
        f"{_insert('controls', ('namespace', 'version'), (namespace, 1))} on duplicate key update version = version + 1"
    )


def _limit(change: LimitChange, locks: Locks) -> Told:
    limit = change.record
    yield from _audited(change, locks)
    of = columns.LIMIT_COLUMNS
    values = columns.limit_values(limit)
    if change.removes:
        name = ("namespace", "pattern", "unit", "window", "at_us")
        which = _is(name, (limit.namespace, limit.pattern, limit.unit, limit.window, limit.at_us))
        yield from _checked(f"delete from limits where {which}")  # noqa: S608
    else:
        yield (f"{_insert('limits', of, values)} on duplicate key update {_sets(of[4:], values[4:])}",)
    # The next claim finds what holds; until then the accounts must not show what held before.
    held = _is(("namespace", "unit", "window"), (limit.namespace, limit.unit, limit.window))
    scopes = literal(f"(?s){expression_of(limit.pattern)[:-1]}\\z")
    named = f"(scope = {literal(limit.pattern)} or scope regexp {scopes})"
    yield (f"update budgets set cap = null where {held} and cap is not null and {named}",)  # noqa: S608
    yield (_move_controls(limit.namespace),)


def _carry(change: CarryChange, _: object) -> Told:
    counts = int(change.record.unit == Unit.CALLS)
    values = (*columns.budget_name(change.record), None, change.used, 0, 0, change.used)
    missing = f"greatest({change.used:d} - spent - overdraft - {counts} * reserved, 0)"
    sets = f"cap = null, forgotten = forgotten + {missing}, spent = spent + {missing}"
    yield (f"{_insert('budgets', columns.BUDGET_COLUMNS, values)} on duplicate key update {sets}",)


def _freeze(change: FreezeChange, locks: Locks) -> Told:
    frozen = change.record
    yield from _audited(change, locks)
    if change.lifts:
        which = _is(("namespace", "scope", "at_us"), (frozen.namespace, frozen.scope, frozen.at_us))
        yield from _checked(f"delete from freezes where {which}")  # noqa: S608
    else:
        yield _insert("freezes", columns.FREEZE_COLUMNS, columns.freeze_values(frozen)), DUPLICATE
    yield (_move_controls(frozen.namespace),)


def _loop(change: LoopChange, _: object) -> Told:
    of, values = columns.LOOP_COLUMNS, columns.loop_values(change.record)
    if not change.expected_version:
        yield _insert("loops", of, values), DUPLICATE
        return
    which = f"{_is(of[:2], values[:2])} and version = {change.expected_version:d}"
    yield from _checked(f"update loops set {_sets(of[2:], values[2:])} where {which}")  # noqa: S608


def _rate(change: RateChange, _: object) -> Told:
    # As sagaspan.rate.rate_step: a kept time is between now and a full bucket from now. Null is what it cannot be.
    now, interval = change.now_ns, change.interval_ns
    full = now + change.burst * interval
    then = f"least(greatest(arrival_ns, {now:d}), {full:d}) + {interval:d}"
    insert = _insert("rates", ("namespace", "name", "arrival_ns"), (change.namespace, change.name, now + interval))
    yield f"{insert} on duplicate key update arrival_ns = if({then} <= {full:d}, {then}, null)", _NO_NULL


def _nonce(change: NonceChange, _: object) -> Told:
    yield (f"delete from nonces where until_us <= {change.now_us:d}",)  # noqa: S608
    values = (change.namespace, change.id, change.until_us)
    yield _insert("nonces", ("namespace", "id", "until_us"), values), DUPLICATE


def _hook(change: HookChange, _: object) -> Told:
    if change.expected is None:
        values = (change.namespace, change.name, change.cursor)
        yield _insert("hooks", ("namespace", "name", "cursor"), values), DUPLICATE
        return
    which = _is(("namespace", "name", "cursor"), (change.namespace, change.name, change.expected))
    yield from _checked(f'update hooks set "cursor" = {change.cursor:d} where {which}')  # noqa: S608


def _delivery(change: DeliveryChange, _: object) -> Told:
    record = change.record
    if change.done:
        yield from _checked(f"delete from deliveries where {_is(('id',), (record.id,))}")  # noqa: S608
    elif change.expected_attempts is None:
        insert = _insert("deliveries", columns.DELIVERY_COLUMNS, columns.delivery_values(record))
        yield (f"{insert} on duplicate key update id = id",)
    else:
        of = ("attempts", "next_us", "error", "dead")
        which = _is(("id", "attempts"), (record.id, change.expected_attempts))
        values = (record.attempts, record.next_us, record.error, record.dead)
        yield from _checked(f"update deliveries set {_sets(of, values)} where {which}")  # noqa: S608


def _barrier(change: Barrier, locks: Locks) -> Told:
    # Every claim in this namespace shares this place: none is on the way, in whatever nested run.
    locks[place_of(change.namespace, NO_RUN)] = True
    namespace = literal(change.namespace)
    but = f" and id not in ({_values(change.but)})" if change.but else ""
    saga = (
        f"with recursive saga (id) as (select cast({literal(change.run_id)} as char(480)) union all "  # noqa: S608
        f"select runs.id from runs join saga on runs.parent_id = saga.id where runs.namespace = {namespace}) "
        "select id from saga"
    )
    step = (
        f"select 1 from calls where namespace = {namespace} and run_id in ({saga}) and phase = 'forward' "  # noqa: S608
        "and state in ('running', 'unknown', 'needs_human', 'compensating') "
        f"and (declared_write = 1 or compensate is not null){but}"
    )
    yield _IF_NOT.format(f"not exists ({step})"), _OUT_OF_RANGE


def _note(change: NoteChange, locks: Locks) -> Told:
    yield from _audited(change, locks)


_TELL: Final[dict[type[Any], Callable[[Any, Locks], Told]]] = {
    CallChange: _call, RunChange: _run, ApprovalChange: _approval, LockChange: _lock, ReserveChange: _reserve,
    SpendChange: _spend, UsageChange: _usage, LimitChange: _limit, CarryChange: _carry, FreezeChange: _freeze,
    LoopChange: _loop, RateChange: _rate, NonceChange: _nonce, HookChange: _hook, DeliveryChange: _delivery,
    Barrier: _barrier, NoteChange: _note,
}  # fmt: skip
