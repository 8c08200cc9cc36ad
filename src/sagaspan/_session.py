"""The session: the run that the calls outside any run belong to, one for each process and guard."""

from __future__ import annotations

import logging
from typing import Final

from sagaspan import _fork as fork
from sagaspan import _owner as owner
from sagaspan._clock import new_id, now_us
from sagaspan._context import check_may_start
from sagaspan._reentry import once
from sagaspan._tool import Tool
from sagaspan.exceptions import StoreUnavailable
from sagaspan.ledger import transitions
from sagaspan.ledger.fail_open import Outage, may_run_unrecorded, unrecorded
from sagaspan.ledger.judgement import LOST, Verdict
from sagaspan.ledger.leases import Lease
from sagaspan.ledger.records import SESSION, RunRecord, RunState
from sagaspan.ledger.store import RunChange, Store
from sagaspan.ledger.transitions import RunEvent

_log = logging.getLogger("sagaspan")
_OPENING: Final = "the beginning of its session"
_LOOKED_AT: Final = 100
"""The newest runs among which a new session looks for those of dead processes: a ledger may have thousands."""


def end_session(store: Store, run: RunRecord) -> None:
    """Record that the session of a dead process is over; raises ``StoreError``."""
    after, audit = transitions.move_run(
        run, RunEvent.FAIL, now_us(), detail=LOST[Verdict.DEAD], reason="interrupted",
        owner=owner.this_process(), epoch=run.epoch + 1,
    )  # fmt: skip
    store.commit([RunChange(after, audit, run.version)], synced=False)


class Session:
    """The session of a guard over one store; nothing is written before its first call."""

    def __init__(self, store: Store, namespace: str, lease: Lease, outage: Outage | None) -> None:
        self._store = store
        self._namespace = namespace
        self._lease = lease
        self.outage = outage
        self._record: RunRecord | None = None
        self._lock = fork.new_lock()

    def record_for(self, tool: Tool) -> RunRecord:
        """The session's run; with ``fail_open`` and the store down, one that is not on record, for a read."""
        if self.outage is None or not may_run_unrecorded(tool):
            return self.record()
        if not self.outage.goes_on:
            try:
                return self.record()
            except StoreUnavailable as error:
                self.outage.began(error)
        return unrecorded(self._new())

    def record(self) -> RunRecord:
        """The session's run, on record; raises ``StoreError``."""
        if self._record is not None and owner.is_self(self._record.owner):
            return self._record
        with once(self._lock, _OPENING):
            if self._record is None or not owner.is_self(self._record.owner):
                record = self._new()
                opened, audit = transitions.open_run(record)
                token = owner.run_token(self._store.url, record.namespace, record.id)
                owner.hold(token)
                try:
                    self._lease.cover()
                    self._store.commit([RunChange(opened, audit)], synced=False)
                except BaseException:
                    owner.drop(token)
                    raise
                self._record = opened
                self._end_dead()
        return self._record

    def _end_dead(self) -> None:
        """End the sessions of processes that are dead: nothing goes on in one, and no program asks for it again."""
        for run in self._store.list_runs(states=[RunState.RUNNING], namespace=self._namespace, limit=_LOOKED_AT):
            token = owner.run_token(self._store.url, run.namespace, run.id)
            if run.is_session and owner.proof(run.owner, token) is owner.Proof.DEAD:
                end_session(self._store, run)

    def _new(self) -> RunRecord:
        check_may_start("a call of a tool")
        now = now_us()
        return RunRecord(
            namespace=self._namespace, id=f"{SESSION}-{new_id(now)}", name=SESSION, state=RunState.RUNNING,
            input_fingerprint=SESSION, owner=owner.this_process(), created_us=now, started_us=now,
        )  # fmt: skip

    def forget(self) -> None:
        """Begin another one with the next call: this process was forked from the one whose session it was."""
        self._record = None

    def end(self) -> None:
        """Complete it; the next call begins another one."""
        with once(self._lock, _OPENING):
            session, self._record = self._record, None
        if session is not None and owner.is_self(session.owner):
            after, audit = transitions.move_run(session, RunEvent.COMPLETE, now_us())
            try:
                self._store.commit([RunChange(after, audit, session.version)], synced=False)
            except StoreUnavailable as error:
                if self.outage is None:
                    raise
                _log.warning("the end of the session is not recorded (fail_open=True): %s", error)
            owner.drop(owner.run_token(self._store.url, session.namespace, session.id))
