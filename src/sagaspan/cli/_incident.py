"""The incident report of one run: what happened, who approved, what it cost, what was undone, what is open.

From the ledger, which is the truth; what models thought comes from the run's traces, where it was captured.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from typing import Any, Final

from sagaspan import codecs
from sagaspan._commands import CommandLine, command
from sagaspan._owner import names_a_process
from sagaspan.cli._options import Settings
from sagaspan.cli._render import short, when
from sagaspan.cli._trace_export import cell, code, fenced
from sagaspan.cli._trace_tree import cost
from sagaspan.ledger.records import ApprovalRecord, ApprovalState, CallInfo, CallState, Phase, RunInfo, RunState, moment
from sagaspan.ledger.requests import decided_by, denials_of
from sagaspan.scopes import scope_of_run
from sagaspan.status.commands import next_commands

_OPEN: Final = (
    CallState.AWAITING_APPROVAL, CallState.RUNNING, CallState.UNKNOWN, CallState.NEEDS_HUMAN, CallState.COMPENSATING,
    CallState.COMPENSATION_FAILED, CallState.SCHEDULED,
)  # fmt: skip
_WIDE: Final = 120
_SPANS: Final = 200


def report(run: RunInfo, settings: Settings) -> str:
    """The report as Markdown."""
    store = settings.open_store()
    record = store.get_run(run.namespace, run.id)
    requests = _requests(store, run)
    chapters = (
        _head(run),
        _happened(run),
        _approved(store, run, requests),
        _cost(store, run),
        _undone(run),
        _open(store, record, run, requests),
        _nested(store, run),
        _thoughts(run, settings),
        _history(store, run),
    )
    return "\n".join(line for chapter in chapters for line in chapter).rstrip("\n") + "\n"


def _head(run: RunInfo) -> Iterator[str]:
    yield f"# Run {cell(run.id)}: {cell(run.status)}"
    yield ""
    facts = (
        ("Name", run.name), ("Why it ended so", run.reason), ("Error", run.error), ("Started", when(run.started)),
        ("Ended", when(run.ended) if run.ended else "it goes on"), ("Took", _took(run.started, run.ended)),
        ("User", run.user), ("Tenant", run.tenant), ("Agent", run.agent), ("Conversation", run.conversation),
        ("Inside run", run.parent_id), ("Input", run.input and short(run.input, _WIDE)),
        ("Output", run.output and short(run.output, _WIDE)), ("Trace", (run.traceparent or "").split("-")[1:2]),
    )  # fmt: skip
    for name, value in facts:
        if value:
            yield f"- {name}: {cell(value[0] if isinstance(value, list) else value)}"
    yield ""


def _happened(run: RunInfo) -> Iterator[str]:
    yield "## What happened"
    yield ""
    if not run.calls:
        yield "It made no call."
        yield ""
        return
    numbers = {call.id: number for number, call in enumerate(run.calls, 1)}
    rows = (
        (
            number, when(call.started), _name(call, numbers), call.state, call.attempts, short(call.args, _WIDE),
            short(call.error or (call.result if call.result_lost is None else f"(lost: {call.result_lost})"), _WIDE),
        )
        for number, call in enumerate(run.calls, 1)
    )  # fmt: skip
    yield from _table(("#", "started", "call", "state", "tries", "arguments", "result or error"), rows)


def _approved(store: Any, run: RunInfo, requests: Sequence[ApprovalRecord]) -> Iterator[str]:
    yield "## Who approved"
    yield ""
    if not requests:
        yield "Nobody was asked."
        yield ""
        return
    denials = denials_of(store.audit_of(run.namespace, run.id))
    rows = (
        (
            one.tool, one.state, decided_by(one, denials) or "nobody", _moment(one.ended_us),
            codecs.legible(one.reason), one.digest[:16], one.id,
        )
        for one in requests
    )  # fmt: skip
    yield from _table(("tool", "state", "by", "when", "reason", "digest", "request"), rows)


def _cost(store: Any, run: RunInfo) -> Iterator[str]:
    yield "## What it cost"
    yield ""
    rows = [
        (
            total.key, total.calls, cost(total.cost / 1e9) + (" (some of it assumed)" if total.unpriced else ""),
            total.input_tokens or "", total.output_tokens or "",
        )
        for total in store.usage_of(run.namespace, {"run": run.id}, by="tool")
    ]  # fmt: skip
    whole = store.usage_of(run.namespace, {"run": run.id})
    yield f"{cost(sum(total.cost for total in whole) / 1e9)} for {sum(total.calls for total in whole)} calls."
    yield ""
    if rows:
        yield from _table(("tool or model", "calls", "cost", "tokens in", "tokens out"), rows)
    budgets = [
        (one.scope, one.unit, *_amounts(one)) for one in store.budgets(run.namespace, scope_of_run(run.id))
    ]  # fmt: skip
    if budgets:
        yield from _table(("budget", "unit", "limit", "spent", "reserved"), budgets)


def _undone(run: RunInfo) -> Iterator[str]:
    yield "## What was undone"
    yield ""
    numbers = {call.id: number for number, call in enumerate(run.calls, 1)}
    rows = [
        (numbers.get(call.compensates or "", "?"), call.tool, call.state, when(call.ended), call.error)
        for call in run.calls
        if call.phase is Phase.COMPENSATION
    ]
    by_hand = [
        (number, "by hand", call.state, when(call.ended), None)
        for number, call in enumerate(run.calls, 1)
        if call.state is CallState.COMPENSATED and not any(one.compensates == call.id for one in run.calls)
    ]
    if not rows and not by_hand:
        yield "Nothing."
        yield ""
        return
    yield from _table(("call #", "by", "state", "when", "error"), [*rows, *by_hand])


def _open(store: Any, record: Any, run: RunInfo, requests: Sequence[ApprovalRecord]) -> Iterator[str]:
    yield "## What is open"
    yield ""
    calls: dict[str, Any] = {call.id: call for call in run.calls if call.state in _OPEN}
    if record is not None and run.status is RunState.PARTIALLY_COMPENSATED:
        from sagaspan._steps import steps_of

        steps = steps_of(store, record)
        calls |= {step.id: step for step in (*steps.unresolved, *steps.undoable, *steps.not_compensable)}
    rows: list[tuple[object, ...]] = [
        (call.tool, call.state, lines) for call in calls.values() if (lines := next_commands(call))
    ]
    rows += [
        (one.tool, "waits for approval", command("approvals approve", one.id))
        for one in requests
        if one.state is ApprovalState.PENDING
    ]
    if run.orphans:
        rows.append(("run", "writes that were not asked for again", command("runs show", run.id)))
    if run.locks:
        rows.append(("run", f"holds locks: {', '.join(run.locks)}", "they go when the run is over"))
    if not rows:
        yield "Nothing."
        yield ""
        return
    yield from _table(("what", "state", "next"), rows)


def _nested(store: Any, run: RunInfo) -> Iterator[str]:
    children = store.children_of(run.namespace, run.id)
    if children:
        yield "## Runs nested in it"
        yield ""
        rows = ((one.id, one.name, one.state, command("runs export", one.id, format="md")) for one in children)
        yield from _table(("run", "name", "state", "its report"), rows)


def _thoughts(run: RunInfo, settings: Settings) -> Iterator[str]:
    """What models thought, in the order in which they were asked."""
    if not settings.traces.is_dir():
        return
    from sagaspan import semconv
    from sagaspan.cli._index import synced_index
    from sagaspan.cli._trace_tree import reasoning
    from sagaspan.index import Where

    spans = synced_index(settings).spans(Where(run_id=run.id, limit=_SPANS))
    found = [(span, reasoning(span.attributes.get(semconv.GEN_AI_OUTPUT_MESSAGES))) for span in reversed(spans)]
    thoughts = [(span, text) for span, text in found if text]
    if thoughts:
        yield "## What the model thought"
        yield ""
        for span, text in thoughts:
            yield f"{when(span.start)}, {cell(span.name)}:"
            yield ""
            yield fenced(text).rstrip("\n")
            yield ""


def _history(store: Any, run: RunInfo) -> Iterator[str]:
    yield "## History"
    yield ""
    numbers = {call.id: f"#{number} {call.tool}" for number, call in enumerate(run.calls, 1)}
    rows = (
        (
            moment(row.at_us).astimezone().strftime("%H:%M:%S.%f"), row.event,
            numbers.get(row.call_id or "", "request" if row.approval_id else "run"), row.from_state, row.to_state,
            "" if names_a_process(row.actor) else row.actor, short(codecs.legible(row.detail) or "", _WIDE),
        )
        for row in store.audit_of(run.namespace, run.id)
    )  # fmt: skip
    yield from _table(("at", "event", "of", "from", "to", "by", "detail"), rows)


def _table(columns: Sequence[str], rows: Any) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield f"| {' | '.join('---' for _ in columns)} |"
    for row in rows:
        yield f"| {' | '.join(map(_cell, row))} |"
    yield ""


def _cell(value: object) -> str:
    if isinstance(value, CommandLine):
        return code(value)
    return " or ".join(map(_cell, value)) if isinstance(value, list) else "" if value is None else cell(value)


def _requests(store: Any, run: RunInfo) -> list[ApprovalRecord]:
    from sagaspan.cli._decided import requests_of

    return requests_of(store, run.namespace, run.id)


def _name(call: CallInfo, numbers: dict[str, int]) -> str:
    return f"{call.tool} undoes #{numbers.get(call.compensates or '', '?')}" if call.compensates else call.tool


def _amounts(budget: Any) -> tuple[object, ...]:
    from sagaspan.amounts import Unit, show_amount

    unit = Unit(budget.unit)
    amounts = (budget.cap, budget.spent + budget.overdraft, budget.reserved)
    return tuple("" if amount is None else show_amount(amount, unit) for amount in amounts)


def _moment(microseconds: int | None) -> str:
    return "" if microseconds is None else when(moment(microseconds))


def _took(started: dt.datetime, ended: dt.datetime | None) -> str | None:
    return None if ended is None else f"{(ended - started).total_seconds():.2f} s"
