"""Calls of models: reserved before they are sent, settled with what they used, records of the same ledger.

They do not pass through the onion: a model is asked by somebody else's client, often as a stream, so there is no body
to run between a claim and a settle, and nothing to replay or to undo. ``guard.llm_call`` is the two ends of it; the
drop-in clients and the adapters are made of it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind

from sagaspan import _live as live
from sagaspan import _llm_spans as llm_spans
from sagaspan import _reading as reading
from sagaspan import _reaper as reaper
from sagaspan import _said as said
from sagaspan import _spans as spans
from sagaspan import semconv
from sagaspan._backends import ASYNCIO, SYNC, Backend, run_sync
from sagaspan._billed import costs_nothing
from sagaspan._call import Call
from sagaspan._checks import check_choice, check_name
from sagaspan._clock import monotonic, now_us
from sagaspan._context import calls_held, current_run
from sagaspan._headroom import headroom
from sagaspan._llm_booked import AS_RESERVED, ESTIMATED, spent_on, told
from sagaspan._llm_growth import Growth
from sagaspan._making import make_model_call
from sagaspan._tool import Tool, tool_of
from sagaspan._unmetered import let_by
from sagaspan.amounts import Unit
from sagaspan.exceptions import BudgetExceeded, ConfigurationError, PolicyDenied, StoreUnavailable
from sagaspan.ledger.answers import JOIN_SECONDS
from sagaspan.ledger.attempts import Ended
from sagaspan.ledger.budgets import ONLY_COUNTED, Spent, holds
from sagaspan.ledger.claims import Claim
from sagaspan.ledger.records import CallRecord, CallState, UsageRecord
from sagaspan.ledger.room import Room
from sagaspan.ledger.store import ReserveChange
from sagaspan.llm.demand import Demand
from sagaspan.llm.prices import Price, Prices
from sagaspan.llm.responses import read_usage
from sagaspan.llm.usage import Usage
from sagaspan.policy import Policy

if TYPE_CHECKING:
    from sagaspan._engine import Engine
    from sagaspan._run import Run

_log = logging.getLogger("sagaspan")
_POLICY: Final = Policy(effect="read", loop=False)
_MOST_HELD: Final = 15


_NOT_GIVEN: Final = object()
OPERATIONS: Final = (
    semconv.OPERATION_CHAT, semconv.OPERATION_EMBEDDINGS, semconv.OPERATION_GENERATE, semconv.OPERATION_COMPLETE,
)  # fmt: skip
"""What a model can be asked for, in OpenTelemetry's words."""


@functools.lru_cache(10_000)
def _tool_of(operation: str, model: str) -> Tool:
    def ask() -> None:
        """The body of a model's call is its client."""

    return tool_of(ask, name=semconv.SPAN_MODEL.format(operation=operation, model=model), policy=_POLICY)


