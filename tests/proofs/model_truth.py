"""What must hold of a ledger whose truth is known: at each effect and each undo, and of what is on record.

Nothing here asks the library whether it was right. It reads records and histories, and what really happened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sagaspan.keys import BUSINESS_SCOPE
from sagaspan.ledger.committed import is_committed
from sagaspan.ledger.families import family, outermost
from sagaspan.ledger.records import CallRecord, CallState, Phase, RunRecord, RunState, names_of
from sagaspan.ledger.resolution import IN_DOUBT
from sagaspan.ledger.store import Store

if TYPE_CHECKING:
    from tests.proofs.model_world import World

MANY: Final = 10_000
_OPEN: Final = (CallState.RUNNING, CallState.COMPENSATING, *IN_DOUBT)
_OVER: Final = (RunState.COMPLETED, RunState.FAILED, RunState.COMPENSATED)
_SETTLED: Final = (CallState.DONE, CallState.FAILED, CallState.COMPENSATED, CallState.REFUSED)
_DECIDED: Final = ("run.commit", "run.finish")


# -- at the moment a body begins, or undoes ------------------------------------------------------------------------


@dataclass(frozen=True)
class Taken:
    """Who took a lock: a run, or a call by itself; and how often that had been over until then."""

    run_id: str
    call_id: str | None
    ends: int


class Moments:
    """Watches what begins: it must be its turn."""

    def __init__(self, world: World, disk: Store) -> None:
        self._world = world
        self._disk = disk
        self._taken: dict[str, Taken] = {}
        self._scheduled: dict[str, int] = {}

    def scheduled(self, call_id: str) -> None:
        """A caller was told that this call is sent later."""
        if (record := self._disk.get_call(call_id)) is not None:
            self._scheduled.setdefault(call_id, self._decisions(self._root(record)))

    def begins(self, call_id: str) -> None:
        """The body of a call begins, right after its claim."""
        record = self._disk.get_call(call_id)
        assert record is not None, f"a body begins that is not on record: {call_id}"
        root = self._root(record)
        if call_id in self._scheduled:
            self._check_sent(record, root)
        if record.pivot and record.attempts == 1 and not root.is_session:
            self._check_pivot(record, root)
        if record.locks is not None:
            self._take_locks(record, root, alone=root.is_session)

    def undoes(self, call_id: str) -> None:
        """The effect of a call is undone."""
        record = self._disk.get_call(call_id)
        assert record is not None, f"what is undone is not on record: {call_id}"
        root = self._root(record)
        asked = call_id in self._world.asked
        for pivot in family(self._disk, root):
            passed = pivot.pivot and pivot.state is CallState.DONE and pivot.place > record.place
            if passed and not asked and not root.is_session and pivot.idempotency_key not in self._world.told:
                self._wrong(f"{record.tool} {record.id} was undone after its pivot {pivot.id} was done")
        if record.locks is not None:
            self._take_locks(record, root, alone=asked or root.is_session)

    def forgotten(self, run_ids: set[str]) -> None:
        """Runs are not on record any more: who has their ids later is somebody else."""
        self._taken = {name: taken for name, taken in self._taken.items() if taken.run_id not in run_ids}

    def _check_sent(self, record: CallRecord, root: RunRecord) -> None:
        if self._decisions(root) <= self._scheduled[record.id]:
            self._wrong(f"{record.tool} {record.id} was sent before its run was committed")
        for other in self._disk.calls_of(record.namespace, record.run_id):
            if root.completing and other.state is CallState.SCHEDULED and other.place < record.place:
                self._wrong(f"{record.tool} {record.id} was sent before {other.id}, which was scheduled earlier")

    def _check_pivot(self, pivot: CallRecord, root: RunRecord) -> None:
        for step in family(self._disk, root):
            before = step.id != pivot.id and step.phase is Phase.FORWARD and step.place < pivot.place
            if before and step.state in _OPEN and (step.declared_write or step.compensate):
                self._wrong(f"the pivot {pivot.id} began while {step.tool} {step.id} was {step.state}")

    def _take_locks(self, record: CallRecord, root: RunRecord, *, alone: bool) -> None:
        call_id = record.id if alone else None
        for name in names_of(record.locks):
            holder = self._taken.get(name)
            mine = (
                holder is not None and holder.run_id == root.id and (not root.is_session or holder.call_id == call_id)
            )
            if holder is not None and not mine and self._ends(holder.run_id, holder.call_id) == holder.ends:
                self._wrong(f"{record.tool} {record.id} went on under the lock {name!r}, which {holder} has")
            if not (mine and alone):
                self._taken[name] = Taken(root.id, call_id, self._ends(root.id, call_id))

    def _ends(self, run_id: str, call_id: str | None) -> int:
        """How often what holds locks was over; what is forgotten is over once and for all."""
        run = self._disk.get_run("default", run_id)
        if run is None or (call_id is not None and self._disk.get_call(call_id) is None):
            return -1
        rows = [row for row in self._disk.audit_of("default", run_id) if row.call_id == call_id]
        states = [row.to_state for row in rows]
        if call_id is not None:
            return sum(state in _SETTLED for state in states)
        ends = sum(state in (*_OVER, RunState.PARTIALLY_COMPENSATED) for state in states)
        kept = run.state is RunState.PARTIALLY_COMPENSATED and any(
            call.state is CallState.COMPENSATION_FAILED for call in family(self._disk, run)
        )
        return ends - kept

    def _root(self, record: CallRecord) -> RunRecord:
        run = self._disk.get_run(record.namespace, record.run_id)
        assert run is not None
        return outermost(self._disk, run)

    def _decisions(self, root: RunRecord) -> int:
        """How often it was decided that what is scheduled in a run is sent."""
        return sum(row.event in _DECIDED for row in self._disk.audit_of(root.namespace, root.id))

    def _wrong(self, what: str) -> None:
        self._world.wrong.append(what)


# -- what is on record ---------------------------------------------------------------------------------------------


def compare(world: World, ledger: Store, calls: list[CallRecord]) -> None:
    """Compare the forward ``calls`` of a ledger, and its runs, with what really happened."""
    assert not world.wrong, world.wrong
    counts = Counter(effect.key for effect in world.effects)
    for call in calls:
        _check_call(world, ledger, call, counts)
    runs = {run.id: run for run in ledger.list_runs(limit=MANY)}
    for run in runs.values():
        if run.state in (RunState.COMPENSATED, RunState.FAILED) and not run.is_session:
            _check_undone(world, run, runs, calls)


def _check_call(world: World, ledger: Store, call: CallRecord, counts: Counter[str]) -> None:
    kind, key = world.kinds[call.tool], call.idempotency_key
    told = key in world.told
    if not kind.rerunnable and not told:
        assert counts[key] <= 1, f"{call.tool} happened {counts[key]} times: {call}"
    if call.state is CallState.DONE and not told:
        assert counts[key], f"done, but it did not happen: {call}"
    if call.state in (CallState.FAILED, CallState.REFUSED, CallState.SCHEDULED) and not told and not kind.rerunnable:
        mine = any(effect.call == call.id for effect in world.effects)
        assert not mine or _handed_over(ledger, call), f"{call.state}, but it happened: {call}"
    if call.state is CallState.COMPENSATED:
        assert call.id in world.undone, f"compensated, but nothing undid it: {call}"
    if call.state not in (CallState.COMPENSATED, CallState.COMPENSATING):
        undone = call.id in world.undone
        assert not undone or call.state is CallState.COMPENSATION_FAILED, f"undone, but it is {call.state}: {call}"


def _check_undone(world: World, run: RunRecord, runs: Mapping[str, RunRecord], calls: list[CallRecord]) -> None:
    """What happened in a run that was rolled back whole is compensated, but for what was committed before."""
    over = (CallState.COMPENSATED, CallState.FAILED, CallState.REFUSED)
    for call in calls:
        inside = [*_outwards(runs[call.run_id], runs)]
        if run.id not in [one.id for one in inside] or any(is_committed(one, call) for one in inside):
            continue
        if call.idempotency_key in world.told or not (call.declared_write or call.compensate):
            continue
        assert call.state in over, f"run {run.id} is {run.state}, but {call}"


def check_end(ledger: Store) -> None:
    """Nothing goes on any more, waits to be sent in a run that is over, or holds a lock of one."""
    for run in ledger.list_runs(limit=MANY):
        if not run.is_session:  # that of a process that may come back goes on
            assert run.state not in (RunState.RUNNING, RunState.COMPENSATING), f"left behind: {run}"
    runs = {run.id: run for run in ledger.list_runs(limit=MANY)}
    for call in ledger.list_calls(limit=MANY):
        assert call.state not in (CallState.RUNNING, CallState.COMPENSATING), f"left behind: {call}"
        run = runs[call.run_id]
        if call.state is CallState.SCHEDULED:
            assert any(one.state not in _OVER for one in _outwards(run, runs)), f"never sent: {call}"


def check_forgotten(gone: list[CallRecord], gone_runs: list[RunRecord], left: set[str], *, keys: bool) -> None:
    """Only what was settled was forgotten, runs whole, and a business key that is relied on only if it was said so."""
    for call in gone:
        assert call.state in _SETTLED, f"forgotten, and it was {call.state}: {call}"
        assert keys or not is_relied_on(call), f"forgotten, and its key was relied on: {call}"
        assert call.state is CallState.COMPENSATED or not call.scope.startswith("duplicate:"), f"forgotten: {call}"
        assert call.run_id not in left, f"forgotten, and its run was not: {call}"
    for run in gone_runs:
        assert run.state in _OVER, f"forgotten, and it was {run.state}: {run}"


def is_relied_on(call: CallRecord) -> bool:
    """Whether a call stands for its business key: the same key later is answered by it."""
    return call.scope == BUSINESS_SCOPE and call.state is CallState.DONE


def _outwards(run: RunRecord, runs: Mapping[str, RunRecord]) -> Iterator[RunRecord]:
    """A run, and those it is nested in."""
    yield run
    if run.parent_id is not None:
        yield from _outwards(runs[run.parent_id], runs)


def _handed_over(ledger: Store, call: CallRecord) -> bool:
    rows = [row for row in ledger.audit_of(call.namespace, call.run_id) if row.call_id == call.id]
    return rows[-1].event == "hand_over"
