"""The span that OpenInference opened for the tool whose body runs here, or the model whose request is sent.

It begins and ends spans in callbacks and never makes one the current one, but tells the span of a LangChain run.
Those of OpenTelemetry and of OpenLLMetry are current, and found by the guard itself.
"""

from __future__ import annotations

import sys
from typing import Any
from uuid import UUID

from opentelemetry.trace import INVALID_SPAN, Span

_MODULE = "openinference.instrumentation.langchain"
_OPENLLMETRY = "opentelemetry.instrumentation.langchain"


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


def span_of_model(run_manager: Any) -> Span:
    """The span of the model whose request is sent here; one that records nothing if there is none.

    ``run_manager`` is what LangChain hands to the model: its handlers are those of the instrumentations.
    """
    for handler in getattr(run_manager, "handlers", ()):
        try:
            span = _span_of_run(handler, run_manager.run_id)
        except Exception:  # noqa: BLE001 - telemetry never breaks what it watches
            return INVALID_SPAN
        if span is not None:
            return span
    return INVALID_SPAN


def _span_of_run(handler: Any, run_id: UUID) -> Span | None:
    """The span that a handler opened for a run of LangChain's; None if it is none of those that are not current."""
    module = type(handler).__module__
    if module.startswith(_MODULE):
        span: Span | None = handler.get_span(run_id)
        return span
    if module.startswith(_OPENLLMETRY):  # it makes the span of a model the current one, and takes that back
        return getattr(handler.spans.get(run_id), "span", None)
    return None
