"""Reading traces back: the list of them, and one as a tree."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from sagaspan.index.errors import TraceNotFound
from sagaspan.index.rows import SpanLink, SpanRow, TraceRow

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_LIST: Final = """
select trace_id, name, start, duration_ms, spans, errors, service_name, run_id
from traces
where trace_id is not null
    and ($since is null or start >= $since)
    and (not $errors_only or errors > 0)
    and ($run_id is null or trace_id in (select trace_id from spans where run_id = $run_id))
    and ($service_name is null or trace_id in (select trace_id from spans where service_name = $service_name))
order by start desc nulls last, trace_id
limit $limit
"""
_TREE: Final = """
select trace_id, span_id, parent_span_id, 0, name, kind, start_time, duration_ms, status, status_message,
error_type, service_name, attributes, links from spans where trace_id = ? order by start_time nulls last,
span_id
"""
_SHOWN: Final = 5  # how many ids an ambiguous prefix lists


def list_traces(
    connection: DuckDBPyConnection,
    limit: int,
    *,
    since: datetime | None,
    errors_only: bool,
    run_id: str | None,
    service_name: str | None,
) -> tuple[TraceRow, ...]:
    """The latest ``limit`` traces that fit, newest first."""
    parameters = {
        "since": _naive_utc(since),
        "errors_only": errors_only,
        "run_id": run_id,
        "service_name": service_name,
        "limit": limit,
    }
    names = TraceRow.__slots__
    rows = [dict(zip(names, row, strict=True)) for row in connection.execute(_LIST, parameters).fetchall()]
    return tuple(TraceRow(**{**row, "name": row["name"] or "", "start": _aware(row["start"])}) for row in rows)


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


def _naive_utc(moment: datetime | None) -> datetime | None:
    return moment.astimezone(UTC).replace(tzinfo=None) if moment is not None and moment.tzinfo else moment
