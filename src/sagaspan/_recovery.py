"""Going on after processes that died: their runs are held or undone, their calls are in doubt (rule book (b) 10).

Every run is taken by compare-and-set under the next epoch, so any number of recoverers act once, and the old owner is
fenced should it come back. Who meets another recoverer at a run waits for nothing, and goes on elsewhere. What needs a
tool that this process does not have is left for one that has it.
"""

from __future__ import annotations

import datetime as dt
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from sagaspan import _completion as completion
from sagaspan import _owner as owner
from sagaspan import _run_spans as run_spans
from sagaspan import _saga as saga
from sagaspan import codecs, semconv
from sagaspan._alone import undo_alone
from sagaspan._backends import Backend
from sagaspan._checks import check_count
from sagaspan._clock import monotonic, now_us
from sagaspan._commands import command
from sagaspan._durations import microseconds
from sagaspan._endings import PIVOT, Ending
from sagaspan._retries import ONCE, due_us
from sagaspan._run import Run
from sagaspan._session import end_session
from sagaspan._steps import Steps, steps_of
from sagaspan._undone import Undone
from sagaspan.exceptions import StoreUnavailable
from sagaspan.ledger import pivots
from sagaspan.ledger.in_doubt import earliest_sent_us, history
from sagaspan.ledger.judgement import LOST, Verdict
from sagaspan.ledger.records import (
    CallInfo,
    CallRecord,
    CallState,
    Phase,
    RunInfo,
    RunRecord,
    RunState,
    call_info,
    run_info,
)
from sagaspan.ledger.resolution import IN_DOUBT, permitted
from sagaspan.ledger.transitions import CallEvent, RunEvent

if TYPE_CHECKING:
    from sagaspan._engine import Engine

_log = logging.getLogger("sagaspan")
_ACTED: Final = ("completed", "compensated", "held", "needs_human")
_ENTERED: Final = (RunState.RUNNING, RunState.COMPENSATING)
"""States of a run that somebody is, or was, inside of."""
_WANTED_UNDOING: Final = ("error", "aborted", "budget", "loop")
"""Why a run is held that would have been undone at once, had no write been in doubt."""

