"""``configure_tracing`` in a fresh process a case, because the global provider can be set only once."""

from __future__ import annotations

import gzip
import json
import os
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sagaspan.exceptions import ConfigurationError
from sagaspan.telemetry import configure_tracing

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = str(Path(__file__).parents[2] / "src")
PREAMBLE = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from sagaspan.telemetry import configure_tracing
def span(name="pay"):
    trace.get_tracer("t").start_span(name).end()
"""


def run(script: str, directory: Path, **environment: str) -> tuple[str, float]:
    """Run ``script`` in ``directory``; its output, and how long it took in seconds."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("OTEL_", "SAGASPAN_"))}
    started = time.monotonic()
    result = subprocess.run(
        [sys.executable, "-c", PREAMBLE + script],
        cwd=directory,
        env={**clean, "PYTHONPATH": SOURCE, **environment},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout, time.monotonic() - started


def lines(directory: Path) -> list[dict[str, object]]:
    return [json.loads(line) for path in directory.glob("*.jsonl") for line in path.read_text().splitlines()]


def service(line: dict[str, object]) -> str:
    attributes = line["resourceSpans"][0]["resource"]["attributes"]  # type: ignore[index]
    return next(a["value"]["stringValue"] for a in attributes if a["key"] == "service.name")


def test_default_is_the_traces_folder_of_the_home(tmp_path: Path) -> None:
    """With nothing set, spans land in .sagaspan/traces, and the home is private and ignored by git."""
    run("configure_tracing('shop'); span()", tmp_path)
    (line,) = lines(tmp_path / ".sagaspan" / "traces")
    assert service(line) == "shop"
    assert (tmp_path / ".sagaspan" / ".gitignore").exists()


def test_the_environment_names_the_directory_and_the_service(tmp_path: Path) -> None:
    """SAGASPAN_TRACE_DIR, OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES are honoured."""
    environment = {
        "SAGASPAN_TRACE_DIR": str(tmp_path / "there"),
        "OTEL_SERVICE_NAME": "from-env",
        "OTEL_RESOURCE_ATTRIBUTES": "team=payments",
    }
    run("configure_tracing(); span()", tmp_path, **environment)
    (line,) = lines(tmp_path / "there")
    assert service(line) == "from-env"
    assert '"payments"' in json.dumps(line)


def test_calling_it_twice_adds_nothing_twice(tmp_path: Path) -> None:
    """One span is one line, however often and from however many threads tracing is configured."""
    script = """
import threading
threads = [threading.Thread(target=configure_tracing) for _ in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
assert configure_tracing() is configure_tracing() is trace.get_tracer_provider()
span()
"""
    run(script, tmp_path)
    assert len(lines(tmp_path / ".sagaspan" / "traces")) == 1


def test_a_provider_that_exists_is_extended_not_replaced(tmp_path: Path) -> None:
    """The program's own provider stays the global one and gets our processor."""
    script = """
from opentelemetry.sdk.resources import Resource
mine = TracerProvider(resource=Resource({"service.name": "mine"}))
trace.set_tracer_provider(mine)
assert configure_tracing('other') is mine
span()
"""
    run(script, tmp_path)
    (line,) = lines(tmp_path / ".sagaspan" / "traces")
    assert service(line) == "mine"


def test_a_foreign_provider_is_refused_with_the_remedy(tmp_path: Path) -> None:
    """A global provider that takes no processors is an error that says what to do."""
    script = """
trace.set_tracer_provider(trace.NoOpTracerProvider())
from sagaspan.exceptions import ConfigurationError
try:
    configure_tracing()
except ConfigurationError as error:
    print(error)
"""
    assert "tracer_provider=" in run(script, tmp_path)[0]


def test_otel_sdk_disabled_writes_nothing(tmp_path: Path) -> None:
    """OTEL_SDK_DISABLED=true leaves no file and starts no exporter."""
    script = "import threading\nconfigure_tracing(); span(); assert threading.active_count() == 1"
    run(script, tmp_path, OTEL_SDK_DISABLED="true", OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")
    assert not (tmp_path / ".sagaspan" / "traces").exists()


def test_a_given_provider_keeps_its_limits_and_processors(tmp_path: Path) -> None:
    """Span limits of the owner apply to our lines, and the owner's processors go on working."""
    memory = InMemorySpanExporter()
    owner = TracerProvider(
        span_limits=SpanLimits(max_span_attributes=2, max_span_attribute_length=3), shutdown_on_exit=False
    )
    owner.add_span_processor(SimpleSpanProcessor(memory))
    assert configure_tracing(directory=tmp_path, tracer_provider=owner) is owner
    owner.get_tracer("t").start_span("pay", attributes={"a": "12345", "b": "12345", "c": "12345"}).end()
    owner.shutdown()
    assert len(memory.get_finished_spans()) == 1
    (line,) = lines(tmp_path)
    span = line["resourceSpans"][0]["scopeSpans"][0]["spans"][0]  # type: ignore[index]
    assert [pair["value"] for pair in span["attributes"]] == [{"stringValue": "123"}] * 2
    assert span["droppedAttributesCount"] == 1


class Collector(ThreadingHTTPServer):
    """A loopback OTLP/HTTP endpoint that decodes what it gets."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receive)
        self.names: list[str] = []
        self.paths: set[str] = set()


class _Receive(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        request = ExportTraceServiceRequest.FromString(body)
        self.server.paths.add(self.path)
        self.server.names += [span.name for r in request.resource_spans for s in r.scope_spans for span in s.spans]
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
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


def test_spans_also_go_to_the_otlp_endpoint(tmp_path: Path, collector: Collector) -> None:
    """With an endpoint set every span of a burst arrives there as protobuf, and in the file."""
    script = "configure_tracing(); configure_tracing()\nfor number in range(5000): span(f'n{number}')"
    endpoint = f"http://127.0.0.1:{collector.server_port}"
    run(script, tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint)
    expected = [f"n{number}" for number in range(5000)]
    assert sorted(collector.names) == sorted(expected)
    assert collector.paths == {"/v1/traces"}
    assert len(lines(tmp_path / ".sagaspan" / "traces")) == 5000


def test_otlp_is_imported_only_when_asked_for(tmp_path: Path) -> None:
    """Without an endpoint no exporter is imported."""
    script = """
import sys
configure_tracing()
print([name for name in sys.modules if "exporter.otlp" in name or name == "duckdb"])
"""
    assert run(script, tmp_path)[0].strip() == "[]"


def test_otel_bsp_variables_win(tmp_path: Path, collector: Collector) -> None:
    """A batch size of the environment is kept, and a wrong one is an error that names it."""
    script = """
from sagaspan.exceptions import ConfigurationError
try:
    configure_tracing()
except ConfigurationError as error:
    print(error)
"""
    endpoint = f"http://127.0.0.1:{collector.server_port}"
    good = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_MAX_QUEUE_SIZE": "1000"}
    assert run(script, tmp_path, **good)[0] == ""
    assert "OTEL_BSP" in run(script, tmp_path, **good, OTEL_BSP_MAX_EXPORT_BATCH_SIZE="2000")[0]


def test_an_unknown_protocol_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A protocol we do not have is an error that names the two we have."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
    with pytest.raises(ConfigurationError, match="http/protobuf"):
        configure_tracing(directory=tmp_path, tracer_provider=TracerProvider(shutdown_on_exit=False))


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
@pytest.mark.parametrize("behaviour", ["refuses", "hangs"])
def test_a_dead_endpoint_does_not_hold_up_the_exit(tmp_path: Path, protocol: str, behaviour: str) -> None:
    """A program whose endpoint is down, or never answers, still ends in about two seconds; the file has all."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if behaviour == "hangs":
            listener.listen()
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        script = "import time\nconfigure_tracing()\nfor _ in range(2000): span()\nprint(time.monotonic())"
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
        printed, _ = run(script, tmp_path, **environment)
        assert time.monotonic() - float(printed) < 4.0
    assert len(lines(tmp_path / ".sagaspan" / "traces")) == 2000