class LlmCall:
    """One call of a model: entering reserves what it may cost, leaving settles what it used.

    ``record_usage`` says what that was. Left by an error, it costs nothing if that proves that the model was not asked,
    or that its provider refused, and else all that was reserved; left without ``record_usage``, all of it too.

    ``output_limit`` is the limit of output tokens that the request must be sent with, None if it needs no other.
    """

    def __init__(
        self,
        engine: Engine,
        prices: Prices,
        model: str,
        demand: Demand,
        *,
        provider: str | None = None,
        limit_output: bool = False,
        operation: str = semconv.OPERATION_CHAT,
        span: Span = INVALID_SPAN,
    ) -> None:
        check_name("model", model)
        check_choice("operation", operation, OPERATIONS)
        self.model = model
        self.operation = operation
        self.provider = provider
        self._asked = llm_spans.Asked(
            model=model, operation=operation, provider=provider or prices.provider_of(model) or "unknown"
        )
        self.output_limit: int | None = None
        self._limit_output = limit_output
        self._engine = engine
        self._prices = prices
        self._usage: Usage | None = None
        self._unread: str | None = None
        self._cost: Price | None = None
        self._call: Call | None = None
        self._claim: Claim | None = None
        self._record: CallRecord | None = None
        self._handling: BaseException | None = None
        self._answers = False
        self._started_us = 0
        self._booked: UsageRecord | None = None
        self._busy = threading.Lock()
        self._is_over = False
        self._around = span
        self._span: Span = INVALID_SPAN
        self._before: Context | None = None
        self._tells = False
        self._secrets: list[str] = []
        self._output: Any = None
        self._finish_reasons: tuple[str, ...] = ()
        self._growth = Growth(model, provider, prices, demand)
        self._inside: Run | None = None

    # -- what users do -----------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The id of the call in the ledger. Raises ``ConfigurationError`` before it is entered."""
        if self._call is None:
            raise ConfigurationError("a call of a model has an id once it is entered: with guard.llm_call(...) as call")
        return self._call.id

    @property
    def usage(self) -> Usage | None:
        """What ``record_usage`` was told."""
        return self._usage

    @property
    def cost(self) -> Price | None:
        """What it cost, once ``record_usage`` was told what it used."""
        return self._cost

    def record_usage(self, response: Any = _NOT_GIVEN, /, **counts: Any) -> Price | None:
        """Record what the call used: the provider's response (or its usage), or the fields of ``Usage``.

        It is written when the block is left; the last word that can be read counts. Returns what it cost. The provider
        has answered by then, so what cannot be read, or comes after the block, raises nothing: it is logged, the cost
        is None, and all is booked that was reserved. Raises ``ConfigurationError`` before the block.
        """
        if self._call is None:
            raise ConfigurationError(
                f"the call of {self.model!r} was not begun; record its usage in its block: with guard.llm_call(...) as "
                "call"
            )
        if self._is_over:
            _log.warning(
                "Usage of call %s (model %r) ignored: the call was booked when its block was left. Call record_usage "
                "in the block.", self.id, self.model,
            )  # fmt: skip
            return None
        try:
            usage = self._read(response, counts)
            self._cost = self._price_of(usage)
        except Exception as problem:  # noqa: BLE001 - the answer is paid for: its caller gets it
            self._unread = str(problem)
            return None
        self._usage = usage
        return self._cost

    def _read(self, response: Any, counts: dict[str, Any]) -> Usage:
        if response is _NOT_GIVEN:
            if not counts:
                raise ConfigurationError("record_usage() was given neither the response nor counts")
            return Usage(**counts)
        self.messages(output=response, finish_reasons=said.reasons(response))
        usage = read_usage(response)
        if usage is None:
            raise ConfigurationError(f"the {type(response).__name__} does not say it")
        return usage

    def _check_new(self) -> None:
        """Before it is begun, and apart from that: what fails in there was not sent, and this one may have been."""
        if self._call is not None:
            raise ConfigurationError("this call of a model was made already; make another with guard.llm_call(...)")

    @property
    def tells(self) -> bool:
        """Whether what is asked and answered goes on the span: the user opted in to content, and somebody listens."""
        return self._tells

    def messages(self, *, input: Any = None, output: Any = None, finish_reasons: Sequence[str] = ()) -> None:  # noqa: A002
        """Say in the block what was asked and answered, for the span; ``record_usage(response)`` says what it sees.

        Args:
            input: the arguments of the SDK's call as a dict, its messages, or a text.
            output: the provider's response, messages in OpenTelemetry's or a provider's shape, or a text.
            finish_reasons: why the model stopped, one a choice.

        Recorded only under OpenTelemetry's content opt-in, but for ``finish_reasons``; else nothing is even read.
        """
        self._finish_reasons = tuple(finish_reasons) or self._finish_reasons
        if self._tells and input is not None:
            said.record_input(self._span, input)
        if self._tells and output is not None:
            self._output = output
            if not reaper.in_collection():  # else when it is settled, by another thread
                self._record_output()

    def _record_output(self) -> None:
        output, self._output = self._output, None
        if output is not None:
            said.record_output(self._span, output)

    def __enter__(self) -> Self:
        self._check_new()
        try:
            run_sync(self.begin(SYNC))
        except BaseException as error:
            run_sync(self.end(error, sent=False))
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if reaper.in_collection():
            self.abandon()
        else:
            run_sync(self.end(error))

    async def __aenter__(self) -> Self:
        self._check_new()
        try:
            await self.begin(ASYNCIO)
        except BaseException as error:
            await self.end(error, sent=False)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.end(error)

    def streams(self) -> None:
        """The answer has begun and comes piece by piece: leaving the run waits no longer for its end.

        A stream that somebody holds on to may never end, and a model's answer is nothing that must be undone.
        """
        reaper.be_ready()
        self._leave_span()  # whoever reads the pieces does other things between them
        self._answers = True
        self._let_go()
        self.reads()

    def reads(self) -> None:
        """This task or thread waits for the next piece: what it calls meanwhile must not wait for the answer's end."""
        if self._call is not None and not self._is_over:
            reading.reads(self._call.id, self._call.run.id)

    @property
    def counts(self) -> bool:
        """Whether somebody must count what comes, because a budget has reserved something for it."""
        claim = self._claim
        return claim is not None and holds(claim.record) and not self._engine.limits.observes

    @property
    def demand(self) -> Demand:
        """What it can use at most, as far as it is reserved."""
        return self._growth.demand

    @property
    def covered(self) -> int:
        """The output tokens, of all choices together, that are reserved."""
        return self._growth.covered

    @property
    def at_least(self) -> int:
        """The output tokens that are booked if nobody says how many there were: the limit's, or what came beyond it."""
        return max(self._growth.at_first, self._growth.came)

    def came_to(self, output_tokens: int) -> None:
        """Note that an answer has come to so many tokens, all choices together: so much is booked at least."""
        self._growth.came_to(output_tokens)

    @property
    def estimates(self) -> bool:
        """Whether what is ``seen`` may have to be booked: the request sets no limit that could be booked instead."""
        return self.demand.output_tokens is None

    def seen(self, output_tokens: int, input_tokens: int | None = None) -> None:
        """Note what an answer looks like, where it does not say what it used: an estimate from its text.

        It is booked if nobody says more, the request has no limit and no hard budget of money or tokens holds: such a
        budget is not to be overshot, so there all is booked that was reserved. ``input_tokens`` None: those at most.
        """
        self._growth.seen(output_tokens, input_tokens)

    def cover(self, output_tokens: int) -> None:
        """Say how far an answer has come, in tokens of all choices together; what is not reserved yet is reserved now.

        Does nothing as long as so much is reserved, so it may be said with every piece. Raises ``BudgetExceeded`` where
        the budgets cannot pay for more: read no further then, and close the answer; ``ConfigurationError`` for what is
        no plain int; or ``StoreError``.
        """
        self.came_to(output_tokens)
        if output_tokens > self.covered and self.counts:
            run_sync(self._cover(output_tokens))

    async def acover(self, output_tokens: int) -> None:
        """As ``cover``, in a running loop."""
        self.came_to(output_tokens)
        if output_tokens > self.covered and self.counts:
            await self._cover(output_tokens)

    def abandon(self, first: Callable[[], None] = lambda: None) -> None:
        """Settle it from a finalizer: soon, and from another thread, which calls ``first`` before."""
        if self._claim is not None and not self._is_over:
            reaper.leave(functools.partial(self._end_alone, first))

    def _end_alone(self, first: Callable[[], None]) -> None:
        first()
        if self._call is not None:
            self._call = replace(self._call, backend=SYNC)
            run_sync(self.end(None))

    def let_by(self, what: str) -> None:
        """Let requests by that this call cannot meter: ``what`` says which, for people.

        Raises ``PolicyDenied`` where a hard budget of money holds, which it would escape; and as entering does.
        """
        run_sync(self._let_by(what, SYNC))

    async def alet_by(self, what: str) -> None:
        """As ``let_by``, in a running loop."""
        await self._let_by(what, ASYNCIO)

    async def _let_by(self, what: str, backend: Backend) -> None:
        call = self._make_call(backend)
        await let_by(self._engine, call, what, self._asked)

    # -- the two ends --------------------------------------------------------------------------------------------

    async def begin(self, backend: Backend) -> None:
        """Reserve what it may cost; raises ``BudgetExceeded``, ``PolicyDenied``, ``RunClosed`` or ``StoreError``."""
        self._handling = sys.exception()
        # Who only observes would have the answer cut for a budget that refuses nothing.
        if self._limit_output and not self._engine.limits.observes:
            await self._limit(backend)
        call = self._make_call(backend)
        bound = self._growth.bound()
        call = call.declare(costs=self._growth.costs(bound))
        self._span = spans.start(
            self._engine.tracer, call.tool.name, llm_spans.opening(self._asked, call, self.demand.output_tokens),
            parent=self._around if self._around.is_recording() else None, kind=SpanKind.CLIENT,
        )  # fmt: skip
        call = replace(call, span=self._span, tracer=self._engine.tracer)
        if self._span.is_recording() and spans.captures_content():
            # A stream may be read when its run is over, and repeat what was redacted in that.
            self._tells, self._secrets = True, live.keep()
        run = current_run.get()
        inside = self._inside = run if run is not None and run.id == call.run.id else None
        try:
            if bound.missing is not None and self._engine.limits.caps_money(call):
                raise PolicyDenied(
                    f"{call.tool.name!r} was not sent: a hard budget of money holds, and {bound.missing}"
                )
            if inside is not None:
                self._busy = inside.in_flight.one()
                self._busy.acquire()
                inside.in_flight.check_open(f"{call.tool.name!r} was not sent")
            self._claim, self._call = await self._claimed(call), call  # at once: a Ctrl-C leaves no claim to nobody
        except BaseException as error:
            self._let_go()
            llm_spans.refused(self._asked, self._span, error)
            live.drop(self._secrets)
            if inside is not None and isinstance(error, BudgetExceeded) and not error.in_flight:
                inside.doom(error)
            raise
        self._growth.begin()
        calls_held.set((*calls_held.get()[-_MOST_HELD:], call.id))
        self._started_us = now_us() if self._claim is None else self._claim.record.started_us
        self._before = spans.enter(self._span)

    async def _claimed(self, call: Call) -> Claim | None:
        """Claim it; None if the store is down and ``fail_open`` lets it by, of which no budget must hold."""
        try:
            return await self._engine.ledger.begin(call)
        except StoreUnavailable as error:
            if self._engine.outage is None or self._engine.limits.hold(call):
                raise
            _log.warning("%s runs unrecorded (fail_open=True): %s", call.tool.name, self._engine.outage.began(error))
            spans.mark(self._span, semconv.UNRECORDED)
            return None

    def _make_call(self, backend: Backend) -> Call:
        arguments = {
            "model": self.model,
            "input_tokens": self.demand.input_tokens,
            "output_tokens": self._growth.most_output,
        }
        return make_model_call(self._engine, _tool_of(self.operation, self.model), self.model, arguments, backend)

    async def _limit(self, backend: Backend) -> None:
        """Limit the answer to what the budgets can pay for, where that is less than the model may give."""
        engine, call, growth = self._engine, self._make_call(backend), self._growth
        known = engine.limits, engine.store, self._prices, call, self.demand, self.provider, growth.most_output
        deadline = monotonic() + JOIN_SECONDS
        # Here and not in the claim: no answer is cut to the little that is left while calls in flight hold the rest.
        try:
            while (found := await backend.io(headroom, *known)).lacking is not None:
                if not (await engine.ledger.room(call, found.lacking, deadline, moves_on=True)).fits:
                    break
        except StoreUnavailable:  # the claim says what becomes of that
            return
        limit = found.output
        if limit is not None and limit < growth.most_output:
            growth.demand, self.output_limit = replace(self.demand, output_tokens=limit), limit

    async def _cover(self, output_tokens: int) -> None:
        assert self._call is not None  # noqa: S101 - it was begun
        assert self._claim is not None  # noqa: S101 - and has reserved something
        ledger, deadline = self._engine.ledger, monotonic() + JOIN_SECONDS
        while (refused := await self._growth.extend(ledger, self._call, self._claim, output_tokens)) is not None:
            room = await ledger.room(self._call, refused, deadline)
            if not room.fits:
                raise await self._cut(refused, room)
            self._growth.has_room()

    async def _cut(self, refused: ReserveChange, room: Room) -> BudgetExceeded:
        """The error of an answer that is read no further."""
        assert self._call is not None  # noqa: S101 - it was begun
        error = await self._call.io(self._engine.limits.cut, self._call, refused, room)
        if self._inside is not None and not room.in_flight:
            self._inside.doom(error)
        return error

    async def end(self, error: BaseException | None, *, sent: bool = True) -> None:
        """Settle it; ``error`` is what ended it, if anything did. Not ``sent``: it was interrupted before its block."""
        if self._call is None or self._is_over:
            return
        self._is_over = True
        self._leave_span()
        self._growth.end()
        try:
            ended, spent = self._ended(error, sent=sent)
            self._booked = spent.usage
            if self._claim is not None:
                self._record = await self._engine.ledger.end(self._call, self._claim, ended, spent)
        finally:
            try:  # noqa: SIM105 - a Ctrl-C may come where a function of Python begins, and none before this line
                self._busy.release()
            except RuntimeError:  # its answer came piece by piece, or it was in no run
                pass
            self._let_go()
            reading.ended(self._call.id)
            calls_held.set(tuple(held for held in calls_held.get() if held != self._call.id))
            self._record_output()
            self._tell(error, sent=sent)
            live.drop(self._secrets)

    def _leave_span(self) -> None:
        """Its span is the current one no longer."""
        before, self._before = self._before, None
        if before is not None:
            spans.leave(self._span, before)

    def _let_go(self) -> None:
        """Leaving the run waits for it no longer."""
        with contextlib.suppress(RuntimeError):
            self._busy.release()
        if self._inside is not None:
            self._inside.in_flight.forget(self._busy)

    def _tell(self, error: BaseException | None, *, sent: bool) -> None:
        """End its span, and count it."""
        if error is not None and not sent:
            llm_spans.refused(self._asked, self._span, error)
            return
        ending = self._ending(error)
        llm_spans.close(self._span, ending)
        llm_spans.measure(self._asked, ending, self._span)

    def _ending(self, error: BaseException | None) -> llm_spans.Ending:
        return llm_spans.Ending(
            call_id=self.id, state=None if self._record is None else self._record.state, usage=self._usage,
            cost=self._cost, booked=self._booked, finish_reasons=self._finish_reasons,
            seconds=(now_us() - self._started_us) / 1e6, error=error,
        )  # fmt: skip

    def _ended(self, error: BaseException | None, *, sent: bool) -> tuple[Ended, Spent]:
        """How it ended, and what is booked for it."""
        if self._usage is not None:
            return Ended(state=CallState.DONE, value=told(self._usage)), self._spent(self._usage)
        if error is not None and (not sent or self._is_free(error)):
            return Ended(state=CallState.FAILED, error=error), ONLY_COUNTED
        if error is not None:
            return Ended(state=CallState.UNKNOWN, error=error), self._unsaid()
        spent = self._unsaid()
        self._engine.warn_unsaid(self.model, self.id, self._unread, estimated=bool(spent.amounts))
        return Ended(state=CallState.DONE), spent

    def _is_free(self, error: BaseException) -> bool:
        """Whether ``error`` proves that nothing is billed: nothing does once an answer has begun."""
        return not self._answers and costs_nothing(error, self._handling)

    def _spent(self, usage: Usage) -> Spent:
        return self._booking(usage, self._cost or self._price_of(usage))

    def _unsaid(self) -> Spent:
        """What is booked where nobody said what it used: what was seen, where no limit and no budget hold; else all."""
        growth = self._growth
        if growth.is_estimated and not self._is_capped():
            usage = growth.likely()
            return self._booking(usage, self._price_of(usage), ESTIMATED)
        if growth.is_past:  # no limit held: what came is all that is sure
            growth.take_all()
        most = Usage(input_tokens=growth.demand.input_tokens, output_tokens=growth.covered)
        booked = self._booking(most, growth.bound(), AS_RESERVED)
        return booked if growth.is_past else replace(booked, amounts={})

    def _is_capped(self) -> bool:
        call = self._call
        return call is not None and self._engine.limits.caps(call, Unit.USD, Unit.TOKENS, begins=False)

    def _price_of(self, usage: Usage) -> Price:
        return self._prices.price_of(self.model, usage, self.provider)

    def _booking(self, usage: Usage, cost: Price, how: str | None = None) -> Spent:
        assert self._call is not None  # noqa: S101 - it was begun
        return spent_on(usage, cost, self._call, at_us=self._started_us, provider=self.provider, how=how)
