"""What is known of each trace and run as a whole, brought up to date with the spans that came, in their transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sagaspan.index.sql import total_statement

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_KEPT: Final = ("traces", "runs")
_MERGE: Final = ("recall", "forget", "keep")


def add_totals(connection: DuckDBPyConnection, after: int) -> None:
    """Count the spans behind row ``after`` in; call it once for each, and in the transaction that added them."""
    for kept in _KEPT:
        connection.execute(total_statement(f"count_{kept}"), [after])
        for step in _MERGE:
            connection.execute(total_statement(f"{step}_{kept}"))
