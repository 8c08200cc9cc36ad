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
        bounds = self._bounds("start_time", "duration_ms")
        return _joined([*bounds, *self._of_trace(), *self._traits(), *self._of_status("status = 'ERROR'", "{}")])

    def of_traces(self) -> tuple[str, list[Any]]:
        """The condition that a row of ``totals.traces`` fits, and its values."""
        some = "trace_id in (select trace_id from spans where {})"
        bounds = self._bounds("started", "(epoch_ns(ended) - epoch_ns(started)) / 1e6")
        traits = [(some.format(condition), values) for condition, values in self._traits()]
        return _joined([*bounds, *self._of_trace(), *traits, *self._of_status("errors > 0", some)])

    def _bounds(self, start: str, duration: str) -> list[_Condition]:
        return _given(
            (f"{start} >= ?::timestamp", _optional(self.since)),
            (f"{start} < ?::timestamp", _optional(self.until)),
            (f"{duration} >= ?", self.min_ms),
            (f"{duration} <= ?", self.max_ms),
        )

    def _of_trace(self) -> list[_Condition]:
        return _given(("trace_id = ?", self.trace_id))

    def _traits(self) -> list[_Condition]:
        return _given(
            ("tool_name glob ?", self.tool),
            ("agent_name glob ?", self.agent),
            ("model glob ?", self.model),
            ("run_id = ?", self.run_id),
            ("service_name = ?", self.service_name),
        )

    def _of_status(self, failed: str, some: str) -> list[_Condition]:
        """That one of ``status`` fits; ``some`` is what is made of the condition that a span is in a state."""
        if not self.status:
            return []
        known = {ERROR: failed, OK: f"not ({failed})"}
        states = [status for status in self.status if status not in known]
        either = [known[status] for status in self.status if status in known]
        if states:
            either.append(some.format(f"state in ({', '.join('?' for _ in states)})"))
        return [(f"({' or '.join(either)})", states)]


_Condition = tuple[str, list[Any]]


def _given(*conditions: tuple[str, Any]) -> list[_Condition]:
    return [(condition, [value]) for condition, value in conditions if value is not None]


def _joined(conditions: list[_Condition]) -> _Condition:
    return " and ".join(text for text, _ in conditions) or "true", [
        value for _, values in conditions for value in values
    ]


def choose(connection: DuckDBPyConnection, where: Where) -> None:
    """Make the temporary table ``chosen``: the ids of the traces that fit, newest first."""
    fits, values = where.of_traces()
    connection.execute(
        f"create or replace temp table chosen as select trace_id from totals.traces where {fits} "  # noqa: S608 - our own conditions
        "order by started desc nulls last, trace_id limit ? offset ?",
        [*values, where.limit, where.offset],
    )


def naive_utc(moment: datetime) -> datetime:
    """As the index has it: UTC, without a zone."""
    return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment


def _optional(moment: datetime | None) -> datetime | None:
    return None if moment is None else naive_utc(moment)
