"""``sagaspan traces``: the spans of what agents did."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar, cast

import click

from sagaspan.cli._found import SHOWN
from sagaspan.cli._index import sync_index as sync_index
from sagaspan.cli._index import synced_index as synced_index
from sagaspan.cli._options import Milliseconds, Moment, NotFound, Settings, common_options, pass_settings
from sagaspan.cli._render import emit_json, emit_table, lately, plain_error, say
from sagaspan.ledger.records import ApprovalState, CallState, RunState

if TYPE_CHECKING:
    from sagaspan.index import Where

F = TypeVar("F", bound=Callable[..., Any])

_STATES: Final = tuple(dict.fromkeys(("ok", "error", *RunState, *CallState, *ApprovalState)))
_FORMATS: Final = ("json", "csv", "md", "parquet")
_EXPORTED: Final = 1000


def which_options(*, limit: int) -> Callable[[F], F]:
    """Add the options that say which traces or spans are meant; the command gets them as ``where``."""
    options = (
        click.option(
            "--status", "-s", multiple=True, metavar="STATE",
            help="ok, error, or a state of runs, calls and requests; may be repeated.",
        ),
        click.option("--tool", metavar="NAME", help="Calls of this tool, or of a glob of them."),
        click.option("--run", "run_id", metavar="ID", help="Of this run."),
        click.option("--agent", metavar="NAME", help="Of this agent, or a glob."),
        click.option("--model", metavar="NAME", help="Calls of this model, or a glob."),
        click.option("--min-duration", "min_ms", type=Milliseconds(), help="That took so long at least, e.g. 250ms."),
        click.option("--max-duration", "max_ms", type=Milliseconds(), help="That took so long at most."),
        click.option("--since", type=Moment(), help="Started since then, e.g. 2h or 2026-11-21."),
        click.option("--until", type=Moment(), help="Started before then."),
        click.option("--limit", "-n", default=limit, show_default=True, type=click.IntRange(1)),
        click.option("--offset", default=0, show_default=True, type=click.IntRange(0)),
    )  # fmt: skip

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def with_where(*args: Any, **kwargs: Any) -> Any:
            from sagaspan.index import Where

            names = (
                "status",
                "tool",
                "run_id",
                "agent",
                "model",
                "min_ms",
                "max_ms",
                "since",
                "until",
                "limit",
                "offset",
            )
            given = {name: kwargs.pop(name) for name in names}
            for status in given["status"]:
                if status not in _STATES:
                    raise click.UsageError(f"--status {status}: there is no such state; one of {', '.join(_STATES)}")
            return function(*args, where=Where(**given), **kwargs)

        return cast(F, functools.reduce(lambda wrapped, option: option(wrapped), reversed(options), with_where))

    return decorate


@click.group()
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
    found = synced_index(settings).traces(where)
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
    found = synced_index(settings).spans(where)
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
@click.option("--format", "-f", "form", type=click.Choice(_FORMATS), default="json", show_default=True)
@click.option(
    "--output", "-o", type=click.Path(path_type=Path, dir_okay=False), help="A new file; default: standard output."
)
@which_options(limit=_EXPORTED)
@common_options
@pass_settings
def export_traces(settings: Settings, where: Where, trace_id: str | None, form: str, output: Path | None) -> None:
    """Whole traces, newest first: the one of TRACE_ID (a unique prefix is enough), or all that fit.

    With inputs and outputs, as far as content is captured.
    """
    from dataclasses import replace

    if settings.as_json and form != "json":
        raise click.UsageError(f"--json and --format {form} ask for two answers; leave one out")
    index = synced_index(settings)
    if trace_id is not None:
        with _not_found():
            where = replace(where, trace_id=index.trace(trace_id)[0].trace_id, limit=1)
    if form == "parquet":
        _export_parquet(index, where, output)
        return
    from sagaspan.cli import _trace_export as export

    found = index.whole_traces(where)
    writers = {"json": export.write_json, "csv": export.write_csv, "md": export.write_markdown}
    with writing(output) as out:
        writers[form](found, out)
    if len(found) == where.limit and trace_id is None:
        click.echo(f"There may be more than {where.limit} traces; see --limit and --offset.", err=True)


def _export_parquet(index: Any, where: Where, output: Path | None) -> None:
    from sagaspan.cli._trace_export import PARQUET
    from sagaspan.index.sql import captured

    if output is None:
        raise click.UsageError("Parquet is written to a file; add --output FILE.parquet")
    statement = PARQUET.format(input=captured("input"), output=captured("output"))
    copy_to_file(index, statement, output, where=where)


def copy_to_file(index: Any, statement: str, output: Path, **more: Any) -> None:
    """Write Parquet beside ``output`` and give it that name when it is whole."""
    part = output.absolute().with_name(f".{output.name}.part")
    try:
        part.unlink(missing_ok=True)
        rows = index.copy(statement, part, **more)
        part.replace(output)
    except OSError as error:
        raise click.ClickException(f"{output} cannot be written ({error.strerror})") from error
    finally:
        part.unlink(missing_ok=True)
    click.echo(f"{rows:,} rows in {output}", err=True)


@contextlib.contextmanager
def writing(output: Path | None) -> Iterator[IO[str]]:
    """The file ``output``, or standard output."""
    if output is None:
        yield sys.stdout
        return
    try:
        with output.open("w", encoding="utf-8", newline="") as file:
            yield file
    except OSError as error:
        raise click.ClickException(f"{output} cannot be written ({error.strerror})") from error


def matching_traces(settings: Settings, prefix: str) -> list[tuple[str, str]]:
    """(id, name) of the traces whose id starts with ``prefix``; no more than can be listed, and one."""
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
