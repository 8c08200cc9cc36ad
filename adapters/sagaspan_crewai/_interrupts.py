"""How the threads of a kickoff get to know that its caller has given it up: by Ctrl-C, or by cancelling it.

CrewAI works in threads of its own and, when its caller is interrupted, waits until they have done all they wanted.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Final, Protocol

_PATIENCE_SECONDS: Final = 30.0


def ctrl_c() -> BaseException | None:
    """The ``KeyboardInterrupt`` that the main thread handles now, perhaps while it waits for this very thread."""
    main = threading.main_thread()
    if threading.current_thread() is main:
        return None
    handled: object = sys._current_exceptions().get(main.ident or 0)  # noqa: SLF001 - documented by this name
    error = handled[1] if isinstance(handled, tuple) else handled  # a triple before Python 3.12
    return error if isinstance(error, KeyboardInterrupt) else None


class Stoppable(Protocol):
    """A kickoff that can be told to end."""

    def stop(self, error: BaseException, /) -> None:
        """End it with ``error``."""


class Errand:
    """A kickoff that a thread does for somebody who waits; his giving it up does not reach the thread by itself."""

    def __init__(self) -> None:
        self._kickoff: Stoppable | None = None
        self._given_up: BaseException | None = None
        self._lock = threading.Lock()

    def stop(self, error: BaseException) -> bool:
        """End the kickoff with ``error``, also if it has yet to begin; whether it has begun."""
        with self._lock:
            self._given_up = error
        if self._kickoff is not None:
            self._kickoff.stop(error)
        return self._kickoff is not None

    def begin(self, kickoff: Stoppable) -> None:
        """The thread is at work on ``kickoff``; raises what ended it before that."""
        with self._lock:
            if self._given_up is not None:
                raise self._given_up
            self._kickoff = kickoff

    def shown(self, error: BaseException) -> BaseException:
        """``error`` of the kickoff, as the thread shall raise it."""
        return error

    def end(self) -> None:
        """The thread is done, with all that comes after."""


class AwaitedErrand(Errand):
    """One that a coroutine waits for."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()

    async def cancel(self, error: BaseException) -> None:
        """End the kickoff with ``error``, and wait (30 s at most) until it has left its run."""
        if self.stop(error):
            with contextlib.suppress(TimeoutError):  # a call that does not end is left to its thread
                await asyncio.wait_for(self._ended.wait(), _PATIENCE_SECONDS)

    def end(self) -> None:
        """The thread is done, with all that comes after."""
        with contextlib.suppress(RuntimeError):  # nobody waits any more: the loop is closed
            self._loop.call_soon_threadsafe(self._ended.set)


_errand: ContextVar[Errand | None] = ContextVar("sagaspan_crewai_errand", default=None)


@contextlib.contextmanager
def taken() -> Iterator[Errand | None]:
    """A kickoff begins within the block, on the errand that it gives, if there is one."""
    with sent(None) as errand:
        try:
            yield errand
        except BaseException as error:
            shown = error if errand is None else errand.shown(error)
            if shown is error:
                raise
            raise shown from None
        finally:
            if errand is not None:
                errand.end()


@contextlib.contextmanager
def sent(errand: Errand | None) -> Iterator[Errand | None]:
    """``errand`` is the one of the kickoff that begins within the block; gives the one around it."""
    before = _errand.get()
    token = _errand.set(errand)
    try:
        yield before
    finally:
        _errand.reset(token)
