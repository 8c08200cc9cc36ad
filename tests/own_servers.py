"""Database servers of a test's own, on the loopback: started, stopped, killed, started again.

Each is one of Debian's packages (``postgresql``, ``mariadb-server``), in a temporary folder, without fsync (benchmarks
ask for it); it ends with who started it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from sagaspan import StoreUnavailable

START_SECONDS: Final = 60


class Server(Protocol):
    """A server of our own: how it is stopped and started, as after a crash or for an update."""

    @property
    def url(self) -> str:
        """Where it is, also after it was started again."""

    def restart(self, how: str = "immediate") -> None:
        """Stop it, and start it where it was; without a word to anybody, unless ``how`` is ``fast``."""

    def stop(self) -> None:
        """It is not there any more, as after a crash."""

    def start(self) -> None:
        """It is there again."""

    def kill(self) -> None:
        """SIGKILL, to all of its processes at once."""


@dataclass(frozen=True)
class PostgresServer:
    """A PostgreSQL server, by ``pg_ctl``."""

    url: str
    control: Callable[..., None]
    data: Path

    def restart(self, how: str = "immediate") -> None:
        """See ``Server.restart``."""
        self.control("-m", how, "restart")

    def stop(self) -> None:
        """See ``Server.stop``."""
        self.control("-m", "immediate", "stop")

    def start(self) -> None:
        """See ``Server.start``."""
        self.control("start")

    def kill(self) -> None:
        """See ``Server.kill``."""
        main = int((self.data / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        for pid in (main, *map(int, children)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while any(Path(f"/proc/{pid}/stat").exists() for pid in (main, *children)):
            time.sleep(0.005)  # else the next start finds its memory in use


class MariadbServer:
    """A MariaDB server: one process, a child of ours, that ends with the thread that started it."""

    def __init__(self, url: str, command: Sequence[str], folder: str) -> None:
        self.url = url
        self._command, self._folder = command, folder
        self._log = Path(folder, "log")
        self._process: subprocess.Popen[bytes] | None = None

    def restart(self, how: str = "immediate") -> None:
        """See ``Server.restart``."""
        self._end(signal.SIGTERM if how == "fast" else signal.SIGKILL)
        self.start()

    def stop(self) -> None:
        """See ``Server.stop``."""
        self._end(signal.SIGKILL)

    def kill(self) -> None:
        """See ``Server.kill``."""
        self._end(signal.SIGKILL)

    def start(self) -> None:
        """See ``Server.start``."""
        with self._log.open("a") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT, cwd=self._folder)
        self._wait_for(self._process)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()

    def _wait_for(self, process: subprocess.Popen[bytes]) -> None:
        from sagaspan.stores.mariadb import MariadbStore  # who tests an adapter alone has no driver

        said: StoreUnavailable | None = None
        until = time.monotonic() + START_SECONDS
        while process.poll() is None and time.monotonic() < until:
            try:
                MariadbStore(self.url)._connect(create=True).close()
            except StoreUnavailable as error:
                said = error
                time.sleep(0.05)
            else:
                return
        raise RuntimeError(f"the server did not start ({said}):\n{self._log.read_text()}")


def free_port() -> int:
    """A port of the loopback that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_reached(port: int) -> bool:
    """Whether somebody listens there."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _as_user(name: str, *more: str) -> list[str]:
    """How a command of the server is run: not by root, whom it refuses."""
    return ["setpriv", f"--reuid={name}", f"--regid={name}", "--init-groups", *more] if os.geteuid() == 0 else []


@contextlib.contextmanager
def postgres_server(*settings: str, fsync: bool = False, hosts: Sequence[str] = ()) -> Iterator[PostgresServer]:
    """A new server; ends it afterwards.

    ``fsync``: what is committed is on disk, as where it matters; ``settings`` beside it: ``wal_writer_delay=10s``;
    ``hosts``: networks that it trusts, and listens to, beside this machine.
    """
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin"))[-1]
    with tempfile.TemporaryDirectory(prefix="sagaspan-pg-") as folder:
        as_user = _as_user("postgres")
        if as_user:
            shutil.chown(folder, "postgres", "postgres")
        port = free_port()
        quiet: dict[str, Any] = {"check": True, "stdout": subprocess.DEVNULL, "cwd": folder}
        program = [*as_user, str(binaries / "pg_ctl"), "-D", f"{folder}/data", "-w", "-l", f"{folder}/log"]
        subprocess.run([*as_user, str(binaries / "initdb"), "-D", f"{folder}/data", "-A", "trust", "-E", "UTF8",
                        "--locale=C", "--no-sync", "-U", "postgres"], **quiet)  # fmt: skip
        wanted = (f"port={port}", f"unix_socket_directories={folder}",
                  f"listen_addresses={'*' if hosts else '127.0.0.1'}",
                  f"fsync={'on' if fsync else 'off'}", "max_connections=500", *settings)  # fmt: skip
        options = " ".join(f"-c {one}" for one in wanted)
        with Path(folder, "data", "pg_hba.conf").open("a") as trusted:
            trusted.writelines(f"host all all {network} trust\n" for network in hosts)

        def control(*arguments: str) -> None:
            subprocess.run([*program, "-o", options, *arguments], **quiet)

        control("start")
        try:
            yield PostgresServer(f"postgresql://postgres@127.0.0.1:{port}/postgres", control, Path(folder, "data"))
        finally:
            with contextlib.suppress(subprocess.CalledProcessError):  # a test stopped it
                control("-m", "immediate", "stop")


@contextlib.contextmanager
def mariadb_server(*, hosts: Sequence[str] = ()) -> Iterator[MariadbServer]:
    """A new server; ends it afterwards. ``hosts``: if any, it listens to other machines, too."""
    with tempfile.TemporaryDirectory(prefix="sagaspan-maria-") as folder:
        as_user = _as_user("mysql", "--pdeathsig=KILL")
        init = Path(folder, "init.sql")
        # Without fsync the server says of itself that it syncs nothing, unless it is told otherwise.
        init.write_text(
            "create user if not exists sagaspan@'%';\n"
            "grant all on *.* to sagaspan@'%' with grant option;\n"
            "set global innodb_flush_log_at_trx_commit = 1;\n"
        )
        if as_user:
            shutil.chown(folder, "mysql", "mysql")
            shutil.chown(init, "mysql", "mysql")
        port = free_port()
        settings = [
            f"--datadir={folder}/data",
            f"--tmpdir={folder}",
            "--innodb-flush-method=nosync",
            "--innodb-log-file-size=32M",
        ]
        subprocess.run([*as_user, "mariadb-install-db", "--no-defaults", "--auth-root-authentication-method=normal",
                        "--skip-test-db", *settings], check=True, stdout=subprocess.DEVNULL, cwd=folder)  # fmt: skip
        command = [
            *as_user, "mariadbd", "--no-defaults", *settings, f"--port={port}",
            f"--bind-address={'0.0.0.0' if hosts else '127.0.0.1'}", f"--socket={folder}/socket",
            f"--pid-file={folder}/pid", f"--init-file={init}", "--max-connections=300", "--skip-name-resolve",
            "--innodb-buffer-pool-size=64M",
        ]  # fmt: skip
        server = MariadbServer(f"mysql://sagaspan@127.0.0.1:{port}/ledger", command, folder)
        try:
            server.start()
            yield server
        finally:
            server.stop()


def ended_by_sigterm() -> None:
    """SIGTERM (``timeout``) ends this process as Ctrl-C does: its servers end with it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
