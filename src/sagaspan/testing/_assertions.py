"""What must hold at the end of a test, with a sentence that says what does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from sagaspan._audit import Audit
from sagaspan._guard import Guard
from sagaspan._run import Run
from sagaspan.ledger.records import AuditRow, CallInfo, CallRecord, CallState, Phase, RunInfo, RunState
from sagaspan.ledger.resolution import IN_DOUBT
from sagaspan.ledger.store import Store
from sagaspan.ledger.transitions import CALL_TABLE, RUN_TABLE, CallEvent, RunEvent
from sagaspan.stores import connect
from sagaspan.testing._worlds import World

_OPEN_CALLS: Final = (CallState.RUNNING, CallState.UNKNOWN, CallState.NEEDS_HUMAN, CallState.COMPENSATING)
_OPEN_RUNS: Final = (RunState.RUNNING, RunState.HELD, RunState.COMPENSATING)
_IN_FORCE: Final = (CallState.COMPENSATION_FAILED, *_OPEN_CALLS)
_MANY: Final = 1_000_000


def assert_undone(run: Run | RunInfo) -> None:
    """Nothing that ``run`` did is in force: it is over, and each write of it was compensated or never happened."""
    left = [call for call in run.calls if call.phase is Phase.FORWARD and _is_in_force(call)]
    if left:
        raise AssertionError(f"run {run.id!r} is {run.status}, and not undone: {'; '.join(map(_said, left))}")
    if run.status not in (RunState.COMPENSATED, RunState.FAILED):
        raise AssertionError(f"run {run.id!r} is {run.status}, not undone")


def assert_settled(where: Guard | World) -> None:
    """Nothing in the ledger is running, in doubt or half undone, and every record is where its history leads.

    In doubt is a write; how a read, an idempotent or an undeclared call ended that died is nobody's question.
    """
    assert_history(where)
    store = _store_of(where)
    runs = [run for run in store.list_runs(states=_OPEN_RUNS, limit=_MANY) if not run.is_session]
    said = [f"run {run.id!r} is {run.state} ({run.reason})" for run in runs]
    calls = [call for call in store.list_calls(states=_OPEN_CALLS, limit=_MANY) if _matters(call)]
    said += [f"call {call.id} of {call.tool!r} is {call.state}" for call in calls]
    if said:
        raise AssertionError(f"the ledger is not settled: {'; '.join(said)}")


def assert_history(where: Guard | World) -> None:
    """The audit trail of every run and call leads, by the tables of states alone, to the state it is in.

    It is as it was written (``guard.audit.verify``).
    """
    store = _store_of(where)
    report = Audit(lambda: connect(store.url, create=False, migrate="check")).verify()
    if not report.ok:
        raise AssertionError(f"the audit trail is not as it was written: {report.findings}")
    for run in store.list_runs(limit=_MANY):
        rows = store.audit_of(run.namespace, run.id)
        _check(f"run {run.id!r}", run.state, [row for row in rows if row.event.startswith("run.")], _run_moves)
        for call in store.calls_of(run.namespace, run.id):
            _check(f"call {call.id} of {call.tool!r}", call.state, [row for row in rows if row.call_id == call.id],
                   _call_moves)  # fmt: skip


def _store_of(where: Guard | World) -> Store:
    return where.store if isinstance(where, World) else where._store  # noqa: SLF001 - the same package


def _matters(call: CallRecord) -> bool:
    return call.declared_write or call.state not in IN_DOUBT


def _is_in_force(call: CallInfo) -> bool:
    if call.state is CallState.DONE:
        return call.compensate is not None or call.effect in ("write", "irreversible")
    return call.state in _IN_FORCE and call.effect not in ("read", "idempotent")


def _said(call: CallInfo) -> str:
    return f"{call.tool} is {call.state}{f' ({call.error})' if call.error else ''}"


def _check(what: str, state: str, rows: Sequence[AuditRow], moves: Callable[[str | None, str], str | None]) -> None:
    reached: str | None = None
    for row in rows:
        if row.from_state != reached:
            raise AssertionError(f"{what}: its history says {row.event} from {row.from_state}, but it was {reached}")
        if moves(reached, row.event) != row.to_state:
            raise AssertionError(f"{what}: {row.event} does not lead from {reached} to {row.to_state}")
        reached = row.to_state
    if reached != state:
        raise AssertionError(f"{what} is {state}, but its history ends with {reached}")


def _call_moves(state: str | None, event: str) -> str | None:
    moves: Mapping[tuple[CallState | None, CallEvent], CallState] = CALL_TABLE
    name = event.removeprefix(f"{Phase.COMPENSATION}.")
    return moves.get((None if state is None else CallState(state), CallEvent(name)))


def _run_moves(state: str | None, event: str) -> str | None:
    moves: Mapping[tuple[RunState | None, RunEvent], RunState] = RUN_TABLE
    return moves.get((None if state is None else RunState(state), RunEvent(event.removeprefix("run."))))
