"""The run and the call in force, by context variable: they follow threads and tasks that work is handed to."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING

from sagaspan.exceptions import ConfigurationError

if TYPE_CHECKING:
    from sagaspan._call import Call
    from sagaspan._run import Run
    from sagaspan.approvers import Approver

current_run: ContextVar[Run | None] = ContextVar("sagaspan_run", default=None)
current_call: ContextVar[Call | None] = ContextVar("sagaspan_call", default=None)
approver_here: ContextVar[Approver | None] = ContextVar("sagaspan_approver", default=None)
"""Who is asked in the place of the guard's approver: the framework whose step the call is made in."""
task_here: ContextVar[Callable[[], str | None] | None] = ContextVar("sagaspan_task", default=None)
"""What says in which task of its framework a call is made, where that can go on without its tasks that have ended."""
execution_here: ContextVar[Callable[[], str | None] | None] = ContextVar("sagaspan_execution", default=None)
"""What says the code of which task makes a call, where its framework may run that code again in the same run."""
calls_held: ContextVar[tuple[str, ...]] = ContextVar("sagaspan_calls_held", default=())
"""The calls of models that are open around this code, which it must not wait for; some may be over."""

_hears: ContextVar[tuple[Call | None, list[str]] | None] = ContextVar("sagaspan_hears", default=None)


@contextlib.contextmanager
def hearing() -> Iterator[list[str]]:
    """What there is to remark on the call that is made in this block, for the model that asked (for adapters)."""
    heard: list[str] = []
    token = _hears.set((current_call.get(), heard))
    try:
        yield heard
    finally:
        _hears.reset(token)


def remark(remarks: tuple[str, ...]) -> None:
    """Let whoever hears this very call, and not one in its body, know ``remarks``."""
    hears = _hears.get()
    if hears is not None and hears[0] is current_call.get():
        hears[1].extend(remarks)


_declaring: list[str] = []


@contextlib.contextmanager
def only_declaring(module: str) -> Iterator[None]:
    """Let ``module`` be imported for its tools: what it starts meanwhile is refused, in any thread."""
    _declaring.append(module)
    try:
        yield
    finally:
        _declaring.pop()


def check_may_start(what: str) -> None:
    """Refuse to start ``what`` while a module is imported for its tools; raises ``ConfigurationError``."""
    if _declaring:
        raise ConfigurationError(
            f"{what} was started by importing {_declaring[-1]!r}, which is imported for its tools only; put what runs "
            'your agent under `if __name__ == "__main__":`'
        )


@contextlib.contextmanager
def nothing_in_force() -> Iterator[None]:
    """No run and no call, for what belongs to none: a probe is no step of the run it asks for."""
    run, call = current_run.set(None), current_call.set(None)
    try:
        yield
    finally:
        current_call.reset(call)
        current_run.reset(run)


@contextlib.contextmanager
def call_in_force(call: Call) -> Iterator[None]:
    """Make ``call`` the current one while its body runs."""
    token = current_call.set(call)
    try:
        yield
    finally:
        current_call.reset(token)