Progress = Callable[[RunInfo | CallInfo, str], None]
"""Told of each run, or call that is undone alone, and what became of it (as the fields of ``Recovery`` are called)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What a recovery did, or would do; each run is in one of the lists.

    ``completed``: it had ended well, and what was deferred in it is sent now. ``compensated``: undone. ``held``: waits
    for somebody to enter it again. ``needs_human``: a write is in doubt, could not be undone or, deferred, not be sent.
    ``queued``: a tool is not registered in this process, so it waits for one that has it. ``waiting``: a compensation
    failed and is tried again later. ``in_doubt``: calls found without their process. ``alone``: calls that were to be
    undone by themselves, as they are now: ``compensated``, ``compensation_failed``, or ``compensating`` if they wait
    for a process that has the compensation.
    """

    completed: tuple[RunInfo, ...] = ()
    compensated: tuple[RunInfo, ...] = ()
    held: tuple[RunInfo, ...] = ()
    needs_human: tuple[RunInfo, ...] = ()
    queued: tuple[RunInfo, ...] = ()
    waiting: tuple[RunInfo, ...] = ()
    in_doubt: tuple[CallInfo, ...] = ()
    alone: tuple[CallInfo, ...] = ()

    def __bool__(self) -> bool:
        return any(
            (
                self.completed,
                self.compensated,
                self.held,
                self.needs_human,
                self.queued,
                self.waiting,
                self.in_doubt,
                self.alone,
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lost:
    """A run without its process: what is known of that, and whether it is to be undone.

    ``inside`` are the runs nested in it that were lost with it, newest first: they are taken with it, by one worker.
    """

    run: RunRecord
    verdict: Verdict
    undo: bool
    inside: tuple[_Lost, ...] = ()


class Recoverer:
    """Recovers the runs of one guard; ``stop`` is asked between two of them."""

    def __init__(
        self,
        engine: Engine,
        backend: Backend,
        *,
        progress: Progress = lambda _, __: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._engine = engine
        self._store = engine.store
        self._backend = backend
        self._progress = progress
        self._stop = stop
        self._met = False  # another recoverer, at the run in hand

    async def __call__(
        self, *, older_than: float | dt.timedelta | None, limit: int | None, dry_run: bool, watch: bool
    ) -> Recovery:
        """Recover what there is; see ``Guard.recover``. With ``watch`` leases elsewhere are watched to their end."""
        age_us = _age_us(older_than)
        if limit is not None:
            check_count("limit", limit, least=1)
        if self._engine.codec is not None and not dry_run:  # once, and not as what is wrong with each run
            await self._engine.spelling.prove_codec(self._backend)
        if watch and not dry_run:
            await self._watch_leases()
        found: dict[str, list[RunInfo]] = {}
        due = await self._backend.io(self._find, age_us)
        while due:
            if self._stop() or (limit is not None and sum(len(found.get(name, ())) for name in _ACTED) >= limit):
                break
            lost, *due = due
            self._met = False
            done = await self._apart(lost, dry_run=dry_run)
            if self._met:
                due = await self._backend.io(self._elsewhere, due)
            for run, outcome in done:
                info = await self._backend.io(self._info, run)
                found.setdefault(outcome, []).append(info)
                self._progress(info, outcome)
        return Recovery(
            **{name: tuple(runs) for name, runs in found.items()},
            in_doubt=await self._calls_in_doubt(age_us, dry_run=dry_run),
            alone=await undo_alone(
                self._engine, self._backend, progress=self._progress, stop=self._stop, dry_run=dry_run
            ),
        )

    # -- what there is -----------------------------------------------------------------------------------------

    def _find(self, age_us: int) -> list[_Lost]:
        """Runs to act on. One nested in a run that goes on is left until that one is over: it may yet undo it."""
        mine = self._unfinished()
        verdicts = self._verdicts(mine)
        open_ids = set(verdicts)
        lost = [
            self._lost(run, mine, verdicts, undo=_is_undone(run))
            for run in mine
            if verdicts[run.id] is not Verdict.ALIVE and run.parent_id not in open_ids and self._is_old(run, age_us)
        ]
        return [*lost, *(_Lost(run=run, verdict=Verdict.DEAD, undo=True) for run in self._left_behind())]

    def _unfinished(self) -> list[RunRecord]:
        return [run for run in self._store.unfinished_runs() if run.namespace == self._engine.namespace]

    def _verdicts(self, runs: Sequence[RunRecord]) -> dict[str, Verdict]:
        """What is known of who holds each run; of another process it is the same for all that it holds."""
        judged: dict[str, Verdict] = {}
        verdicts: dict[str, Verdict] = {}
        for run in runs:
            who = saga.token(self._store, run) if owner.is_self(run.owner) else run.owner
            if who not in judged:
                judged[who] = self._engine.judge.verdict(run.owner, saga.token(self._store, run))
            verdicts[run.id] = judged[who]
        return verdicts

    def _elsewhere(self, due: Sequence[_Lost]) -> list[_Lost]:
        """Others recover, too: without what they have taken meanwhile, and from another place on than they."""
        now = {run.id: run.version for run in self._unfinished()}
        gone = {lost.run.id for lost in due if lost.run.state in _ENTERED} - now.keys()
        runs = ((lost, lost.run) for lost in due if lost.run.id not in gone)
        left = [lost for lost, run in runs if now.get(run.id, run.version) == run.version]
        place = random.randrange(len(left)) if left else 0  # noqa: S311 - no secret
        return [*left[place:], *left[:place]]

    def _lost(self, run: RunRecord, mine: list[RunRecord], verdicts: dict[str, Verdict], *, undo: bool) -> _Lost:
        """``run`` with what is nested in it, which is undone if it is: as the outermost one says."""
        inside = tuple(
            self._lost(inner, mine, verdicts, undo=undo)
            for inner in mine
            if inner.parent_id == run.id and verdicts[inner.id] is not Verdict.ALIVE
        )
        return _Lost(run=run, verdict=verdicts[run.id], undo=undo, inside=inside)

    def _left_behind(self) -> Iterator[RunRecord]:
        """Runs that nobody is inside of and that go on by themselves: a doubt is over, an undo is tried again."""
        held = self._store.list_runs(states=[RunState.HELD], limit=10_000)
        mine = (run for run in held if run.namespace == self._engine.namespace)
        askable = self._held_runs_to_ask()
        yield from (run for run in mine if run.completing or wanted_undoing(run) or run.id in askable)
        seen = set()
        for step in self._store.calls_in(CallState.COMPENSATION_FAILED):
            run = self._rolled_back_run(step)
            if run is not None and run.id not in seen:
                seen.add(run.id)
                yield run

    def _held_runs_to_ask(self) -> set[str]:
        """Runs with a call in doubt whose probe is here: who held them may not have had it, or it was unsure."""
        in_doubt = (call for state in IN_DOUBT for call in self._store.calls_in(state))
        mine = (call for call in in_doubt if call.namespace == self._engine.namespace)
        return {call.run_id for call in mine if self._engine.known.find_probe(call) is not None}

    def _rolled_back_run(self, step: CallRecord) -> RunRecord | None:
        """The run whose rollback could not undo ``step``: the outermost one that was rolled back with it."""
        if step.namespace != self._engine.namespace:
            return None
        found, run = None, self._store.get_run(step.namespace, step.run_id)
        while run is not None and run.state is RunState.PARTIALLY_COMPENSATED:
            found, run = run, self._store.get_run(run.namespace, run.parent_id) if run.parent_id else None
        return found

    def _is_old(self, run: RunRecord, age_us: int) -> bool:
        if not age_us:
            return True
        lease = self._store.lease_of(run.owner)
        seen = max(run.started_us, lease.renewed_us if lease else 0)
        return now_us() - seen >= age_us

    async def _watch_leases(self) -> None:
        """Wait until leases that look over, of owners elsewhere, have stood still for long enough to be sure."""
        deadline = monotonic() + await self._backend.io(self._seconds_to_watch)  # one that lives is seen to beat
        while not self._stop() and (left := deadline - monotonic()) > 0:
            await self._backend.sleep(min(left, 1.0))

    def _seconds_to_watch(self) -> float:
        holders = {run.owner for run in self._store.unfinished_runs() if run.namespace == self._engine.namespace}
        holders |= {call.owner for call in self._store.calls_in(CallState.RUNNING)}
        unproved = [holder for holder in holders if owner.proof(holder, "") is owner.Proof.NONE]
        return max(map(self._engine.judge.seconds_to_watch, unproved), default=0.0)

    # -- what becomes of it -----------------------------------------------------------------------------------

    async def _apart(self, lost: _Lost, *, dry_run: bool) -> list[tuple[RunRecord, str]]:
        """What becomes of one run; one that breaks recovery, damaged, say, keeps nobody from the others."""
        try:
            return await (self._foresee(lost) if dry_run else self._act(lost))
        except StoreUnavailable:
            raise
        except Exception:  # noqa: BLE001 - whatever is wrong with it
            _log.exception(
                "run %r could not be recovered; the others are. See: %s", lost.run.id, command("show", lost.run.id)
            )
            return [(lost.run, "needs_human")]

    async def _act(self, lost: _Lost) -> list[tuple[RunRecord, str]]:
        """Do what is due to a run; returns it and those inside it, each with the list it goes to.

        Empty if somebody else has it, or nothing is due.
        """
        run = lost.run
        try:
            if run.state is RunState.HELD:
                outcome = await (self._finish_held(run) if run.completing else self._end_held(run))
            elif run.state is RunState.PARTIALLY_COMPENSATED:
                outcome = await self._undo_again(run)
            elif run.is_session:
                if lost.verdict is Verdict.DEAD:  # one that is only expired may come back, and go on in it
                    await self._backend.io(end_session, self._store, run)
                return []
            else:
                return await self._take(lost)
        except StoreUnavailable as error:
            await self._backend.io(self._store.get_run, run.namespace, run.id)  # raises if it really is
            _log.warning("run %r was left to another worker: %s", run.id, error)
            return []
        return [] if outcome is None else [(run, outcome)]

    async def _take(self, lost: _Lost) -> list[tuple[RunRecord, str]]:
        run = lost.run
        if lost.undo and await self._backend.io(self._lacks, run):
            return [(one.run, "queued") for one in _all_of(lost)]
        if await self._backend.io(self._lacks_tools, run):
            return [(run, "queued")]
        taken = await saga.take_over(self._engine, run, LOST[lost.verdict], self._backend)
        if taken is None:
            self._met = True
            return []
        try:
            inside = [done for inner in lost.inside for done in await self._act(inner)]
            act = self._finish(taken) if run.state is RunState.COMPENSATING else self._end(taken, lost)
            outcome = await self._in_span(taken, act)
        finally:
            owner.drop(saga.token(self._store, run))
        return [*inside, (run, outcome)]

    async def _finish(self, taken: RunRecord) -> str:
        """Go on with a rollback that died."""
        left = self._not_due(await self._backend.io(steps_of, self._store, taken))
        after, undone = await saga.roll_back(
            self._engine, taken, backend=self._backend, span=self._engine.span_here, again=ONCE, left=left
        )
        return await self._outcome(after, undone)

    async def _end(self, taken: RunRecord, lost: _Lost) -> str:
        """End a run that was interrupted, as its ``on_interrupt`` says."""
        for call in await self._backend.io(self._store.calls_of, taken.namespace, taken.id):
            if call.state is CallState.RUNNING and call.phase is Phase.FORWARD:
                await self._engine.resolve_in_doubt(call, self._backend)
        if taken.completing:
            return await self._complete(taken)
        stopped = await completion.send_due(self._engine, taken, in_force=self._in_force(taken), backend=self._backend)
        if stopped is not None:  # what ``commit()`` let go must be sent before anything else is decided
            await completion.hold(self._engine, taken, stopped, self._backend)
            return "needs_human"
        doubts = await saga.doubts_of(self._engine, taken, self._backend)
        pivoted = await self._backend.io(pivots.passed, self._store, taken) is not None
        undo = lost.undo and not doubts.blocking and not pivoted
        # A run that would be undone keeps that wish while it is held for a doubt (``wanted_undoing``).
        reason = "unresolved" if doubts.open and not lost.undo else PIVOT if pivoted and lost.undo else "interrupted"
        ending = Ending(event=RunEvent.COMPENSATE if undo else RunEvent.HOLD, reason=reason)
        after, undone = await saga.leave(
            self._engine, taken, ending, error=LOST[lost.verdict], output=None, backend=self._backend,
            span=self._engine.span_here,
        )  # fmt: skip
        if undone is None:
            return "needs_human" if doubts.open else "held"
        return await self._outcome(after, undone)

    async def _complete(self, taken: RunRecord) -> str:
        """Send what was deferred in a run that has ended well."""
        _, stopped = await completion.finish(
            self._engine, taken, in_force=self._in_force(taken), backend=self._backend, span=self._engine.span_here
        )
        if stopped is None:
            return "completed"
        return "queued" if stopped.queued else "needs_human"

    async def _finish_held(self, run: RunRecord) -> str | None:
        """Go on with sending, once what stopped it is decided."""
        if await self._is_blocked(run, ask=True):
            return None  # it was reported when it was held; ``sagaspan status`` shows it
        if await self._backend.io(self._lacks_tools, run):
            return "queued"
        taken = await saga.take_over(self._engine, run, "what stopped it is decided", self._backend, reason=None)
        if taken is None:
            self._met = True
            return None
        try:
            return await self._in_span(taken, self._complete(taken))
        finally:
            owner.drop(saga.token(self._store, run))

    async def _in_span(self, taken: RunRecord, act: Awaitable[str]) -> str:
        return await run_spans.going_on(self._engine, taken, semconv.BY_RECOVERY, self._backend, act)

    async def _is_blocked(self, run: RunRecord, *, ask: bool) -> bool:
        """Whether a call of a held run waits for a person, or for its next attempt to be undone.

        ``ask`` the probes of deferred ones in doubt first.
        """
        orphans = await self._backend.io(completion.orphans_to_undo, self._store, run)
        if any(call.state is CallState.COMPENSATION_FAILED for call in orphans):
            return True
        for call in await self._backend.io(completion.due, self._store, run):
            if ask:
                call = await self._engine.resolve_in_doubt(call, self._backend)
            if await self._backend.io(self._blocks, call):
                return True
        return False

    def _blocks(self, call: CallRecord) -> bool:
        if call.state is CallState.SCHEDULED:
            return not (codecs.is_encrypted(call.arguments) or completion.is_readable(call))
        if call.state not in (CallState.FAILED, *IN_DOUBT):
            return False
        rows = history(self._store, call)
        if call.state is CallState.FAILED:  # the service said no; or a probe or a person, that it never got it
            return rows[-1].event != CallEvent.DISPROVE
        tool = self._engine.known.find_deferred(call)
        harmless = tool is not None and (
            tool.policy.rerunnable or tool.policy.may_resend(earliest_sent_us(call, rows), now_us())
        )
        return not (harmless or permitted(rows))

    def _in_force(self, taken: RunRecord) -> completion.InForce:
        return Run.taken_over(self._engine, taken).in_force

    async def _end_held(self, run: RunRecord) -> str | None:
        """Undo a run that was held for a doubt, once that is over; of one that goes on only the probes are asked."""
        doubts = await saga.doubts_of(self._engine, run, self._backend)
        if not wanted_undoing(run):
            return None if doubts.open else "held"
        if doubts.blocking or await self._backend.io(pivots.passed, self._store, run) is not None:
            return None  # it was reported when it was held; ``sagaspan status`` shows it
        return await self._undo_again(run)

    async def _undo_again(self, run: RunRecord) -> str | None:
        """Undo what is due of a run that nobody is inside of."""
        steps = await self._backend.io(steps_of, self._store, run)
        left = await self._backend.io(self._not_due, steps)
        due = [step for step in steps.undoable if step.id not in left]
        if run.state is RunState.PARTIALLY_COMPENSATED and not due:
            return await self._tried_later(steps)
        if due and self._engine.known.find_compensation(due[0]) is None:
            return "queued"
        ended = await saga.take_and_roll_back(
            self._engine, run, self._backend, by=semconv.BY_RECOVERY, again=ONCE, left=left
        )
        return None if ended is None else await self._outcome(*ended)

    async def _outcome(self, run: RunRecord, undone: Undone) -> str:
        """The list of a run that was rolled back as far as it goes now."""
        if undone.queued:
            return "queued"
        if run.state is not RunState.PARTIALLY_COMPENSATED:
            return "compensated"
        return await self._tried_later(await self._backend.io(steps_of, self._store, run)) or "needs_human"

    async def _tried_later(self, steps: Steps) -> str | None:
        failed = [step for step in steps.undoable if step.state is CallState.COMPENSATION_FAILED]
        again = [await self._backend.io(due_us, self._store, self._engine.judge, step) for step in failed]
        return "waiting" if any(due is not None for due in again) else None

    async def _foresee(self, lost: _Lost) -> list[tuple[RunRecord, str]]:
        """What ``_act`` would return, without doing anything."""
        inside = [done for inner in lost.inside for done in await self._foresee(inner)]
        outcome = None if lost.run.is_session else await self._foreseen(lost)
        return inside if outcome is None else [*inside, (lost.run, outcome)]

    async def _foreseen(self, lost: _Lost) -> str | None:
        run = lost.run
        if run.completing:
            if await self._is_blocked(run, ask=False):
                return None if run.state is RunState.HELD else "needs_human"
            return "queued" if await self._backend.io(self._lacks_tools, run) else "completed"
        steps = await self._backend.io(steps_of, self._store, run)
        doubts = steps.unresolved
        if lost.undo:
            doubts = await self._backend.io(saga.blocking, self._engine, steps, doubts)
        if doubts and run.state is not RunState.COMPENSATING:
            return None if run.state is RunState.HELD else "needs_human"
        if not lost.undo:
            return "held"
        if run.state is RunState.HELD and not wanted_undoing(run):
            return None
        if await self._backend.io(pivots.passed, self._store, run) is not None:
            return None if run.state is RunState.HELD else "held"
        left = await self._backend.io(self._not_due, steps)
        due = [step for step in steps.undoable if step.id not in left]
        if run.state is RunState.PARTIALLY_COMPENSATED and not due:
            return await self._tried_later(steps)
        return "queued" if any(self._engine.known.find_compensation(step) is None for step in due) else "compensated"

    # -- details -----------------------------------------------------------------------------------------------

    def _lacks(self, run: RunRecord) -> bool:
        """Whether this process cannot undo all of a run: then it does not begin, so that another one does it whole.

        What was begun goes on as far as it can.
        """
        missing = [self._engine.known.find_compensation(step) is None for step in steps_of(self._store, run).expected]
        return any(missing[:1] if run.state is RunState.COMPENSATING else missing)

    def _lacks_tools(self, run: RunRecord) -> bool:
        """Whether this process cannot send all that is due of a run: one that has the tools does it whole."""
        return run.state is not RunState.COMPENSATING and bool(_to_send(self._engine, run))

    def _not_due(self, steps: Steps) -> set[str]:
        """The steps that could not be undone and are not tried again, or not yet."""
        failed = [step for step in steps.undoable if step.state is CallState.COMPENSATION_FAILED]
        due = {step.id: due_us(self._store, self._engine.judge, step) for step in failed}
        now = now_us()
        return {step_id for step_id, at in due.items() if at is None or at > now}

    async def _calls_in_doubt(self, age_us: int, *, dry_run: bool) -> tuple[CallInfo, ...]:
        """Running calls without their process, also of runs that go on and of the session: each is in doubt now."""
        found = []
        for call in await self._backend.io(self._store.calls_in, CallState.RUNNING):
            mine = call.namespace == self._engine.namespace and call.phase is Phase.FORWARD
            if not mine or (age_us and now_us() - call.started_us < age_us):
                continue
            if await self._backend.io(self._engine.judge.is_over, call.owner, call.id):
                found.append(call if dry_run else await self._engine.resolve_in_doubt(call, self._backend))
        return tuple(map(call_info, found))

    def _info(self, run: RunRecord) -> RunInfo:
        current = self._store.get_run(run.namespace, run.id) or run
        return run_info(current, tuple(map(call_info, self._store.calls_of(run.namespace, run.id))))


def lacking(engine: Engine, run: RunRecord) -> list[str]:
    """What it takes to go on with a run and ``engine`` has not: names of compensations, and of tools to send with.

    A stored name is only looked up among those registered, never imported; one that nobody has any more waits for ever.
    """
    steps = steps_of(engine.store, run).expected if not run.completing else ()
    undone_by = {step.compensate or step.tool for step in steps if engine.known.find_compensation(step) is None}
    return sorted(undone_by | _to_send(engine, run))


def _to_send(engine: Engine, run: RunRecord) -> set[str]:
    orphans = completion.orphans_to_undo(engine.store, run) if run.completing else []
    undone_by = {call.compensate or call.tool for call in orphans if engine.known.find_compensation(call) is None}
    due = completion.due(engine.store, run)
    return undone_by | {call.tool for call in due if engine.known.find_deferred(call) is None}


def _all_of(lost: _Lost) -> Iterator[_Lost]:
    for inner in lost.inside:
        yield from _all_of(inner)
    yield lost


def _is_undone(run: RunRecord) -> bool:
    if run.state is RunState.COMPENSATING:
        return True
    return run.on_interrupt == "compensate" and not run.completing


def wanted_undoing(run: RunRecord) -> bool:
    """Whether a held run is undone by recovery, once nothing in it is in doubt."""
    return run.reason in _WANTED_UNDOING or (run.reason == "interrupted" and run.on_interrupt == "compensate")


def _age_us(older_than: float | dt.timedelta | None) -> int:
    if older_than is None:
        return 0
    return microseconds(older_than, "older_than")


def merged(reports: Iterable[Recovery]) -> Recovery:
    """Several reports as one."""
    whole = Recovery()
    for report in reports:
        whole = replace(
            whole,
            completed=whole.completed + report.completed,
            compensated=whole.compensated + report.compensated,
            held=whole.held + report.held,
            needs_human=whole.needs_human + report.needs_human,
            queued=whole.queued + report.queued,
            waiting=whole.waiting + report.waiting,
            in_doubt=whole.in_doubt + report.in_doubt,
            alone=whole.alone + report.alone,
        )
    return whole
