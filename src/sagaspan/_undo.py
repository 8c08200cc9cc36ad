"""Undoing on request: a whole run, also a completed one, or one call of it. The agent's Ctrl+Z.

What was committed is undone too: ``commit()`` protects from errors, not from somebody who asks for it. Asking twice
undoes once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from sagaspan import _saga as saga
from sagaspan._backends import Backend
from sagaspan._rollback import Undone, steps_of
from sagaspan.exceptions import CompensationFailed, OutcomeUnknown, RunError, RunInProgress
from sagaspan.ledger.families import family
from sagaspan.ledger.records import CallRecord, CallState, RunRecord, RunState, call_info

if TYPE_CHECKING:
    from sagaspan._engine import Engine

_UNDONE: Final = (CallState.COMPENSATED, CallState.FAILED, CallState.REFUSED)


async def compensate(
    engine: Engine, run_id: str, call_id: str | None, *, dry_run: bool, inside: bool, backend: Backend
) -> Undone:
    """Undo the run ``run_id``, or its call ``call_id``; with ``dry_run`` only say what would be.

    ``inside``: the caller is in this very run, so one call of it may be undone while it goes on, as one of a session
    may. Raises ``RunError`` if
    there is none, ``RunInProgress``, ``OutcomeUnknown`` if a write is in doubt, ``CompensationFailed``.
    """
    run = await backend.io(engine.store.get_run, engine.namespace, run_id)
    if run is None:
        raise RunError(f"there is no run {run_id!r} in the namespace {engine.namespace!r}; see: sagaspan runs list")
    if call_id is None or not (inside or run.is_session):
        await _check_nobody_inside(engine, run, backend)
    if call_id is not None:
        report = await _one_call(engine, run, call_id, dry_run=dry_run, backend=backend)
    else:
        # Asked for by name, what was committed is undone too.
        report = await _whole_run(engine, replace(run, committed_seq=0), dry_run=dry_run, backend=backend)
    if stuck := (*report.failed, *report.queued):
        raise CompensationFailed(report.sentence(run_id), call=stuck[0])
    return report


async def undo_run(engine: Engine, run_id: str, *, reason: str, error: str, backend: Backend) -> Undone:
    """Undo a whole run that is on record and that nobody is inside of; raises as ``compensate`` but for failures."""
    run = await backend.io(engine.store.get_run, engine.namespace, run_id)
    if run is None:
        return Undone()
    await _check_nobody_inside(engine, run, backend)
    return await _whole_run(engine, run, dry_run=False, backend=backend, reason=reason, error=error)


async def _whole_run(
    engine: Engine, run: RunRecord, *, dry_run: bool, backend: Backend, **changes: str | None
) -> Undone:
    steps = await backend.io(steps_of, engine.store, run)
    if not dry_run and run.state is not RunState.COMPENSATING:
        await saga.unresolved_of(engine, run, backend)
    steps = await backend.io(steps_of, engine.store, run)
    if steps.unresolved and run.state is not RunState.COMPENSATING:
        _refuse(run, steps.unresolved[0])
    planned = Undone(
        undone=tuple(map(call_info, steps.undoable)), not_compensable=tuple(map(call_info, steps.not_compensable))
    )
    over = run.state in (RunState.COMPENSATED, RunState.PARTIALLY_COMPENSATED, RunState.FAILED)
    if dry_run or (over and not steps.undoable):
        return planned
    wanted: dict[str, Any] = {"reason": run.reason or "requested", **changes}
    ended = await saga.take_and_roll_back(engine, run, backend, **wanted)
    if ended is None:
        raise RunInProgress(f"the run {run.id!r} was taken by another worker at this moment; try again")
    return ended[1]


async def _one_call(engine: Engine, run: RunRecord, call_id: str, *, dry_run: bool, backend: Backend) -> Undone:
    calls = await backend.io(lambda: list(family(engine.store, run)))
    step = next((call for call in calls if call.id == call_id), None)
    if step is None:
        raise RunError(f"the run {run.id!r} has no call {call_id!r}; see: sagaspan show {run.id}")
    if not dry_run:
        step = await engine.resolve_in_doubt(step, backend)
    if step.state in _UNDONE:
        return Undone()
    if step.state in (CallState.UNKNOWN, CallState.NEEDS_HUMAN, CallState.RUNNING):
        _refuse(run, step)
    if step.compensate is None:
        return Undone(not_compensable=(call_info(step),))
    if dry_run:
        return Undone(undone=(call_info(step),))
    return await saga.rollback_of(engine, run, backend=backend, span=engine.no_span)([step])


async def _check_nobody_inside(engine: Engine, run: RunRecord, backend: Backend) -> None:
    if await backend.io(saga.is_inside, engine, run):
        raise RunInProgress(f"the run {run.id!r} is in progress, so it is not undone; wait for it, or abort it")


def _refuse(run: RunRecord, step: CallRecord) -> None:
    raise OutcomeUnknown(
        f"the run {run.id!r} is not undone: nobody knows whether {step.tool!r} happened; find out, then decide. "
        f"See: sagaspan show {step.id}",
        call=call_info(step),
    )
