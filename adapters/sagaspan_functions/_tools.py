"""``FunctionTools``: what a hand-written agent loop needs between a model's answer and its functions."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_jsonable_python

from sagaspan import ApprovalPending, ConfigurationError, Guard, SagaspanError
from sagaspan.adapters import (
    PolicyBook,
    Tool,
    beside,
    guard_function,
    hearing,
    model_name,
    told,
    told_of_tool,
    tool_behind,
)
from sagaspan.policy import Policies
from sagaspan_functions._dialects import Answer, Asked, Dialect, read, schema, write
from sagaspan_functions._signatures import Misfit, Parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class _Function:
    tool: Tool
    guarded: Callable[..., Any]
    parameters: Parameters


class FunctionTools:
    """Functions that a model may call, each guarded.

    ``schemas`` declares them in an API's own words; ``run`` makes the calls that a model's answer asks for, and gives
    what must be appended to the conversation. What the model can act on, an error of a tool, a refusal, a call of
    nothing we have, goes to it as data; what must end the run is raised.

    Args:
        guard: whose policies, budgets and ledger count.
        functions: those of ``@guard.tool``, and plain ones, sync or async.
        policies: for the plain ones, by name or glob, over those of the guard.
        parallel: how many calls of one answer may run at once, in threads or tasks; 1 runs them in order.

    Raises ``ConfigurationError`` for a function that a model cannot fill, or two of one name.
    """

    def __init__(
        self,
        guard: Guard,
        functions: Sequence[Callable[..., Any]],
        policies: Policies | None = None,
        *,
        parallel: int = 1,
    ) -> None:
        if type(parallel) is not int or parallel < 1:
            raise ConfigurationError(f"parallel is {parallel!r}; it must be a whole number from 1 on")
        book = PolicyBook(policies, source="FunctionTools(policies)")
        plain = [_name(function) for function in functions if tool_behind(function) is None]
        book.check_names([*plain, *map(model_name, plain)], where="this list of plain functions")
        self._parallel = parallel
        self._functions: dict[str, _Function] = {}
        for function in functions:
            self._add(_guarded(guard, function, book))

    def _add(self, function: _Function) -> None:
        name = model_name(function.tool.name)
        if name in self._functions:
            raise ConfigurationError(f"two tools would be called {name!r} by the model; give one another name")
        self._functions[name] = function

    def schemas(self, api: Dialect) -> list[dict[str, Any]]:
        """The tools for ``tools=`` of ``"chat"`` (chat completions), ``"responses"`` or ``"messages"`` (Anthropic)."""
        return [
            schema(api, name, function.tool.description, function.parameters.schema)
            for name, function in self._functions.items()
        ]

    def run(self, response: Any) -> list[dict[str, Any]]:
        """Make the calls that ``response`` asks for; what to append to the conversation, empty if it asks for none.

        ``response`` is what the API answered, or its message, as an object of the SDK or a dict. Raises what ends
        the run: ``BudgetExceeded``, the third ``LoopDetected``, ``RunError``, ``StoreError``, a ``critical`` failure.
        """
        dialect, asked = read(response)
        if self._parallel == 1 or len(asked) < 2:
            return write(dialect, [self._call(call) for call in asked])
        with ThreadPoolExecutor(min(self._parallel, len(asked)), thread_name_prefix="sagaspan-call") as pool:
            calls = [pool.submit(contextvars.copy_context().run, self._call, call) for call in asked]
            wait(calls)  # nobody is left running behind the error of another
        return write(dialect, [call.result() for call in calls])

    async def arun(self, response: Any) -> list[dict[str, Any]]:
        """As ``run``, in a running loop; synchronous functions run in threads."""
        dialect, asked = read(response)
        turn = asyncio.Semaphore(self._parallel)

        async def one(call: Asked) -> Answer:
            async with turn:
                return await self._acall(call)

        if self._parallel == 1:
            return write(dialect, [await one(call) for call in asked])
        done = await asyncio.gather(*(one(call) for call in asked), return_exceptions=True)
        for outcome in done:
            if isinstance(outcome, BaseException):
                raise outcome
        return write(dialect, [outcome for outcome in done if isinstance(outcome, Answer)])

    def _call(self, asked: Asked) -> Answer:
        prepared = self._prepared(asked)
        if isinstance(prepared, Answer):
            return prepared
        function, arguments = prepared
        if function.tool.is_async:
            raise ConfigurationError(f"tool {function.tool.name!r} is async; use await tools.arun(response)")
        try:
            with hearing() as heard:
                value = function.guarded(**arguments)
            return _answer(asked, beside(value, heard))
        except Exception as error:  # noqa: BLE001 - told to the model, or raised again
            return _told(asked, function.tool, error)

    async def _acall(self, asked: Asked) -> Answer:
        prepared = self._prepared(asked)
        if isinstance(prepared, Answer):
            return prepared
        function, arguments = prepared
        try:
            with hearing() as heard:
                if function.tool.is_async:
                    value = await function.guarded(**arguments)
                else:
                    value = await asyncio.to_thread(function.guarded, **arguments)
            return _answer(asked, beside(value, heard))
        except Exception as error:  # noqa: BLE001 - told to the model, or raised again
            return _told(asked, function.tool, error)

    def _prepared(self, asked: Asked) -> tuple[_Function, dict[str, Any]] | Answer:
        """The function that ``asked`` means and its arguments; or what the model is told of a call that makes none."""
        function = self._functions.get(asked.name)
        if function is None:
            message = f"there is no tool {asked.name!r}; there are {', '.join(sorted(self._functions)) or 'none'}"
            return _answer(asked, {"status": "refused", "error": "UnknownTool", "message": message}, is_error=True)
        try:
            return function, function.parameters.read(asked.arguments)
        except Misfit as misfit:
            data = {"status": "refused", "error": "InvalidArguments", "message": str(misfit)}
            return _answer(asked, data, is_error=True)


def _guarded(guard: Guard, function: Any, book: PolicyBook) -> _Function:
    if not callable(function) or inspect.isclass(function):
        raise ConfigurationError(f"FunctionTools takes functions, not {function!r:.80}")
    tool = tool_behind(function)
    if tool is None:
        function = guard_function(guard, function, _name(function), book)
        tool = tool_behind(function)
    assert tool is not None  # noqa: S101 - it is guarded now
    return _Function(tool=tool, guarded=function, parameters=Parameters(tool))


def _name(function: Any) -> str:
    name = getattr(function, "__name__", None)
    if not isinstance(name, str) or name == "<lambda>":
        raise ConfigurationError(f"{function!r:.80} has no name a model could call; use guard.tool('NAME')(...)")
    return name


def _told(asked: Asked, tool: Tool, error: Exception) -> Answer:
    """What the model is told of ``error``; raises it again if it is not for the model."""
    if not isinstance(error, SagaspanError):
        if tool.policy.critical:
            raise error
        return _answer(asked, told_of_tool(error, tool.policy.effect), is_error=True)
    data = None if isinstance(error, ApprovalPending) else told(error)
    if data is None:
        raise error
    return _answer(asked, data, is_error=True)


def _answer(asked: Asked, value: Any, *, is_error: bool = False) -> Answer:
    return Answer(asked=asked, text=value if isinstance(value, str) else _text(value), is_error=is_error)


def _text(value: Any) -> str:
    return json.dumps(to_jsonable_python(value, fallback=str, serialize_unknown=True), ensure_ascii=False)
