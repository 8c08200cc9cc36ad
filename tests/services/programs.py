"""Where the programs come from that these tests start; ``python -m tests.services.programs`` gets what is missing.

The Collector is built from ``otelcol.yaml``, Jaeger from its source, both with Go and the module proxy; Prometheus is
unpacked from the distribution's package, so that no service of it is started. Where Jaeger cannot be had, or not in
time, a smaller viewer stands in for it. They stay in a cache outside the tree, by the versions and the manifest that
they were made of.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

MANIFEST: Final = Path(__file__).with_name("otelcol.yaml")
BUILDER: Final = "go.opentelemetry.io/collector/cmd/builder@v0.159.0"
# Jaeger 2.13.0 and 1.76.0 are one commit. The tags v2.* are no versions to Go, whose modules of that number end in /v2,
# and the module proxy has no other commit; what it has under this tag has Jaeger 2 in cmd/jaeger.
JAEGER: Final = "github.com/jaegertracing/jaeger@v1.76.0"
STAND_IN: Final = "github.com/CtrlSpice/otel-desktop-viewer@v0.4.1"
VIEWER: Final = STAND_IN.rpartition("/")[2]  # with its version, by which alone it is cached
VIEWER_SECONDS: Final = 600
PROGRAMS: Final = ("otelcol", "jaeger", "prometheus", "promtool")


def _go() -> str:
    """Go, on the path or where its installer puts it."""
    return shutil.which("go") or "/usr/local/go/bin/go"


def kept(what: str, made_of: bytes) -> Path:
    """The folder, outside the tree, of what is made of exactly this."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "sagaspan-ci" / f"{what}-{hashlib.sha256(made_of).hexdigest()[:12]}"


def cache() -> Path:
    """The folder of these programs, in these versions."""
    return kept("services", MANIFEST.read_bytes() + f"{BUILDER} {JAEGER}".encode())


def found(name: str) -> Path | None:
    """The program of this name, if it is there."""
    path = cache() / name
    if path.is_file():
        return path
    elsewhere = shutil.which(name) if name in ("prometheus", "promtool") else None
    return Path(elsewhere) if elsewhere else None


def missing() -> list[str]:
    """The programs that are not there; Jaeger is, where something stands in for it."""
    return [name for name in PROGRAMS if found(name) is None and not (name == "jaeger" and found(VIEWER))]


def stand_in() -> str | None:
    """What to say where the tests run with something else than Jaeger."""
    return "viewer: otel-desktop-viewer instead of Jaeger" if found("jaeger") is None and found(VIEWER) else None


def install(seconds: float) -> list[str]:
    """Get what is missing, for at most so many seconds; the names of what is still missing.

    Where only Jaeger is, the viewer that stands in for it has ``VIEWER_SECONDS`` of its own.
    """
    until = time.monotonic() + seconds
    for name, how in (("prometheus", _prometheus), ("otelcol", _otelcol), ("jaeger", _jaeger)):
        _had(name, how, until)
    if missing() == ["jaeger"]:
        _had(VIEWER, _viewer, time.monotonic() + VIEWER_SECONDS)
    return missing()


def _had(name: str, how: Callable[[Path, float], dict[str, Path]], until: float) -> None:
    """Get one program, unless it is there."""
    if found(name) is not None:
        print(f"{name}: found")
        return
    started = time.monotonic()
    try:
        _made(how, until)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"{name}: {error}")
    print(f"{name}: {'made' if found(name) else 'MISSING'} after {time.monotonic() - started:.0f} s", flush=True)


def _made(how: Callable[[Path, float], dict[str, Path]], until: float) -> None:
    """Make programs in a folder of their own; only whole ones come into the cache."""
    cache().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache(), prefix=".making-") as folder:
        for name, path in how(Path(folder), until).items():
            path.replace(cache() / name)


def _otelcol(folder: Path, until: float) -> dict[str, Path]:
    _run([_go(), "install", BUILDER], folder, until, GOBIN=str(folder))
    shutil.copy(MANIFEST, folder)
    path = f"{Path(_go()).parent}{os.pathsep}{os.environ['PATH']}"
    _run([str(folder / "builder"), "--config", MANIFEST.name], folder, until, PATH=path)
    return {"otelcol": folder / "otelcol-sagaspan" / "otelcol-sagaspan"}


def _jaeger(folder: Path, until: float) -> dict[str, Path]:
    return {"jaeger": _built(JAEGER, "./cmd/jaeger", folder, until, cgo=False)}


def _viewer(folder: Path, until: float) -> dict[str, Path]:
    # DuckDB is in it, as a library of C.
    return {VIEWER: _built(STAND_IN, ".", folder, until, cgo=True)}


def _built(module: str, package: str, folder: Path, until: float, *, cgo: bool) -> Path:
    """A program of Go, made in a copy of its source.

    Not by `go install`, which takes no module that replaces another, and asks the proxy for more than that module.
    """
    listed = _run([_go(), "mod", "download", "-json", module], folder, until)
    source = folder / "source"
    shutil.copytree(json.loads(listed)["Dir"], source, copy_function=shutil.copyfile)
    for place, _, _ in os.walk(source):
        Path(place).chmod(0o755)
    program = folder / "program"
    build = [_go(), "build", "-trimpath", "-ldflags=-s -w", "-o", str(program), package]
    _run(build, source, until, CGO_ENABLED=str(int(cgo)))
    return program


def _prometheus(folder: Path, until: float) -> dict[str, Path]:
    try:
        _run(["apt-get", "download", "-q", "prometheus"], folder, until)
    except subprocess.CalledProcessError:
        _run(["apt-get", "update", "-q"], folder, until)
        _run(["apt-get", "download", "-q", "prometheus"], folder, until)
    (package,) = folder.glob("prometheus_*.deb")
    _run(["dpkg", "-x", str(package), "unpacked"], folder, until)
    return {name: folder / "unpacked" / "usr" / "bin" / name for name in ("prometheus", "promtool")}


def _run(command: list[str], folder: Path, until: float, **environment: str) -> str:
    """Run a command to its end, or until the time is up, with all that it started; its output."""
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, complained = process.communicate(timeout=max(until - time.monotonic(), 1))
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        print(said[-2000:], complained[-4000:], sep="\n")
        raise subprocess.CalledProcessError(process.returncode, command)
    return said


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Get the programs that tests/services starts.")
    parser.add_argument("--seconds", type=float, default=900, help="how long all of it may take (default: 900)")
    parser.add_argument("--stand-in", action="store_true", help="get nothing; say whether Jaeger has a stand-in")
    asked = parser.parse_args()
    if asked.stand_in:
        print(stand_in() or "", end="")
    elif lacking := install(asked.seconds):
        sys.exit(f"missing: {', '.join(lacking)}")
