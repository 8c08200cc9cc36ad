"""Threads that lose the context: what they were started in is remembered beside it, so that no tool escapes there.

A new thread, and a job of a pool, begins with an empty context, so the step of the agent that started it is not in
force in it, and a tool called there would run unguarded. The step is noted on the thread, or for the time of the job;
only the tools and models of LangChain look for it. The user's code in the thread sees nothing of it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, Final

_NOTED: Final = "__sagaspan_started_in__"
_of_job: ContextVar[Any] = ContextVar("sagaspan_langchain_job", default=None)
_makes_a_worker: ContextVar[bool] = ContextVar("sagaspan_langchain_worker", default=False)


def started_in() -> Any:
    """The step in which the thread or the job that runs here was started; None if in none."""
    job = _of_job.get()
    return vars(threading.current_thread()).get(_NOTED) if job is None else job


def install(step_in_force: Callable[[], Any]) -> None:
    """Note ``step_in_force()`` with every thread and job of a pool that is started in one."""
    thread: Any = threading.Thread
    pool: Any = ThreadPoolExecutor
    start, submit = thread.start, pool.submit

    @functools.wraps(start)
    def noted_start(self: threading.Thread) -> None:
        # The threads of a pool outlive the step that happens to need one more.
        if not _makes_a_worker.get() and (step := step_in_force()) is not None:
            vars(self)[_NOTED] = step
        start(self)

    @functools.wraps(submit)
    def noted_submit(self: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        step = step_in_force()
        if step is None:
            return submit(self, fn, *args, **kwargs)
        token = _makes_a_worker.set(True)
        try:
            return submit(self, functools.partial(_within, step, fn), *args, **kwargs)
        finally:
            _makes_a_worker.reset(token)

    thread.start, pool.submit = noted_start, noted_submit


def _within(step: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    token = _of_job.set(step)
    try:
        return fn(*args, **kwargs)
    finally:
        _of_job.reset(token)
