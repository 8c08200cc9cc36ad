"""Whether two functions, or two objects of a class, are one: a factory makes tools anew, and they are the same."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import enum
from collections.abc import Callable
from decimal import Decimal
from pathlib import PurePath
from types import CellType, FunctionType
from typing import Any, Final
from uuid import UUID

from pydantic import BaseModel, SecretBytes, SecretStr

_PLAIN: Final = (
    str, bytes, int, float, complex, Decimal, UUID, dt.date, dt.time, dt.timedelta, enum.Enum, type(None), PurePath,
    SecretStr, SecretBytes,
)  # fmt: skip


def same_callable(one: Callable[..., Any], other: Callable[..., Any], _seen: tuple[tuple[int, int], ...] = ()) -> bool:
    """Whether two functions do the same to the same things: not methods of two objects.

    What a factory made twice is the same if what it closes over is: identical, or equal and not to be changed.
    """
    if one is other or one == other:  # equal: bound methods of one object
        return True
    code = getattr(one, "__code__", None)
    if code is None or code is not getattr(other, "__code__", None) or hasattr(one, "__self__"):
        return False
    pair = id(one), id(other)  # a function may close over itself
    return pair in _seen or _same_values(_made_with(one), _made_with(other), (*_seen, pair))


def _made_with(function: Any) -> tuple[Any, ...]:
    """What the code of ``function`` is used with: its defaults, and what it closes over."""
    named = function.__kwdefaults__ or {}
    return function.__defaults__, *(named[name] for name in sorted(named)), *map(_held, function.__closure__ or ())


def _held(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _same_values(some: tuple[Any, ...], others: tuple[Any, ...], seen: tuple[tuple[int, int], ...]) -> bool:
    return len(some) == len(others) and all(
        _same_value(one, other, seen) for one, other in zip(some, others, strict=True)
    )


def _same_value(one: Any, other: Any, seen: tuple[tuple[int, int], ...]) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple):
        return _same_values(one, other, seen)
    if isinstance(one, FunctionType):
        return same_callable(one, other, seen)
    try:
        # What can be changed has no hash: two lists that are equal now are two things.
        return hash(one) == hash(other) and bool(one == other)
    except Exception:  # noqa: BLE001 - somebody's own comparison, or none
        return False


class MadeWith:
    """What tells the object of a tool's class from another one of it: the plain data the class keeps beside its base.

    In its fields and private attributes, and as they were when it was wrapped: a tool may count in them. What a
    ``default_factory`` made, a number or the time, nobody chose to tell two apart by. Of clients and other objects
    nobody can say whether two are the same thing, so they tell nothing.
    """

    def __init__(self, thing: BaseModel, kind: type[BaseModel], base: type[BaseModel]) -> None:
        """``kind`` is the class of ``thing`` as its author wrote it, ``base`` the framework's."""
        self._thing = thing
        fields = kind.model_fields.keys() - base.model_fields.keys()
        made = {name for name in fields - thing.model_fields_set if kind.model_fields[name].default_factory}
        private = kind.__private_attributes__.keys() - base.__private_attributes__.keys()
        made |= {name for name in private if kind.__private_attributes__[name].default_factory}
        self._told: dict[str, object] = {"": _name(kind)}
        for name in (fields | private) - made:
            with contextlib.suppress(_NoDataError):
                self._told[name] = _data(getattr(thing, name, None))

    def is_same(self, other: MadeWith) -> bool:
        """Whether both are one object, or nothing plain tells them apart."""
        return self._thing is other._thing or self._told == other._told


class _NoDataError(Exception):
    """What a value holds that is no plain data."""


def _data(value: object) -> object:
    """``value`` as it is now, to compare; raises for what is no plain data."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, dict):
        return {_data(key): _data(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [_data(held) for held in value]
    if isinstance(value, set | frozenset):
        return frozenset(map(_data, value))
    if isinstance(value, BaseModel):
        return _name(type(value)), _data(dict(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return _name(type(value)), {name: _data(getattr(value, name)) for name in names}
    raise _NoDataError


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
