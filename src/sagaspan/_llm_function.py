"""``@guard.llm``: a function that asks a model and returns its response, each call of it metered."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from sagaspan._llm import LlmCall


def metered(make: Callable[[], LlmCall]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: each call of the function is one of a model, and what it returns says what that used."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def asynchronous(*args: Any, **kwargs: Any) -> Any:
                async with make() as call:
                    response = await function(*args, **kwargs)
                    call.settle(response)
                return response

            return asynchronous

        @functools.wraps(function)
        def synchronous(*args: Any, **kwargs: Any) -> Any:
            with make() as call:
                response = function(*args, **kwargs)
                call.settle(response)
            return response

        return synchronous

    return decorate
