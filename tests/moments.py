"""Where a signal handler may run, or Ctrl-C be raised: each such moment of a piece of work, one after the other.

CPython looks for signals after a call has returned from C, where a function begins, and where a loop begins anew; at
no other instruction (``Python/ceval.c``, ``CHECK_EVAL_BREAKER``). So a lock that ``with`` takes is held, and one that a
line of Python takes may be taken with nobody there to give it back. The work is traced instruction by instruction in a
thread of its own, and is interrupted there once for each such place in the files that are looked at.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, Final

SECONDS: Final = 5.0
"""How long the work may take: it waits for itself if it takes longer."""

_CALLS: Final = {"CALL", "CALL_FUNCTION_EX", "CALL_KW"}
_LOOKS: Final = _CALLS | {"JUMP_BACKWARD", "RESUME"}
_RESUMED: Final = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_CONTEXTLIB: Final = "/contextlib.py"

Moment = tuple[CodeType, int]
"""A function, and the instruction before which it is interrupted."""


def interrupted_everywhere(
    work: Callable[[], object], by: Callable[[], object], *, within: tuple[str, ...]
) -> Iterator[tuple[str, BaseException | None]]:
    """``work`` interrupted ``by`` that, anew at each moment in files whose path ends so, or in ``contextlib``.

    Yields where that was, and what the work raised. Fails if it does not end.
    """
    seen = _Tracer(within)
    with _traced(work, seen):
        pass
    for moment in list(seen.moments):
        with _traced(work, _Tracer(within, moment, by)) as error:
            yield _named(moment), error


class _Tracer:
    def __init__(
        self, within: tuple[str, ...], moment: Moment | None = None, by: Callable[[], object] = lambda: None
    ) -> None:
        self.moments: dict[Moment, None] = {}
        self._within = (*within, _CONTEXTLIB)
        self._moment = moment
        self._by = by
        self._before: dict[FrameType, int | None] = {}
        """The instruction before, in each function that goes on; None where no signals are heard behind it."""

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        """A function begins."""
        caller, code = frame.f_back, frame.f_code
        inlined = not code.co_flags & _RESUMED and code.co_name != "__init__"
        if caller in self._before and inlined:  # a call of Python by Python: nobody looks when it returns
            self._before[caller] = None
        if not code.co_filename.endswith(self._within):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self._before[frame] = -1
        return self._follow

    def _follow(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "return":
            self._before.pop(frame, None)
        elif event == "exception":
            self._before[frame] = None
        elif event == "opcode":
            code, before, now = frame.f_code, self._before.get(frame), frame.f_lasti
            self._before[frame] = now if dis.opname[code.co_code[now]] in _LOOKS else None
            # What is raised there is of the instruction before, and can be tried only where the same handler has both.
            if before is not None and (before < 0 or _handler(code, before) == _handler(code, now)):
                self._reached((code, now))
        return self._follow

    def _reached(self, moment: Moment) -> None:
        self.moments[moment] = None
        if moment == self._moment:
            self._moment = None
            sys.settrace(None)
            self._by()


@contextlib.contextmanager
def _traced(work: Callable[[], object], tracer: _Tracer) -> Iterator[BaseException | None]:
    """What the work raised. Its thread ends with the block: the next one may be taken for it, and have its locks."""
    errors: list[BaseException] = []
    over, seen = threading.Event(), threading.Event()

    def traced() -> None:
        sys.settrace(tracer)
        try:
            work()
        except BaseException as error:
            errors.append(error)
        finally:
            sys.settrace(None)
        over.set()
        seen.wait()

    thread = threading.Thread(target=traced, daemon=True)
    thread.start()
    if not over.wait(SECONDS):
        stack = traceback.format_stack(sys._current_frames()[thread.ident or 0])
        where = "" if tracer._moment or not tracer.moments else f", interrupted in {_named(list(tracer.moments)[-1])}"
        raise AssertionError(f"it waits for ever{where}:\n{''.join(stack)}")
    try:
        yield errors[0] if errors else None
    finally:
        seen.set()
        thread.join()


@functools.cache
def _handlers(code: CodeType) -> list[Any]:
    return list(dis._parse_exception_table(code))  # type: ignore[attr-defined]


def _handler(code: CodeType, instruction: int) -> int | None:
    """Where it goes on if this instruction raises."""
    return next((one.target for one in _handlers(code) if one.start <= instruction < one.end), None)


def _named(moment: Moment) -> str:
    code, instruction = moment
    line = list(code.co_positions())[instruction // 2][0]
    return f"{code.co_filename}:{line} in {code.co_qualname}"
