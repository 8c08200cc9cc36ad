"""``sagaspan runs``: what agents did."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path
from typing import Final

import click

from sagaspan.cli._decided import as_data, emit_requests, requests_of
from sagaspan.cli._found import namespace_of, the_run, with_namespaces
from sagaspan.cli._options import Group, Settings, common_options, namespace_option, pass_settings, tags_of
from sagaspan.cli._render import (
    dumped,
    emit_block,
    emit_json,
    emit_table,
    lately,
    plain_error,
    say,
    short,
    styled,
    visible,
    when,
)
from sagaspan.ledger.records import CallInfo, Phase, RunInfo, RunState

_REPORTS: Final = ("md", "json")


@click.group(cls=Group)
@common_options
def runs() -> None:
    """What agents did."""


@runs.command("list")
@click.option("--status", "-s", multiple=True, type=click.Choice([state.value for state in RunState]))
@click.option("--tag", "tags", multiple=True, metavar="KEY=VALUE", help="Only runs with this tag; may be repeated.")
@click.option("--limit", "-n", default=20, show_default=True, type=click.IntRange(1))
@click.option("--offset", default=0, show_default=True, type=click.IntRange(0))
@namespace_option
@common_options
@pass_settings
def list_runs(
    settings: Settings, status: tuple[str, ...], tags: tuple[str, ...], limit: int, offset: int, namespace: str | None
) -> None:
    """Runs, newest first."""
    from sagaspan._views import Runs

    store = settings.open_store()
    found = Runs(store, namespace).list(status=status, tags=tags_of(tags), limit=limit, offset=offset)
    if settings.as_json:
        emit_json([{name: value for name, value in asdict(run).items() if name != "calls"} for run in found])
    elif not found:
        say("No runs that fit." if status or tags else "No runs.")
    else:
        rows = [(run.id, run.name, run.status, run.reason, lately(run.started), _took(run)) for run in found]
        columns = ("run", "name", "status", "reason", "started", "took")
        emit_table(
            *with_namespaces(store, namespace, columns, rows, [run.namespace for run in found]),
            spare=("took", "reason"),
        )


@runs.command("show")
@click.argument("run_id")
@namespace_option
@common_options
@pass_settings
def show_run(settings: Settings, run_id: str, namespace: str | None) -> None:
    """One run with its calls, by id or unique prefix."""
    from sagaspan._views import Runs

    store = settings.open_store()
    print_run(Runs(store).complete(the_run(store, run_id, namespace)), settings)


@runs.command("export")
@click.argument("run_id")
@click.option("--format", "-f", "form", type=click.Choice(_REPORTS), help="Default: as FILE is named, else md.")
@click.option("--output", "-o", type=click.Path(path_type=Path, dir_okay=False), help="Default: standard output.")
@namespace_option
@common_options
@pass_settings
def export_run(settings: Settings, run_id: str, form: str | None, output: Path | None, namespace: str | None) -> None:
    """The report of one run: what happened, who approved, what it cost, what was undone, what is open.

    Arguments and results are in it as far as they are recorded: see to who gets it.
    """
    from sagaspan._views import Runs
    from sagaspan.cli._output import form_of, writing

    form = form_of(form, output, _REPORTS, as_json=settings.as_json, default="md")
    store = settings.open_store()
    run = Runs(store).complete(the_run(store, run_id, namespace))
    if form == "json":
        text = f"{dumped(_as_data(run, settings), 2)}\n"
    else:
        from sagaspan.cli._incident import report

        text = report(run, settings)
    with writing(output) as out:
        out.write(text)


@runs.command()
@click.argument("run_id")
@click.option("--reason", required=True, help="Why, for whoever finds it paused.")
@click.option("--actor", help="Who decides; default: the user of this process.")
@namespace_option
@common_options
@pass_settings
def pause(settings: Settings, run_id: str, reason: str, actor: str | None, namespace: str | None) -> None:
    """Let a run, and those nested in it, begin nothing more, without undoing anything; it ends as paused."""
    from sagaspan._views import Runs

    store = settings.open_store()
    run = the_run(store, run_id, namespace)
    frozen = Runs(store, run.namespace).pause(run.id, reason=reason, actor=actor)
    if settings.as_json:
        emit_json(frozen)
    else:
        say(f"run {visible(run.id)} begins nothing more, from its next call on.", "yellow")
        say(f"To let it go on: {settings.command('runs resume', run.id)}")


@runs.command()
@click.argument("run_id")
@click.option("--actor", help="Who decides; default: the user of this process.")
@namespace_option
@common_options
@pass_settings
def resume(settings: Settings, run_id: str, actor: str | None, namespace: str | None) -> None:
    """Let a paused run go on: where it is still running at once, else when it is entered with the same id."""
    from sagaspan._views import Runs

    store = settings.open_store()
    run = the_run(store, run_id, namespace)
    before = Runs(store, run.namespace).resume(run.id, actor=actor)
    if settings.as_json:
        emit_json(before)
    else:
        entered = "goes on" if run.state is RunState.RUNNING else "goes on when it is entered with the same id"
        say(f"run {visible(run.id)} {entered}; it was paused by {visible(before.by)}.", "green")


def print_run(run: RunInfo, settings: Settings) -> None:
    """A run and its calls."""
    if settings.as_json:
        emit_json(_as_data(run, settings))
        return
    requests = requests_of(settings.open_store(), run.namespace, run.id)
    from rich.text import Text

    from sagaspan.cli._render import console

    head = Text.assemble(("run ", "bold"), visible(run.id), "  ", styled(run.status))
    console().print(head)
    facts = (
        ("name", run.name), ("namespace", namespace_of(run, settings)), ("reason", run.reason), ("error", run.error),
        ("started", when(run.started)),
        ("took", _took(run)), ("user", run.user), ("tenant", run.tenant), ("agent", run.agent),
        ("tags", ", ".join(f"{name}={value}" for name, value in run.tags.items())),
        ("conversation", run.conversation), ("inside", run.parent_id), ("input", run.input and short(run.input)),
        ("output", run.output and short(run.output)), ("on interrupt", run.on_interrupt),
        ("completing", "it has ended well; what was deferred is to be sent" if run.completing else None),
        ("orphans", _orphans(run)),
        ("reopened", run.reopened or None), ("holds locks", ", ".join(run.locks)), ("trace", trace_of(run.traceparent)),
    )  # fmt: skip
    for name, value in facts:
        if value:
            emit_block(f"  {name:<13} {visible(value)}")
    _say_holder(run, settings)
    say("")
    columns = ("#", "call", "tool", "state", "arguments", "result or error", "tries")
    emit_table(columns, _call_rows(run.calls), spare=("tries",))
    emit_requests(settings.open_store(), requests)
    _say_next(run, settings)


def _as_data(run: RunInfo, settings: Settings) -> dict[str, object]:
    requests = requests_of(settings.open_store(), run.namespace, run.id)
    return {
        **{field.name: getattr(run, field.name) for field in fields(run)},
        "approvals": as_data(settings.open_store(), requests),
    }


def _orphans(run: RunInfo) -> str | None:
    """What was done before it was resumed, and what became of that."""
    if not run.orphans:
        return None
    calls = {call.id: f"{call.tool} ({call.state})" for call in run.calls}
    return "not asked for again: " + ", ".join(calls.get(call_id, call_id) for call_id in run.orphans)


def _say_holder(run: RunInfo, settings: Settings) -> None:
    """Who is inside a run that goes on, and what to do if nobody is."""
    if run.status not in (RunState.RUNNING, RunState.COMPENSATING):
        return
    from sagaspan._saga import token
    from sagaspan.ledger.judgement import Verdict
    from sagaspan.status.commands import RECOVER
    from sagaspan.status.holders import held_by

    store = settings.open_store()
    record = next(
        (found for found in store.match_runs(run.id, namespace=run.namespace) if found.owner == run.owner), None
    )
    if record is None:  # it ended at this moment
        return
    verdict, words = held_by(store, run.owner, token(store, record))
    say(f"  {'held by':<13} {visible(words)}")
    if verdict is not Verdict.ALIVE:
        say(f"  {'next':<13} {settings.located(RECOVER)}")


def _say_next(run: RunInfo, settings: Settings) -> None:
    """What is left of a run that needs a person, step by step."""
    if run.status not in (RunState.HELD, RunState.PARTIALLY_COMPENSATED):
        return
    from sagaspan.status.commands import next_steps

    store = settings.open_store()
    record = store.get_run(run.namespace, run.id)
    if record is None:  # pruned at this moment
        return
    rows = [(step.tool, step.state, settings.located(line)) for step, line in next_steps(store, record)]
    if rows:
        say("")
        emit_table(("tool", "state", "next"), rows, title="what needs you")


def trace_of(traceparent: str | None) -> str | None:
    """The trace id of a ``traceparent``."""
    parts = (traceparent or "").split("-")
    return parts[1] if len(parts) == 4 else None


def _call_rows(calls: tuple[CallInfo, ...]) -> list[tuple[object, ...]]:
    numbers = {call.id: number for number, call in enumerate(calls, 1)}
    rows: list[tuple[object, ...]] = []
    for number, call in enumerate(calls, 1):
        undoes = f" undoes #{numbers.get(call.compensates or '', '?')}" if call.phase is Phase.COMPENSATION else ""
        outcome = plain_error(call.error) or (
            f"(lost: {call.result_lost})" if call.result_lost else short(call.result, 40)
        )
        rows.append(
            (
                number,
                call.id[:14],
                f"{call.tool}{undoes}",
                call.state,
                short(call.args, 40),
                short(outcome, 60),
                call.attempts,
            )
        )
    return rows


def _took(run: RunInfo) -> str:
    return f"{(run.ended - run.started).total_seconds():.2f} s" if run.ended else ""
