"""What an exception says of a tool's effect: ``failed`` needs proof, everything else is ``unknown``.

The rule is section 3 of the design ("What an exception means"). Proof is: ``NotApplied`` or a type the policy names; a
request that was never sent; an HTTP refusal (4xx other than 408, 409, 425); or a ``raise`` statement of the tool's
own package that was not made while handling something else. A framework or an adapter is no tool's own package: what
it raises is made of another program's answer.
"""

from __future__ import annotations

import dis
import logging
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Final

from sagaspan._chains import LOST, chain_of, never_sent, status_of
from sagaspan.exceptions import NotApplied
from sagaspan.policy import Outcome, Policy

_log = logging.getLogger("sagaspan")
_UNSURE_STATUS: Final = frozenset({408, 409, 425})
_RAISE: Final = dis.opmap["RAISE_VARARGS"]
_FRAMEWORKS: Final = frozenset({"crewai", "fastmcp", "langchain", "langgraph", "mcp", "mcpadapt"})
"""Their packages, and those of their families (``langchain_mcp_adapters``)."""


def outcome_of(error: BaseException, policy: Policy, module: str, handling: BaseException | None) -> Outcome:
    """Whether ``error``, which left a body of package ``module``, proves that nothing happened.

    ``handling`` is the exception that was being handled when the body started. A function in ``error_means`` that
    raises or answers something else counts as ``unknown``.
    """
    try:
        return "failed" if _proves_nothing_happened(error, policy, module, handling) else "unknown"
    except Exception as problem:  # noqa: BLE001 - a classifier or an error's own property that breaks proves nothing
        if policy.error_means is not None:
            _log.error("error_means failed for a %s, which counts as unknown: %r", type(error).__name__, problem)
        return "unknown"


def _proves_nothing_happened(error: BaseException, policy: Policy, module: str, handling: BaseException | None) -> bool:
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
    return len(chain) == 1 and _raised_by(module, error)


def _refused(error: BaseException) -> bool:
    status = status_of(error)
    return status is not None and 400 <= status < 500 and status not in _UNSURE_STATUS


def _in_doubt(error: BaseException) -> bool:
    """Whether the error itself says that a request was sent and nobody knows what became of it."""
    return isinstance(error, LOST) or _unsure(status_of(error))


def _unsure(status: int | None) -> bool:
    return status is not None and (status >= 500 or status in _UNSURE_STATUS)


def _raised_by(module: str, error: BaseException) -> bool:
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
    return not any(_holds_unsure_response(frame) for frame in _frames(error.__traceback__) if _belongs(frame, package))


def _belongs(frame: FrameType, package: str) -> bool:
    name = frame.f_globals.get("__name__")
    return isinstance(name, str) and name.partition(".")[0] == package


def _holds_unsure_response(frame: FrameType) -> bool:
    """Whether a local of the tool's frame is a response that leaves it open whether the effect happened."""
    for value in list(frame.f_locals.values()):
        try:
            if _unsure(status_of(value)):
                return True
        except Exception:  # noqa: BLE001 - a property of somebody's object; what cannot be read proves nothing
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
