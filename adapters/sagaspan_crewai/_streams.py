"""Streams of CrewAI's: closing one before its end ends the kickoff that it is of.

CrewAI begins the work when a stream is first read, in a thread or task of its own. Closing the stream would wait there
until all of it is done, or leave it to its thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any, Final

from sagaspan.adapters import finalize
from sagaspan_crewai import _compat
from sagaspan_crewai._interrupts import AwaitedErrand, Errand, sent

_CLOSED: Final = "its stream was closed before its end"


class StreamClosed(Exception):
    """Nobody reads any more; CrewAI, in whose thread this is raised, keeps it to itself."""


class _Reading(Errand):
    """The kickoff of a stream that is read in a thread."""

    def shown(self, error: BaseException) -> BaseException:
        """What ended it by being closed is no news to whoever closed it: a thread would print it."""
        return StreamClosed(_CLOSED) if isinstance(error, asyncio.CancelledError) else error


def ended_by_closing(output: Any) -> Any:
    """``output``; if it is a stream, closing (or dropping) it ends its kickoff as an interruption does."""
    return _compat.read_by(output, _read, _aread)


_begun: Final[set[Iterator[Any]]] = set()
"""The collector closes all that lies in one cycle, in any order: what it must not begin with does not lie there."""


def _read(pieces: Iterator[Any]) -> Iterator[Any]:
    errand = _Reading()
    _begun.add(pieces)
    try:
        while True:
            with sent(errand):  # the first time, CrewAI's thread takes the context with it
                try:
                    piece = next(pieces)
                except StopIteration:
                    return
            yield piece
    except GeneratorExit:
        finalize(partial(_close, pieces, errand))
        raise
    finally:
        _begun.discard(pieces)


def _close(pieces: Iterator[Any], errand: Errand) -> None:
    errand.stop(asyncio.CancelledError(_CLOSED))
    with contextlib.suppress(ReferenceError):  # in the end CrewAI would tell a stream that nobody has
        pieces.close()  # type: ignore[attr-defined] # a generator


async def _aread(pieces: AsyncIterator[Any]) -> AsyncIterator[Any]:
    errand = AwaitedErrand()
    try:
        while True:
            with sent(errand):
                try:
                    piece = await anext(pieces)
                except StopAsyncIteration:
                    return
            yield piece
    except (GeneratorExit, asyncio.CancelledError):
        await errand.cancel(asyncio.CancelledError(_CLOSED))
        raise
    finally:
        with contextlib.suppress(ReferenceError):
            await pieces.aclose()  # type: ignore[attr-defined] # a generator
