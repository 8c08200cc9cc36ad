"""How long an endpoint that is down holds up the end of a program, metrics included; prints JSON.

    uv run python -m tests.benchmarks.bench_exit --spans 50000

A program configures tracing and metrics with our defaults, ends a burst of spans, and ends. Its end is from the last
statement to the last function that the interpreter calls. The endpoint refuses connections, takes them and never
answers, or answers 503 for ever; over HTTP and over gRPC. All spans must be in the program's own file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

PROTOCOLS: Final = ("http/protobuf", "grpc")
_PROGRAM: Final = """
import atexit, sys, time
atexit.register(lambda: print(time.monotonic() - began))  # the first that is registered is the last that is called
from opentelemetry import metrics, trace
from sagaspan import configure_metrics, configure_tracing
configure_tracing("bench")
configure_metrics("bench")
tracer, counter = trace.get_tracer("t"), metrics.get_meter("t").create_counter("c")
for _ in range(int(sys.argv[1])):
    tracer.start_span("pay").end()
    counter.add(1)
began = time.monotonic()
"""


class _Unavailable(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(503)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def refuses() -> Iterator[int]:
    """A port that nobody listens on, as long as the block lasts."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@contextlib.contextmanager
def hangs() -> Iterator[int]:
    """A port that takes connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@contextlib.contextmanager
def unavailable() -> Iterator[int]:
    """A port that answers 503; who speaks gRPC is not understood."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Unavailable)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def held(folder: Path, protocol: str, port: int, spans: int) -> tuple[float, int]:
    """Seconds that such a program's end took, and how many spans are not in its file."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "SAGASPAN_"))}
    told = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(spans)],
        env={**clean, **told, "SAGASPAN_TRACE_DIR": str(folder)}, capture_output=True, timeout=120, check=True,
    )  # fmt: skip
    written = sum(path.read_bytes().count(b"\n") for path in folder.glob("*.jsonl"))
    return float(done.stdout), spans - written


def main() -> None:
    """Print what every endpoint did."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spans", type=int, default=50_000)
    parser.add_argument("--json", action="store_true", help="nothing else is ever printed")
    options = parser.parse_args()
    seconds, lost = {}, 0
    for protocol in PROTOCOLS:
        for endpoint in (refuses, hangs, unavailable):
            name = f"{endpoint.__name__}, {protocol}"
            with tempfile.TemporaryDirectory() as folder, endpoint() as port:
                took, missing = held(Path(folder), protocol, port, options.spans)
            seconds[name] = round(took, 3)
            lost += missing
    json.dump({"spans": options.spans, "lost": lost, "held_s": seconds, "longest_s": max(seconds.values())},
              sys.stdout, indent=2)  # fmt: skip
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
