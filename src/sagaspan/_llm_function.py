"""``@guard.llm``: a function that asks a model and returns its response, each call of it metered."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

from sagaspan._llm import LlmCall
from sagaspan.exceptions import ConfigurationError
from sagaspan.llm.running import likely_output


def metered(make: Callable[[], LlmCall]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: each call of the function is one of a model, and what it returns says what that used.

    Raises ``ConfigurationError`` for what is no function, or gives its answer piece by piece.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        _check(function)
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def asynchronous(*args: Any, **kwargs: Any) -> Any:
                async with make() as call:
                    response = await function(*args, **kwargs)
                    _settle(call, response)
                return response

            return asynchronous

        @functools.wraps(function)
        def synchronous(*args: Any, **kwargs: Any) -> Any:
            call = make()
            call.__enter__()
            try:
                response = function(*args, **kwargs)
                if inspect.isawaitable(response):  # as a function that passes on what an async one returns
                    return _awaited(call, response)
                _settle(call, response)
            except BaseException as error:
                call.__exit__(type(error), error, error.__traceback__)
                raise
            call.__exit__(None, None, None)
            return response

        return synchronous

    return decorate


def _settle(call: LlmCall, response: Any) -> None:
    """Say what ``response`` used, or what it looks like: an answer that is there, a text say, is not lost for that."""
    if call.record_usage(response) is None:
        call.seen(likely_output(response))


def _check(function: Any) -> None:
    name = getattr(function, "__qualname__", repr(function))
    if not callable(function) or inspect.isclass(function):
        raise ConfigurationError(f"@guard.llm(...) is for a function that asks a model, not {name}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(
            f"@guard.llm(...) cannot meter the generator {name}: it returns before the model has answered. Use "
            "`with guard.llm_call(...) as call:` in it, with call.streams(), call.cover(tokens) and "
            "call.record_usage(...)"
        )


def _awaited(call: LlmCall, answer: Awaitable[Any]) -> Any:
    """The rest of a call that was begun: awaiting it settles it, dropping it books all that was reserved."""

    async def wait() -> Any:
        try:
            response = await answer
            _settle(call, response)
        except BaseException as error:
            await call.end(error)
            raise
        await call.end(None)
        return response

    waiting = wait()
    weakref.finalize(waiting, call.abandon).atexit = False
    return waiting
