"""What an exception says of a tool's effect: ``failed`` needs proof, everything else is ``unknown``.

The rule is section 3 of the design ("What an exception means"). Proof is: ``NotApplied`` or a type the policy names; a
request that was never sent; an HTTP refusal (4xx other than 408, 409, 425); or a ``raise`` statement of the tool's
own package that was not made while handling something else. The last is a heuristic: it looks for signs of an answer
that leaves the effect open, and ``error_means`` overrides it. A framework or an adapter is no tool's own package: what
it raises is made of another program's answer.
"""

from __future__ import annotations

import dis
import logging
from collections.abc import Iterator, Mapping
from itertools import islice
from types import FrameType, TracebackType
from typing import Any, Final

from sagaspan._chains import LOST, chain_of, never_sent, status_of
from sagaspan.exceptions import NotApplied
from sagaspan.policy import Outcome, Policy

_log = logging.getLogger("sagaspan")
_UNSURE_STATUS: Final = frozenset({408, 409, 425})
_RAISE: Final = dis.opmap["RAISE_VARARGS"]
_ANSWERS: Final = frozenset({"answer", "http", "r", "rc", "reply", "res", "resp", "response", "result", "ret"})
"""Names of numbers that are a status, beside those that say ``status`` or end in ``code``."""
_MOST_ITEMS: Final = 64
_LEVELS: Final = 2
"""How many tuples and mappings inside each other are looked into."""
_FRAMEWORKS: Final = frozenset({"crewai", "fastmcp", "langchain", "langgraph", "mcp", "mcpadapt"})
"""Their packages, and those of their families (``langchain_mcp_adapters``)."""


def outcome_of(
    error: BaseException, policy: Policy, module: str, handling: BaseException | None, arguments: Mapping[str, Any]
) -> Outcome:
    """Whether ``error``, which left a body of package ``module``, proves that nothing happened.

    The body was called with ``arguments``. ``handling`` is the exception that was being handled when the body started.
    A function in ``error_means`` that raises or answers something else counts as ``unknown``.
    """
    try:
        return "failed" if _proves_nothing_happened(error, policy, module, handling, arguments) else "unknown"
    except Exception as problem:  # noqa: BLE001 - a classifier or an error's own property that breaks proves nothing
        if policy.error_means is not None:
            _log.error("error_means failed for a %s, which counts as unknown: %r", type(error).__name__, problem)
        return "unknown"


def _proves_nothing_happened(
    error: BaseException, policy: Policy, module: str, handling: BaseException | None, arguments: Mapping[str, Any]
) -> bool:
    if policy.error_means is not None:
        means = policy.error_means if isinstance(policy.error_means, str) else policy.error_means(error)
        if means not in ("failed", "unknown"):
            raise ValueError(f"it gave {means!r}, neither 'failed' nor 'unknown'")
        return means == "failed"
    if not isinstance(error, Exception):  # cancelled or interrupted in the middle
        return False
    if isinstance(error, (NotApplied, *policy.not_applied)):
        return True
    chain = list(chain_of(error, handling))
    for link in chain:  # the outermost that says anything decides: what came before it may be of another request
        if never_sent(link) or _refused(link):
            return True
        if _in_doubt(link):
            return False
    return len(chain) == 1 and _raised_by(module, error, arguments)


def _refused(error: BaseException) -> bool:
    status = status_of(error)
    return status is not None and 400 <= status < 500 and status not in _UNSURE_STATUS


def _in_doubt(error: BaseException) -> bool:
    """Whether the error itself says that a request was sent and nobody knows what became of it."""
    return isinstance(error, LOST) or _unsure(status_of(error))


def _unsure(status: int | None) -> bool:
    return status is not None and (status >= 500 or status in _UNSURE_STATUS)


def _raised_by(module: str, error: BaseException, arguments: Mapping[str, Any]) -> bool:
    # A group stands for several errors, and none of them left a statement of the tool's own.
    if isinstance(error, (AssertionError, BaseExceptionGroup)):
        return False
    package = module.partition(".")[0]
    if package.partition("_")[0] in _FRAMEWORKS:
        return False
    last = _last(error.__traceback__)
    if last is None or not _belongs(last.tb_frame, package):
        return False
    if last.tb_frame.f_code.co_code[last.tb_lasti] != _RAISE:
        return False  # a KeyError of a subscript is an accident, not a statement
    own = (frame for frame in _frames(error.__traceback__) if _belongs(frame, package))
    return not any(_holds_unsure_response(frame, arguments) for frame in own)


def _belongs(frame: FrameType, package: str) -> bool:
    name = frame.f_globals.get("__name__")
    return isinstance(name, str) and name.partition(".")[0] == package


def _holds_unsure_response(frame: FrameType, arguments: Mapping[str, Any]) -> bool:
    """Whether a local of the tool's frame is a response or a status that leaves it open whether the effect happened.

    What the tool was called with is no answer to it.
    """
    for name, value in list(frame.f_locals.items()):
        given = arguments.get(name)
        try:
            if _unsure(status_of(value)):
                return True
            is_given = value is given or (type(value) is type(given) is int and value == given)
            if not is_given and _holds_unsure_status(value, name, _LEVELS):
                return True
        except Exception:  # noqa: BLE001 - a property of somebody's object; what cannot be read proves nothing
            return True
    return False


def _holds_unsure_status(value: Any, name: object, levels: int) -> bool:
    """Whether ``value``, called ``name``, is such a status, or a tuple or mapping with one; runs no code of a user."""
    kind: type = type(value)  # isinstance would read the property __class__ of a proxy
    if issubclass(kind, int):
        return _names_a_status(name) and _is_unsure_number(value)
    if not levels:
        return False
    if issubclass(kind, tuple):
        items = islice(tuple.__iter__(value), _MOST_ITEMS)
        return any(_is_unsure_number(item) or _holds_unsure_status(item, None, levels - 1) for item in items)
    if issubclass(kind, dict):
        pairs = islice(dict.items(value), _MOST_ITEMS)
        return any(_holds_unsure_status(item, key, levels - 1) for key, item in pairs)
    return False


def _is_unsure_number(value: Any) -> bool:
    if not issubclass(type(value), int) or value is True or value is False:
        return False
    number = int.__index__(value)
    return 500 <= number <= 599 or number in _UNSURE_STATUS


def _names_a_status(name: object) -> bool:
    if type(name) is not str:
        return False
    name = name.lower()
    return "status" in name or name.endswith("code") or name in _ANSWERS


def _last(traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback


def _frames(traceback: TracebackType | None) -> Iterator[FrameType]:
    while traceback is not None:
        yield traceback.tb_frame
        traceback = traceback.tb_next
