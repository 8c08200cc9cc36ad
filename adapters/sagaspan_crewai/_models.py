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
from sagaspan_crewai._session import Session, session_in_force
from sagaspan_crewai._usage import counts_of

LIMITS: Final = ("max_completion_tokens", "max_output_tokens", "max_tokens")
"""What a class of models limits its answers by."""
_OWN: Final = "crewai"


@dataclass(slots=True)
class Asked:
    """A request under way, and how far its answer has come. ``llm`` is asked, and sends the limit of ``call``."""

    call: LlmCall
    running: Running | None = None
    llm: Any = None

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
_asked_in_force: ContextVar[Asked | None] = ContextVar("sagaspan_crewai_asked", default=None)


def limited(llm: Any, name: str, value: Any) -> Any:
    """``value``, what ``llm`` has as one of the ``LIMITS``, or the limit of the request that is under way with it.

    So a request is sent with the limit of its call, and the model of the user stays as it is.
    """
    asked, session = _asked_in_force.get(), session_in_force.get()
    if asked is None or session is None or asked.llm is not llm or asked.call.output_limit is None:
        return value
    if all(one is not asked for one in session.models.values()):  # it is over
        return value
    # Servers that are compatible with OpenAI's may know the old name only.
    is_sent = name == "max_tokens" or "openai_compatible" not in type(llm).__module__
    return asked.call.output_limit if is_sent else value


def _may_limit(llm: Any, limit: int | None) -> bool:
    """Whether ``llm`` sends what ``limited`` says, and its user set no limit (``limit`` is what it has)."""
    if type(llm).__module__.partition(".")[0] != _OWN or getattr(llm, "thinking", None) is not None:
        return False
    beside = getattr(llm, "additional_params", None) or {}
    return limit in (None, _compat.default_limit(llm)) and not any(name in beside for name in LIMITS)


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
        session.models[event.call_id] = begun = Asked(watched.call, llm=llm)
        _asked_in_force.set(begun)
        return
    again = session.models.pop(event.call_id, None)
    if again is not None:  # sent again under the same id: the first time may have been billed
        end(again.call, RuntimeError("it was sent again"))
    call = made(session, llm, event.model, asked)
    call.__enter__()
    if call.tells:
        call.messages(input={"messages": _messages(event.messages)})
    session.models[event.call_id] = begun = Asked(call, llm=llm)
    _asked_in_force.set(begun)


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
    return session.guard.llm_call(
        model or "unknown", demand=chat_demand(demand), provider=provider, limit_output=_may_limit(llm, limit)
    )


def _messages(messages: Any) -> Any:
    return [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages or ())


def _limit(llm: Any) -> int | None:
    limits = (getattr(llm, name, None) for name in LIMITS)
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
