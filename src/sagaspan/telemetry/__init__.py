"""Where spans go: one OTLP/JSON line each, on disk before the span's caller goes on, and to a Collector if asked."""

from __future__ import annotations

from sagaspan.telemetry.configure import configure_tracing
from sagaspan.telemetry.sink import JsonLinesSpanProcessor

__all__ = ["JsonLinesSpanProcessor", "configure_tracing"]
