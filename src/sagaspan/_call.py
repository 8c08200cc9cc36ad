"""What flows through the onion: a frozen ``Call`` inwards, a frozen ``Result`` outwards."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Self, TypeVar

from opentelemetry.trace import INVALID_SPAN, NoOpTracer, Span, Tracer

from sagaspan._backends import Backend, Finished
from sagaspan._compensation import Compensation
from sagaspan._frozen import quick, replaced
from sagaspan._repeats import Asked
from sagaspan._signals import Signals
from sagaspan._tool import Tool
from sagaspan.amounts import Unit
from sagaspan.exceptions import ConfigurationError
from sagaspan.keys import CallKey, idempotency_headers
from sagaspan.ledger.records import ApprovalRecord, CallRecord, CallState, Phase, RunRecord

if TYPE_CHECKING:
    from sagaspan.budget import Budget

P = ParamSpec("P")
T = TypeVar("T")

_NO_TRACER = NoOpTracer()


Purse = tuple[tuple[str, tuple["Budget", ...]], ...]
"""The scope of a run and its budgets, then those of the run it is nested in, and so on."""

_ONE_CALL: Final[Mapping[str, int]] = {Unit.CALLS: 1}


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What the layers want of the claim; the ledger writes all of it at once.

    ``costs`` are upper bounds of what the call uses, by unit (``sagaspan.amounts``); they are reserved of every budget
    it must fit into. ``approval`` is used up by the claim. ``observed`` is what it would have been refused for.
    """

    compensation: Compensation | None = None
    locks: tuple[str, ...] = ()
    approval: ApprovalRecord | None = None
    observed: tuple[str, ...] = ()
    costs: Mapping[str, int] = field(default_factory=lambda: _ONE_CALL)


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a tool with its arguments bound: ``arguments`` are its identity, ``context`` only reaches the body.

    ``invoke`` runs the unguarded body with all arguments by name (an awaitable if the tool is async). ``run`` is the
    run's record as it was when the call began; ``occurrence`` counts equal calls in this incarnation of it.
    ``under`` is the id of the run under whose locks it works, if any: of a call that a compensation makes, the run that
    is undone. ``purse`` are the scopes of its runs with their budgets, ``signals`` what its run's
    calls brought of late. ``model`` is set where the call is one of a model, not of a tool. ``task`` is the task of its
    framework that it is made in, where a checkpoint may answer for that. ``asked`` is what the code of such a task asks
    for with it, ``again`` whether it did so before and was run again.
    ``scheduled`` is the record of a deferred call that this one sends, ``sent_by`` the run that sends it (the outer
    one, if ``run`` is nested), and ``sent_with`` the id of the deferred call in whose body this one is made.
    ``secrets`` are the texts of what is redacted of it; ``former`` are the keys that the same call had before that.
    ``policy`` is the version of the policy file that it goes by.
    ``edited`` is the request for approval whose arguments it has, instead of those it was called with; ``repeats`` is
    an equal call of its run that is done, and that it does again if somebody agrees.
    """

    id: str
    tool: Tool
    arguments: Mapping[str, Any]
    context: Mapping[str, Any] = field(default_factory=dict)
    invoke: Callable[[Mapping[str, Any]], Any]
    encoded: str
    key: CallKey
    generation: int
    idempotency_key: str
    run: RunRecord
    under: str | None = None
    purse: Purse = ()
    signals: Signals = field(default_factory=Signals)
    resumed: bool = False
    replaying: bool = False
    occurrence: int = 0
    phase: Phase = Phase.FORWARD
    backend: Backend
    tool_call_id: str | None = None
    model: str | None = None
    agent: str | None = None
    branch: str | None = None
    task: str | None = None
    asked: Asked | None = None
    again: bool = False
    ancestors: tuple[str, ...] = ()
    scheduled: CallRecord | None = None
    sent_by: RunRecord | None = None
    sent_with: str | None = None
    secrets: tuple[str, ...] = ()
    former: tuple[CallKey, ...] = ()
    edited: str | None = None
    policy: str | None = None
    repeats: str | None = None
    span: Span = INVALID_SPAN
    tracer: Tracer = _NO_TRACER
    declared: Declared = Declared()
    mark: Callable[[], None] | None = None

    def sending(self) -> None:
        """Mark, on disk, that the request is sent next: what dies before has provably not happened.

        For tools with ``marks_sending=True``, right before the wire, in every path that sends. Raises
        ``OutcomeUnknown`` if this attempt was given up meanwhile (then nothing must be sent), ``StoreUnavailable`` or
        ``ConfigurationError``.
        """
        self._the_mark()()

    async def asending(self) -> None:
        """As ``sending``, for asynchronous tools."""
        await self.backend.io(self._the_mark())

    def _the_mark(self) -> Callable[[], None]:
        if self.mark is None:
            raise ConfigurationError(
                f"tool {self.tool.name!r} calls sending() but does not declare marks_sending=True, so that a missing "
                "mark would prove nothing"
            )
        return self.mark

    @property
    def idempotency_headers(self) -> dict[str, str]:
        """The key as the HTTP headers that common payment APIs read."""
        return idempotency_headers(self.idempotency_key)

    def declare(self, **wishes: Any) -> Self:
        """A copy that asks more of the claim (fields of ``Declared``)."""
        return replaced(self, declared=replaced(self.declared, **wishes))

    def io(self, step: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        """Run a blocking ledger step to its end."""
        return self.backend.io(step, *args, **kwargs)

    def shielded(self, step: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Finished[T]]:
        """Run a blocking ledger step to its end, and be told of a cancellation that came meanwhile."""
        return self.backend.shielded(step, *args, **kwargs)

    def sleep(self, seconds: float) -> Coroutine[Any, Any, None]:
        """Wait ``seconds``."""
        return self.backend.sleep(seconds)


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a claimed call ended: ``value``, or the ``error`` that its body raised.

    ``outcome`` is ``executed``, ``replayed``, ``joined``, ``scheduled`` or ``unrecorded``
    (``semconv.IDEMPOTENCY_OUTCOME``). Refusals are raised instead: a refused call has no result. ``remarks`` are for
    the model that asked, beside the value; nobody else is told them.
    """

    value: Any = None
    error: BaseException | None = None
    state: CallState
    outcome: str
    record: CallRecord
    remarks: tuple[str, ...] = ()

    @property
    def executed(self) -> bool:
        """Whether this call ran the body, rather than being served from the ledger."""
        return self.outcome in ("executed", "unrecorded")
