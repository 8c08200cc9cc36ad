"""Answer a user's statement in a child process, with a deadline and a memory limit that the system enforces.

DuckDB looks at its interrupt and its memory limit only between batches of rows. A single value can take hours or many
gigabytes: ``repeat('x', 4e9)``, ``range(1e9)``. The child is forked before any thread starts. That takes about a
millisecond; a new interpreter takes more than 100.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NoReturn

import click

from sagaspan.exceptions import SagaspanError
from sagaspan.index.connection import needs_more_memory, took_longer
from sagaspan.index.errors import QueryError

MEMORY: Final = 4_000_000_000
"""Bytes for one answer: DuckDB's own 2 GB, the values of functions, the rows, and the text that is printed."""

_OF_A_THREAD: Final = 16 * 1024 * 1024
_GRACE: Final = 1.0
"""Seconds behind the deadline in which DuckDB can still stop by itself."""

_DIES_WITH_PARENT: Final = 1  # PR_SET_PDEATHSIG

Answer = Callable[[float, Path | None, Callable[[], None]], int | None]
Ask = Callable[[float, Path | None], int | None]


@contextlib.contextmanager
def child_for(answer: Answer) -> Iterator[Ask]:
    """Fork a child; give a function that has it call ``answer(seconds, file, answered)`` and returns what that does.

    After so many seconds the child is ended, unless ``answer`` has called ``answered``: printing may take longer.
    Raises what ``answer`` raises, and ``QueryError`` if the limits end it. Windows has no fork, and so no limits.
    """
    if not hasattr(os, "fork"):
        yield lambda seconds, file: answer(seconds, file, lambda: None)
        return
    theirs, asking = os.pipe()
    hearing, answers = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    parent, child = os.getpid(), os.fork()
    if child == 0:
        os.close(asking)
        os.close(hearing)
        _serve(answer, theirs, answers, parent)
    os.close(theirs)
    os.close(answers)
    status: int | None = None

    def ask(seconds: float, file: Path | None) -> int | None:
        nonlocal status
        with contextlib.suppress(BrokenPipeError):  # it has died: its status says of what
            os.write(asking, pickle.dumps((seconds, file)))
        answered = b""
        while part := os.read(hearing, 65536):
            answered += part
        status = os.waitpid(child, 0)[1]
        if answered:
            value, error = pickle.loads(answered)  # noqa: S301 - from our own child
            if error is not None:
                raise error
            return None if value is None else int(value)
        _check_ended_well(status, seconds)
        return None

    try:
        yield ask
    finally:
        os.close(asking)
        os.close(hearing)
        if status is None:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


def _check_ended_well(status: int, seconds: float) -> None:
    if os.WIFEXITED(status):
        if code := os.WEXITSTATUS(status):
            sys.exit(code)
        return
    number = os.WTERMSIG(status)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    if number == signal.SIGALRM:
        raise took_longer(seconds)
    raise QueryError(f"the query ended the process that answered it ({signal.strsignal(number)}); narrow the query")


def _serve(answer: Answer, theirs: int, answers: int, parent: int) -> NoReturn:
    """The child: wait for the question, answer it, and leave without anything that the parent will do too."""
    outcome: tuple[int | None, Exception | None] | None = None
    code = 1
    try:
        for number in (signal.SIGINT, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        _end_with(parent)
        with contextlib.suppress(ImportError):
            import duckdb  # noqa: F401 - while the parent looks at the trace files
        asked = os.read(theirs, 65536)
        if asked:
            seconds, file = pickle.loads(asked)  # noqa: S301 - from our own parent
            _limit(seconds + _GRACE)
            value = answer(seconds, file, _stop_timer)
            _stop_timer()
            sys.stdout.flush()
            outcome = value, None
        code = 0
    except BrokenPipeError:  # the reader (head, less) has gone
        code = 0
    except MemoryError:
        outcome = None, needs_more_memory()
    except (SagaspanError, click.ClickException) as error:
        outcome = None, error
    except BaseException:  # noqa: BLE001 - nothing may return from here into the code of the parent
        traceback.print_exc()
    finally:
        _stop_timer()
        with contextlib.suppress(BaseException):
            if outcome is not None:
                os.write(answers, pickle.dumps(outcome))
        os._exit(code)


def _limit(seconds: float) -> None:
    """Let the system end this process after so many seconds, and give it no more memory than it may have."""
    import resource

    memory = MEMORY + _OF_A_THREAD * (os.cpu_count() or 1)
    for which, most in ((resource.RLIMIT_DATA, memory), (resource.RLIMIT_CORE, 0)):
        soft, hard = resource.getrlimit(which)
        held = [most, *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY)]
        with contextlib.suppress(ValueError, OSError):  # a system may know no such limit
            resource.setrlimit(which, (min(held), hard))
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _stop_timer() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)


def _end_with(parent: int) -> None:
    """Have Linux end this process when its parent is killed, not only at its deadline."""
    if sys.platform == "linux":
        import ctypes  # which duckdb imports anyway

        ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
