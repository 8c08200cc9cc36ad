"""Chains, executors and every other runnable: an invocation is a run, and what is called within is guarded.

The copy is of a subclass of the runnable's own class. Each item of a batch is an invocation of its own. A guarded chain
that becomes a step of another one stays a step: LangChain would take its steps out, and leave its run behind.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Final

from langchain_core.runnables import Runnable, RunnableBinding, RunnableSequence

from sagaspan import ConfigurationError, Guard
from sagaspan.adapters import PolicyBook
from sagaspan_langchain._finding import found_in
from sagaspan_langchain._invocations import Invocations
from sagaspan_langchain._marks import guard_of, subclass, twin
from sagaspan_langchain._reach import Scope, install
from sagaspan_langchain._turns import Opening


def wrap_runnable(guard: Guard, target: Runnable[Any, Any], book: PolicyBook, opening: Opening) -> Runnable[Any, Any]:
    """``target`` guarded; raises ``ConfigurationError`` for a policy of a tool that it does not reach."""
    name = target.get_name()
    if guard_of(target) is not None:
        raise ConfigurationError(f"{name!r} is guarded already; wrap it once, with all its policies")
    found = found_in(target)
    book.check_names(list(found.tools), where=f"{name!r}")
    install()
    _keep_whole()
    scope = Scope(guard=guard, book=book, peers=found.tools, bypassed=found.bypassed)
    scope.prepare()
    guarded: Runnable[Any, Any] = twin(target, _guarded_class(scope, type(target), opening.named(name)))
    return guarded


def _guarded_class(scope: Scope, base: Any, opening: Opening) -> Any:
    made = Invocations(scope=scope, opening=opening, through_others=True)
    members = {
        "invoke": made.once(base.invoke), "ainvoke": made.aonce(base.ainvoke),
        "stream": made.pieces(base.stream), "astream": made.apieces(base.astream),
        "transform": made.pieces(base.transform), "atransform": made.apieces(base.atransform),
        # Each item is an invocation of its own, with a run of its own.
        "batch": Runnable.batch, "abatch": Runnable.abatch,
        "__or__": _joined(scope, opening, base.__or__), "__ror__": _joined(scope, opening, base.__ror__),
        "with_retry": _retried(scope, opening, base.with_retry),
    }  # fmt: skip
    if hasattr(base, "iter"):
        members["iter"] = _stepwise(made, base.iter)
    return subclass(scope.guard, base, members)


def _stepwise(made: Invocations, method: Callable[..., Any]) -> Callable[..., Any]:
    """``AgentExecutor.iter``: to go through its steps is an invocation too, which calls no other way to invoke it."""

    @functools.cache
    def kind_of(base: Any) -> Any:
        members = {
            "__iter__": _gone_through(made.pieces, base.__iter__),
            "__aiter__": _gone_through(made.apieces, base.__aiter__),
        }
        return subclass(made.scope.guard, base, members)

    @functools.wraps(method)
    def iter(self: Any, *args: Any, **options: Any) -> Any:  # noqa: A001 - LangChain's word
        steps = method(self, *args, **options)
        kind: Any = type(steps)
        return twin(steps, kind_of(kind))

    return iter


def _gone_through(pieces: Callable[..., Any], method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def begin(steps: Any) -> Any:
        return pieces(lambda *_: method(steps))(steps.agent_executor, steps.inputs)

    return begin


def _keep_whole() -> None:
    """Let LangChain make no chain of the steps of a guarded one; once a process."""
    sequence: Any = RunnableSequence
    with _lock:
        original = sequence.__init__
        if hasattr(original, _INSTALLED):
            return

        @functools.wraps(original)
        def made(self: Any, *steps: Any, **options: Any) -> None:
            original(self, *(_as_one(step) for step in steps), **options)

        setattr(made, _INSTALLED, True)
        sequence.__init__ = made


_INSTALLED: Final = "__sagaspan_keeps_whole__"
_lock = threading.Lock()


def _as_one(step: Any) -> Any:
    is_guarded = isinstance(step, RunnableSequence) and guard_of(step) is not None
    return RunnableBinding(bound=step) if is_guarded else step


def _joined(scope: Scope, opening: Opening, method: Callable[..., Any]) -> Callable[..., Any]:
    """A chain that takes this one's steps over is guarded as this one is."""

    @functools.wraps(method)
    def join(self: Any, other: Any) -> Any:
        longer = method(self, _as_one(other))  # which keeps policies of its own
        return twin(longer, _guarded_class(scope, type(longer), opening))

    return join


def _retried(scope: Scope, opening: Opening, method: Callable[..., Any]) -> Callable[..., Any]:
    """All attempts are one run: what one of them had done is not done again by the next."""

    @functools.wraps(method)
    def retry(self: Any, *args: Any, **options: Any) -> Any:
        retried = method(self, *args, **options)
        return twin(retried, _guarded_class(scope, type(retried), opening))

    return retry
