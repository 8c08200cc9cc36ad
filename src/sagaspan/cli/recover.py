"""``sagaspan recover``: go on after processes that died."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from sagaspan._commands import command
from sagaspan.cli._options import DONE, NEEDS_PERSON, Duration, Settings, common_options, pass_settings
from sagaspan.cli._render import emit_block, emit_json, emit_line, say, visible
from sagaspan.ledger import watching
from sagaspan.ledger.records import CallState
from sagaspan.status.commands import RECOVER, needed_by
from sagaspan.status.gauges import count_open_ledgers

if TYPE_CHECKING:
    from sagaspan import CallInfo, Guard, Recovery, RunInfo
    from sagaspan._engine import Engine

_WORDS: Final = {
    "completed": ("completed: what it had left to undo or to send is done", "green"),
    "compensated": ("undone", "yellow"),
    "held": ("held: enter it again with the same id to go on", "magenta"),
    "needs_human": ("needs a person", "bold red"),
    "queued": ("waits for a process that has the tools to undo it", "magenta"),
    "waiting": ("could not be undone; is tried again later", "magenta"),
}
_COUNTED: Final = {"alone": "calls by themselves"}


@click.command()
@click.option("--watch", is_flag=True, help="Go on until SIGINT or SIGTERM.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option(
    "--older-than", type=Duration("s", "m"), help="Only what gave no sign of life for so long, e.g. 90s, 10m, 2h."
)
@click.option("--limit", type=click.IntRange(1), help="At most so many runs (with --watch: a round).")
@click.option(
    "--interval",
    default="10s",
    show_default=True,
    type=Duration("s", "m", least="100ms", most="1h"),
    help="Of --watch: the time between two rounds.",
)
@common_options
@pass_settings
@click.pass_context
def recover(
    context: click.Context,
    settings: Settings,
    watch: bool,
    dry_run: bool,
    older_than: float | None,
    limit: int | None,
    interval: float,
) -> None:
    """Go on after processes that died: hold or undo their runs, finish their rollbacks.

    Undoing runs your tools, so name your guard with --app; without it such work is only listed. Exit code 4 if
    something needs a person.
    """
    work = _Work(settings, older_than=older_than, limit=limit, dry_run=dry_run)
    context.exit(work.watch(interval) if watch else work.once())


class _Work:
    """One call of the program: its guards, and what it has said."""

    def __init__(self, settings: Settings, **options: Any) -> None:
        self._settings = settings
        self._options = options
        self._app: Guard | None = settings.load_guard()
        settings.send_telemetry()
        self._said: set[tuple[str, str]] = set()
        self._stopping = threading.Event()

    def once(self) -> int:
        """One round with its report; the exit code."""
        report = self._round(watch=True)
        if self._settings.as_json:
            emit_json(report)
        elif not report:
            say("Nothing to recover.", "green")
        else:
            self._summary(report)
        failed = any(call.state == "compensation_failed" for call in report.alone)
        return NEEDS_PERSON if report.needs_human or (failed and not self._options["dry_run"]) else DONE

    def watch(self, interval: float) -> int:
        """Round after round until a signal; a run in hand is finished first."""
        if not self._settings.as_json:
            say(f"Watching: every {interval:g} s, until Ctrl+C or SIGTERM. What is found is said here.", "dim")
        before = {name: signal.signal(name, self._stop) for name in (signal.SIGINT, signal.SIGTERM)}
        counted = self._settings.open_store()  # for the gauge of what needs a person; those of a round are closed
        watching.count_with(count_open_ledgers)
        watching.watch(counted)
        try:
            while not self._stopping.is_set():
                report = self._round(watch=False)
                if self._settings.as_json and report:
                    emit_line(report)
                self._stopping.wait(interval)
        finally:
            for name, handler in before.items():
                signal.signal(name, handler)
            watching.unwatch(counted)
            counted.close()
            if self._app is not None:
                self._app.close()
        return DONE

    def _stop(self, *_: object) -> None:
        self._stopping.set()

    def _round(self, *, watch: bool) -> Recovery:
        from sagaspan._backends import SYNC, run_sync
        from sagaspan._recovery import Recoverer, merged

        reports = []
        for guard, close in self._guards():
            engine = guard._engine  # noqa: SLF001 - the same house
            recoverer = Recoverer(engine, SYNC, progress=self._progress, stop=self._stopping.is_set)
            try:
                _tell(engine)  # so that hooks know where to begin, if they are new
                reports.append(run_sync(recoverer(**self._options, watch=watch)))
                _tell(engine)
            finally:
                close()
        return merged(reports)

    def _guards(self) -> Iterator[tuple[Guard, Callable[[], None]]]:
        """The user's guard, or one without tools for each namespace there is something in."""
        if self._app is not None:
            yield self._app, lambda: None
            return
        from sagaspan import Guard
        from sagaspan.ledger.records import RunState

        store = self._settings.open_store()
        found = {run.namespace for run in (*store.unfinished_runs(), *store.list_runs(states=[RunState.HELD]))}
        open_calls = (CallState.RUNNING, CallState.COMPENSATING, CallState.COMPENSATION_FAILED)
        found |= {call.namespace for state in open_calls for call in store.calls_in(state)}
        store.close()
        for namespace in sorted(found):
            guard = Guard(store.url, namespace=namespace, migrate="check")
            yield guard, guard.close

    def _progress(self, found: RunInfo | CallInfo, outcome: str) -> None:
        if self._settings.as_json or (found.id, outcome) in self._said:
            return
        if outcome in ("queued", "waiting"):
            self._said.add((found.id, outcome))
        words, style = _WORDS[outcome]
        if outcome == "queued" and getattr(found, "completing", False):
            words = "waits for a process that has the tools to finish it"
        would = "would be " if self._options["dry_run"] else ""
        kind, name = ("call", found.tool) if hasattr(found, "tool") else ("run", found.name)
        say(f"{kind} {visible(found.id)} ({visible(name)}): {would}{words}", style)

    def _summary(self, report: Recovery) -> None:
        for call in report.in_doubt:
            is_ = "would be" if self._options["dry_run"] else "is"
            say(f"call {call.id} ({visible(call.tool)}): its process is gone; it {is_} {call.state}")
        if (report.queued or report.alone) and self._app is None:
            names = {name for run in report.queued for name in needed_by(run)}
            names |= {call.compensate for call in report.alone if call.compensate}
            waits = f"what waits for {visible(', '.join(sorted(names)))}" if names else "it"
            say(f"To go on with {waits}: {RECOVER}")
        if self._app is not None:
            for run in report.queued:
                self._explain(run, self._app)
        if report.needs_human:
            say("What needs you, and how to go on: sagaspan status")
        if report.held:
            say("Held runs go on when they are entered again with the same id: sagaspan runs list --status held")
        counts = {_COUNTED.get(name, name): len(found) for name, found in asdict(report).items() if found}
        would = "would be: " if self._options["dry_run"] else ""
        say(would + ", ".join(f"{name} {count}" for name, count in counts.items()))

    def _explain(self, info: RunInfo, app: Guard) -> None:
        """What a run waits for that the user's own guard has not: it was renamed, or the row says what never was."""
        from sagaspan._recovery import lacking

        engine = app._engine  # noqa: SLF001 - the same house
        run = engine.store.get_run(info.namespace, info.id)
        if run is not None and (names := lacking(engine, run)):
            where = self._settings.app_named or ""
            emit_block(
                f"run {visible(run.id)} waits for {visible(', '.join(names))}, which {visible(where)} has not. If "
                f"nobody has it any more, undo it by hand, and say so of each call: {command('show', run.id)}",
                "magenta",
            )


def _tell(engine: Engine) -> None:
    """Send the notifications that are due."""
    if engine.notifier is not None:
        engine.notifier.round()
