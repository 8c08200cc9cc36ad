"""``sagaspan sql``: SQL over the exported traces, read-only and locked down."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final

import click

from sagaspan.cli._index import sampled, sync_index
from sagaspan.cli._options import Duration, NotFound, Settings, common_options, pass_settings
from sagaspan.cli._output import copy_to_file, form_of, writing
from sagaspan.cli._render import emit_csv, emit_json, emit_table, say

_FORMATS: Final = ("table", "json", "csv", "parquet")
_LIST: Final = ""


@click.command()
@click.argument("query", required=False)
@click.option(
    "--named",
    is_flag=False,
    flag_value=_LIST,
    metavar="[NAME]",
    help="A query of the library; alone, the list of them.",
)
@click.option(
    "--file", type=click.File(encoding="utf-8"), metavar="FILE", help="A file with the query; - is the standard input."
)
@click.option("--format", "-f", "form", type=click.Choice(_FORMATS), help="Default: as FILE is named, else table.")
@click.option("--output", "-o", type=click.Path(path_type=Path, dir_okay=False), help="A file; needed for Parquet.")
@click.option(
    "--timeout",
    default="30s",
    show_default=True,
    type=Duration("s", "m", least="1ms"),
    help="The most it may take, waiting for others who hold the index included.",
)
@click.option("--max-rows", type=click.IntRange(1), help="Stop after so many rows; the default is all of them.")
@common_options
@pass_settings
def sql(
    settings: Settings,
    query: str | None,
    named: str | None,
    file: IO[str] | None,
    form: str | None,
    output: Path | None,
    timeout: float,
    max_rows: int | None,
) -> None:
    """One SQL statement over the exported traces and the ledger.

    Views: traces, runs, tool_calls, llm_calls, saga_steps, approvals, budgets, refusals, errors, events; below them
    spans. The ledger: ledger.runs, .calls, .approvals, .audit, .budgets. Their columns: --named columns.

    \b
    sagaspan sql "select tool, state, count(*) from tool_calls group by all"
    sagaspan sql --named failures-by-tool
    sagaspan sql --file report.sql --output report.csv
    """
    form = form_of(form, output, _FORMATS, as_json=settings.as_json, default="table")
    if named == _LIST and query is None:
        _list_named(form)
        return
    statement = _statement(query, named, file)
    if form == "parquet" and output is None:
        raise click.UsageError("Parquet is written to a file; add --output FILE.parquet")
    from sagaspan.cli._child import child_for
    from sagaspan.index import TraceIndex

    def answer(seconds: float, part: Path | None, answered: Callable[[], None]) -> int | None:
        index = TraceIndex(settings.traces)
        if part is not None:
            return index.copy(statement, part, timeout=seconds, max_rows=max_rows)
        table = index.query(statement, timeout=seconds, max_rows=max_rows)
        answered()
        with contextlib.nullcontext() if output is None else _to_file(output):
            _emit(table, form)
        return None

    with child_for(answer) as ask:
        reads_ledger = _reads_ledger(statement, settings)
        index, waited = sync_index(settings, patience=timeout, ledger=reads_ledger)
        left = max(timeout - waited, 0.001)
        if form == "parquet" and output is not None:
            copy_to_file(output, lambda part: ask(left, part) or 0)
        else:
            ask(left, None)
            if reads_ledger and form == "table" and (share := sampled(index, settings)):
                click.echo(share, err=True)


def _statement(query: str | None, named: str | None, file: IO[str] | None) -> str:
    """Return what is asked; a word behind ``--named`` that a shell or a person took for the query is the name."""
    from sagaspan.index import named_queries

    if file is not None:
        if query is not None or named is not None:
            raise click.UsageError("--file and another query are two questions; leave one out")
        if not (text := file.read()).strip():
            raise click.UsageError(f"{file.name} holds no query")
        return text
    if named is None:
        if query is None:
            raise click.UsageError(
                'write a query, as in sagaspan sql "select * from traces limit 10", or --named NAME, or --file FILE'
            )
        return query
    if query is not None:
        raise click.UsageError("a query and --named are two questions; leave one out")
    known = named_queries()
    if named not in known:
        raise NotFound(f"there is no query {named!r}; see: sagaspan sql --named")
    return known[named][1]


def _reads_ledger(statement: str, settings: Settings) -> bool:
    """Return whether the statement may read tables of the ledger; the view ``runs`` does where there is one."""
    named = {word.lower() for word in re.findall(r"\w+", statement)}
    return "ledger" in named or ("runs" in named and settings.has_ledger)


def _list_named(form: str) -> None:
    from sagaspan.index import named_queries

    if form == "json":
        emit_json([{"name": name, "what": what, "sql": text} for name, (what, text) in named_queries().items()])
    else:
        emit_table(("query", "answers"), [(name, what) for name, (what, _) in named_queries().items()])


@contextlib.contextmanager
def _to_file(output: Path) -> Iterator[None]:
    with writing(output) as file, contextlib.redirect_stdout(file):
        yield


def _emit(table: Any, form: str) -> None:
    if form == "json":
        names = _distinct(table.columns)
        emit_json([dict(zip(names, row, strict=True)) for row in table.rows])
    elif form == "csv":
        emit_csv([table.columns, *table.rows], sys.stdout)
    else:
        emit_table(table.columns, table.rows)
        count = len(table.rows)
        say(f"({count} row{'' if count == 1 else 's'}{', cut by --max-rows' if table.truncated else ''})", "dim")


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
