"""What a web app or the command line reads of the ledger: ``guard.runs`` and ``guard.calls``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from sagaspan.ledger.records import CallInfo, CallRecord, RunInfo, RunRecord, RunState, call_info, run_info
from sagaspan.ledger.store import Store

T = TypeVar("T")


class Runs:
    """The runs of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def list(self, *, status: Sequence[RunState | str] = (), limit: int = 100, offset: int = 0) -> list[RunInfo]:
        """Runs of the states ``status`` (empty: all), newest first, without their calls."""
        states = [RunState(state) for state in status]
        return [run_info(record) for record in self._store.list_runs(states=states, limit=limit, offset=offset)]

    def get(self, id: str) -> RunInfo | None:  # noqa: A002 - the contract's word
        """The run ``id`` with its calls, or None."""
        return next((self.complete(record) for record in self._store.match_runs(id) if record.id == id), None)

    def complete(self, record: RunRecord) -> RunInfo:
        """A run's record with its calls."""
        calls = tuple(call_info(call) for call in self._store.calls_of(record.namespace, record.id))
        return run_info(record, calls)


class Calls:
    """The calls of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def list(self, *, open: bool = True, limit: int = 100) -> list[CallInfo]:  # noqa: A002, ARG002
        """Calls that are not settled, newest first."""
        return [call_info(record) for record in self._store.open_calls(limit)]

    def get(self, id: str) -> CallInfo | None:  # noqa: A002 - the contract's word
        """The call ``id``, or None."""
        record: CallRecord | None = self._store.get_call(id)
        return None if record is None else call_info(record)
