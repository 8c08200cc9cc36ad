"""Traces for other programs and for people: JSON, CSV, Markdown; Parquet is written by the index itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain
from typing import IO, Any, Final

from sagaspan import semconv
from sagaspan._commands import command
from sagaspan.cli._render import dumped, emit_csv, plain_error, visible, when
from sagaspan.cli._trace_tree import details, facts_of, is_stack_shortened, legible, milliseconds, totals

COLUMNS: Final = (
    "trace_id", "span_id", "parent_span_id", "start", "duration_ms", "name", "kind", "operation", "tool", "model",
    "agent", "state", "status", "error_type", "status_message", "input_tokens", "output_tokens", "cost_usd", "run_id",
    "call_id", "service_name", "input", "output", "stack",
)  # fmt: skip
"""Of a span, in CSV and Parquet."""

PARQUET: Final = """
select trace_id, span_id, parent_span_id, start_time as start, duration_ms, name, kind, operation, tool_name as tool,
       model, agent_name as agent, state, status, error_type, status_message, input_tokens, output_tokens, cost_usd,
       run_id, call_id, service_name, {input} as input, {output} as output, stack, attributes
  from spans join (select trace_id, rowid as place from chosen) using (trace_id) order by place, start_time, span_id
"""


def write_json(traces: Sequence[Sequence[Any]], out: IO[str]) -> None:
    """A list of traces, each with its spans."""
    out.write(
        dumped([{"trace_id": spans[0].trace_id, "spans": [asdict(span) for span in spans]} for spans in traces], 2)
    )
    out.write("\n")


def write_csv(traces: Sequence[Sequence[Any]], out: IO[str]) -> None:
    """A row a span."""
    emit_csv(chain([COLUMNS], map(_row, (span for spans in traces for span in spans))), out)


def _row(span: Any) -> list[object]:
    values = (getattr(span, column) for column in COLUMNS)
    return [value.isoformat() if hasattr(value, "isoformat") else value for value in values]


def write_markdown(traces: Sequence[Sequence[Any]], out: IO[str]) -> None:
    """A chapter a trace: what happened, in its order."""
    for spans in traces:
        _chapter(spans, out)


def _chapter(spans: Sequence[Any], out: IO[str]) -> None:
    first = spans[0]
    tools = {span.call_id: span.tool for span in spans if span.call_id}
    out.write(f"# {cell(first.name)}\n\nTrace `{first.trace_id}`, {when(first.start)}, {totals(spans)}")
    out.write(f", run `{first.run_id}`.\n\n" if first.run_id else ".\n\n")
    out.write("| span | took | what became of it |\n| --- | --- | --- |\n")
    for span in spans:
        notes = "; ".join(note for note, _ in facts_of(span, tools))
        out.write(
            f"| {'&nbsp;&nbsp;' * span.depth}{cell(span.name)} | {milliseconds(span.duration_ms)} | {cell(notes)} |\n"
        )
    out.write("\n")
    shortened = 0
    for span in spans:
        lines = [text for text, _ in details(span)]
        shortened += sum(line.endswith("…") for line in lines) + is_stack_shortened(span)
        if lines:
            about = plain_error(span.error_type)
            out.write(f"**{cell(span.name)}**{f' ({cell(about)})' if about else ''}\n\n")
            out.write(fenced("\n".join(lines)))
    if shortened:
        whole = code(str(command("traces export", first.trace_id or "", format="json")))
        out.write(
            f"Shortened texts in this trace: {shortened}, at `…` or to the last lines of a stack. Whole: {whole}\n\n"
        )
    _links(spans, out)


def _links(spans: Sequence[Any], out: IO[str]) -> None:
    names = {semconv.LINK_RESUMES: "goes on from", semconv.LINK_SENDS: "sends what was scheduled in"}
    for span in spans:
        for link in span.links:
            if (how := names.get(str(link.attributes.get(semconv.LINK_TYPE)))) is not None:
                out.write(f"{cell(span.name)} {how} trace `{link.trace_id}`.\n\n")


def cell(text: object) -> str:
    """A text in a table of Markdown: in one line, and nothing in it is obeyed."""
    plain = visible(text)
    for character in "\\`*_{}[]<>|#":
        plain = plain.replace(character, f"\\{character}" if character != "<" else "&lt;")
    return plain.replace("\n", " ")


def code(text: str) -> str:
    """Return ``text`` as code in a table of Markdown: what is copied from it is what it says."""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{text}{fence}".replace("|", "\\|")


def fenced(text: str) -> str:
    """A text as it is, in a block that it cannot end."""
    fence = "```"
    while fence in text:
        fence += "`"
    lines = "\n".join(legible(line) for line in text.split("\n"))
    return f"{fence}\n{lines}\n{fence}\n\n"
