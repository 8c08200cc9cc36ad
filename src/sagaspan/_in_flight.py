"""What is going on in a run and in those nested in it: leaving waits for it before anything is undone."""

from __future__ import annotations

from sagaspan import _fork as fork
from sagaspan.exceptions import RunClosed
from sagaspan.ledger.records import RunState


class InFlight:
    """Counts calls, and nested runs being entered or left, of the run ``run_id``; ``outer`` is of the one around it."""

    def __init__(self, run_id: str, outer: InFlight | None) -> None:
        self._run_id = run_id
        self._outer = outer
        self._count = 0
        self._closed = False
        self._lock = fork.new_lock()

    def __bool__(self) -> bool:
        return self._count > 0

    def close(self) -> None:
        """The run is left to be undone: what began now, also in what is nested in it, would not be undone with it."""
        with self._lock:
            self._closed = True

    def check_open(self, what: str) -> None:
        """Refuse, as ``begins`` does, what was counted and has done nothing yet."""
        if self._closed:
            raise self._refusal(what)
        if self._outer is not None:
            self._outer.check_open(what)

    def _refusal(self, what: str) -> RunClosed:
        return RunClosed(f"the run {self._run_id!r} ends and is undone; {what}", status=RunState.RUNNING)

    def begins(self, what: str) -> None:
        """Count one; raises ``RunClosed``, saying ``what`` did not come about, if this run or one around is closed."""
        with self._lock:
            if self._closed:
                raise self._refusal(what)
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
