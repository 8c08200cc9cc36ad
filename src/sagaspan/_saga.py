"""Entering and leaving a run: its identity, its resumption, and the durable decision of how it ends."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.trace import Span

from sagaspan import _owner as owner
from sagaspan import _run_spans as run_spans
from sagaspan import semconv
from sagaspan._backends import Backend, Finished
from sagaspan._clock import monotonic, now_us
from sagaspan._commands import command
from sagaspan._endings import Ending
from sagaspan._rollback import PATIENT, Rollback
from sagaspan._steps import CLOSED_WITH_OUTER, WITH_OUTER, Steps, steps_of
from sagaspan._undone import Undone
from sagaspan.exceptions import RunClosed, RunConflict, RunInProgress, StoreError, StoreUnavailable
from sagaspan.keys import fingerprint
from sagaspan.ledger import committed, locks, too_large, transitions
from sagaspan.ledger.asked import Asked
from sagaspan.ledger.attempts import goes_on
from sagaspan.ledger.budgets import settling
from sagaspan.ledger.encryption import check_fingerprint
from sagaspan.ledger.families import family
from sagaspan.ledger.in_doubt import may_still_land
from sagaspan.ledger.records import CallInfo, CallRecord, CallState, RunRecord, RunState, call_info, names_of
from sagaspan.ledger.resolution import IN_DOUBT
from sagaspan.ledger.store import CallChange, Change, RunChange, Store
from sagaspan.ledger.transitions import RunEvent
from sagaspan.policy import Retry

if TYPE_CHECKING:
    from sagaspan._engine import Engine

_PLAINLY_DONE: Final = 2
"""The version of a call after its claim and one settle: it was never in doubt."""

_RESUMABLE: Final = (RunState.RUNNING, RunState.PAUSED, RunState.HELD, RunState.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entered:
    """A run that was entered: fresh, ``resumed``, or completed before and only ``replaying``.

    ``interrupted``: the cancellation that came while that was written; whoever asked for it is not there any more.
    """

    record: RunRecord
    previous: RunRecord | None = None
    resumed: bool = False
    replaying: bool = False
    interrupted: BaseException | None = None


def token(store: Store, run: RunRecord) -> str:
    """What this process holds while it is inside the run."""
    return owner.run_token(store.url, run.namespace, run.id)


def is_inside(engine: Engine, run: RunRecord) -> bool:
    """Whether somebody is inside the run, or may be."""
    going_on = run.state in (RunState.RUNNING, RunState.COMPENSATING)
    return going_on and not engine.judge.is_over(run.owner, token(engine.store, run))


async def enter(
    engine: Engine,
    wanted: RunRecord,
    *,
    wait: float,
    reopen: bool,
    unnamed: bool,
    outer: RunRecord | None = None,
    backend: Backend,
) -> Entered:
    """Open or resume the run; raises ``RunInProgress``, ``RunConflict``, ``RunClosed``, ``StoreError``.

    ``unnamed``: its id is its place in an outer run. If it was undone there and the outer run went on, a resume of the
    outer run comes by again and starts it over. ``outer``: the run around it, as its worker knows it; if that is over,
    or somebody else has taken it over, nothing begins in it any more, and what is completed replays.
    """
    outer_epoch = 0 if outer is None else outer.epoch
    deadline = monotonic() + wait
    if engine.codec is not None:
        wanted = replace(wanted, input_fingerprint=await backend.io(engine.digest, input_of(wanted)))
    opened, audit = transitions.open_run(wanted)
    while True:
        held = await _commit_held(engine, RunChange(opened, audit, outer_epoch=outer_epoch), backend)
        if held.value:
            return Entered(record=opened, interrupted=held.interrupted)
        existing = await backend.io(engine.store.get_run, wanted.namespace, wanted.id)
        if outer is not None and not (existing is not None and existing.state is RunState.COMPLETED and not reopen):
            await backend.io(_check_goes_on, engine.store, outer, wanted)
        if existing is not None:
            check_known(existing)
            _check_identity(existing, wanted, encrypts=engine.codec is not None)
            if unnamed and existing.parent_id != wanted.parent_id:
                raise RunConflict(
                    f"the run id {wanted.id!r}, which a run nested in {wanted.parent_id!r} would have, belongs to "
                    "another run; nothing ran. Give the nested run an id"
                )
            undone = unnamed and existing.state is RunState.COMPENSATED
            entered = await _reenter(
                engine, existing, wanted, reopen=reopen or undone, outer_epoch=outer_epoch, backend=backend
            )
            if entered is not None:
                return entered
        if monotonic() >= deadline:
            raise RunInProgress(
                f"the run {wanted.id!r} is in progress elsewhere; wait for it (wait=SECONDS) or use another id"
            )
        await backend.sleep(0.05)


def _check_goes_on(store: Store, outer: RunRecord, wanted: RunRecord) -> None:
    now = store.get_run(outer.namespace, outer.id)
    if now is None or now.epoch != outer.epoch or now.state is not RunState.RUNNING:
        status = "forgotten" if now is None else now.state
        why = "was taken over by another worker" if status is RunState.RUNNING else f"is {status}"
        raise RunClosed(
            f"the run {wanted.id!r} was not entered: the run {outer.id!r} around it {why}, so nothing begins in it",
            status=status,
        )


async def _commit_held(
    engine: Engine, change: RunChange, backend: Backend, names: Collection[str] = ()
) -> Finished[bool]:
    """Commit a change that enters a run; False if another worker is inside it or was faster.

    Raises ``LockConflict`` if one of the locks ``names``, which are taken with it, is held.

    It is held before it is on disk: between the two another ``Run`` of this process would think us dead. Once it is on
    record, a cancellation that came meanwhile is handed back with it, and it is still held.
    """
    if not owner.hold_new(token(engine.store, change.record)):
        return Finished(False)
    entered = Finished(False)
    try:
        entered = await backend.shielded(_commit_covered, engine, change, names)
    finally:
        if not entered.value:
            owner.drop(token(engine.store, change.record))
    if entered.interrupted is not None and not entered.value:
        raise entered.interrupted
    return entered


async def _taken(engine: Engine, change: RunChange, backend: Backend, names: Collection[str] = ()) -> bool:
    """As ``_commit_held``, for whoever goes on in it at once; one who was cancelled meanwhile leaves it to the next."""
    held = await _commit_held(engine, change, backend, names)
    if held.interrupted is not None:
        owner.drop(token(engine.store, change.record))
        raise held.interrupted
    return held.value


def _commit_covered(engine: Engine, change: RunChange, names: Collection[str]) -> bool:
    engine.lease.cover()
    if not names:
        return bool(engine.store.commit([change], synced=False))
    holder = locks.run_as_holder(engine.store, change.record)
    what = f"the run {change.record.id!r} is not undone"
    return bool(locks.commit_with(engine.store, [change], names, holder, what=what, synced=False))


async def _reenter(
    engine: Engine, existing: RunRecord, wanted: RunRecord, *, reopen: bool, outer_epoch: int, backend: Backend
) -> Entered | None:
    """Enter a run that exists; None while another worker is inside it."""
    if await backend.io(is_inside, engine, existing):
        return None
    if existing.state is RunState.COMPENSATING:
        ended = await take_and_roll_back(engine, existing, backend)
        if ended is None:
            return None
        existing, report = ended
        if report.queued:
            raise RunClosed(f"{report.sentence(existing.id)}; nothing else runs in it", status=existing.state)
    if existing.state is RunState.COMPLETED and not reopen:
        return Entered(record=existing, resumed=True, replaying=True)
    if existing.state in _RESUMABLE:
        return await _take(engine, existing, wanted, RunEvent.RESUME, outer_epoch, backend)
    if not reopen:
        raise RunClosed(
            f"the run {existing.id!r} has ended: it is {existing.state}; use a new id, or reopen=True to start it over",
            status=existing.state,
        )
    await backend.io(_check_reopenable, engine.store, existing)
    # What the earlier incarnation did is over: a failure of the new one does not undo it.
    over = await backend.io(committed.everything, engine.store, existing)
    return await _take(
        engine,
        existing,
        wanted,
        RunEvent.REOPEN,
        outer_epoch,
        backend,
        generation=existing.generation + 1,
        orphans=None,
        output=None,
        **over,
    )


async def _take(
    engine: Engine,
    existing: RunRecord,
    wanted: RunRecord,
    event: RunEvent,
    outer_epoch: int,
    backend: Backend,
    **changes: Any,
) -> Entered | None:
    now = now_us()
    after, audit = transitions.move_run(
        existing, event, now, owner=wanted.owner, epoch=existing.epoch + 1, reason=None, error=None, started_us=now,
        ended_us=None, traceparent=wanted.traceparent, on_interrupt=wanted.on_interrupt, **changes,
    )  # fmt: skip
    held = await _commit_held(engine, RunChange(after, audit, existing.version, outer_epoch), backend)
    if held.value:
        return Entered(record=after, previous=existing, resumed=True, interrupted=held.interrupted)
    return None


def check_known(run: RunRecord) -> None:
    """Touch no run whose state means something that nobody here knows; raises ``StoreError``."""
    if not isinstance(run.state, RunState):
        raise StoreError(
            f"the run {run.id!r} is in the state {run.state!r}, which this sagaspan does not know; upgrade it, or mend "
            "the row of the ledger (nothing was changed)"
        )


def _check_identity(existing: RunRecord, wanted: RunRecord, *, encrypts: bool) -> None:
    if existing.name != wanted.name:
        raise RunConflict(
            f"the run id {wanted.id!r} belongs to a run named {existing.name!r}, not {wanted.name!r}; use another id"
        )
    for what, recorded, given in (
        ("user", existing.user, wanted.user), ("tenant", existing.tenant, wanted.tenant),
    ):  # fmt: skip
        if given not in (None, recorded):  # budgets, rules and four eyes go by the recorded one
            whose = f"no {what}" if recorded is None else f"the {what} {recorded!r}"
            instead = f"leave {what}= out" if recorded is None else f"use {what}={recorded!r}, or leave it out"
            raise RunConflict(
                f"the run id {wanted.id!r} belongs to a run for {whose}, not for {given!r}; nothing ran. To resume "
                f"that run, {instead}; for another run, use another id"
            )
    if existing.input_fingerprint == wanted.input_fingerprint:
        return
    if not encrypts:
        check_fingerprint(existing.input_fingerprint, f"the run {wanted.id!r}")
    elif existing.input_fingerprint == fingerprint(input_of(wanted)):
        return  # it began before there was a codec
    raise RunConflict(f"the run id {wanted.id!r} was used with another input; use another id, or the same input")


def input_of(run: RunRecord) -> Any:
    """The input of a run that was just made, as plain JSON data."""
    return None if run.input is None else json.loads(run.input)


def _check_reopenable(store: Store, run: RunRecord) -> None:
    steps = steps_of(store, run)
    open_steps = [call for call in steps.undoable if call.state is not CallState.DONE] + list(steps.unresolved)
    if run.state is RunState.PARTIALLY_COMPENSATED:
        open_steps += steps.not_compensable  # still in force: starting over would do it twice
    if open_steps:
        raise RunClosed(
            f"the run {run.id!r} cannot be reopened while {open_steps[0].tool!r} ({open_steps[0].state}) needs "
            f"a person; see: {command('show', run.id)}",
            status=run.state,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubts:
    """What of a run is still in doubt: ``open`` to whoever wants to complete it, ``blocking`` who wants to undo it.

    What may be undone in doubt (``empty_safe``) blocks nobody, unless a body of it still runs.
    """

    open: tuple[CallRecord, ...] = ()
    blocking: tuple[CallRecord, ...] = ()


async def doubts_of(
    engine: Engine, run: RunRecord, backend: Backend, *, until: float = 0.0, patient: bool = False
) -> Doubts:
    """What of ``run`` is in doubt after the probes were asked.

    Waits ``until`` then (monotonic) for bodies still running here of what may be undone in doubt or was found done,
    and, ``patient``, for all others: an undo must not come before its action, and how they end may decide the doubt.
    """
    steps = await backend.io(steps_of, engine.store, run)
    asked = []
    for call in steps.unresolved:
        if until and (patient or call.id in steps.safe):
            call = await _after_its_body(engine, call, backend, until)
        asked.append(await engine.resolve_in_doubt(call, backend))
    still = tuple(call for call in asked if call.state in (CallState.RUNNING, *IN_DOUBT))
    if len(still) < len(asked):  # what happened after all is a step like others
        steps = await backend.io(steps_of, engine.store, run)
    if until and (running := [step for step in _done_by_evidence(steps) if goes_on(step)]):
        for step in running:
            await _after_its_body(engine, step, backend, until)
        steps = await backend.io(steps_of, engine.store, run)
    return Doubts(open=still, blocking=await backend.io(blocking, engine, steps, still))


def _done_by_evidence(steps: Steps) -> list[CallRecord]:
    return [step for step in steps.undoable if step.state is CallState.DONE and step.version > _PLAINLY_DONE]


async def _after_its_body(engine: Engine, call: CallRecord, backend: Backend, until: float) -> CallRecord:
    while goes_on(call) and monotonic() < until:
        await backend.sleep(0.01)
    return await backend.io(engine.store.get_call, call.id) or call


def blocking(engine: Engine, steps: Steps, in_doubt: Iterable[CallRecord]) -> tuple[CallRecord, ...]:
    """Those ``in_doubt`` that may not be undone as they are, and what is done by evidence while its body still runs."""
    store, judge = engine.store, engine.judge
    doubtful = [call for call in in_doubt if call.id not in steps.safe or may_still_land(store, judge, call)]
    return (*doubtful, *(step for step in _done_by_evidence(steps) if may_still_land(store, judge, step)))


def is_inside_nested(engine: Engine, run: RunRecord) -> bool:
    """Whether somebody elsewhere is inside a run nested in ``run``."""
    return any(
        (not owner.is_self(child.owner) and is_inside(engine, child)) or is_inside_nested(engine, child)
        for child in engine.store.children_of(run.namespace, run.id)
    )


async def leave(
    engine: Engine,
    run: RunRecord,
    ending: Ending,
    *,
    error: str | None,
    output: str | None,
    orphans: str | None = None,
    backend: Backend,
    span: Span,
) -> tuple[RunRecord, Undone | None]:
    """Write how the run ends, and undo it if that is how; the decision is on disk before the first undo."""
    detail: dict[str, Any] = {"reason": ending.reason, "error": error}
    if ending.event is RunEvent.COMPLETE:
        detail |= {"output": output, "orphans": orphans}
    # Synced, however it ends: the settles of the last calls become durable with it.
    run = await move(engine, run, ending.event, backend, synced=True, **detail)
    if ending.event is not RunEvent.COMPENSATE:
        return run, None
    return await roll_back(engine, run, backend=backend, span=span)


def rollback_of(
    engine: Engine, run: RunRecord, *, backend: Backend, span: Span, again: Retry = PATIENT, lock: bool = False
) -> Rollback:
    """What undoes steps of ``run`` with the compensations of ``engine``; see ``Rollback``."""
    return Rollback(
        engine.store, run, judge=engine.judge, find=engine.known.find_compensation, tracer=engine.tracer, parent=span,
        backend=backend, again=again, lock=lock,
        undone_late=lambda step: close_if_undone(engine.store, engine.store.get_run(step.namespace, step.run_id)),
    )  # fmt: skip


async def roll_back(
    engine: Engine, run: RunRecord, *, backend: Backend, span: Span, again: Retry = PATIENT, left: Collection[str] = ()
) -> tuple[RunRecord, Undone]:
    """Undo the steps of a run that is ``compensating``, and write how that ended; it has not while some are queued.

    Steps that could not be undone before are tried ``again``, except those ``left`` as they are.
    """
    try:
        return await _roll_back(engine, run, backend=backend, span=span, again=again, left=left)
    except BaseException:
        with contextlib.suppress(StoreError):
            await give_back(engine, run, backend, "its rollback was interrupted")
        raise


async def _roll_back(
    engine: Engine, run: RunRecord, *, backend: Backend, span: Span, again: Retry, left: Collection[str]
) -> tuple[RunRecord, Undone]:
    # First of all: nothing may be sent any more once its run is being undone.
    unsent = await backend.io(_drop_unsent, engine.store, run)
    steps = await backend.io(steps_of, engine.store, run)
    rollback = rollback_of(engine, run, backend=backend, span=span, again=again)
    report = await rollback(await _probed(engine, [step for step in steps.undoable if step.id not in left], backend))
    report = replace(
        report,
        failed=(*report.failed, *(call_info(step) for step in steps.undoable if step.id in left)),
        kept=tuple(map(call_info, steps.kept)),
        not_compensable=tuple(map(call_info, steps.not_compensable)),
        undeclared=tuple(map(call_info, steps.undeclared)),
        unsent=unsent,
    )
    if report.queued:
        return await give_back(engine, run, backend, f"waits for {report.queued[0].compensate!r}"), report
    await _close_children(engine, run, complete=report.complete, backend=backend)
    event = RunEvent.COMPENSATED if report.complete else RunEvent.PARTIALLY_COMPENSATED
    run = await move(engine, run, event if steps.happened else RunEvent.FAIL, backend, synced=True)
    if run.state is RunState.PARTIALLY_COMPENSATED:  # what was left may be undone by now: it ended, or by hand
        await backend.io(close_if_undone, engine.store, run)
        now = await backend.io(engine.store.get_run, run.namespace, run.id)
        run = run if now is None else now
    return run, report


async def _probed(engine: Engine, steps: Sequence[CallRecord], backend: Backend) -> list[CallRecord]:
    """``steps`` without those of which a probe finds out, at the last moment, that they did not happen."""
    asked = [await engine.resolve_in_doubt(step, backend) if step.state in IN_DOUBT else step for step in steps]
    return [step for step in asked if step.state is not CallState.FAILED]


def _drop_unsent(store: Store, run: RunRecord) -> tuple[CallInfo, ...]:
    """Give up what was deferred in a run that is ``compensating``, so that nobody sends it; it needs no undo."""
    dropped: list[CallInfo] = []
    while unsent := steps_of(store, run).unsent:
        for call in unsent:
            after, audit = transitions.drop(call, now_us(), why=f"run {run.id} was undone: {run.reason}")
            if store.commit(settling(call, CallChange(after, audit, call.version)), synced=False):
                dropped.append(call_info(after))
    return tuple(dropped)


async def give_back(engine: Engine, run: RunRecord, backend: Backend, why: str) -> RunRecord:
    """Nobody goes on with it here: whoever can may do so, while this process lives."""
    if not owner.is_self(run.owner):  # forked inside a body: the parent goes on with it
        return run
    event = RunEvent.COMPENSATE if run.state is RunState.COMPENSATING else RunEvent.FINISH
    after, audit = transitions.move_run(run, event, now_us(), detail=why, owner=owner.NOBODY)
    saved = await backend.io(engine.store.commit, [RunChange(after, audit, run.version)], synced=False)
    return after if saved else run


async def take_and_roll_back(
    engine: Engine,
    run: RunRecord,
    backend: Backend,
    *,
    by: str = semconv.BY_REQUEST,
    again: Retry = PATIENT,
    left: Collection[str] = (),
    **changes: Any,
) -> tuple[RunRecord, Undone] | None:
    """Undo a run that nobody is inside of, as ``roll_back``; None if somebody else took it first.

    A run that was over has let go of its locks: it takes those of the steps to undo again, or raises ``LockConflict``.
    """
    names = await backend.io(lambda: _locks_of(steps_of(engine.store, run).undoable))
    after, audit = transitions.move_run(
        run, RunEvent.COMPENSATE, now_us(), owner=owner.this_process(), epoch=run.epoch + 1, **changes
    )
    if not await _taken(engine, RunChange(after, audit, run.version), backend, names):
        return None
    try:
        return await run_spans.going_on(
            engine, after, by, backend, _undone_here(engine, after, backend, again=again, left=left)
        )
    finally:
        owner.drop(token(engine.store, run))


async def _undone_here(
    engine: Engine, run: RunRecord, backend: Backend, *, again: Retry, left: Collection[str]
) -> tuple[RunRecord, Undone]:
    return await roll_back(engine, run, backend=backend, span=engine.span_here, again=again, left=left)


def _locks_of(steps: Iterable[CallRecord]) -> set[str]:
    return {name for step in steps for name in names_of(step.locks)}


async def take_over(engine: Engine, run: RunRecord, why: str, backend: Backend, **changes: Any) -> RunRecord | None:
    """Enter a run that is held, or whose owner is dead or expired, under the next epoch.

    None if somebody else was faster. Whoever was inside is fenced from here on. The caller drops the run's ``token``.
    """
    event = RunEvent.COMPENSATE if run.state is RunState.COMPENSATING else RunEvent.RESUME
    after, audit = transitions.move_run(
        run, event, now_us(), detail=why, owner=owner.this_process(), epoch=run.epoch + 1, **changes
    )
    change = RunChange(after, audit, run.version, takes=True)
    return after if await _taken(engine, change, backend) else None


async def _close_children(engine: Engine, run: RunRecord, *, complete: bool, backend: Backend) -> None:
    for child in await backend.io(engine.store.children_of, run.namespace, run.id):
        stays = await backend.io(_is_committed, engine.store, run, child)
        if stays and child.state is RunState.COMPLETED:
            continue
        await _close_children(engine, child, complete=complete, backend=backend)
        if child.state in CLOSED_WITH_OUTER:
            child = await move(engine, child, RunEvent.COMPENSATE, backend, synced=False, reason=WITH_OUTER)
            event = RunEvent.COMPENSATED if complete else RunEvent.PARTIALLY_COMPENSATED
            await move(engine, child, RunEvent.FAIL if stays else event, backend, synced=False)
        elif complete:
            await backend.io(close_if_undone, engine.store, child)


def _is_committed(store: Store, run: RunRecord, child: RunRecord) -> bool:
    """Whether all that was done in ``child`` came before the commit of ``run``, in which it is nested."""
    calls = list(family(store, child))
    return bool(calls) and all(committed.is_committed(run, call) for call in calls)


def close_if_undone(store: Store, run: RunRecord | None) -> None:
    """A run that was not wholly undone is ``compensated`` once what was left is undone: by hand, or late.

    So are the runs it is nested in, if nothing else is left of them.
    """
    while run is not None and run.state is RunState.PARTIALLY_COMPENSATED:
        steps = steps_of(store, run)
        if steps.undoable or steps.kept or steps.not_compensable or steps.unresolved:
            return
        started, first = transitions.move_run(run, RunEvent.COMPENSATE, now_us(), owner=owner.NOBODY)
        ended, second = transitions.move_run(started, RunEvent.COMPENSATED, now_us(), detail="what was left is undone")
        if not store.commit(
            [RunChange(started, first, run.version), RunChange(ended, second, started.version)], synced=True
        ):
            return  # somebody else is at it
        run = store.get_run(run.namespace, run.parent_id) if run.parent_id else None


async def move(
    engine: Engine,
    run: RunRecord,
    event: RunEvent,
    backend: Backend,
    *,
    synced: bool,
    more: Sequence[Change] = (),
    **changes: Any,
) -> RunRecord:
    """The run after ``event``, saved with what is ``more``; ``StoreUnavailable`` if another worker has it now."""
    after, audit = transitions.move_run(run, event, now_us(), **changes)
    return await _save(engine.store, RunChange(after, audit, run.version), backend, synced=synced, more=more)


async def _save(
    store: Store, change: RunChange, backend: Backend, *, synced: bool, more: Sequence[Change] = ()
) -> RunRecord:
    finished = await backend.shielded(too_large.saved, store, [change, *more], synced=synced)
    commit, (first, *_) = finished.value
    if not commit and commit.refused is not first:
        raise StoreUnavailable(
            f"a call of the run {change.record.id!r} was changed by somebody else at this moment, so nothing was "
            "decided; enter the run again"
        )
    if not commit:
        raise StoreUnavailable(
            f"the run {change.record.id!r} was taken over by another worker while this one was in it; this one changes "
            "nothing more"
        )
    return first.record if isinstance(first, RunChange) else change.record


async def commit(engine: Engine, run: RunRecord, *, asked: Asked | None, backend: Backend) -> RunRecord:
    """What was done so far is not undone by a later error.

    ``asked``: in a resumed run, the calls that were asked for so far; the ledger has more of the earlier incarnation.
    """
    if asked is None:
        line = await backend.io(committed.everything, engine.store, run)
    else:
        line = await backend.io(committed.up_to_here, engine.store, run, asked)
    after, audit = transitions.move_run(run, RunEvent.COMMIT, now_us(), **line)
    await _save(engine.store, RunChange(after, audit, run.version), backend, synced=True)
    return after
