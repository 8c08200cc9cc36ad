"""Loop: a call that would go on with a loop is refused; polling is slowed, never refused (rule book (f)).

It stands outside Replay, so that repeats which the ledger answers count too. What a resumed run is served of its
earlier incarnations does not: that was counted when it happened. Nor does what code asks for once more that its
framework runs again: a retry has a bound of its own, and what goes beyond what was asked before is counted.

Calls outside a run have no loop rule: they share the session of the process, and may come from any number of users.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from sagaspan import _metrics as metrics
from sagaspan import loops, semconv
from sagaspan._call import Call, Result
from sagaspan._clock import now_us
from sagaspan._middleware import CallNext
from sagaspan._observed import let_by
from sagaspan._signals import in_branch
from sagaspan._waiting import Waiting
from sagaspan.exceptions import LoopDetected
from sagaspan.keys import KeySource
from sagaspan.ledger.records import CallRecord

_log = logging.getLogger("sagaspan")


class LoopMiddleware:
    """``allowed`` is how often an equal call may bring an equal result where the policy does not say; False: any.

    ``serve`` is the ledger's answer to a call that is on record; ``keep`` puts on record what no record of a call says:
    an answer that was given again, the branch of a call that another one equals, or (None) a refusal.
    """

    def __init__(
        self,
        serve: Callable[[Call], Awaitable[Result | None]],
        keep: Callable[[Call, CallRecord | None], None],
        allowed: int | bool = loops.ALLOWED,
        *,
        observes: bool = False,
    ) -> None:
        self._serve = serve
        self._keep = keep
        self._allowed = allowed
        self._observes = observes

    async def __call__(self, call: Call, call_next: CallNext, /) -> Result:
        if call.run.is_session:
            return await call_next(call)
        if call.again:  # its framework runs the code again that makes it: nobody goes in circles
            return await call_next(call)
        allowed = self._allowed if call.tool.policy.loop is None else call.tool.policy.loop
        signals, args = call.signals, _asked(call)
        if signals.may_repeat(args) and allowed is not False:
            looked = await self._look(call, args, int(allowed))
            if isinstance(looked, Result):
                return looked
            call = looked
        result = await call_next(call)
        if result.executed or not _is_earlier(call, result):
            is_apart = call.branch is not None and signals.is_asked_in_another(call.tool.name, args)
            signals.add(result.record, args, counts=allowed is not False)
            is_own = result.executed or result.record.id == call.id  # made, or scheduled: its record says it
            if is_apart or not is_own:
                await call.io(self._keep, call, result.record)
            if allowed is not False and (verdict := loops.observe(signals.ring, allowed=int(allowed))) is not None:
                _nudge(call, verdict)
                return replace(result, remarks=(*result.remarks, verdict.advice))
        return result

    async def _look(self, call: Call, args: str, allowed: int) -> Call | Result:
        """Refuse what goes in circles, slow what polls; who only observes lets it by with a note."""
        signals, tool, now = call.signals, call.tool.name, now_us()
        verdict = loops.judge(signals.ring, tool, args, now, allowed=allowed, refusals=signals.refusals)
        delay = 0.0 if verdict is not None else loops.poll_delay(loops.polls(signals.ring, tool, args, now))
        if verdict is None and not delay:
            return call
        if call.resumed or call.replaying:  # what an earlier incarnation did is no step of a loop once more
            served = await self._serve(call)
            if served is not None and _is_earlier(call, served):
                return served
        if verdict is None:
            if not self._observes:
                with Waiting(call, semconv.WAIT_POLL) as waiting:
                    await waiting.sleep(delay)
            return call
        if self._observes:
            return let_by(call, refusal(tool, verdict))
        await call.io(self._keep, call, None)
        raise refusal(tool, verdict)


def _asked(call: Call) -> str:
    """What is asked for: its business key, else its arguments; of a method also of which object, and by which branch.

    An agent that ships ten orders calls one method ten times with the same arguments, and is in no circle. Neither are
    ten agents that are sent off side by side, and each ask for the same once.
    """
    asked = call.key.value if call.key.source is KeySource.BUSINESS else call.key.fingerprint
    if call.key.source is not KeySource.BUSINESS and call.tool.receiver is not None:
        asked = f"{asked}@{call.signals.number_of(call.context.get(call.tool.receiver))}"
    return in_branch(asked, call.branch)


def _is_earlier(call: Call, result: Result) -> bool:
    """Whether ``result`` replays what an earlier incarnation was answered, and no more often than that."""
    if result.record.started_us >= call.run.started_us:
        return False
    return call.tool.policy.repeat_rule == "new" or call.occurrence <= call.signals.answered_again(result.record.id)


def refusal(tool: str, verdict: loops.Verdict) -> LoopDetected:
    """The error of a call of ``tool`` that a verdict refuses."""
    stops = verdict.step is loops.Step.STOP
    end = " This was the third time, so the run stops." if stops else ""
    return LoopDetected(
        f"tool {tool!r} did not run: {verdict.advice}{end} (loop=False, or a larger number, allows it)",
        signature=verdict.signature,
        count=verdict.count,
        stops=stops,
    )


def _nudge(call: Call, verdict: loops.Verdict) -> None:
    call.span.set_attribute(semconv.LOOP_KIND, verdict.kind)
    metrics.nudged(call.tool.name, verdict.kind)
    if call.signals.first_time(f"{verdict.kind} {verdict.signature}"):
        _log.warning("run %r: %s", call.run.id, verdict.advice)
