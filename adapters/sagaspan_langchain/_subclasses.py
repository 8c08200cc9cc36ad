"""The class that is made for one guarded tool: the tool's own, with guarded bodies.

Its object shares the original's state. Only ``_run`` and ``_arun``, the bodies, go through the guard: LangChain still
parses the arguments, injects what it injects, formats the result and calls its callbacks. ``run`` and ``arun`` around
them learn the model's call id and turn the guard's refusals into a message for the model. Code that calls a tool itself
gets the exception: it would take data for the tool's result.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool

from sagaspan import ApprovalDenied, Guard, SagaspanError
from sagaspan.adapters import approver_here, told
from sagaspan_langchain import _compat
from sagaspan_langchain import _errors as errors
from sagaspan_langchain._bodies import (
    BODIES,
    Body,
    BodyCall,
    Invocation,
    invocation_in_force,
    is_of_message,
    keeps_functions,
    kept_function,
)
from sagaspan_langchain._branches import branch_here
from sagaspan_langchain._foreign import span_of
from sagaspan_langchain._marks import subclass, twin
from sagaspan_langchain._nodes import aasked, asked


def is_twin(kind: type) -> bool:
    """Whether this class was made for a guarded tool."""
    return BODIES in vars(kind)


def guarded_twin(guard: Guard, tool: BaseTool, *, sync: Body | None, async_: Body | None) -> BaseTool:
    """``tool`` as an object of a class made for it; a body that is None stays as it is."""
    base = type(tool)
    members: dict[str, Any] = {"run": _run_of(base), "arun": _arun_of(base), BODIES: (sync, async_)}
    if sync is not None:
        members["_run"] = _body_run(guard, tool, sync)
    if async_ is not None:
        members["_arun"] = _body_arun(guard, tool, async_)
    kind = subclass(guard, base, members)
    if keeps_functions(tool):  # set here, since pydantic takes what stands for a field in a class for its default
        for name, body in (("func", sync), ("coroutine", async_)):
            if body is not None:
                setattr(kind, name, _direct(guard, body, name))
    guarded: BaseTool = twin(tool, kind)
    return guarded


# -- around LangChain's run: from its arguments to its message -------------------------------------------------


def _run_of(base: type[BaseTool]) -> Callable[..., Any]:
    @functools.wraps(base.run)
    def run(self: BaseTool, *args: Any, **kwargs: Any) -> Any:
        return invoked(base.run, self, args, kwargs)

    return run


def _arun_of(base: type[BaseTool]) -> Callable[..., Any]:
    @functools.wraps(base.arun)
    async def arun(self: BaseTool, *args: Any, **kwargs: Any) -> Any:
        return await ainvoked(base.arun, self, args, kwargs)

    return arun


def invoked(run: Callable[..., Any], guarded: BaseTool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What ``run``, LangChain's own, answers for the guarded tool, or what tells the model of its refusal."""
    with asked(guarded, args, kwargs), _invoked(kwargs) as invocation:
        failure: Exception | None = None
        output = None
        try:
            output = run(guarded, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - raised again, unless it is for the model
            failure = error
        return _answer(guarded, invocation, output, failure)


async def ainvoked(run: Callable[..., Any], guarded: BaseTool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """As ``invoked``, in a running loop."""
    async with aasked(guarded, args, kwargs):
        with _invoked(kwargs) as invocation:
            failure: Exception | None = None
            output = None
            try:
                output = await run(guarded, *args, **kwargs)
            except Exception as error:  # noqa: BLE001 - raised again, unless it is for the model
                failure = error
            return _answer(guarded, invocation, output, failure)


@contextlib.contextmanager
def _invoked(kwargs: Mapping[str, Any]) -> Iterator[Invocation]:
    call_id = kwargs.get("tool_call_id")
    invocation = Invocation(call_id, is_from_model=call_id is not None or _compat.is_executors_call(kwargs))
    token = invocation_in_force.set(invocation)
    try:
        yield invocation
    finally:
        invocation_in_force.reset(token)


def _answer(tool: BaseTool, invocation: Invocation, output: Any, failure: Exception | None) -> Any:
    """LangChain's output, or the answer that tells the model of ``failure``; raises if it is not for the model."""
    if invocation.ends is not None:  # even if LangChain made a message of it
        raise errors.leaving(invocation.ends) from None
    if failure is None:
        return output
    if isinstance(failure, ApprovalDenied) and (response := _response(invocation)) is not None:
        call_id = invocation.tool_call_id
        return response if call_id is None else ToolMessage(response, name=tool.name, tool_call_id=call_id)
    refusal = told(failure)
    data = (refusal if invocation.is_from_model else None) or invocation.data
    if data is None:
        ends_the_run = isinstance(failure, SagaspanError) and refusal is None
        raise errors.leaving(failure) if ends_the_run else failure
    if invocation.tool_call_id is None:
        return data
    return ToolMessage(json.dumps(data), name=tool.name, tool_call_id=invocation.tool_call_id, status="error")


def _response(invocation: Invocation) -> str | None:
    """What a person answered in the place of the tool."""
    responses: dict[str, str] = getattr(approver_here.get(), "responses", {})
    return responses.get(invocation.tool_call_id or "")


# -- the bodies ------------------------------------------------------------------------------------------------


def _body_run(guard: Guard, tool: BaseTool, body: Body) -> Callable[..., Any]:
    original = _compat.method_of(type(tool), is_async=False)

    # LangChain reads the signature to decide what to inject: it must stay the original's.
    @functools.wraps(original)
    def _run(self: BaseTool, *args: Any, **kwargs: Any) -> Any:
        call = BodyCall(body=body, run=functools.partial(original, _unguarded(tool, self)))
        arguments, invoke = call.prepare(args, kwargs)
        is_same = is_of_message.get()
        with call.judged(guard.current_run()):
            value = guard.call_tool(
                body.tool,
                arguments,
                invoke,
                tool_call_id=call.invocation.tool_call_id,
                is_same=is_same,
                branch=branch_here(),
                span=span_of(tool.name),
            )
        return call.delivered(value)

    return _run


def _body_arun(guard: Guard, tool: BaseTool, body: Body) -> Callable[..., Any]:
    original = _compat.method_of(type(tool), is_async=True)

    @functools.wraps(original)
    async def _arun(self: BaseTool, *args: Any, **kwargs: Any) -> Any:
        call = BodyCall(body=body, run=functools.partial(original, _unguarded(tool, self)))
        arguments, invoke = call.prepare(args, kwargs)
        is_same = is_of_message.get()
        with call.judged(guard.current_run()):
            value = await guard.acall_tool(
                body.tool,
                arguments,
                invoke,
                tool_call_id=call.invocation.tool_call_id,
                is_same=is_same,
                branch=branch_here(),
                span=span_of(tool.name),
            )
        return call.delivered(value)

    return _arun


def _direct(guard: Guard, body: Body, name: str) -> property:
    """The function of a guarded tool, as its attribute: who calls it directly makes a call of the ledger as well."""

    def function_of(self: BaseTool) -> Callable[..., Any] | None:
        function = kept_function(self, is_async=name == "coroutine")
        if function is None:
            return None
        return (_called_awaited if body.tool.is_async else _called)(guard, body, function)

    return property(function_of)


def _called(guard: Guard, body: Body, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        call = BodyCall(body=body, run=function, invocation=Invocation(None))
        arguments, invoke = call.prepare(*_by_name(body, function, args, kwargs))
        with _leaving(), call.judged(guard.current_run()):
            value = guard.call_tool(body.tool, arguments, invoke)
        return call.delivered(value)

    return called


def _called_awaited(guard: Guard, body: Body, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def called(*args: Any, **kwargs: Any) -> Any:
        call = BodyCall(body=body, run=function, invocation=Invocation(None))
        arguments, invoke = call.prepare(*_by_name(body, function, args, kwargs))
        with _leaving(), call.judged(guard.current_run()):
            value = await guard.acall_tool(body.tool, arguments, invoke)
        return call.delivered(value)

    return called


def _by_name(
    body: Body, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """The arguments of a direct call as LangChain hands them over: by name, or to a tool of one input by position."""
    signature = inspect.signature(function)
    given = signature.bind(*args, **kwargs)
    named = {**dict(zip(signature.parameters, given.args, strict=False)), **given.kwargs}
    if {*named} <= {*body.shape.names, *body.shape.hidden}:
        return (), named
    return given.args, given.kwargs


@contextlib.contextmanager
def _leaving() -> Iterator[None]:
    """What no caller may swallow leaves so that none can."""
    try:
        yield
    except SagaspanError as error:
        if told(error) is not None:
            raise
        raise errors.leaving(error) from error.__cause__


def _unguarded(tool: BaseTool, guarded: BaseTool) -> BaseTool:
    """The object whose body runs: the original, or the like of a copy that somebody made of the guarded tool.

    Its class is the original one, so that a body which calls ``self._run`` is not guarded twice.
    """
    if guarded.__dict__ is tool.__dict__:
        return tool
    like: BaseTool = twin(guarded, type(tool))
    return like
