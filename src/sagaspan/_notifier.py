"""Delivers notifications: reads on in the audit trail, keeps what is to be sent in the ledger, and sends it.

What was read and what is to be sent are saved together, and a message is taken away only when its receiver has said
2xx: so it arrives at least once, with the same id each time. One thread a process does it, while anything is open and
at the end; a plain call of a guard without hooks knows nothing of it.
"""

from __future__ import annotations

import atexit
import logging
import random
import threading
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sagaspan import _clock as clock
from sagaspan import _fork as fork
from sagaspan import _owner as owner
from sagaspan._clock import now_us
from sagaspan._post import Unsent, post
from sagaspan.exceptions import StoreError
from sagaspan.ledger.notices import notice_of
from sagaspan.ledger.records import DeliveryRecord
from sagaspan.ledger.store import DeliveryChange, HookChange, Store
from sagaspan.notify import Notify
from sagaspan.signing import signed

_log = logging.getLogger("sagaspan")
THREAD: Final = "sagaspan-notify"
LOOK_SECONDS: Final = 1.0
SEND_SECONDS: Final = 10.0
LAST_SECONDS: Final = 5.0
"""How long a process that ends waits for one receiver; what does not get through is sent by another process."""

ATTEMPTS: Final = 12
_FIRST_PAUSE: Final = 5.0
_LONGEST_PAUSE: Final = 3600.0
_GONE: Final = 410
_all: Final[weakref.WeakSet[Notifier]] = weakref.WeakSet()


class Notifier:
    """The hooks of one namespace of a ledger."""

    def __init__(self, store: Store, namespace: str, hooks: Sequence[Notify]) -> None:
        self._store = store
        self._namespace = namespace
        self._hooks = {hook.name: hook for hook in hooks}
        self._registered = False
        self._lock = fork.new_lock()
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        _all.add(self)

    def begin(self) -> None:
        """Something is going to happen: from here on the hooks are told. Raises ``StoreError``."""
        if not self._registered:
            self._register()
        if clock.is_real() and not owner.is_played():
            with self._lock:
                if self._thread is None:
                    self._closing.clear()
                    self._thread = threading.Thread(target=self._keep, name=THREAD, daemon=True)
                    self._thread.start()

    def round(self) -> None:
        """Read on, and send what is due. Raises ``StoreError``."""
        self._register()
        self._deliver(SEND_SECONDS)

    def _deliver(self, seconds: float) -> None:
        for name in self._hooks:
            self._collect(name)
        due = self._store.deliveries(namespace=self._namespace, hooks=[*self._hooks], due_us=now_us(), dead=False)
        for record in due:
            self._send(record, seconds)

    def finish(self) -> None:
        """Nothing more happens here: send what is left, once; never raises."""
        self._closing.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(LAST_SECONDS)
        if self._registered:
            self._registered = False
            try:
                self._deliver(LAST_SECONDS)
            except StoreError as error:
                _log.warning("notifications could not be sent; another process sends them: %s", error)

    def begin_again(self) -> None:
        """A forked child has no thread."""
        self._thread = None
        self._closing = threading.Event()

    # -- the thread --------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        while not self._closing.wait(LOOK_SECONDS):
            try:
                self.round()
            except StoreError as error:
                _log.warning("notifications could not be sent; it is tried again: %s", error)
            with self._lock:
                if not owner.holding():  # who begins something next starts another thread
                    self._thread = None
                    return
        with self._lock:
            self._thread = None

    # -- the outbox --------------------------------------------------------------------------------------------

    def _register(self) -> None:
        for name in self._hooks:
            if self._store.hook_cursor(self._namespace, name) is None:
                newest = self._store.newest_audit()
                self._store.commit([HookChange(self._namespace, name, newest)], synced=False)
        self._registered = True

    def _collect(self, name: str) -> None:
        """Put into the outbox what one hook is told of, with how far it has read."""
        cursor, upto = self._store.hook_cursor(self._namespace, name), self._store.newest_audit()
        if cursor is None or upto <= cursor:
            return
        wanted, found = self._hooks[name].events, []
        for seq, row in self._store.events(self._namespace, cursor, upto):
            notice = notice_of(self._store, row)
            if notice is not None and notice.kind in wanted:
                found.append(
                    DeliveryRecord(
                        id=f"{name}-{seq}-{row.at_us}", namespace=self._namespace, hook=name, kind=notice.kind,
                        about=notice.about, payload=notice.payload(row.at_us), next_us=now_us(), created_us=row.at_us,
                    )
                )  # fmt: skip
        read = HookChange(self._namespace, name, upto, cursor)
        self._store.commit([read, *(DeliveryChange(record) for record in found)], synced=True)

    def _send(self, record: DeliveryRecord, seconds: float) -> None:
        """One attempt: counted before it is made, so that two processes do not make it at once."""
        pause = min(_FIRST_PAUSE * 2**record.attempts, _LONGEST_PAUSE) * random.uniform(0.75, 1.25)  # noqa: S311
        tried = replace(record, attempts=record.attempts + 1, next_us=now_us() + int((pause + seconds) * 1e6))
        if not self._store.commit([DeliveryChange(tried, record.attempts)], synced=False):
            return
        problem, final = self._posted(record, seconds)
        if problem is None:
            self._store.commit([DeliveryChange(tried, done=True)], synced=False)
            return
        dead = final or tried.attempts >= ATTEMPTS
        if dead:
            _log.error(
                "the notification %s (%s) is given up: %s. See: sagaspan status", record.id, record.kind, problem
            )
        failed = replace(tried, error=problem, dead=dead)
        self._store.commit([DeliveryChange(failed, tried.attempts)], synced=False)

    def _posted(self, record: DeliveryRecord, seconds: float) -> tuple[str | None, bool]:
        """Why it did not get through (None: it did), and whether that is for good."""
        hook = self._hooks[record.hook]
        body = record.payload.encode()
        try:
            answer = post(hook.url, body, signed(record.id, body, hook.key(), now_us() / 1e6), seconds=seconds)
        except Unsent as error:
            return str(error), False
        if 200 <= answer.status < 300:
            return None, False
        return f"it answered with the status {answer.status}", answer.status == _GONE


def _begin_again() -> None:
    for notifier in list(_all):
        notifier.begin_again()


def _at_exit() -> None:
    for notifier in list(_all):
        notifier.finish()


fork.hooks(in_child=_begin_again)
atexit.register(_at_exit)
