"""Running a body: with its call in force, within its timeout, again only where that is safe (rule book (g) 1)."""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
import random
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Final

from opentelemetry.trace import Span, use_span

from sagaspan import _fork as fork
from sagaspan import _metrics as metrics
from sagaspan import _owner as owner
from sagaspan import _spans as spans
from sagaspan._backends import BodyTimeout
from sagaspan._call import Call
from sagaspan._clock import now_us
from sagaspan._commands import command, resolve_command
from sagaspan._context import call_in_force
from sagaspan._outcome import outcome_of
from sagaspan._tool import INJECTED
from sagaspan.exceptions import ApprovalPending, ConfigurationError, OutcomeUnknown, ToolTimeout
from sagaspan.ledger.records import CallRecord, CallState, Phase
from sagaspan.policy import Retry

_log = logging.getLogger("sagaspan")

NextAttempt = Callable[[], Awaitable[None]]
"""Records that another attempt starts."""

Late = Callable[[Any], None]
"""Told the value of a body that ended after its timeout."""

Gone = Callable[[], None]
"""Told that a body ended after its timeout, without a value."""

SaveMark = Callable[[], None]
"""Records that the request is sent next; raises if it must not be."""


_WATCH: Final = "watch:"


def body_token(call_id: str) -> str:
    """What this process holds while a body of this call runs, also one that nobody waits for any more."""
    return f"body:{call_id}"


def watch_token(call_id: str) -> str:
    """What this process holds from when nobody waits for a body any more until its end is recorded."""
    return f"{_WATCH}{call_id}"


def watched() -> frozenset[str]:
    """The tokens of all such bodies of this process: each may still write to the ledger that its call is in."""
    return owner.held(_WATCH)


class _Running:
    """One attempt's body: whether it runs, and whom its end is told when nobody waits for it any more.

    It counts as running from before its first statement, since it may be given up before that.
    """

    __slots__ = ("_call_id", "_gone", "_late", "_work", "watched")

    def __init__(self, call_id: str, late: Late, gone: Gone) -> None:
        self._call_id = call_id
        self._work = owner.Work(body_token(call_id))
        self._late = late
        self._gone = gone
        self.watched = False

    def begins(self) -> None:
        """It runs, until it is ``over``."""
        self._work.begin()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.over()

    def over(self) -> None:
        """It does not run any more, or never will."""
        self._work.end()

    def given_up(self) -> None:
        """From now on its end is evidence."""
        self.watched = True
        owner.hold(watch_token(self._call_id))

    def ended(self, body: Future[Any] | asyncio.Future[Any]) -> None:
        """It ended after it was given up: that is recorded, and then over."""
        try:
            self.over()
            if not body.cancelled() and body.exception() is None:
                self._late(body.result())
            else:
                self._gone()
        finally:
            owner.drop(watch_token(self._call_id))


def goes_on(record: CallRecord) -> bool:
    """Whether a body of this call runs in this process, or its end is still to be recorded."""
    tokens = body_token(record.id), watch_token(record.id)
    return owner.is_self(record.owner) and any(not owner.provably_dead(record.owner, token) for token in tokens)


class UntilSettled:
    """Keeps what comes late until the call that it belongs to is settled."""

    __slots__ = ("_kept", "_lock")

    def __init__(self) -> None:
        self._kept: list[Callable[[], None]] | None = []
        self._lock = threading.Lock()

    def keep(self, step: Callable[[], None]) -> bool:
        """Keep ``step`` until the call is settled; False if it is."""
        with self._lock:
            if self._kept is None:
                return False
            self._kept.append(step)
            return True

    def settled(self) -> list[Callable[[], None]]:
        """What was kept; from now on nothing is."""
        with self._lock:
            kept, self._kept = self._kept or [], None
        return kept


