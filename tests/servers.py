"""Real database servers for the tests: found by the environment, and started on the loopback for who has none.

    uv run --all-extras python -m tests.servers -- pytest tests/stores    # starts PostgreSQL and MariaDB for it

A server is one of Debian's packages (``postgresql``, ``mariadb-server``), in a temporary folder, without fsync
(benchmarks ask for it); it ends with the command. Those that are not installed are not started.
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
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pytest

from sagaspan import StoreUnavailable

if TYPE_CHECKING:
    from sagaspan.stores.mariadb import MariadbStore
    from sagaspan.stores.postgres import PostgresStore

POSTGRES: Final = "SAGASPAN_TEST_POSTGRES"
MARIADB: Final = "SAGASPAN_TEST_MYSQL"
START_SECONDS: Final = 60
REQUIRED: Final = "SAGASPAN_REQUIRE_SERVICES"
_URLS: Final = {name: os.environ.get(name) for name in (POSTGRES, MARIADB)}  # tests run in an environment without it
_IS_REQUIRED: Final = os.environ.get(REQUIRED) == "1"


def missing(reason: str) -> NoReturn:
    """Skip the test, or fail it where nothing may be skipped."""
    if _IS_REQUIRED:
        pytest.fail(reason)
    pytest.skip(reason)


def url_of_server(variable: str = POSTGRES) -> str:
    """The URL of a server of the environment; skips the test without one, or fails it if required."""
    url = _URLS[variable]
    if url is None:
        missing(f"{variable} names no server; python -m tests.servers -- pytest ... starts one")
    return url


def _mariadb(url: str, durability: str = "normal") -> MariadbStore:
    from sagaspan.stores.mariadb import MariadbStore  # who tests an adapter alone has no driver

    return MariadbStore(url, durability=durability)


class Postgres:
    """Ledgers of this process's own (schemas) on the server of the environment; ``empty`` begins with one that is.

    See ``PostgresLedgers``.
    """

    def __init__(self) -> None:
        from sagaspan.testing._postgres_ledgers import PostgresLedgers  # who tests an adapter alone has no driver

        self._ledgers = PostgresLedgers(url_of_server())
        self._made: list[PostgresStore] = []
        self._begin()

    def _begin(self) -> None:
        self.url = self._ledgers.take()
        self.schema = self._ledgers.name_of(self.url)

    def empty(self) -> None:
        """Begin with a ledger in which nothing is, and that nobody is connected to."""
        self.close()
        self._ledgers.give_back(self.url)
        self._begin()

    def store(self, durability: str = "off") -> PostgresStore:
        """The ledger, opened again."""
        from sagaspan.stores.postgres import PostgresStore

        store = PostgresStore(self.url, durability=durability)
        self._made.append(store)
        return store

    def run(self, *statements: str) -> list[tuple[object, ...]]:
        """What somebody else does on the server; the rows of the last statement."""
        return [self._ledgers.run(self.url, statement) for statement in statements][-1]

    def close(self) -> None:
        """Close what was opened."""
        while self._made:
            self._made.pop().close()

    def drop(self) -> None:
        """Take the ledgers away, and their connections."""
        self.close()
        self._ledgers.close()


@dataclass(frozen=True)
class Server:
    """A server of our own: its ``url``, and how it is stopped and started, as after a crash or for an update."""

    url: str
    control: Callable[..., None]
    data: Path

    def restart(self, how: str = "immediate") -> None:
        """Stop it, and start it where it was; without a word to anybody, unless ``how`` is ``fast``."""
        self.control("-m", how, "restart")

    def stop(self) -> None:
        """It is not there any more."""
        self.control("-m", "immediate", "stop")

    def start(self) -> None:
        """It is there again."""
        self.control("start")

    def kill(self) -> None:
        """SIGKILL, to all of its processes at once."""
        main = int((self.data / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        for pid in (main, *map(int, children)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while any(Path(f"/proc/{pid}/stat").exists() for pid in (main, *children)):
            time.sleep(0.005)  # else the next start finds its memory in use


class Mariadb:
    """Ledgers of this process's own (databases) on the server of the environment; ``empty`` begins with one that is.

    See ``MariadbLedgers``.
    """

    def __init__(self) -> None:
        from sagaspan.testing._mariadb_ledgers import MariadbLedgers

        self._ledgers = MariadbLedgers(url_of_server(MARIADB))
        self._made: list[MariadbStore] = []
        self._begin()

    def _begin(self) -> None:
        self.url = self._ledgers.take()
        self.database = self._ledgers.name_of(self.url)

    def empty(self) -> None:
        """Begin with a ledger in which nothing is, and that nobody is connected to."""
        self.close()
        self._ledgers.give_back(self.url)
        self._begin()

    def cut(self) -> None:
        """End all connections of others to this ledger."""
        self._ledgers.cut(self.url)

    def store(self, durability: str = "off") -> MariadbStore:
        """The ledger, opened again."""
        store = _mariadb(self.url, durability=durability)
        self._made.append(store)
        return store

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """What somebody else does on the server; the rows of the last statement."""
        return self._ledgers.run(self.url, *statements)

    def close(self) -> None:
        """Close what was opened."""
        while self._made:
            self._made.pop().close()

    def drop(self) -> None:
        """Take the ledgers away, and their connections."""
        self.close()
        self._ledgers.close()


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


@contextlib.contextmanager
def postgres_server(*settings: str, fsync: bool = False, hosts: Sequence[str] = ()) -> Iterator[Server]:
    """A new server; ends it afterwards.

    ``fsync``: what is committed is on disk, as where it matters; ``settings`` beside it: ``wal_writer_delay=10s``;
    ``hosts``: networks that it trusts beside this machine.
    """
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin"))[-1]
    with tempfile.TemporaryDirectory(prefix="sagaspan-pg-") as folder:
        as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"] if os.geteuid() == 0 else []
        if as_user:
            shutil.chown(folder, "postgres", "postgres")
        port = free_port()
        quiet = {"check": True, "stdout": subprocess.DEVNULL, "cwd": folder}
        program = [*as_user, str(binaries / "pg_ctl"), "-D", f"{folder}/data", "-w", "-l", f"{folder}/log"]
        subprocess.run([*as_user, str(binaries / "initdb"), "-D", f"{folder}/data", "-A", "trust", "-E", "UTF8",
                        "--locale=C", "--no-sync", "-U", "postgres"], **quiet)  # type: ignore[call-overload] # fmt: skip
        wanted = (f"port={port}", f"unix_socket_directories={folder}", "listen_addresses=127.0.0.1",
                  f"fsync={'on' if fsync else 'off'}", "max_connections=500", *settings)  # fmt: skip
        options = " ".join(f"-c {one}" for one in wanted)
        with Path(folder, "data", "pg_hba.conf").open("a") as trusted:
            trusted.writelines(f"host all all {network} trust\n" for network in hosts)

        def control(*arguments: str) -> None:
            subprocess.run([*program, "-o", options, *arguments], **quiet)  # type: ignore[call-overload]

        control("start")
        try:
            yield Server(f"postgresql://postgres@127.0.0.1:{port}/postgres", control, Path(folder, "data"))
        finally:
            with contextlib.suppress(subprocess.CalledProcessError):  # a test stopped it
                control("-m", "immediate", "stop")


@contextlib.contextmanager
def mariadb_server() -> Iterator[str]:
    """The URL of a new server; ends it afterwards."""
    with tempfile.TemporaryDirectory(prefix="sagaspan-maria-") as folder:
        as_user = (
            ["setpriv", "--reuid=mysql", "--regid=mysql", "--init-groups", "--pdeathsig=KILL"]
            if os.geteuid() == 0
            else []
        )
        data, port, init = f"{folder}/data", free_port(), Path(folder, "init.sql")
        # Without fsync the server says of itself that it syncs nothing, unless it is told otherwise.
        init.write_text(
            "create user sagaspan@'%';\n"
            "grant all on *.* to sagaspan@'%' with grant option;\n"
            "set global innodb_flush_log_at_trx_commit = 1;\n"
        )
        if as_user:
            shutil.chown(folder, "mysql", "mysql")
            shutil.chown(init, "mysql", "mysql")
        log = Path(folder, "log")
        settings = [f"--datadir={data}", "--innodb-flush-method=nosync", "--innodb-log-file-size=32M"]
        subprocess.run([*as_user, "mariadb-install-db", "--no-defaults", "--auth-root-authentication-method=normal",
                        "--skip-test-db", *settings], check=True, stdout=subprocess.DEVNULL, cwd=folder)  # fmt: skip
        server = subprocess.Popen(
            [*as_user, "mariadbd", "--no-defaults", *settings, f"--port={port}", "--bind-address=127.0.0.1",
             f"--socket={folder}/socket", f"--pid-file={folder}/pid", f"--init-file={init}", "--max-connections=300",
             "--skip-name-resolve", "--innodb-buffer-pool-size=64M"],
            stdout=log.open("w"), stderr=subprocess.STDOUT, cwd=folder,
        )  # fmt: skip
        try:
            url = f"mysql://sagaspan@127.0.0.1:{port}/ledger"
            _wait_for(url, server, log)
            yield url
        finally:
            server.kill()
            server.wait()


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    said: StoreUnavailable | None = None
    until = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < until:
        try:
            _mariadb(url)._connect(create=True).close()
        except StoreUnavailable as error:
            said = error
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"the server did not start ({said}):\n{log.read_text()}")


def ended_by_sigterm() -> None:
    """SIGTERM (``timeout``) ends this process as Ctrl-C does: its servers end with it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def main() -> int:
    """Run a command beside servers of its own."""
    command = sys.argv[sys.argv.index("--") + 1 :]
    ended_by_sigterm()
    with contextlib.ExitStack() as servers:
        found = dict(os.environ)
        if POSTGRES not in found and list(Path("/usr/lib/postgresql").glob("*/bin")):
            found[POSTGRES] = servers.enter_context(postgres_server()).url
        if MARIADB not in found and shutil.which("mariadbd"):
            found[MARIADB] = servers.enter_context(mariadb_server())
        return subprocess.run(command, env=found, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
