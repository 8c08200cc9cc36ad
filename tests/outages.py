"""How the ledger of a test comes to be out of reach: SQLite's file is locked, the network to a server is cut."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sagaspan import Guard
from sagaspan.stores import sqlite
from tests.stores.wire import Wire


class Outage:
    """Of SQLite's file; a guard on ``url`` notices."""

    def __init__(self, url: str) -> None:
        self.url = url

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        """The store takes no writes: somebody else writes to SQLite's file."""
        with contextlib.closing(sqlite3.connect(self._file, isolation_level=None)) as other:
            other.execute("begin immediate")
            yield
            other.execute("rollback")

    @contextlib.contextmanager
    def gone(self, guard: Guard) -> Iterator[None]:
        """The store cannot even be read."""
        guard._store.close()
        away = self._file.with_name("away.db")
        self._file.rename(away)
        self._file.mkdir()
        try:
            yield
        finally:
            self._file.rmdir()
            away.rename(self._file)

    @property
    def _file(self) -> Path:
        return Path(self.url.removeprefix("sqlite:///"))

    @contextlib.contextmanager
    def counted(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
        """How often the store was asked to save something."""
        asked: list[int] = []
        write = sqlite._write
        with monkeypatch.context() as patched:
            patched.setattr(sqlite, "_write", lambda *how: (asked.append(1), write(*how))[1])
            yield lambda: len(asked)


class OutageOfServer(Outage):
    """The network to a server is cut."""

    def __init__(self, url: str) -> None:
        self._wire = Wire(url)
        super().__init__(self._wire.through(url))

    def down(self) -> contextlib.AbstractContextManager[None]:
        """Nobody is there."""
        return self._wire.down()

    def gone(self, guard: Guard) -> contextlib.AbstractContextManager[None]:
        """The same."""
        return self._wire.down()

    @contextlib.contextmanager
    def counted(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
        """How often somebody wanted to be let through."""
        yield lambda: self._wire.refused


def outage_of(url: str, monkeypatch: pytest.MonkeyPatch) -> Outage:
    """The one for the ledger of ``url``; nobody waits for long."""
    if url.startswith("sqlite"):
        monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.1)
        return Outage(url)
    monkeypatch.setattr("sagaspan.stores._server.WAIT_SECONDS", 0.1)
    return OutageOfServer(url)
