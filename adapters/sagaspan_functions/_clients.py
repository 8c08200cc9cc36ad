"""The drop-in clients: OpenAI's and Anthropic's own objects, of a subclass that meters what they send.

A guarded client is a shallow copy of the user's, which stays unguarded and shares its connections, as the copies do
that ``with_options`` makes. It hooks two methods that both SDKs have for subclasses: ``request``, one call of the user,
and ``_prepare_options``, run before each attempt and outside of what an SDK takes for a lost connection.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Final

from sagaspan import ConfigurationError, Guard
from sagaspan_functions._exchange import Exchange, exchange_in_force, in_force
from sagaspan_functions._http import watched
from sagaspan_functions._meter import named_as

_GUARD: Final = "_sagaspan_guard"
_BASES: Final = {"SyncAPIClient": False, "AsyncAPIClient": True}
_SDKS: Final = ("openai", "anthropic")


def is_client(target: object) -> bool:
    """Whether ``target`` is a client of one of the SDKs; imports neither."""
    return _is_async(type(target)) is not None


def _is_async(kind: type[Any]) -> bool | None:
    ours = (base for base in kind.__mro__ if base.__module__.partition(".")[0] in _SDKS)
    return next((_BASES[base.__name__] for base in ours if base.__name__ in _BASES), None)


def guard_client(guard: Guard, client: Any) -> Any:
    """A copy of ``client`` whose calls of models are reserved before they are sent, and settled with what they used."""
    if _GUARD in vars(client):
        raise ConfigurationError(f"this {type(client).__name__} is guarded already, and would be metered twice")
    kind: Any = type(client)
    return _copied(client, _guarded_type(kind), {_GUARD: guard})


def _copied(client: Any, kind: Any, more: dict[str, Any]) -> Any:
    """``client`` as one of ``kind``, without the resources it made: those send through the client they were made by."""
    copied = kind.__new__(kind)
    state = {name: value for name, value in vars(client).items() if not _is_cached(kind, name)}
    vars(copied).update(state | more)
    if getattr(copied, "_middleware", None) and hasattr(copied, "_build_middleware_chain"):
        copied._middleware_chain = copied._build_middleware_chain()  # noqa: SLF001 - Anthropic's, bound to its client
    return copied


def _is_cached(kind: Any, name: str) -> bool:
    return isinstance(inspect.getattr_static(kind, name, None), functools.cached_property)


def _without_websockets(kind: Any) -> Any:
    """``kind``, which looks before it opens a WebSocket: OpenAI's APIs that can all read this, and none is metered."""

    def get(self: Any) -> Any:
        Exchange(vars(self)[_GUARD], self).let_by("connections by WebSocket")
        return vars(self).get("websocket_base_url")

    def keep(self: Any, url: Any) -> None:
        vars(self)["websocket_base_url"] = url

    if hasattr(kind, "realtime"):
        kind.websocket_base_url = property(get, keep)
    return kind


def _not_made_so(self: Any, *_args: Any, **_options: Any) -> None:
    """The ``__init__`` of a guarded class: ``guard.wrap`` copies, so only ``type(client)(...)`` comes by here."""
    name = type(self).__name__
    raise ConfigurationError(
        f"type(client)(...) of a guarded {name} makes no client, since no guard is known there; use "
        f"guard.wrap({name}(...)), or client.with_options(...)"
    )


@functools.cache
def _guarded_type(kind: Any) -> Any:
    is_async = bool(_is_async(kind))

    class Guarded(kind):  # type: ignore[misc] # whatever client was wrapped
        __init__ = _not_made_so

        @property
        def _client(self) -> Any:
            return watched(vars(self)["_client"], is_async=is_async)

        @_client.setter
        def _client(self, client: Any) -> None:
            self.__dict__["_client"] = client

        def copy(self, **options: Any) -> Any:
            plain = {name: value for name, value in vars(self).items() if name != _GUARD}
            unguarded = kind.__new__(kind)
            vars(unguarded).update(plain)
            return guard_client(vars(self)[_GUARD], unguarded.copy(**options))

        with_options = copy

    class Synchronous(Guarded):
        def request(self, *args: Any, **kwargs: Any) -> Any:
            exchange = Exchange(vars(self)[_GUARD], self)
            with in_force(exchange):
                try:
                    return super().request(*args, **kwargs)
                except BaseException as error:
                    exchange.unsent(error)
                    raise

        def _prepare_options(self, options: Any) -> Any:
            exchange = exchange_in_force()
            return super()._prepare_options(options if exchange is None else exchange.reserve(options))

    class Asynchronous(Guarded):
        async def request(self, *args: Any, **kwargs: Any) -> Any:
            exchange = Exchange(vars(self)[_GUARD], self)
            with in_force(exchange):
                try:
                    return await super().request(*args, **kwargs)
                except BaseException as error:
                    await exchange.aunsent(error)
                    raise

        async def _prepare_options(self, options: Any) -> Any:
            exchange = exchange_in_force()
            return await super()._prepare_options(options if exchange is None else await exchange.areserve(options))

    return _without_websockets(named_as(Asynchronous if is_async else Synchronous, kind))
