"""``sagaspan calls``: what was called, what is in doubt, and saying what became of it."""

from __future__ import annotations

import json
import sys
from typing import Any, Final

import click

from sagaspan._commands import command, result_command
from sagaspan.cli._found import the_call, with_namespaces
from sagaspan.cli._options import (
    NEEDS_PERSON,
    Group,
    Settings,
    common_options,
    confirm,
    namespace_option,
    pass_settings,
)
from sagaspan.cli._render import emit_json, emit_table, lately, say, short, visible
from sagaspan.ledger.records import CallInfo, CallState, RunRecord, RunState
from sagaspan.ledger.resolution import Resolution
from sagaspan.status.commands import RECOVER, is_in_doubt, is_to_be_undone, next_commands

_MEANS: Final = {
    Resolution.HAPPENED: "it is done, and is undone if its run is",
    Resolution.DID_NOT_HAPPEN: "it may be run again, and is never undone",
    Resolution.COMPENSATED: "somebody has undone it; nothing undoes it again",
    Resolution.RETRY: "it may be run once more, whatever happened before",
}

_MEANS_UNSENT: Final = {
    Resolution.HAPPENED: "somebody did it by hand, so it is not sent",
    Resolution.DID_NOT_HAPPEN: "it is given up, and not sent",
    Resolution.RETRY: "it is sent again",
}
"""Of a deferred call that was not sent."""


@click.group(cls=Group)
@common_options
def calls() -> None:
    """What was called, what is in doubt, and saying what became of it."""


@calls.command("list")
@click.option("--status", "-s", multiple=True, type=click.Choice([state.value for state in CallState]))
@click.option("--all", "everything", is_flag=True, help="Also calls that are settled.")
@click.option("--tool", metavar="NAME", help="Of this tool, or of a glob of names.")
@click.option("--limit", "-n", default=20, show_default=True, type=click.IntRange(1))
@click.option("--offset", default=0, show_default=True, type=click.IntRange(0))
@namespace_option
@common_options
@pass_settings
def list_calls(
    settings: Settings,
    status: tuple[str, ...],
    everything: bool,
    tool: str | None,
    limit: int,
    offset: int,
    namespace: str | None,
) -> None:
    """Calls that are not settled, newest first."""
    from sagaspan._views import Calls

    store = settings.open_store()
    found = Calls(store, namespace).list(status=status, open=not everything, tool=tool, limit=limit, offset=offset)
    if settings.as_json:
        emit_json(found)
    elif not found:
        say("No such calls." if status or everything else "No open calls.")
    else:
        columns, rows = ("call", "tool", "state", "run", "arguments", "started"), [_row(call) for call in found]
        emit_table(
            *with_namespaces(store, namespace, columns, rows, [call.namespace for call in found]),
            spare=("started", "arguments"),
        )


@calls.command("show")
@click.argument("call_id")
@common_options
@pass_settings
def show_call(settings: Settings, call_id: str) -> None:
    """One call with its history, by id, key or unique prefix."""
    from sagaspan.cli.show import print_call
    from sagaspan.ledger.records import call_info

    record = the_call(settings.open_store(), call_id)
    print_call(call_info(record), settings)


@calls.command()
@click.option("--limit", "-n", default=20, show_default=True, type=click.IntRange(1))
@namespace_option
@common_options
@pass_settings
@click.pass_context
def duplicates(context: click.Context, settings: Settings, limit: int, namespace: str | None) -> None:
    """Effects that came twice, each with the command that undoes the extra one; exit 4 if any."""
    from sagaspan._views import Calls

    store = settings.open_store()
    found = Calls(store, namespace).duplicates(limit)
    if settings.as_json:
        emit_json(
            [
                {"call": first, "extra": extra, "next": settings.located(next_commands(extra)[0])}
                for extra, first in found
            ]
        )
    elif not found:
        say("Nothing came twice.", "green")
    else:
        rows = [
            (extra.tool, extra.run_id, short(extra.args, 40), first and short(first.result, 40),
             short(extra.result, 40), settings.located(next_commands(extra)[0]))
            for extra, first in found
        ]  # fmt: skip
        columns = ("tool", "run", "arguments", "result", "extra result", "next")
        emit_table(*with_namespaces(store, namespace, columns, rows, [extra.namespace for extra, _ in found]))
    context.exit(NEEDS_PERSON if found else 0)


