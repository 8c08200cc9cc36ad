"""Requests that are over in time: after so many seconds their connections are shut, however slowly somebody answers.

The timeouts of ``requests`` are for each read: who sends a byte now and then holds a thread as long as he likes.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from requests import Session
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool


class Deadline:
    """The connections of one session, and whether its time is ``over``."""

    def __init__(self) -> None:
        self.over = False
        self._kept: list[socket.socket] = []

    def keep(self, connection: socket.socket) -> None:
        """One more connection; a copy, because TLS takes the socket itself away."""
        self._kept.append(connection.dup())
        if self.over:
            self.end()

    def end(self) -> None:
        """Nothing more is sent or read."""
        self.over = True
        for connection in list(self._kept):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def forget(self) -> None:
        """The session is closed."""
        for connection in self._kept:
            connection.close()


_deadline: Final[ContextVar[Deadline]] = ContextVar("sagaspan_deadline")


class _Plain(HTTPConnection):
    def _new_conn(self) -> socket.socket:
        connection = super()._new_conn()
        _deadline.get().keep(connection)
        return connection


class _Secure(HTTPSConnection):
    def _new_conn(self) -> socket.socket:
        connection = super()._new_conn()
        _deadline.get().keep(connection)
        return connection


class _PlainPool(HTTPConnectionPool):
    ConnectionCls = _Plain


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _Secure


class _Adapter(HTTPAdapter):
    def init_poolmanager(self, *how: Any, **more: Any) -> None:
        super().init_poolmanager(*how, **more)
        self.poolmanager.pool_classes_by_scheme = {"http": _PlainPool, "https": _SecurePool}

    def proxy_manager_for(self, *how: Any, **more: Any) -> Any:
        manager = super().proxy_manager_for(*how, **more)
        manager.pool_classes_by_scheme = {"http": _PlainPool, "https": _SecurePool}
        return manager


@contextmanager
def session_for(seconds: float) -> Iterator[tuple[Session, Deadline]]:
    """A session whose requests are over after so many seconds; within the block, in the thread that made it."""
    deadline, session = Deadline(), Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, _Adapter())
    timer = threading.Timer(seconds, deadline.end)
    timer.daemon = True
    timer.start()
    token = _deadline.set(deadline)
    try:
        with session:
            yield session, deadline
    finally:
        timer.cancel()
        _deadline.reset(token)
        deadline.forget()
