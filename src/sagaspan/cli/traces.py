"""``sagaspan traces``: the spans of what agents did."""

from __future__ import annotations

from typing import Any

import click

from sagaspan import semconv
from sagaspan.cli._found import SHOWN
from sagaspan.cli._options import NotFound, Settings, common_options, pass_settings
from sagaspan.cli._render import console, emit_json, emit_table, lately, plain_error, say, visible


@click.group()
@common_options
def traces() -> None:
    """The spans of what agents did."""


@traces.command("list")
@click.option("--limit", "-n", default=20, show_default=True, type=click.IntRange(1))
@click.option("--errors", is_flag=True, help="Only traces with an error.")
@click.option("--run", "run_id", help="Only traces of this run.")
@common_options
@pass_settings
def list_traces(settings: Settings, limit: int, errors: bool, run_id: str | None) -> None:
    """Traces, newest first."""
    found = synced_index(settings).traces(limit, errors_only=errors, run_id=run_id)
    if settings.as_json:
        emit_json(found)
    elif not found:
        say(f"No traces in {settings.traces}.")
    else:
        rows = [
            (
                row.trace_id[:16],
                row.name,
                lately(row.start),
                _ms(row.duration_ms),
                row.spans,
                row.errors or "",
                row.run_id,
            )
            for row in found
        ]
        emit_table(("trace", "name", "started", "took", "spans", "errors", "run"), rows, spare=("spans", "took"))


@traces.command("show")
@click.argument("trace_id")
@common_options
@pass_settings
def show_trace(settings: Settings, trace_id: str) -> None:
    """One trace as a tree, by id or unique prefix."""
    from sagaspan.index import TraceNotFound

    try:
        print_trace(settings, trace_id)
    except TraceNotFound as error:
        raise NotFound(str(error), [("trace", match, "") for match in error.matches]) from error


def synced_index(settings: Settings) -> Any:
    """The index of the trace files, brought up to date; damaged lines are named on standard error."""
    return sync_index(settings)[0]


def sync_index(settings: Settings, *, patience: float | None = None) -> tuple[Any, float]:
    """As ``synced_index``, with the seconds that others held the index, which may be ``patience`` at most."""
    from sagaspan.index import TraceIndex

    if not settings.traces.is_dir():
        from sagaspan.exceptions import StoreUnavailable

        raise StoreUnavailable(
            f"there are no traces at {settings.traces}; call sagaspan.configure_tracing() in your program, "
            "or name the folder with --home or SAGASPAN_TRACE_DIR"
        )
    index = TraceIndex(settings.traces)
    report = index.sync(_progress()) if patience is None else index.sync(_progress(), patience=patience)
    for line in report.damaged:
        click.echo(f"Warning: a trace line was left out: {line}", err=True)
    return index, report.waited


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
    from rich.text import Text
    from rich.tree import Tree

    tree = Tree(Text(f"trace {spans[0].trace_id}", style="bold"))
    branches = {-1: tree}
    tools = {span.attributes.get(semconv.CALL_ID): span.attributes.get(semconv.GEN_AI_TOOL_NAME) for span in spans}
    for span in spans:
        branches[span.depth] = branches[span.depth - 1].add(_label(span, tools))
    console().print(tree)


def _label(span: Any, tools: dict[str | None, str | None]) -> Any:
    from rich.text import Text

    attributes = span.attributes
    undoes = attributes.get(semconv.CALL_COMPENSATES)
    label = Text(visible(span.name), style="yellow" if undoes else "red" if span.status == "ERROR" else "")
    label.append(f"  {_ms(span.duration_ms)}", style="dim")
    state = attributes.get(semconv.CALL_STATE) or attributes.get(semconv.RUN_STATE)
    notes = [
        (state, "red" if state in ("failed", "unknown", "partially_compensated") else "green"),
        (f"undoes {tools.get(undoes) or undoes}" if undoes else None, "yellow"),
        (_unless(attributes.get(semconv.IDEMPOTENCY_OUTCOME), "executed"), "cyan"),
        (_attempts(attributes.get(semconv.CALL_ATTEMPTS)), "magenta"),
        (plain_error(span.error_type), "red"),
        (span.status_message, "red"),
    ]
    for note, style in notes:
        if note:
            label.append(f"  {visible(note)}", style=style)
    return label


def _unless(value: str | None, usual: str) -> str | None:
    return None if value == usual else value


def _attempts(number: str | None) -> str | None:
    return f"{number} attempts" if number not in (None, "0", "1") else None


def _ms(duration_ms: float | None) -> str:
    if duration_ms is None:
        return ""
    return f"{duration_ms / 1000:.2f} s" if duration_ms >= 1000 else f"{duration_ms:.1f} ms"


def _progress() -> Any:
    """A progress bar on standard error for syncs that somebody would wonder about."""
    import sys
    import time

    if not sys.stderr.isatty():
        return None
    started = time.monotonic()

    def report(done: int, total: int) -> None:
        if total and (time.monotonic() - started > 1 or done < total):
            end = "\n" if done >= total else ""
            sys.stderr.write(f"\rindexing traces: {100 * done // total}% of {total / 1e6:.0f} MB{end}")
            sys.stderr.flush()

    return report