class _Mark:
    """The second mark of one attempt: one that was given up cannot send any more."""

    def __init__(self, call: Call, save: Callable[[], None], may_send: Callable[[], bool]) -> None:
        self._call = call
        self._save = save
        self._may_send = may_send
        self._lock = fork.new_lock()
        self._sent = False
        self._given_up = False

    def __call__(self) -> None:
        with self._lock:
            if self._given_up:
                raise OutcomeUnknown(
                    f"tool {self._call.tool.name!r}: this attempt was given up before it sent; do not send",
                    tool_ran="no",
                )
            if not self._sent:
                if not self._may_send():
                    raise OutcomeUnknown(
                        f"tool {self._call.tool.name!r}: an earlier attempt may have happened, and the service may "
                        "have forgotten its key meanwhile; do not send",
                        tool_ran="unknown",
                    )
                self._save()
                self._sent = True

    def give_up(self) -> bool:
        """Let nothing be sent from now on; returns whether it was."""
        with self._lock:
            self._given_up = True
            return self._sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How the body ended: ``state`` is done, failed or unknown; ``suspended`` if it only asked to be called again.

    ``given_up``: it has not ended when this was said; how it does is told to ``late`` or ``gone``.
    """

    state: CallState
    value: Any = None
    error: BaseException | None = None
    suspended: bool = False
    given_up: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What was before the first attempt of this claim: when the service may have seen the key first, and whether an
    earlier attempt may have applied. ``resent``: only because the service does the key once is there another."""

    first_us: int
    in_doubt: bool = False
    resent: bool = False


async def run_attempts(
    call: Call,
    *,
    retry: Retry,
    next_attempt: NextAttempt,
    late: Late,
    gone: Gone = lambda: None,
    save_mark: SaveMark | None = None,
    history: History | None = None,
    timeout: Callable[[], float | None] | None = None,
) -> Ended:
    """Run the body of ``call`` until it is done, or may not be repeated; ``timeout`` is that of the next attempt."""
    history = history or History(first_us=now_us())
    timeout = timeout or (lambda: call.tool.policy.timeout)
    policy, delay = call.tool.policy, 0.0
    may_have_applied, resent = history.in_doubt, history.resent
    number = 1

    def in_time() -> bool:
        return not resent or policy.may_resend(history.first_us, now_us())

    while True:
        mark = None if save_mark is None or not policy.marks_sending else _Mark(call, save_mark, in_time)
        span = None
        if retry.attempts > 1 and call.span.is_recording():
            span = spans.AttemptSpan(call.tracer, call.span, number, delay)
        ended = await _marked_attempt(call, _Running(call.id, late, gone), mark, timeout(), span or call.span)
        may_have_applied = may_have_applied or ended.state is CallState.UNKNOWN
        again = number < retry.attempts and _may_repeat(
            ended, call, retry, in_doubt=may_have_applied, first_us=history.first_us
        )
        delay = retry.delay(number, random.random) if again else 0.0
        if span is not None and (again or number > 1 or span.is_started):
            spans.end(span, {}, None if call.tool.only_waits(ended.error) else ended.error)
        if not again:
            return _truthful(ended, may_have_applied)
        resent = may_have_applied and not retry.on and not policy.rerunnable
        try:
            await call.sleep(delay)
            if not in_time():  # the service may have forgotten the key while we waited
                return _truthful(ended, may_have_applied)
            await next_attempt()
        except BaseException as error:  # noqa: BLE001 - interrupted between two attempts: settled, then raised
            return _truthful(Ended(state=CallState.FAILED, error=error), may_have_applied)
        number += 1
        if ended.error is not None:
            metrics.retried(call.tool.name, spans.error_type(ended.error))


async def _marked_attempt(
    call: Call, running: _Running, mark: _Mark | None, timeout: float | None, span: Span
) -> Ended:
    """Make one attempt under ``span``; one that left no mark of its sending, where the tool does, sent nothing."""
    if mark is None:
        return await _attempt(call, running, timeout, span)
    ended = await _attempt(replace(call, mark=mark), running, timeout, span)
    sent = mark.give_up()
    if not sent and ended.state is CallState.DONE:
        _log.error(
            "tool %r declares marks_sending=True and was done without calling current_call().sending(); a crash in "
            "its body would be taken for nothing sent",
            call.tool.name,
        )
    if not sent and ended.state is CallState.UNKNOWN:
        return replace(ended, state=CallState.FAILED)
    return ended


