"""A network between a test and a server: cut at a word, down, or leading to another server than before."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit


class Wire:
    """A proxy to the server of ``url``. It cuts the next connection that says ``at``: before that arrives, or after it.

    After: all of it reaches the server, whose answer it awaits, and nobody gets.
    """

    def __init__(self, url: str) -> None:
        self.at = b""
        self.when = "after"
        self.cuts = self.refused = 0
        self.is_down = False
        self._server = _place(url)
        self._door = socket.create_server(("127.0.0.1", 0))
        self._ends: list[socket.socket] = []
        self.port = self._door.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, at: str, when: str) -> None:
        """Cut the next one, and let the others pass."""
        self.at, self.when = at.encode(), when

    def through(self, url: str) -> str:
        """The URL of the same ledger, by this wire."""
        return url.replace(f":{urlsplit(url).port}/", f":{self.port}/")

    @staticmethod
    def moved(ledger: str, server: str) -> str:
        """The URL that the same ledger would have on another server."""
        return ledger.replace(f":{urlsplit(ledger).port}/", f":{urlsplit(server).port}/")

    def lead_to(self, url: str) -> None:
        """From here on to the server of that URL, as after a fail-over; who was connected to the other is cut off."""
        self._server = _place(url)
        self._cut_off()

    def _cut_off(self) -> None:
        for end in self._ends:
            _end(end)

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        """For the block nobody is let through, and who was is cut off."""
        self.is_down = True
        self._cut_off()
        try:
            yield
        finally:
            self.is_down = False

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
                self.refused += 1
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


def _place(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return str(parts.hostname), int(parts.port or 0)


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
