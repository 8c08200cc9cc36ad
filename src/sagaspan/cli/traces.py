"""``sagaspan traces``: the spans of what agents did."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from sagaspan.cli._index import sampled, sync_ledger, synced_index
from sagaspan.cli._options import Duration, Group, NotFound, Settings, common_options, confirm, pass_settings
from sagaspan.cli._output import copy_to_file, form_of, writing
from sagaspan.cli._render import emit_json, emit_table, lately, plain_error, say
from sagaspan.cli._which import shown_of, there_are_more, which_options, with_whole_run

if TYPE_CHECKING:
    from sagaspan.index import Where

_FORMATS: Final = ("json", "csv", "md", "parquet")
_EXPORTED: Final = 1000


@click.group(cls=Group)
@common_options
def traces() -> None:
    """The spans of what agents did."""


@traces.command("list")
@click.option("--errors", is_flag=True, help="As --status error.")
@which_options(limit=20)
@common_options
@pass_settings
def list_traces(settings: Settings, where: Where, errors: bool) -> None:
    """Traces, newest first; those that have some span that fits."""
    from dataclasses import replace

    if errors:
        where = replace(where, status=(*where.status, "error"))
    index = synced_index(settings)
    found = shown_of("traces", index.traces, with_whole_run(index, where))
    if settings.as_json:
        emit_json(found)
    elif not found:
        say(f"No traces in {settings.traces}." if _is_all(where) else "No traces that fit.")
    else:
        from sagaspan.cli._trace_tree import cost, milliseconds

        rows = [
            (
                row.trace_id[:16], row.name, row.status, lately(row.start), milliseconds(row.duration_ms),
                row.spans, row.errors or "", "" if row.cost_usd is None else cost(row.cost_usd), row.run_id,
            )
            for row in found
        ]  # fmt: skip
        columns = ("trace", "name", "status", "started", "took", "spans", "errors", "cost", "run")
        emit_table(columns, rows, spare=("spans", "cost", "took", "errors"))
        if share := sampled(index, settings):
            click.echo(share, err=True)


@traces.command("show")
@click.argument("trace_id")
@common_options
@pass_settings
def show_trace(settings: Settings, trace_id: str) -> None:
    """One trace as a tree, by id or unique prefix.

    With what models thought, what went in and out, and where errors were raised, as far as content is captured.
    """
    with _not_found():
        print_trace(settings, trace_id)


@traces.command("filter")
@which_options(limit=50)
@common_options
@pass_settings
def filter_spans(settings: Settings, where: Where) -> None:
    """Single spans of all traces, newest first; those that fit."""
    index = synced_index(settings)
    found = shown_of("spans", index.spans, with_whole_run(index, where))
    if settings.as_json:
        emit_json(found)
    elif not found:
        say("No spans that fit.")
    else:
        from sagaspan.cli._trace_tree import cost, milliseconds

        rows = [
            (
                span.trace_id[:16], span.name, span.state or span.status.lower(), lately(span.start),
                milliseconds(span.duration_ms), "" if span.cost_usd is None else cost(span.cost_usd),
                plain_error(span.error_type), span.run_id,
            )
            for span in found
        ]  # fmt: skip
        columns = ("trace", "span", "state", "started", "took", "cost", "error", "run")
        emit_table(columns, rows, spare=("cost", "took", "run"))


@traces.command("export")
@click.argument("trace_id", required=False)
@click.option("--format", "-f", "form", type=click.Choice(_FORMATS), help="Default: as FILE is named, else json.")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A file, which is written anew; default: standard output.",
)
@which_options(limit=_EXPORTED)
@common_options
@pass_settings
def export_traces(
    settings: Settings, where: Where, trace_id: str | None, form: str | None, output: Path | None
) -> None:
    """Whole traces, newest first: the one of TRACE_ID (a unique prefix is enough), or all that fit.

    With inputs and outputs, as far as content is captured.
    """
    from dataclasses import replace

    form = form_of(form, output, _FORMATS, as_json=settings.as_json, default="json")
    index = synced_index(settings)
    if trace_id is not None:
        with _not_found():
            where = replace(where, trace_id=index.trace(trace_id)[0].trace_id, limit=1)
    where = with_whole_run(index, where)
    if form == "parquet":
        _export_parquet(index, where, output)
    else:
        _export_text(index, where, form, output)
    if index.traces(replace(where, limit=1, offset=where.offset + where.limit)):
        there_are_more("traces", where)


@traces.command("prune")
@click.option("--older-than", type=Duration("s", "d"), required=True, help="Ended for so long, e.g. 90d.")
@click.option("--dry-run", is_flag=True, help="Only count.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask; needed where nobody can be asked, in cron, say.")
@common_options
@pass_settings
def prune_traces(settings: Settings, older_than: float, dry_run: bool, yes: bool) -> None:
    """Forget traces that ended long ago, in the index, and files of agents that were left as long ago.

    Files that were left since are compressed, once they are in the index. A trace stays as long as its run goes on, as
    the ledger says: also one that is held or paused. Files of a Collector are kept as its own configuration says. The
    ledger is not touched: that is `sagaspan prune`.
    """
    from datetime import UTC, datetime, timedelta

    from sagaspan.index.lock import PATIENCE
    from sagaspan.telemetry.retention import Retention, forget_old, left_files

    if not (yes or dry_run or sys.stdin.isatty()):
        raise click.UsageError("nobody can be asked here: add --yes, or --dry-run to only count")
    if not (yes or dry_run):
        confirm(f"Forget traces that ended {older_than:g} s ago in {settings.traces}?")
    index = synced_index(settings)
    sync_ledger(index, settings, PATIENCE)  # which runs are open only the ledger knows
    # What is not in the index yet is in its file alone.
    is_whole = not index.sync().is_incomplete
    done = index.prune(datetime.now(UTC) - timedelta(seconds=older_than), dry_run=dry_run)
    kept = Retention(max_bytes=None, max_seconds=older_than)
    if not is_whole:
        click.echo("Warning: no file is deleted, for one cannot be read and may not be in the index", err=True)
    files = forget_old(settings.traces, kept, dry_run=dry_run) if is_whole else []
    # One at a time: whoever wants to ask the index meanwhile waits for no more than that.
    left = [] if dry_run else [path for path in left_files(settings.traces) if path.suffix == ".jsonl"]
    packed = [done for path in left for done in index.pack([path])]
    if settings.as_json:
        emit_json({
            "traces": done.traces, "spans": done.spans, "files": [path.name for path in files],
            "compressed": [path.name for path in packed],
        })  # fmt: skip
        return
    what = f"{done.traces:,} traces with {done.spans:,} spans, {len(files):,} files"
    say(f"{'Would forget' if dry_run else 'Forgot'} {what}.")
    if packed:
        say(f"Compressed {len(packed):,} files that agents left.")


def _export_text(index: Any, where: Where, form: str, output: Path | None) -> None:
    from sagaspan.cli import _trace_export as export

    found = index.whole_traces(where)
    writers = {"json": export.write_json, "csv": export.write_csv, "md": export.write_markdown}
    with writing(output) as out:
        writers[form](found, out)


def _export_parquet(index: Any, where: Where, output: Path | None) -> None:
    from sagaspan.cli._trace_export import PARQUET
    from sagaspan.index.sql import captured

    if output is None:
        raise click.UsageError("Parquet is written to a file; add --output FILE.parquet")
    statement = PARQUET.format(input=captured("input"), output=captured("output"))
    copy_to_file(output, lambda part: index.copy(statement, part, where=where))


def matching_traces(settings: Settings, prefix: str) -> list[tuple[str, str]]:
    """(id, name) of the traces whose id starts with ``prefix``; no more than can be listed, and one."""
    from sagaspan.cli._found import SHOWN

    table = synced_index(settings).query(
        "select trace_id, name from traces where starts_with(trace_id, ?) limit ?", (prefix.lower(), SHOWN + 1)
    )
    return [(str(trace_id), str(name)) for trace_id, name in table.rows]


def print_trace(settings: Settings, trace_id: str) -> None:
    """A trace as a tree with timings, states and errors."""
    spans = synced_index(settings).trace(trace_id)
    if settings.as_json:
        emit_json(spans)
        return
    from sagaspan.cli._trace_tree import emit_tree

    emit_tree(spans)


@contextlib.contextmanager
def _not_found() -> Iterator[None]:
    from sagaspan.index import TraceNotFound

    try:
        yield
    except TraceNotFound as error:
        raise NotFound(str(error), [("trace", match, "") for match in error.matches]) from error


def _is_all(where: Where) -> bool:
    from dataclasses import replace

    from sagaspan.index import Where

    return replace(where, limit=20) == Where()
