"""One call sends metrics to a Collector: OTLP, if an endpoint is set and the program does not do it itself.

Unlike a tracer provider, a meter provider takes nothing more once it is made: one that exists is left as it is.
"""

from __future__ import annotations

import atexit
import uuid
from typing import TYPE_CHECKING, Final

from opentelemetry import metrics
from opentelemetry.sdk.environment_variables import (
    OTEL_EXPORTER_OTLP_ENDPOINT,
    OTEL_EXPORTER_OTLP_METRICS_ENDPOINT,
    OTEL_EXPORTER_OTLP_METRICS_PROTOCOL,
    OTEL_EXPORTER_OTLP_METRICS_TIMEOUT,
    OTEL_EXPORTER_OTLP_PROTOCOL,
    OTEL_EXPORTER_OTLP_TIMEOUT,
)
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, Resource

from sagaspan import _fork as fork
from sagaspan._checks import check_name
from sagaspan._metrics import measure_with
from sagaspan.exceptions import ConfigurationError
from sagaspan.telemetry import environment
from sagaspan.telemetry.leaving import patience

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter

_METRICS_EXPORTER: Final = "OTEL_METRICS_EXPORTER"
_PLACEHOLDER: Final = "_ProxyMeterProvider"  # what the API gives before anybody has set one

_lock = fork.new_lock()


def configure_metrics(
    service_name: str | None = None, *, meter_provider: metrics.MeterProvider | None = None
) -> metrics.MeterProvider:
    """Export metrics over OTLP if an endpoint is set, and return the meter provider that is in force.

    That is ``meter_provider``, to which everything that this library measures in this process goes from now on, and to
    which nothing is added; without it the global one.

    A provider is made with ``service_name`` (default: ``OTEL_SERVICE_NAME``) if ``OTEL_EXPORTER_OTLP_ENDPOINT`` or
    ``OTEL_EXPORTER_OTLP_METRICS_ENDPOINT`` is set and the program has none of its own, which would be left as it is.
    ``OTEL_METRICS_EXPORTER=none`` and ``OTEL_SDK_DISABLED=true`` keep it from that; ``OTEL_METRIC_EXPORT_INTERVAL``
    says how often (ms; the default is a minute). Call it in each worker process: every process is an instance of its
    own (``service.instance.id``), or their counts would be taken for one another's.

    Raises ``ConfigurationError`` if the protocol for OTLP is not one that we have, or ``meter_provider`` is none.
    """
    check_name("service_name", service_name, optional=True)
    if meter_provider is not None and not hasattr(meter_provider, "get_meter"):
        raise ConfigurationError(f"meter_provider takes a MeterProvider, not a {type(meter_provider).__qualname__}")
    with _lock:
        if meter_provider is not None:
            measure_with(meter_provider)
            return meter_provider
        current = metrics.get_meter_provider()
        if type(current).__name__ != _PLACEHOLDER or not _wanted():
            return current
        provider = _made(service_name)
        metrics.set_meter_provider(provider)
        return metrics.get_meter_provider()


def _wanted() -> bool:
    endpoint = environment.first_set(OTEL_EXPORTER_OTLP_METRICS_ENDPOINT, OTEL_EXPORTER_OTLP_ENDPOINT)
    return endpoint is not None and environment.exports_otlp(_METRICS_EXPORTER) and not environment.disabled()


def _made(service_name: str | None) -> MeterProvider:
    reader = PeriodicExportingMetricReader(_exporter())
    provider = MeterProvider([reader], _resource(service_name), shutdown_on_exit=False)
    patience.join()
    # The SDK's own exit waits half a minute for an endpoint that is down.
    atexit.register(lambda: provider.shutdown(patience.take_ms()))
    return provider


def _resource(service_name: str | None) -> Resource:
    """Who measures; what the environment says of the instance is in force, and what a newer SDK makes up itself."""
    named = Resource.create({SERVICE_NAME: service_name} if service_name else {})
    return Resource({SERVICE_INSTANCE_ID: str(uuid.uuid4())}).merge(named)


def _exporter() -> MetricExporter:
    patience = environment.first_set(OTEL_EXPORTER_OTLP_METRICS_TIMEOUT, OTEL_EXPORTER_OTLP_TIMEOUT)
    timeout = None if patience else environment.EXPORT_TIMEOUT
    if environment.protocol(OTEL_EXPORTER_OTLP_METRICS_PROTOCOL, OTEL_EXPORTER_OTLP_PROTOCOL) == environment.GRPC:
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcExporter

        return GrpcExporter(timeout=timeout)
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpExporter

    return HttpExporter(timeout=timeout)
