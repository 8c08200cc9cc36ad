"""The span that OpenInference opened for the tool whose body runs here.

It begins and ends spans in callbacks and never makes one the current one, but tells the span of a LangChain run.
Those of OpenTelemetry and of OpenLLMetry are current, and found by the guard itself.
"""

from __future__ import annotations

import sys
from typing import Any

from opentelemetry.trace import INVALID_SPAN, Span

_MODULE = "openinference.instrumentation.langchain"


def span_of(tool: str) -> Span:
    """That span, within ``_run`` or ``_arun`` of ``tool``; one that records nothing if there is none."""
    module: Any = sys.modules.get(_MODULE)
    try:
        if module is None or not module.LangChainInstrumentor().is_instrumented_by_opentelemetry:
            return INVALID_SPAN
        span: Span | None = module.get_current_span()
    except Exception:  # noqa: BLE001 - telemetry never breaks what it watches
        return INVALID_SPAN
    # Where somebody calls ``_run`` itself, LangChain knows of no run of the tool, and the span is that of its caller.
    return span if span is not None and getattr(span, "name", None) == tool else INVALID_SPAN
