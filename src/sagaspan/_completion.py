"""Completing a run: its orphans are undone, if that is wanted, and what was deferred is sent (rule book (b) 7).

The decision is on disk before the first call is sent, and it is the run's own: ``completing``, or, for what
``commit()`` lets go, ``committed_seq``. The run stays ``running`` meanwhile, with its owner, lease and epoch, so that
after a crash one worker alone takes it over, by the rules of every other run, and goes on where it was. Nothing
that was decided is undone by an error or an interruption any more: what cannot be sent or undone holds the run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from opentelemetry.trace import Span

from sagaspan import _owner as owner
from sagaspan import _saga as saga
from sagaspan import _spans as spans
from sagaspan import codecs
from sagaspan._backends import Backend
from sagaspan._call import Result
from sagaspan._clock import now_us
from sagaspan._commands import resolve_command
from sagaspan._steps import steps_of
from sagaspan.exceptions import (
    ApprovalPending,
    CallInProgress,
    CompensationFailed,
    OutcomeUnknown,
    Refused,
    RunError,
    RunInProgress,
)
from sagaspan.ledger import transitions
from sagaspan.ledger.budgets import settling
from sagaspan.ledger.committed import is_committed
from sagaspan.ledger.records import CallRecord, CallState, Phase, RunRecord, RunState, call_info, names_of
from sagaspan.ledger.resolution import IN_DOUBT
from sagaspan.ledger.store import CallChange, Store
from sagaspan.ledger.transitions import CallEvent, RunEvent

if TYPE_CHECKING:
    from sagaspan._engine import Engine

_log = logging.getLogger("sagaspan")
InForce = Callable[[], AbstractContextManager[None]]
"""Makes the run the current one: what a deferred body calls is a step of its run."""

_SENT_BEFORE: Final = (CallState.RUNNING, CallState.FAILED, *IN_DOUBT)
_UNSENT: Final = (CallState.SCHEDULED, *_SENT_BEFORE)
_TO_UNDO: Final = (CallState.COMPENSATING, CallState.COMPENSATION_FAILED)
_NOT_OVER: Final = (RunState.RUNNING, RunState.PAUSED, RunState.HELD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The call at which completing stopped, and the error to raise.

    ``reason``: why the run is held, in one word. ``queued``: this process lacks the tool. ``refused``: it did not run,
    because a budget, a policy, a freeze or a person refused it. ``waiting``: how many deferred calls come after it.
    """

    call: CallRecord
    reason: str
    error: BaseException
    waiting: int = 0
    queued: bool = False
    refused: bool = False

    @property
    def what(self) -> str:
        """What the tool is called that this process lacks."""
        return self.call.compensate or "" if self.reason == "orphans" else self.call.tool

    def sentence(self, run_id: str) -> str:
        """What became of it and what to do, for the note on the error."""
        run, call = f"sagaspan: run {run_id!r}:", f"{self.call.tool!r} ({self.call.id})"
        recover = "sagaspan recover --app MODULE:GUARD"
        if self.reason == "orphans":
            return f"{run} its orphan {call} is not undone yet; enter the run again, or: {recover}"
        more = f", and {self.waiting} deferred after it wait" if self.waiting else ""
        where = f"{run} its deferred call {call}"
        if self.queued:
            return f"{where} is not sent yet{more}; {recover}"
        decide = resolve_command(self.call.id)
        if self.reason == "unresolved":
            return f"{where} may or may not have been sent{more}; find out, then say so: {decide}"
        if self.refused and self.call.state is CallState.FAILED:
            return f"{where} is not sent again{more}; enter the run again when it may be, or give it up: {decide}"
        if self.call.state is CallState.SCHEDULED:
            return f"{where} is not sent{more}: {decide}"
        return f"{where} failed, so it was not sent{more}; enter the run again to try again, or give it up: {decide}"


# -- what is to be sent ------------------------------------------------------------------------------------------


def waits_for_outer(store: Store, run: RunRecord) -> bool:
    """Whether what is deferred in ``run`` is sent with the run it is nested in, because that one is not over."""
    outer = None if run.parent_id is None else store.get_run(run.namespace, run.parent_id)
    return outer is not None and outer.state in _NOT_OVER and not outer.completing