async def _attempt(call: Call, running: _Running, timeout: float | None, span: Span) -> Ended:
    handling = sys.exception()
    try:
        running.begins()
        value = await call.backend.run_body(
            _body(call, running, span), is_async=call.tool.is_async, timeout=timeout, watch=running
        )
    except BodyTimeout:
        error: BaseException = _timed_out(call, timeout or 0.0)
        return Ended(state=CallState.UNKNOWN, error=error, given_up=running.watched)
    except BaseException as raised:  # noqa: BLE001 - it is raised again once the ledger knows
        return _ended_by(raised, call, handling, given_up=running.watched)
    finally:
        if not running.watched:  # cancelled before its first statement, else it has said so itself
            running.over()
    if inspect.isawaitable(value):
        return _never_awaited(call, value)
    return Ended(state=CallState.DONE, value=value)


def _ended_by(error: BaseException, call: Call, handling: BaseException | None, *, given_up: bool) -> Ended:
    if isinstance(error, (ApprovalPending, *call.tool.suspends)):
        return Ended(state=CallState.FAILED, error=error, suspended=True)
    state = CallState(outcome_of(error, call.tool.policy, call.tool.module, handling, call.arguments))
    return Ended(state=state, error=error, given_up=given_up)


def _never_awaited(call: Call, value: Any) -> Ended:
    """A body that returns an awaitable has not done its work: that would come after its claim was settled."""
    unstarted = inspect.iscoroutine(value) and inspect.getcoroutinestate(value) == inspect.CORO_CREATED
    if unstarted:
        value.close()
    error = ConfigurationError(
        f"{call.tool.name!r} is not async but returned an awaitable; declare it with async def, so that its end is "
        "known"
    )
    return Ended(state=CallState.FAILED if unstarted else CallState.UNKNOWN, error=error)


def _body(call: Call, running: _Running, span: Span) -> Callable[[], Any]:
    """The body with everything it needs in force while it runs, and only then."""
    # What was approved, for every attempt: one before may have changed what it was given.
    approved = call.declared.approval is not None
    arguments = {**(copy.deepcopy(dict(call.arguments)) if approved else call.arguments), **_filled(call)}
    has_span = call.span.get_span_context().is_valid

    def body() -> Any:
        with call_in_force(call), running:
            if not has_span:
                return call.invoke(arguments)
            with use_span(span, record_exception=False, set_status_on_exception=False):
                return call.invoke(arguments)

    async def async_body() -> Any:
        with call_in_force(call), running:
            if not has_span:
                return await call.invoke(arguments)
            with use_span(span, record_exception=False, set_status_on_exception=False):
                return await call.invoke(arguments)

    return async_body if call.tool.is_async else body


def _filled(call: Call) -> dict[str, Any]:
    filled = dict(call.context)
    for name in INJECTED & call.tool.context:
        if filled.get(name) is None:
            filled[name] = call.idempotency_key
    return filled


def _may_repeat(ended: Ended, call: Call, retry: Retry, *, in_doubt: bool, first_us: int) -> bool:
    error, policy = ended.error, call.tool.policy
    if ended.given_up and call.phase is Phase.COMPENSATION:  # two of them must not run at once
        return False
    if ended.suspended or not isinstance(error, Exception) or isinstance(error, ConfigurationError):
        return False
    if retry.on:
        return isinstance(error, retry.on)
    return policy.rerunnable or (policy.may_resend(first_us, now_us()) if in_doubt else True)


def _truthful(ended: Ended, may_have_applied: bool) -> Ended:
    """Once an attempt may have applied, a later clean failure proves nothing of that one."""
    if ended.state is CallState.FAILED and may_have_applied:
        return Ended(state=CallState.UNKNOWN, error=ended.error)
    return ended


def _timed_out(call: Call, seconds: float) -> ToolTimeout:
    if call.phase is Phase.COMPENSATION:
        return ToolTimeout(f"the compensation {call.tool.name!r} did not end within {seconds:.3g} s")
    if call.tool.policy.rerunnable:
        return ToolTimeout(f"tool {call.tool.name!r} did not answer within {seconds:g} s")
    return ToolTimeout(
        f"tool {call.tool.name!r} did not answer within {seconds:g} s; its effect may still "
        f"come, so it is not repeated. Find out ({command('show', call.id)}), then say so: {resolve_command(call.id)}"
    )
