"""What an exception says of a tool's effect: ``failed`` needs proof, everything else is ``unknown``.

The rule is section 3 of the design ("What an exception means"). Proof is: ``NotApplied`` or a type the policy names; a
request that was never sent; an HTTP refusal (4xx other than 408, 409, 425); or a ``raise`` statement of the tool's
own package that was not made while handling something else.
"""

from __future__ import annotations

import dis
import socket
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, Final

from sagaspan.exceptions import NotApplied
from sagaspan.policy import Outcome, Policy

_UNSURE_STATUS: Final = frozenset({408, 409, 425})
_CONNECT_TIMEOUTS: Final = frozenset({"ConnectTimeout", "ConnectTimeoutError", "ConnectionTimeoutError"})
_CONNECT_FAILURES: Final = frozenset({"NewConnectionError", "NameResolutionError", "ClientConnectorError"})
_CLIENTS: Final = frozenset({"httpx", "httpcore", "requests", "urllib3", "aiohttp", "botocore"})
_STATUS_NAMES: Final = ("status_code", "http_status", "status")
_LOST: Final = (TimeoutError, ConnectionError, AssertionError)
_RAISE: Final = dis.opmap["RAISE_VARARGS"]
_MAX_CHAIN: Final = 50


def outcome_of(error: BaseException, policy: Policy, module: str, handling: BaseException | None) -> Outcome:
    """Whether ``error``, which left a body of package ``module``, proves that nothing happened.

    ``handling`` is the exception that was being handled when the body started. A function in ``error_means`` that
    raises or answers something else counts as ``unknown``.
    """
    if isinstance(policy.error_means, str):
        return policy.error_means
    if policy.error_means is not None:
        return _asked(policy.error_means, error)
    if not isinstance(error, Exception):  # cancelled or interrupted in the middle
        return "unknown"
    chain = list(_chain(error, handling))
    proofs: tuple[type[BaseException], ...] = (NotApplied, *policy.not_applied)
    if isinstance(error, proofs) or any(_never_sent(link) or _refused(link) for link in chain):
        return "failed"
    return "failed" if len(chain) == 1 and _raised_by(module, error) else "unknown"


def _asked(function: Any, error: BaseException) -> Outcome:
    try:
        answer = function(error)
    except Exception:  # noqa: BLE001 - a classifier that breaks proves nothing
        return "unknown"
    return "failed" if answer == "failed" else "unknown"


def _chain(error: BaseException, handling: BaseException | None) -> Iterator[BaseException]:
    """``error`` and what led to it, up to what was being handled before the body started."""
    link: BaseException | None = error
    for _ in range(_MAX_CHAIN):
        if link is None or link is handling:
            return
        yield link
        link = link.__cause__ or link.__context__


def _never_sent(error: BaseException) -> bool:
    if isinstance(error, ConnectionRefusedError | socket.gaierror):
        return True
    kinds = type(error).__mro__
    return any(
        kind.__name__ in _CONNECT_TIMEOUTS | _CONNECT_FAILURES and kind.__module__.partition(".")[0] in _CLIENTS
        for kind in kinds
    )


def _refused(error: BaseException) -> bool:
    status = _status(error)
    return status is not None and 400 <= status < 500 and status not in _UNSURE_STATUS


def _status(thing: object) -> int | None:
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
    return None if response is None or response is thing else _status(response)


def _raised_by(module: str, error: BaseException) -> bool:
    if isinstance(error, _LOST):
        return False
    package = module.partition(".")[0]
    last = _last(error.__traceback__)
    if last is None or not _belongs(last.tb_frame, package):
        return False
    if last.tb_frame.f_code.co_code[last.tb_lasti] != _RAISE:
        return False  # a KeyError of a subscript is an accident, not a statement
    return not any(_holds_unsure_response(frame) for frame in _frames(error.__traceback__) if _belongs(frame, package))


def _belongs(frame: FrameType, package: str) -> bool:
    name = frame.f_globals.get("__name__")
    return isinstance(name, str) and name.partition(".")[0] == package


def _holds_unsure_response(frame: FrameType) -> bool:
    """Whether a local of the tool's frame is a response that leaves it open whether the effect happened."""
    for value in list(frame.f_locals.values()):
        try:
            status = _status(value)
        except Exception:  # noqa: BLE001 - a property of somebody's object; what cannot be read proves nothing
            return True
        if status is not None and (status >= 500 or status in _UNSURE_STATUS):
            return True
    return False


def _last(traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback


def _frames(traceback: TracebackType | None) -> Iterator[FrameType]:
    while traceback is not None:
        yield traceback.tb_frame
        traceback = traceback.tb_next