def due(store: Store, run: RunRecord) -> list[CallRecord]:
    """The deferred calls of ``run`` that are decided and not yet sent, in the order they were scheduled."""
    found = [call for one in _completed(store, run) for call in store.calls_of(one.namespace, one.id)]
    return sorted((call for call in found if _is_due(call, run)), key=lambda call: call.place)


def _is_due(call: CallRecord, run: RunRecord) -> bool:
    if call.phase is not Phase.FORWARD:
        return False
    if call.state is CallState.SCHEDULED:
        return run.completing or is_committed(run, call)
    return call.scheduled_seq is not None and call.state in _SENT_BEFORE


def _completed(store: Store, run: RunRecord) -> Iterator[RunRecord]:
    """``run`` and the runs nested in it that have ended well; one that is paused or held keeps what it scheduled."""
    yield run
    for child in store.children_of(run.namespace, run.id):
        if child.state is RunState.COMPLETED:
            yield from _completed(store, child)


# -- sending -----------------------------------------------------------------------------------------------------


async def decide(
    engine: Engine,
    run: RunRecord,
    *,
    output: str | None,
    orphans: Sequence[CallRecord] = (),
    undo: bool = False,
    backend: Backend,
) -> RunRecord:
    """The block of ``run`` has ended well: from here on it is only finished.

    In the same commit its ``orphans`` are marked to be undone, if that is wanted and they are not before a pivot, or
    given up if they are scheduled.
    """
    marks = await backend.io(_marks, engine.store, run, orphans) if undo else []
    return await saga.move(
        engine, run, RunEvent.FINISH, backend, synced=True, more=marks, completing=True, output=output,
        orphans=listed(orphans),
    )  # fmt: skip


def listed(orphans: Sequence[CallRecord]) -> str | None:
    """The orphans of a run as its record has them."""
    return "\n".join(orphan.id for orphan in orphans) or None


def _marks(store: Store, run: RunRecord, orphans: Sequence[CallRecord]) -> list[CallChange]:
    why = "its run was resumed and did not ask for it again"
    undoable = {step.id for step in steps_of(store, run).undoable}
    marks = []
    for orphan in orphans:
        if orphan.state is CallState.SCHEDULED:
            after, audit = transitions.drop(orphan, now_us(), why=why)
        elif orphan.id in undoable:
            who = owner.this_process()
            after, audit = transitions.move_call(orphan, CallEvent.COMPENSATE, now_us(), detail=why, actor=who)
        else:
            continue
        marks.append(CallChange(after, audit, orphan.version))
    return marks


async def finish(
    engine: Engine, run: RunRecord, *, in_force: InForce, backend: Backend, span: Span
) -> tuple[RunRecord, Stopped | None]:
    """Undo what is marked and send what is due of a run that is ``completing``, and complete it.

    Where that stops the run is held; without the tool it is given back for a process that has it.
    """
    stopped = await _undo_orphans(engine, run, backend, span)
    if stopped is None:
        stopped = await send_due(engine, run, in_force=in_force, backend=backend)
    if stopped is None:
        return await saga.move(engine, run, RunEvent.COMPLETE, backend, synced=True), None
    if stopped.queued:
        return await saga.give_back(engine, run, backend, f"waits for {stopped.what!r}"), stopped
    return await hold(engine, run, stopped, backend), stopped


def orphans_to_undo(store: Store, run: RunRecord) -> list[CallRecord]:
    """The orphans of ``run`` that are marked and not undone yet, newest first."""
    found = [store.get_call(call_id) for call_id in names_of(run.orphans)]
    marked = [call for call in found if call is not None and call.state in _TO_UNDO]
    return sorted(marked, key=lambda call: call.claim_seq, reverse=True)


async def _undo_orphans(engine: Engine, run: RunRecord, backend: Backend, span: Span) -> Stopped | None:
    steps = await backend.io(orphans_to_undo, engine.store, run)
    if not steps:
        return None
    undone = await saga.rollback_of(engine, run, backend=backend, span=span)(steps)
    left = [*undone.queued, *undone.failed]
    if not left:
        return None
    error = CompensationFailed(undone.sentence(run.id), call=left[0])
    call = next(step for step in steps if step.id == left[0].id)
    return Stopped(call=call, reason="orphans", error=error, queued=bool(undone.queued))


async def hold(engine: Engine, run: RunRecord, stopped: Stopped, backend: Backend) -> RunRecord:
    """Leave a run where sending stopped: whoever enters it again goes on there."""
    text = f"{type(stopped.error).__name__}: {spans.error_message(stopped.error) or ''}"
    return await saga.move(engine, run, RunEvent.HOLD, backend, synced=True, reason=stopped.reason, error=text)


