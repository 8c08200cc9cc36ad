"""One call of a tool's body: what the ledger records of it, and what CrewAI and its model get back.

What the model can act on, an error of the tool or a refusal, comes back as a ``ToolFailure``: CrewAI shows its text to
the model, never calls the body again for it, never caches it and never takes it for the answer of the crew.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Final

from sagaspan import ApprovalPending, ConfigurationError, SagaspanError
from sagaspan.adapters import beside, hearing, told, told_of_tool
from sagaspan_crewai import _compat
from sagaspan_crewai._compat import ToolFailure, ToolFailureReason
from sagaspan_crewai._failures import McpError, ToolSaysFailed, checked
from sagaspan_crewai._own import put
from sagaspan_crewai._places import MARK, body_of, bound, places_of, worker
from sagaspan_crewai._session import Decision, Session, decision_in_force, session_in_force
from sagaspan_crewai._toolbox import Guarded, Toolbox

_STOPS: Final = "the run stops; nothing more is done in it"


def install(tool: Any, owner: Toolbox | None = None) -> None:
    """Guard the body of ``tool`` where CrewAI keeps it; without a guarded kickoff around, it passes everything on.

    The object stays the same one, so all that CrewAI and the user know of it stays true. ``owner`` guards every call.
    """
    for place in places_of(tool):
        if not hasattr(vars(tool).get(place), MARK):
            guarded = _guarded(tool, place, owner)
            if owner is None:
                put(tool, place, guarded)
            else:  # a copy of a tool that was wrapped by itself must not come without its guard
                vars(tool)[place] = guarded


def install_late(tool: Any, structured: Any) -> None:
    """Guard a tool that nobody knew before a model called it; raises ``ConfigurationError`` if it is too late."""
    if "run" in places_of(tool) and not hasattr(vars(tool).get("run"), MARK):
        # CrewAI has taken the method already, and would call that.
        raise ConfigurationError(
            f"the tool {tool.name!r} does its work in run(), and was not known when the kickoff began: wrap the tool "
            "itself (guard.wrap(tool, policies)), or the crew or agent that has it; or do the work in _run()"
        )
    install(tool)
    install_structured(structured)


def install_structured(structured: Any) -> None:
    """Guard the copy of a body that the text protocol took from a tool before that was guarded."""
    tool = structured._original_tool  # noqa: SLF001 - CrewAI's only way from one to the other
    if tool is None:
        install(structured)
    elif "_run" in places_of(tool) and not hasattr(structured.func, MARK):
        structured.func = vars(tool)["_run"]


def _guarded(tool: Any, place: str, owner: Toolbox | None) -> Callable[..., Any]:
    original, run = body_of(tool, place), bound(tool, place)
    if inspect.iscoroutinefunction(original):

        @functools.wraps(original)
        async def guarded_async(*args: Any, **kwargs: Any) -> Any:
            call = _BodyCall.made(tool, place, run, owner)
            return await (run(*args, **kwargs) if call is None else call.amake(args, kwargs))

        guarded: Callable[..., Any] = guarded_async
    else:

        @functools.wraps(original)
        def guarded_sync(*args: Any, **kwargs: Any) -> Any:
            call = _BodyCall.made(tool, place, run, owner)
            return run(*args, **kwargs) if call is None else call.make(args, kwargs)

        guarded = guarded_sync
    setattr(guarded, MARK, original)
    # CrewAI reads the signature of a method, which has no ``self`` any more.
    guarded.__signature__ = inspect.signature(run)  # type: ignore[attr-defined] # as inspect reads it
    return guarded


_running: ContextVar[_BodyCall | None] = ContextVar("sagaspan_crewai_running", default=None)
"""The call whose body runs here."""


class _BodyCall:
    """One call of a guarded body."""

    def __init__(self, tool: Any, place: str, run: Callable[..., Any], box: Toolbox, session: Session | None) -> None:
        self.tool = tool
        self.place = place
        self._run = worker(tool, place, run)
        self._box = box
        self._session = session
        decision = decision_in_force.get()
        self._decision: Decision | None = decision if decision is not None and decision.tool is tool else None
        self.around = _running.get()
        self.pause: ApprovalPending | None = None
        self._is_agents = self._decision is not None or (decision is None and _compat.is_agents_call())

    @classmethod
    def made(cls, tool: Any, place: str, run: Callable[..., Any], owner: Toolbox | None) -> _BodyCall | None:
        """The call that is made here; None if nobody guards it, or it is a part of one: ``run`` calls ``_run``."""
        running = _running.get()
        if running is not None and running.tool is tool and running.place != place:
            return None
        session = session_in_force.get()
        box = owner or (None if session is None else session.tools)
        return None if box is None else cls(tool, place, run, box, session)

    def make(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if self._decision is not None and self._decision.answered:
            return self._decision.answer
        with self._alone():
            try:
                guarded = self._box.of(self.tool, self.place)
                arguments = guarded.arguments(args, kwargs)
                if self._is_only_asked:
                    self._ask(guarded, arguments)
                self._check()
                if guarded.tool is None:
                    value = self._result(self._run(**arguments))
                else:
                    with hearing() as heard:
                        value = self._box.guard.call_tool(guarded.tool, arguments, self._invoke, **self._origin())
                    value = self._remarked(value, heard)
                return self._answered(self._delivered(guarded, value))
            except BaseException as error:  # noqa: BLE001 - told to the model, or raised again
                return self._answered(self._told(error))

    async def amake(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if self._decision is not None and self._decision.answered:
            return self._decision.answer
        with self._alone():
            try:
                guarded = self._box.of(self.tool, self.place)
                arguments = guarded.arguments(args, kwargs)
                if self._is_only_asked:
                    await asyncio.to_thread(self._ask, guarded, arguments)
                self._check()
                if guarded.tool is None:
                    value = self._result(await self._run(**arguments))
                else:
                    with hearing() as heard:
                        value = await self._box.guard.acall_tool(
                            guarded.tool, arguments, self._ainvoke, **self._origin()
                        )
                    value = self._remarked(value, heard)
                return self._answered(self._delivered(guarded, value))
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # noqa: BLE001 - told to the model, or raised again
                return self._answered(self._told(error))

    # -- around the ledger ---------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """What the body calls itself is no decision of the model's."""
        token, running = decision_in_force.set(None), _running.set(self)
        try:
            yield
        finally:
            _running.reset(running)
            decision_in_force.reset(token)

    def _check(self) -> None:
        if self._session is not None:
            self._session.check()

    @property
    def _is_only_asked(self) -> bool:
        """Whether a call of the same turn waits for an approval already: this one asks beside it, and runs later."""
        return self._decision is not None and self._session is not None and self._session.waits

    def _ask(self, guarded: Guarded, arguments: dict[str, Any]) -> None:
        if guarded.tool is not None:
            self._box.guard.question(guarded.tool, arguments)

    def _origin(self) -> dict[str, Any]:
        if self._decision is None or self._session is None:
            return {}
        return {"agent": self._decision.agent, "asked": self._session.attempt_of(self._decision.work)}

    def _invoke(self, final: Mapping[str, Any]) -> Any:
        with self._paused():
            result = self._run(**final)
        if asyncio.iscoroutine(result):  # a plain function that gives one, as CrewAI runs it
            with self._paused():
                result = asyncio.run(result)
        return self._result(result)

    async def _ainvoke(self, final: Mapping[str, Any]) -> Any:
        with self._paused():
            result = await self._run(**final)
        return self._result(result)

    @contextlib.contextmanager
    def _paused(self) -> Iterator[None]:
        """A crew that the body kicks off may wait for an approval: the body has not failed, it is asked again."""
        try:
            yield
        except _compat.Stopping as error:
            if isinstance(error.original, ApprovalPending):
                raise error.original from None
            raise

    def _result(self, result: Any) -> Any:
        """What the body returned; raises for what says that it failed, and what it must wait for."""
        if isinstance(self.tool, _compat.BaseAgentTool) and self._session is not None:
            # Delegation makes text of everything that ends its worker, and would be on record as done.
            if self._session.stopped is not None:
                raise self._session.stopped
            return result
        if self.pause is not None:  # the body made an answer of it, which would be on record as what it did
            raise self.pause
        return checked(result)

    # -- what comes back -----------------------------------------------------------------------------------------

    def _remarked(self, value: Any, remarks: list[str]) -> Any:
        """``value``, with ``remarks`` where a model asked; what is no plain data goes to it as it is."""
        if not remarks or not self._is_agents or isinstance(value, ToolFailure):
            return value
        try:
            return json.dumps(beside(value, remarks), default=str)
        except (TypeError, ValueError):
            return value

    def _delivered(self, guarded: Guarded, value: Any) -> Any:
        if guarded.policy.critical is False and isinstance(value, dict) and set(value) == {"status", "error", "call"}:
            return ToolFailure(message=json.dumps(value), reason=ToolFailureReason.EXCEPTION)
        schema = self.tool.result_schema
        if schema is not None and isinstance(value, dict):  # answered from the record, which keeps plain data
            with contextlib.suppress(ValueError):
                return schema.model_validate(value)
        return value

    def _answered(self, answer: Any) -> Any:
        if self._decision is not None:
            self._decision.answer, self._decision.answered = answer, True
        return answer

    def _told(self, error: BaseException) -> ToolFailure:
        """What the model is told of ``error``; raises it where no model asked, and ends the run if it must."""
        if not self._is_agents:
            raise error
        if not isinstance(error, Exception):  # an asynchronous task of CrewAI's would never end
            return self._stopped_by(error)
        try:
            return self._as_data(error)
        except Exception as problem:  # noqa: BLE001 - CrewAI would make a text of it and go on
            return self._stopped_by(problem)

    def _as_data(self, error: Exception) -> ToolFailure:
        if isinstance(error, _compat.Stopping):
            return ToolFailure(message=_STOPS)
        if isinstance(error, SagaspanError):
            data = told(error)
            return self._stopped_by(error) if data is None else ToolFailure(message=json.dumps(data))
        policy = self._box.of(self.tool).policy
        if policy.critical:
            return self._stopped_by(error)
        if isinstance(error, ToolSaysFailed):
            return error.failure
        reason = error.failure.reason if isinstance(error, McpError) else ToolFailureReason.EXCEPTION
        return ToolFailure(message=json.dumps(told_of_tool(error, policy.effect)), reason=reason)

    def _stopped_by(self, error: BaseException) -> ToolFailure:
        if self._session is None:
            raise error
        self._session.stop(error)
        if isinstance(error, ApprovalPending):
            self._wait(error)
        return ToolFailure(message=_STOPS)

    def _wait(self, pause: ApprovalPending) -> None:
        """The bodies around this call wait for it: they have not done their work, whatever they answer."""
        around = self.around
        while around is not None:
            around.pause, around = pause, around.around
