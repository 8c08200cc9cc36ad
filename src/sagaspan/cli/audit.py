"""``sagaspan audit``: whether the audit trail is as it was written, and a copy of it for others."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from sagaspan.cli._options import (
    NEEDS_PERSON,
    Group,
    NotFound,
    Settings,
    common_options,
    namespace_option,
    pass_settings,
)
from sagaspan.cli._output import writing
from sagaspan.cli._render import emit_json, emit_table, say

if TYPE_CHECKING:
    from sagaspan import AuditReport
    from sagaspan._audit import Audit

_PROGRESS_SECONDS: Final = 2.0
_FILE: Final = click.Path(path_type=Path, dir_okay=False)


@click.group(cls=Group)
@common_options
def audit() -> None:
    """Whether the audit trail is as it was written, and a copy of it for others.

    Every transition is a row in the hash chain of its run. Without an anchor kept elsewhere, who can write to the
    ledger can also write all of it anew: see docs/audit.md.
    """


@audit.command()
@click.option("--run", metavar="ID", help="Only this run.")
@click.option("--anchor", type=_FILE, help="Also compare with what was written to this file before.")
@click.option("--write-anchor", type=_FILE, help="Write where all chains are now to this file, if all is well.")
@namespace_option
@common_options
@pass_settings
@click.pass_context
def verify(
    context: click.Context,
    settings: Settings,
    run: str | None,
    anchor: Path | None,
    write_anchor: Path | None,
    namespace: str | None,
) -> None:
    """Verify every chain, and that runs, calls and requests are what their history says; exit 4 if any is not.

    Each row that was altered, taken out, put in or moved is named by its run and its number there. Agents go on
    meanwhile.
    """
    if run is not None and write_anchor is not None:
        raise click.UsageError("an anchor is of all chains; leave --run out")
    report = _audit(settings, namespace).verify(
        _whole_id(settings, run, namespace), anchor=anchor, write_anchor=write_anchor, progress=_Progress("verified"),
    )  # fmt: skip
    if settings.as_json:
        emit_json({"ok": report.ok, **_as_data(report)})
    else:
        _say(report, write_anchor)
    context.exit(0 if report.ok else NEEDS_PERSON)


@audit.command()
@click.option("--run", metavar="ID", help="Only this run.")
@click.option("--format", "form", type=click.Choice(["jsonl", "json"]), default="jsonl", show_default=True)
@click.option("--output", "-o", type=_FILE, help="Write to this file; default: standard output.")
@namespace_option
@common_options
@pass_settings
def export(settings: Settings, run: str | None, form: str, output: Path | None, namespace: str | None) -> None:
    """Every row of the audit trail as JSON: who did what, when, by which channel, for which digest, and its hash."""
    from sagaspan._audit import lines_of

    form = "json" if settings.as_json else form
    rows = _audit(settings, namespace).rows(_whole_id(settings, run, namespace))
    progress, count = _Progress("exported"), 0
    with writing(output) as file:
        for count, text in enumerate(lines_of(rows, form)):
            file.write(text)
            progress(count)
    if output is not None:
        click.echo(f"{count:,} rows in {output}", err=True)


class _Progress:
    """Shows one line every two seconds on standard error, if that is a terminal."""

    def __init__(self, done: str) -> None:
        self._done = done
        self._due = time.monotonic() + _PROGRESS_SECONDS
        self._is_shown = sys.stderr.isatty()

    def __call__(self, rows: int) -> None:
        if self._is_shown and time.monotonic() >= self._due:
            self._due = time.monotonic() + _PROGRESS_SECONDS
            click.echo(f"{rows:,} rows {self._done} so far", err=True)


def _audit(settings: Settings, namespace: str | None) -> Audit:
    from sagaspan._audit import Audit
    from sagaspan.stores import connect

    url = settings.open_store().url
    return Audit(lambda: connect(url, create=False, migrate="check"), namespace)


def _whole_id(settings: Settings, run: str | None, namespace: str | None) -> str | None:
    """The id of a run by unique prefix; of one that is gone, and only its rows are there, all of it."""
    from sagaspan.cli._found import the_run

    if run is None:
        return None
    try:
        return the_run(settings.open_store(), run, namespace).id
    except NotFound as error:
        if error.matches or not any(True for _ in _audit(settings, namespace).rows(run)):
            raise
        return run


def _as_data(report: AuditReport) -> dict[str, object]:
    from dataclasses import asdict

    return asdict(report)


def _say(report: AuditReport, written: Path | None) -> None:
    if report.findings:
        rows = [
            (found.problem, found.run or "(none)", _numbers(found.number, found.until), found.what)
            for found in report.findings
        ]
        emit_table(("problem", "run", "#", "what"), rows)
    say(f"{report.rows:,} rows in {report.chains:,} chains verified.")
    if report.anchored:
        say(f"{report.anchored:,} of them were compared with the anchor.")
    if report.forgotten:
        say(f"{report.forgotten:,} rows were pruned, and rows say so.")
    if report.outside:
        say(f"{report.outside:,} rows are from before there were chains, and nobody can verify them.", "yellow")
    if report.findings:
        say(f"{len(report.findings):,} things are not as they were written.", "bold red")
    elif written is not None:
        say(f"The anchor is in {written}; keep it where nobody who can write to the ledger can.")


def _numbers(first: int | None, last: int | None) -> str | None:
    return None if first is None else str(first) if last in (None, first) else f"{first}-{last}"
