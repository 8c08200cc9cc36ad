"""Forgetting what is over, a little at a time, so that agents get on with their work in between."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from sagaspan import _clock as clock
from sagaspan import _owner as owner
from sagaspan._durations import microseconds
from sagaspan.ledger.records import SETTLED, CallRecord, Phase, RunRecord
from sagaspan.ledger.retention import SETTLED_RUNS, Kept, Rules, call_kept_because, kept_because
from sagaspan.ledger.store import Family, Forgotten, Store

BATCH_RUNS: Final = 50
BATCH_CALLS: Final = 500
"""At most so many in one transaction, unless one run has more: some ten milliseconds."""

_ALL: Final = 2**31
PAUSE_SECONDS: Final = 0.03
"""Between two transactions: who waits for the file gets it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What a prune forgot, or would. ``kept`` counts what is old and stays: ``open``, ``key``, ``recent``.

    ``audit_rows`` is None of a dry run, which counts none. ``spare_bytes`` is room within the ledger's file that new
    records use first; None if the store does not say.
    """

    runs: int = 0
    calls: int = 0
    audit_rows: int | None = 0
    kept: Mapping[str, int] = field(default_factory=dict)
    spare_bytes: int | None = None


class Pruner:
    """Forgets settled runs and calls of one store; ``stop`` is asked, and ``progress`` told, after every batch."""

    def __init__(
        self,
        store: Store,
        *,
        namespace: str | None,
        before_us: int,
        forget_keys: bool,
        progress: Callable[[Pruned], None] = lambda _: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._store = store
        self._namespace = namespace
        self._rules = Rules(before_us=before_us, forget_keys=forget_keys)
        self._progress = progress
        self._stop = stop
        self._actor = owner.os_user()
        self._done = Forgotten()
        self._kept: Counter[str] = Counter()

    def __call__(self, *, dry_run: bool) -> Pruned:
        """Forget what may be forgotten, or count it."""
        late = self._store.late_calls(_ALL, namespace=self._namespace)
        self._rules = replace(self._rules, undecided=frozenset(call.id for call in late))
        for session in self._sessions():
            self._forget_calls_of(session, dry_run=dry_run)
        for families in self._families():
            self._forget(families, dry_run=dry_run)
        done = self._so_far(spare_bytes=self._store.spare_bytes())
        return replace(done, audit_rows=None) if dry_run else done

    # -- runs --------------------------------------------------------------------------------------------------

    def _families(self) -> Iterator[list[Family]]:
        """What may be forgotten, in batches."""
        batch: list[Family] = []
        for run in self._settled_runs():
            if self._stop():
                return
            family = self._family(run)
            reason = kept_because(family, self._rules)
            if reason is not None:
                self._kept[reason] += 1
                continue
            batch.append(family)
            if len(batch) >= BATCH_RUNS or sum(len(family.calls) for family in batch) >= BATCH_CALLS:
                yield batch
                batch = []
        if batch:
            yield batch

    def _settled_runs(self) -> Iterator[RunRecord]:
        """Outermost runs that are settled, the oldest first; the calls of a session are looked at one by one."""
        for page in self._pages():
            yield from (run for run in page if self._is_outermost(run) and not self._has_calls_of_its_own(run))

    def _pages(self) -> Iterator[list[RunRecord]]:
        after: RunRecord | None = None
        while page := self._store.old_runs(
            self._rules.before_us, states=SETTLED_RUNS, namespace=self._namespace, after=after, limit=500
        ):
            after = page[-1]
            yield page

    def _is_outermost(self, run: RunRecord) -> bool:
        return run.parent_id is None or self._store.get_run(run.namespace, run.parent_id) is None

    def _has_calls_of_its_own(self, run: RunRecord) -> bool:
        return run.is_session and bool(self._store.calls_after(run.namespace, run.id, None, limit=1))

    def _family(self, run: RunRecord) -> Family:
        inner = [self._family(child) for child in self._store.children_of(run.namespace, run.id)]
        calls = (*self._store.calls_of(run.namespace, run.id), *(call for one in inner for call in one.calls))
        return Family(runs=(run, *(one for each in inner for one in each.runs)), calls=calls)

    def _forget(self, families: Sequence[Family], *, dry_run: bool) -> None:
        if dry_run:
            runs, calls = sum(len(one.runs) for one in families), sum(len(one.calls) for one in families)
            self._count(Forgotten(runs=runs, calls=calls))
            return
        self._count(self._store.forget(families, actor=self._actor))
        clock.sleep(PAUSE_SECONDS)

    # -- calls outside a run -----------------------------------------------------------------------------------

    def _sessions(self) -> Iterator[RunRecord]:
        """Those that go on too: a process that lives for a year has one session."""
        going_on = [run for run in self._store.unfinished_runs() if self._namespace in (None, run.namespace)]
        yield from (run for run in going_on if run.is_session)
        for page in self._pages():
            yield from (run for run in page if run.is_session)

    def _forget_calls_of(self, session: RunRecord, *, dry_run: bool) -> None:
        after: CallRecord | None = None
        forgotten = 0
        while not self._stop():
            page = self._store.calls_after(session.namespace, session.id, after, limit=BATCH_CALLS)
            if not page:
                break
            after = page[-1]
            batch = [call for call in page if self._may_go(call)]
            forgotten += len(batch)
            if dry_run:
                self._count(Forgotten(calls=len(batch)))
            elif batch:
                self._count(self._store.forget_calls(batch, actor=self._actor))
                clock.sleep(PAUSE_SECONDS)
        if not dry_run and (self._forget_approvals_of(session) or forgotten):
            self._forget_audit_of(session)

    def _may_go(self, call: CallRecord) -> bool:
        reason = call_kept_because(call, self._rules)
        if reason is None and call.phase is Phase.COMPENSATION:
            step = self._store.get_call(call.compensates or "")
            if step is not None and step.state not in SETTLED:
                reason = Kept.OPEN  # how often it was tried decides when it is tried again
        if reason is not None:
            self._kept[reason] += 1
        return reason is None

    def _forget_approvals_of(self, session: RunRecord) -> int:
        forgotten = 0
        while not self._stop():
            gone = self._store.forget_approvals(
                session.namespace, session.id, self._rules.before_us, limit=BATCH_CALLS, actor=self._actor
            )
            forgotten += gone
            if gone < BATCH_CALLS:
                break
            clock.sleep(PAUSE_SECONDS)
        return forgotten

    def _forget_audit_of(self, session: RunRecord) -> None:
        after = 0
        forgotten = self._store.forgotten_of(session.namespace, session.id)
        while not self._stop():
            gone, last = self._store.forget_audit(
                session.namespace, session.id, forgotten, after, limit=4 * BATCH_CALLS, actor=self._actor
            )
            if last is None:
                return
            after = last
            self._count(Forgotten(audit_rows=gone))
            clock.sleep(PAUSE_SECONDS if gone else 0)

    # -- the report --------------------------------------------------------------------------------------------

    def _count(self, more: Forgotten) -> None:
        self._done += more
        self._progress(self._so_far())

    def _so_far(self, *, spare_bytes: int | None = None) -> Pruned:
        done = self._done
        return Pruned(
            runs=done.runs, calls=done.calls, audit_rows=done.audit_rows, kept=dict(self._kept),
            spare_bytes=spare_bytes,
        )  # fmt: skip


def cutoff_us(older_than: float | dt.timedelta) -> int:
    """The moment ``older_than`` (seconds, or a ``timedelta``) ago; raises ``ConfigurationError``."""
    return clock.now_us() - microseconds(older_than, "older_than")
