"""Connections to a server that many hosts share: lent for a block, with the errors of a driver as those of a store.

And the time there, told without asking it each time.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from sagaspan import _clock as clock
from sagaspan._checks import masked
from sagaspan.exceptions import StoreError, StoreUnavailable
from sagaspan.stores._fate import WAIT_SECONDS, Again, Fate, Lost, Refused, said
from sagaspan.stores._pool import Full, Pool

C = TypeVar("C")
D = TypeVar("D", contravariant=True)
R = TypeVar("R")

CONNECTIONS: Final = 16
"""How many connections a process opens at most; more threads than that take turns."""


class Driver(Protocol[D]):
    """The module of a driver: statements with ``?`` for values, and what its errors mean."""

    @property
    def DriverError(self) -> type[Exception]: ...  # noqa: N802 - a class

    def fetch(self, connection: D, query: str, values: Sequence[Any], /) -> list[Any]:
        """The rows of one statement."""

    def execute(self, connection: D, statement: str, values: Sequence[Any], /) -> int:
        """Run one statement; how many rows it found or made."""

    def close(self, connection: D, /) -> None:
        """Close it, whatever state it is in."""

    def works(self, connection: D, /) -> bool:
        """Whether the server still answers."""

    def fate_of(self, connection: D, error: Any, /) -> Fate:
        """What an error of the driver says of what was sent."""

    def is_unfit(self, error: Any, /) -> bool:
        """Whether it is of a value that no column holds."""

    def explained(self, where: str, error: Any, /) -> str:
        """What went wrong at ``where``, and what to do, in one sentence."""


class ServerConnections(ABC, Generic[C]):
    """Connections are made when they are needed, and anew in a forked child; ``C`` is one of them.

    Requests, links and grants end by the server's clock, whatever the clocks of the hosts are set to. Each new
    connection and each beat of a lease says what time it is there; in between the clock of this boot counts on, which
    nobody sets.
    """

    keeps_time = True

    _driver: Driver[C]
    _ahead: int | None = None
    """Microseconds by which the time there is ahead of the clock of this boot."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.round_trips = 0
        self._where = masked(url)
        self._pool = Pool(self._open, self._driver.close, self._driver.works, size=CONNECTIONS)
        self._of_one_moment = threading.local()

    @abstractmethod
    def _open(self) -> C:
        """A connection to a ledger of this version, which has asked for the time."""

    def now_us(self) -> int:
        """The time by which requests expire: the server's; see ``Store.now_us``."""
        if not clock.is_real():
            return clock.now_us()
        if self._ahead is None:
            with self._connected():
                pass
        return clock.boot_us() + (self._ahead or 0)

    def _it_is(self, now_us: int) -> None:
        self._ahead = now_us - clock.boot_us()

    def close(self) -> None:
        """Close the connections that nobody uses; the next use opens others."""
        self._pool.clear()

    def _rows(self, connection: C, query: str, values: Sequence[Any]) -> list[Any]:
        return self._driver.fetch(connection, query, values)

    def _do(self, connection: C, statement: str, values: Sequence[Any] = ()) -> int:
        return self._driver.execute(connection, statement, values)

    def _fetch(self, query: str, values: Sequence[Any]) -> list[Any]:
        pinned = getattr(self._of_one_moment, "connection", None)
        if pinned is not None:
            self.round_trips += 1
            return self._driver.fetch(pinned, query, values)
        return self._repeatable(lambda connection: self._driver.fetch(connection, query, values))

    def _repeatable(self, job: Callable[[C], R]) -> R:
        """What may be done twice: it is, where the connection was lost."""
        try:
            with self._lent() as connection:
                return job(connection)
        except (Lost, Again):
            self._pool.clear()
        with self._connected() as connection:
            return job(connection)

    @contextlib.contextmanager
    def _transaction(self, connection: C) -> Iterator[None]:
        """One transaction; an error closes the connection, and with it nothing is committed."""
        self._do(connection, "begin")
        yield
        self._do(connection, "commit")

    @contextlib.contextmanager
    def _connected(self) -> Iterator[C]:
        """A connection for the block; one that is lost is an error like any other."""
        try:
            with self._lent() as connection:
                yield connection
        except Lost as lost:
            self._pool.clear()
            raise self._unavailable(lost.error) from lost.error
        except Again as again:
            raise self._unavailable(again.error) from again.error

    @contextlib.contextmanager
    def _lent(self) -> Iterator[C]:
        self.round_trips += 1
        try:
            with self._pool.lend(WAIT_SECONDS) as connection:
                try:
                    yield connection
                except self._driver.DriverError as error:
                    raise self._driver.fate_of(connection, error) from error
        except Full as error:
            raise StoreUnavailable(
                f"all {CONNECTIONS} connections to {self._where} were in use for {WAIT_SECONDS:.0f} s; nothing was "
                "started, try again"
            ) from error
        except Refused as refused:
            is_unfit = self._driver.is_unfit(refused.error)
            raise (self._unfit if is_unfit else self._unavailable)(refused.error) from refused.error
        except UnicodeEncodeError as error:  # half a character
            raise self._unfit(error) from error

    def _unfit(self, error: Exception) -> StoreError:
        return StoreError(
            f"the ledger {self._where} cannot hold a value of this record ({said(error)}); nothing was started, "
            "make it shorter, or of other characters"
        )

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        return StoreUnavailable(self._driver.explained(self._where, error))
