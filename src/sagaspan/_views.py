"""What a web app or the command line reads of the ledger and decides: ``guard.runs`` and ``guard.calls``."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, TypeAlias, TypeVar

from sagaspan import _owner as owner
from sagaspan._backends import ASYNCIO
from sagaspan._checks import check_choice, check_count, check_name
from sagaspan._clock import now_us
from sagaspan._commands import command
from sagaspan._freezes import Frozen, freeze, unfreeze
from sagaspan._probe import NOT_GIVEN
from sagaspan.exceptions import ConfigurationError, ResolutionError
from sagaspan.ledger.budgets import settling
from sagaspan.ledger.families import outermost
from sagaspan.ledger.freezes import scope_of_run
from sagaspan.ledger.in_doubt import history
from sagaspan.ledger.judgement import LOST, Judge, Verdict
from sagaspan.ledger.locks import held_by_run
from sagaspan.ledger.pages import page_of
from sagaspan.ledger.records import (
    CallInfo,
    CallRecord,
    CallState,
    RunInfo,
    RunRecord,
    RunState,
    call_info,
    run_info,
)
from sagaspan.ledger.resolution import DUPLICATE, Resolution, decided_by_hand, happened_after_all
from sagaspan.ledger.store import CallChange, Store
from sagaspan.ledger.tool_names import only_of_tool
from sagaspan.ledger.transitions import CallEvent, move_call

_OVER: Final = (RunState.COMPLETED, RunState.COMPENSATED, RunState.PARTIALLY_COMPENSATED)

Infos: TypeAlias = list[CallInfo]
Records: TypeAlias = list[CallRecord]
Pairs: TypeAlias = list[tuple[CallInfo, CallInfo | None]]


class Runs:
    """The runs of a store, or of one ``namespace`` of it."""

    def __init__(self, store: Store, namespace: str | None = None) -> None:
        self._store = store
        self._namespace = namespace

    def list(
        self,
        *,
        status: Sequence[RunState | str] | str = (),
        tags: Mapping[str, object] | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[RunInfo]:
        """Return the runs of the state or states ``status`` (empty: all), newest first, without their calls.

        ``tags``: only runs that have all of these; values are compared as text.
        """
        _check_page(limit, offset)
        read = functools.partial(self._store.list_runs, states=_states(RunState, status), namespace=self._namespace)
        if not tags:
            return [run_info(record) for record in read(limit=limit, offset=offset)]
        wanted = {(name, str(value)) for name, value in tags.items()}

        def fits(record: RunRecord) -> bool:
            return wanted <= {(name, str(value)) for name, value in run_info(record).tags.items()}

        return [run_info(record) for record in page_of(read, fits, limit=limit, offset=offset)]

    def get(self, id: str) -> RunInfo | None:  # noqa: A002 - the contract's word
        """The run ``id`` with its calls, or None."""
        check_name("id", id)
        found = self._store.match_runs(id, namespace=self._namespace)
        return next((self.complete(record) for record in found if record.id == id), None)

    def pause(self, id: str, *, reason: str, actor: str | None = None) -> Frozen:  # noqa: A002 - the contract's word
        """Let the run ``id``, and those nested in it, begin nothing more, from the next claim on; nothing is undone.

        Its next call raises ``ScopeFrozen``, which leaves it paused; ``resume`` lets it go on under the same id.
        ``actor`` None is the user of this process. Raises ``ResolutionError`` for a run that is over or paused already.
        """
        record = self._one(id)
        if record.state in (*_OVER, RunState.FAILED):
            raise ResolutionError(f"the run {id!r} is {record.state}: there is nothing to pause", tool_ran="no")
        return freeze(self._store, record.namespace, scope_of_run(id), reason=reason, actor=actor)

    def resume(self, id: str, *, actor: str | None = None) -> Frozen:  # noqa: A002 - the contract's word
        """Let a run go on that somebody paused; what waits for an approval waits on. Raises ``ResolutionError``."""
        return unfreeze(self._store, self._one(id).namespace, scope_of_run(id), actor=actor)

    async def apause(self, id: str, *, reason: str, actor: str | None = None) -> Frozen:  # noqa: A002
        """As ``pause``, for asynchronous callers."""
        return await ASYNCIO.io(self.pause, id, reason=reason, actor=actor)

    async def aresume(self, id: str, *, actor: str | None = None) -> Frozen:  # noqa: A002 - the contract's word
        """As ``resume``, for asynchronous callers."""
        return await ASYNCIO.io(self.resume, id, actor=actor)

    def _one(self, id: str) -> RunRecord:  # noqa: A002 - the contract's word
        check_name("id", id)
        found = [run for run in self._store.match_runs(id, namespace=self._namespace) if run.id == id]
        if len(found) != 1:
            why = "there is no run" if not found else "in several namespaces there is a run"
            raise ResolutionError(f"{why} {id!r}; see: sagaspan runs list", tool_ran="no")
        return found[0]

    def complete(self, record: RunRecord) -> RunInfo:
        """A run's record with its calls and the locks it holds."""
        calls = tuple(call_info(call) for call in self._store.calls_of(record.namespace, record.id))
        return run_info(record, calls, held_by_run(self._store, record))


