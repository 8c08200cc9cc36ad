"""Leaving a run: what it ends as, what is undone or sent before that, and what its caller is told."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from opentelemetry.trace import Span

from sagaspan import _completion as completion
from sagaspan import _fork as fork
from sagaspan import _live as live
from sagaspan import _saga as saga
from sagaspan import _spans as spans
from sagaspan import _undo as undo
from sagaspan import codecs, semconv
from sagaspan._backends import Backend
from sagaspan._clock import monotonic
from sagaspan._commands import command
from sagaspan._endings import PIVOT, Ending, ending_of
from sagaspan._orphans import orphans_of
from sagaspan._undone import Undone, undecided
from sagaspan.exceptions import CompensationFailed, OutcomeUnknown, StoreUnavailable
from sagaspan.ledger import pivots
from sagaspan.ledger.approvals import OPEN
from sagaspan.ledger.asked import Asked
from sagaspan.ledger.records import CallRecord, RunState, call_info
from sagaspan.ledger.transitions import RunEvent

if TYPE_CHECKING:
    from sagaspan._run import Run

_log = logging.getLogger("sagaspan")
GRACE_SECONDS: Final = 30.0
"""How long leaving a run waits for calls still in flight before anything is undone."""


@dataclass(slots=True, kw_only=True)
class Course:
    """What was said and seen of a run in this process so far; its end goes by that.

    ``aborted``: why somebody aborted it. ``doomed``: the error it stops for, whoever handles that. ``resumable``: the
    error by which its framework only interrupts it. ``waiting``: the requests that its calls wait for. ``uncertain``:
    something may be in doubt, ``doubtful`` is. ``deferred``: something may have to be sent; ``stopped``: at that it
    stopped. ``forks``: how many there had been when it began.
    """

    on_budget: str
    aborted: str | None = None
    doomed: BaseException | None = None
    paused: bool = False
    waiting: set[str] = field(default_factory=set)
    resumable: BaseException | None = None
    uncertain: bool = False
    doubtful: tuple[CallRecord, ...] = ()
    only_read: bool = True
    deferred: bool = False
    stopped: completion.Stopped | None = None
    forks: int = field(default_factory=fork.forks)
    asked: Asked = field(default_factory=Asked)


class Leaving:
    """The end of one run, under its ``span``."""

    def __init__(self, run: Run, course: Course, span: Span) -> None:
        self._run = run
        self._engine = run.engine
        self._course = course
        self._span = span

    async def end_or_let_go(self, error: BaseException | None, backend: Backend) -> Undone | None:
        """Write how it ends; with ``fail_open``, a run that only read does not fail for that."""
        until = monotonic() + GRACE_SECONDS
        if self._would_be_undone(error):
            self._run.in_flight.close()
        await self._await_calls(backend, until)
        try:
            await backend.io(self._engine.settle)
            return await self._end(error, backend, until)
        except StoreUnavailable as failure:
            if self._engine.outage is None or not self._course.only_read or self._run.resumed:
                raise
            why = self._engine.outage.began(failure)
            _log.warning("the end of run %r, which only read, is not recorded (fail_open=True): %s", self._run.id, why)
            spans.mark(self._span, semconv.UNRECORDED)
            return None

    def _would_be_undone(self, error: BaseException | None) -> bool:
        """Whether leaving by ``error`` undoes the run, unless something is in doubt."""
        return self._ending(error, unresolved=False, unsent=False, pivoted=False).event is RunEvent.COMPENSATE

    async def _end(self, error: BaseException | None, backend: Backend, until: float) -> Undone | None:
        unresolved = await self._look_into_doubts(error, backend, until)
        unsent = error is not None and await self._has_unsent(backend)
        pivoted = error is not None and await backend.io(self._passed_pivot) is not None
        ending = self._ending(error, unresolved=unresolved, unsent=unsent, pivoted=pivoted)
        waits = ending.event is RunEvent.COMPLETE and self._course.waiting
        if waits and (still := await backend.io(self._still_waits_for)):
            _log.warning(
                "run %r is paused, not completed: a call of it waits for the approval %s, and its ApprovalPending was "
                "swallowed; when it is decided, enter the run again", self._run.id, still,
            )  # fmt: skip
            ending = Ending(event=RunEvent.PAUSE, reason="approval")
        orphans: list[CallRecord] = []
        if ending.event is RunEvent.COMPLETE and self._run.resumed:
            orphans = await backend.io(orphans_of, self._engine.store, self._run.record, self._course.asked)
            self._warn_of(orphans)
        if ending.event is RunEvent.COMPLETE and ((orphans and self._run.undo_orphans) or await self._sends(backend)):
            self._run.record = await completion.decide(
                self._engine, self._run.record, output=self._encoded_output(), orphans=orphans,
                undo=self._run.undo_orphans, backend=backend,
            )  # fmt: skip
            await self.finish(backend)
            return None
        text = self._course.aborted
        if error is not None:
            text = f"{type(error).__name__}: {spans.error_message(error) or ''}"
        self._run.record, report = await saga.leave(
            self._engine,
            self._run.record,
            ending,
            error=text,
            output=self._encoded_output(),
            orphans=completion.listed(orphans),
            backend=backend,
            span=self._span,
        )
        return report

    async def _look_into_doubts(self, error: BaseException | None, backend: Backend, until: float) -> bool:
        """Whether a doubt holds the run; asked only where there can be one."""
        failed = error is not None or self._course.aborted is not None
        if not failed and not self._course.uncertain and not self._run.in_flight:
            return False
        doubts = await saga.doubts_of(
            self._engine, self._run.record, backend, until=until if failed else 0.0,
            patient=self._would_be_undone(error) and not isinstance(error, OutcomeUnknown),
        )  # fmt: skip
        self._course.doubtful = doubts.blocking or doubts.open
        if not failed:
            return bool(doubts.open)
        elsewhere = self._course.forks != fork.forks() and await backend.io(
            saga.is_inside_nested, self._engine, self._run.record
        )
        return elsewhere or bool(doubts.blocking)

    async def _await_calls(self, backend: Backend, until: float) -> None:
        """Let calls in other threads or tasks end: an undo must not come before its action."""
        while self._run.in_flight and monotonic() < until:
            await backend.sleep(0.01)

    def _still_waits_for(self) -> str | None:
        """A request of this run that is not used up or ended; what was decided meanwhile is for the next entry."""
        found = (self._engine.store.approval(one) for one in sorted(self._course.waiting))
        return next((one.id for one in found if one is not None and one.state in OPEN), None)

    def _ending(self, error: BaseException | None, *, unresolved: bool, unsent: bool, pivoted: bool) -> Ending:
        return ending_of(
            error,
            aborted=self._course.aborted is not None,
            paused=self._course.paused and error is None,
            unresolved=unresolved,
            unsent=unsent,
            pivoted=pivoted,
            on_interrupt=self._run.record.on_interrupt,
            on_budget=self._course.on_budget,
            resumable=error is not None and error is self._course.resumable,
        )

    def _passed_pivot(self) -> CallRecord | None:
        return pivots.passed(self._engine.store, self._run.record)

    def _warn_of(self, orphans: Sequence[CallRecord]) -> None:
        if not orphans:
            return
        what = ", ".join(f"{call.tool} ({call.id})" for call in orphans)
        becomes = "undone" if self._run.undo_orphans else "kept (orphans='compensate' undoes them)"
        _log.warning(
            "run %r was resumed and took another path; done before, not asked for again, and %s: %s; %s",
            self._run.id, becomes, what, command("show", self._run.id),
        )  # fmt: skip

    async def _has_unsent(self, backend: Backend) -> bool:
        """Whether something that ``commit()`` let go is not sent."""
        return self._course.deferred and bool(await backend.io(completion.due, self._engine.store, self._run.record))

    async def _sends(self, backend: Backend) -> bool:
        """Whether completing this run sends what was deferred; what is nested waits for the outer run."""
        if not self._course.deferred and fork.forks() == self._course.forks:
            return False
        store, would = self._engine.store, replace(self._run.record, completing=True)
        if not await backend.io(completion.due, store, would):
            return False
        return not await backend.io(completion.waits_for_outer, store, self._run.record)

    async def finish(self, backend: Backend) -> None:
        """Go through with a run that is decided to complete."""
        self._run.record, self._course.stopped = await completion.finish(
            self._engine, self._run.record, in_force=self._run.in_force, backend=backend, span=self._span
        )

    async def send_due(self, backend: Backend) -> completion.Stopped | None:
        """Send what ``commit()`` let go; what stopped that, if anything did."""
        return await completion.send_due(self._engine, self._run.record, in_force=self._run.in_force, backend=backend)

    async def abort_now(self, backend: Backend) -> Undone | None:
        """Undo a run that nobody is inside of, whatever state it was left in; what never began needs nothing."""
        store, record = self._engine.store, self._run.record
        if not record.on_record:
            return None
        if await backend.io(store.get_run, record.namespace, record.id) is None:
            return None
        why = self._course.aborted or "aborted"
        report = await undo.undo_run(self._engine, record.id, reason="aborted", error=why, backend=backend)
        now = await backend.io(store.get_run, record.namespace, record.id)
        self._run.record = record if now is None else now
        return report

    def tell(self, error: BaseException | None, report: Undone | None) -> None:
        """Raise what the caller of the run must know, beside the ``error`` that it left by, or add it to that."""
        if self._course.stopped is not None:
            say(self._course.stopped.error, self._course.stopped.sentence(self._run.id))
            raise self._course.stopped.error
        if self._run.record.state is RunState.HELD and not self._run.replaying:
            forward = "its pivot is done, so it only goes forward: enter it again with the same id"
            why = forward if self._run.reason == PIVOT else "nothing was undone"
            left_by = error or self._course.doomed
            why = "; ".join((why, *self._undecided(left_by)))
            say(
                left_by,
                f"sagaspan: run {self._run.id!r} is held ({self._run.reason}): {why}; {command('show', self._run.id)}",
            )
        if report is not None:
            original = error or self._course.doomed
            if original is not None or not report.complete:
                say(original, report.sentence(self._run.id))
            if stuck := (*report.failed, *report.queued):
                raise CompensationFailed(report.sentence(self._run.id), call=stuck[0]) from original
        if error is None and self._course.doomed is not None:
            raise self._course.doomed

    def _undecided(self, error: BaseException | None) -> list[str]:
        """What must be decided before the run goes on, except what ``error`` itself says already."""
        told = error.call.id if isinstance(error, OutcomeUnknown) and error.call is not None else None
        return [undecided(call_info(call)) for call in self._course.doubtful if call.id != told]

    def _encoded_output(self) -> str | None:
        if self._run.output is None:
            return None
        try:
            return codecs.dump(live.scrubbed_data(codecs.to_json(self._run.output, hide=codecs.blank)))
        except codecs.Unencodable as problem:
            _log.warning("the output of run %r is not recorded: %s", self._run.id, problem)
            return None


def say(error: BaseException | None, sentence: str) -> None:
    """Tell whoever sees the error; where there is none, the log."""
    if error is not None:
        error.add_note(sentence)
    else:
        _log.warning("%s", sentence)
