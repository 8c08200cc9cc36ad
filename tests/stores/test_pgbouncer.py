"""A real PgBouncer before the server: refused, unless it is said that it keeps a session for its client."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from sagaspan import ConfigurationError, Guard, StoreUnavailable
from tests.own_servers import START_SECONDS, free_port, is_reached
from tests.servers import Postgres, missing

_PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextlib.contextmanager
def _bouncer(url: str, mode: str) -> Iterator[str]:
    """The URL of the ledger through a PgBouncer of this ``pool_mode``."""
    if _PROGRAM is None:
        missing("there is no pgbouncer; Debian's package of this name has it")
    parts, port = urlsplit(url), free_port()
    with tempfile.TemporaryDirectory(prefix="sagaspan-bouncer-") as folder:
        settings = Path(folder, "pgbouncer.ini")
        settings.write_text(
            f"[databases]\n* = host={parts.hostname} port={parts.port} user={parts.username}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
            f"pool_mode = {mode}\n"
        )
        as_user = []
        if os.geteuid() == 0:
            as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", "--pdeathsig=KILL"]
            shutil.chown(folder, "postgres", "postgres")
            shutil.chown(settings, "postgres", "postgres")
        process = subprocess.Popen(
            [*as_user, _PROGRAM, str(settings)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            until = time.monotonic() + START_SECONDS
            while not is_reached(port):
                assert process.poll() is None, "it did not start"
                assert time.monotonic() < until, "it did not start"
                time.sleep(0.01)
            yield url.replace(f":{parts.port}/", f":{port}/")
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize("mode", ["transaction", "statement", "session"])
def test_a_pooler_is_refused(postgres: Postgres, mode: str) -> None:
    """Before anything runs, whatever its mode: nobody can see that from here, and it may give our settings away."""
    with _bouncer(postgres.url, mode) as url, Guard(url) as guard:
        act = guard.tool("act", effect="write")(lambda n: pytest.fail("ran"))
        with pytest.raises(StoreUnavailable, match=r"pooler \(PgBouncer\?\).*\?pooler=session") as caught:
            act(1)
        assert caught.value.tool_ran == "no"


def test_a_pooler_of_sessions_is_as_the_server(postgres: Postgres) -> None:
    """Where it is said that it keeps them: settings and prepared statements stay, and everything works."""
    ran: list[int] = []
    with _bouncer(postgres.url, "session") as through:
        url = f"{through}&pooler=session"
        for turn in range(2):  # the second guard has the sessions of the first one, reset
            with Guard(url, budgets={"user:*": "9 USD"}) as guard:
                pay = guard.tool("pay", effect="write", cost="1 USD")(ran.append)
                with guard.run(id=f"r{turn}", user="ada"):
                    for n in range(3):
                        pay(n)
                assert guard.usage(user="ada").spent == 3 * turn + 3
    assert ran == [0, 1, 2] * 2


def test_another_mode_of_a_pooler_is_refused() -> None:
    """In the URL already."""
    with pytest.raises(ConfigurationError, match="only \\?pooler=session is"):
        Guard("postgresql://user@host/database?pooler=transaction").calls.list()
