"""What the exceptions of a chain say of a request: whether it was sent, and which HTTP status it was answered with.

Everything is found by duck typing and by names, so that no client has to be installed or imported for it.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Final

LOST: Final = (TimeoutError, ConnectionError)
_CLIENTS: Final = frozenset({"httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3", "aiohttp", "botocore"})
_CONNECT_TIMEOUTS: Final = frozenset({"ConnectTimeout", "ConnectTimeoutError", "ConnectionTimeoutError"})
_CONNECT_FAILURES: Final = frozenset({"NewConnectionError", "NameResolutionError", "ClientConnectorError"})
_BROKEN: Final = frozenset({
    "ReadTimeout", "WriteTimeout", "ReadError", "WriteError", "RemoteProtocolError", "ReadTimeoutError",
    "ProtocolError", "ServerDisconnectedError", "ChunkedEncodingError", "ClientPayloadError", "ConnectionClosedError",
})  # fmt: skip
_STATUS_NAMES: Final = ("status_code", "http_status", "status")
_MAX_CHAIN: Final = 50


def chain_of(error: BaseException, handling: BaseException | None) -> Iterator[BaseException]:
    """``error`` and what led to it, up to what was being handled before the body started."""
    link: BaseException | None = error
    for _ in range(_MAX_CHAIN):
        if link is None or link is handling:
            return
        yield link
        link = link.__context__ if link.__cause__ is None else link.__cause__


def never_sent(error: BaseException) -> bool:
    """Whether ``error`` says that nobody was connected, so that no request left."""
    if isinstance(error, ConnectionRefusedError | socket.gaierror):
        return True
    return _is_of_client(error, _CONNECT_TIMEOUTS | _CONNECT_FAILURES)


def was_lost(error: BaseException) -> bool:
    """Whether ``error`` says that the answer to a request was lost, or came too late."""
    return isinstance(error, LOST) or _is_of_client(error, _BROKEN)


def _is_of_client(error: BaseException, names: frozenset[str]) -> bool:
    kinds = type(error).__mro__
    return any(kind.__name__ in names and kind.__module__.partition(".")[0] in _CLIENTS for kind in kinds)


def status_of(thing: object) -> int | None:
    """The HTTP status of an error or response, found by duck typing as httpx, requests, Stripe and boto keep it."""
    for name in _STATUS_NAMES:
        value = getattr(thing, name, None)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    response = getattr(thing, "response", None)
    if isinstance(response, dict):  # botocore
        metadata = response.get("ResponseMetadata")
        code = metadata.get("HTTPStatusCode") if isinstance(metadata, dict) else None
        return code if isinstance(code, int) else None
    return None if response is None or response is thing else status_of(response)
