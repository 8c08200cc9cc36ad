"""What is read of the ledger and noted in it beside the calls; a refusal or an answer stands even if that fails."""

from __future__ import annotations

import logging

from sagaspan import _owner as owner
from sagaspan._call import Call
from sagaspan._clock import now_us
from sagaspan._policy_file import PolicyFile
from sagaspan._signals import entry_of
from sagaspan.exceptions import StoreError
from sagaspan.ledger.records import AuditRow, CallRecord, CallState, UsageTotals
from sagaspan.ledger.stale_policies import take_back, tell
from sagaspan.ledger.store import NoteChange, Store
from sagaspan.rules import Ruling

_log = logging.getLogger("sagaspan")


def note_denial(store: Store, namespace: str, call: Call, ruling: Ruling) -> None:
    """A call that a rule refuses has no record; the audit trail of its run says so. The refusal stands anyway."""
    says = "" if ruling.rule is None else ruling.rule.says
    row = AuditRow(
        at_us=now_us(), namespace=namespace, run_id=call.run.id, call_id=None, event="policy.deny",
        from_state=None, to_state=CallState.REFUSED, actor=owner.this_process(), digest=call.policy,
        detail=f"{call.tool.name} {call.key.fingerprint} policy {call.policy}: {says}",
    )  # fmt: skip
    try:
        store.commit([NoteChange(row)], synced=False)
    except StoreError as error:
        _log.warning("that a rule refused tool %r is not on record: %s", call.tool.name, error)


def keep_of_loop(store: Store, call: Call, again: CallRecord | None) -> None:
    """Put on record that a call was answered ``again``, or (None) refused; the answer or refusal stands anyway.

    ``again`` of the call itself: which branch it was made in.
    """
    signals, run = call.signals, call.run
    if not run.on_record:
        signals.refusals += again is None
        return
    entry = None if again is None else entry_of(now_us(), again.id, call.id, call.branch)
    with signals.lock:
        try:
            while not signals.keep(store, run, entry):
                pass
        except StoreError as error:
            signals.refusals += again is None
            _log.warning("what run %r repeats is not on record: %s", run.id, error)


def note_policy(store: Store, namespace: str, file: PolicyFile, problem: str | None) -> None:
    """That an older content of the policy file is in force is for people to see who are not in this process."""
    try:
        if problem is None:
            take_back(store, namespace, file.path)
        else:
            tell(store, namespace, file.path, file.version, problem)
    except StoreError as error:
        _log.warning("that the policy file %s is not in force is not on record: %s", file.path, error)


def spent_so_far(store: Store, call: Call) -> UsageTotals:
    """What the run of ``call`` has used."""
    return next(iter(store.usage_of(call.run.namespace, {"run": call.run.id})), UsageTotals())
