"""``sagaspan compensate``: undo a run, also a completed one, or one call of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from sagaspan._commands import CommandLine, command
from sagaspan.cli._found import the_call, the_run
from sagaspan.cli._options import (
    DONE,
    NEEDS_PERSON,
    NotFound,
    Settings,
    common_options,
    namespace_option,
    pass_settings,
)
from sagaspan.cli._render import emit_block, emit_json, emit_table, say, short, visible
from sagaspan.status.commands import next_commands, undo_command, undone_command

if TYPE_CHECKING:
    from sagaspan import CallInfo, Guard
    from sagaspan._undone import Undone
    from sagaspan.ledger.records import RunRecord


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option("--call", "call_id", metavar="ID", help="Only this call of it, by id or unique prefix.")
@click.option("--dry-run", is_flag=True, help="Only say what would be undone.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask; needed where nobody can be asked.")
@namespace_option
@common_options
@pass_settings
@click.pass_context
def compensate(
    context: click.Context,
    settings: Settings,
    run_id: str,
    call_id: str | None,
    dry_run: bool,
    yes: bool,
    namespace: str | None,
) -> None:
    """Undo a run, also a completed one, or one call of it, in reverse order. Asking twice undoes once.

    Undoing runs your tools, so name your guard with --app; without it the work is queued for a process that has them
    (`recover --watch --app MODULE:GUARD`).

    Exit code 0: all of it is undone. 4: something is not, or waits for a process that can, or
    for somebody to decide a call in doubt; --dry-run foresees that.
    """
    if not (yes or dry_run or sys.stdin.isatty()):
        raise click.UsageError("nobody can be asked here: add --yes, or --dry-run to only look")
    with _guard_of(settings, run_id, namespace) as (guard, run):
        work = _Work(settings, guard, run, call_id)
        # What a probe can find out belongs to what is decided on; a dry run changes nothing, not even that.
        plan = work.undo(dry_run=True, probe=not dry_run)
        if not settings.as_json:
            work.say_plan(plan)
        if plan.unresolved and not dry_run:
            raise work.refusal(plan)
        if dry_run:
            context.exit(work.answer(plan, dry_run=True))
        if not yes and (plan.undone or plan.queued) and not click.confirm(work.question(plan), err=True):
            raise click.ClickException("nothing was undone: the answer was no")
        context.exit(work.answer(work.undo(dry_run=False), dry_run=False))


@contextmanager
def _guard_of(settings: Settings, run_id: str, namespace: str | None) -> Iterator[tuple[Guard, RunRecord]]:
    """The user's guard, or one without tools in the namespace of the run; and the run."""
    from sagaspan import Guard

    guard = settings.load_guard()
    settings.send_telemetry()
    if guard is None:
        store = settings.open_store()
        run = _the_run(store, run_id, namespace)
        guard = Guard(store.url, namespace=run.namespace, migrate="check")
    else:
        engine = guard._engine  # noqa: SLF001 - the same house
        if namespace not in (None, engine.namespace):
            raise click.UsageError(f"--namespace {namespace}: the guard of --app is of {engine.namespace!r}")
        run = _the_run(engine.store, run_id, engine.namespace)
    with guard:
        yield guard, run


def _the_run(store: Any, run_id: str, namespace: str | None) -> RunRecord:
    try:
        return the_run(store, run_id, namespace)
    except NotFound as error:
        calls = [] if error.matches else store.match_calls(run_id, namespace=namespace)
        if len(calls) != 1:
            raise
        raise NotFound(f"{run_id!r} is a call; to undo it alone: {undo_command(calls[0])}") from error


