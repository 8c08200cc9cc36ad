"""Where spans go: each one as a line on disk before its caller goes on, and over OTLP where one is set."""

from __future__ import annotations

from sagaspan.telemetry.configure import configure_tracing
from sagaspan.telemetry.metrics import configure_metrics
from sagaspan.telemetry.sink import JsonLinesSpanProcessor

__all__ = ["JsonLinesSpanProcessor", "configure_metrics", "configure_tracing"]
