"""Which traces or spans somebody asks for, as SQL; values are always bound."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

from sagaspan.index.sql import captured

OK: Final = "ok"
ERROR: Final = "error"
SPAN_COLUMNS: Final = (
    "trace_id, span_id, parent_span_id, 0 as depth, name, kind, start_time, duration_ms, status, status_message, "
    "error_type, service_name, operation, tool_name as tool, model, agent_name, state, run_id, call_id, input_tokens, "
    f"output_tokens, cost_usd, stack, {captured('input')} as input, {captured('output')} as output, attributes"
)
"""The columns of ``SpanRow``, without its links."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """What must fit: of a list of spans each span, of a list of traces the trace, or some span of it.

    ``status`` are ``ok``, ``error`` or states of runs, calls and requests, of which one must fit. ``tool``, ``agent``
    and ``model`` may be globs. Times are those of the start; without a zone they are UTC.
    """

    status: tuple[str, ...] = ()
    tool: str | None = None
    run_id: str | None = None
    agent: str | None = None
    model: str | None = None
    service_name: str | None = None
    trace_id: str | None = None
    min_ms: float | None = None
    max_ms: float | None = None
    since: datetime | None = None
    until: datetime | None = None
    limit: int = 20
    offset: int = 0

    def of_spans(self) -> tuple[str, list[Any]]:
        """The condition that a span fits, and its values."""
        return self._all("start_time", "duration_ms", "status = 'ERROR'", "{}")

    def of_traces(self) -> tuple[str, list[Any]]:
        """The condition that a group of the spans of one trace fits, and its values."""
        duration = "(epoch_ns(max(end_time)) - epoch_ns(min(start_time))) / 1e6"
        return self._all("min(start_time)", duration, "bool_or(status = 'ERROR')", "bool_or({})")

    def _all(self, start: str, duration: str, failed: str, some: str) -> tuple[str, list[Any]]:
        wanted: list[tuple[str, Any]] = [
            (f"{start} >= ?::timestamp", _naive_utc(self.since)),
            (f"{start} < ?::timestamp", _naive_utc(self.until)),
            (f"{duration} >= ?", self.min_ms),
            (f"{duration} <= ?", self.max_ms),
            (some.format("tool_name glob ?"), self.tool),
            (some.format("agent_name glob ?"), self.agent),
            (some.format("model glob ?"), self.model),
            (some.format("run_id = ?"), self.run_id),
            (some.format("service_name = ?"), self.service_name),
            (some.format("trace_id = ?"), self.trace_id),
        ]
        given = [(condition, value) for condition, value in wanted if value is not None]
        conditions, values = [condition for condition, _ in given], [value for _, value in given]
        if self.status:
            states = [
                {ERROR: f"coalesce({failed}, false)", OK: f"not coalesce({failed}, false)"}.get(
                    status, some.format("state = ?")
                )
                for status in self.status
            ]
            conditions.append(f"({' or '.join(states)})")
            values += [status for status in self.status if status not in (OK, ERROR)]
        return " and ".join(conditions) or "true", values


def choose(connection: DuckDBPyConnection, where: Where) -> None:
    """Make the temporary table ``chosen``: the ids of the traces that fit, newest first."""
    having, values = where.of_traces()
    connection.execute(
        "create or replace temp table chosen as select trace_id from spans where trace_id is not null "  # noqa: S608 - our own conditions
        f"group by trace_id having {having} order by min(start_time) desc nulls last, trace_id limit ? offset ?",
        [*values, where.limit, where.offset],
    )


def _naive_utc(moment: datetime | None) -> datetime | None:
    return moment.astimezone(UTC).replace(tzinfo=None) if moment is not None and moment.tzinfo else moment
