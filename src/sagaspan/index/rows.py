"""What the index hands out: plain frozen data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedLine:
    """A line that could not be read.

    ``line`` counts from 1, ``position`` is its byte offset; 0 is the whole file.
    """

    path: Path
    line: int
    position: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} (byte {self.position}): {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReport:
    """What one sync took in: ``files`` with new lines, ``lines`` read, ``spans`` added, ``duplicates`` left
    out; ``waited`` is seconds that others held the index. ``is_incomplete``: some file could not be read.
    """

    files: int
    lines: int
    spans: int
    duplicates: int
    damaged: tuple[DamagedLine, ...]
    waited: float = 0.0
    is_incomplete: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The answer to a query; ``types`` are DuckDB's names. ``truncated`` says that ``max_rows`` cut it."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    truncated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """One trace in a list: ``name`` is its root span's, ``start`` is aware UTC.

    ``status`` is the state of its run, else ``error`` or ``ok``.
    """

    trace_id: str
    name: str
    status: str
    start: datetime | None
    duration_ms: float | None
    spans: int
    errors: int
    cost_usd: float | None
    service_name: str | None
    run_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanLink:
    """A pointer to another span, such as the call that a compensation undoes."""

    trace_id: str
    span_id: str
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRow:
    """One span of a trace, in the order of the tree; ``depth`` is 0 for a root, ``start`` is aware UTC.

    ``input``, ``output`` and ``stack`` are there where content is captured.
    """

    trace_id: str
    span_id: str | None
    parent_span_id: str | None
    depth: int
    name: str
    kind: str
    start: datetime | None
    duration_ms: float | None
    status: str
    status_message: str | None
    error_type: str | None
    service_name: str | None
    operation: str | None
    tool: str | None
    model: str | None
    agent: str | None
    state: str | None
    run_id: str | None
    call_id: str | None
    input_tokens: int | None
    output_tokens: int | None
    cost_usd: float | None
    stack: str | None
    input: str | None
    output: str | None
    attributes: Mapping[str, str | None]
    links: tuple[SpanLink, ...]
