"""``guard.check_loop``: counting calls that are made outside the guard, as AgentFuse does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from sagaspan import codecs, loops
from sagaspan._clock import now_us
from sagaspan._signals import Signals
from sagaspan.exceptions import ConfigurationError
from sagaspan.keys import fingerprint
from sagaspan.middleware.loop import refusal


def check_loop(signals: Signals, tool: str, args: Mapping[str, Any], allowed: int | Literal[False]) -> None:
    """Count one call; raises ``LoopDetected`` if it is one too many, or ``ConfigurationError``."""
    if not isinstance(args, Mapping):
        raise ConfigurationError(
            f"check_loop({tool!r}): its arguments are a {type(args).__name__}; pass a mapping of names to values"
        )
    try:
        digest = fingerprint([tool, codecs.to_json(dict(args))])
    except codecs.Unencodable as problem:
        raise ConfigurationError(f"check_loop({tool!r}): its arguments cannot be compared: {problem}") from problem
    if allowed is False:
        return
    verdict = loops.judge_count(signals.ring, tool, digest, allowed=allowed, refusals=signals.refusals)
    if verdict is not None:
        signals.refusals += 1
        raise refusal(tool, verdict)
    now = now_us()
    signals.ring = loops.after(signals.ring, loops.Signal(tool, digest, None, None, now, now))
