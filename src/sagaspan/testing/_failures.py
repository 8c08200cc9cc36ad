"""Failures on order: the body of one tool raises, and everything around it is real."""

from __future__ import annotations

import contextlib
import difflib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import FunctionType
from typing import Any, NoReturn

from sagaspan._call import Call, Result
from sagaspan._compensation import Compensation
from sagaspan._engine import Engine
from sagaspan._guard import Guard
from sagaspan._middleware import CallNext
from sagaspan.exceptions import ConfigurationError
from sagaspan.ledger.records import CallRecord

Error = BaseException | type[BaseException]


class Failure:
    """What ``fail`` does to a tool; ``count`` is how often it was done."""

    def __init__(self, tool: str, error: Error, *, times: int | None, after_effect: bool) -> None:
        self.count = 0
        self._tool = tool
        self._error = error
        self._left = times
        self._after_effect = after_effect
        self._seen: set[str] = set()
        self._lock = threading.Lock()

    async def __call__(self, call: Call, call_next: CallNext) -> Result:
        """The layer: a call of the tool gets another body."""
        self._seen.add(call.tool.name)
        if call.tool.name == self._tool:
            invoke = self._instead_of(call.invoke, is_async=call.tool.is_async, module=call.tool.module)
            call = replace(call, invoke=invoke)
        return await call_next(call)

    def compensation(self, found: Compensation | None) -> Compensation | None:
        """As the layer, for what undoes a call."""
        if found is None:
            return None
        self._seen.add(found.name)
        if found.name != self._tool:
            return found
        real = found.function
        body = self._instead_of(lambda given: real(**given), is_async=found.is_async, module=found.module)

        @functools.wraps(real)
        def compensate(**given: Any) -> Any:
            return body(given)

        return replace(found, function=compensate)

    def never_happened(self) -> str:
        """What to say if the tool was never called."""
        near = difflib.get_close_matches(self._tool, sorted(self._seen), n=1)
        called = f"did you mean {near[0]!r}?" if near else f"called were: {', '.join(sorted(self._seen)) or 'none'}"
        return f"fail(guard, {self._tool!r}): no body of that name ran, so nothing was tested; {called}"

    def _instead_of(
        self, invoke: Callable[[Mapping[str, Any]], Any], *, is_async: bool, module: str
    ) -> Callable[[Mapping[str, Any]], Any]:
        def body(given: Mapping[str, Any]) -> Any:
            if not self._due():
                return invoke(given)
            if self._after_effect:
                invoke(given)
                raise _fresh(self._error)
            return _statement_in(module)(_fresh(self._error))

        async def async_body(given: Mapping[str, Any]) -> Any:
            if not self._due():
                return await invoke(given)
            if self._after_effect:
                await invoke(given)
                raise _fresh(self._error)
            return _statement_in(module)(_fresh(self._error))

        return async_body if is_async else body

    def _due(self) -> bool:
        with self._lock:
            if self._left is not None and self._left <= 0:
                return False
            self._left = None if self._left is None else self._left - 1
            self.count += 1
            return True


@contextlib.contextmanager
def fail(
    guard: Guard, tool: str, error: Error, *, times: int | None = None, after_effect: bool = False
) -> Iterator[Failure]:
    """Let the body of ``tool`` raise ``error`` within the block: a tool of ``guard``, of an agent it wrapped, or what
    undoes one. The tool itself is left as it is.

    Args:
        guard: whose calls.
        tool: by name, as ``guard.calls.list()`` has it.
        error: an exception or its class. It is raised as a ``raise`` statement of the tool itself would be, which
            proves that nothing happened, unless the error says otherwise (a lost connection, a timeout, a 5xx).
        times: only the first so many calls fail; None is all of them.
        after_effect: the real body runs first, and then ``error`` comes as from a client library: nobody knows then
            whether it happened, unless the error proves something.

    Raises ``AssertionError`` at the end of the block if no such body ran: a failure that never came tests nothing.
    """
    if times is not None and times < 1:
        raise ConfigurationError(f"times={times} never fails; None is always")
    failure = Failure(tool, error, times=times, after_effect=after_effect)
    engine = guard._engine  # noqa: SLF001 - the same package
    with engine.with_innermost(failure), _compensations_through(engine, failure):
        yield failure
    if not failure.count:
        raise AssertionError(failure.never_happened())


@contextlib.contextmanager
def _compensations_through(engine: Engine, failure: Failure) -> Iterator[None]:
    find = engine.known.find_compensation

    def found(call: CallRecord) -> Compensation | None:
        return failure.compensation(find(call))

    engine.known.find_compensation = found  # type: ignore[method-assign] # for the time of the block
    try:
        yield
    finally:
        engine.known.find_compensation = find  # type: ignore[method-assign]


def _fresh(error: Error) -> BaseException:
    return error() if isinstance(error, type) else error.with_traceback(None)


def _statement_in(module: str) -> Callable[[BaseException], NoReturn]:
    """A function of ``module`` that raises: what it says of the effect is judged as the tool's own word."""

    def statement(error: BaseException) -> NoReturn:
        raise error

    return FunctionType(statement.__code__, {"__name__": module})
