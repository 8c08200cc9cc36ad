"""Frozen data that is made and copied nearly as fast as data that is not.

``dataclasses`` fill a frozen object field by field through ``object.__setattr__``: for the records of a guarded call,
one of which has forty fields, that was a tenth of all its work. Here an object is filled while it is of its class's
*twin*, which has the same slots and lets them be set, and becomes frozen when its class is set, once. Only for
dataclasses with slots that derive from nothing and check nothing when they are made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Final, TypeVar

T = TypeVar("T")

_Copy = Callable[[Any, Mapping[str, Any]], Any]
_COPIES: Final[dict[type, _Copy]] = {}


def quick(kind: type[T]) -> type[T]:
    """Class decorator above ``@dataclass(frozen=True, slots=True)``: the same ``__init__``, in half the time."""
    twin, known = _twin(kind), _fields(kind)
    names: dict[str, Any] = {"kind": kind, "twin": twin, "turn": object.__setattr__, "MISSING": MISSING}
    for field in known:
        names |= {f"default_{field.name}": field.default, f"make_{field.name}": field.default_factory}
    made = _defined(
        names,
        f"def __init__({_parameters(known)}):",
        "  turn(self, '__class__', twin)",
        *(f"  self.{field.name} = {_value(field)}" for field in known),
        "  self.__class__ = kind",
    )
    made.__qualname__ = f"{kind.__qualname__}.__init__"
    kind.__init__ = made  # type: ignore[method-assign]
    kind.__init_subclass__ = classmethod(_refuse)  # type: ignore[assignment]
    return kind


def replaced(one: T, **changes: Any) -> T:
    """``one`` with ``changes`` of its fields; raises ``TypeError`` for a name that is no field."""
    kind = type(one)
    copy = _COPIES.get(kind) or _COPIES.setdefault(kind, _copy(kind))
    try:
        changed: T = copy(one, changes)
    except AttributeError:
        unknown = sorted(changes.keys() - {field.name for field in _fields(kind)})
        raise TypeError(f"{kind.__name__} has no field {', '.join(map(repr, unknown))}") from None
    return changed


def _copy(kind: type) -> _Copy:
    """What makes a changed copy of an object of ``kind``."""
    copied: _Copy = _defined(
        {"kind": kind, "twin": _twin(kind), "new": object.__new__},
        "def copied(one, changes):",
        "  copy = new(twin)",
        *(f"  copy.{field.name} = one.{field.name}" for field in _fields(kind)),
        "  for name in changes:",
        "    setattr(copy, name, changes[name])",
        "  copy.__class__ = kind",
        "  return copy",
    )
    return copied


def _twin(kind: type) -> type:
    """A class of objects that can be filled, and be made objects of ``kind`` then."""
    if not (is_dataclass(kind) and "__slots__" in vars(kind)) or hasattr(kind, "__post_init__"):
        raise TypeError(f"{kind.__name__} is no dataclass with slots that checks nothing when it is made")
    if kind.__bases__ != (object,):
        raise TypeError(f"{kind.__name__} derives from another class, whose slots its twin would not have")
    return type(kind.__name__, (), {"__slots__": vars(kind)["__slots__"]})


def _fields(kind: Any) -> tuple[Field[Any], ...]:
    return fields(kind)


def _parameters(known: tuple[Field[Any], ...]) -> str:
    """Those of ``__init__``: ``self``, those in place, and those by name only."""
    in_place, by_name = ([_parameter(field) for field in known if field.kw_only is only] for only in (False, True))
    return ", ".join(["self", *in_place, *(["*", *by_name] if by_name else [])])


def _parameter(field: Field[Any]) -> str:
    is_needed = field.default is MISSING and field.default_factory is MISSING
    return field.name if is_needed else f"{field.name}=default_{field.name}"


def _value(field: Field[Any]) -> str:
    name = field.name
    return name if field.default_factory is MISSING else f"make_{name}() if {name} is MISSING else {name}"


def _refuse(kind: type) -> None:
    raise TypeError(f"{kind.__name__} would be made an object of the class that it derives from")


def _defined(names: dict[str, Any], first: str, *lines: str) -> Any:
    """The function of this source; only names of fields are put into it, as ``dataclasses`` does it."""
    exec("\n".join((first, *lines)), names)  # noqa: S102
    return names[first.removeprefix("def ").partition("(")[0]]
