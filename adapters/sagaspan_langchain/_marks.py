"""How a guarded object is told from another: its class was made for it, and names its guard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sagaspan import Guard

_MARK: Final = "__sagaspan_guard__"
_STATE: Final = ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")


def guard_of(target: object) -> Guard | None:
    """The guard that made the class of ``target``, or None."""
    guard: Guard | None = getattr(type(target), _MARK, None)
    return guard


def own_class(target: Any) -> Any:
    """The class of ``target`` without what a guard put over it."""
    return type(target).__base__ if guard_of(target) is not None else type(target)


def subclass(guard: Guard, base: Any, members: Mapping[str, Any]) -> Any:
    """A subclass of ``base`` that looks like it, with ``members``."""
    names = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
    made = type(base)(base.__name__, (base,), {**names, **members})
    setattr(made, _MARK, guard)
    return made


def twin(target: Any, kind: Any) -> Any:
    """An object of ``kind`` with the very state of ``target``, what either changes, both have."""
    made = object.__new__(kind)
    for name in _STATE:
        if name == "__dict__" or hasattr(target, name):
            object.__setattr__(made, name, getattr(target, name))
    return made
