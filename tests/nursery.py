"""Processes for tests: forks of one that has imported everything, 20 times faster than new interpreters."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import connection
from typing import IO, Any

# It has one thread and opens no ledger. What it forks goes on below `serve()`, and ends as an interpreter ends.
SERVER = """
import asyncio, gc, json, os, select, signal, socket, struct, sys, traceback
import sagaspan._guard, sagaspan.cli, sagaspan.stores.sqlite
from sagaspan import *
def serve():
    door = socket.socket(fileno=int(sys.argv[1]))
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    reports = {}
    while True:
        ready, _, _ = select.select([door, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            for child in list(reports):
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    tell(reports.pop(child), os.waitstatus_to_exitcode(status), True)
        if door in ready:
            said, fds, _, _ = socket.recv_fds(door, 1, 5)
            if not said:
                os._exit(0)
            child = os.fork()
            if child == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                return become(fds)
            tell(fds[4], child, False)
            reports[child] = fds[4]
            for fd in fds[:4]:
                os.close(fd)
def tell(report, number, last):
    try:
        os.write(report, struct.pack("q", number))
    except BrokenPipeError:
        pass
    if last:
        os.close(report)
def become(fds):
    with open(fds[0], closefd=False) as file:
        file.seek(0)
        job = json.load(file)
    os.environ.clear()
    os.environ.update(job["environment"])
    os.chdir(job["folder"])
    for number, fd in enumerate(fds[1:4]):
        os.dup2(fd, number)
    os.closerange(3, 1024)
    return job["script"]
gc.collect()
gc.freeze()  # what was imported: going through it all was three quarters of what a fork took, at its end
exec(serve(), {"__name__": "__main__"})
"""


class Forked:
    """A process of the nursery, to be used as a ``subprocess.Popen`` with three text pipes."""

    def __init__(self, report: int, pipes: tuple[IO[str], IO[str], IO[str]] | None) -> None:
        self._report = report
        self.pid = self._told()
        self.returncode: int | None = None
        self.stdin, self.stdout, self.stderr = pipes or (None, None, None)

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raises ``subprocess.TimeoutExpired``."""
        if self.returncode is None:
            if not connection.wait([self._report], timeout):  # select() refuses a file number of 1024 or more
                raise subprocess.TimeoutExpired("a worker", timeout or 0.0)
            self.returncode = self._told()
            os.close(self._report)
        return self.returncode

    def communicate(self, said: str | None = None, timeout: float | None = None) -> tuple[str, str]:
        """Tell it ``said``, and wait for its end; returns what it said."""
        with ThreadPoolExecutor(2) as readers:
            rests = [readers.submit(_rest, file) for file in (self.stdout, self.stderr)]
            with contextlib.suppress(BrokenPipeError):
                if said is not None:
                    self.stdin.write(said)
                self.stdin.close()
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
            out, err = (rest.result() for rest in rests)
        return out, err

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def _told(self) -> int:
        number: int
        (number,) = struct.unpack("q", os.read(self._report, 8))
        return number


def _rest(file: IO[str]) -> str:
    if file.closed:
        return ""
    with file:
        return file.read()


class Nursery:
    """A process that forks workers, with ``imports`` made before; it ends when this is closed."""

    def __init__(self, imports: str = "") -> None:
        self._door, door = socket.socketpair()
        with door:
            self._process = subprocess.Popen(
                [sys.executable, "-c", imports + SERVER, str(door.fileno())],
                pass_fds=[door.fileno()],
                stdin=subprocess.DEVNULL,
            )

    def close(self) -> None:
        """Let it end."""
        self._door.close()
        self._process.wait()

    def start(self, script: str, environment: Mapping[str, str], folder: str) -> Forked:
        """A process that runs ``script``, with pipes."""
        (stdin, to), (out, stdout), (err, stderr) = os.pipe(), os.pipe(), os.pipe()
        pipes = (os.fdopen(to, "w", buffering=1), os.fdopen(out), os.fdopen(err))
        try:
            return self._fork(script, environment, folder, (stdin, stdout, stderr), pipes)
        finally:
            for fd in (stdin, stdout, stderr):
                os.close(fd)

    def run(self, script: str, environment: Mapping[str, str], folder: str) -> subprocess.CompletedProcess[str]:
        """Run ``script`` to its end, or its death, whoever it leaves behind with its output."""
        nothing = os.open(os.devnull, os.O_RDONLY)
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            code = self._fork(script, environment, folder, (nothing, out.fileno(), err.fileno()), None).wait()
            os.close(nothing)
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess([], code, out.read(), err.read())

    def _fork(
        self, script: str, environment: Mapping[str, str], folder: str, fds: tuple[int, int, int], pipes: Any
    ) -> Forked:
        report, reporter = os.pipe()
        with tempfile.TemporaryFile("w+") as job:
            json.dump({"script": script, "environment": dict(environment), "folder": folder}, job)
            job.flush()
            socket.send_fds(self._door, [b"!"], [job.fileno(), *fds, reporter])
            os.close(reporter)
            return Forked(report, pipes)
