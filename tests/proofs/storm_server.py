"""The server of a storm's ledger, restarted while the storm goes on: told to end, stopped without a word, killed.

PostgreSQL writes what nobody waits for to its log ten seconds late, so each crash loses as much as can be lost. On
MariaDB everybody waits for every commit: there a crash cuts connections, and loses what was not committed.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.own_servers import Server, ended_by_sigterm, mariadb_server, postgres_server

AWAY_SECONDS: Final = 0.5
"""How long it is not there after a SIGKILL, beside the time it takes to start."""

FIRST: Final = 0.7
"""Over which share of the orders."""
WAITING: Final = 0.2
"""Which share waits for the last restart: however quick the workers are, the storm is not over before."""

KINDS: Final[Mapping[str, Callable[[], contextlib.AbstractContextManager[Server]]]] = {
    "postgres": lambda: postgres_server("wal_writer_delay=10s"),
    "mariadb": mariadb_server,
}
"""Which servers there can be."""


@dataclass(kw_only=True)
class Restarts:
    """Restarts a server ``left`` times, evenly over the first orders; ``url`` is its, None without a restart."""

    left: int
    server: Server | None = None
    say: Callable[[str], None]
    done: int = 0
    hows: Iterator[str] = field(default_factory=lambda: itertools.cycle(("fast", "immediate", "kill")))

    @property
    def url(self) -> str | None:
        """Where the ledgers are."""
        return self.server.url if self.server is not None else None

    def __call__(self, share: float) -> float:
        """Restart it, if such a share of the orders is over that the next restart is due; which share is to wait."""
        if self.server is not None and self.left and share >= FIRST * (self.done + 0.5) / (self.done + self.left):
            self._restart(self.server)
        return WAITING if self.left else 0.0

    def _restart(self, server: Server) -> None:
        how = next(self.hows)
        self.left -= 1
        self.done += 1
        started = time.monotonic()
        if how == "kill":
            server.kill()
            time.sleep(AWAY_SECONDS)
            server.start()
        else:
            server.restart(how)
        self.say(f"  the server was restarted ({how}), and away for {time.monotonic() - started:.1f} s")


@contextlib.contextmanager
def restarted(count: int, kind: str, say: Callable[[str], None]) -> Iterator[Restarts]:
    """What restarts a new server of that ``kind`` ``count`` times; without a server for none."""
    if not count:
        yield Restarts(left=0, say=say)
        return
    ended_by_sigterm()
    with KINDS[kind]() as server:
        yield Restarts(left=count, server=server, say=say)
