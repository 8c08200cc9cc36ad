"""``sagaspan show ANY``: a run, call, approval, trace or idempotency key, by unique prefix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

import click

from sagaspan import codecs
from sagaspan._commands import CommandLine, command, result_command
from sagaspan._owner import names_a_process
from sagaspan.cli._decided import as_data, deciders_of, requests_of
from sagaspan.cli._found import SHOWN, ambiguous, call_match, namespace_of, run_match
from sagaspan.cli._options import NotFound, Settings, common_options, namespace_option, pass_settings
from sagaspan.cli._render import emit_block, emit_json, emit_table, say, short, visible, when
from sagaspan.exceptions import StoreUnavailable
from sagaspan.ledger.records import (
    ApprovalRecord,
    CallInfo,
    CallRecord,
    CallState,
    RunRecord,
    call_info,
    moment,
)
from sagaspan.ledger.resolution import happened_after_all
from sagaspan.status.commands import next_commands

_OPEN: Final = (CallState.UNKNOWN, CallState.NEEDS_HUMAN, CallState.COMPENSATION_FAILED)


@dataclass(frozen=True, slots=True)
class _Match:
    kind: str
    id: str
    what: str
    namespace: str | None
    show: Callable[[], None]


@click.command()
@click.argument("any_id", metavar="ANY")
@namespace_option
@common_options
@pass_settings
def show(settings: Settings, any_id: str, namespace: str | None) -> None:
    """A run, call, approval, trace or idempotency key, by unique prefix."""
    matches = [*_in_ledger(settings, any_id, namespace), *_in_traces(settings, any_id)]
    if not matches:
        raise NotFound(f"nothing starts with {any_id!r}; see: sagaspan runs list, sagaspan traces list")
    matches = [match for match in matches if match.id == any_id] or matches
    if len(matches) > 1:
        named = [(match.kind, match.id, match.what, match.namespace) for match in matches]
        raise ambiguous(any_id, "things", named)
    matches[0].show()


def print_call(call: CallInfo, settings: Settings) -> None:
    """One call with its history, and that of the requests for it."""
    store = settings.open_store()
    requests = requests_of(store, call.namespace, call.run_id, call.id)
    ids = {request.id for request in requests}
    rows = store.audit_of(call.namespace, call.run_id)
    history = [row for row in rows if row.call_id == call.id or row.approval_id in ids]
    audit = [row for row in history if row.call_id == call.id]
    if settings.as_json:
        told = {field.name: getattr(call, field.name) for field in fields(call)}
        emit_json({**told, "history": _history(history), "approvals": as_data(store, requests)})
        return
    from rich.text import Text

    from sagaspan.cli._render import console, styled
    from sagaspan.cli.runs import trace_of

    console().print(
        Text.assemble(("call ", "bold"), visible(call.id), "  ", visible(call.tool), "  ", styled(call.state))
    )
    deciders = deciders_of(store, requests)
    facts = (
        ("run", call.run_id), ("namespace", namespace_of(call, settings)), ("arguments", short(call.args, 400)),
        ("result", call.result and short(call.result, 400)),
        ("result lost", call.result_lost), ("error", call.error), ("effect", call.effect), ("attempts", call.attempts),
        ("undone by", call.compensate), ("undoes", call.compensates), ("idempotency key", call.idempotency_key),
        ("policy version", call.policy),
        ("would be refused", "; ".join(call.observed)), ("pivot", "yes" if call.pivot else None),
        ("locks", ", ".join(call.locks)),
        ("tool call id", call.tool_call_id), ("trace", trace_of(call.traceparent)), ("started", when(call.started)),
        ("ended", when(call.ended)), ("held by", _holder(call, settings)),
        *(("approval", f"{one.id} {one.state} {deciders[one.id]} {one.digest}") for one in requests),
    )  # fmt: skip
    for name, value in facts:
        if value:
            emit_block(f"  {name:<16} {visible(value)}")
    for line in _next(call, audit):
        say(f"  {'next':<16} {settings.located(line)}")
    say("")
    _emit_history(history)


def _emit_history(audit: list[Any]) -> None:
    rows = [
        (_moment(row.at_us), row.event, row.from_state, row.to_state, _person(row.actor), codecs.legible(row.detail))
        for row in audit
    ]
    emit_table(("at", "event", "from", "to", "by", "detail"), rows, title="history")


def _print_request(request_id: str, settings: Settings, audit: list[Any]) -> None:
    from sagaspan.cli.approvals import print_request, the_request

    _, request = the_request(settings, request_id)
    if settings.as_json:
        emit_json({**asdict(request), "history": _history(audit)})
        return
    print_request(request, settings)
    say("")
    _emit_history(audit)


def _history(audit: list[Any]) -> list[dict[str, Any]]:
    return [
        {
            "at": moment(row.at_us), "event": row.event, "from": row.from_state, "to": row.to_state,
            "actor": row.actor, "digest": row.digest, "detail": codecs.legible(row.detail),
        }
        for row in audit
    ]  # fmt: skip


def _person(actor: str) -> str:
    """Who decided, if that was a person: the ids of processes only fill the line."""
    return "" if names_a_process(actor) else actor


def _next(call: CallInfo, audit: list[Any]) -> list[CommandLine]:
    if call.state in _OPEN:
        return next_commands(call)
    if happened_after_all(audit):
        return [*next_commands(call), command("calls resolve", call.id, "happened", note="WHY")]
    return [result_command(call.id)] if call.state is CallState.DONE and call.result_lost is not None else []


def _holder(call: CallInfo, settings: Settings) -> str | None:
    """Who runs a call that is running."""
    from sagaspan.status.holders import held_by

    return held_by(settings.open_store(), call.owner, call.id)[1] if call.state is CallState.RUNNING else None


def _in_ledger(settings: Settings, prefix: str, namespace: str | None) -> list[_Match]:
    try:
        store = settings.open_store()
        runs = store.match_runs(prefix, namespace=namespace, limit=SHOWN + 1)
        calls = store.match_calls(prefix, namespace=namespace, limit=SHOWN + 1)
        requests = store.match_approvals(prefix, namespace=namespace, limit=SHOWN + 1)
    except StoreUnavailable:
        if settings.has_ledger or not settings.traces.is_dir():
            raise
        return []  # traces without a ledger: a folder of somebody else's spans
    return [
        *(_run_match(settings, store, run) for run in runs),
        *(_call_match(settings, call) for call in calls),
        *(_approval_match(settings, store, request) for request in requests),
    ]


def _run_match(settings: Settings, store: Any, record: RunRecord) -> _Match:
    def show_it() -> None:
        from sagaspan._views import Runs
        from sagaspan.cli.runs import print_run

        print_run(Runs(store).complete(record), settings)

    return _Match(*run_match(record), show_it)


def _call_match(settings: Settings, record: CallRecord) -> _Match:
    def show_it() -> None:
        print_call(call_info(record), settings)

    return _Match(*call_match(record), show_it)


def _approval_match(settings: Settings, store: Any, record: ApprovalRecord) -> _Match:
    def show_it() -> None:
        audit = [row for row in store.audit_of(record.namespace, record.run_id) if row.approval_id == record.id]
        _print_request(record.id, settings, audit)

    return _Match("approval", record.id, f"{record.tool} {record.state}", record.namespace, show_it)


def _in_traces(settings: Settings, prefix: str) -> list[_Match]:
    if not settings.traces.is_dir() or set(prefix.lower()) - set("0123456789abcdef"):
        return []
    from sagaspan.cli.traces import matching_traces, print_trace

    return [
        _Match("trace", trace_id, name, None, lambda trace_id=trace_id: print_trace(settings, trace_id))  # type: ignore[misc] # bound now
        for trace_id, name in matching_traces(settings, prefix)
    ]


def _moment(microseconds: int) -> str:
    return moment(microseconds).astimezone().strftime("%H:%M:%S.%f")
