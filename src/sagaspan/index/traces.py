"""Reading traces back: the list of them, and one as a tree."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from sagaspan.index.errors import TraceNotFound
from sagaspan.index.rows import SpanLink, SpanRow, TraceRow
from sagaspan.index.where import SPAN_COLUMNS, choose

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from sagaspan.index.where import Where

_TREE: Final = f"select {SPAN_COLUMNS}, links from spans where trace_id = ? order by start_time nulls last, span_id"  # noqa: S608
_SHOWN: Final = 5  # how many ids an ambiguous prefix lists


def list_traces(connection: DuckDBPyConnection, where: Where) -> tuple[TraceRow, ...]:
    """The latest traces that fit, newest first."""
    choose(connection, where)
    rows = connection.execute(
        "select trace_id, name, status, started, duration_ms, spans, errors, cost_usd, service_name, run_id "
        "from traces where trace_id in (from chosen) order by started desc nulls last, trace_id"
    ).fetchall()
    found = [dict(zip(TraceRow.__slots__, row, strict=True)) for row in rows]
    return tuple(TraceRow(**{**row, "name": row["name"] or "", "start": _aware(row["start"])}) for row in found)


def list_spans(connection: DuckDBPyConnection, where: Where) -> tuple[SpanRow, ...]:
    """The latest spans that fit, newest first."""
    conditions, values = where.of_spans()
    statement = (
        f"select {SPAN_COLUMNS}, links from spans where {conditions} "  # noqa: S608 - our own conditions
        "order by start_time desc nulls last, trace_id, span_id limit ? offset ?"
    )
    return tuple(_span(row) for row in connection.execute(statement, [*values, where.limit, where.offset]).fetchall())


def spans_of(connection: DuckDBPyConnection, where: Where) -> tuple[tuple[SpanRow, ...], ...]:
    """The traces that fit, newest first, each with all its spans in the order of the tree."""
    choose(connection, where)
    rows = connection.execute(
        f"select {SPAN_COLUMNS}, links from spans join (select trace_id, rowid as place from chosen) using (trace_id) "  # noqa: S608 - our own columns
        "order by place, start_time nulls last, span_id"
    ).fetchall()
    traces: dict[str, list[SpanRow]] = {}
    for span in map(_span, rows):
        traces.setdefault(span.trace_id, []).append(span)
    return tuple(_in_tree_order(spans) for spans in traces.values())


def one_trace(connection: DuckDBPyConnection, prefix: str) -> tuple[SpanRow, ...]:
    """The spans of the trace whose id begins with ``prefix``, in the order of the tree."""
    rows = connection.execute(_TREE, [_only_trace(connection, prefix)]).fetchall()
    return _in_tree_order([_span(row) for row in rows])


def _only_trace(connection: DuckDBPyConnection, prefix: str) -> str:
    wanted = prefix.strip().lower()
    found = connection.execute(
        "select distinct trace_id from spans where starts_with(trace_id, ?) order by trace_id limit ?",
        [wanted, _SHOWN + 1],
    ).fetchall()
    matches = tuple(str(trace_id) for (trace_id,) in found)
    if not wanted or not matches:
        raise TraceNotFound(f"no trace id begins with {prefix!r}; list them with: sagaspan traces list")
    if len(matches) > 1 and matches[0] != wanted:
        shown = ", ".join(matches[:_SHOWN]) + (", ..." if len(matches) > _SHOWN else "")
        raise TraceNotFound(f"more than one trace id begins with {prefix!r}: {shown}; give more of it", matches=matches)
    return matches[0]


def _span(row: tuple[Any, ...]) -> SpanRow:
    values = dict(zip(SpanRow.__slots__, row, strict=True))
    values["name"] = values["name"] or ""
    values["start"] = _aware(values["start"])
    values["attributes"] = values["attributes"] or {}
    values["links"] = _links(values["links"])
    return SpanRow(**values)


def _in_tree_order(spans: list[SpanRow]) -> tuple[SpanRow, ...]:
    """Depth first.

    A span whose parent is missing is a root; so is one of a circle, which only broken ids make.
    """
    ids = {span.span_id for span in spans}
    children: dict[str | None, list[SpanRow]] = defaultdict(list)
    for span in spans:
        children[span.parent_span_id if span.parent_span_id in ids else None].append(span)
    ordered: list[SpanRow] = []
    seen: set[int] = set()
    for root in [*children[None], *spans]:
        stack = [replace(root, depth=0)] if id(root) not in seen else []
        origins = [root]
        while stack:
            span, origin = stack.pop(), origins.pop()
            if id(origin) in seen:
                continue
            seen.add(id(origin))
            ordered.append(span)
            below = children.get(span.span_id, []) if span.span_id is not None else []
            stack.extend(replace(child, depth=span.depth + 1) for child in reversed(below))
            origins.extend(reversed(below))
    return tuple(ordered)


def _links(text: str | None) -> tuple[SpanLink, ...]:
    links = json.loads(text) if text else []
    return tuple(_link(link) for link in links if isinstance(link, dict)) if isinstance(links, list) else ()


def _link(link: dict[str, Any]) -> SpanLink:
    pairs = link.get("attributes")
    attributes = {
        str(pair["key"]): next(iter(pair["value"].values()), None)
        for pair in (pairs if isinstance(pairs, list) else [])
        if isinstance(pair, dict) and "key" in pair and isinstance(pair.get("value"), dict)
    }
    return SpanLink(
        trace_id=str(link.get("traceId", "")).lower(),
        span_id=str(link.get("spanId", "")).lower(),
        attributes=attributes,
    )


def _aware(moment: datetime | None) -> datetime | None:
    return moment.replace(tzinfo=UTC) if moment is not None else None
