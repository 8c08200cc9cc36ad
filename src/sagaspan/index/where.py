"""Which traces or spans somebody asks for, as SQL; values are always bound."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
        return _joined([*self._bounds("start_time", "duration_ms"), *self.traits("{}")])

    def of_traces(self) -> tuple[str, list[Any], str, list[Any]]:
        """The condition that a span is of a trace that may fit; and that such a trace fits; each with its values."""
        duration = "(epoch_ns(max(end_time)) - epoch_ns(min(start_time))) / 1e6"
        few = replace(self, status=(), tool=None, agent=None, model=None, service_name=None)
        many = replace(self, run_id=None, trace_id=None)
        # Counted in one pass: to look for the ids first, where there are many, took eight times as long.
        counted = [*many.traits("coalesce(bool_or({}), false)"), *self._bounds("min(start_time)", duration)]
        return (*_joined(few.traits("trace_id in (select trace_id from spans where {})")), *_joined(counted))

    def _bounds(self, start: str, duration: str) -> list[_Condition]:
        bounds = (
            (f"{start} >= ?::timestamp", _naive_utc(self.since)),
            (f"{start} < ?::timestamp", _naive_utc(self.until)),
            (f"{duration} >= ?", self.min_ms),
            (f"{duration} <= ?", self.max_ms),
        )
        return [(condition, [value]) for condition, value in bounds if value is not None]

    def traits(self, some: str) -> list[_Condition]:
        """What spans are asked for beside their time; ``some`` is what is made of each condition."""
        wanted = (
            ("tool_name glob ?", self.tool),
            ("agent_name glob ?", self.agent),
            ("model glob ?", self.model),
            ("run_id = ?", self.run_id),
            ("service_name = ?", self.service_name),
            ("trace_id = ?", self.trace_id),
        )
        traits: list[_Condition] = [
            (some.format(condition), [value]) for condition, value in wanted if value is not None
        ]
        if self.status:
            failed = some.format("status = 'ERROR'")
            known = {ERROR: failed, OK: f"not ({failed})"}
            either = " or ".join(known.get(status) or some.format("state = ?") for status in self.status)
            traits.append((f"({either})", [status for status in self.status if status not in known]))
        return traits


_Condition = tuple[str, list[Any]]


def _joined(conditions: list[_Condition]) -> _Condition:
    return " and ".join(text for text, _ in conditions) or "true", [
        value for _, values in conditions for value in values
    ]


def choose(connection: DuckDBPyConnection, where: Where) -> None:
    """Make the temporary table ``chosen``: the ids of the traces that fit, newest first."""
    some, values, fits, more = where.of_traces()
    connection.execute(
        f"create or replace temp table chosen as select trace_id from spans where trace_id is not null and {some} "  # noqa: S608 - our own conditions
        f"group by trace_id having {fits} order by min(start_time) desc nulls last, trace_id limit ? offset ?",
        [*values, *more, where.limit, where.offset],
    )


def _naive_utc(moment: datetime | None) -> datetime | None:
    return moment.astimezone(UTC).replace(tzinfo=None) if moment is not None and moment.tzinfo else moment
