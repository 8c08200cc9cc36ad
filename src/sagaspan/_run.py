"""A run: a ``with`` block whose steps are undone together, and resumed under the same id."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import os
import secrets
from collections.abc import Callable, Collection, Iterator
from contextvars import Token
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from opentelemetry import context as otel_context
from opentelemetry.trace import INVALID_SPAN, Span, set_span_in_context

from sagaspan import _completion as completion
from sagaspan import _live as live
from sagaspan import _owner as owner
from sagaspan import _reaper as reaper
from sagaspan import _run_spans as run_spans
from sagaspan import _saga as saga
from sagaspan import _spans as spans
from sagaspan import codecs, semconv
from sagaspan._backends import ASYNCIO, SYNC, Backend, run_sync
from sagaspan._call import Call, Purse, Result
from sagaspan._context import check_may_start, current_call, current_run
from sagaspan._in_flight import InFlight
from sagaspan._leaving import Course, Leaving, say
from sagaspan._numbers import Numbers
from sagaspan._orphans import orphans_of
from sagaspan._repeats import Asked, Asking, Repeats
from sagaspan._signals import Signals
from sagaspan._tool import Tool
from sagaspan._undone import Undone
from sagaspan._usage import Spending, spending_of
from sagaspan.exceptions import (
    BudgetExceeded,
    ConfigurationError,
    LoopDetected,
    Refused,
    RunClosed,
    RunInProgress,
    SagaspanError,
    ScopeFrozen,
    StoreError,
    StoreUnavailable,
)
from sagaspan.keys import KeySource, number_in, run_scope
from sagaspan.ledger.fail_open import unrecorded
from sagaspan.ledger.records import (
    CallInfo,
    CallRecord,
    CallState,
    Phase,
    RunRecord,
    RunState,
    call_info,
    moment,
    names_of,
)
from sagaspan.ledger.tasks import tasks_of
from sagaspan.scopes import run_and_tool, scope_of_run

if TYPE_CHECKING:
    from sagaspan._engine import Engine
    from sagaspan._making import Equal
    from sagaspan.budget import Budget

_log = logging.getLogger("sagaspan")


class Run:
    """One run of an agent; made by ``guard.run(...)``, entered with ``with`` or ``async with``.

    Leaving by an error compensates in reverse and raises the error again with a note of what was undone.
    """

    def __init__(
        self,
        engine: Engine,
        wanted: RunRecord,
        *,
        wait: float,
        reopen: bool,
        outer: Run | None = None,
        unnamed: bool = False,
        budget: tuple[Budget, ...] = (),
        on_budget: str = "compensate",
        undo_orphans: bool = False,
    ) -> None:
        self.engine = engine
        self.record = wanted
        self.resumed = False
        self.replaying = False
        self.output: Any = None
        self._wait = wait
        self._reopen = reopen
        self._outer = outer
        self._unnamed = unnamed
        self._course = Course(on_budget=on_budget)
        self.numbers = Numbers()
        self.repeats = Repeats()
        self._made_within: dict[str, Asked] = {}
        self.signals = Signals()
        self.purse: Purse = ((scope_of_run(wanted.id), budget), *(() if outer is None else outer.purse))
        self.was_entered = False
        self.undo_orphans = undo_orphans
        self._entered = False
        self._process = 0
        self._in_running_loop = False
        self._secrets: list[str] = []
        self._why_unrecorded = ""
        self.in_flight: InFlight = InFlight(wanted.id, None if outer is None else outer.in_flight)
        self._span: Span = INVALID_SPAN
        self._tokens: list[tuple[Token[Run | None], Any]] = []
        self._passed: tuple[Token[Run | None], Any] | None = None

    @classmethod
    def taken_over(cls, engine: Engine, record: RunRecord) -> Self:
        """The run of a process that died, to finish it: what its deferred bodies call is a step of it."""
        run = cls(engine, record, wait=0, reopen=False)
        run.resumed = run._entered = True
        return run

    # -- what users read ---------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The run's id, by which it is resumed."""
        return self.record.id

    @property
    def name(self) -> str:
        """The run's name."""
        return self.record.name

    @property
    def created(self) -> dt.datetime | None:
        """When it was first entered, once it is; None for a run that is not on record."""
        return moment(self.record.created_us) if self.record.on_record else None

    @property
    def status(self) -> RunState:
        """The run's state."""
        return self.record.state

    @property
    def reason(self) -> str | None:
        """Why it ended as it did, in one word; None while it runs or if it completed."""
        return self.record.reason

    @property
    def calls(self) -> tuple[CallInfo, ...]:
        """What the ledger has of this run's calls, in the order they were claimed."""
        if not self.record.on_record:
            return ()
        return tuple(call_info(call) for call in self.engine.store.calls_of(self.record.namespace, self.record.id))

    @property
    def usage(self) -> Spending:
        """What its own calls used so far, and what is left of its budget of money; see ``guard.usage(run=...)``.

        Raises ``StoreError``.
        """
        return spending_of(self.engine, {"run": self.id}, None, own=self.purse[0][1])

    @property
    def orphans(self) -> tuple[CallInfo, ...]:
        """Writes of a resumed run that were done before and not asked for again (so far, while it goes on)."""
        store = self.engine.store
        if self._entered and self.resumed and not self.replaying:
            return tuple(map(call_info, orphans_of(store, self.record, self._course.asked)))
        found = [store.get_call(call_id) for call_id in names_of(self.record.orphans)]
        return tuple(call_info(call) for call in found if call is not None)

    @property
    def _leaving(self) -> Leaving:
        return Leaving(self, self._course, self._span)

    @property
    def goes_on_from_before(self) -> bool:
        """Whether this run, or one it is nested in, was resumed."""
        return self.resumed or (self._outer is not None and self._outer.goes_on_from_before)

    # -- with --------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._in_running_loop = _loop_is_running()
        run_sync(self._enter(SYNC))
        self.activate()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.deactivate()
        error = self._told_apart(error)
        reaper.finalize(partial(self._leave_here, error))

    def _leave_here(self, error: BaseException | None) -> None:
        self._leaving.tell(error, run_sync(self._leave(error, SYNC)))

    async def __aenter__(self) -> Self:
        await self._enter(ASYNCIO)
        self.activate()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.deactivate()
        error = self._told_apart(error)
        if reaper.in_collection():  # nobody awaits the coroutine that is closed
            reaper.leave(partial(self._leave_here, error))
            return
        # An undo is not cancelled halfway: a second cancellation waits until it is over.
        finished = await ASYNCIO.to_the_end(self._leave(error, ASYNCIO))
        self._leaving.tell(error, finished.value)
        if finished.interrupted is not None and error is None:
            raise finished.interrupted

    def activate(self) -> None:
        """Make this the current run, and its span the current span, of the code that follows (for adapters)."""
        self._passed = context = None
        if self._span.get_span_context().is_valid:
            context = otel_context.attach(set_span_in_context(self._span))
        self._tokens.append((current_run.set(self), context))

    def deactivate(self) -> None:
        """Undo the latest ``activate``; in the same context as that one."""
        if not self._tokens:
            raise ConfigurationError(f"the run {self.id!r} is left but was not entered; write `with guard.run(...)`")
        self._passed = self._tokens.pop()
        # A generator may be closed late: a run that was entered after its own, and goes on, stays the current one.
        while (run := current_run.get()) is not None and run._steps_back():  # noqa: SLF001 - another run
            pass

    def _steps_back(self) -> bool:
        """Whether it was left, and is not the current run any more: the one before it is."""
        if self._passed is None:
            return False
        token, context = self._passed
        try:
            current_run.reset(token)
        except ValueError:  # left in another context than entered, as fixtures and web frameworks do
            return False
        self._passed = None
        if context is not None:
            otel_context.detach(context)
        return True

    # -- what users do -----------------------------------------------------------------------------------------

    def abort(self, why: object = "aborted") -> None:
        """Refuse further calls; leaving the block then undoes everything and raises nothing. ``why`` is recorded.

        Outside the block it undoes at once. Raises ``CompensationFailed`` if something could not be undone.
        """
        self._check_ours("it is not aborted here")
        self._course.aborted = _in_words(why)
        self.in_flight.close()
        if not self._entered:
            self._leaving.tell(None, run_sync(self._leaving.abort_now(SYNC)))

    async def aabort(self, why: object = "aborted") -> None:
        """As ``abort``, for asynchronous callers."""
        self._check_ours("it is not aborted here")
        self._course.aborted = _in_words(why)
        self.in_flight.close()
        if not self._entered:
            self._leaving.tell(None, await self._leaving.abort_now(ASYNCIO))

    def commit(self) -> None:
        """What was done up to here is not undone by a later error. Raises ``RunClosed`` outside the block."""
        run_sync(self._commit(SYNC))

    async def acommit(self) -> None:
        """As ``commit``, for asynchronous callers."""
        await self._commit(ASYNCIO)

    def pause(self) -> None:
        """Leaving the block pauses the run instead of completing it: nothing is undone, the same id goes on."""
        self._course.paused = True

    def go_on(self) -> None:
        """The agent that was paused in this block goes on in it (for adapters)."""
        self._course.paused = False

    def can_resume_after(self, error: BaseException) -> None:
        """Leaving by ``error`` interrupts the run: its framework goes on where that stopped it (for adapters)."""
        self._course.resumable = error

    def asks_again(self, asked: Collection[Equal]) -> None:
        """A framework begins a piece of work anew: its next calls that equal these are these (for adapters)."""
        self.numbers.again(asked)

    def task_begins(self, task: str) -> None:
        """The code of a task begins, named as by ``execution_here``, perhaps once more (for adapters).

        Then the calls that it makes now, and those of tasks within it, are those that it made before.
        """
        self.repeats.begins(task)
        if self._outer is not None:
            self._outer.task_begins(task)

    def tasks_are_over(self, is_over: Callable[[str], bool]) -> None:
        """What these tasks did in this incarnation, no code asks for again: their framework goes on after them."""
        self.repeats.over(is_over)

    def answered_elsewhere(
        self,
        tool_call_ids: Collection[str],
        until: dt.datetime | None = None,
        *,
        before: dt.datetime | None = None,
        is_over: Callable[[str], bool] | None = None,
    ) -> None:
        """Recorded calls that the framework's own checkpoint answers: an equal call is the next one (for adapters).

        Those are the ones with these ids, all that had ended ``before`` a time, and those made in a task that
        ``is_over``, as ``task_here`` named it. Nor are they orphans, nor is what ended by ``until``, when that
        checkpoint was made.
        """
        calls = self.engine.store.calls_of(self.record.namespace, self.record.id)
        scope = run_scope(self.record.id, self.record.generation)
        in_ended_task: set[str] = set()
        if is_over is not None:
            tasks = tasks_of(self.engine.store.audit_of(self.record.namespace, self.record.id))
            in_ended_task = {call_id for call_id, task in tasks.items() if is_over(task)}
        answered = [
            call
            for call in calls
            if call.tool_call_id in tool_call_ids
            or (
                call.scope == scope and (_ended_before(call, before) or (call.id in in_ended_task and _has_ended(call)))
            )
            if call.started_us < self.record.started_us and not self._course.asked.is_answered(call.id)
        ]
        for call in answered:
            if call.scope == scope and call.key_source == KeySource.CONTENT:
                self.numbers.over(call.tool, call.fingerprint, number_in(call.key))
        until_us = 0 if until is None else round(until.timestamp() * 1e6)
        self._course.asked.elsewhere([call.id for call in answered], until_us)

    # -- what the engine asks ----------------------------------------------------------------------------------

    def check_goes_on(self, tool: Tool) -> None:
        """Refuse a call that was let in and has only waited: what it would do now is not wanted any more.

        Raises ``RunClosed``.
        """
        self.in_flight.check_open(f"tool {tool.name!r} did not run")
        self._check_not_doomed(tool)

    def _check_not_doomed(self, tool: Tool) -> None:
        if self._course.doomed is not None:
            raise RunClosed(
                f"the run {self.id!r} stops: {_why_doomed(self._course.doomed)}; tool {tool.name!r} did not run",
                status=self.record.state,
            ) from self._course.doomed

    def check_open(self, tool: Tool, backend: Backend) -> None:
        """Refuse a call that this run cannot take; raises ``RunError`` or ``ConfigurationError``."""
        self._check_ours(f"tool {tool.name!r} did not run")
        aborted = self._course.aborted
        if aborted is not None or not self._entered:
            how = f"was aborted ({aborted})" if aborted else f"has ended ({self.record.state})"
            raise RunClosed(f"the run {self.id!r} {how}; tool {tool.name!r} did not run", status=self.record.state)
        self._check_not_doomed(tool)
        if backend.is_async and self._in_running_loop:
            raise ConfigurationError(
                f"tool {tool.name!r} is awaited inside a synchronous `with guard.run(...)` in a running event "
                "loop, which its "
                "rollback would block; use `async with`"
            )

    def check_on_record(self, tool: Tool) -> None:
        """Refuse what changes something in a run that is not on record; raises ``StoreUnavailable``."""
        self.writes()
        if not self.record.on_record:
            raise StoreUnavailable(
                f"tool {tool.name!r} did not run: its run {self.id!r} is not recorded, because the store was down when "
                f"it was entered ({self._why_unrecorded}); enter it again"
            )

    def keep_secret(self, values: tuple[str, ...]) -> None:
        """Look for ``values`` in every text until the outermost run is over: an error that leaves it may say them."""
        if not values:
            return
        if self._outer is not None:
            self._outer.keep_secret(values)
        else:
            self._secrets.extend(live.hold(values))

    def writes(self) -> None:
        """Something is about to be written in this run, and so in those around it, which undo it with theirs."""
        self._course.only_read = False
        if self._outer is not None:
            self._outer.writes()

    @property
    def inherited(self) -> bool:
        """Whether this process was forked inside the run: it is the parent's, and goes on there."""
        return self._entered and self._process != os.getpid()

    def _check_ours(self, what: str) -> None:
        if self.inherited:
            raise RunInProgress(
                f"the run {self.id!r} is that of the process this one was forked from, which would not undo what is "
                f"done here; {what}. Do it there, or in a run of this process, nested in that one: with guard.run(...)"
            )

    def did_not_happen(self, call: Call) -> None:
        """Its number is free again: the next equal call is this one, tried again, and so it is on a resume."""
        if call.key.source is KeySource.CONTENT:
            self.numbers.free(call)

    def was_not_asked(self, call: Call) -> None:
        """It was made only to see what it would be asked: the next equal call is this one."""
        self.did_not_happen(call)
        if call.asked is not None:
            self.repeats.unask(call.asked, again=call.again)

    def refused(self, call: Call, error: SagaspanError) -> None:
        """A call of this run has no result: it did not run, or its record says that it did and nothing more."""
        if isinstance(error, (Refused, StoreUnavailable)):
            self.did_not_happen(call)
        if _stops(error):
            self.doom(error)
        if error.call is not None and error.tool_ran != "no":
            self.asked_for(error.call.id, answered=True)

    def child_id(self, name: str) -> str:
        """The id of the next run nested in this one that is not given any."""
        name = name.replace("%", "%25").replace("/", "%2F").replace("#", "%23")  # a and b/c are not a/b and c
        if self.inherited:  # nobody counts for several processes
            return f"{self.id}/{name}@{secrets.token_hex(6)}"
        call = current_call.get()
        sent_with = None if call is None else call.sent_with if call.scheduled is None else call.id
        asking = Asking.here(self.repeats, None if call is None else call.id)
        known = None if asking is None else asking.number(("", name, sent_with))
        number = self.numbers.child(name, sent_with) if known is None else known
        # A reopened run starts over, so its nested runs are new ones too; so are those of a deferred body.
        again = f"~{self.record.generation}" if self.record.generation else ""
        child = f"{self.id}{again}/{f'{sent_with}/' if sent_with else ''}{name}#{number}"
        if asking is not None and asking.asked is not None:
            asking.counts(number)
            self._made_within[child] = asking.asked
        return child

    def waits_to_send(self) -> None:
        """A call was deferred in this run: it is sent when the outermost one completes."""
        self._course.deferred = True
        if self._outer is not None:
            self._outer.waits_to_send()

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        """Make this the current run within the block."""
        self.activate()
        try:
            yield
        finally:
            self.deactivate()

    def asked_for(self, call_id: str, *, answered: bool) -> None:
        """Remember that this incarnation came to a call: a commit from here on is one of it too, and it is no orphan.

        ``answered`` from its record, so that its body did not ask again for what it had called.
        """
        if self.resumed:
            self._course.asked.call(call_id, answered=answered)
        if self._outer is not None:
            self._outer.asked_for(call_id, answered=answered)

    def left_within(self, run_id: str, state: RunState) -> None:
        """A run nested in this one was left: code that is run again goes on with it, unless it failed or was undone."""
        asked = self._made_within.get(run_id)
        if asked is not None:
            asked.is_answered = state in (RunState.COMPLETED, RunState.PAUSED, RunState.HELD)

    def entered_within(self, run_id: str) -> None:
        """A run nested in this one was entered: its calls are its own matter."""
        self._course.asked.run(run_id)

    def saw(self, result: Result) -> None:
        """Remember that a call's outcome is not known: the run may have to be held."""
        if result.state is CallState.UNKNOWN:
            self._course.uncertain = True
            if self._outer is not None:
                self._outer.saw(result)

    def waits_for(self, approval_id: str) -> None:
        """A call of this run waits for a request: unless it is over by then, the run is not when its block is left.

        Whoever swallows ``ApprovalPending`` would else leave a request that nobody can make use of any more.
        """
        self._course.waiting.add(approval_id)
        if self._outer is not None:
            self._outer.waits_for(approval_id)

    def doom(self, error: BaseException) -> None:
        """A critical step failed: the run stops and is compensated even if somebody swallows ``error``.

        So does the run around it, if it is a budget of both that is used up; what the run itself was given, or its
        going in circles, is an error that the one around it may handle.
        """
        self._course.doomed = self._course.doomed or error
        shared = isinstance(error, BudgetExceeded | ScopeFrozen) and not self._is_own(error)
        if self._outer is not None and shared:
            self._outer.doom(error)

    def _is_own(self, error: BudgetExceeded | ScopeFrozen) -> bool:
        """Whether the scope of ``error`` is this run, or what counts one of its tools."""
        if isinstance(error, ScopeFrozen):
            return error.scope == f"run:{self.id}"
        return error.scope.startswith("run:") and run_and_tool(error.scope)[0] == self.id

    def _told_apart(self, error: BaseException | None) -> BaseException | None:
        """``error``, or None for the refusal of whoever went on in a run that stops: it stops for what stopped it."""
        doomed = self._course.doomed
        refused = isinstance(error, RunClosed) and doomed is not None and error.__cause__ is doomed
        return None if refused else error

    # -- entering and leaving ------------------------------------------------------------------------------------

    async def _enter(self, backend: Backend) -> None:
        check_may_start(f"the run {self.id!r}")
        if self._entered:
            raise ConfigurationError(f"the run {self.id!r} is entered already; make a new one with guard.run(...)")
        span = spans.start(self.engine.tracer, semconv.SPAN_RUN.format(run=self.name), run_spans.opening(self.record))
        self._process = os.getpid()
        reaper.be_ready()
        wanted = replace(self.record, owner=owner.this_process(), traceparent=spans.traceparent_of(span))
        try:
            entered = await self._open_inside(wanted, span, backend)
            output = _recorded_output(entered.record) if entered.replaying else None
        except BaseException as error:
            spans.end(span, {}, error)
            raise
        self.record, self.resumed, self.replaying = entered.record, entered.resumed, entered.replaying
        self._span, self._entered, self.was_entered = span, True, True
        if self._reopen and entered.previous is not None and entered.previous.state is RunState.COMPLETED:
            _log.warning("run %r was completed; with reopen=True it starts over, and does again what it did", self.id)
        if self._outer is not None:
            self._outer.entered_within(self.id)
        self._course.uncertain = self._course.deferred = entered.resumed
        self.engine.outside.open_runs += 1
        if output is not None:
            self.output = output
        if entered.previous is not None:
            _link(span, entered.previous)
        try:
            await self._take_up(entered, backend)
        except BaseException as error:  # nobody leaves a block that was not entered
            if isinstance(error, asyncio.CancelledError) and self._may_be_left:
                self._leaving.tell(error, (await ASYNCIO.to_the_end(self._leave(error, ASYNCIO))).value)
            else:
                self._over(error)
            raise

    @property
    def _may_be_left(self) -> bool:
        """Whether a cancellation that came while it was entered ends it, as one in the first line of its block would.

        One whose block had ended well is only finished, by the next who enters it or recovers.
        """
        return self.record.state is RunState.RUNNING and not self.record.completing and not self.replaying

    async def _take_up(self, entered: saga.Entered, backend: Backend) -> None:
        """Go on where an earlier worker was, unless whoever asked for that is not there any more."""
        if entered.interrupted is not None:
            raise entered.interrupted
        if self.resumed and not self.replaying:
            await backend.io(self.signals.load, self.engine.store, self.record, self.engine.counts_in_loops)
        if entered.previous is not None:
            await self._send_what_was_decided(backend)

    async def _send_what_was_decided(self, backend: Backend) -> None:
        """Go on where an earlier process stopped sending; raises, and holds the run again, if that does not work."""
        if self.record.completing:
            await self._leaving.finish(backend)
            self.output = _recorded_output(self.record)
        else:
            self._course.stopped = await self._leaving.send_due(backend)
            if self._course.stopped is not None:
                self.record = await completion.hold(self.engine, self.record, self._course.stopped, backend)
        if self._course.stopped is not None:
            say(self._course.stopped.error, self._course.stopped.sentence(self.id))
            raise self._course.stopped.error
        if self.record.state is RunState.COMPLETED:
            owner.drop(saga.token(self.engine.store, self.record))
            self.replaying = True

    def _over(self, error: BaseException | None) -> None:
        """Nobody is inside any more."""
        self._entered = False
        self.engine.outside.open_runs -= 1
        if not self.replaying and self.record.on_record:
            owner.drop(saga.token(self.engine.store, self.record))
        since_us = None if self.replaying else self.record.started_us
        run_spans.close(self._span, self.record, error, resumed=self.resumed, since_us=since_us)
        live.drop(self._secrets)
        self._secrets = []

    async def _open_inside(self, wanted: RunRecord, span: Span, backend: Backend) -> saga.Entered:
        """Open it; a run around that is being undone must not miss it."""
        if self._outer is None:
            return await self._open(wanted, span, backend)
        around = self._outer.in_flight
        entering = around.one()
        with entering:
            try:
                around.check_open(f"the run {self.id!r} was not entered")
                return await self._open(wanted, span, backend)
            finally:
                around.forget(entering)

    async def _open(self, wanted: RunRecord, span: Span, backend: Backend) -> saga.Entered:
        """Enter the run in the ledger; with ``fail_open`` and the store down it is entered nowhere, for reads only."""
        outage, outer = self.engine.outage, self._outer
        why = "the run it is in is not on record" if outer is not None and not outer.record.on_record else None
        if why is None:
            try:
                return await saga.enter(
                    self.engine, wanted, wait=self._wait, reopen=self._reopen, unnamed=self._unnamed,
                    outer=None if outer is None else outer.record, backend=backend,
                )  # fmt: skip
            except StoreUnavailable as error:
                if outage is None:
                    raise
                why = outage.began(error)
        _log.warning("run %r is not recorded (fail_open=True), so only reads run in it: %s", self.id, why)
        spans.mark(span, semconv.UNRECORDED)
        self._why_unrecorded = why
        return saga.Entered(record=unrecorded(wanted))

    async def _commit(self, backend: Backend) -> None:
        self._check_ours("nothing is committed here")
        if not self._entered:
            raise RunClosed(
                f"the run {self.id!r} has ended ({self.status}); there is nothing to commit", status=self.status
            )
        if self.replaying or not self.record.on_record:
            return
        asked = self._course.asked if self.resumed else None
        self.record = await saga.commit(self.engine, self.record, asked=asked, backend=backend)
        if self._course.deferred:
            stopped = await self._leaving.send_due(backend)
            if stopped is not None:
                say(stopped.error, stopped.sentence(self.id))
                raise stopped.error

    async def _leave(self, error: BaseException | None, backend: Backend) -> Undone | None:
        if self.inherited:  # a child unwinds its parent's block: how that run ends is decided there
            return None
        if self._outer is None:
            try:
                return await self._leave_as(error or self._course.doomed, backend)
            finally:
                self.engine.first_end()
        around = self._outer.in_flight
        leaving = around.one()
        with leaving:  # two rollbacks, its own and that of the run around, must not meet
            try:
                return await self._leave_as(error or self._course.doomed, backend)
            finally:
                self._outer.left_within(self.id, self.record.state)
                around.forget(leaving)

    async def _leave_as(self, error: BaseException | None, backend: Backend) -> Undone | None:
        try:
            with spans.current(self._span):
                if not self.record.on_record:
                    self._end_unrecorded(error)
                elif not self.replaying:
                    return await self._leaving.end_or_let_go(error, backend)
                elif self._course.aborted is not None:
                    return await self._leaving.abort_now(backend)
                return None
        finally:
            self._over(error or (self._course.stopped.error if self._course.stopped else None))

    def _end_unrecorded(self, error: BaseException | None) -> None:
        """Nothing was written in it, so nothing is undone."""
        failed = error is not None or self._course.aborted is not None
        self.record = replace(self.record, state=RunState.FAILED if failed else RunState.COMPLETED)


