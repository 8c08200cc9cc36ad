"""What a store must do: save changes all or nothing, each on its condition, and read records back.

A change is a record with its condition (for the most part: its row is still at a version), so a claim can carry more
than its call: the locks it takes are saved or refused with it. A refused commit names the change that refused it.
Stores are synchronous and know no rules: every transition comes with its audit row from ``transitions``. They raise
``StoreUnavailable`` or ``SchemaOutdated`` and nothing of their driver, or ``StoreError`` itself for a value that no row
of theirs holds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol

from sagaspan._frozen import quick
from sagaspan.ledger.records import (
    ApprovalRecord,
    ApprovalState,
    AuditRow,
    BudgetRecord,
    CallRecord,
    CallState,
    ChainedRow,
    DeliveryRecord,
    FreezeRecord,
    LeaseRecord,
    LimitRecord,
    LockRecord,
    LoopRecord,
    RunRecord,
    RunState,
    UsageRecord,
    UsageTotals,
)
from sagaspan.ledger.seal import Seal


@quick
@dataclass(frozen=True, slots=True)
class CallChange:
    """Save ``record`` if its row is still at ``expected_version`` (0: if its key is free).

    ``claims``: only while its run is at ``run_epoch`` and ``running``, and the controls of its namespace (limits that
    operators set) are at version ``controls``; the record then takes the next place in the claim order. ``run_id``: the
    run that claims it, if that is not the record's own (which may be over by then).
    """

    record: CallRecord
    audit: AuditRow
    expected_version: int = 0
    claims: bool = False
    run_epoch: int = 0
    controls: int = 0
    run_id: str | None = None


@dataclass(frozen=True, slots=True)
class RunChange:
    """Save ``record`` if its row is still at ``expected_version`` (0: if its id is free).

    ``outer_epoch``: only while the run it is nested in is at this epoch and ``running`` (0: whatever that is).
    ``takes``: a run whose holder is gone. Refused at once while anybody else is writing to it (SKIP LOCKED), instead of
    waiting for what they make of it; a store of one writer at a time may ignore that.
    """

    record: RunRecord
    audit: AuditRow
    expected_version: int = 0
    outer_epoch: int = 0
    takes: bool = False


@dataclass(frozen=True, slots=True)
class LockChange:
    """Save ``record`` if its row is still at ``expected_version`` (0: if its name is free)."""

    record: LockRecord
    expected_version: int = 0


@dataclass(frozen=True, slots=True)
class ApprovalChange:
    """Save ``record`` if its row is still at ``expected_version`` (0: if none is open for its call).

    ``consumes_at``: only while it is approved, for the digest and under the policy of ``record``, and has not expired
    at this time (microseconds since the epoch); that holds whatever the version says.
    """

    record: ApprovalRecord
    audit: AuditRow
    expected_version: int = 0
    consumes_at: int | None = None


@dataclass(frozen=True, slots=True)
class NonceChange:
    """Use up the nonce ``id`` (a hash of it), if it was not used before; it is remembered until ``until_us``.

    ``now_us``: what is remembered until then is forgotten.
    """

    namespace: str
    id: str
    until_us: int
    now_us: int


@dataclass(frozen=True, slots=True)
class HookChange:
    """A hook has read the audit trail up to row ``cursor``, if that was ``expected`` before (None: it is new)."""

    namespace: str
    name: str
    cursor: int
    expected: int | None = None


@dataclass(frozen=True, slots=True)
class DeliveryChange:
    """Add what is to be delivered (``expected_attempts`` None), save an attempt if no other was made, or delete it."""

    record: DeliveryRecord
    expected_attempts: int | None = None
    done: bool = False


@dataclass(frozen=True, slots=True)
class ReserveChange:
    """Reserve ``amount`` of the budget that ``record`` names, if it fits under its ``cap`` with what is used of it.

    An overdraft counts as spent from then on. Without a cap it always fits. ``soft``: the amounts at which it is told
    what is used of it, so that a store whose transactions run side by side knows which of them must see the sum.
    """

    record: BudgetRecord
    amount: int
    soft: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Mark:
    """A soft limit: ``audit`` is written with the change that takes what is used from below ``at`` to it or beyond."""

    at: int
    audit: AuditRow


@dataclass(frozen=True, slots=True)
class SpendChange:
    """Give back what a call had reserved of the budget that ``record`` names, and spend ``spent`` of it.

    What does not fit under the cap becomes overdraft. No condition.
    """

    record: BudgetRecord
    reserved: int
    spent: int
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True)
class UsageChange:
    """Save what a call cost and used; again replaces it. No condition."""

    record: UsageRecord


@dataclass(frozen=True, slots=True)
class LimitChange:
    """Save a limit and move the controls of its namespace on by one; every later claim sees it.

    The caps of all budgets that it holds for are forgotten, until a claim finds what holds now. ``removes``: delete it,
    if it is still what ``record`` says.
    """

    record: LimitRecord
    audit: AuditRow
    removes: bool = False


@dataclass(frozen=True, slots=True)
class CarryChange:
    """See to it that of the budget that ``record`` names at least ``used`` is used, and forget its cap. No condition.

    What is missing is spent, by calls that do not say so (``forgotten``). Of calls as a unit those that have not ended
    are among ``used``.
    """

    record: BudgetRecord
    used: int


@dataclass(frozen=True, slots=True)
class LoopChange:
    """Save what a run remembers of loops, if its row is still at ``expected_version`` (0: if there is none)."""

    record: LoopRecord
    expected_version: int = 0


@dataclass(frozen=True, slots=True)
class FreezeChange:
    """Freeze the scope of ``record`` if it is not frozen, or lift that if it is, and move the controls on by one."""

    record: FreezeRecord
    audit: AuditRow
    lifts: bool = False


@dataclass(frozen=True, slots=True)
class NoteChange:
    """Only append a row to the audit trail. No condition."""

    audit: AuditRow


@dataclass(frozen=True, slots=True)
class RateChange:
    """One call of ``name`` by GCRA, if it need not wait: times in nanoseconds since the epoch (``sagaspan.rate``)."""

    namespace: str
    name: str
    now_ns: int
    interval_ns: int
    burst: int


@dataclass(frozen=True, slots=True)
class Barrier:
    """Save nothing, but only while no step of a saga is open: the runs ``run_id`` and all nested in it.

    A step is open that could be undone (a declared write, or one with a compensation), and is running, in doubt or
    being undone; those named ``but`` do not count. A store whose transactions run side by side must see to it that none
    is claimed meanwhile.
    """

    namespace: str
    run_id: str
    but: tuple[str, ...] = ()


Conditional = (
    CallChange
    | RunChange
    | LockChange
    | ApprovalChange
    | NonceChange
    | HookChange
    | DeliveryChange
    | Barrier
    | ReserveChange
    | UsageChange
    | LimitChange
    | CarryChange
    | LoopChange
    | FreezeChange
    | NoteChange
    | RateChange
)
Change = Conditional | SpendChange


@dataclass(frozen=True, slots=True)
class Commit:
    """How a commit ended; true if everything is saved. ``refused``: the first change whose condition did not hold.

    ``used``: for each ``SpendChange`` in its order, what is used of its budget from then on, overdraft among it.
    """

    refused: Change | None = None
    used: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return self.refused is None


SAVED: Final = Commit()
"""All of it is saved."""


@dataclass(frozen=True, slots=True)
class Family:
    """A run with those nested in it, as it was looked at: it is forgotten only if it is still the same then."""

    runs: tuple[RunRecord, ...]
    calls: tuple[CallRecord, ...]

    def versions_of(self, run: RunRecord) -> tuple[int, int]:
        """How many calls one of the runs made itself, and the sum of their versions: any change makes others."""
        versions = [call.version for call in self.calls if call.run_id == run.id]
        return len(versions), sum(versions)


@dataclass(frozen=True, slots=True)
class Forgotten:
    """How many rows are gone."""

    runs: int = 0
    calls: int = 0
    audit_rows: int = 0

    def __add__(self, other: Forgotten) -> Forgotten:
        return Forgotten(self.runs + other.runs, self.calls + other.calls, self.audit_rows + other.audit_rows)


@dataclass(frozen=True, slots=True)
class Booked:
    """A budget as it is counted (None: there is no such row), and what calls hold and spent of it."""

    name: BudgetRecord
    counted: BudgetRecord | None
    reserved: int = 0
    spent: int = 0


@dataclass(frozen=True, slots=True)
class Touched:
    """Rows of the audit trail by number, and what they are about as it is now."""

    rows: tuple[tuple[int, AuditRow], ...]
    runs: tuple[RunRecord, ...]
    calls: tuple[CallRecord, ...]
    approvals: tuple[ApprovalRecord, ...]
    usage: tuple[UsageRecord, ...]


@dataclass(frozen=True, slots=True)
class Undoable:
    """How many calls of a run are done that one ``compensate`` undoes, of one ``tool``."""

    tool: str
    compensate: str
    calls: int


@dataclass(frozen=True, slots=True)
class Tally:
    """What a run has done: how many calls it made, what they cost, and which would be undone, the newest first.

    ``calls``: those that undo others do not count. ``cost`` is in nano-USD. ``undoable`` are as many kinds as were
    asked for, and ``more`` is how many others there are.
    """

    calls: int = 0
    cost: int = 0
    undoable: tuple[Undoable, ...] = ()
    more: int = 0


class Tallying(Protocol):
    """What a store may do beside what it must, to save the reading of a run's calls: ``ledger.so_far.tally_of``.

    ``Store`` does not grow by it: one that leaves it out is a store as before, and is only slower at it.
    """

    def tally_of(self, namespace: str, run_id: str, *, limit: int) -> Tally:
        """What a run has done, with ``limit`` kinds of what would be undone."""


class Sifting(Protocol):
    """As ``Tallying``, for ``ledger.families.open_family``."""

    def open_calls_of(self, namespace: str, run_id: str) -> list[CallRecord]:
        """The calls of a run that are not ``SETTLED``, in claim order."""


class Store(Protocol):
    """Durable records; safe for any number of threads and processes.

    ``keeps_time``: leases are by its own clock, which all its users share, and read as this machine's would say it.
    """

    url: str
    seal: Seal
    keeps_time: bool

    def now_us(self) -> int:
        """The time by which requests for approval, links and grants end: of the database, if many hosts share it."""

    def facts(self, namespace: str) -> dict[str, str]:
        """What the ledger knows of a namespace beside its records, by name."""

    def put_fact(self, namespace: str, name: str, value: str, *, expected: str | None) -> bool:
        """Save a fact if it still is ``expected`` (None: not there); on disk when this returns."""

    def commit(self, changes: Sequence[Change], *, synced: bool) -> Commit:
        """Save all changes with their audit rows in one transaction, in their order, or none of them (then false).

        Every audit row, as it is stored, becomes the next of the chain of its run (``ledger.chain``).

        While ``seal`` is active each of them goes through ``seal.closed`` first; what is read goes through
        ``seal.opened`` while there is ``seal.encryption``.

        Each condition holds at the moment of the commit, whatever is committed at the same time.
        ``synced``: on disk when this returns; otherwise at the latest with the next synced commit.
        """

    def renew(self, lease: LeaseRecord) -> None:
        """Save a lease under its owner, one beat after the last; durable at the latest with the next synced commit."""

    def newest_audit(self) -> int:
        """The number of the newest audit row of the ledger, 0 if there is none."""

    def hook_cursor(self, namespace: str, name: str) -> int | None:
        """How far a hook has read the audit trail; None if it is new."""

    def events(self, namespace: str, after: int, upto: int) -> list[tuple[int, AuditRow]]:
        """The audit rows of a namespace, by number, that somebody may be told of, after one row and up to another."""

    def touched(self, after: int, *, limit: int) -> Touched:
        """The next ``limit`` audit rows of the ledger after one row, of all namespaces, with what they are about.

        What has changed since may be among it: the row that says so comes later.
        """

    def deliveries(
        self,
        *,
        namespace: str | None = None,
        hooks: Sequence[str] | None = None,
        due_us: int | None = None,
        dead: bool | None = None,
        limit: int = 100,
    ) -> list[DeliveryRecord]:
        """What is to be delivered, the oldest first: of some hooks, due by then, dead or not (None: all)."""

    def forget_leases(self, before_us: int) -> None:
        """Forget leases that ended before ``before_us`` and cover nothing any more."""

    def lease_of(self, owner: str) -> LeaseRecord | None:
        """The lease of this owner, or None if it never had one."""

    def unfinished_runs(self) -> list[RunRecord]:
        """Runs of every namespace that are ``running`` or ``compensating``, newest first."""

    def calls_in(self, state: CallState) -> list[CallRecord]:
        """The calls of every namespace in one of the open states, in claim order."""

    def find_call(self, namespace: str, scope: str, tool: str, key: str) -> CallRecord | None:
        """The call recorded under this key."""

    def get_call(self, call_id: str) -> CallRecord | None:
        """The call of this id."""

    def calls_of(self, namespace: str, run_id: str) -> list[CallRecord]:
        """All calls of a run in claim order, compensations among them."""

    def get_run(self, namespace: str, run_id: str) -> RunRecord | None:
        """The run of this id."""

    def children_of(self, namespace: str, run_id: str) -> list[RunRecord]:
        """The runs nested directly in a run."""

    def locks_named(self, namespace: str, names: Sequence[str]) -> list[LockRecord]:
        """The locks of these names that were ever taken."""

    def locks_of(self, namespace: str, run_id: str) -> list[LockRecord]:
        """The locks that this run, or calls of it, took last; in the order of their names."""

    def controls_of(self, namespace: str) -> tuple[int, list[LimitRecord]]:
        """The version of a namespace's controls, 0 if none were ever set, and the limits in force at that version."""

    def freezes_of(self, namespace: str | None) -> list[FreezeRecord]:
        """What is frozen in a namespace (None: in all), oldest first."""

    def budget(self, record: BudgetRecord) -> BudgetRecord:
        """The budget that ``record`` names as it is now; ``record`` if nothing was ever used of it."""

    def budgets(self, namespace: str | None = None, scope: str | None = None) -> list[BudgetRecord]:
        """The budgets of which something was used, of a namespace and scope (None: of all)."""

    def usage_of(
        self, namespace: str | None, which: Mapping[str, str], *, since_us: int = 0, by: str | None = None
    ) -> list[UsageTotals]:
        """What calls used that were claimed since then and fit ``which``: names by kind of scope (run, user, ...).

        In all, or ``by`` one of these kinds, the most expensive first.
        """

    def booked_by_calls(self, namespace: str | None = None) -> list[Booked]:
        """Each budget of which anything was used, and what calls say that they hold and spent of it.

        Of one moment, however many calls end meanwhile.
        """

    def arrival_of(self, namespace: str, name: str) -> int | None:
        """The arrival time that is kept for a rate, in nanoseconds."""

    def approval(self, approval_id: str) -> ApprovalRecord | None:
        """The request of this id."""

    def approvals_about(
        self, namespace: str, scope: str, tool: str, key: str, digest: str | None = None
    ) -> list[ApprovalRecord]:
        """Requests for the call of this key, and all in its scope with this digest; newest first."""

    def list_approvals(
        self,
        *,
        states: Sequence[ApprovalState] = (),
        namespace: str | None = None,
        run_id: str | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[ApprovalRecord]:
        """Requests of a namespace (None: of all) and run (None: of all), newest first."""

    def match_approvals(self, prefix: str, *, namespace: str | None = None, limit: int = 10) -> list[ApprovalRecord]:
        """Requests whose id starts with ``prefix``; that of exactly this id alone."""

    def turns_of(self, namespace: str, thread: str, limit: int = 20) -> list[RunRecord]:
        """The runs ``THREAD/n`` of a conversation, the highest n first."""

    def namespaces(self) -> list[str]:
        """The namespaces in which there are runs, in order."""

    def list_runs(
        self, *, states: Sequence[RunState] = (), namespace: str | None = None, limit: int = 100, offset: int = 0
    ) -> list[RunRecord]:
        """Runs of a namespace (None: of all), newest first."""

    def match_runs(self, prefix: str, *, namespace: str | None = None, limit: int = 10) -> list[RunRecord]:
        """Runs of a namespace (None: of all) whose id starts with ``prefix``; the exact one alone if there is one."""

    def match_calls(self, prefix: str, *, namespace: str | None = None, limit: int = 10) -> list[CallRecord]:
        """Calls whose id, key or idempotency key starts with ``prefix``; that of exactly this id alone."""

    def open_calls(self, limit: int = 100, *, namespace: str | None = None) -> list[CallRecord]:
        """Calls of a namespace (None: of all) that are not settled, or that need a person, newest first.

        Reads and calls of models in doubt are settled, unless they keep a lock: nobody has anything to decide of them.
        """

    def loop_of(self, namespace: str, run_id: str) -> LoopRecord | None:
        """What a run remembers of loops beside its calls; None if that is nothing."""

    def reserving(self, namespace: str) -> list[CallRecord]:
        """The calls of a namespace that hold reservations of budgets."""

    def list_calls(
        self, *, states: Sequence[CallState] = (), namespace: str | None = None, limit: int = 100, offset: int = 0
    ) -> list[CallRecord]:
        """Calls of a namespace (None: of all), newest first, compensations among them."""

    def calls_in_scope(self, prefix: str, limit: int = 100, *, namespace: str | None = None) -> list[CallRecord]:
        """Calls of a namespace (None: of all) whose scope starts with ``prefix``, newest first."""

    def late_calls(self, limit: int = 100, *, namespace: str | None = None) -> list[CallRecord]:
        """Calls of a namespace (None: of all) that are done after they were ``failed``, and nothing came after that."""

    def audit_of(self, namespace: str, run_id: str) -> list[AuditRow]:
        """The audit rows of a run in order."""

    def old_runs(
        self,
        before_us: int,
        *,
        states: Sequence[RunState],
        namespace: str | None,
        after: RunRecord | None,
        limit: int,
    ) -> list[RunRecord]:
        """Runs of some states made before ``before_us``, the oldest first, from ``after`` on."""

    def calls_after(self, namespace: str, run_id: str, after: CallRecord | None, *, limit: int) -> list[CallRecord]:
        """The calls of a run in the order of their first claims, from ``after`` on."""

    def chains(self, after: tuple[str, str] | None, *, limit: int) -> list[tuple[str, str]]:
        """The namespaces and runs that have audit rows, in order, from ``after`` on."""

    def without_history(self, namespace: str | None, run_id: str | None, *, limit: int) -> list[tuple[str, ...]]:
        """Runs, calls and requests whose run has no audit row at all: what it is, its namespace, run and id.

        Of one namespace and run (None: of all).
        """

    def chained(self, namespace: str, run_id: str, after: int, *, limit: int) -> list[ChainedRow]:
        """The audit rows of a run after row ``after`` of the ledger, in order, exactly as they are stored."""

    def snapshot(self) -> AbstractContextManager[None]:
        """All that is read in it is of one moment; for a store that nobody else uses meanwhile."""

    def forget(self, families: Sequence[Family], *, actor: str) -> Forgotten:
        """Delete runs with their calls, audit rows and locks in one transaction; those that have changed stay whole.

        In the place of their audit rows stands one, by ``actor``, that says so (``chain.forgetting``).
        """

    def forget_calls(self, calls: Sequence[CallRecord], *, actor: str) -> Forgotten:
        """Delete calls that are still at their versions, and their locks, in one transaction.

        One row in the chain of their run names them (``chain.forgetting_records``).
        """

    def forget_approvals(self, namespace: str, run_id: str, before_us: int, *, limit: int, actor: str) -> int:
        """Delete requests of a run that ended or expired before then, and whose calls are gone; how many.

        One row in the chain of the run names them, as for calls.
        """

    def forgotten_of(self, namespace: str, run_id: str) -> frozenset[str]:
        """The calls and requests of a run that were forgotten one by one, and whose audit rows may still be there."""

    def forget_audit(
        self, namespace: str, run_id: str, forgotten: Collection[str], after: int, *, limit: int, actor: str
    ) -> tuple[int, int | None]:
        """Delete audit rows of ``forgotten`` records, among ``limit`` rows of a run after row ``after``.

        Returns how many, and the row to go on from (None: that was all). One row says which they were
        (``chain.forgetting``). It is the newest of the ledger, so that no number is given twice. Rows that named the
        records go with them, and are not counted.
        """

    def spare_bytes(self) -> int | None:
        """Room that deleted rows left behind and new ones use first; None if the store does not say."""

    def compact(self) -> None:
        """Give that room back to the disk; writers wait meanwhile."""

    def migrate(self, *, check: bool = False) -> list[str]:
        """Bring the schema to that of this version, or make it; what was done, in words.

        ``check``: change nothing, and raise ``SchemaOutdated`` if there is anything to do.
        """

    def describe(self) -> dict[str, str | int]:
        """Facts for ``sagaspan doctor``: where, schema version, counts."""

    def close(self) -> None:
        """Give back what the store holds; it may be used again, and opens again then."""
