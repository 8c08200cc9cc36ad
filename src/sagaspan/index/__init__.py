"""The traces as SQL: a DuckDB file beside the trace files, filled from them, opened only by whoever asks."""

from __future__ import annotations

from sagaspan.index.errors import QueryError, TraceNotFound
from sagaspan.index.index import TraceIndex
from sagaspan.index.rows import DamagedLine, SpanLink, SpanRow, SyncReport, Table, TraceRow
from sagaspan.index.sql import named_queries
from sagaspan.index.where import Where

__all__ = [
    "DamagedLine",
    "QueryError",
    "SpanLink",
    "SpanRow",
    "SyncReport",
    "Table",
    "TraceIndex",
    "TraceNotFound",
    "TraceRow",
    "Where",
    "named_queries",
]