async def send_due(engine: Engine, run: RunRecord, *, in_force: InForce, backend: Backend) -> Stopped | None:
    """Send what is due of ``run``, each once, up to the first that does not succeed: the next may rest on it.

    ``critical=False`` says that nothing rests on a call: its failure is logged, and sending goes on. What a nested run
    has committed waits all the same for the run it is in, which may yet be undone.
    """
    if await backend.io(waits_for_outer, engine.store, run):
        return None
    tried: set[str] = set()
    doubt: Stopped | None = None
    while left := [call for call in await backend.io(due, engine.store, run) if call.id not in tried]:
        tried.add(left[0].id)
        stopped = await _send(engine, run, left, in_force, backend)
        if stopped is None:
            continue
        tool = engine.known.find_deferred(stopped.call)
        given_up = tool is not None and tool.policy.critical is False and not stopped.refused
        if not given_up or not isinstance(stopped.error, Exception):
            return stopped
        if stopped.reason == "unresolved":
            doubt = doubt or stopped
        else:
            await backend.io(_give_up, engine.store, stopped)
    return doubt


async def _send(
    engine: Engine, run: RunRecord, left: list[CallRecord], in_force: InForce, backend: Backend
) -> Stopped | None:
    if not owner.is_self(run.owner):  # forked in the body of the call before this one
        raise RunInProgress(f"the run {run.id!r} is completed by the process that this one was forked from")
    record, waiting = left[0], len(left) - 1
    tool = engine.known.find_deferred(record)
    if tool is None:
        return Stopped(call=record, reason="unsent", error=_queued(run, record), waiting=waiting, queued=True)
    if not is_readable(record):
        return Stopped(call=record, reason="unsent", error=_damaged(run, record), waiting=waiting)
    try:
        with in_force():
            result: Result = await engine.send(tool, record, run, backend)
    except OutcomeUnknown as error:
        now = await backend.io(engine.store.get_call, record.id)
        return _stopped(now or record, error, waiting)
    except (ApprovalPending, Refused) as error:
        now = await backend.io(engine.store.get_call, record.id)
        return replace(_stopped(now or record, error, waiting), refused=not isinstance(error, CallInProgress))
    if result.error is None or result.record.state not in _UNSENT:  # who took this worker over has sent it
        return None
    return _stopped(result.record, result.error, waiting)


def _stopped(call: CallRecord, error: BaseException, waiting: int) -> Stopped:
    in_doubt = call.state in (CallState.RUNNING, *IN_DOUBT)
    return Stopped(call=call, reason="unresolved" if in_doubt else "unsent", error=error, waiting=waiting)


def _give_up(store: Store, stopped: Stopped) -> None:
    _log.warning("the deferred call %s of tool %r failed and is not sent (critical=False): %s", stopped.call.id,
                 stopped.call.tool, spans.error_message(stopped.error))  # fmt: skip
    after, audit = transitions.drop(stopped.call, now_us(), why="it failed, and critical=False says that this is fine")
    store.commit(settling(stopped.call, CallChange(after, audit, stopped.call.version)), synced=False)


def is_readable(record: CallRecord) -> bool:
    """Whether a deferred call can be sent from its record."""
    try:
        codecs.decode(record.arguments)
    except codecs.Undecodable:
        return False
    return True


def _damaged(run: RunRecord, record: CallRecord) -> RunError:
    return RunError(
        f"the run {run.id!r} has ended well, but the arguments of its deferred call {record.id} cannot be read in the "
        "ledger, so it is not sent; restore the row and enter the run again, or say what became of it",
        call=call_info(record), tool_ran="no",
    )  # fmt: skip


def _queued(run: RunRecord, record: CallRecord) -> RunError:
    lacks = f"there is no tool {record.tool!r} with defer=True"
    if codecs.is_encrypted(record.arguments):
        lacks = "what was recorded of it is encrypted, and the codec is not"
    return RunError(
        f"the run {run.id!r} has ended well, but its deferred call {record.id} is not sent yet: {lacks} in this "
        "process; it waits for one that has it: sagaspan recover --app MODULE:GUARD",
        call=call_info(record), tool_ran="no",
    )  # fmt: skip
