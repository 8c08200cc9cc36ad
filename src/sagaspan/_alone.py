"""Going on with calls of which only they are to be undone, not their run: queued, died in, or to be tried again.

Somebody asked for it (``guard.compensate(run, call=...)``), and it is on record: the call is ``compensating`` or
``compensation_failed`` in a run that nobody rolls back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from sagaspan import _saga as saga
from sagaspan._backends import Backend
from sagaspan._clock import now_us
from sagaspan._retries import ONCE, due_us
from sagaspan._rollback import undo_of
from sagaspan.exceptions import LockConflict, StoreUnavailable
from sagaspan.ledger.judgement import Judge
from sagaspan.ledger.records import CallInfo, CallRecord, CallState, RunRecord, RunState, call_info
from sagaspan.ledger.store import Store

if TYPE_CHECKING:
    from sagaspan._engine import Engine

_log = logging.getLogger("sagaspan")
_FAILED: Final = CallState.COMPENSATION_FAILED


async def undo_alone(
    engine: Engine,
    backend: Backend,
    *,
    progress: Callable[[CallInfo, str], None],
    stop: Callable[[], bool],
    dry_run: bool,
) -> tuple[CallInfo, ...]:
    """Undo every such call that is due; returns them as they are then, those that need another process among them."""
    found = []
    for run, step in await backend.io(lambda: list(_due_steps(engine))):
        if stop():
            break
        after = step if dry_run else await _undo(engine, run, step, backend)
        info = call_info(after)
        progress(info, _outcome(engine, after, dry_run=dry_run))
        found.append(info)
    return tuple(found)


def _due_steps(engine: Engine) -> Iterator[tuple[RunRecord, CallRecord]]:
    store = engine.store
    for step in (*store.calls_in(CallState.COMPENSATING), *store.calls_in(_FAILED)):
        if step.namespace != engine.namespace:
            continue
        run = run_at_rest(store, engine.judge, step)
        due = due_us(store, engine.judge, step) if step.state is _FAILED else 0
        if run is not None and due is not None and due <= now_us():
            yield run, step


def run_at_rest(store: Store, judge: Judge, step: CallRecord) -> RunRecord | None:
    """The run of ``step``; None if somebody is undoing it now, or will: its run goes on, or is rolled back whole."""
    undo = undo_of(store, step)
    if undo is not None and undo.state is CallState.RUNNING and not judge.is_over(undo.owner, undo.id):
        return None
    others = [RunState.RUNNING, RunState.COMPENSATING]
    if step.state is _FAILED:
        others.append(RunState.PARTIALLY_COMPENSATED)
    found = run = store.get_run(step.namespace, step.run_id)
    while run is not None:
        if run.state in others and not run.is_session:
            return None
        run = store.get_run(run.namespace, run.parent_id) if run.parent_id else None
    return found


async def _undo(engine: Engine, run: RunRecord, step: CallRecord, backend: Backend) -> CallRecord:
    rollback = saga.rollback_of(engine, run, backend=backend, span=engine.span_here, again=ONCE, lock=True)
    try:
        await rollback([step])
        await backend.io(saga.close_if_undone, engine.store, run)
    except (LockConflict, StoreUnavailable) as error:
        _log.warning("call %s of tool %r was left to another worker: %s", step.id, step.tool, error)
    return await backend.io(engine.store.get_call, step.id) or step  # raises if the store really is unavailable


def _outcome(engine: Engine, call: CallRecord, *, dry_run: bool) -> str:
    if call.state is not CallState.COMPENSATED and engine.known.find_compensation(call) is None:
        return "queued"
    return "needs_human" if call.state is _FAILED and not dry_run else "compensated"
