"""A world: one ledger, what happened outside it, and the processes that come, work and die one after another."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import fcntl
import inspect
import json
import os
import signal
import time
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, NoReturn, Self

from sagaspan import _owner as owner
from sagaspan._clock import boot_us
from sagaspan._views import Calls, Runs
from sagaspan.exceptions import ConfigurationError
from sagaspan.ledger.store import Store
from sagaspan.testing._leaving import leave
from sagaspan.testing._lives import Life, mortal
from sagaspan.testing._stores import temporary_folder, temporary_ledger

Job = Callable[["World"], Any]
"""What one process does: sets up its guard on ``world.store`` and lets the agent work; may be async."""

Where = Literal["here", "container", "machine"]
KILL_SECONDS: Final = 60.0
"""How long a child may take until it dies, before the test is failed."""


class World:
    """One ledger and what happened in the world, for a test with several processes; use it with ``with``.

    A process is played in this one (``process``), one at a time: it has an owner's name of its own, and when its job
    ends, or dies, it is dead for everybody who looks at the ledger.
    """

    def __init__(self, job: Job | None = None) -> None:
        self.points: tuple[str, ...] = ()
        self._job = job
        self._life: Life | None = None
        self._store: Store | None = None
        self._folder: Path | None = None
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._folder = self._open.enter_context(temporary_folder())
        self._opens = self._open.enter_context(temporary_ledger())
        self._store = self._opens()
        self._open.callback(leave, self._store)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._open.close()

    # -- the ledger ----------------------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        """For ``Guard(...)`` and ``guard.override(store=...)``: the ledger as the process at work sees it."""
        if self._store is None:
            raise ConfigurationError("a World is entered with `with` before it is used")
        return self._store

    @property
    def runs(self) -> Runs:
        """What the ledger has of runs, as ``guard.runs``."""
        return Runs(self.store)

    @property
    def calls(self) -> Calls:
        """What the ledger has of calls, as ``guard.calls``."""
        return Calls(self.store)

    # -- the world outside ---------------------------------------------------------------------------------------

    @property
    def effects(self) -> list[str]:
        """What happened, in order."""
        return [entry["what"] for entry in self._entries()]

    def effect(self, what: str, *, key: str | None = None) -> bool:
        """``what`` happens now, for everybody to see, whatever becomes of who did it; returns whether it did.

        With a ``key`` it happens once for each key, as in a service that knows idempotency keys.
        """
        if self._life is None:
            return self._happen(what, key)
        return self._life.step(what, "effect", lambda: self._happen(what, key))

    def happened(self, what: str, *, key: str | None = None, lag: float = 0.0) -> bool:
        """Whether ``what`` happened (under this ``key``), for a probe; its source lags behind by ``lag`` seconds."""
        if self._life is not None:
            self._life.check()
        seen_us = boot_us() - round(lag * 1e6)
        return any(
            entry["what"] == what and key in (None, entry["key"]) and entry["at_us"] <= seen_us
            for entry in self._entries()
        )

    def _happen(self, what: str, key: str | None) -> bool:
        with self._world().open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            if key is not None and any(_matches(line, what, key) for line in file):
                return False
            file.write(json.dumps({"what": what, "key": key, "at_us": boot_us()}) + "\n")
        return True

    def _entries(self) -> list[dict[str, Any]]:
        path = self._world()
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def _world(self) -> Path:
        return self._inside() / "world.jsonl"

    def _inside(self) -> Path:
        if self._folder is None:
            raise ConfigurationError("a World is entered with `with` before it is used")
        return self._folder

    # -- processes -----------------------------------------------------------------------------------------------

    def resume(self) -> Any:
        """A new process comes along and does the same job; returns or raises what it does."""
        if self._job is None:
            raise ConfigurationError("this world has no job to resume; give it one, World(job), or use process(job)")
        return self.process(self._job)

    def process(self, job: Job, *, die_at: str | None = None, kill: bool = False, where: Where = "here") -> Any:
        """A process comes along, does ``job``, and ends; returns or raises what the job does, None if it died.

        Args:
            job: gets this world; may be async.
            die_at: the name of a point (see ``crash_points``; ``points`` has those of the last process).
            kill: it is a child, and dies by a real SIGKILL; otherwise it is played in this process and dies by
                ``Crash``, after which nothing that it does lasts.
            where: in another ``"container"`` or on another ``"machine"`` its death cannot be proved, so that its lease
                decides.

        Raises ``AssertionError`` if the point is never reached.
        """
        if kill and die_at is None:
            raise ConfigurationError("kill=True kills at a point: say die_at=")
        life = Life(die_at=die_at, kill=kill)
        if kill:
            self._fork(job, life, where)
            return None
        value = self._play(job, life, where)
        if die_at is not None and not life.dead:
            raise AssertionError(_never_reached(die_at, life.points))
        return value

    def _play(self, job: Job, life: Life, where: Where) -> Any:
        role = owner.Role(where)
        try:
            with role.played():
                return self._live(job, life)
        finally:
            role.end()

    def _live(self, job: Job, life: Life) -> Any:
        disk = self._opens()
        before = self._store, self._life
        self._store, self._life = mortal(disk, life), life
        try:
            return contextvars.Context().run(_do, job, self)
        except BaseException:
            if not life.dead:
                raise
            return None  # whatever it made of its own death
        finally:
            leave(self._store)
            self._store, self._life = before
            self.points = tuple(life.points)

    def _fork(self, job: Job, life: Life, where: Where) -> None:
        report = self._inside() / "child.txt"
        report.unlink(missing_ok=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which the child has no use for
            pid = os.fork()
        if pid == 0:
            self._be_the_child(job, life, where, report)
        status = _wait_for(pid)
        if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
            raise AssertionError(report.read_text() if report.exists() else f"the child ended with status {status}")

    def _be_the_child(self, job: Job, life: Life, where: Where, report: Path) -> NoReturn:
        """Never back into the test that forked us."""
        said = ""
        try:
            if where == "here":
                self._live(job, life)
            with owner.Role(where).played():
                self._live(job, life)
        except BaseException:  # noqa: BLE001 - told to the parent
            said = f"\n{traceback.format_exc()}"
        finally:
            report.write_text(f"{_never_reached(str(life.die_at), life.points)}{said}")
            os._exit(1)


def _do(job: Job, world: World) -> Any:
    value = job(world)
    if not inspect.isawaitable(value):
        return value

    async def wait() -> Any:
        return await value

    if not _loop_is_running():
        return asyncio.run(wait())
    with ThreadPoolExecutor(max_workers=1) as thread:  # of an asynchronous test: a process has a loop of its own
        return thread.submit(contextvars.copy_context().run, asyncio.run, wait()).result()


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _wait_for(pid: int) -> int:
    deadline = time.monotonic() + KILL_SECONDS
    pause = 0.001
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise AssertionError(f"the child did not come to its point within {KILL_SECONDS:g} s")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)


def _never_reached(point: str, points: list[str]) -> str:
    passed = "\n  ".join(points) or "nothing: does its guard use world.store?"
    return f"the point {point!r} was never reached; this process passed:\n  {passed}"


def _matches(line: str, what: str, key: str) -> bool:
    entry = json.loads(line)
    return bool(entry["what"] == what and entry["key"] == key)
