"""The state machines: only what the tables allow, and every step on the record (rule book 1.0)."""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sagaspan import CallState, RunState
from sagaspan.ledger.records import AuditRow, CallRecord, RunRecord
from sagaspan.ledger.store import CallChange, RunChange
from sagaspan.ledger.transitions import (
    CALL_ENDINGS,
    CALL_TABLE,
    RUN_ENDINGS,
    RUN_TABLE,
    CallEvent,
    IllegalTransition,
    RunEvent,
    claim_again,
    move_call,
    move_run,
    open_call,
    open_run,
    start_undoing,
    supersede,
)
from sagaspan.stores import connect

CALL = CallRecord(
    id="c", namespace="n", scope="s", tool="t", key="k", key_source="content", idempotency_key="i", fingerprint="f",
    run_id="r", state=CallState.RUNNING, arguments="{}", empty_safe=True, owner="o", attempts=1, created_us=1,
    started_us=1,
)  # fmt: skip
RUN = RunRecord(
    namespace="n",
    id="r",
    name="r",
    input_fingerprint="f",
    state=RunState.RUNNING,
    owner="o",
    created_us=1,
    started_us=1,
)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(CallState, CallEvent)))
def test_calls_move_by_the_table_alone(state: CallState, event: CallEvent) -> None:
    """An event the table does not list for a state raises; one it lists leads where it says, with its audit row."""
    before = replace(CALL, state=state)
    wanted = CALL_TABLE.get((state, event))
    if wanted is None:
        with pytest.raises(IllegalTransition, match=f"{event} is not allowed in state {state}"):
            move_call(before, event, 5)
        return
    after, audit = move_call(before, event, 5, detail="why")
    assert (after.state, after.version) == (wanted, before.version + 1)
    assert after.ended_us == (5 if event in CALL_ENDINGS else None)
    assert (audit.from_state, audit.to_state, audit.event, audit.detail, audit.at_us) == (
        state,
        wanted,
        event,
        "why",
        5,
    )
    assert before == replace(CALL, state=state)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(RunState, RunEvent)))
def test_runs_move_by_the_table_alone(state: RunState, event: RunEvent) -> None:
    """As for calls."""
    before = replace(RUN, state=state)
    wanted = RUN_TABLE.get((state, event))
    if wanted is None:
        with pytest.raises(IllegalTransition, match=f"{event} is not allowed in state {state}"):
            move_run(before, event, 5)
        return
    after, audit = move_run(before, event, 5)
    assert (after.state, after.version, after.ended_us) == (wanted, 2, 5 if event in RUN_ENDINGS else None)
    assert (audit.event, audit.from_state, audit.to_state) == (f"run.{event}", state, wanted)


@pytest.mark.parametrize("table", [CALL_TABLE, RUN_TABLE])
def test_the_rules_that_matter_are_in_the_tables(table: dict[tuple[str | None, str], str]) -> None:
    """No way leads from done back to running, and nothing but an undo follows it (or its result, if that was lost)."""
    if table is RUN_TABLE:
        assert {event for (state, event) in table if state == "compensating"} == {
            "compensate", "fail", "compensated", "partially_compensated",
        }  # fmt: skip
        return
    assert {event for (state, event) in table if state == "done"} == {
        "compensate", "undone_by_hand", "supply_result", "acknowledge",
    }  # fmt: skip
    assert table["done", "supply_result"] == table["done", "acknowledge"] == "done"
    assert {after for (_, event), after in table.items() if event == "disprove"} == {"failed"}
    assert {event for (state, event) in table if state == "compensated"} == {"supersede"}
    assert ("unknown", "compensate") not in table
    assert {state for (state, event) in table if event == "compensate_in_doubt"} == {"unknown", "needs_human"}
    assert ("unknown", "fail") not in table


def test_a_doubt_is_undone_only_where_that_is_declared_safe() -> None:
    """The table alone does not decide: without ``empty_safe`` nothing in doubt is undone."""
    lost, _ = move_call(replace(CALL, empty_safe=False), CallEvent.LOSE, 2)
    with pytest.raises(IllegalTransition, match="compensate_in_doubt"):
        start_undoing(lost, 3)
    undoing, _ = start_undoing(replace(lost, empty_safe=True), 3)
    assert undoing.state == "compensating"


def test_a_claim_after_a_failure_forgets_it() -> None:
    """Claimed again, a record has the next epoch and attempt, its new owner, and no error."""
    failed, _ = move_call(CALL, CallEvent.FAIL, 2, error_type="E", error_message="m")
    again, _ = claim_again(failed, owner="new", now_us=3, traceparent=None)
    assert (again.owner, again.epoch, again.attempts, again.error_type, again.ended_us) == ("new", 2, 2, None, None)
    freed, _ = supersede(failed, 4)
    assert freed.key != CALL.key
    assert freed.idempotency_key == CALL.idempotency_key


@given(st.lists(st.sampled_from(list(CallEvent)), max_size=12))
def test_any_walk_replays_from_its_audit(events: list[CallEvent]) -> None:
    """Whatever happens to a call, its audit rows in a real store lead through the table to the record's state."""
    with tempfile.TemporaryDirectory() as folder:
        store = connect(f"sqlite:///{Path(folder) / 'l.db'}")
        opened, audit = open_run(RUN)
        assert store.commit([RunChange(opened, audit)], synced=False)
        record, audit = open_call(CALL)
        assert store.commit([CallChange(record, audit, claims=True, run_epoch=1)], synced=False)
        for now, event in enumerate(events, 2):
            try:
                after, audit = move_call(record, event, now)
            except IllegalTransition:
                continue
            assert not store.commit([CallChange(after, audit, record.version + 7)], synced=False)
            assert store.commit([CallChange(after, audit, record.version)], synced=False)
            record = after
        saved = store.get_call("c")
        assert saved is not None
        assert replace(saved, claim_seq=0) == record
        assert replayed(store.audit_of("n", "r"), "c") == record.state
        store.close()


def replayed(rows: list[AuditRow], call_id: str | None) -> str | None:
    """Where the audit rows of a call (None: of the run) lead, each checked against the table."""
    state: str | None = None
    for row in rows:
        if row.call_id != call_id:
            continue
        assert row.from_state == state
        event = row.event.removeprefix("compensation.").removeprefix("run.")
        table = RUN_TABLE if call_id is None else CALL_TABLE
        assert table[state, event] == row.to_state  # type: ignore[index]
        state = row.to_state
    return state
