"""What is going on in a run and in those nested in it: leaving waits for it before anything is undone."""

from __future__ import annotations

import threading

from sagaspan import _fork as fork
from sagaspan.exceptions import RunClosed
from sagaspan.ledger.records import RunState


class InFlight:
    """Counts calls, and nested runs being entered or left, of the run ``run_id``; ``outer`` is of the one around it."""

    def __init__(self, run_id: str, outer: InFlight | None) -> None:
        self._run_id = run_id
        self._outer = outer
        self._count = 0
        self._calls: set[threading.Lock] = set()
        self._closed = False
        self._lock = fork.new_lock()

    def __bool__(self) -> bool:
        return self._count > 0 or any(call.locked() for call in self._calls.copy())

    def call(self) -> threading.Lock:
        """For ``with``: within it this is one call in flight, which asks by ``check_open`` first whether it may be.

        The interpreter gives a lock back in one step with the end of its block: a Ctrl-C leaves none counted that is
        over, and leaving the run waits for nobody.
        """
        return self._known(threading.Lock())

    def _known(self, call: threading.Lock) -> threading.Lock:
        self._calls.add(call)
        return call if self._outer is None else self._outer._known(call)  # noqa: SLF001 - of the same class

    def forget(self, call: threading.Lock) -> None:
        """It is over."""
        self._calls.discard(call)
        if self._outer is not None:
            self._outer.forget(call)

    def close(self) -> None:
        """The run is left to be undone: what began now, also in what is nested in it, would not be undone with it."""
        with self._lock:
            self._closed = True

    def check_open(self, what: str) -> None:
        """Refuse, as ``begins`` does, what was counted and has done nothing yet."""
        self._check(what)
        if self._outer is not None:
            self._outer.check_open(what)

    def _check(self, what: str) -> None:
        if self._closed:
            raise RunClosed(f"the run {self._run_id!r} ends and is undone; {what}", status=RunState.RUNNING)

    def begins(self, what: str) -> None:
        """Count one; raises ``RunClosed``, saying ``what`` did not come about, if this run or one around is closed."""
        with self._lock:
            self._check(what)
            self._count += 1
        if self._outer is not None:
            try:
                self._outer.begins(what)
            except RunClosed:
                self._discount()
                raise

    def goes_on(self) -> None:
        """Count one that is not refused: it began before."""
        with self._lock:
            self._count += 1
        if self._outer is not None:
            self._outer.goes_on()

    def ended(self) -> None:
        """One that was counted is over."""
        self._discount()
        if self._outer is not None:
            self._outer.ended()

    def _discount(self) -> None:
        with self._lock:
            self._count -= 1
