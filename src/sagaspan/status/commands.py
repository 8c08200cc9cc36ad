"""The next command for what needs a person, or a process that has the tools."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from sagaspan._commands import CommandLine, command, resolve_command, result_command
from sagaspan.ledger.records import CallInfo, CallRecord, CallState, Phase, RunInfo, RunRecord, RunState, call_info

RECOVER: Final = command("recover", app="MODULE:GUARD")
"""Goes on after a process that died, and undoes what waits for the tools."""

_NOT_SENT: Final = (CallState.SCHEDULED, CallState.RUNNING, CallState.UNKNOWN, CallState.NEEDS_HUMAN)

Call = CallInfo | CallRecord


def next_commands(call: Call) -> list[CommandLine]:
    """What to type for a call that is not settled, or stands although its run was rolled back; the best one first."""
    if call.state is CallState.UNKNOWN and call.effect == "read" and not call.locks:
        return []  # nobody has anything to decide
    if call.phase is Phase.COMPENSATION:
        return [command("show", call.compensates or "")]
    if call.state is CallState.COMPENSATION_FAILED:
        return [undo_command(call).adding(app="MODULE:GUARD"), undone_command(call)]
    if call.state is CallState.COMPENSATING:
        return [RECOVER]
    if call.state is CallState.DONE:
        return [undo_command(call) if call.compensate else undone_command(call)]
    return [resolve_command(call.id)]


def next_steps(store: Any, run: RunRecord) -> list[tuple[Call, CommandLine]]:
    """Return what is left to decide of a held or partially compensated run: each call with its commands."""
    from sagaspan._steps import steps_of

    steps = steps_of(store, run)
    partly = run.state is RunState.PARTIALLY_COMPENSATED
    left: Iterable[CallRecord] = steps.unresolved
    if partly:
        left = (*left, *steps.undoable, *steps.not_compensable)
    found: list[tuple[Call, CommandLine]] = [(step, line) for step in left for line in next_commands(step)]
    if not partly:  # it goes on through its calls: one whose result nobody has stops it
        calls = map(call_info, store.calls_of(run.namespace, run.id))
        found += [(one, result_command(one.id)) for one in calls if one.state is CallState.DONE and one.result_lost]
    return found


def undo_command(call: Call) -> CommandLine:
    """The command that undoes a call alone."""
    return command("compensate", call.run_id, call=call.id)


def undone_command(call: Call) -> CommandLine:
    """The command by which a person says that a call was undone by hand."""
    return command("calls resolve", call.id, "compensated", note="WHY")


def is_to_be_undone(store: Any, run: RunRecord) -> bool:
    """Whether recovery undoes this held run, as soon as nothing in it is in doubt."""
    from sagaspan._recovery import wanted_undoing
    from sagaspan.ledger import pivots

    held = run.state is RunState.HELD and not run.completing
    return held and wanted_undoing(run) and pivots.passed(store, run) is None


def is_in_doubt(store: Any, run: RunRecord) -> bool:
    """Whether a write of this run, or of one nested in it, is in doubt."""
    from sagaspan._steps import steps_of

    return bool(steps_of(store, run).unresolved)


def needed_by(run: RunInfo) -> set[str]:
    """What it takes to go on with a run, by name: what undoes its calls, or what sends those that were deferred."""
    if run.completing:
        orphans = {call.compensate or "" for call in run.calls if call.state is CallState.COMPENSATING}
        return orphans | {call.tool for call in run.calls if call.state in _NOT_SENT}
    return {call.compensate for call in run.calls if call.compensate is not None}
