"""The index of the traces, brought up to date: every command that asks it begins here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import click

from sagaspan.cli._options import Settings
from sagaspan.cli._render import visible

_SAMPLED: Final = """
select count(*), count(*) filter (where run_id in (select run_id from runs))
  from ledger.runs where ended is not null and name <> 'session'
"""
_SHOWN_FROM: Final = 16 * 1024 * 1024
"""Bytes to take in, from which on somebody would wonder."""


def synced_index(settings: Settings) -> Any:
    """The index of the trace files, brought up to date; damaged lines are named on standard error."""
    return sync_index(settings)[0]


def sync_index(settings: Settings, *, patience: float | None = None, ledger: bool = False) -> tuple[Any, float]:
    """As ``synced_index``, with the seconds that others held the index, which may be ``patience`` at most.

    ``ledger``: bring its tables up to date too.
    """
    from sagaspan.index import TraceIndex
    from sagaspan.index.lock import PATIENCE

    patience = PATIENCE if patience is None else patience
    if not settings.traces.is_dir() and not (ledger and settings.has_ledger):
        from sagaspan.exceptions import StoreUnavailable

        raise StoreUnavailable(
            f"there are no traces at {settings.traces}; call sagaspan.configure_tracing() in your program, "
            "or name the folder with --home or SAGASPAN_TRACE_DIR"
        )
    index = TraceIndex(settings.traces)
    with _progress() as progress:
        report = index.sync(progress, patience=patience)
    for line in report.damaged:
        click.echo(f"Warning: a trace line was left out: {visible(line)}", err=True)
    waited = report.waited
    if ledger:
        waited += sync_ledger(index, settings, patience)
    return index, waited


def sync_ledger(index: Any, settings: Settings, patience: float) -> float:
    """Bring the tables ``ledger.*`` up to date, if there is a ledger; returns how long others held the index."""
    from sagaspan._mirror import LedgerMirror

    if not settings.has_ledger and not settings.app:
        click.echo("Warning: there is no ledger here; the tables ledger.* are as they were", err=True)
        return 0.0
    waited: float = index.sync_ledger(LedgerMirror(settings.open_store()), patience=patience)
    return waited


def sampled(index: Any, settings: Settings) -> str | None:
    """Return how many of the runs that ended have spans; None if all have, or no ledger can be read."""
    from sagaspan.exceptions import SagaspanError
    from sagaspan.index.lock import PATIENCE

    if not settings.has_ledger:
        return None
    try:
        sync_ledger(index, settings, PATIENCE)
    except SagaspanError:  # traces are read without a ledger, too
        return None
    ((runs, seen),) = index.query(_SAMPLED).rows
    return None if seen >= runs else f"sampled: {100 * seen // runs} % of runs have spans; all are in the ledger"


@contextmanager
def _progress() -> Iterator[Any]:
    """What a sync tells how far it is: a bar on standard error, where somebody looks at it, and if it takes a while."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("reading traces"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    # Started only for what takes a while: all others leave the terminal alone.
    with ExitStack() as started:
        bar: Progress | None = None

        def report(done: int, total: int) -> None:
            nonlocal bar
            if bar is None and total >= _SHOWN_FROM and done < total:
                bar = started.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
                bar.add_task("", total=total)
            if bar is not None:
                bar.update(bar.task_ids[0], completed=done, total=total)

        yield report
