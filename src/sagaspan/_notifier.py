"""Delivers notifications: reads on in the audit trail, keeps what is to be sent in the ledger, and sends it.

What was read and what is to be sent are saved together, and a message is taken away only when its receiver has said
2xx: so it arrives at least once, with the same id each time. One thread a process does it, while anything is open or
undelivered, and at the end; a plain call of a guard without hooks knows nothing of it.
"""

from __future__ import annotations

import atexit
import logging
import random
import threading
import weakref
from collections.abc import Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Final

from sagaspan import _clock as clock
from sagaspan import _fork as fork
from sagaspan import _metrics as metrics
from sagaspan import _owner as owner
from sagaspan._clock import monotonic, now_us
from sagaspan._post import Unsent, post
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
"""How long a process that ends waits for receivers; what does not get through is sent by another process."""

ATTEMPTS: Final = 12
_FIRST_PAUSE: Final = 5.0
_LONGEST_PAUSE: Final = 3600.0
_GONE: Final = 410
_all: Final[weakref.WeakSet[Notifier]] = weakref.WeakSet()


class Notifier:
    """The hooks of one namespace of a ledger."""

    def __init__(self, store: Store, namespace: str, hooks: Sequence[Notify], *, unannounced: float) -> None:
        """``unannounced``: for how many seconds after a ``begin`` something can happen without another one."""
        self._unannounced = unannounced
        self._store = store
        self._namespace = namespace
        self._hooks = {hook.name: hook for hook in hooks}
        self._registered = False
        self._lock = fork.new_lock()
        self._thread: threading.Thread | None = None
        self._said = ""
        self._closing: SimpleQueue[None] = SimpleQueue()
        self._begun = 0
        _all.add(self)

    def begin(self) -> None:
        """Something is going to happen: from here on the hooks are told. Raises ``StoreError``."""
        if not self._registered:
            self._register()
        if clock.is_real() and not owner.is_played():
            with self._lock:
                self._begun += 1
                if self._thread is None:
                    self._start()

    def _start(self) -> None:
        self._closing = SimpleQueue()
        self._thread = thread = threading.Thread(target=self._keep, args=(self._closing,), name=THREAD, daemon=True)
        try:
            thread.start()
        except BaseException:  # Ctrl-C: who begins next starts another
            self._thread = None
            raise

    def round(self) -> None:
        """Read on, and send what is due. Raises ``StoreError``."""
        self._register()
        self._deliver(len(self._hooks) * SEND_SECONDS)

    def _deliver(self, seconds: float) -> None:
        """One round, of so many seconds at most; who fails is not sent more in it, so that others are heard."""
        for hook in self._hooks.values():
            self._collect(hook)
        until, failed = monotonic() + seconds, set[str]()
        for record in self._kept(due_us=now_us()):
            left = min(until - monotonic(), SEND_SECONDS)
            if record.hook not in failed and left > 0 and not self._send(record, left):
                failed.add(record.hook)

    def _kept(self, due_us: int | None = None) -> Sequence[DeliveryRecord]:
        """What these hooks are still to be sent (and is due)."""
        return self._store.deliveries(namespace=self._namespace, hooks=[*self._hooks], due_us=due_us, dead=False)

    def finish(self) -> None:
        """Nothing more happens here: send what is left, once; never raises."""
        self._closing.put(None)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(LAST_SECONDS)
        if self._registered:
            self._registered = False
            try:
                self._deliver(LAST_SECONDS)
            except Exception as error:  # noqa: BLE001 - closing a guard fails for no notification
                _log.warning("notifications could not be sent; another process sends them: %s", error)

    def begin_again(self) -> None:
        """A forked child has no thread."""
        self._thread = None

    # -- the thread --------------------------------------------------------------------------------------------

    def _keep(self, closing: SimpleQueue[None]) -> None:
        """Look once a second while anything may happen here, and when something is to be sent again after that."""
        begun, until, next_us = 0, 0.0, 0
        while not _came(closing, LOOK_SECONDS):
            if owner.holding() or begun != self._begun:
                begun, until = self._begun, monotonic() + self._unannounced
            may_happen = monotonic() < until
            if not may_happen and now_us() < next_us:
                continue
            again_us = self._looked()
            next_us = 0 if may_happen else again_us or 0
            with self._lock:
                if not may_happen and again_us is None and begun == self._begun:  # who begins starts another thread
                    self._thread = None
                    return
        with self._lock:
            self._thread = None

    def _looked(self) -> int | None:
        """A round; returns when the next message is due (None: there is none)."""
        try:
            self.round()
            return min((record.next_us for record in self._kept()), default=None)
        except Exception as error:  # noqa: BLE001 - whatever it is: the thread that tells of trouble goes on
            if self._said != str(error):
                self._said = str(error)
                _log.warning("notifications could not be sent; it is tried again: %s", error)
            return None

    # -- the outbox --------------------------------------------------------------------------------------------

    def _register(self) -> None:
        for hook in self._hooks.values():
            for event in hook.events:
                name = _cursor_name(hook, event)
                if self._store.hook_cursor(self._namespace, name) is None:
                    newest = self._store.newest_audit()
                    self._store.commit([HookChange(self._namespace, name, newest)], synced=False)
        self._registered = True

    def _collect(self, hook: Notify) -> None:
        """Put into the outbox what one hook is told of, with how far it has read.

        It reads each kind of event for itself: another process may tell the same receiver of others.
        """
        upto, read = self._store.newest_audit(), dict[str, int]()
        for event in hook.events:
            cursor = self._store.hook_cursor(self._namespace, _cursor_name(hook, event))
            if cursor is not None and cursor < upto:
                read[event] = cursor
        if not read:
            return
        found = []
        for seq, row in self._store.events(self._namespace, min(read.values()), upto):
            notice = notice_of(self._store, row)
            if notice is not None and seq > read.get(notice.kind, upto):
                found.append(
                    DeliveryRecord(
                        id=f"{hook.name}-{seq}-{row.at_us}", namespace=self._namespace, hook=hook.name,
                        kind=notice.kind, about=notice.about, payload=notice.payload(row.at_us), next_us=now_us(),
                        created_us=row.at_us,
                    )
                )  # fmt: skip
        moves = [HookChange(self._namespace, _cursor_name(hook, event), upto, cursor) for event, cursor in read.items()]
        self._store.commit([*moves, *(DeliveryChange(record) for record in found)], synced=True)

    def _send(self, record: DeliveryRecord, seconds: float) -> bool:
        """One attempt, and whether it got through (or another process makes it).

        It is counted before it is made, for as long as it may take, so that two processes do not make it at once.
        """
        tried = replace(record, attempts=record.attempts + 1, next_us=_in(_pause(record) + seconds))
        if not self._store.commit([DeliveryChange(tried, record.attempts)], synced=False):
            return True
        problem, final = self._posted(record, seconds)
        if problem is None:
            self._store.commit([DeliveryChange(tried, done=True)], synced=False)
            metrics.notified(record.kind, "delivered")
            return True
        dead = final or tried.attempts >= ATTEMPTS
        if dead:
            _log.error(
                "the notification %s (%s) is given up: %s. See: sagaspan status", record.id, record.kind, problem
            )
        failed = replace(tried, error=problem, dead=dead, next_us=_in(_pause(record)))
        self._store.commit([DeliveryChange(failed, tried.attempts)], synced=False)
        metrics.notified(record.kind, "given_up" if dead else "failed")
        return False

    def _posted(self, record: DeliveryRecord, seconds: float) -> tuple[str | None, bool]:
        """Why it did not get through (None: it did), and whether that is for good."""
        hook = self._hooks[record.hook]
        body = record.payload.encode()
        try:
            headers = signed(record.id, body, hook.key(), now_us() / 1e6)
            answer = post(hook.url, body, headers, seconds=seconds, trust_env=hook.trust_env)
        except Unsent as error:
            return str(error), False
        if 200 <= answer.status < 300:
            return None, False
        return f"it answered with the status {answer.status}", answer.status == _GONE


def _came(queue: SimpleQueue[None], seconds: float) -> bool:
    """As ``Event.wait``, which is written in Python: a Ctrl-C in it could leave its lock taken."""
    try:
        queue.get(timeout=seconds)
    except Empty:
        return False
    return True


def _cursor_name(hook: Notify, event: str) -> str:
    return f"{hook.name} {event}"


def _pause(record: DeliveryRecord) -> float:
    """How long to wait before the attempt after the next one."""
    return min(_FIRST_PAUSE * 2.0**record.attempts, _LONGEST_PAUSE) * random.uniform(0.75, 1.25)  # noqa: S311


def _in(seconds: float) -> int:
    return now_us() + int(seconds * 1e6)


def _begin_again() -> None:
    for notifier in list(_all):
        notifier.begin_again()


def _at_exit() -> None:
    for notifier in list(_all):
        notifier.finish()


fork.hooks(in_child=_begin_again)
atexit.register(_at_exit)
