"""``sagaspan sql``: SQL over the exported traces, read-only and locked down."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import click

from sagaspan.cli._options import Settings, common_options, pass_settings
from sagaspan.cli._render import emit_json, emit_table, say


@click.command()
@click.argument("query")
@click.option("--format", "-f", "form", type=click.Choice(["table", "json", "csv"]), help="Default: table.")
@click.option(
    "--timeout",
    default=30.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="Seconds, also for waiting until others let go of the index.",
)
@click.option("--max-rows", type=click.IntRange(1), help="Stop after so many rows; the default is all of them.")
@common_options
@pass_settings
def sql(settings: Settings, query: str, form: str | None, timeout: float, max_rows: int | None) -> None:
    """One SQL statement over the exported traces: spans, traces, runs, tool_calls, llm_calls, saga_steps, errors.

    \b
    sagaspan sql "select tool, state, count(*) from tool_calls group by all"
    """
    from sagaspan.cli.traces import sync_index

    if settings.as_json and form not in (None, "json"):
        raise click.UsageError(f"--json and --format {form} ask for two answers; leave one out")
    index, waited = sync_index(settings, patience=timeout)
    table = index.query(query, timeout=max(timeout - waited, 0.001), max_rows=max_rows)
    form = form or ("json" if settings.as_json else "table")
    if form == "json":
        names = _distinct(table.columns)
        emit_json([dict(zip(names, row, strict=True)) for row in table.rows])
    elif form == "csv":
        click.echo(_csv(table.columns, table.rows), nl=False)
    else:
        emit_table(table.columns, table.rows)
        say(f"({len(table.rows)} rows{', cut by --max-rows' if table.truncated else ''})", "dim")


def _distinct(columns: Sequence[str]) -> list[str]:
    """Columns of one name numbered from the second on (``id``, ``id_2``): an object keeps one value a name."""
    names: list[str] = []
    for column in columns:
        name, number = column, 1
        while name in names or (number > 1 and name in columns):
            number += 1
            name = f"{column}_{number}"
        names.append(name)
    return names


def _csv(columns: tuple[str, ...], rows: list[tuple[object, ...]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()
