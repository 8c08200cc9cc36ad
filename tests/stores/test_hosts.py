"""Two hosts, each in a network namespace of its own, and one server: who is stopped past its lease is fenced.

Neither can look into the processes of the other, so only the lease, by the server's clock, tells them of a death.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit
from zlib import crc32

import pytest

from sagaspan import CallInfo, Guard
from sagaspan.testing._servers import ledgers_of
from tests.own_servers import Server
from tests.stores.conftest import OWN_SERVERS, own_server

_ROOT = Path(__file__).parents[2]
_WORKER = """
import os, sys, time
from sagaspan import Guard, _owner
_owner._boot_id = lambda: sys.argv[2]  # another machine: nobody here can look at its processes
guard = Guard(sys.argv[1])

@guard.tool("pay", effect="write", compensate=lambda n: print("undone", n, flush=True))
def pay(n):
    print("ran", n, flush=True)
    sys.stdin.readline()
    return n

@guard.tool("look", effect="read")
def look():
    print("looked", flush=True)
    sys.stdin.readline()

try:
    with guard.run(id="r", on_interrupt="compensate", wait=30):
        if sys.argv[3] == "look":
            look()
        pay(1)
        pay(2)
except Exception as error:
    print("ended", type(error).__name__, flush=True)
"""


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


_times = itertools.count()


def _address(host: str, end: int) -> str:
    """One ``end`` of the link to a host: who runs this test beside us has other networks."""
    network = crc32(host.encode()) % 2**14
    return f"10.213.{network // 64}.{network % 64 * 4 + end}"


@pytest.fixture
def hosts() -> Iterator[tuple[str, str]]:
    """Two network namespaces; of each link the server's end is 1, the host's 2."""
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("network namespaces are root's, and made by ip(8)")
    own = f"ss{os.getpid()}{next(_times)}"  # what was taken away a moment ago may still be there
    names = (f"{own}a", f"{own}b")
    try:
        try:
            for name in names:
                _ip("netns", "add", name)
                _ip("link", "add", f"v{name}", "type", "veth", "peer", "name", "eth0", "netns", name)
                _ip("addr", "add", f"{_address(name, 1)}/30", "dev", f"v{name}")
                _ip("link", "set", f"v{name}", "up")
                _ip("-n", name, "addr", "add", f"{_address(name, 2)}/30", "dev", "eth0")
                _ip("-n", name, "link", "set", "eth0", "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this system makes no network namespaces ({error.stderr.decode().strip()})")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@pytest.fixture(params=OWN_SERVERS)
def server(request: pytest.FixtureRequest, hosts: tuple[str, str]) -> Iterator[Server]:
    """A server of each kind that both reach."""
    with own_server(request.param, hosts=["10.213.0.0/16"]) as server:
        yield server


def _start(url: str, host: str, number: int, first: str = "pay") -> subprocess.Popen[str]:
    parts = urlsplit(url)
    there = url.replace(str(parts.hostname), _address(host, 1))
    return subprocess.Popen(
        ["ip", "netns", "exec", host, sys.executable, "-c", _WORKER, there, f"boot-{number}", first],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT,
        env={**os.environ, "SAGASPAN_LEASE_SECONDS": "1.5"},
    )  # fmt: skip


def _says(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _call(guard: Guard) -> CallInfo:
    """The only one that there ever is."""
    run = guard.runs.get("r")
    assert run is not None
    (call,) = run.calls
    return call


def test_a_host_that_was_stopped_past_its_lease_is_fenced(server: Server, hosts: tuple[str, str]) -> None:
    """Another host takes its run over and does not repeat what is in doubt; the first, awake again, starts nothing."""
    url = ledgers_of(server.url).take()
    first = _start(url, hosts[0], 0)
    second = None
    try:
        assert _says(first) == "ran 1"
        first.send_signal(signal.SIGSTOP)
        with Guard(url) as guard:
            deadline = time.monotonic() + 300
            while _call(guard).state == "running" and time.monotonic() < deadline:
                time.sleep(0.1)
                guard.recover()
            assert _call(guard).state == "unknown"
            second = _start(url, hosts[1], 1)
            assert _says(second).startswith("ended OutcomeUnknown")
            first.send_signal(signal.SIGCONT)
            first.communicate("\n")
            assert _call(guard).state == "done"  # what it returned is evidence, and the second call of it never ran
    finally:
        for process in (first, second):
            if process is not None:
                process.kill()
                process.communicate()


def test_a_host_that_was_stopped_starts_nothing_beside_the_one_that_goes_on(
    server: Server, hosts: tuple[str, str]
) -> None:
    """Its run is under way again elsewhere when it wakes up: what it does next is of an epoch that is over."""
    url = ledgers_of(server.url).take()
    first = _start(url, hosts[0], 0, "look")
    second = None
    try:
        assert _says(first) == "looked"
        first.send_signal(signal.SIGSTOP)
        second = _start(url, hosts[1], 1, "look")
        assert _says(second) == "looked"
        first.send_signal(signal.SIGCONT)
        out, _ = first.communicate("\n\n\n")
        assert out.startswith("ended ")
        assert second.communicate("\n\n\n")[0] == "ran 1\nran 2\n"
        with Guard(url) as guard:
            run = guard.runs.get("r")
            assert run is not None
            assert (run.status, [(call.tool, call.state) for call in run.calls]) == (
                "completed", [("look", "done"), ("pay", "done"), ("pay", "done")],
            )  # fmt: skip
    finally:
        for process in (first, second):
            if process is not None:
                process.kill()
                process.communicate()