@calls.command()
@click.argument("call_id")
@click.argument("outcome", type=click.Choice([resolution.value for resolution in Resolution]))
@click.option("--note", required=True, help="How you know.")
@click.option("--result", metavar="JSON", help="What it returned, if it happened.")
@click.option("--actor", help="Who decides; default: the user of this process.")
@click.option("--expected-version", type=click.IntRange(1), help="Only if the call is still at this version.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask, also on a terminal.")
@common_options
@pass_settings
def resolve(
    settings: Settings,
    call_id: str,
    outcome: str,
    note: str,
    result: str | None,
    actor: str | None,
    expected_version: int | None,
    yes: bool,
) -> None:
    """Say what became of a call that nobody knows the end of: the audit trail keeps who said so, and why.

    It is bound to the call as it is now: if somebody or something decides it meanwhile, nothing changes.
    """
    from sagaspan._probe import NOT_GIVEN
    from sagaspan._views import Calls
    from sagaspan.ledger.records import call_info

    value = NOT_GIVEN if result is None else _parsed(result)
    store = settings.open_store()
    record = the_call(store, call_id)
    seen = call_info(record)
    if not yes and sys.stdin.isatty():
        confirm(_question(seen, _means(seen, Resolution(outcome))))
    decided = Calls(store).resolve(
        seen.id, outcome, result=value, note=note, actor=actor, expected_version=expected_version or seen.version
    )
    if settings.as_json:
        emit_json(decided)
        return
    means = _means(seen, Resolution(outcome))
    say(f"Call {visible(decided.id)} ({visible(decided.tool)}) is {decided.state}: {means}.")
    if decided.state is CallState.DONE and decided.result_lost is not None:
        say("Nobody said what it returned, so who asks for it again gets an error. Say it (null, if it was nothing):")
        say(f"  {settings.located(result_command(decided.id))}")
    run = store.get_run(record.namespace, record.run_id)
    if run is not None and not run.is_session:
        say(_what_now(store, run, settings))


def _what_now(store: Any, run: RunRecord, settings: Settings) -> str:
    """What becomes of the run of a call that was decided."""
    name = f"Its run {visible(run.id)}"
    if run.state in (RunState.COMPLETED, RunState.COMPENSATED, RunState.PARTIALLY_COMPENSATED):
        return f"{name} is {run.state}."
    again = f"{name} goes on when it is entered again with the same id"
    if not is_to_be_undone(store, run):
        return f"{again}."
    if is_in_doubt(store, run):
        show = settings.located(command("show", run.id))
        return f"{name} is to be undone, when what else is in doubt in it is decided: {show}"
    return f"{again}. If nobody enters it, recovery undoes it: {settings.located(RECOVER)}"


def _row(call: CallInfo) -> tuple[object, ...]:
    return call.id[:14], call.tool, call.state, call.run_id, short(call.args, 40), lately(call.started)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not JSON ({error}); a string needs quotes: '\"paid\"'") from error


def _means(call: CallInfo, resolution: Resolution) -> str:
    unsent = call.state in (CallState.SCHEDULED, CallState.FAILED)
    return (_MEANS_UNSENT if unsent else _MEANS).get(resolution, _MEANS[resolution])


def _question(call: CallInfo, means: str) -> str:
    return (
        f"{visible(call.tool)} {short(call.args, 200)} of run {visible(call.run_id)} is {call.state} "
        f"(version {call.version}).\nYour word means: {means}. Record that?"
    )
