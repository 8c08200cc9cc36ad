"""Models that may not tell CrewAI of all they are asked: metered by being asked, whoever made them, and when.

LiteLLM, by which CrewAI reaches what it has no class for, says nothing of an answer that asks for a tool; a model of
the user's class may say nothing at all. What none of them says is booked as with any client: as its text looks, and
marked, or with all that was reserved where it has a limit or a hard budget holds.

A flow may make a model, ask it and forget it, and only the base class of them all sees that. So while a guarded kickoff
goes on, ``call`` and ``acall`` of a model are looked up by way of this module, which does nothing for one that is asked
outside of such a kickoff. No class but the base is touched, and after the last kickoff it is as it was.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, Final

from sagaspan_crewai import _compat
from sagaspan_crewai._models import LIMITS, Asked, Watched, end, limited, made, settle, watched_in_force
from sagaspan_crewai._own import put
from sagaspan_crewai._session import Session, session_in_force

_MARK: Final = "__sagaspan_metered__"
_OWN: Final = "crewai"
_SILENT_AT_TOOLS: Final = "crewai.llms.providers.anthropic"
"""Whose streams told nothing of an answer that asks for a tool in crewai 1.15.21."""
_TRACKS: Final = "_track_token_usage_internal"
_ASKS: Final = frozenset({"call", "acall"})
_OVER: Final = object()


# -- while a guarded kickoff goes on -----------------------------------------------------------------------------

_kickoffs = 0
_lock: Final = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]  # noqa: SLF001 - as threading


@contextlib.contextmanager
def metered(known: Iterable[Any]) -> Iterator[None]:
    """Every model that is asked within the block, in whatever thread, is metered.

    CrewAI may leave a thread at work after a kickoff that was cancelled; what that asks of ``known`` ones is refused.
    """
    global _kickoffs
    for llm in known:
        _watch(llm)
    with _lock:
        _kickoffs += 1
        if _kickoffs == 1:
            _compat.look_up_by(_look_up)
    try:
        yield
    finally:
        with _lock:
            _kickoffs -= 1
            if _kickoffs == 0:
                _compat.look_up_by(None)


def _look_up(llm: Any, name: str) -> Any:
    if name in _ASKS:
        session = session_in_force.get()
        if session is not None:
            session.or_stop(lambda: _watch(llm))
    value = object.__getattribute__(llm, name)
    return limited(llm, name, value) if name in LIMITS else value


# -- one model ---------------------------------------------------------------------------------------------------


def _watch(llm: Any) -> None:
    """Meter ``llm`` by its calls if it may not tell of them all."""
    if _tells_all(llm):
        return
    for name, watched in (("call", _metered), ("acall", _ametered), (_TRACKS, _tracked)):
        method = object.__getattribute__(llm, name)
        owner = getattr(method, _MARK, None)
        if owner is llm:
            continue
        if owner is not None:  # a copy has what was put into the original, which is bound to that
            method = getattr(type(llm), name).__get__(llm)
        guarded = watched(llm, method)
        setattr(guarded, _MARK, llm)
        put(llm, name, guarded)  # not by assignment: pydantic knows no such field


def _tells_all(llm: Any) -> bool:
    module = type(llm).__module__
    if isinstance(llm, _compat.LiteLLM) or module.startswith(_SILENT_AT_TOOLS):
        return False
    return module.partition(".")[0] == _OWN


def _tracked(_llm: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    """What a model adds its use up with, and says it by where it says it nowhere else."""

    @functools.wraps(method)
    def track(usage: Any) -> Any:
        watched = watched_in_force.get()
        if watched is not None:
            watched.usage = usage
        return method(usage)

    return track


def _metered(llm: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        meter = _Meter.begun(llm, method, args, kwargs)
        if meter is None:
            return method(*args, **kwargs)
        with meter.at_work():
            return meter.answered(method(*args, **kwargs))

    return call


def _ametered(llm: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    async def acall(*args: Any, **kwargs: Any) -> Any:
        meter = _Meter.begun(llm, method, args, kwargs)
        if meter is None:
            return await method(*args, **kwargs)
        with meter.at_work():
            return meter.answered(await method(*args, **kwargs))

    return acall


class _Meter:
    """One call of a model, from what it asks to the end of its answer."""

    def __init__(self, session: Session, llm: Any, given: Mapping[str, Any]) -> None:
        asked = {"messages": given.get("messages"), "tools": given.get("tools"), "max_tokens": None}
        self._session = session
        self._call = made(session, llm, str(getattr(llm, "model", "unknown")), asked)
        self._watched = Watched(self._call)
        self._said: list[str] = []
        self._key: str | None = None
        self._is_over = False

    @classmethod
    def begun(cls, llm: Any, method: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> _Meter | None:
        """The meter of a call that is reserved; None if nobody guards it, or it is a part of one that has a meter."""
        session = session_in_force.get()
        if session is None or watched_in_force.get() is not None:
            return None
        session.check()
        meter = cls(session, llm, inspect.signature(method).bind_partial(*args, **kwargs).arguments)
        session.or_stop(meter._call.__enter__)
        return meter

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """The model works on it within the block."""
        token = watched_in_force.set(self._watched)
        try:
            yield
        except BaseException as error:
            self._end(error)
            raise
        finally:
            watched_in_force.reset(token)

    def answered(self, response: Any) -> Any:
        """``response``, which is booked; one that comes in pieces once it is read."""
        if inspect.isgenerator(response):
            return self._read(response, self._comes())
        if inspect.isasyncgen(response):
            return self._aread(response, self._comes())
        if self._is_open:
            settle(self._call, self._watched.usage, response)
        self._end(None)
        return response

    def _read(self, pieces: Generator[Any, Any, Any], asked: Asked) -> Iterator[Any]:
        try:
            while True:
                with self.at_work():
                    piece = next(pieces, _OVER)
                    if piece is not _OVER:
                        self._came(asked, piece)
                if piece is _OVER:
                    break
                yield piece
            self.answered("".join(self._said))
        finally:
            pieces.close()
            self._end(None)

    async def _aread(self, pieces: AsyncGenerator[Any, Any], asked: Asked) -> AsyncIterator[Any]:
        try:
            while True:
                with self.at_work():
                    piece = await anext(pieces, _OVER)
                    if piece is not _OVER:
                        self._came(asked, piece)
                if piece is _OVER:
                    break
                yield piece
            self.answered("".join(self._said))
        finally:
            await pieces.aclose()
            self._end(None)

    def _comes(self) -> Asked:
        """The answer comes in pieces, and ends with the kickoff if nobody reads it to its end."""
        self._key, asked = f"pieces {id(self)}", Asked(self._call)
        self._session.models[self._key] = asked
        return asked

    def _came(self, asked: Asked, piece: Any) -> None:
        self._session.check()
        if self._is_open and self._watched.id is None:  # else events tell of it
            self._said.append(piece if isinstance(piece, str) else str(piece))
            self._session.or_stop(lambda: asked.came(self._said[-1]))

    def _end(self, error: BaseException | None) -> None:
        was_open, self._is_over = self._is_open, True
        for key in (self._watched.id, self._key):
            self._session.models.pop(key or "", None)
        if was_open:
            end(self._call, error)

    @property
    def _is_open(self) -> bool:
        """Whether nobody has told of its end yet: an event, or the kickoff that it outlasted."""
        known = self._watched.id or self._key
        return not self._is_over and (known is None or known in self._session.models)
