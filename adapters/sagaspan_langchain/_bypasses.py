"""What would run a tool past the guard, told before anything ran: classes and code that reach a body by themselves.

A guard stands around a tool's body. A class whose ``run`` does the work itself has no body there, and ``pay.func(...)``
is a plain function of the user's, which nothing may change. Both are read from the compiled code.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any, Final

_WAYS: Final = ("invoke", "ainvoke", "run", "arun")
_REACHING: Final = frozenset({*_WAYS, "_run", "_arun", "super"})
_BODIES: Final = frozenset({"func", "coroutine", "_run", "_arun"})
_BY_NAME: Final = frozenset({"LOAD_GLOBAL", "LOAD_DEREF", "LOAD_NAME"})
_ATTRIBUTE: Final = frozenset({"LOAD_ATTR", "LOAD_METHOD"})


def way_past_the_body(kind: type) -> str | None:
    """The method in which a class of tools runs without its body, so that nothing sees it; None if there is none."""
    return next((name for name in _WAYS if not _reaches_a_body(getattr(kind, name))), None)


def called_directly(function: FunctionType) -> Iterator[str]:
    """The names under which ``function`` takes the body of something, as in ``pay.func(...)``."""
    for code in codes_of(function.__code__):
        before = None
        for one in dis.get_instructions(code):
            if before is not None and one.opname in _ATTRIBUTE and one.argval in _BODIES and before.opname in _BY_NAME:
                yield before.argval
            before = one


def codes_of(code: CodeType) -> Iterator[CodeType]:
    """``code`` and that of the functions within it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from codes_of(inner)


def _reaches_a_body(method: Any) -> bool:
    code = getattr(inspect.unwrap(method), "__code__", None)
    return code is not None and any(_REACHING & {*one.co_names} for one in codes_of(code))
