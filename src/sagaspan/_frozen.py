"""A changed copy of frozen data, in less than half the time of ``dataclasses.replace``.

A guarded call makes eight of them. Only for dataclasses with slots that check nothing when they are made: the copy is
filled slot by slot, and no ``__init__`` runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar

T = TypeVar("T")


class _Plan(NamedTuple):
    values: Callable[[Any], Sequence[Any]]
    setters: tuple[Callable[[Any, Any], None], ...]
    by_name: dict[str, Callable[[Any, Any], None]]


_PLANS: Final[dict[type, _Plan]] = {}


def replaced(one: T, **changes: Any) -> T:
    """``one`` with ``changes`` of its fields; raises ``TypeError`` for a name that is no field."""
    kind = type(one)
    plan = _PLANS.get(kind) or _PLANS.setdefault(kind, _plan(kind))
    copy = object.__new__(kind)
    for put, value in zip(plan.setters, plan.values(one), strict=True):
        put(copy, value)
    try:
        for name, value in changes.items():
            plan.by_name[name](copy, value)
    except KeyError as error:
        raise TypeError(f"{kind.__name__} has no field {error}") from None
    return copy


def _plan(kind: type) -> _Plan:
    if not (is_dataclass(kind) and "__slots__" in vars(kind)) or hasattr(kind, "__post_init__"):
        raise TypeError(f"{kind.__name__} is no dataclass with slots that checks nothing when it is made")
    names = [field.name for field in fields(kind)]
    by_name = {name: getattr(kind, name).__set__ for name in names}
    return _Plan(attrgetter(*names), tuple(by_name.values()), by_name)
