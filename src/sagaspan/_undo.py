"""Undoing on request: a whole run, also a completed one, or one call of it. The agent's Ctrl+Z.

What was committed is undone too: ``commit()`` protects from errors, not from somebody who asks for it. Asking twice
undoes once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from sagaspan import _owner as owner
from sagaspan import _saga as saga
from sagaspan._backends import Backend
from sagaspan._clock import now_us
from sagaspan._commands import command
from sagaspan._steps import steps_of
from sagaspan._undone import Undone, undecided
from sagaspan.exceptions import CompensationFailed, OutcomeUnknown, RunError, RunInProgress
from sagaspan.ledger import transitions
from sagaspan.ledger.budgets import settling
from sagaspan.ledger.families import family
from sagaspan.ledger.in_doubt import may_still_land
from sagaspan.ledger.records import CallInfo, CallRecord, CallState, RunRecord, RunState, call_info
from sagaspan.ledger.resolution import IN_DOUBT, is_unsent
from sagaspan.ledger.store import CallChange, Store

if TYPE_CHECKING:
    from sagaspan._engine import Engine

_UNDONE: Final = (CallState.COMPENSATED, CallState.FAILED, CallState.REFUSED)


async def compensate(
    engine: Engine, run_id: str, call_id: str | None, *, dry_run: bool, inside: bool, backend: Backend
) -> Undone:
    """As ``undo``; raises ``CompensationFailed`` if something that was to be undone is not."""
    report = await undo(engine, run_id, call_id, dry_run=dry_run, inside=inside, backend=backend, probe=not dry_run)
    if not dry_run and (stuck := (*report.failed, *report.queued)):
        raise CompensationFailed(report.sentence(run_id), call=stuck[0])
    return report


async def undo(
    engine: Engine,
    run_id: str,
    call_id: str | None,
    *,
    dry_run: bool,
    inside: bool,
    backend: Backend,
    probe: bool = True,
    seen: int | None = None,
) -> Undone:
    """Undo the run ``run_id``, or its call ``call_id``; with ``dry_run`` only say what would be, and what is in doubt.

    ``inside``: the caller is in this very run, so one call of it may be undone while it goes on. ``probe``: ask what
    can find out about calls in doubt first, which is recorded. ``seen`` is the version of the run that somebody decided
    on: a later one is left alone. Raises ``RunError`` if there is none,
    ``RunInProgress``, and, without ``dry_run``, ``OutcomeUnknown`` if a write is in doubt.
    """
    run = await backend.io(engine.store.get_run, engine.namespace, run_id)
    if run is None:
        raise RunError(f"there is no run {run_id!r} in the namespace {engine.namespace!r}; see: sagaspan runs list")
    saga.check_known(run)
    if seen is not None and run.version != seen:
        raise RunError(f"the run {run_id!r} has changed since it was shown, so nothing was undone; look again")
    # Calls outside a run rest on nothing that the session does next, so one of them needs nobody to stop.
    if call_id is None or not (inside or run.is_session):
        await _check_nobody_inside(engine, run, backend)
    if call_id is not None:
        return await _one_call(engine, run, call_id, dry_run=dry_run, probe=probe, backend=backend)
    # Asked for by name, what was committed is undone too.
    return await _whole_run(engine, replace(run, committed_seq=0), dry_run=dry_run, probe=probe, backend=backend)


async def undo_run(engine: Engine, run_id: str, *, reason: str, error: str, backend: Backend) -> Undone:
    """Undo a whole run that is on record and that nobody is inside of; raises as ``compensate`` but for failures."""
    run = await backend.io(engine.store.get_run, engine.namespace, run_id)
    if run is None:
        return Undone()
    saga.check_known(run)
    await _check_nobody_inside(engine, run, backend)
    return await _whole_run(engine, run, dry_run=False, probe=True, backend=backend, reason=reason, error=error)


async def _whole_run(
    engine: Engine, run: RunRecord, *, dry_run: bool, probe: bool, backend: Backend, **changes: str | None
) -> Undone:
    if probe and run.state is not RunState.COMPENSATING:
        await saga.doubts_of(engine, run, backend)
    steps = await backend.io(steps_of, engine.store, run)
    doubts: tuple[CallRecord, ...] = ()
    if run.state is not RunState.COMPENSATING:
        doubts = await backend.io(saga.blocking, engine, steps, steps.unresolved)
    if doubts and not dry_run:
        raise refusal(run.id, call_info(doubts[0]))
    over = run.state in (RunState.COMPENSATED, RunState.PARTIALLY_COMPENSATED, RunState.FAILED)
    untouched = run.state is RunState.COMPLETED and not steps.happened and not changes  # an aborted run has ended so
    if not dry_run and over and not steps.undoable:
        await backend.io(saga.close_if_undone, engine.store, run)
    if dry_run or untouched or (over and not steps.undoable):
        return replace(
            _foreseen(engine, steps.expected),
            kept=tuple(map(call_info, steps.kept)),
            not_compensable=tuple(map(call_info, steps.not_compensable)),
            undeclared=tuple(map(call_info, steps.undeclared)),
            unsent=tuple(map(call_info, steps.unsent)),
            unresolved=tuple(map(call_info, doubts)),
        )
    wanted: dict[str, Any] = {"reason": run.reason or "requested", **changes}
    ended = await saga.take_and_roll_back(engine, run, backend, **wanted)
    if ended is None:
        raise RunInProgress(f"the run {run.id!r} was taken by another worker at this moment; try again")
    return ended[1]


async def _one_call(
    engine: Engine, run: RunRecord, call_id: str, *, dry_run: bool, probe: bool, backend: Backend
) -> Undone:
    calls = await backend.io(lambda: list(family(engine.store, run)))
    step = next((call for call in calls if call.id == call_id), None)
    if step is None:
        raise RunError(f"the run {run.id!r} has no call {call_id!r}; see: {command('show', run.id)}")
    if probe:
        step = await engine.resolve_in_doubt(step, backend)
    if step.state in _UNDONE and not is_unsent(step):
        return Undone()
    if step.state in (CallState.RUNNING, *IN_DOUBT) and not await _is_safe(engine, step, backend):
        if dry_run:
            return Undone(unresolved=(call_info(step),))
        raise refusal(run.id, call_info(step))
    if is_unsent(step):
        return await backend.io(_drop, engine.store, step, dry_run)
    if step.compensate is None:
        return Undone(not_compensable=(call_info(step),))
    if dry_run:
        return _foreseen(engine, [step])
    report = await saga.rollback_of(engine, run, backend=backend, span=engine.span_here, lock=True)([step])
    if report.queued and step.state is not CallState.COMPENSATING:
        await backend.io(_queue, engine.store, step)
    await backend.io(saga.close_if_undone, engine.store, run)
    return report


async def _is_safe(engine: Engine, step: CallRecord, backend: Backend) -> bool:
    """Whether a call in doubt may be undone as it is."""
    return step.empty_safe and not await backend.io(may_still_land, engine.store, engine.judge, step)


def _foreseen(engine: Engine, steps: Sequence[CallRecord]) -> Undone:
    """What a rollback of ``steps`` would report if everything went well: it stops at the first it cannot undo."""
    missing = (number for number, step in enumerate(steps) if engine.known.find_compensation(step) is None)
    known = next(missing, len(steps))
    return Undone(undone=tuple(map(call_info, steps[:known])), queued=tuple(map(call_info, steps[known:])))


def _queue(store: Store, step: CallRecord) -> None:
    """Leave a call that is to be undone by itself to a process that can: recovery finds it."""
    waits = f"waits for {step.compensate!r}"
    after, audit = transitions.start_undoing(step, now_us(), detail=waits, actor=owner.this_process())
    if not store.commit(settling(step, CallChange(after, audit, step.version)), synced=True):
        raise RunInProgress(f"the call {step.id} of tool {step.tool!r} was taken by another worker; try again")


def _drop(store: Store, step: CallRecord, dry_run: bool) -> Undone:
    """A deferred call that was not sent is undone by not sending it."""
    after, audit = transitions.drop(step, now_us(), why="requested")
    if dry_run:
        return Undone(unsent=(call_info(step),))
    if not store.commit(settling(step, CallChange(after, audit, step.version)), synced=True):
        raise RunInProgress(f"the call {step.id} of tool {step.tool!r} is being sent at this moment; try again")
    return Undone(unsent=(call_info(after),))


async def _check_nobody_inside(engine: Engine, run: RunRecord, backend: Backend) -> None:
    if await backend.io(saga.is_inside, engine, run):
        raise RunInProgress(f"the run {run.id!r} is in progress, so it is not undone; wait for it, or abort it")


def refusal(run_id: str, step: CallInfo) -> OutcomeUnknown:
    """The error that says why a run is not undone while ``step`` is in doubt, or still going on."""
    return OutcomeUnknown(f"the run {run_id!r} is not undone: {undecided(step)}", call=step)
