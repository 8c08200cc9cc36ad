"""Everything that needs a person, in a ledger: what ``sagaspan status`` lists and the gauges count."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from sagaspan import codecs
from sagaspan._characters import visible
from sagaspan._commands import CommandLine, command
from sagaspan._endings import PIVOT
from sagaspan._owner import NOBODY
from sagaspan.ledger.judgement import Verdict
from sagaspan.ledger.locks import held_by_call, held_by_run
from sagaspan.ledger.records import ApprovalState, CallRecord, CallState, RunRecord, RunState, call_info, run_info
from sagaspan.status.commands import RECOVER, is_in_doubt, is_to_be_undone, needed_by, next_commands, next_steps
from sagaspan.status.holders import held_by

_RUNS: Final = {
    RunState.PAUSED: "waits to be continued with the same run id",
    RunState.HELD: "was interrupted or is in doubt",
    RunState.PARTIALLY_COMPENSATED: "was rolled back, but not all of it",
}
_AGAIN: Final = "start the program that began it again, and it goes on; the command undoes it instead"
_UNDOING: Final = "is to be undone, and nothing in it is in doubt any more: recovery undoes it"
_UNDOING_LATER: Final = "is to be undone: recovery does so when what is in doubt in it is decided"
_FORWARD: Final = "failed after its pivot, so it only goes forward: enter it again with the same id"
_CALLS: Final = {
    CallState.UNKNOWN: "was started and nobody knows how it ended",
    CallState.NEEDS_HUMAN: "waits for somebody to say what happened",
    CallState.COMPENSATION_FAILED: "happened and could not be undone",
}
_LIMIT: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One thing that needs a person; ``locks`` are those that nobody else can take meanwhile."""

    kind: str
    id: str
    namespace: str
    what: str
    state: str
    why: str
    next: CommandLine
    locks: tuple[str, ...] = ()


def list_items(store: Any, namespace: str | None = None) -> Iterator[Item]:
    """Yield everything that needs a person, of all namespaces by default; of each kind at most 1,000."""
    yield from _freeze_items(store, namespace)
    yield from _policy_items(store, namespace)
    yield from _approval_items(store, namespace)
    yield from _run_items(store, namespace)
    yield from _call_items(store, namespace)
    yield from _incidents(store, namespace)
    yield from _undelivered(store, namespace)


def _freeze_items(store: Any, namespace: str | None) -> Iterator[Item]:
    from sagaspan._freezes import frozen
    from sagaspan.ledger.freezes import run_of

    several = len(store.namespaces()) > 1
    for one in frozen(store, namespace):
        run = run_of(one.scope)
        line = command("unfreeze", one.scope) if run is None else command("runs resume", run)
        yield Item(
            kind="freeze", id=one.scope, namespace=one.namespace, what=one.scope, state="frozen",
            why=f"by {one.by} since {one.since:%Y-%m-%d %H:%M} UTC: {_short(one.reason, 80)}",
            next=line.adding(namespace=one.namespace if several else None),
        )  # fmt: skip


def _policy_items(store: Any, namespace: str | None) -> Iterator[Item]:
    """Policy files that were changed, and of which agents go by an older content."""
    from sagaspan.ledger.stale_policies import stale_policies

    for space in {"default", *store.namespaces()} if namespace is None else {namespace}:
        for stale in stale_policies(store, space):
            yield Item(
                kind="policy", id=stale.version, namespace=space, what=stale.path, state="stale",
                why=f"was changed and cannot be put in force, so this version stays: {_short(stale.problem, 200)}",
                next=command("policy check", stale.path),
            )  # fmt: skip


def _approval_items(store: Any, namespace: str | None) -> Iterator[Item]:
    from sagaspan._approvals import Approvals

    for request in Approvals(store, namespace).list(limit=_LIMIT):
        yield Item(
            kind="approval", id=request.id, namespace=request.namespace, what=request.tool, state=request.state,
            why=f"waits for approval ({len(request.approved_by)} of {request.approvers})",
            next=command("approvals show", request.id),
        )  # fmt: skip


def _run_items(store: Any, namespace: str | None) -> Iterator[Item]:
    several = len(store.namespaces()) > 1  # then its id alone may be two runs
    going_on = [run for run in store.unfinished_runs() if namespace in (None, run.namespace)]
    for run in (*store.list_runs(states=[*_RUNS], namespace=namespace, limit=_LIMIT), *going_on):
        if run.completing and run.state is RunState.HELD and (stopped := _stopped(store, run)) is not None:
            yield stopped
            continue
        orphaned = None if run.state in _RUNS else _orphaned(store, run)
        forward = run.reason == PIVOT and run.state is RunState.HELD  # the reason stays when it was undone by request
        why = _FORWARD if forward else _RUNS.get(run.state) or orphaned
        due = False
        if is_to_be_undone(store, run):
            due = not is_in_doubt(store, run)
            why = _UNDOING if due else _UNDOING_LATER
        if why is not None:
            space = run.namespace if several else None
            way, line = ("", RECOVER) if orphaned or due else _way_on(store, run, space, forward=forward)
            why = f"{why}; {way}" if way else why
            yield Item(
                kind="run", id=run.id, namespace=run.namespace, what=run.name, state=run.state,
                why=why if run.reason is None else f"{why} ({run.reason})",
                next=line, locks=held_by_run(store, run),
            )  # fmt: skip


