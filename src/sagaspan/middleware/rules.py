"""Rules: what the policy file says of this very call, before anything else is asked (``sagaspan.rules``).

A rule that asks or limits puts an amended tool in the place of the call's own, so that every layer behind this one
goes by it. What a condition reads of the arguments is copied first: what was judged is what runs.
"""

from __future__ import annotations

import copy
import datetime as dt
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

from sagaspan import _spans as spans
from sagaspan import codecs, semconv
from sagaspan._call import Call, Result
from sagaspan._clock import now_us
from sagaspan._cost import cost_of
from sagaspan._gates import Gate
from sagaspan._middleware import CallNext
from sagaspan._observed import let_by
from sagaspan._tool import Tool
from sagaspan.exceptions import PolicyDenied
from sagaspan.ledger.records import UsageTotals
from sagaspan.policy import Policy
from sagaspan.rules import Found, Numbered, Rules, Ruling, judge

_REMEMBERED: Final = 1000


class Spending(Protocol):
    """What the ledger says of the calls of a run so far."""

    def __call__(self, call: Call, /) -> UsageTotals: ...


class File(Protocol):
    """One content of a policy file."""

    @property
    def rules(self) -> Rules:
        """Its rules."""

    @property
    def version(self) -> str:
        """A digest of it."""


class RulesMiddleware:
    """``file`` is the policy file of a version, ``is_stale`` whether a newer one cannot be put in force.

    ``spending`` reads what the run of a call has used, ``note`` puts a denial on record, and ``serve`` is the ledger's
    answer to a call that is on record: nothing runs then, so nothing is refused.
    """

    def __init__(
        self,
        file: Callable[[str | None], File | None],
        is_stale: Callable[[], bool],
        serve: Callable[[Call], Awaitable[Result | None]],
        spending: Spending,
        note: Callable[[Call, Ruling], None],
        *,
        observes: bool = False,
    ) -> None:
        self._file = file
        self._is_stale = is_stale
        self._serve = serve
        self._spending = spending
        self._note = note
        self._observes = observes
        self._amended: dict[tuple[Tool, Numbered | None, tuple[Numbered, ...]], Tool] = {}

    async def __call__(self, call: Call, call_next: CallNext, /) -> Result:
        file = self._file(call.policy)
        if file is None:
            return await call_next(call)
        call = replace(call, policy=file.version)  # of the very rules that are looked at
        if self._is_stale():
            spans.mark(call.span, semconv.POLICY_STALE)
        concerned = file.rules.of(*call.tool.known_as)
        if not concerned:
            return await call_next(call)
        call = _copied(call, frozenset().union(*(one.variables for one in concerned)))
        ruling = await judge(concerned, call.arguments, lambda names: self._facts(call, names))
        _tell(call, ruling)
        if ruling.action == "deny" and not call.replaying:
            served = await self._serve(call)
            if served is not None:
                return served
            error = denied(call, ruling)
            if self._observes:
                return await call_next(let_by(call, error))
            await call.io(self._note, call, ruling)
            raise error
        return await call_next(replace(call, tool=self._under(call.tool, ruling)))

    async def _facts(self, call: Call, names: frozenset[str]) -> dict[str, Any]:
        facts = {name: _FACTS[name](call) for name in names if name in _FACTS}
        if names & {"spent", "calls"}:
            totals = await call.io(self._spending, call)
            facts.update(spent=totals.cost / 1e9, calls=totals.calls)
        return facts

    def _under(self, tool: Tool, ruling: Ruling) -> Tool:
        """``tool`` as it is called under ``ruling``, made once."""
        if not ruling.asks and ruling.limits is None:
            return tool
        unsure = tuple(step.rule for step in ruling.unsure)
        found = self._amended.get((tool, ruling.rule, unsure))
        if found is None:
            if len(self._amended) >= _REMEMBERED:
                self._amended.clear()
            found = self._amended[tool, ruling.rule, unsure] = amended(tool, ruling)
        return found


def amended(tool: Tool, ruling: Ruling) -> Tool:
    """``tool`` within the limits of ``ruling``, asking what that asks beside what the tool itself does."""
    over = ruling.limits or Policy()
    gates = [Gate(f"{step.rule.says} cannot be judged") for step in ruling.unsure]
    if ruling.rule is not None and ruling.action == "approve":
        reason = ruling.rule.rule.reason
        gates.append(Gate(f"{ruling.rule.says}: {reason}" if reason else ruling.rule.says))
        approval = ruling.rule.rule.approval
        over = over.replace(approve=True, **({} if approval is None else {"approval": approval}))
    policy = over.over(tool.policy)
    cost = tool.cost
    if policy.cost is not tool.policy.cost:
        cost = cost_of(policy.cost, tool.parameters, where=f"tool {tool.name!r}")
    return replace(tool, policy=policy, cost=cost, gates=(*tool.gates, *gates))


def denied(call: Call, ruling: Ruling) -> PolicyDenied:
    """The error of a call that a rule refuses."""
    assert ruling.rule is not None  # noqa: S101 - nothing else denies
    step = ruling.steps[-1]
    reason = ruling.rule.rule.reason
    unsure = f" ({step.found}: {step.why})" if step.found is not Found.HOLDS else ""
    return PolicyDenied(
        f"tool {call.tool.name!r} did not run: {ruling.rule.says} denies it{unsure}"
        f"{f': {reason}' if reason else '. Ask who keeps that file'}"
    )


def _copied(call: Call, names: frozenset[str]) -> Call:
    """``call`` with arguments of these names that nobody else holds."""
    wanted = call.arguments.keys() if "args" in names else call.arguments.keys() & names
    if all(isinstance(call.arguments[name], _PLAIN) for name in wanted):
        return call
    try:
        copies = {name: copy.deepcopy(call.arguments[name]) for name in wanted}
    except Exception as error:
        raise PolicyDenied(
            f"tool {call.tool.name!r} did not run: a rule reads its arguments, and they cannot be copied "
            f"({type(error).__name__}), so they could change after they were judged; pass plain data"
        ) from error
    return replace(call, arguments={**call.arguments, **copies})


_PLAIN: Final = (str, int, float, bool, type(None))


def _run(call: Call) -> Mapping[str, Any]:
    return {"id": call.run.id, "name": call.run.name, "conversation": call.run.conversation}


_FACTS: Final[Mapping[str, Callable[[Call], Any]]] = {
    "args": lambda call: dict(call.arguments),
    "tool": lambda call: call.tool.name,
    "user": lambda call: call.run.user,
    "tenant": lambda call: call.run.tenant,
    "agent": lambda call: call.agent or call.run.agent,
    "run": _run,
    "tags": lambda call: codecs.decode(call.run.tags),
    "now": lambda _: dt.datetime.fromtimestamp(now_us() / 1e6, dt.UTC),
}


@spans.harmless(None)
def _tell(call: Call, ruling: Ruling) -> None:
    if not call.span.is_recording():
        return
    call.span.set_attribute(semconv.POLICY_VERSION, call.policy or "")
    if not (ruling.rule or ruling.unsure):
        return
    call.span.set_attribute(semconv.POLICY_ACTION, "ask" if ruling.asks else ruling.action)
    if ruling.rule is not None:
        call.span.set_attribute(semconv.POLICY_RULE, ruling.rule.rule.name or str(ruling.rule.number))
