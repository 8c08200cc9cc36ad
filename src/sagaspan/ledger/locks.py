"""Semantic locks: taken in the claim of the call that needs them, held until the saga it belongs to is over.

No lock is ever given back. Its row says who took it last, and it is free once that run or call is over: the very
commit that ends the holder frees it, whoever commits that and wherever. A holder whose process died is not over, so
its locks stay with it until recovery has ended it; time alone frees nothing (rule book (b) 12).

A run that waits for a lock is older than the one that holds it, or holds none itself. So no circle of runs can wait for
each other (wait-die).
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sagaspan import semconv
from sagaspan._call import Call
from sagaspan._clock import monotonic, now_us
from sagaspan._commands import command
from sagaspan._waiting import Waiting, check_goes_on
from sagaspan.exceptions import ConfigurationError, LockConflict
from sagaspan.ledger.families import is_over, outermost
from sagaspan.ledger.records import SETTLED, CallRecord, LockRecord, RunRecord
from sagaspan.ledger.store import Change, Commit, LockChange, Store

MAX_LOCKS: Final = 100
"""How many locks one call can take."""

MAX_NAME: Final = 200
"""How many characters the name of a lock can have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds locks: a run, or one call. ``since_us``: when it began, its age among those who wait.

    A call holds locks of its own outside any run, or while it alone is undone in a run that is over.
    """

    namespace: str
    run_id: str
    call_id: str | None = None
    since_us: int

    def took(self, lock: LockRecord) -> bool:
        """Whether it has ``lock``, if that is not free: it, a call of it, or the run it is in."""
        return lock.run_id == self.run_id and (self.call_id is None or lock.call_id in (None, self.call_id))


def in_order(call: Call) -> Call:
    """``call`` with the locks it asks for sorted, each once; raises ``ConfigurationError`` for what is no name."""
    names: tuple[Any, ...] = tuple(call.declared.locks)  # a layer of somebody else's may have put anything there
    bad = [name for name in names if not _is_name(name)]
    if bad or len(names) > MAX_LOCKS:
        asked = f"the lock {bad[0]!r}" if bad else f"{len(names)} locks"
        raise ConfigurationError(
            f"tool {call.tool.name!r} did not run: it asks for {asked}; "
            f"a call can take {MAX_LOCKS} locks, each named by 1 to {MAX_NAME} whole characters in one line, none a NUL"
        )
    return call.declare(locks=tuple(sorted(set(names))))


def _is_name(name: object) -> bool:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or "\n" in name or "\0" in name:
        return False
    with contextlib.suppress(UnicodeEncodeError):
        return bool(name.encode())
    return False


def holder_of(store: Store, call: Call) -> Holder:
    """Who holds the locks that ``call`` takes: the outermost run; outside any run the outermost call."""
    namespace = call.run.namespace
    run = call.run if call.under == call.run.id else store.get_run(namespace, call.under or "")
    if run is not None:
        return run_as_holder(store, run)
    first = store.get_call(call.ancestors[0]) if call.ancestors else None
    if first is None:
        return Holder(namespace=namespace, run_id=call.run.id, call_id=call.id, since_us=now_us())
    return Holder(namespace=namespace, run_id=first.run_id, call_id=first.id, since_us=first.created_us)


def run_as_holder(store: Store, run: RunRecord) -> Holder:
    """The holder of the locks of ``run``: the outermost run that it is nested in, or it."""
    outer = outermost(store, run)
    return Holder(namespace=outer.namespace, run_id=outer.id, since_us=outer.created_us)


def taking(store: Store, names: Collection[str], holder: Holder) -> list[LockChange]:
    """The changes with which ``holder`` takes the locks ``names``, sorted, so that no two takers wait in a circle.

    That of a lock which another one holds asks for it to be free, and so is refused.
    """
    rows = {row.name: row for row in store.locks_named(holder.namespace, tuple(names))}
    return [_change(store, name, rows.get(name), holder) for name in sorted(names)]


def _change(store: Store, name: str, row: LockRecord | None, holder: Holder) -> LockChange:
    taken = LockRecord(
        namespace=holder.namespace, name=name, run_id=holder.run_id, call_id=holder.call_id, taken_us=now_us()
    )
    if row is None:
        return LockChange(taken)
    if _is_free(store, row):
        return LockChange(replace(taken, version=row.version + 1), row.version)
    if holder.took(row):
        whose = row.call_id and holder.call_id  # what the whole run has stays with it
        return LockChange(replace(row, call_id=whose, version=row.version + 1), row.version)
    return LockChange(taken)


def held_by_another(store: Store, names: Collection[str], holder: Holder) -> LockRecord | None:
    """The first of the locks ``names`` that somebody else than ``holder`` holds, or None."""
    rows = sorted(store.locks_named(holder.namespace, tuple(names)), key=lambda row: row.name)
    return next((row for row in rows if not holder.took(row) and not _is_free(store, row)), None)


async def wait_for(store: Store, call: Call, deadline: float) -> None:
    """Wait until nobody else holds a lock ``call`` takes, up to ``deadline`` (monotonic); else ``LockConflict``."""
    names = call.declared.locks
    with Waiting(call, semconv.WAIT_LOCK) as waiting:
        while (lock := await call.io(lambda: held_by_another(store, names, holder_of(store, call)))) is not None:
            left = deadline - monotonic()
            if left <= 0 or not await call.io(_may_wait, store, call, lock):
                raise await call.io(conflict, store, f"tool {call.tool.name!r} did not run", lock)
            await waiting.pause(left)
            check_goes_on(call)


def commit_with(
    store: Store, changes: Sequence[Change], names: Collection[str], holder: Holder, *, what: str, synced: bool
) -> Commit:
    """Commit ``changes`` with the taking of the locks ``names``; raises ``LockConflict`` if another one holds them."""
    while True:
        commit = store.commit([*changes, *taking(store, names, holder)], synced=synced)
        if not isinstance(commit.refused, LockChange):
            return commit
        lock = held_by_another(store, names, holder)
        if lock is not None:  # else it was taken and let go between the two
            raise conflict(store, what, lock)


def step_as_holder(store: Store, step: CallRecord, run: RunRecord) -> Holder:
    """The holder of the locks of ``step`` while it alone is undone, in ``run``."""
    return replace(run_as_holder(store, run), call_id=step.id)


def held_by_run(store: Store, run: RunRecord) -> tuple[str, ...]:
    """The names of the locks that a run holds, also for those nested in it."""
    rows = [row for row in store.locks_of(run.namespace, run.id) if row.call_id is None]
    return tuple(row.name for row in rows) if rows and not is_over(store, run) else ()


def held_by_call(store: Store, call: CallRecord) -> tuple[str, ...]:
    """The names of the locks that a call outside any run holds."""
    if call.locks is None or call.state in SETTLED:
        return ()
    return tuple(row.name for row in store.locks_of(call.namespace, call.run_id) if row.call_id == call.id)


def conflict(store: Store, what: str, lock: LockRecord) -> LockConflict:
    """The error that ``what`` could not be done because of ``lock``."""
    holder = lock.call_id or lock.run_id
    return LockConflict(
        f"{what}: the lock {lock.name!r} is held by {_describe(store, lock)}. Try again when that is over "
        f"(lock_wait=SECONDS waits for it); see: {command('show', holder)}",
        lock=lock.name,
        holder=holder,
    )


def _is_free(store: Store, lock: LockRecord) -> bool:
    """Whether who took it last is over, or forgotten: only what is over is ever forgotten."""
    if lock.call_id is None:
        run = store.get_run(lock.namespace, lock.run_id)
        return run is None or is_over(store, run)
    call = store.get_call(lock.call_id)
    return call is None or call.state in SETTLED


def _may_wait(store: Store, call: Call, lock: LockRecord) -> bool:
    mine = holder_of(store, call)
    if not any(mine.took(row) for row in store.locks_of(mine.namespace, mine.run_id)):
        return True
    return (mine.since_us, mine.run_id) < (_since(store, lock), lock.run_id)


def _since(store: Store, lock: LockRecord) -> int:
    record = store.get_run(lock.namespace, lock.run_id) if lock.call_id is None else store.get_call(lock.call_id)
    return 0 if record is None else record.created_us


def _describe(store: Store, lock: LockRecord) -> str:
    if lock.call_id is None:
        run = store.get_run(lock.namespace, lock.run_id)
        state = "" if run is None else f" ({run.state}{f', {run.reason}' if run.reason else ''})"
        return f"the run {lock.run_id!r}{state}"
    call = store.get_call(lock.call_id)
    state = "" if call is None else f" of tool {call.tool!r} ({call.state})"
    return f"the call {lock.call_id}{state}"
