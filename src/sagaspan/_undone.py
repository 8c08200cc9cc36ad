"""What a rollback did, or would do, and how that is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sagaspan._commands import command, resolve_command
from sagaspan.ledger.records import CallInfo, CallState, is_encrypted


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """What a rollback did, or would do: steps ``undone``, ``failed`` to undo, and ``not_compensable`` by declaration.

    ``kept`` steps are not undone any more, because a pivot after them is done. ``queued`` ones wait, in their order,
    for a process in which their compensation is registered; ``undeclared`` ones have no policy that says whether they
    changed anything. ``unsent`` ones were deferred, and are not sent any more. ``unfinished``: those of ``failed``
    whose compensation still runs, so that its end is recorded later. ``unresolved``, only in what *would* be done:
    nothing is, before it is decided what became of these; see their ``state``.
    """

    undone: tuple[CallInfo, ...] = ()
    failed: tuple[CallInfo, ...] = ()
    kept: tuple[CallInfo, ...] = ()
    not_compensable: tuple[CallInfo, ...] = ()
    queued: tuple[CallInfo, ...] = ()
    undeclared: tuple[CallInfo, ...] = ()
    unsent: tuple[CallInfo, ...] = ()
    unfinished: tuple[CallInfo, ...] = ()
    unresolved: tuple[CallInfo, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether nothing is left to a person or to another process."""
        return not (self.failed or self.kept or self.not_compensable or self.queued or self.unresolved)

    def sentence(self, run_id: str) -> str:
        """What was undone and what is open, for the note on the original error."""
        parts = [f"sagaspan: run {run_id!r}: undone {_names(self.undone) or 'nothing'}"]
        running = {step.id for step in self.unfinished}
        failed = [step for step in self.failed if step.id not in running]
        if failed:
            parts.append(f"NOT undone, a person must look: {_names(failed)} ({command('show', run_id)})")
        if running:
            parts.append(
                f"NOT undone yet, because what undoes it still runs: {_names(self.unfinished)}; its end is recorded "
                f"({command('show', run_id)})"
            )
        if self.queued:
            parts.append(
                f"NOT undone yet: {_names(self.queued)}; {lacking(self.queued[0])}, so this waits for one that has it"
            )
        if self.kept:
            parts.append(f"not undone any more, because a pivot after them is done: {_names(self.kept)}")
        if self.not_compensable:
            parts.append(f"declared without compensate, so still in force: {_names(self.not_compensable)}")
        if self.unsent:
            parts.append(f"deferred and not sent: {_names(self.unsent)}")
        if self.undeclared:
            parts.append(f"undeclared, so perhaps still in force: {_names(self.undeclared)}")
        return "; ".join([*parts, *map(undecided, self.unresolved)])


def undecided(step: CallInfo) -> str:
    """Why nothing is undone before ``step`` is decided, and what to do."""
    if step.state is CallState.DONE:
        return (
            f"{step.tool!r} happened, but its body still runs, and an undo must not come before all of its action; try "
            "again when it has ended"
        )
    return f"nobody knows whether {step.tool!r} happened; find out, then say so: {resolve_command(step.id)}"


def lacking(step: CallInfo, where: str = "in this process") -> str:
    """Why ``step`` cannot be undone ``where`` this is."""
    if is_encrypted(step):
        return f"what {step.compensate!r} needs to know of {step.tool!r} is encrypted, and the codec is not {where}"
    return f"{step.compensate!r}, which undoes {step.tool!r}, is not registered {where}"


def _names(calls: Sequence[CallInfo]) -> str:
    return ", ".join(call.tool for call in calls)