def _way_on(store: Any, run: RunRecord, namespace: str | None, *, forward: bool) -> tuple[str, CommandLine]:
    """Return who has to do what about a run that waits, and the command for it."""
    show, undo = (command(verb, run.id, namespace=namespace) for verb in ("show", "compensate"))
    if forward:
        return "", show
    if run.state is RunState.PAUSED:
        states = [ApprovalState.PENDING]
        for asked in store.list_approvals(states=states, namespace=run.namespace, run_id=run.id, limit=1):
            return "it waits for approval", command("approvals show", asked.id)
        return _AGAIN, undo
    if left := next_steps(store, run):
        return "", left[0][1]
    if run.state is RunState.HELD:
        return f"nothing in it is in doubt; {_AGAIN}", undo
    return "", show


def _orphaned(store: Any, run: RunRecord) -> str | None:
    """Why a run that says it is going on is not: its process is gone. A dead session has nothing to continue."""
    from sagaspan._saga import token

    if run.owner == NOBODY:
        what = "what is left to undo or to send in it" if run.completing else "its rollback"
        info = run_info(run, tuple(map(call_info, store.calls_of(run.namespace, run.id))))
        return f"{what} waits for a process that has {', '.join(sorted(needed_by(info))) or 'the tools'}"
    verdict, holder = held_by(store, run.owner, token(store, run))
    if run.is_session or verdict is Verdict.ALIVE:
        return None
    if run.state is RunState.COMPENSATING:
        return f"its rollback stopped; it was held by {holder}"
    if run.completing:
        return f"it has ended well; it was held by {holder}. Recovery sends what was deferred in it"
    becomes = "undoes it" if run.on_interrupt == "compensate" else "holds it, and the same id goes on"
    return f"it stopped; it was held by {holder}. Recovery {becomes}"


def _stopped(store: Any, run: RunRecord) -> Item | None:
    """A run that has ended well, and at which of its deferred calls sending stopped; None if it is being decided."""
    from sagaspan._completion import due

    call = next(iter(due(store, run)), None)
    if call is None or call.state not in (CallState.FAILED, CallState.UNKNOWN, CallState.NEEDS_HUMAN):
        return None
    failed = call.state is CallState.FAILED
    what = "failed, so it was not sent" if failed else "may or may not have been sent"
    again = "; entering the run again sends it again" if failed else ""
    problem = "" if call.error_message is None else f" ({_short(codecs.legible(call.error_message) or '', 80)})"
    return Item(
        kind="run", id=run.id, namespace=run.namespace, what=run.name, state=run.state,
        why=f"has ended well, but its deferred call {call.tool} {what}{problem}{again}",
        next=next_commands(call)[0], locks=held_by_run(store, run),
    )  # fmt: skip


def _call_items(store: Any, namespace: str | None) -> Iterator[Item]:
    for call in store.open_calls(_LIMIT, namespace=namespace):
        locks = held_by_call(store, call)
        if call.state is CallState.UNKNOWN and not call.declared_write and not locks:
            continue  # in doubt, but nobody has to act on what declares no write
        why = _CALLS.get(call.state) or _abandoned(store, call) or _queued(store, call)
        if why is not None:
            read = call.state is CallState.RUNNING and not call.declared_write
            yield Item(
                kind="call", id=call.id, namespace=call.namespace, what=call.tool, state=call.state,
                why=why if call.error_message is None else f"{why}: {_short(codecs.legible(call.error_message), 80)}",
                next=RECOVER if read else next_commands(call)[0], locks=locks,
            )  # fmt: skip


def _incidents(store: Any, namespace: str | None) -> Iterator[Item]:
    """Effects that are there although a rollback, an agent or a person went by that they are not."""
    from sagaspan._views import Calls

    calls = Calls(store, namespace)
    found = [(extra, "happened twice; this is the extra effect") for extra, _ in calls.duplicates(_LIMIT)]
    found += [(call, "was taken for failed, and happened after all; its run is over") for call in calls.late(_LIMIT)]
    for call, why in found:
        yield Item(
            kind="call", id=call.id, namespace=call.namespace, what=call.tool, state=call.state, why=why,
            next=next_commands(call)[0],
        )  # fmt: skip


def _undelivered(store: Any, namespace: str | None) -> Iterator[Item]:
    """Notifications that were given up."""
    for dead in store.deliveries(namespace=namespace, dead=True, limit=_LIMIT):
        yield Item(
            kind="notification", id=dead.id, namespace=dead.namespace, what=f"{dead.kind} of {dead.about}",
            state="undelivered", why=f"{dead.hook} did not take it in {dead.attempts} attempts: {dead.error}",
            next=command("notifications retry", dead.id),
        )  # fmt: skip


def _queued(store: Any, call: CallRecord) -> str | None:
    """Why a call that is to be undone alone is not."""
    from sagaspan._alone import run_at_rest
    from sagaspan.ledger.judgement import Judge

    if call.state is not CallState.COMPENSATING or run_at_rest(store, Judge(store), call) is None:
        return None
    return f"is to be undone, and waits for a process that has {call.compensate!r}"


def _abandoned(store: Any, call: CallRecord) -> str | None:
    if call.state is not CallState.RUNNING:
        return None
    verdict, holder = held_by(store, call.owner, call.id)
    return None if verdict is Verdict.ALIVE else f"nobody knows how it ended; it was held by {holder}"


def _short(text: str | None, width: int) -> str:
    text = visible(text or "")
    return text if len(text) <= width else text[: width - 1] + "…"