def _recorded_output(record: RunRecord) -> Any:
    try:
        return None if record.output is None else codecs.decode(record.output)
    except codecs.Undecodable as problem:
        raise StoreError(
            f"the run {record.id!r} is completed, but its recorded output cannot be read: {problem}; nothing ran"
        ) from problem


def _in_words(why: object) -> str:
    """The reason that was given: an emergency brake works for an error, and for nothing."""
    text = "" if why is None else str(why)
    return text or ("aborted" if why is None or isinstance(why, str) else type(why).__name__)


@spans.harmless(None)
def _link(span: Span, previous: RunRecord) -> None:
    """A resumed run is a new trace, linked to the one it goes on from."""
    for link in spans.link_to(previous.traceparent, semconv.LINK_RESUMES) or ():
        span.add_link(link.context, link.attributes)


def _stops(error: SagaspanError) -> bool:
    """Whether a refusal ends the run, whoever handles it."""
    if isinstance(error, BudgetExceeded):
        return not error.in_flight
    return (isinstance(error, LoopDetected) and error.stops) or (isinstance(error, ScopeFrozen) and error.pauses)


def _ended_before(call: CallRecord, time: dt.datetime | None) -> bool:
    """Whether a call had happened by then, or nobody knows; what failed is made again under the same key."""
    is_known = call.ended_us is not None and _has_ended(call)
    return is_known and time is not None and (call.ended_us or 0) < time.timestamp() * 1e6


def _has_ended(call: CallRecord) -> bool:
    """Whether a call happened or waits to be sent, or nobody knows; what failed is made again under the same key."""
    is_known = call.ended_us is not None or call.state is CallState.SCHEDULED
    return is_known and call.phase is Phase.FORWARD and call.state is not CallState.FAILED


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _why_doomed(error: BaseException) -> str:
    if isinstance(error, BudgetExceeded):
        return f"the budget of {error.scope!r} is used up"
    if isinstance(error, ScopeFrozen):
        return "somebody has paused it"
    why = "it goes in circles" if isinstance(error, LoopDetected) else "a critical step failed"
    return f"{why} ({type(error).__name__})"
