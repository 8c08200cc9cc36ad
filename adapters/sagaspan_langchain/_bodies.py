"""One call of a tool's body: what of LangChain's call the ledger records, and what LangChain gets back."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, TypeGuard

from langchain_core.tools import BaseTool, StructuredTool, ToolException
from langchain_core.tools import Tool as SingleInputTool
from langgraph.errors import GraphBubbleUp, GraphDrained, GraphInterrupt, ParentCommand
from pydantic_core import to_jsonable_python

from sagaspan import ConfigurationError, Guard, Policy, Run, ToolTimeout
from sagaspan.adapters import MadeWith, Tool, hearing, told
from sagaspan_langchain import _compat
from sagaspan_langchain import _errors as errors
from sagaspan_langchain import _results as results
from sagaspan_langchain import _suspended as suspended
from sagaspan_langchain._marks import guard_of, own_class
from sagaspan_langchain._shapes import Shape, shape_of

_NOTHING: Final = object()
BODIES: Final = "__sagaspan_bodies__"
"""Where the class of a guarded tool keeps its two bodies."""


@dataclass(slots=True)
class Invocation:
    """One ``run`` of a tool: what its body and the code around it have to tell each other."""

    tool_call_id: str | None
    is_from_model: bool = False  # a model asked for the call, so a refusal is an answer to it
    ends: BaseException | None = None  # leaves the agent, whatever handled it meanwhile
    data: dict[str, Any] | None = None  # a failure the policy wants told as data


invocation_in_force: ContextVar[Invocation | None] = ContextVar("sagaspan_langchain_invocation", default=None)


is_of_message: ContextVar[bool] = ContextVar("sagaspan_langchain_of_message", default=False)
"""Whether the task in force makes the calls of a message: run again it makes the same, whatever became of them."""


edited_in_task: ContextVar[dict[str, dict[str, Any]] | None] = ContextVar("sagaspan_langchain_edited", default=None)
"""Where the task in force notes what an approver made of the arguments of its calls, by their ids."""


is_beside: ContextVar[bool] = ContextVar("sagaspan_langchain_beside", default=False)
"""Whether the task in force may ask in more than one place: then no order tells whose an answer is."""


def _invocation() -> Invocation:
    return invocation_in_force.get() or Invocation(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A guarded body: the ``tool`` the ledger knows, and how LangChain's arguments become the ledger's."""

    tool: Tool
    shape: Shape
    has_artifact: bool


@dataclass(slots=True, kw_only=True)
class BodyCall:
    """One call of a body; ``run`` is the unguarded ``_run`` or ``_arun``."""

    body: Body
    run: Callable[..., Any]
    invocation: Invocation = field(default_factory=_invocation)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    returned: Any = None
    recorded: Any = _NOTHING
    raised: Exception | None = None
    heard: list[str] = field(default_factory=list)

    def prepare(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Callable[[Mapping[str, Any]], Any]]:
        """The arguments that identify the call, and what runs its body with them."""
        arguments, hidden, by_position = self.body.shape.split(args, kwargs)
        self.arguments = arguments

        def call(final: Mapping[str, Any]) -> Any:
            self._note_edits(final)
            named = {**hidden, **final}
            return self.run(*[named.pop(name) for name in by_position], **named)

        def invoke(final: Mapping[str, Any]) -> Any:
            with self._watched():
                return self._recordable(call(final))

        async def ainvoke(final: Mapping[str, Any]) -> Any:
            with self._watched():
                return self._recordable(await call(final))

        return arguments, ainvoke if self.body.tool.is_async else invoke

    def _note_edits(self, final: Mapping[str, Any]) -> None:
        noted, call_id, asked = edited_in_task.get(), self.invocation.tool_call_id, self.arguments
        if noted is None or call_id is None:
            return
        edited = {name: value for name, value in final.items() if name in asked and _differs(value, asked[name])}
        if edited:
            noted[call_id] = to_jsonable_python(edited)

    @contextlib.contextmanager
    def judged(self, run: Run | None) -> Iterator[None]:
        """Note a critical failure before LangChain's error handling sees it: that must not swallow it."""
        suspended.check(run, self)
        token = is_of_message.set(False)  # what the body calls is its own matter
        try:
            with hearing() as self.heard:
                yield
        except Exception as failure:
            is_suspended = suspended.note(run, self, failure)
            error = errors.original(failure) if is_suspended else failure
            refused = told(error) is not None and not isinstance(error, ToolTimeout)
            if self.body.tool.policy.critical and not refused and not isinstance(error, GraphBubbleUp):
                self.invocation.ends = error
            if is_suspended:
                raise error from error.__cause__
            raise
        finally:
            is_of_message.reset(token)

    def delivered(self, value: Any) -> Any:
        """What LangChain goes on with: the body's own object, a rebuilt recorded one, or its failure as data."""
        if self.recorded is value:
            return self._remarked(self.returned)
        if self.body.tool.policy.defer:  # no result, but the word that it is scheduled
            return (value, None) if self.body.has_artifact else value
        if not self._is_failure(value):
            return self._remarked(results.from_record(value, self.invocation.tool_call_id))
        self.invocation.data = value
        raise self.raised or ToolException(value["error"])

    def _remarked(self, value: Any) -> Any:
        """``value``, with what there is to remark on it if a model asked."""
        if not self.heard or self.invocation.tool_call_id is None:
            return value
        if self.body.has_artifact and isinstance(value, tuple) and len(value) == 2:
            return results.remarked(value[0], self.heard), value[1]
        return results.remarked(value, self.heard)

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        self.recorded = _NOTHING
        try:
            yield
        except Exception as error:
            self.raised = error
            if errors.is_wrong_answer(error):
                raise errors.wrong_answer(error) from error.__cause__
            if suspended.suspends(error, self.body.tool.policy):
                raise errors.leaving(error) from error.__cause__
            raise

    def _recordable(self, value: Any) -> Any:
        self.returned = value
        self.recorded = results.to_record(value, has_artifact=self.body.has_artifact)
        return self.recorded

    def _is_failure(self, value: Any) -> bool:
        """Whether ``value`` is the guard's account of a failure (``critical=False``) rather than a result."""
        is_account = isinstance(value, dict) and set(value) == {"status", "error", "call"}
        return self.body.tool.policy.critical is False and is_account


