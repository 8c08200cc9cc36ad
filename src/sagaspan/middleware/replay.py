"""Replay: in a resumed run, what is on record is answered from the ledger before anything else is asked.

In a fresh run nothing is looked up: the claim's own conflict is the replay, and the common case saves a query.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from sagaspan._call import Call, Result
from sagaspan._middleware import CallNext
from sagaspan.exceptions import RunClosed


class ReplayMiddleware:
    """``serve`` gives the ledger's answer for a call, or None if it is to be run."""

    def __init__(self, serve: Callable[[Call], Awaitable[Result | None]]) -> None:
        self._serve = serve

    async def __call__(self, call: Call, call_next: CallNext, /) -> Result:
        if not (call.resumed or call.replaying):
            return await call_next(call)
        served = await self._serve(call)
        if served is not None:
            return served
        if call.replaying:
            raise RunClosed(
                f"the run {call.run.id!r} is completed and is only replayed: the call of tool "
                f"{call.tool.name!r} with these "
                "arguments is not on record, so it did not run. Use a new run id; or start it over, with "
                f"guard.run({call.run.name!r}, id={call.run.id!r}, reopen=True) around what calls it",
                status=call.run.state,
            )
        return await call_next(call)
