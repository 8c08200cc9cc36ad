"""``configure_tracing`` in a fresh process a case, because the global provider can be set only once."""

from __future__ import annotations

import gzip
import json
import os
import socket
import subprocess
import sys
import threading
from collections import Counter
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
from sagaspan.telemetry.leaving import Patience

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = str(Path(__file__).parents[2] / "src")
PREAMBLE = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from sagaspan.telemetry import configure_tracing
from sagaspan.telemetry.leaving import Patience
def span(name="pay"):
    trace.get_tracer("t").start_span(name).end()
"""


def run(script: str, directory: Path, **environment: str) -> str:
    """Run ``script`` in ``directory``; its output."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("OTEL_", "SAGASPAN_"))}
    result = subprocess.run(
        [sys.executable, "-c", PREAMBLE + script],
        cwd=directory,
        env={**clean, "PYTHONPATH": SOURCE, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


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
    assert "tracer_provider=" in run(script, tmp_path)


def test_otel_sdk_disabled_writes_nothing(tmp_path: Path) -> None:
    """OTEL_SDK_DISABLED=true leaves no file and starts no exporter."""
    script = "import threading\nconfigure_tracing(); span(); assert threading.active_count() == 1"
    run(script, tmp_path, OTEL_SDK_DISABLED="true", OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")
    assert not (tmp_path / ".sagaspan" / "traces").exists()


def test_exporter_and_sampler_of_the_environment_are_honoured(tmp_path: Path) -> None:
    """OTEL_TRACES_EXPORTER=none exports nothing, but the file is written; OTEL_TRACES_SAMPLER says what is recorded."""
    script = """
import os, threading
provider = configure_tracing(); span("kept")
assert threading.active_count() == 1
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
assert provider.sampler is not ALWAYS_OFF
os.environ["OTEL_TRACES_SAMPLER"] = "always_off"
dropping = configure_tracing(tracer_provider=TracerProvider())
dropping.get_tracer("t").start_span("dropped").end()
os.environ["OTEL_TRACES_EXPORTER"] = "console,otlp"
configure_tracing()
assert threading.active_count() == 2
"""
    run(script, tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9", OTEL_TRACES_EXPORTER="none")
    written = "".join(path.read_text() for path in (tmp_path / ".sagaspan" / "traces").glob("*.jsonl"))
    assert "kept" in written
    assert "dropped" not in written


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
        self.goes_on = threading.Event()


class _Receive(BaseHTTPRequestHandler):
    server: Collector

    def do_GET(self) -> None:
        self.server.goes_on.set()
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        self.server.goes_on.wait(300)
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


def test_a_burst_of_50_000_spans_arrives_at_the_otlp_endpoint(tmp_path: Path, collector: Collector) -> None:
    """Each once, as protobuf, though the endpoint answers nothing before the last was made; the file has all, too."""
    script = f"""
import urllib.request
configure_tracing(); configure_tracing()
for number in range(50_000): span(f'n{{number}}')
urllib.request.urlopen("http://127.0.0.1:{collector.server_port}/go-on").read()
assert trace.get_tracer_provider().force_flush(100_000)
"""
    endpoint = f"http://127.0.0.1:{collector.server_port}"
    patient = {"OTEL_EXPORTER_OTLP_TIMEOUT": "100", "NO_PROXY": "127.0.0.1"}  # a busy machine takes its time
    run(script, tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, **patient)
    assert Counter(collector.names) == Counter(f"n{number}" for number in range(50_000))
    assert collector.paths == {"/v1/traces"}
    written = sum(path.read_bytes().count(b"\n") for path in (tmp_path / ".sagaspan" / "traces").glob("*.jsonl"))
    assert written == 50_000


@pytest.mark.parametrize("processor", ["BatchSpanProcessor", "SimpleSpanProcessor"])
def test_a_program_that_exports_otlp_itself_is_not_exported_twice(
    tmp_path: Path, collector: Collector, processor: str
) -> None:
    """Its own exporter sends each span, and the file beside the ledger has it too."""
    collector.goes_on.set()
    script = f"""
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export import {processor}
mine = TracerProvider()
mine.add_span_processor({processor}(OTLPSpanExporter()))
trace.set_tracer_provider(mine)
configure_tracing()
span()
"""
    endpoint = f"http://127.0.0.1:{collector.server_port}"
    run(script, tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, NO_PROXY="127.0.0.1")
    assert collector.names == ["pay"]
    assert len(lines(tmp_path / ".sagaspan" / "traces")) == 1


APP = """
from sagaspan import Guard
guard = Guard()
guard.tool("unbook", effect="write")(lambda: None)
book = guard.tool("book", compensate="unbook")(lambda: 1)
"""


@pytest.mark.parametrize("with_app", [True, False])
def test_commands_that_act_send_what_they_do(tmp_path: Path, collector: Collector, *, with_app: bool) -> None:
    """`compensate` and `recover` run tools and end runs: their spans arrive where an endpoint is set."""
    collector.goes_on.set()
    (tmp_path / "app.py").write_text(APP)
    run("from app import *\nwith guard.run('trip', id='trip'): book()", tmp_path, PYTHONPATH=f"{SOURCE}:{tmp_path}")
    assert collector.names == []
    endpoint = f"http://127.0.0.1:{collector.server_port}"
    environment = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{endpoint}/v1/traces", "NO_PROXY": "127.0.0.1"}
    command = (
        "import sys; sys.argv = ['sagaspan', {}]; from sagaspan.cli import main\ntry: main()\nexcept SystemExit: pass"
    )
    options = ["--app", "app"] if with_app else []
    run(command.format(str(["compensate", "trip", "--yes", *options])[1:-1]), tmp_path, **environment)
    if not with_app:
        run(command.format("'recover', '--app', 'app'"), tmp_path, **environment)
    assert Counter(collector.names)["execute_tool unbook"] == 1
    assert "sagaspan trip" in collector.names


def test_otlp_is_imported_only_when_asked_for(tmp_path: Path) -> None:
    """Without an endpoint no exporter is imported."""
    script = """
import sys
configure_tracing()
print([name for name in sys.modules if "exporter.otlp" in name or name == "duckdb"])
"""
    assert run(script, tmp_path).strip() == "[]"


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
    assert run(script, tmp_path, **good) == ""
    assert "OTEL_BSP" in run(script, tmp_path, **good, OTEL_BSP_MAX_EXPORT_BATCH_SIZE="2000")


def test_an_unknown_protocol_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A protocol we do not have is an error that names the two we have."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
    with pytest.raises(ConfigurationError, match="http/protobuf"):
        configure_tracing(directory=tmp_path, tracer_provider=TracerProvider(shutdown_on_exit=False))


LEAVING = """
import atexit, threading, time
waits, join = [], threading.Thread.join
def joined(thread, timeout=None):
    waits.append(float("inf") if timeout is None else timeout)
    join(thread, timeout)
# The first that is registered is the last that is called.
atexit.register(lambda: print(time.monotonic() - began, sum(waits)))
from opentelemetry import metrics
from sagaspan.telemetry import configure_metrics
configure_tracing()
configure_metrics()
counter = metrics.get_meter("t").create_counter("c")
for _ in range(2000):
    span()
    counter.add(1)
threading.Thread.join = joined
began = time.monotonic()
"""


@pytest.mark.parametrize(("protocol", "behaviour"), [("http/protobuf", "hangs"), ("grpc", "refuses")])
def test_a_dead_endpoint_does_not_hold_up_the_exit(tmp_path: Path, protocol: str, behaviour: str) -> None:
    """A program that sends spans and metrics to nobody, or to who never answers, ends in two seconds; the file has all.

    It waits for no thread longer than that together, which holds on a busy machine too; `bench_exit` has what it took.
    """
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if behaviour == "hangs":
            listener.listen()
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
        took, waited = map(float, run(LEAVING, tmp_path, **environment).split())
    assert 0 < waited < 2.0
    assert took < 10.0  # the SDK's own is half a minute for each exporter
    assert len(lines(tmp_path / ".sagaspan" / "traces")) == 2000


def test_all_exporters_have_two_seconds_together() -> None:
    """Each has an equal share of what is left when its turn comes; long after that there is all of it again."""
    now = [100.0]
    patience = Patience(lambda: now[0])
    for _ in range(2):
        patience.join()
    assert patience.take_ms() == 950
    now[0] += 0.25  # it needed less
    assert patience.take_ms() == 1650
    patience.join()
    now[0] += 60
    assert patience.take_ms() == 1900


def test_how_spans_are_synced_is_read_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``SAGASPAN_TRACE_FSYNC``; a word that means nothing is refused where tracing is set up."""
    provider = TracerProvider(shutdown_on_exit=False)
    monkeypatch.setenv("SAGASPAN_TRACE_FSYNC", "sometimes")
    with pytest.raises(ConfigurationError, match="'always'"):
        configure_tracing(directory=tmp_path, tracer_provider=provider)
    monkeypatch.setenv("SAGASPAN_TRACE_FSYNC", "always")
    synced: list[int] = []
    monkeypatch.setattr("sagaspan.telemetry.sink._to_disk", synced.append)
    configure_tracing(directory=tmp_path, tracer_provider=provider)
    provider.get_tracer("t").start_span("a").end()
    assert len(synced) == 1