def _differs(value: Any, other: Any) -> bool:
    try:
        return value is not other and bool(value != other)
    except Exception:  # noqa: BLE001 - of what cannot be compared there is nothing to say
        return False


def body_behind(tool: BaseTool | None, *, is_async: bool) -> Body | None:
    """The body of a guarded tool that runs in an agent's step of that kind, or None if it is guarded elsewhere."""
    sync, async_ = getattr(type(tool), BODIES, (None, None))
    body: Body | None = (async_ or sync) if is_async else sync
    return body


def may_ask(tool: BaseTool | None) -> bool:
    """Whether somebody may have to agree to a call of ``tool``."""
    guard = guard_of(tool)
    bodies = (body_behind(tool, is_async=is_async) for is_async in (False, True))
    return guard is not None and any(body is not None and guard.may_ask(body.tool) for body in bodies)


# -- reading a tool --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """How ``tool`` reads its arguments: an edit's are read as a model's are."""

    tool: BaseTool

    def __call__(self, arguments: Mapping[str, Any], /, *, whole: bool) -> Mapping[str, Any]:
        """``arguments`` as its body gets them."""
        return _compat.read(self.tool, arguments, "") if whole else _compat.read_some(self.tool, arguments)


def schema_of(tool: BaseTool) -> Schema | None:
    """How ``tool`` reads its arguments; None of one that takes a single input, whatever it is called."""
    return None if isinstance(tool, SingleInputTool) else Schema(tool)


def body_of(
    guard: Guard, tool: BaseTool, policy: Policy, *, is_async: bool, reads: Schema | None = None
) -> Body | None:
    """The guarded body of one kind, or None if the tool has none of that kind."""
    function = function_of(tool, is_async=is_async)
    if function is None:
        return None
    shape = shape_of(tool, function, _compat.method_of(own_class(tool), is_async=is_async))
    has_artifact = tool.response_format == "content_and_artifact"
    defined = guard.define(
        function,
        name=tool.name,
        policy=policy,
        signature=shape.signature,
        is_async=is_async,
        description=tool.description,
        suspends=(GraphBubbleUp,),
        pauses=(GraphInterrupt, GraphDrained, ParentCommand),
        reads=reads,
        made_with=None if keeps_functions(tool) else MadeWith(tool, own_class(tool), BaseTool),
        send=_sender_of(tool, function, shape, has_artifact=has_artifact, is_async=is_async) if policy.defer else None,
    )
    return Body(tool=defined, shape=shape, has_artifact=has_artifact)


def _sender_of(
    tool: BaseTool, function: Callable[..., Any], shape: Shape, *, has_artifact: bool, is_async: bool
) -> Callable[[Mapping[str, Any]], Any]:
    """What runs the body of a deferred call with what was recorded of it, outside of any agent."""
    if shape.needs:
        raise ConfigurationError(
            f"the tool {tool.name!r} has defer=True, so it is sent from its record, perhaps by another process, where "
            f"LangChain does not fill {shape.needs[0]!r}; let it take only what the model gives"
        )
    body = function if keeps_functions(tool) else functools.partial(function, tool)
    parameters = inspect.signature(body).parameters
    takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())

    def call(arguments: Mapping[str, Any]) -> Any:
        if takes_all or set(arguments) <= set(parameters):
            return body(**arguments)
        return body(*arguments.values())  # a tool of one input, which LangChain hands over by position

    def send(arguments: Mapping[str, Any]) -> Any:
        return results.to_record(call(arguments), has_artifact=has_artifact)

    async def asend(arguments: Mapping[str, Any]) -> Any:
        return results.to_record(await call(arguments), has_artifact=has_artifact)

    return asend if is_async else send


def function_of(tool: BaseTool, *, is_async: bool) -> Callable[..., Any] | None:
    """The user's function behind ``_run`` or ``_arun``; None where there is none, or one delegates to the other."""
    method = _compat.method_of(own_class(tool), is_async=is_async)
    if is_async and method is _compat.method_of(BaseTool, is_async=True):  # as LangChain tells whether there is one
        return None
    if keeps_functions(tool):
        return kept_function(tool, is_async=is_async)
    return method


def kept_function(tool: BaseTool, *, is_async: bool) -> Callable[..., Any] | None:
    """The user's own function; as an attribute of a guarded tool it is guarded."""
    function: Callable[..., Any] | None = vars(tool).get("coroutine" if is_async else "func")
    return function


def keeps_functions(tool: BaseTool) -> TypeGuard[StructuredTool | SingleInputTool]:
    """Whether the bodies are functions in ``func`` and ``coroutine``, rather than methods of a class of the user's."""
    own = _methods(own_class(tool))
    return own in (_methods(StructuredTool), _methods(SingleInputTool))


def _methods(kind: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    return _compat.method_of(kind, is_async=False), _compat.method_of(kind, is_async=True)
