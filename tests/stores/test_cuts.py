"""A network that is cut between a commit and its answer: what was committed is looked up, and never done twice."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from sagaspan import Guard, StoreUnavailable
from sagaspan._audit import Audit
from sagaspan.ledger.records import LeaseRecord
from sagaspan.stores import connect
from tests.servers import Mariadb, Postgres

Ledger = Postgres | Mariadb


class Wire:
    """A proxy to the server. It cuts the next connection that says ``at``: before that arrives, or after it was done.

    After: all of it reaches the server, whose answer it awaits, and nobody gets.
    """

    def __init__(self, host: str, port: int) -> None:
        self.at = b""
        self.when = "after"
        self.cuts = 0
        self.is_down = False
        self._server = host, port
        self._door = socket.create_server(("127.0.0.1", 0))
        self._ends: list[socket.socket] = []
        self.port = self._door.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, at: str, when: str) -> None:
        """Cut the next one, and let the others pass."""
        self.at, self.when = at.encode(), when

    def close(self) -> None:
        """Let nobody through any more."""
        self._door.close()
        for end in self._ends:
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._door.accept()
            except OSError:
                return
            if self.is_down:
                client.close()
                continue
            self._ends.append(client)
            try:
                server = socket.create_connection(self._server)
            except OSError:
                client.close()
                continue
            self._ends.append(server)
            silent = threading.Event()
            threading.Thread(target=self._to_server, args=(client, server, silent), daemon=True).start()
            threading.Thread(target=self._to_client, args=(client, server, silent), daemon=True).start()

    def _to_server(self, client: socket.socket, server: socket.socket, silent: threading.Event) -> None:
        while data := _received(client):
            if self.at and self.at in data:
                self.at = b""
                self.cuts += 1
                if self.when == "before":
                    break
                silent.set()
            _send(server, data)
        _end(server, client)

    def _to_client(self, client: socket.socket, server: socket.socket, silent: threading.Event) -> None:
        while (data := _received(server)) and not silent.is_set():
            _send(client, data)
        _end(server, client)


def _send(end: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):  # whoever is there has gone; that is heard next
        end.sendall(data)


def _received(end: socket.socket) -> bytes:
    try:
        return end.recv(1 << 20)
    except OSError:
        return b""


def _end(*ends: socket.socket) -> None:
    for end in ends:
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            end.close()


@pytest.fixture
def wire(server: Ledger) -> Iterator[Wire]:
    """Between us and the server."""
    parts = urlsplit(server.url)
    wire = Wire(str(parts.hostname), int(parts.port or 0))
    yield wire
    wire.close()


def _through(wire: Wire, server: Ledger) -> str:
    return server.url.replace(f":{urlsplit(server.url).port}/", f":{wire.port}/")


def _said(server: Ledger, event: str) -> str:
    """How a commit with this event in the audit trail is written."""
    return f'"event":"{event}"' if isinstance(server, Postgres) else f"'{event}'"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("event", ["run.open", "claim", "succeed", "run.complete"])
def test_a_commit_whose_answer_is_lost_is_read_again(server: Ledger, wire: Wire, event: str, when: str) -> None:
    """Each commit of a call, cut before it arrived and after it was done: one effect, one row of history, one price."""
    ran: list[int] = []
    url = _through(wire, server)
    with Guard(url, budgets={"user:*": "20 USD/day"}) as guard:
        pay = guard.tool("pay", effect="write", cost="1 USD")(ran.append)
        with guard.run(id="before", user="ada"):
            pay(0)
        wire.cut(_said(server, event), when)
        with guard.run(id="r", user="ada"):
            pay(1)
        assert wire.cuts == 1
        assert (guard.usage(user="ada").spent, guard.usage(user="ada").reserved) == (2, 0)
        assert guard.runs.get("r").status == "completed"
        assert [row.event for row in guard._store.audit_of("default", "r")] == [
            "run.open", "claim", "succeed", "run.complete"
        ]  # fmt: skip
    assert ran == [0, 1]
    assert not Audit(lambda: connect(url), "default").verify().findings


def test_a_renewal_that_is_lost_is_repeated(server: Ledger, wire: Wire) -> None:
    """The beat of the lease goes on with another connection: else its thread would end, and all leases with it."""
    # Not by a guard, whose thread may renew in between: from its third time on a statement is sent by a name alone.
    lease = LeaseRecord(owner="o", renewed_us=0, until_us=0, until_boot_us=0, ttl_us=30_000_000)
    with contextlib.closing(connect(_through(wire, server))) as store:
        for when in ("before", "after"):
            wire.cut("insert into owners", when)
            store.renew(lease)
        assert wire.cuts == 2
        assert store.lease_of("o") is not None


def test_who_cannot_find_out_starts_nothing(server: Ledger, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim that was committed and whose answer is lost for good: nothing ran, and it is in doubt, not repeated."""
    monkeypatch.setattr(
        f"sagaspan.stores.{'postgres' if isinstance(server, Postgres) else 'mariadb'}.WAIT_SECONDS", 0.0
    )
    ran: list[int] = []
    guard = Guard(_through(wire, server))
    act = guard.tool("act", effect="write")(ran.append)
    with pytest.raises(StoreUnavailable), guard.run(id="r"):
        wire.cut(_said(server, "claim"), "after")
        wire.is_down = True
        act(1)
    assert ran == []
    wire.is_down = False
    with Guard(server.url) as other:
        assert [call.state for call in other.runs.get("r").calls] in (["running"], ["unknown"])
    guard.close()
