"""What is going on in a run and in those nested in it: leaving waits for it before anything is undone."""

from __future__ import annotations

import threading

from sagaspan.exceptions import RunClosed
from sagaspan.ledger.records import RunState


class InFlight:
    """The calls, and nested runs being entered or left, of the run ``run_id``; ``outer`` is of the one around it.

    Each is a lock of its own that it has as long as it goes on, and no number in a counter: the interpreter gives a
    lock back in one step with the end of its ``with``, so a Ctrl-C leaves none counted that is over, for which leaving
    the run would wait. Only a call of a model is no block, and gives its lock back itself (``LlmCall.end``).
    """

    def __init__(self, run_id: str, outer: InFlight | None) -> None:
        self._run_id = run_id
        self._outer = outer
        self._known: set[threading.Lock] = set()
        self._closed = False

    def __bool__(self) -> bool:
        return any(one.locked() for one in self._known.copy())

    def one(self) -> threading.Lock:
        """For ``with``: within it one more is in flight, which asks by ``check_open`` first whether it may be."""
        one = threading.Lock()
        self._know(one)
        return one

    def _know(self, one: threading.Lock) -> None:
        self._known.add(one)
        if self._outer is not None:
            self._outer._know(one)  # noqa: SLF001 - of the same class

    def forget(self, one: threading.Lock) -> None:
        """It is over."""
        self._known.discard(one)
        if self._outer is not None:
            self._outer.forget(one)

    def close(self) -> None:
        """The run is left to be undone: what began now, also in what is nested in it, would not be undone with it."""
        self._closed = True

    def check_open(self, what: str) -> None:
        """Raises ``RunClosed``, saying ``what`` did not come about, if this run or one around it is closed."""
        if self._closed:
            raise RunClosed(f"the run {self._run_id!r} ends and is undone; {what}", status=RunState.RUNNING)
        if self._outer is not None:
            self._outer.check_open(what)
