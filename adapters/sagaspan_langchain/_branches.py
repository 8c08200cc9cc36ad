"""Which of the branches side by side a call belongs to, so that what each of them asks once is no loop.

A graph that sends ten workers off asks ten times for the same at once, before any of them knows an answer. The tasks of
one step are numbered as they come, and from the beginning in the next. So are the agents that the code of one task
invokes while another of them is at work; once none is, the next begins anew. A worker that is asked again and again,
by a graph or by a loop in the code of a node, goes on counting.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakKeyDictionary

from sagaspan import Run
from sagaspan_langchain import _compat_tasks as tasks


@dataclass(slots=True)
class _Crowd:
    """The agents that one task invokes: how many are at work, and have been since none was."""

    at_work: int = 0
    begun: int = 0


@dataclass(slots=True)
class Branch:
    """One invocation of an agent, and the numbers of those within it. ``path`` is "" where nothing is beside it."""

    path: str = ""
    _crowd: _Crowd = field(default_factory=_Crowd)
    _step: int = -1
    _tasks: dict[str, list[str]] = field(default_factory=dict)
    _crowds: dict[str, _Crowd] = field(default_factory=dict)

    def begin(self, task: tuple[str, int, str] | None) -> Branch:
        """One more within this one, invoked by the code of ``task``: its name, its step and which one it is."""
        name = ""
        with _lock:
            if task is not None and task[1] != self._step:
                self._step, self._tasks, self._crowds = task[1], {}, {}
            crowd = self._crowds.setdefault("" if task is None else task[2], _Crowd())
            if task is not None:
                known = self._tasks.setdefault(task[0], [])
                if task[2] not in known:
                    known.append(task[2])
                name = f"{task[0]}#{known.index(task[2])}"
            number, crowd.begun, crowd.at_work = crowd.begun, crowd.begun + 1, crowd.at_work + 1
        own = f"{name}.{number}" if number else name
        return Branch(f"{self.path}|{own}" if self.path and own else self.path or own, crowd)

    def end(self) -> None:
        """It is over."""
        with _lock:
            self._crowd.at_work -= 1
            if not self._crowd.at_work:
                self._crowd.begun = 0

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        """Within the block calls belong to it."""
        token = _in_force.set(self)
        try:
            yield
        finally:
            _in_force.reset(token)


_in_force: Final[ContextVar[Branch | None]] = ContextVar("sagaspan_langchain_branch", default=None)
_of_runs: Final[WeakKeyDictionary[Run, Branch]] = WeakKeyDictionary()
_lock: Final = threading.Lock()


def begin(run: Run) -> Branch:
    """An invocation of a guarded agent, in ``run``."""
    around = _in_force.get()
    if around is None:
        with _lock:
            around = _of_runs.setdefault(run, Branch())
    return around.begin(tasks.task_here())


def branch_here() -> str | None:
    """A name for the branch that calls a tool here, the same whenever it is begun anew; None where there is one."""
    here = _in_force.get()
    return None if here is None else here.path or None


# -- agents that nobody wrapped, within one that is -------------------------------------------------------------


def pieces(
    method: Callable[..., Any], is_counted: Callable[[Any], bool], begins: Callable[[Any, Any], None]
) -> Callable[..., Any]:
    """``Pregel.stream``, through which all that is invoked goes, where ``is_counted`` for the graph.

    ``begins`` is told the graph and its config.
    """

    def stream(self: Any, input: Any, config: Any = None, **options: Any) -> Iterator[Any]:  # noqa: A002 - as LangGraph
        around = _in_force.get() if is_counted(self) else None
        chunks = method(self, input, config, **options)
        return chunks if around is None else counted(around, self, config, chunks)

    def counted(around: Branch, graph: Any, config: Any, chunks: Any) -> Iterator[Any]:
        begins(graph, config)
        branch = around.begin(tasks.task_here())
        try:
            while True:
                with branch.in_force():
                    try:
                        chunk = next(chunks)
                    except StopIteration:
                        return
                yield chunk
        finally:
            chunks.close()
            branch.end()

    return stream


def apieces(
    method: Callable[..., Any], is_counted: Callable[[Any], bool], begins: Callable[[Any, Any], Awaitable[None]]
) -> Callable[..., Any]:
    """As ``pieces``, of ``Pregel.astream``."""

    def astream(self: Any, input: Any, config: Any = None, **options: Any) -> AsyncIterator[Any]:  # noqa: A002 - as above
        around = _in_force.get() if is_counted(self) else None
        chunks = method(self, input, config, **options)
        return chunks if around is None else counted(around, self, config, chunks)

    async def counted(around: Branch, graph: Any, config: Any, chunks: Any) -> AsyncIterator[Any]:
        await begins(graph, config)
        branch = around.begin(tasks.task_here())
        try:
            while True:
                with branch.in_force():
                    try:
                        chunk = await anext(chunks)
                    except StopAsyncIteration:
                        return
                yield chunk
        finally:
            await chunks.aclose()
            branch.end()

    return astream
