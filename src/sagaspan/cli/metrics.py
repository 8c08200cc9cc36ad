"""``sagaspan metrics``: what needs a person, for Prometheus to scrape."""

from __future__ import annotations

import contextlib
import functools
import signal
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, make_server

import click

from sagaspan import semconv
from sagaspan.cli._options import Settings, common_options, pass_settings
from sagaspan.cli._render import emit_json, say
from sagaspan.exceptions import ConfigurationError, SagaspanError
from sagaspan.status.gauges import Count, count_items

if TYPE_CHECKING:
    from prometheus_client.core import GaugeMetricFamily

_PORT: Final = 9464  # the one that the OpenTelemetry specification names for a Prometheus exporter


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen; 0.0.0.0: on every address.")
@click.option("--port", default=_PORT, show_default=True, type=click.IntRange(0, 65535), help="0: any that is free.")
@click.option("--once", is_flag=True, help="Print it once, in Prometheus's text format, for a textfile collector.")
@common_options
@pass_settings
def metrics(settings: Settings, host: str, port: int, once: bool) -> None:
    """Serve what `sagaspan status` lists as a gauge for Prometheus, counted in the ledger at each scrape.

    It tells of the ledger and not of a process, so it is right when the process that failed is gone. A scrape fails
    (503) while the ledger cannot be read. With --json: the counts, once.
    """
    if settings.as_json:
        emit_json([{"items": count, **attributes} for count, attributes in _counts(settings)])
        return
    try:
        from prometheus_client import CollectorRegistry, generate_latest, make_wsgi_app
    except ImportError as error:
        raise ConfigurationError(
            "sagaspan metrics needs the package prometheus-client: pip install 'sagaspan[prometheus]'"
        ) from error
    registry = CollectorRegistry()
    registry.register(_Collector(settings))
    _counts(settings)  # a ledger that is not there is said now, and not at the first scrape
    if once:
        click.echo(generate_latest(registry), nl=False)
        return
    _serve(make_wsgi_app(registry), host, port)


def _counts(settings: Settings) -> list[Count]:
    """Return the counts of the ledger, opened anew: one that was moved away must not be read on."""
    with contextlib.closing(settings.open_store()) as store:
        return count_items(store)


class _Collector:
    """Counts the ledger whenever the registry is collected."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def describe(self) -> list[Any]:
        """Return nothing: the name is known without a look at the ledger, and no other collector has it."""
        return []

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Yield the gauge; raises ``StoreUnavailable``."""
        from prometheus_client.core import GaugeMetricFamily

        metric = semconv.METRICS[semconv.METRIC_STATUS]
        family = GaugeMetricFamily(
            _name(semconv.METRIC_STATUS), metric.meaning, labels=[*map(_name, metric.dimensions)]
        )
        for count, attributes in _counts(self._settings):
            family.add_metric([attributes[dimension] for dimension in metric.dimensions], count)
        yield family


def _name(otel: str) -> str:
    """Return the name that Prometheus has for a name of OpenTelemetry (its compatibility specification)."""
    return otel.replace(".", "_")


def _serve(app: Callable[..., Iterable[bytes]], host: str, port: int) -> None:
    """Answer scrapes until SIGINT or SIGTERM."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        server = make_server(host, port, functools.partial(_answer, app), handler_class=_Silent)
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {host}:{port} ({error.strerror}); choose another --port") from error
    with server:
        say(f"Serving http://{host}:{server.server_port}/metrics, until Ctrl+C or SIGTERM.", "dim")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


def _answer(
    app: Callable[..., Iterable[bytes]], environment: dict[str, Any], start: Callable[..., Any]
) -> Iterable[bytes]:
    try:
        return app(environment, start)
    except SagaspanError as error:
        # A number that cannot be read must not stay green: Prometheus takes the failed scrape as `up == 0`.
        click.echo(f"The ledger could not be read: {error}", err=True)
        start("503 Service Unavailable", [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{error}\n".encode()]


class _Silent(WSGIRequestHandler):
    """Writes no line for each scrape."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the signature of the standard library
        """Say nothing."""
