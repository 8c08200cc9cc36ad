"""The generated parts of the docs are what the code says now; ``uv run python -m tests.test_docs`` writes them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import duckdb
import pytest

from sagaspan import semconv
from sagaspan.cli import cli
from sagaspan.index import named_queries
from sagaspan.index.sql import create_scripts
from sagaspan.ledger.approvals import APPROVAL_TABLE
from sagaspan.ledger.transitions import CALL_TABLE, RUN_TABLE

DOCS = Path(__file__).parents[1] / "docs"


def _transitions(table: dict) -> str:
    rows = ["| from | event | to |", "| --- | --- | --- |"]
    rows += [f"| {before or '(none)'} | {event} | {after} |" for (before, event), after in table.items()]
    return "\n".join(rows)


def _names() -> str:
    rows = ["| constant | name |", "| --- | --- |"]
    for name, value in vars(semconv).items():
        if name.isupper() and isinstance(value, str):
            rows.append(f"| `{name}` | `{value}` |")
    return "\n".join(rows)


def _metrics() -> str:
    rows = ["| metric | kind, unit | what it counts | dimensions |", "| --- | --- | --- | --- |"]
    for name, metric in semconv.METRICS.items():
        dimensions = ", ".join(f"`{one}`" for one in metric.dimensions) or "none"
        rows.append(f"| `{name}` | {metric.kind}, {metric.unit.strip('{}')} | {metric.meaning} | {dimensions} |")
    return "\n".join(rows)


def _commands(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[str]:
    settings = command.context_settings | {"max_content_width": 100, "terminal_width": 100}
    context = click.Context(command, info_name=name, parent=parent, **settings)
    yield f"## `{context.command_path}`\n\n```\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for child_name in command.list_commands(context):
            child = command.get_command(context, child_name)
            assert child is not None
            yield from _commands(child, child_name, context)


def _columns() -> str:
    """Every view and table with its columns, as the index itself describes them."""
    with duckdb.connect() as connection:
        for script in create_scripts():
            connection.execute(script)
        relations = connection.execute(
            "select schema_name, view_name, comment from duckdb_views() where not internal "
            "union all select schema_name, table_name, comment from duckdb_tables() where schema_name <> 'totals'"
        ).fetchall()
        named = re.compile(r"^comment on (?:view|table) (\S+)", re.MULTILINE)
        order = [name for script in create_scripts() for name in named.findall(script)]
        parts = []
        for schema, name, meaning in sorted(relations, key=lambda found: order.index(_relation(found[0], found[1]))):
            columns = connection.execute(
                "select column_name, data_type, comment from duckdb_columns() "
                "where schema_name = ? and table_name = ? order by column_index",
                [schema, name],
            ).fetchall()
            assert meaning, f"{name} has no comment"
            assert all(comment for *_, comment in columns), f"a column of {name} has no comment"
            rows = "\n".join(f"| `{column}` | {kind.lower()} | {comment} |" for column, kind, comment in columns)
            head = f"### `{_relation(schema, name)}`\n\n{meaning}\n\n| column | type | meaning |\n| --- | --- | --- |"
            parts.append(f"{head}\n{rows}")
    return "\n\n".join(parts)


def _relation(schema: str, name: str) -> str:
    return name if schema == "main" else f"{schema}.{name}"


def _queries() -> str:
    rows = ["| name | what it answers |", "| --- | --- |"]
    return "\n".join([*rows, *(f"| `{name}` | {what} |" for name, (what, _) in named_queries().items())])


GENERATED = {
    ("sql.md", "columns"): _columns,
    ("sql.md", "queries"): _queries,
    ("concepts.md", "call states"): lambda: _transitions(dict(CALL_TABLE)),
    ("approvals.md", "approval states"): lambda: _transitions(dict(APPROVAL_TABLE)),
    ("concepts.md", "run states"): lambda: _transitions(dict(RUN_TABLE)),
    ("telemetry.md", "metrics"): _metrics,
    ("telemetry.md", "names"): _names,
    ("cli.md", "commands"): lambda: "\n".join(_commands(cli, "sagaspan")).rstrip(),
}


def _pattern(part: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- generated: {part} -->\n)(?:(?!<!--).)*?(\n<!-- end -->)", re.DOTALL)


@pytest.mark.parametrize(("file", "part"), list(GENERATED))
def test_generated_parts_are_up_to_date(file: str, part: str) -> None:
    """A table in the docs cannot drift from the code it describes."""
    text = (DOCS / file).read_text()
    match = _pattern(part).search(text)
    assert match is not None, f"{file} has no part {part!r}"
    assert match[0] == f"{match[1]}{GENERATED[file, part]()}{match[2]}", "run: uv run python -m tests.test_docs"


@pytest.mark.parametrize("path", sorted(DOCS.glob("*.md")), ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    """A relative link in the docs names a file that exists."""
    for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", path.read_text()):
        assert (path.parent / target).exists(), f"{path.name} links to {target}"


if __name__ == "__main__":
    for (file, part), make in GENERATED.items():
        old = (DOCS / file).read_text()
        match = _pattern(part).search(old)
        assert match is not None
        (DOCS / file).write_text(old[: match.start()] + match[1] + make() + match[2] + old[match.end() :])
