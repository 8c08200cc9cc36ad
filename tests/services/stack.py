"""A Collector, a backend and Prometheus as processes on free ports of the loopback, waited for, never left behind."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.services.asking import eventually, get
from tests.services.backends import Backend, DesktopViewer, Jaeger
from tests.services.programs import VIEWER, found

ROOT: Final = Path(__file__).parents[2]
_die_with_parent: Final = getattr(ctypes.CDLL(None), "prctl", None)


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
            self._process.wait(60)
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
        self.otlp_grpc, self.otlp, self.metrics, self.health, self.itself, *others = free_ports(10)
        self.backend_otlp, self._backend, self._backend_other, self._prometheus, self.exporter = others
        shows = Jaeger if found("jaeger") else DesktopViewer
        self.backend: Backend = shows(self._backend)

    def start(self) -> None:
        """Start them, and wait until each answers."""
        self.start_backend()
        self.start_collector()
        self.start_prometheus()

    def start_backend(self) -> Server:
        """Jaeger, or what stands in for it, with nothing in it."""
        if isinstance(self.backend, Jaeger):
            ports = {"OTLP": self.backend_otlp, "HTTP": self._backend, "GRPC": self._backend_other}
            environment = {f"JAEGER_{name}": str(port) for name, port in ports.items()}
            config = str(ROOT / "tests" / "services" / "jaeger.yaml")
            return self._started("jaeger", ["--config", config], f"{self.backend.url}/api/services", environment)
        ports = {"grpc": self.backend_otlp, "http": self._backend_other, "browser-port": self._backend}
        arguments = [f"--{name}={port}" for name, port in ports.items()]
        arguments += ["--host=127.0.0.1", "--open-browser=false"]
        return self._started(VIEWER, arguments, f"http://127.0.0.1:{self._backend}/", {})

    def start_collector(self, **settings: str) -> Server:
        """The Collector with the configuration that is shipped; ``settings`` are its variables."""
        environment = {
            "OTELCOL_OTLP_GRPC": f"127.0.0.1:{self.otlp_grpc}",
            "OTELCOL_OTLP_HTTP": f"127.0.0.1:{self.otlp}",
            "OTELCOL_BACKEND": f"127.0.0.1:{self.backend_otlp}",
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

    def start_prometheus(self) -> None:
        """Prometheus with the configuration that is shipped, but for the places and the pace."""
        text = (ROOT / "dashboards" / "prometheus.yaml").read_text()
        for shipped, here in (
            ("collector:8889", f"127.0.0.1:{self.metrics}"),
            ("collector:8888", f"127.0.0.1:{self.itself}"),
            ("scrape_interval: 15s", "scrape_interval: 4s\n  scrape_timeout: 4s\n  evaluation_interval: 1s"),
            ("host.docker.internal:9464", f"127.0.0.1:{self.exporter}"),
            ("[alerts.yaml]", f"[{ROOT / 'dashboards' / 'alerts.yaml'}]"),
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
