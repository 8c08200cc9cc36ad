"""Ledgers for tests on a server: each used again once it is empty and nobody is connected."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod

from sagaspan.ledger import attempts
from sagaspan.ledger.store import Store
from sagaspan.testing._leaving import leave_all

_PREFIX = "sagaspan_test_"


class ServerLedgers(ABC):
    """Empty ledgers on the server of ``url``. One is made once and emptied, which is many times as fast.

    One that somebody is still connected to, a guard that nobody closed or a process that was just killed, is not used
    again, so that no test is disturbed by what another one left. Nor is one in whose use a body was given up
    (``timeout=``) that still runs: its late result is recorded when it ends, also after its guard was closed.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._free: list[str] = []
        self._made: list[str] = []
        self._watched: dict[str, frozenset[str]] = {}  # the bodies of before its use

    def take(self) -> str:
        """The URL of an empty ledger."""
        url = self._take()
        self._watched[url] = attempts.watched()
        return url

    def _take(self) -> str:
        if self._free:
            return self._url_of(self._free.pop())
        url = self._url_of(f"{_PREFIX}{secrets.token_hex(6)}")
        self._make(url)
        self._made.append(url)
        return url

    def give_back(self, url: str) -> None:
        """Nobody needs the ledger any more."""
        given_up = attempts.watched() - self._watched.pop(url, frozenset())
        if self._is_in_use(url):
            leave_all(url)
        elif not given_up:
            self.empty(url)
            self._free.append(self.name_of(url))

    def begin_anew(self, url: str) -> None:
        """Forget everything in the ledger, and cut off who is still connected: what a killed process sent is over."""
        while self._is_in_use(url):
            self.cut(url)
            time.sleep(0.005)
        self.empty(url)

    def close(self) -> None:
        """Take all of them away, and whoever is connected to one."""
        for url in self._made:
            self.cut(url)
            self._drop(url)
        self._made.clear()
        self._free.clear()

    @abstractmethod
    def opened(self, url: str) -> Store:
        """The ledger of ``url``, as each process opens it."""

    @abstractmethod
    def name_of(self, url: str) -> str:
        """What the ledger of ``url`` is called on the server."""

    @abstractmethod
    def empty(self, url: str) -> None:
        """Forget everything in the ledger."""

    @abstractmethod
    def cut(self, url: str) -> None:
        """End the connections of all others to the ledger."""

    @abstractmethod
    def _make(self, url: str) -> None: ...

    @abstractmethod
    def _is_in_use(self, url: str) -> bool: ...

    @abstractmethod
    def _drop(self, url: str) -> None: ...

    @abstractmethod
    def _url_of(self, name: str) -> str:
        """The URL of a ledger for this one use: what a process holds is known by the URL, too."""


def new_use() -> str:
    """What tells the URL of one use from those of the others."""
    return secrets.token_hex(3)


def ledgers_of(url: str) -> ServerLedgers:
    """Ledgers on the server of ``url``, whatever its kind."""
    if url.startswith(("mysql:", "mariadb:")):
        from sagaspan.testing._mariadb_ledgers import MariadbLedgers

        return MariadbLedgers(url)
    from sagaspan.testing._postgres_ledgers import PostgresLedgers

    return PostgresLedgers(url)
