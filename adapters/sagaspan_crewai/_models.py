"""Calls of models: reserved before they are sent, settled with what they used.

CrewAI's own models tell of each request, retries among them, so each is a call of its own. A model of the user's class
may tell nothing: its ``call`` is watched, and what it then says nothing of is counted by its bytes.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import json
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from sagaspan.adapters import LlmCall
from sagaspan.llm.demands import chat_demand, text_tokens
from sagaspan.llm.running import Running
from sagaspan_crewai import _compat
from sagaspan_crewai._session import Session, session_in_force

_MARK: Final = "__sagaspan_metered__"
_OWN: Final = "crewai"


@dataclass(slots=True)
class Asked:
    """A request under way, and how far its answer has come."""

    call: LlmCall
    running: Running | None = None

    def came(self, text: str) -> None:
        """One piece more of an answer that comes piece by piece; raises ``BudgetExceeded`` where that must be cut."""
        if self.running is None:
            self.running = Running()
            self.call.streams()
        if self.call.counts:
            self.running.add({"type": "text.delta", "delta": text})
            self.call.cover(self.running.tokens)


@dataclass(slots=True)
class _Watched:
    """A call of a model of the user's class; ``told`` once CrewAI's events say more of it."""

    call: LlmCall
    told: bool = False


_watched: ContextVar[_Watched | None] = ContextVar("sagaspan_crewai_watched", default=None)


# -- by CrewAI's events ------------------------------------------------------------------------------------------


def on_event(session: Session, source: Any, event: Any) -> None:
    """Reserve what is sent next, or settle what was answered; raises what refuses it."""
    if event.type == "llm_call_started":
        _started(session, source, event)
    elif event.type == "llm_call_completed":
        _completed(session, event)
    elif event.type in ("llm_stream_chunk", "llm_thinking_chunk"):
        _came(session, event)
    elif event.type in ("llm_call_failed", "llm_call_denied"):
        _failed(session, event)


def _started(session: Session, llm: Any, event: Any) -> None:
    session.check()
    asked = {"messages": event.messages, "tools": event.tools, "max_tokens": event.max_tokens}
    watched = _watched.get()
    if watched is not None and not watched.told:
        watched.told = True
        session.models[event.call_id] = Asked(watched.call)
        return
    again = session.models.pop(event.call_id, None)
    if again is not None:  # sent again under the same id: the first time may have been billed
        _end(again.call, RuntimeError("it was sent again"))
    call = _made(session, llm, event.model, asked)
    call.__enter__()
    if call.tells:
        call.messages(input={"messages": _messages(event.messages)})
    session.models[event.call_id] = Asked(call)


def _came(session: Session, event: Any) -> None:
    session.check()  # nobody wants the rest of it
    asked = session.models.get(event.call_id)
    if asked is not None:
        asked.came(event.chunk)


def _completed(session: Session, event: Any) -> None:
    asked = session.models.pop(event.call_id, None)
    if asked is not None:
        _settle(asked.call, event.usage, event.response)
        if event.finish_reason:
            asked.call.messages(finish_reasons=(event.finish_reason,))
        _end(asked.call, None)


def _failed(session: Session, event: Any) -> None:
    asked = session.models.pop(event.call_id, None)
    if asked is not None:
        # CrewAI says it while it handles the error, which knows whether the provider refused.
        error = sys.exc_info()[1]
        if isinstance(error, _compat.Stopping) and asked.running is not None:
            _hang_up(error)
        _end(asked.call, error or RuntimeError(getattr(event, "error", "it was denied")))


def _hang_up(error: BaseException) -> None:
    """Let go of the answer that was cut: CrewAI leaves it open, and its provider would go on, and bill it."""
    traceback.clear_frames(error.__traceback__)
    gc.collect()  # the stream of an SDK lies in a cycle


def close(session: Session) -> None:
    """The kickoff is over: what nobody told the end of is booked as it was reserved."""
    while session.models:
        _, asked = session.models.popitem()
        _end(asked.call, RuntimeError("nobody told how it ended"))


# -- by watching the model ---------------------------------------------------------------------------------------


def watch(llm: Any) -> None:
    """Meter ``llm`` too if it is of a class of the user's, which may tell nothing."""
    if llm is None or isinstance(llm, str) or type(llm).__module__.partition(".")[0] == _OWN:
        return
    for name, metered in (("call", _metered), ("acall", _ametered)):
        method = getattr(llm, name, None)
        if callable(method) and not hasattr(method, _MARK):
            guarded = metered(llm, method)
            setattr(guarded, _MARK, True)
            vars(llm)[name] = guarded  # not by assignment: pydantic knows no such field