class _Work:
    """One call of the program: what is to be undone, and saying what came of it."""

    def __init__(self, settings: Settings, guard: Guard, run: RunRecord, call_id: str | None) -> None:
        self._settings = settings
        self._engine = guard._engine  # noqa: SLF001 - the same house
        self._run = run
        self._call = None
        if call_id is not None:
            self._call = the_call(self._engine.store, call_id, run.namespace)

    def undo(self, *, dry_run: bool, probe: bool = True) -> Undone:
        """Undo it, or only look."""
        from sagaspan._backends import SYNC, run_sync
        from sagaspan._undo import undo

        call_id = None if self._call is None else self._call.id
        return run_sync(
            undo(
                self._engine,
                self._run.id,
                call_id,
                dry_run=dry_run,
                inside=False,
                backend=SYNC,
                probe=probe,
                seen=self._run.version,
            )
        )

    def refusal(self, plan: Undone) -> Exception:
        """Why nothing is undone of a plan in which something is in doubt."""
        from sagaspan._undo import refusal

        return refusal(self._run.id, plan.unresolved[0])

    # -- before ------------------------------------------------------------------------------------------------

    def say_plan(self, plan: Undone) -> None:
        """What would be undone, in that order, and what would not."""
        say(f"run {visible(self._run.id)} ({visible(self._run.name)}) is {self._run.state}")
        steps = (*plan.undone, *plan.queued)
        if steps:
            rows = [
                (number, step.tool, short(step.args, 60), step.compensate, step.id[:14])
                for number, step in enumerate(steps, 1)
            ]
            emit_table(("#", "undoes", "arguments", "with", "call"), rows)
        else:
            say("Nothing is left to undo." if self._call is None else "There is nothing to undo.")
        for step in plan.unresolved:
            why = "happened, and its body still runs" if step.state == "done" else "nobody knows whether it happened"
            emit_block(f"waits: {visible(step.tool)} {short(step.args)} ({step.state}): {why}", "bold red")
        for step in plan.kept:
            emit_block(f"stays: {visible(step.tool)} {short(step.args)}, because a pivot after it is done", "yellow")
        for step in plan.not_compensable:
            emit_block(f"stays: {visible(step.tool)} {short(step.args)}, which declares no compensation", "yellow")
        for step in plan.undeclared:
            emit_block(
                f"stays: {visible(step.tool)} {short(step.args)}, of which no policy says that it is a write", "dim"
            )

    def question(self, plan: Undone) -> str:
        """What is asked of who has seen the plan."""
        steps = (*plan.undone, *plan.queued)
        what = f"{len(steps)} call{'s' if len(steps) > 1 else ''} of run {visible(self._run.id)}"
        queued = "" if not plan.queued else f" ({len(plan.queued)} of them when a process has the tools)"
        return f"Undo {what}{queued}: {_names(steps)}?"

    # -- after -------------------------------------------------------------------------------------------------

    def answer(self, report: Undone, *, dry_run: bool) -> int:
        """Say what came of it; the exit code."""
        left = not report.complete
        if self._settings.as_json:
            emit_json(self._as_json(report, dry_run=dry_run))
            return NEEDS_PERSON if left else DONE
        if not dry_run:
            self._say_report(report)
        elif report.unresolved:
            say("Nothing would be undone before that is decided.", "magenta")
        elif report.queued:
            say(f"{self._lacking(report)} would wait for a process that has it.", "magenta")
        for line in self._next(report, dry_run=dry_run):
            say(f"next: {line}", "bold")
        return NEEDS_PERSON if left else DONE

    def _as_json(self, report: Undone, *, dry_run: bool) -> dict[str, Any]:
        now = self._engine.store.get_run(self._run.namespace, self._run.id) or self._run
        return {
            "run": now.id, "namespace": now.namespace, "status": now.state, "dry_run": dry_run,
            "undone": report.undone, "failed": report.failed, "unfinished": report.unfinished, "queued": report.queued,
            "kept": report.kept,
            "not_compensable": report.not_compensable, "undeclared": report.undeclared,
            "unresolved": report.unresolved,
            "next": self._next(report, dry_run=dry_run),
        }  # fmt: skip

    def _say_report(self, report: Undone) -> None:
        if report.undone:
            say(f"Undone: {_names(report.undone)}.", "green")
        running = {step.id for step in report.unfinished}
        for step in report.failed:
            how = "still runs, and how it ends is recorded" if step.id in running else "failed"
            emit_block(f"NOT undone: {visible(step.tool)} {short(step.args)}: its compensation {how}", "bold red")
        if report.queued:
            say(f"Queued: {_names(report.queued)}. {self._lacking(report)} waits for a process that has it.", "magenta")
        now = self._engine.store.get_run(self._run.namespace, self._run.id) or self._run
        say(f"run {visible(now.id)} is {now.state}")

    def _lacking(self, report: Undone) -> str:
        from sagaspan._undone import lacking

        step, app = report.queued[0], self._settings.app_named
        where = "here" if app is None else f"where {app} is imported"
        return f"{lacking(step, where)}, so this"

    def _next(self, report: Undone, *, dry_run: bool) -> list[CommandLine]:
        lines = [self._settings.command("show", step.id) for step in report.failed]
        ours = [line for step in report.unresolved if step.state != "done" for line in next_commands(step)]
        if not dry_run:
            ours += [undone_command(step) for step in report.not_compensable]
        lines += map(self._settings.located, ours)
        if report.queued:
            again = command("compensate", self._run.id, call=self._call and self._call.id)
            line = self._settings.located(again if dry_run else command("recover"))
            app = self._settings.app or (None if self._settings.app_named else "MODULE:GUARD")
            lines.append(line.adding(app=app))
        return lines


def _names(steps: Sequence[CallInfo]) -> str:
    return ", ".join(visible(step.tool) for step in steps)
