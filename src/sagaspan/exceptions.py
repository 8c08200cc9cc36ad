"""Every error sagaspan raises, ordered by the question an agent has to answer: *did the tool run?*

SagaspanError
├── Refused                   the tool did not run
│   ├── ApprovalDenied · ApprovalExpired · PolicyDenied · ScopeFrozen · LockConflict · CircuitOpen
│   ├── BudgetExceeded · RateLimited · LoopDetected
│   ├── KeyConflict           same key, different arguments
│   └── CallInProgress        another worker holds the call
├── RunError                  RunInProgress · RunConflict · RunClosed
├── ApprovalPending           has not run yet: decide, then run again with the same run id
├── OutcomeUnknown            it was started; nobody knows how it ended (ToolTimeout)
├── ResolutionError           what a person says of such a call does not fit it
├── CompensationFailed        it ran, and undoing it did not work
├── ReplayDivergence
├── StoreError                StoreUnavailable · SchemaOutdated
└── ConfigurationError

Each carries ``call`` (the call it is about, or None) and ``tool_ran``. What a tool itself raises passes through
unchanged, with its own type. ``NotApplied`` is the one class here that *tools* raise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

if TYPE_CHECKING:
    from datetime import datetime
    from decimal import Decimal

    from sagaspan.ledger.records import CallInfo

ToolRan = Literal["no", "yes", "unknown"]


class SagaspanError(Exception):
    """Base of all of them. ``call`` is what it is about; ``tool_ran`` says whether its effect may exist."""

    default_tool_ran: ClassVar[ToolRan] = "no"

    def __init__(self, message: str, *, call: CallInfo | None = None, tool_ran: ToolRan | None = None) -> None:
        super().__init__(message)
        self.call = call
        self.tool_ran: ToolRan = tool_ran or self.default_tool_ran


class Refused(SagaspanError):
    """The tool did not run: a guard said no before its body started."""


class ApprovalDenied(Refused):
    """A person, or a missing one, said no."""


class ApprovalExpired(Refused):
    """Nobody decided in time, which is a no."""


class PolicyDenied(Refused):
    """A policy forbids this call."""


class ScopeFrozen(Refused):
    """An operator froze this tool, agent, user, model or everything, or paused this run: who, when and why."""

    def __init__(
        self,
        message: str,
        *,
        scope: str = "all",
        reason: str = "",
        by: str = "",
        since: datetime | None = None,
        call: CallInfo | None = None,
    ) -> None:
        super().__init__(message, call=call)
        self.scope = scope
        self.reason = reason
        self.by = by
        self.since = since

    @property
    def pauses(self) -> bool:
        """Whether somebody paused this very run, or one that it is nested in."""
        return self.scope.startswith("run:")


class LockConflict(Refused):
    """Another run, or a call outside any run, holds the semantic ``lock`` this call needs; ``holder`` is its id."""

    def __init__(self, message: str, *, lock: str, holder: str, call: CallInfo | None = None) -> None:
        super().__init__(message, call=call)
        self.lock = lock
        self.holder = holder


class CircuitOpen(Refused):
    """The tool failed too often lately; nothing was sent.

    No layer of this package raises it: it is the word for one of yours that breaks a circuit, before ``call_next``. A
    model is told to come back later.
    """


class BudgetExceeded(Refused):
    """The reservation did not fit under the cap. Amounts are in the unit of the budget (USD, tokens, calls).

    ``in_flight``: it would have, were it not for calls that run beside it; waiting for them was in vain. Only then the
    run goes on.
    """

    def __init__(
        self,
        message: str,
        *,
        scope: str,
        limit: Decimal,
        spent: Decimal,
        reserved: Decimal,
        requested: Decimal,
        resets_at: datetime | None = None,
        in_flight: bool = False,
        call: CallInfo | None = None,
    ) -> None:
        super().__init__(message, call=call)
        self.scope = scope
        self.limit = limit
        self.spent = spent
        self.reserved = reserved
        self.requested = requested
        self.resets_at = resets_at
        self.in_flight = in_flight


class RateLimited(Refused):
    """Too many calls in the window; try again after ``retry_after`` seconds."""

    def __init__(self, message: str, *, retry_after: float, call: CallInfo | None = None) -> None:
        super().__init__(message, call=call)
        self.retry_after = retry_after


class LoopDetected(Refused):
    """The same call with the same result, over and over, or a call that would wait for its own ancestor.

    ``stops``: it was refused for the third time, and the run ends with it.
    """

    def __init__(
        self, message: str, *, signature: str, count: int, stops: bool = False, call: CallInfo | None = None
    ) -> None:
        super().__init__(message, call=call)
        self.signature = signature
        self.count = count
        self.stops = stops


class KeyConflict(Refused):
    """The idempotency key was used before with different arguments."""


class CallInProgress(Refused):
    """Another worker is running this very call and did not finish while we waited."""


class RunError(SagaspanError):
    """The run itself cannot be entered or continued."""


class RunInProgress(RunError):
    """Another worker is inside this run."""


class RunConflict(RunError):
    """The run id exists with another name, input, user or tenant."""


class RunClosed(RunError):
    """The run has ended (``status`` says how) and takes no new calls."""

    def __init__(self, message: str, *, status: str, call: CallInfo | None = None) -> None:
        super().__init__(message, call=call)
        self.status = status


class ApprovalPending(SagaspanError):
    """Has not run yet: decide ``approval_id``, then run again with the same run id."""

    def __init__(self, message: str, *, approval_id: str, call: CallInfo | None = None) -> None:
        super().__init__(message, call=call)
        self.approval_id = approval_id


class OutcomeUnknown(SagaspanError):
    """The call was started and nobody knows how it ended; it is never repeated by a guess."""

    default_tool_ran: ClassVar[ToolRan] = "unknown"


class ToolTimeout(OutcomeUnknown, TimeoutError):
    """The tool did not answer within its policy's ``timeout`` (seconds); its effect may still come."""


class ResolutionError(SagaspanError):
    """A decision on a call that it does not fit: no such call, a stale version, or nothing to decide."""

    default_tool_ran: ClassVar[ToolRan] = "unknown"


class CompensationFailed(SagaspanError):
    """A step ran, the run failed, and undoing the step did not work: a person must look."""

    default_tool_ran: ClassVar[ToolRan] = "yes"


class ReplayDivergence(SagaspanError):
    """A replayed run asked for something that is not on record."""


class StoreError(SagaspanError):
    """The ledger could not do what was asked."""


class StoreUnavailable(StoreError):
    """The ledger cannot be opened, read or written; nothing was started."""


class SchemaOutdated(StoreError):
    """The ledger's schema and this version of sagaspan do not fit together."""


class ConfigurationError(SagaspanError):
    """Something was declared wrongly; nothing ran."""


class NotApplied(Exception):
    """Raised *by a tool* to prove that its effect did not happen: the call is ``failed``, never ``unknown``.

    Also the answer of a *probe*, returned or raised; ``settle`` says for how many seconds after the attempt's end it
    does not count yet, if that source lags more than the policy says.
    """

    def __init__(self, *args: object, settle: float | None = None) -> None:
        super().__init__(*args)
        self.settle = settle
