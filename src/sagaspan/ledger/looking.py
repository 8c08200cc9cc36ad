"""Asking a function of the user's to look at the world: it is no step of any run, and has half a minute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from sagaspan._backends import UNWATCHED, Backend
from sagaspan._context import nothing_in_force

SECONDS: Final = 30.0
"""How long such a function may take that has no ``timeout``; one that takes longer cannot say."""


async def look(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    *,
    is_async: bool,
    timeout: float = SECONDS,
    backend: Backend,
) -> Any:
    """What ``function`` says; raises what it raises, and ``BodyTimeout`` after ``timeout`` seconds."""

    def body() -> Any:
        with nothing_in_force():
            return function(**arguments)

    async def async_body() -> Any:
        with nothing_in_force():
            return await function(**arguments)

    return await backend.run_body(async_body if is_async else body, is_async=is_async, timeout=timeout, watch=UNWATCHED)
