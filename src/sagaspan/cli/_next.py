"""The next command for what needs a person, or a process that has the tools."""

from __future__ import annotations

from sagaspan.ledger.records import CallInfo, CallRecord, CallState, Phase

RECOVER = "sagaspan recover --app MODULE:GUARD"
"""Goes on after a process that died, and undoes what waits for the tools."""

Call = CallInfo | CallRecord


def next_commands(call: Call) -> list[str]:
    """What to type for a call that is not settled, or stands although its run was rolled back; the best one first."""
    if call.state is CallState.UNKNOWN and call.effect == "read" and not call.locks:
        return []  # nobody has anything to decide
    if call.phase is Phase.COMPENSATION:
        return [f"sagaspan show {call.compensates}"]
    if call.state is CallState.COMPENSATION_FAILED:
        return [f"{undo_command(call)} --app MODULE:GUARD", undone_command(call)]
    if call.state is CallState.COMPENSATING:
        return [RECOVER]
    if call.state is CallState.DONE:
        return [undo_command(call) if call.compensate else undone_command(call)]
    return [f"sagaspan calls resolve {call.id} OUTCOME --note WHY"]


def undo_command(call: Call) -> str:
    """The command that undoes a call alone."""
    return f"sagaspan compensate {call.run_id} --call {call.id}"


def undone_command(call: Call) -> str:
    """The command by which a person says that a call was undone by hand."""
    return f"sagaspan calls resolve {call.id} compensated --note WHY"
