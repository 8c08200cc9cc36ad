"""One call sets tracing up: our file sink on whatever provider there is, and OTLP if an endpoint is set.

A provider that exists is extended, never replaced: the program, its framework or a vendor's agent may own it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast
from weakref import WeakKeyDictionary

from opentelemetry import trace
from opentelemetry.sdk.environment_variables import (
    OTEL_BSP_MAX_EXPORT_BATCH_SIZE,
    OTEL_BSP_MAX_QUEUE_SIZE,
    OTEL_EXPORTER_OTLP_ENDPOINT,
    OTEL_EXPORTER_OTLP_PROTOCOL,
    OTEL_EXPORTER_OTLP_TIMEOUT,
    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT,
    OTEL_EXPORTER_OTLP_TRACES_PROTOCOL,
    OTEL_EXPORTER_OTLP_TRACES_TIMEOUT,
)
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from sagaspan import _fork as fork
from sagaspan._checks import check_name
from sagaspan.exceptions import ConfigurationError, StoreUnavailable
from sagaspan.telemetry import environment
from sagaspan.telemetry.leaving import patience
from sagaspan.telemetry.retention import Retention
from sagaspan.telemetry.sink import JsonLinesSpanProcessor

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

    from sagaspan.telemetry.sink import Fsync

_QUEUE_SIZE: Final = 65_536  # the SDK's 2,048 lose 41 % of a burst of 20,000 spans
_BATCH_SIZE: Final = 512
_OTLP: Final = "otlp"
_TRACES_EXPORTER: Final = "OTEL_TRACES_EXPORTER"

_lock = fork.new_lock()
# What we added to each provider: the directories of our sinks, and _OTLP. Entries die with their provider.
_added: WeakKeyDictionary[TracerProvider, set[str]] = WeakKeyDictionary()


def configure_tracing(
    service_name: str | None = None,
    *,
    directory: Path | str | None = None,
    tracer_provider: TracerProvider | None = None,
) -> TracerProvider:
    """Write spans as OTLP/JSON lines into ``directory``, and export them over OTLP if an endpoint is set.

    The processors go onto ``tracer_provider``, else onto the global provider, else onto a new one that
    becomes global with ``service_name`` (default: ``OTEL_SERVICE_NAME``). ``directory`` defaults to
    ``SAGASPAN_TRACE_DIR``, else to ``traces`` in the nearest ``.sagaspan``. Calling it again adds nothing
    twice, and a provider that exports OTLP already gets no second exporter. With ``OTEL_SDK_DISABLED=true``
    nothing is added, with ``OTEL_TRACES_EXPORTER=none`` nothing is exported. The files are kept as
    ``SAGASPAN_TRACE_RETENTION`` says (``30d``, ``5GB``, both, or ``all``; the default is 5 GB), and are synced to the
    disk as ``SAGASPAN_TRACE_FSYNC`` says: ``off`` (the default), ``interval`` (each second), or ``always`` (each span).

    Raises ``ConfigurationError`` if a foreign global provider takes no processors, or the settings for OTLP,
    retention or syncing are wrong.
    """
    check_name("service_name", service_name, optional=True)
    with _lock:
        provider = tracer_provider or _global_provider(service_name)
        if environment.disabled():
            return provider
        added = _added.setdefault(provider, set())
        _add_sink(provider, added, _trace_directory(directory), service_name)
        if _OTLP not in added and _endpoint() and not _exports_otlp(provider):
            provider.add_span_processor(_otlp_processor())
            added.add(_OTLP)
        return provider


def _exports_otlp(provider: TracerProvider) -> bool:
    """Return whether the program exports OTLP itself: a second exporter would send every span twice."""
    # The SDK offers no way to ask. Where its attributes have other names, the answer is no, as it was before.
    processors = getattr(getattr(provider, "_active_span_processor", None), "_span_processors", ())
    exporters = [getattr(processor, "span_exporter", None) for processor in processors]
    return any(type(exporter).__name__ == "OTLPSpanExporter" for exporter in exporters)


def _global_provider(service_name: str | None) -> TracerProvider:
    current = trace.get_tracer_provider()
    if isinstance(current, trace.ProxyTracerProvider):
        # Resource.create merges OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME below what is given here.
        resource = Resource.create({SERVICE_NAME: service_name} if service_name else {})
        trace.set_tracer_provider(TracerProvider(resource=resource))
        # Asked again, because another thread may have set its own first: then that one is in force.
        current = trace.get_tracer_provider()
    if not hasattr(current, "add_span_processor"):
        raise ConfigurationError(
            f"The global tracer provider is a {type(current).__module__}.{type(current).__qualname__}, "
            "which takes no span processors. Pass tracer_provider=TracerProvider() to configure_tracing and "
            "to Guard, or set an OpenTelemetry SDK provider."
        )
    # By what it can do, not by its class: wrappers such as logfire's delegate to an SDK provider.
    return cast("TracerProvider", current)


def _trace_directory(directory: Path | str | None) -> Path:
    if directory:
        return Path(directory).expanduser().absolute()
    from sagaspan._home import home, traces_directory

    chosen = traces_directory().absolute()
    if chosen.is_relative_to(home().absolute()):
        # Made by its own rules (0700, ignored by git). If it cannot be, the sink says so when it first
        # writes.
        with contextlib.suppress(StoreUnavailable):
            home(create=True)
    return chosen


def _add_sink(provider: TracerProvider, added: set[str], directory: Path, service_name: str | None) -> None:
    if str(directory) in added:
        return
    retention = Retention.parse(text) if (text := environment.first_set("SAGASPAN_TRACE_RETENTION")) else None
    fsync = cast("Fsync", environment.first_set("SAGASPAN_TRACE_FSYNC") or "off")
    sink = JsonLinesSpanProcessor(directory, service_name=service_name, retention=retention, fsync=fsync)
    provider.add_span_processor(sink)
    added.add(str(directory))


class _PromptBatchProcessor(BatchSpanProcessor):
    """The SDK's batch processor, but a dead endpoint delays the program's exit by seconds, not by half a
    minute.
    """

    def shutdown(self) -> None:
        self._batch_processor.shutdown(timeout_millis=patience.take_ms())


def _otlp_processor() -> BatchSpanProcessor:
    try:
        # None leaves the choice to OTEL_BSP_*, which wins over our defaults.
        queue = None if OTEL_BSP_MAX_QUEUE_SIZE in os.environ else _QUEUE_SIZE
        batch = None if OTEL_BSP_MAX_EXPORT_BATCH_SIZE in os.environ else _BATCH_SIZE
        processor = _PromptBatchProcessor(_otlp_exporter(), max_queue_size=queue, max_export_batch_size=batch)
    except ValueError as error:
        raise ConfigurationError(f"The OTLP settings in the environment (OTEL_BSP_*) are wrong: {error}.") from error
    patience.join()
    return processor


def _otlp_exporter() -> SpanExporter:
    patience = environment.first_set(OTEL_EXPORTER_OTLP_TRACES_TIMEOUT, OTEL_EXPORTER_OTLP_TIMEOUT)
    timeout = None if patience else environment.EXPORT_TIMEOUT
    if environment.protocol(OTEL_EXPORTER_OTLP_TRACES_PROTOCOL, OTEL_EXPORTER_OTLP_PROTOCOL) == environment.GRPC:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return GrpcExporter(timeout=timeout)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

    return HttpExporter(timeout=timeout)


def _endpoint() -> str | None:
    """Where spans are sent to, if they are."""
    if not environment.exports_otlp(_TRACES_EXPORTER):
        return None
    return environment.first_set(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, OTEL_EXPORTER_OTLP_ENDPOINT)
