"""Calls of models, by what CrewAI tells of them: reserved before they are sent, settled with what they used.

CrewAI's own models tell of each request, retries among them, so each is a call of its own. Those that may not tell of
all are metered by being asked as well (``_asked``).
"""

from __future__ import annotations

import gc
import json
import sys
import traceback
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from sagaspan.adapters import LlmCall
from sagaspan.llm.demands import chat_demand, likely_input
from sagaspan.llm.running import Running
from sagaspan_crewai import _compat
from sagaspan_crewai._session import Session
from sagaspan_crewai._usage import counts_of

_LIMITS: Final = ("max_completion_tokens", "max_output_tokens", "max_tokens")
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
class Watched:
    """A call of a model that may not tell of its end; ``id`` is the one of CrewAI's events, once they tell of it."""

    call: LlmCall
    id: str | None = None
    usage: Any = None


watched_in_force: ContextVar[Watched | None] = ContextVar("sagaspan_crewai_watched", default=None)


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
    watched = watched_in_force.get()
    if watched is not None and watched.id is None:
        watched.id = event.call_id
        session.models[event.call_id] = Asked(watched.call)
        return
    again = session.models.pop(event.call_id, None)
    if again is not None:  # sent again under the same id: the first time may have been billed
        end(again.call, RuntimeError("it was sent again"))
    call = made(session, llm, event.model, asked)
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
        settle(asked.call, event.usage, event.response)
        if event.finish_reason:
            asked.call.messages(finish_reasons=(event.finish_reason,))
        end(asked.call, None)


def _failed(session: Session, event: Any) -> None:
    asked = session.models.pop(event.call_id, None)
    if asked is not None:
        # CrewAI says it while it handles the error, which knows whether the provider refused.
        error = sys.exc_info()[1]
        if isinstance(error, _compat.Stopping) and asked.running is not None:
            _hang_up(error)
        end(asked.call, error or RuntimeError(getattr(event, "error", "it was denied")))


def _hang_up(error: BaseException) -> None:
    """Let go of the answer that was cut: CrewAI leaves it open, and its provider would go on, and bill it."""
    traceback.clear_frames(error.__traceback__)
    gc.collect()  # the stream of an SDK lies in a cycle


def close(session: Session) -> None:
    """The kickoff is over: what nobody told the end of is booked as it was reserved."""
    while session.models:
        _, asked = session.models.popitem()
        end(asked.call, RuntimeError("nobody told how it ended"))


# -- what one is and used ----------------------------------------------------------------------------------------


def made(session: Session, llm: Any, model: str | None, asked: Mapping[str, Any]) -> LlmCall:
    """The call of a model that is asked for ``asked``: ``messages``, ``tools`` and ``max_tokens``; not begun yet."""
    messages, limit = _messages(asked["messages"]), asked["max_tokens"] or _limit(llm)
    demand = {"messages": messages, "tools": asked["tools"] or None, **({"max_tokens": limit} if limit else {})}
    # What CrewAI calls the provider of a class it does not know is a guess.
    provider = getattr(llm, "provider", None) if type(llm).__module__.partition(".")[0] == _OWN else None
    return session.guard.llm_call(model or "unknown", demand=chat_demand(demand), provider=provider)


def _messages(messages: Any) -> Any:
    return [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages or ())


def _limit(llm: Any) -> int | None:
    limits = (getattr(llm, name, None) for name in _LIMITS)
    return next((int(limit) for limit in limits if isinstance(limit, int | float) and limit > 0), None)


def settle(call: LlmCall, usage: Any, response: Any) -> None:
    """Tell ``call`` what it used; or what its text looks like, which is booked where no limit and no budget holds."""
    text = _text(response)
    if call.tells:
        call.messages(output=text)
    counts = counts_of(usage)
    if (counts is None or call.record_usage(**counts) is None) and call.estimates:
        running = Running()
        running.add_text(text)
        call.seen(running.likely, likely_input(call.demand))


def _text(response: Any) -> str:
    return response if isinstance(response, str) else json.dumps(response, default=str)


def end(call: LlmCall, error: BaseException | None) -> None:
    """It is over, with ``error`` or well."""
    call.__exit__(None if error is None else type(error), error, None)
