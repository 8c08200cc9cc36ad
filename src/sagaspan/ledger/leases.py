"""A process answers for its open calls and runs as long as its lease is renewed: one thread, one statement each third.

The lease is on disk before the first claim it covers. While it is fresh a call pays one comparison for it. A process
that was stopped past its lease and goes on is fenced by the epochs and versions of its records, not by this clock.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final

from sagaspan import _clock as clock
from sagaspan import _fork as fork
from sagaspan import _owner as owner
from sagaspan._checks import masked
from sagaspan._clock import boot_us, monotonic, now_us
from sagaspan.exceptions import ConfigurationError, StoreError
from sagaspan.ledger import watching
from sagaspan.ledger.records import LeaseRecord
from sagaspan.ledger.store import Store

_log = logging.getLogger("sagaspan")
VARIABLE: Final = "SAGASPAN_LEASE_SECONDS"
THREAD: Final = "sagaspan-lease"
"""The name of the thread that renews."""

LEASE_SECONDS: Final = 30.0
HURRY_SECONDS: Final = 1.0
"""How soon what could not be settled is tried again."""

_FORGET_US: Final = 24 * 3600 * 1_000_000
_all: Final[weakref.WeakSet[Lease]] = weakref.WeakSet()


class Lease:
    """This process's lease on one ledger.

    ``settle`` saves what could not be saved when it ended; ``forked`` tells a child to forget its parent's work;
    ``began`` is told whenever it is renewed for a claim; what is claimed in the ``fresh`` seconds after that renews
    nothing.
    """

    def __init__(self, store: Store) -> None:
        self.settle: Callable[[], None] = lambda: None
        self.forked: list[Callable[[], None]] = []
        self.behind = False
        self.began: Callable[[], None] = lambda: None
        self.seconds = _seconds()
        self.fresh = self.seconds / 2
        self._store = store
        self._fresh_until = 0.0
        self._lock = fork.new_lock()
        self._known = False
        _all.add(self)

    def begin_again(self) -> None:
        """A forked child is another owner: it has no lease and nothing to settle."""
        self._fresh_until = 0.0
        self._known = self.behind = False
        for forget in self.forked:
            forget()

    @property
    def pause(self) -> float:
        """Seconds until the next beat."""
        return min(HURRY_SECONDS, self.seconds / 3) if self.behind else self.seconds / 3

    def cover(self) -> None:
        """Answer for what this process holds; the lease is on disk when this returns. Raises ``StoreUnavailable``."""
        if monotonic() >= self._fresh_until:
            with self._lock:
                self._renew()
            _watch(self)
            watching.watch(self._store)
            self.began()

    def hurry(self) -> None:
        """Something could not be settled: try again soon."""
        self.behind = True
        _watch(self)

    def beat(self) -> None:
        """Renew, and settle what is left; never raises."""
        try:
            with self._lock:
                if not _keeper.watches(self):
                    return
                self._renew()
                self.settle()
            self.behind = False
        except StoreError as error:
            _log.warning("the lease on %s could not be renewed, or a call settled; it is tried again: %s",
                         masked(self._store.url), error)  # fmt: skip

    def lapse(self) -> None:
        """Nothing is open: let the next claim renew first."""
        self._fresh_until = 0.0

    @property
    def store(self) -> Store:
        """The ledger it is on, as this process has opened it."""
        return self._store

    def release(self) -> None:
        """Answer for nothing more; when this returns, the store is not used from here again."""
        _keeper.forget(self)
        watching.unwatch(self._store)
        with self._lock:
            self.lapse()

    def _renew(self) -> None:
        started, ttl_us = monotonic(), round(self.seconds * 1e6)
        now, boot = now_us(), boot_us()
        if not self._known:
            self._store.forget_leases(now - _FORGET_US)
        self._store.renew(
            LeaseRecord(
                owner=owner.this_process(), renewed_us=now, until_us=now + ttl_us, until_boot_us=boot + ttl_us,
                ttl_us=ttl_us,
            )
        )  # fmt: skip
        self._known = True
        self._fresh_until = started + self.fresh


class _Keeper:
    """The one thread of this process that renews its leases, while anything is open.

    It is woken by a queue. A condition is written in Python: a Ctrl-C within it would leave its lock taken, and this
    thread waiting for that while its leases end.
    """

    def __init__(self) -> None:
        self._leases: set[Lease] = set()
        self._lock = fork.new_lock()
        self._woken: SimpleQueue[None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def watch(self, lease: Lease) -> None:
        """Renew ``lease`` from now on."""
        with self._lock:
            self._leases.add(lease)
            self._start()
        self._woken.put(None)

    def watches(self, lease: Lease) -> bool:
        """Whether ``lease`` is renewed."""
        return lease in self._leases

    def forget(self, lease: Lease) -> None:
        """Renew ``lease`` no more."""
        self._leases.discard(lease)
        self._woken.put(None)

    def _start(self) -> None:
        if self._thread is not None:
            return
        self._thread = threading.Thread(target=self._keep, name=THREAD, daemon=True)
        try:
            self._thread.start()
        except BaseException as error:
            self._thread = None
            if not isinstance(error, RuntimeError):
                raise
            # The interpreter is shutting down; what is claimed now has a lease of its own.

    def _keep(self) -> None:
        while leases := self._wait():
            for lease in leases:
                lease.beat()

    def _wait(self) -> list[Lease]:
        """Wait for the next beat; empty if nothing is open any more, and this thread ends."""
        due = self._next_beat()
        while (left := due - monotonic()) > 0 and self._leases:
            with contextlib.suppress(Empty):
                self._woken.get(timeout=left)
            due = min(due, self._next_beat())
        with self._lock:
            if self._nothing_open():
                self._thread = None
                return []
            return list(self._leases)

    def _next_beat(self) -> float:
        return monotonic() + min((lease.pause for lease in self._leases.copy()), default=0.0)

    def _nothing_open(self) -> bool:
        if owner.holding() and self._leases:
            return False
        # The leases lapse before we look again: who holds something after that finds his lapsed, and renews it.
        for lease in self._leases:
            lease.lapse()
        if owner.holding() and self._leases:
            return False
        self._leases.clear()
        return True

    def begin_again(self) -> None:
        """A forked child watches nothing yet."""
        self._leases = set()
        self._woken = SimpleQueue()
        self._thread = None
        for lease in _all:
            lease.begin_again()


_keeper: Final = _Keeper()


def _watch(lease: Lease) -> None:
    # A process that is only played, or time that stands still, has no background: there who works longer than the
    # lease is one that was stopped.
    if clock.is_real() and not owner.is_played():
        _keeper.watch(lease)


def release_all_on(store: Store) -> None:
    """Answer for nothing more on ``store``: its files may go."""
    for lease in list(_all):
        if lease.store is store:
            lease.release()


def stores_at(url: str) -> list[Store]:
    """With what this process has opened the ledger of ``url`` and answers for it."""
    return [lease.store for lease in list(_all) if lease.store.url == url]


def lapse_all() -> None:
    """Another clock is read from now on: let the next claim on each ledger renew first."""
    for lease in list(_all):
        lease.lapse()


fork.hooks(in_child=_keeper.begin_again)


def _seconds() -> float:
    given = os.environ.get(VARIABLE)
    try:
        seconds = LEASE_SECONDS if given is None else float(given)
    except ValueError:
        seconds = 0.0
    if not 0.3 <= seconds <= 3600:
        raise ConfigurationError(f"{VARIABLE}={given} is no number of seconds between 0.3 and 3600")
    return seconds
