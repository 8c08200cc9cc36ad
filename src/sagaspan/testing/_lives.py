"""The life of one process on a ledger: every durable step is a point, before and after, at which it can die."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn, TypeGuard, TypeVar, cast

from sagaspan.ledger.leases import THREAD
from sagaspan.ledger.records import LeaseRecord, Phase
from sagaspan.ledger.store import ApprovalChange, CallChange, Change, Commit, RunChange, Store
from sagaspan.ledger.transitions import CallEvent, RunEvent

T = TypeVar("T")


class Crash(BaseException):
    """The process died here, like after a SIGKILL: no handler of it may do anything that lasts."""


class Life:
    """One process, from its start to its end: the ``points`` it passed, and the one at which it dies.

    ``kill``: by a real SIGKILL, else by ``Crash``, after which it writes nothing, reads nothing and has no effect.
    """

    def __init__(self, *, die_at: str | None = None, kill: bool = False) -> None:
        self.points: list[str] = []
        self.dead = False
        self.die_at = die_at
        self._kill = kill
        self._passed: Counter[str] = Counter()
        self._lock = threading.Lock()

    def step(self, subject: str, what: str, action: Callable[[], T]) -> T:
        """Do something that lasts; before and after it are points."""
        self._pass(f"{subject}: before {what}")
        done = action()
        self._pass(f"{subject}: after {what}")
        return done

    def check(self) -> None:
        """Raise ``Crash`` if this process is dead."""
        if self.dead:
            raise Crash(self.die_at)

    def _pass(self, point: str) -> None:
        with self._lock:
            self.check()
            self._passed[point] += 1
            if (times := self._passed[point]) > 1:
                point = f"{point} ({times})"
            self.points.append(point)
            if point == self.die_at:
                self._die()

    def _die(self) -> NoReturn:
        if self._kill:
            os.kill(os.getpid(), signal.SIGKILL)
        self.dead = True
        raise Crash(self.die_at)


class MortalStore:
    """A store as one process sees it: its commits are points, and once the process is dead it is out of reach."""

    def __init__(self, store: Store, life: Life) -> None:
        self._store = store
        self._life = life
        self._leased = False

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._store, name)
        if callable(value):  # what the store is called is no access: who only forgets it goes on to its end
            self._life.check()
        return value

    def commit(self, changes: Sequence[Change], *, synced: bool) -> Commit:
        """As the store's own, between two points."""
        return self._life.step(*named(changes), lambda: self._store.commit(changes, synced=synced))

    def renew(self, lease: LeaseRecord) -> None:
        """As the store's own; the first one, without which nothing is claimed, between two points."""
        if threading.current_thread().name == THREAD:  # at any time, and it need not know of the death
            if not self._life.dead:
                self._store.renew(lease)
        elif self._leased:
            self._life.check()
            self._store.renew(lease)
        else:
            self._leased = True
            self._life.step("process", "lease", lambda: self._store.renew(lease))

    def close(self) -> None:
        """As the store's own; the dead have nothing open."""
        self._store.close()


def mortal(store: Store, life: Life) -> Store:
    """``store`` as the process of ``life`` sees it."""
    return cast(Store, MortalStore(store, life))


# -- what a commit is called ---------------------------------------------------------------------------------------

_WORDS: Final = {
    CallEvent.SENDING: "sending mark",
    **dict.fromkeys((CallEvent.SUCCEED, CallEvent.FAIL, CallEvent.LOSE), "settle"),
    **dict.fromkeys((CallEvent.COMPENSATION_SUCCEEDED, CallEvent.COMPENSATION_FAILED), "settle"),
    **dict.fromkeys((CallEvent.COMPENSATE, CallEvent.COMPENSATE_IN_DOUBT), "claim"),
}
_UNDOING: Final = (
    CallEvent.COMPENSATE, CallEvent.COMPENSATE_IN_DOUBT, CallEvent.COMPENSATION_SUCCEEDED,
    CallEvent.COMPENSATION_FAILED,
)  # fmt: skip
_RUN_WORDS: Final = {
    RunEvent.COMPENSATE: "rollback decision",
    **dict.fromkeys(
        (RunEvent.COMPLETE, RunEvent.FAIL, RunEvent.PAUSE, RunEvent.HOLD, RunEvent.COMPENSATED,
         RunEvent.PARTIALLY_COMPENSATED),
        "end",
    ),
}  # fmt: skip


def named(changes: Sequence[Change]) -> tuple[str, str]:
    """Who a commit is about, and what it says: ``("charge", "claim")``, ``("run trip", "end")``."""
    last = next((change for change in reversed(changes) if isinstance(change, CallChange | RunChange)), None)
    if last is None:
        for change in reversed(changes):
            if isinstance(change, ApprovalChange):  # somebody is asked, or decides
                return change.record.tool, change.audit.event
        return "loops", "kept"  # what a resumed run repeats
    if isinstance(last, RunChange):
        event = last.audit.event.removeprefix("run.")
        return f"run {last.record.name}", _in_words(event, _RUN_WORDS)
    step = next((change for change in changes if _is_undoing(change)), None)
    if step is not None:
        return f"undo {step.record.tool}", _in_words(step.audit.event, _WORDS)
    return last.record.tool, _in_words(last.audit.event, _WORDS)


def _is_undoing(change: Change) -> TypeGuard[CallChange]:
    return isinstance(change, CallChange) and change.record.phase is Phase.FORWARD and change.audit.event in _UNDOING


def _in_words(event: str, words: dict[Any, str]) -> str:
    return words.get(event, event.replace("_", " "))
