"""Every point at which a job can die, as the parameters of one test."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from sagaspan.exceptions import ConfigurationError
from sagaspan.testing._worlds import Job, World


class CrashPoint:
    """A point at which a process dies; ``with crash as world:`` lets it, in a world of its own.

    ``name`` is stable and readable: ``"charge: after claim"``; the second of its kind ends with ``(2)``.
    """

    def __init__(self, job: Job, name: str, *, before: Callable[[World], Any] | None, kill: bool) -> None:
        self.name = name
        self.kill = kill
        self._job = job
        self._before = before
        self._worlds: list[World] = []

    @property
    def __name__(self) -> str:  # by which pytest calls the test
        return f"{self.name}, SIGKILL" if self.kill else self.name

    def __repr__(self) -> str:
        return f"<CrashPoint {self.__name__}>"

    def __enter__(self) -> World:
        world = World(self._job).__enter__()
        try:
            if self._before is not None:
                self._before(world)
            world.process(self._job, die_at=self.name, kill=self.kill)
        except BaseException:
            world.__exit__(None, None, None)
            raise
        self._worlds.append(world)
        return world

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._worlds.pop().__exit__(kind, error, traceback)


def crash_points(
    job: Job,
    *,
    before: Callable[[World], Any] | None = None,
    kill: bool = False,
    only: str | Sequence[str] | None = None,
) -> list[CrashPoint]:
    """The points at which ``job`` can die, for ``pytest.mark.parametrize("crash", crash_points(job))``.

    A point is before and after everything that lasts: each commit of the ledger (a claim, another attempt, a sending
    mark, a settle, the opening and the end of a run, the decision to roll it back, the claim and the settle of each
    compensation, ...), its lease, and each ``world.effect(...)``. The job is done once, here, to record them.

    Args:
        job: what one process does, given the ``World``: it makes its guard on ``world.store``, or puts that under an
            existing one with ``guard.override(store=world.store)``, and lets the agent work. It may be async, and does
            the same every time.
        before: what happened in the world before, given the ``World``: a process that died, for the points of the
            one that goes on after it.
        kill: kill a child process by a real SIGKILL, instead of playing the death in this one.
        only: names of points, or patterns of them (``"charge: *"``).

    What the job raises while it is recorded is raised here. Raises ``ConfigurationError`` for a pattern that names no
    point, and ``AssertionError``, from the test, for a point that is not reached there.
    """
    with World() as world:
        if before is not None:
            before(world)
        world.process(job)
        names = world.points
    if not names:
        raise ConfigurationError("the job passed no point: does its guard use world.store?")
    return [CrashPoint(job, name, before=before, kill=kill) for name in _chosen(names, only)]


def _chosen(names: Sequence[str], only: str | Sequence[str] | None) -> list[str]:
    if only is None:
        return list(names)
    patterns = [only] if isinstance(only, str) else list(only)
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise ConfigurationError(f"there is no point {pattern!r}; there are {', '.join(map(repr, names))}")
    return [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]
