"""A Collector, Jaeger and Prometheus as processes on free ports of the loopback, waited for, and never left behind."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener

from tests.services.programs import found

T = TypeVar("T")

ROOT: Final = Path(__file__).parents[2]
PATIENCE: Final = 120.0  # seconds; a machine that is busy fails no test
_opener: Final = build_opener(ProxyHandler({}))
_die_with_parent: Final = getattr(ctypes.CDLL(None), "prctl", None)


def get(url: str, **parameters: str) -> Any:
    """The JSON at ``url``; text where it is none."""
    full = f"{url}?{urlencode(parameters)}" if parameters else url
    with _opener.open(full, timeout=30) as answer:
        text = answer.read().decode()
    try:
        return json.loads(text)
    except ValueError:
        return text


def eventually(look: Callable[[], T], what: str, patience: float = PATIENCE) -> T:
    """What ``look`` finds as soon as it is something. Raises ``AssertionError`` if it never is."""
    until = time.monotonic() + patience
    while True:
        try:
            seen, error = look(), None
        except (OSError, URLError) as refused:
            seen, error = None, refused
        if seen:
            return seen
        if time.monotonic() > until:
            raise AssertionError(f"{what}: not within {patience:.0f} s ({error or seen!r})")
        time.sleep(0.2)


def free_ports(count: int) -> list[int]:
    """Ports that nobody has at this moment, each another one."""
    doors = [socket.socket() for _ in range(count)]
    try:
        for door in doors:
            door.bind(("127.0.0.1", 0))
        return [door.getsockname()[1] for door in doors]
    finally:
        for door in doors:
            door.close()


class Server:
    """A program that runs until it is stopped; what it says goes to a file."""

    def __init__(self, name: str, arguments: list[str], folder: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        program = found(name)
        assert program is not None
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(program), *arguments],
                cwd=folder,
                env={"PATH": os.environ["PATH"], "HOME": str(folder), **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_with_its_parent,
            )

    def ready(self, url: str) -> None:
        """Wait until it answers at ``url``."""

        def answers() -> bool:
            if self._process.poll() is not None:
                raise AssertionError(f"{self.name} ended with {self._process.returncode}:\n{self.tail()}")
            return get(url) is not None

        try:
            eventually(answers, f"{self.name} answers at {url}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.tail()}") from None

    def tail(self) -> str:
        """The end of what it said."""
        return self.log.read_text(errors="replace")[-4000:]

    def kill(self) -> None:
        """End it as a crash does."""
        self._process.kill()
        self._process.wait()

    def terminate(self) -> None:
        """Ask it to end, as an operator does."""
        if self._process.poll() is None:
            self._process.terminate()

    def stop(self) -> None:
        """Ask it to end, and wait for that."""
        self.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()


def _with_its_parent() -> None:
    """Where the tests are killed, nobody is left to stop what they started."""
    if _die_with_parent is not None and sys.platform == "linux":
        _die_with_parent(1, signal.SIGKILL)


class Stack:
    """The three of them, and where they are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.traces = folder / "traces"
        self.servers: list[Server] = []
        self.otlp_grpc, self.otlp, self.metrics, self.health, self.itself, *others = free_ports(9)
        self.jaeger_otlp, self._jaeger, self._jaeger_grpc, self._prometheus = others

    def start(self) -> None:
        """Start them, and wait until each answers."""
        self.start_jaeger()
        self.start_collector()
        self._start_prometheus()

    def start_jaeger(self) -> Server:
        """Jaeger, with nothing in it."""
        ports = {"JAEGER_OTLP": self.jaeger_otlp, "JAEGER_HTTP": self._jaeger, "JAEGER_GRPC": self._jaeger_grpc}
        environment = {name: str(port) for name, port in ports.items()}
        config = str(ROOT / "tests" / "services" / "jaeger.yaml")
        return self._started("jaeger", ["--config", config], f"{self.jaeger}/api/services", environment)

    def start_collector(self, **settings: str) -> Server:
        """The Collector with the configuration that is shipped; ``settings`` are its variables."""
        environment = {
            "OTELCOL_OTLP_GRPC": f"127.0.0.1:{self.otlp_grpc}",
            "OTELCOL_OTLP_HTTP": f"127.0.0.1:{self.otlp}",
            "OTELCOL_BACKEND": f"127.0.0.1:{self.jaeger_otlp}",
            "OTELCOL_PROMETHEUS": f"127.0.0.1:{self.metrics}",
            "OTELCOL_HEALTH": f"127.0.0.1:{self.health}",
            "OTELCOL_SELF_PORT": str(self.itself),
            "OTELCOL_TRACES_DIR": str(self.traces),
            "OTELCOL_QUEUE_DIR": str(self.folder / "queue"),
            "OTELCOL_DECISION_WAIT": "2s",
            "OTELCOL_SPAN_METRICS_INTERVAL": "1s",
            **settings,
        }
        arguments = ["--config", str(ROOT / "otel-collector.yaml")]
        return self._started("otelcol", arguments, f"http://127.0.0.1:{self.health}/", environment)

    def _start_prometheus(self) -> None:
        """Prometheus with the configuration that is shipped, but for the places and the pace."""
        text = (ROOT / "dashboards" / "prometheus.yaml").read_text()
        for shipped, here in (
            ("collector:8889", f"127.0.0.1:{self.metrics}"),
            ("collector:8888", f"127.0.0.1:{self.itself}"),
            ("scrape_interval: 15s", "scrape_interval: 1s\n  scrape_timeout: 1s"),
        ):
            assert text.count(shipped) == 1
            text = text.replace(shipped, here)
        config = self.folder / "prometheus.yaml"
        config.write_text(text)
        arguments = [
            f"--config.file={config}",
            f"--storage.tsdb.path={self.folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{self._prometheus}",
            "--enable-feature=exemplar-storage",
        ]
        self._started("prometheus", arguments, f"{self.prometheus}/-/ready", {})

    def _started(self, name: str, arguments: list[str], url: str, environment: Mapping[str, str]) -> Server:
        server = Server(name, arguments, self.folder, environment)
        self.servers.append(server)
        server.ready(url)
        return server

    def stop(self) -> None:
        """Stop all of them."""
        for server in self.servers:
            server.terminate()
        for server in self.servers:
            server.stop()

    def logs(self) -> str:
        """The end of what each said."""
        return "\n".join(f"--- {server.name}\n{server.tail()}" for server in self.servers)

    @property
    def jaeger(self) -> str:
        """Jaeger's API."""
        return f"http://127.0.0.1:{self._jaeger}"

    @property
    def prometheus(self) -> str:
        """Prometheus's API."""
        return f"http://127.0.0.1:{self._prometheus}"

    @property
    def otlp_environment(self) -> dict[str, str]:
        """What an agent is told, to send its spans and metrics here."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.otlp}",
            "OTEL_METRIC_EXPORT_INTERVAL": "500",
            "OTEL_BSP_SCHEDULE_DELAY": "200",
            "NO_PROXY": "127.0.0.1",
        }

    def query(self, promql: str) -> list[dict[str, Any]]:
        """What Prometheus answers now."""
        answer = get(f"{self.prometheus}/api/v1/query", query=promql)
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def trace(self, trace_id: str) -> list[dict[str, Any]]:
        """The spans of a trace, as Jaeger's API gives them."""
        answer = get(f"{self.jaeger}/api/traces/{trace_id}")
        spans: list[dict[str, Any]] = answer["data"][0]["spans"]
        return spans