class Calls:
    """The calls of a store, or of one ``namespace`` of it."""

    def __init__(self, store: Store, namespace: str | None = None) -> None:
        self._store = store
        self._namespace = namespace

    def list(
        self,
        *,
        status: Sequence[CallState | str] | str = (),
        open: bool = True,  # noqa: A002 - as it reads
        tool: str | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[CallInfo]:
        """Calls of the states ``status``, newest first; without it those that are not settled (``open=False``: all).

        ``tool``: only of the tool of this name, or of a glob of names.
        A read or a call of a model in doubt is settled: what it may have cost is booked, and nobody decides about it.
        """
        _check_page(limit, offset)
        states = _states(CallState, status)

        def read(*, limit: int, offset: int) -> Records:
            if open and not states:
                return self._store.open_calls(limit + offset, namespace=self._namespace)[offset:]
            return self._store.list_calls(states=states, namespace=self._namespace, limit=limit, offset=offset)

        return [call_info(record) for record in only_of_tool(self._store, tool, read, limit=limit, offset=offset)]

    def duplicates(self, limit: int = 100) -> Pairs:
        """Effects that came twice and still stand: the extra one and the call it belongs to, newest first."""
        extras = [
            call
            for call in self._store.calls_in_scope(DUPLICATE, limit, namespace=self._namespace)
            if call.state is not CallState.COMPENSATED
        ]
        found = [(extra, self._store.get_call(extra.scope.removeprefix(DUPLICATE))) for extra in extras]
        return [(call_info(extra), None if first is None else call_info(first)) for extra, first in found]

    def late(self, limit: int = 100) -> Infos:
        """Writes that were taken for failed and happened after all, when their run was over; newest first.

        Until somebody undoes them, or says that they stay (``resolve(id, "happened")``).
        """
        found = self._store.late_calls(limit, namespace=self._namespace)
        return [call_info(call) for call in found if call.declared_write and self._is_over(call)]

    def _is_over(self, call: CallRecord) -> bool:
        run = self._store.get_run(call.namespace, call.run_id)
        return run is not None and (run.is_session or outermost(self._store, run).state in (*_OVER, RunState.FAILED))

    def resolve(
        self,
        id: str,  # noqa: A002 - the contract's word
        outcome: Resolution | str,
        *,
        result: Any = NOT_GIVEN,
        note: str,
        actor: str | None = None,
        expected_version: int | None = None,
    ) -> CallInfo:
        """Say what became of a call that nobody knows the end of; returns it as it is then.

        Args:
            id: the call.
            outcome: ``"happened"`` (``result`` is what it returned, if that is known), ``"did-not-happen"``,
                ``"compensated"`` (it was undone by hand; also of a write that is done, once its run is over), or
                ``"retry"`` (one more run of it is permitted).
            note: how you know.
            actor: who decides; None is the user of this process.
            expected_version: decide only if the call is still at this ``CallInfo.version``.

        A run that was held for it goes on when it is entered again, or is undone by ``guard.compensate``; one that was
        undone but for it is ``compensated``. Raises
        ``ResolutionError`` if the decision does not fit the call as it is now, ``ConfigurationError`` where what is
        recorded is encrypted and there is no codec here, or ``StoreError``.
        """
        if not str(note or "").strip():
            raise ConfigurationError(f"note={note!r} is empty; write how you know, for whoever asks later")
        record = self._store.get_call(id)
        if record is None:
            raise ResolutionError(f"there is no call {id!r}; see: sagaspan calls list")
        if expected_version is not None and record.version != expected_version:
            raise ResolutionError(_stale(record, expected_version), call=call_info(record))
        self._store.seal.learn(record.namespace, record.tool)  # the note is content as the result is
        changes, record = _lost_first(self._store, record)
        run = self._store.get_run(record.namespace, record.run_id)
        over = run is not None and (run.is_session or outermost(self._store, run).state in _OVER)
        late = record.state is CallState.DONE and happened_after_all(history(self._store, record))
        event, columns = decided_by_hand(record, _resolution(outcome), result=result, over=over, late=late)
        after, audit = move_call(record, event, now_us(), detail=note, actor=actor or owner.os_user(), **columns)
        if not self._store.commit([*changes, *settling(record, CallChange(after, audit, record.version))], synced=True):
            raise ResolutionError(_stale(record, record.version), call=call_info(record))
        if event is CallEvent.UNDONE_BY_HAND:
            from sagaspan._saga import close_if_undone  # rarely needed, and half a second to import

            close_if_undone(self._store, run)
        return call_info(self._store.get_call(after.id) or after)  # as it is recorded, without what is redacted

    async def aresolve(
        self,
        id: str,  # noqa: A002 - the contract's word
        outcome: Resolution | str,
        *,
        result: Any = NOT_GIVEN,
        note: str,
        actor: str | None = None,
        expected_version: int | None = None,
    ) -> CallInfo:
        """As ``resolve``, for asynchronous callers."""
        return await ASYNCIO.io(
            self.resolve, id, outcome, result=result, note=note, actor=actor, expected_version=expected_version
        )

    def get(self, id: str) -> CallInfo | None:  # noqa: A002 - the contract's word
        """The call ``id``, or None."""
        record: CallRecord | None = self._store.get_call(id)
        return None if record is None else call_info(record)


def _lost_first(store: Store, record: CallRecord) -> tuple[list[CallChange], CallRecord]:
    """A running call whose process is gone is in doubt first; one that runs is nobody's to decide."""
    if record.state is not CallState.RUNNING:
        return [], record
    verdict = Judge(store).verdict(record.owner, record.id)
    if verdict is Verdict.ALIVE:
        raise ResolutionError(
            f"call {record.id} of tool {record.tool!r} is still running ({record.owner}); wait until it has ended",
            call=call_info(record),
        )
    lost, audit = move_call(record, CallEvent.LOSE, now_us(), detail=LOST[verdict])
    return [CallChange(lost, audit, record.version)], lost


S = TypeVar("S", bound=StrEnum)


def _states(kind: type[S], status: Sequence[str] | str) -> list[S]:
    """The states of these names; raises ``ConfigurationError``."""
    wanted = [status] if isinstance(status, str) else status
    for state in wanted:
        check_choice("status", str(state), [known.value for known in kind])
    return [kind(state) for state in wanted]


def _check_page(limit: int, offset: int) -> None:
    check_count("limit", limit, least=1)
    check_count("offset", offset)


def _resolution(outcome: Resolution | str) -> Resolution:
    try:
        return Resolution(outcome)
    except ValueError:
        words = ", ".join(repr(resolution.value) for resolution in Resolution)
        raise ResolutionError(f"outcome={outcome!r} is not one of {words}") from None


def _stale(record: CallRecord, expected: int) -> str:
    return (
        f"call {record.id} of tool {record.tool!r} has changed since version {expected}, so nothing was decided; look "
        f"again: {command('show', record.id)}"
    )
