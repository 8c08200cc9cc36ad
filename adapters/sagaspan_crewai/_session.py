"""What goes on inside one guarded kickoff: its run, its tools, and whether it has to stop.

The context variable holds it; CrewAI's threads and tasks copy the context, so they all share the one object.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from opentelemetry.trace import Span

from sagaspan import ApprovalPending, Guard, Run
from sagaspan_crewai import _compat
from sagaspan_crewai._compat import Stopping
from sagaspan_crewai._interrupts import ctrl_c

if TYPE_CHECKING:
    from sagaspan_crewai._models import Asked


@dataclass(slots=True)
class Decision:
    """One decision of a model to call a tool, from the hook before it to the hook after it.

    CrewAI may call the body several times for it; ``answer`` is what the first one gave.
    """

    tool: Any
    agent: str | None
    work: str | None
    answer: Any = None
    answered: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """The span of a task or of an agent's work on one, and the one around it."""

    span: Span
    around: Span


@dataclass(slots=True, eq=False)
class Session:
    """One kickoff of ``target``; ``tools`` knows its guarded tools."""

    guard: Guard
    run: Run
    target: Any
    tools: Any
    outer: Session | None = None
    stopped: BaseException | None = None
    attempts: dict[str, list[Any]] = field(default_factory=dict)
    models: dict[str, Asked] = field(default_factory=dict)
    steps: dict[tuple[str, str], Step] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _handled: BaseException | None = field(default_factory=ctrl_c)

    @property
    def is_stopping(self) -> bool:
        """Whether nothing more is to be done in this kickoff: something ended it, one around it, or the program."""
        if self.stopped is None and ctrl_c() not in (None, self._handled):
            self.stop(KeyboardInterrupt())
        if self.stopped is None and self.outer is not None and self.outer.is_stopping:
            self.stopped = self.outer.stopped
        return self.stopped is not None

    @property
    def waits(self) -> bool:
        """Whether it ends because somebody was asked for an approval."""
        return self.is_stopping and isinstance(self.stopped, ApprovalPending)

    def stop(self, error: BaseException) -> None:
        """End the kickoff, and the ones around it, with ``error``, whoever swallows it on the way."""
        with self._lock:
            self.stopped = self.stopped or error
        if self.outer is not None and self.outer.run is self.run:
            self.outer.stop(error)

    def check(self) -> None:
        """Raise, through CrewAI, what ended this kickoff."""
        if self.is_stopping and self.stopped is not None:
            raise Stopping(self.stopped)

    def or_stop(self, work: Callable[[], Any]) -> None:
        """Do ``work`` where CrewAI would swallow an error of it; one ends the kickoff."""
        try:
            work()
        except Stopping:
            raise
        except Exception as error:
            self.stop(error)
            raise Stopping(error) from error

    def shown(self, error: BaseException) -> BaseException:
        """``error`` of the kickoff as its caller shall see it."""
        if not isinstance(error, Exception):
            return error
        return self.stopped or (error.original if isinstance(error, Stopping) else error)

    # -- attempts of a task, or of an agent alone ---------------------------------------------------------------

    def attempt_of(self, work: str | None) -> list[Any] | None:
        """The books of what the attempt of ``work`` that runs now has asked for."""
        return None if work is None else self.attempts.setdefault(work, [])

    def starts(self, work: str) -> None:
        """``work`` is begun; a second time it asks again for what it asked for before, and is answered as then."""
        with self._lock:
            asked, self.attempts[work] = self.attempts.get(work, []), []
        self.run.asks_again(asked)


session_in_force: ContextVar[Session | None] = ContextVar("sagaspan_crewai_session", default=None)
decision_in_force: ContextVar[Decision | None] = ContextVar("sagaspan_crewai_decision", default=None)


@contextlib.contextmanager
def in_force(session: Session) -> Iterator[None]:
    """``session`` is the one whose hooks and events are heard within the block."""
    from sagaspan_crewai import _hooks

    listens = session_in_force.get() is not None  # around this one; the hooks find the innermost
    token = session_in_force.set(session)
    decision = decision_in_force.set(None)
    hooks = _compat.listening(
        before_tool=_hooks.before_tool, after_tool=_hooks.after_tool, before_model=_hooks.before_model,
        on_event=_hooks.on_event,
    )  # fmt: skip
    try:
        with contextlib.nullcontext() if listens else hooks:
            yield
    finally:
        decision_in_force.reset(decision)
        session_in_force.reset(token)
