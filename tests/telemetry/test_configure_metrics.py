"""``configure_metrics`` in a fresh process a case, because the global provider can be set only once."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from sagaspan import Guard
from sagaspan.exceptions import ConfigurationError
from sagaspan.telemetry import configure_metrics

SOURCE = str(Path(__file__).parents[2] / "src")
PREAMBLE = """
from opentelemetry import metrics
from sagaspan.telemetry import configure_metrics
counter = metrics.get_meter("t").create_counter("made.before")
"""


def run(script: str, *arguments: str, **environment: str) -> str:
    """Run ``script`` after the preamble; its output."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("OTEL_", "SAGASPAN_"))}
    result = subprocess.run(
        [sys.executable, "-c", PREAMBLE + script, *arguments],
        env={**clean, "PYTHONPATH": SOURCE, "NO_PROXY": "127.0.0.1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


class Collector(ThreadingHTTPServer):
    """A loopback OTLP/HTTP endpoint that keeps what it gets."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receive)
        self.resources: list[dict[str, str]] = []
        self.names: set[str] = set()


class _Receive(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        for part in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            self.server.resources.append({pair.key: pair.value.string_value for pair in part.resource.attributes})
            self.server.names |= {metric.name for scope in part.scope_metrics for metric in scope.metrics}
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_metrics_go_to_the_otlp_endpoint_when_the_program_ends(collector: Collector) -> None:
    """Also of instruments made before; each process is an instance of its own; asking twice exports once."""
    script = "assert configure_metrics('shop') is configure_metrics(); counter.add(1)"
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}"}
    for _ in range(2):
        run(script, **endpoint)
    assert collector.names >= {"made.before"}
    assert [resource["service.name"] for resource in collector.resources] == ["shop"] * 2
    assert len({resource["service.instance.id"] for resource in collector.resources}) == 2


def test_a_recovery_that_watches_counts_what_needs_a_person(collector: Collector, tmp_path: Path) -> None:
    """No agent need be alive for it: one that dies alone must be seen."""
    store = f"sqlite:///{tmp_path / 'ledger.db'}"
    with Guard(store) as guard:
        guard.freeze("tool:pay", reason="a trial")
    command = [sys.executable, "-m", "sagaspan", "recover", "--watch", "--interval", "100ms", "--store", store]
    environment = {
        **os.environ, "NO_PROXY": "127.0.0.1", "OTEL_METRIC_EXPORT_INTERVAL": "200",
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"http://127.0.0.1:{collector.server_port}/v1/metrics",
    }  # fmt: skip
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as watching:
        deadline = time.monotonic() + 300
        while "sagaspan.status.items" not in collector.names:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        watching.terminate()
        assert watching.wait(60) == 0


def test_nothing_is_made_unasked_and_a_provider_that_exists_is_left_as_it_is() -> None:
    """Without an endpoint, with none as exporter, with the SDK disabled, and where the program has its own."""
    script = """
import os, threading
kind = lambda: type(configure_metrics("shop")).__name__
assert kind() == "_ProxyMeterProvider"
os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = "http://127.0.0.1:9"
for name, value in (("OTEL_METRICS_EXPORTER", "none"), ("OTEL_SDK_DISABLED", "true")):
    os.environ[name] = value
    assert kind() == "_ProxyMeterProvider"
    del os.environ[name]
from opentelemetry.sdk.metrics import MeterProvider
mine = MeterProvider()
metrics.set_meter_provider(mine)
assert configure_metrics("shop") is mine
assert threading.active_count() == 1
"""
    run(script)


def test_a_provider_that_is_given_has_all_that_is_measured(tmp_path: Path) -> None:
    """Also of instruments that were made before, and the gauges; the global one has nothing more. None else is one."""
    script = """
import sys
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from sagaspan import ConfigurationError, Guard
def names(reader):
    data = reader.get_metrics_data()
    resources = data.resource_metrics if data is not None else ()
    metrics = [m for r in resources for scope in r.scope_metrics for m in scope.metrics if list(m.data.data_points)]
    return {m.name: sum(getattr(p, "count", getattr(p, "value", 0)) for p in m.data.data_points) for m in metrics}
everybody, ours = InMemoryMetricReader(), InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([everybody]))
with Guard(sys.argv[1]) as guard:
    pay = guard.tool("pay")(lambda: 1)
    pay()
    before = names(everybody)
    given = MeterProvider([ours])
    assert configure_metrics(meter_provider=given) is configure_metrics(meter_provider=given) is given
    pay()
    after, mine = names(everybody), names(ours)
assert before["gen_ai.execute_tool.duration"] == after["gen_ai.execute_tool.duration"] == 1, after
assert mine["gen_ai.execute_tool.duration"] == mine["sagaspan.idempotency.outcomes"] == 1, mine
assert "sagaspan.status.items" in before and "sagaspan.status.items" in mine
assert "sagaspan.status.items" not in after, after
try:
    configure_metrics(meter_provider="otlp")
except ConfigurationError as error:
    print(error)
"""
    assert "takes a MeterProvider" in run(script, f"sqlite:///{tmp_path}/ledger.db")


def test_an_unknown_protocol_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A protocol we do not have is an error that names the two we have, before anything is set."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/json")
    with pytest.raises(ConfigurationError, match="http/protobuf"):
        configure_metrics()
