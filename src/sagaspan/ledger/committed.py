"""Where ``commit()`` draws its line: what was done before it is not undone by a later error.

The line is a place in the claim order. A resume comes by the same ``commit()`` again, when the ledger already has what
an earlier incarnation did after it: those calls are ``ahead`` of it, and are undone like any other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from sagaspan.ledger.families import family
from sagaspan.ledger.records import CallRecord, RunRecord, names_of
from sagaspan.ledger.store import Store


def is_committed(run: RunRecord, call: CallRecord) -> bool:
    """Whether ``call``, of ``run`` or of a run nested in it, came before the commit of ``run``."""
    return call.place <= run.committed_seq and call.id not in names_of(run.ahead)


def everything(store: Store, run: RunRecord) -> dict[str, Any]:
    """The columns of a run of which all that is on record is committed."""
    return _line(run, list(family(store, run)), None)


def up_to_here(store: Store, run: RunRecord, asked: Collection[str]) -> dict[str, Any]:
    """The columns of a resumed run of which the calls ``asked`` for are committed.

    Of what an earlier incarnation did, only that is, with what such a call did inside, and what it had committed.
    """
    calls = list(family(store, run))
    by_id = {call.id: call for call in calls}
    ahead = [
        call.id
        for call in calls
        if call.started_us < run.started_us and not is_committed(run, call) and not _was_asked(call, by_id, asked)
    ]
    return _line(run, calls, "\n".join(ahead) or None)


def _line(run: RunRecord, calls: Collection[CallRecord], ahead: str | None) -> dict[str, Any]:
    return {"committed_seq": max((call.claim_seq for call in calls), default=run.committed_seq), "ahead": ahead}


def _was_asked(call: CallRecord, by_id: Mapping[str, CallRecord], asked: Collection[str]) -> bool:
    return any(one.id in asked for one in _with_ancestors(call, by_id))


def _with_ancestors(call: CallRecord, by_id: Mapping[str, CallRecord]) -> Iterator[CallRecord]:
    one: CallRecord | None = call
    while one is not None:
        yield one
        one = by_id.get(one.parent_id or "")
