"""The HTTP client below an SDK's client: the one place that every attempt passes, in every version of the SDKs."""

from __future__ import annotations

import functools
from typing import Any

from sagaspan_functions._exchange import exchange_in_force
from sagaspan_functions._meter import named_as


def watched(client: Any, *, is_async: bool) -> Any:
    """``client`` with a ``send`` that meters: another object of a subclass over the very same state."""
    base: Any = type(client)
    kind = _watched_type(base, is_async)
    view = kind.__new__(kind)
    view.__dict__ = client.__dict__
    return view


@functools.cache
def _watched_type(kind: Any, is_async: bool) -> Any:
    class Watched(kind):  # type: ignore[misc] # whatever HTTP client the SDK uses
        def send(self, request: Any, **options: Any) -> Any:
            exchange = exchange_in_force()
            if exchange is None or not exchange.is_metered:
                return super().send(request, **options)
            call = exchange.sent()
            try:
                response = super().send(request, **options)
            except BaseException as error:
                call.__exit__(type(error), error, None)
                raise
            return exchange.answered(call, response)

        def __del__(self) -> None:
            """A view closes nothing: the connections are those of the client it was made of."""

    class AsyncWatched(kind):  # type: ignore[misc]
        async def send(self, request: Any, **options: Any) -> Any:
            exchange = exchange_in_force()
            if exchange is None or not exchange.is_metered:
                return await super().send(request, **options)
            call = await exchange.asent()
            try:
                response = await super().send(request, **options)
            except BaseException as error:
                await call.__aexit__(type(error), error, None)
                raise
            return await exchange.aanswered(call, response)

        def __del__(self) -> None:
            """As of ``Watched``."""

    return named_as(AsyncWatched if is_async else Watched, kind)