def _metered(llm: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        session = session_in_force.get()
        if session is None or _watched.get() is not None:
            return method(*args, **kwargs)
        with _watching(session, llm, inspect.signature(method), args, kwargs) as answered:
            response = method(*args, **kwargs)
            answered(response)
        return response

    return call


def _ametered(llm: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    async def acall(*args: Any, **kwargs: Any) -> Any:
        session = session_in_force.get()
        if session is None or _watched.get() is not None:
            return await method(*args, **kwargs)
        with _watching(session, llm, inspect.signature(method), args, kwargs) as answered:
            response = await method(*args, **kwargs)
            answered(response)
        return response

    return acall


@contextlib.contextmanager
def _watching(
    session: Session, llm: Any, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[Callable[[Any], None]]:
    session.check()
    given = signature.bind_partial(*args, **kwargs).arguments
    asked = {"messages": given.get("messages"), "tools": given.get("tools"), "max_tokens": None}
    call = _made(session, llm, str(getattr(llm, "model", "unknown")), asked)
    session.or_stop(call.__enter__)
    watched = _Watched(call)
    token = _watched.set(watched)
    try:
        yield lambda response: None if watched.told else _settle(call, None, response)
    except BaseException as error:
        if not watched.told:
            _end(call, error)
        raise
    else:
        if not watched.told:
            _end(call, None)
    finally:
        _watched.reset(token)


# -- what one is and used ----------------------------------------------------------------------------------------


def _made(session: Session, llm: Any, model: str | None, asked: Mapping[str, Any]) -> LlmCall:
    messages, limit = _messages(asked["messages"]), asked["max_tokens"] or _limit(llm)
    demand = {"messages": messages, "tools": asked["tools"] or None, **({"max_tokens": limit} if limit else {})}
    # What CrewAI calls the provider of a class it does not know is a guess.
    provider = getattr(llm, "provider", None) if type(llm).__module__.partition(".")[0] == _OWN else None
    return session.guard.llm_call(model or "unknown", demand=chat_demand(demand), provider=provider)


def _messages(messages: Any) -> Any:
    return [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages or ())


def _limit(llm: Any) -> int | None:
    limits = (getattr(llm, name, None) for name in ("max_completion_tokens", "max_tokens"))
    return next((int(limit) for limit in limits if isinstance(limit, int | float) and limit > 0), None)


def _settle(call: LlmCall, usage: Mapping[str, Any] | None, response: Any) -> None:
    if call.tells:
        call.messages(output=response if isinstance(response, str) else _text(response))
    counts = {name: value for name, value in (usage or {}).items() if isinstance(value, int) and value > 0}
    if not counts.get("prompt_tokens") and not counts.get("completion_tokens"):
        call.settle(input_tokens=call.demand.input_tokens, output_tokens=text_tokens(_text(response)))
        return
    read, written = counts.get("cached_prompt_tokens", 0), counts.get("cache_creation_tokens", 0)
    output = counts.get("completion_tokens", 0)
    call.settle(
        input_tokens=max(counts.get("prompt_tokens", 0), read + written),
        output_tokens=output,
        cache_read_tokens=read,
        cache_write_tokens=written,
        reasoning_tokens=min(counts.get("reasoning_tokens", 0), output),
    )


def _text(response: Any) -> str:
    return response if isinstance(response, str) else json.dumps(response, default=str)


def _end(call: LlmCall, error: BaseException | None) -> None:
    call.__exit__(None if error is None else type(error), error, None)
