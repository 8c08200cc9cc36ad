"""The pivot of a saga: the step after which it only goes forward (rule book (b) 6).

Nothing more is written for that than that the pivot is ``done``: what was claimed before it is not undone any more, and
a run that fails after it is held, so that the same id goes on. ``commit()`` ends that: a new unit of work begins there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable

from sagaspan import semconv
from sagaspan._call import Call
from sagaspan._clock import monotonic
from sagaspan._commands import resolve_command
from sagaspan._waiting import Waiting, check_goes_on
from sagaspan.exceptions import CallInProgress, OutcomeUnknown
from sagaspan.ledger.committed import is_committed
from sagaspan.ledger.families import family, open_family, outermost
from sagaspan.ledger.records import CallRecord, CallState, RunRecord, call_info
from sagaspan.ledger.resolution import IN_DOUBT
from sagaspan.ledger.store import Barrier, Store

Resolve = Callable[[CallRecord], Awaitable[CallRecord]]
"""Asks what can find out about a call in doubt."""


def passed(store: Store, run: RunRecord) -> CallRecord | None:
    """The latest pivot of a run, or of one nested in it, that is done and not committed: it only goes forward."""
    return _latest(call for call in family(store, run) if not is_committed(run, call))


def line(calls: Iterable[CallRecord]) -> int:
    """The place of the latest pivot among ``calls`` that is done; what came before it is not undone."""
    latest = _latest(calls)
    return 0 if latest is None else latest.place


def _latest(calls: Iterable[CallRecord]) -> CallRecord | None:
    done = (call for call in calls if call.pivot and call.state is CallState.DONE)
    return max(done, key=lambda call: call.place, default=None)


def barrier(store: Store, call: Call) -> Barrier:
    """What the claim of the pivot ``call`` asks for: no step of its saga is open, but those it is called by."""
    root = outermost(store, call.run)
    return Barrier(root.namespace, root.id, (call.id, *call.ancestors))


async def wait_for_steps(store: Store, call: Call, resolve: Resolve, deadline: float) -> None:
    """Wait until every earlier step of the saga of ``call`` has ended, up to ``deadline`` (monotonic).

    Raises ``CallInProgress`` for one that goes on, and ``OutcomeUnknown`` for one in doubt after its probe was asked.
    """
    with Waiting(call, semconv.WAIT_PIVOT) as waiting:
        while step := await call.io(_first_open, store, call):
            step = await resolve(step)
            if step.state in IN_DOUBT:
                raise OutcomeUnknown(
                    f"the pivot {call.tool.name!r} did not run: nobody knows whether {step.tool!r}, an earlier step of "
                    "its run, happened, and after a pivot it could not be undone. Find out, then say so: "
                    f"{resolve_command(step.id)}",
                    call=call_info(step), tool_ran="no",
                )  # fmt: skip
            if step.state not in (CallState.RUNNING, CallState.COMPENSATING):
                continue
            if (left := deadline - monotonic()) <= 0:
                raise CallInProgress(
                    f"the pivot {call.tool.name!r} did not run: {step.tool!r}, an earlier step of its run, is still "
                    f"{step.state} (call {step.id}); try again when it has ended",
                    call=call_info(step),
                )
            await waiting.pause(left)
            check_goes_on(call)


def _first_open(store: Store, call: Call) -> CallRecord | None:
    but: Collection[str] = (call.id, *call.ancestors)
    steps = (step for step in open_family(store, outermost(store, call.run)) if step.id not in but)
    return next((step for step in steps if _is_open(step)), None)


def _is_open(step: CallRecord) -> bool:
    """As the store judges it for a ``Barrier``."""
    undoable = step.declared_write or step.compensate is not None
    return undoable and step.state in (CallState.RUNNING, CallState.COMPENSATING, *IN_DOUBT)
