"""``guard.check_loop``: counting calls that are made outside the guard, as AgentFuse does."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from sagaspan import codecs, loops
from sagaspan._clock import now_us
from sagaspan._signals import Entry, Signals, counted
from sagaspan.exceptions import ConfigurationError, StoreUnavailable
from sagaspan.ledger.records import RunRecord
from sagaspan.middleware.loop import refusal

if TYPE_CHECKING:
    from sagaspan._engine import Engine
    from sagaspan._run import Run

_log = logging.getLogger("sagaspan")


def check_loop(
    engine: Engine, run: Run | None, tool: str, args: Mapping[str, Any], allowed: int | Literal[False]
) -> None:
    """Count one call; raises ``LoopDetected`` if it is one too many, ``ConfigurationError`` or ``StoreUnavailable``."""
    if not isinstance(args, Mapping):
        raise ConfigurationError(
            f"check_loop({tool!r}): its arguments are a {type(args).__name__}; pass a mapping of names to values"
        )
    try:
        digest = engine.digest([tool, codecs.to_json(dict(args))])
    except codecs.Unencodable as problem:
        raise ConfigurationError(f"check_loop({tool!r}): its arguments cannot be compared: {problem}") from problem
    if allowed is False:
        return
    signals = engine.signals if run is None else run.signals
    with signals.lock:
        if signals.is_repeated(tool, digest):  # what is on record counts once, as what is replayed of guarded tools
            return
        verdict, now = _verdict(engine, signals, run, tool, digest, allowed)
        if verdict is not None:
            signals.refusals += run is None or not run.record.on_record
            raise refusal(tool, verdict)
        signals.ring = loops.after(signals.ring, counted(tool, digest, now))


def _verdict(
    engine: Engine, signals: Signals, run: Run | None, tool: str, digest: str, allowed: int
) -> tuple[loops.Verdict | None, int]:
    """What is to be said of the call now, which is on record then; again, if another process counted meanwhile."""
    while True:
        verdict = loops.judge_count(signals.ring, tool, digest, allowed=allowed, refusals=signals.refusals)
        now = now_us()
        if run is None or _keep(engine, signals, run.record, None if verdict is not None else (now, tool, digest)):
            return verdict, now


def _keep(engine: Engine, signals: Signals, run: RunRecord, entry: Entry | None) -> bool:
    """Put it on record; with ``fail_open`` and the store down it is only remembered."""
    if not run.on_record:
        return True
    try:
        return signals.keep(engine.store, run, entry)
    except StoreUnavailable as error:
        if engine.outage is None:
            raise
        _log.warning("check_loop is not recorded (fail_open=True): %s", engine.outage.began(error))
        return True
