"""State of an argument that nobody is shown, and no hash holds: what is encoded of a value is not all that runs.

A record has the data of a value: the fields of a dataclass or a model, the items of a mapping, the characters of a
string. An attribute beside them, a private one, or the state of somebody's own mapping could make the approved call
another one.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import sys
import uuid
from collections import ChainMap, Counter, OrderedDict, UserDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

_PLAIN: Final = frozenset({
    str, int, float, bool, type(None), list, tuple, dict, set, frozenset, bytes, uuid.UUID, OrderedDict, Counter,
    defaultdict, MappingProxyType, ChainMap, UserDict,
})  # fmt: skip
"""What has no state but its data."""

_HOLDS_DATA: Final = frozenset({"data", "maps"})
"""Where ``UserDict`` and ``ChainMap`` have their items."""

_ENCODED: Final = (
    str, int, float, list, tuple, dict, set, frozenset, bytes, uuid.UUID, Decimal, dt.date, dt.time, dt.timedelta,
)  # fmt: skip


def unshown(value: Any, path: str) -> str | None:
    """Where ``value`` or what is in it has state that its record does not have (None: nowhere)."""
    return _unshown(value, path, set())


def _unshown(value: Any, path: str, seen: set[int]) -> str | None:
    kind = type(value)
    if kind in (str, int, float, bool, type(None)) or id(value) in seen:
        return None
    seen.add(id(value))
    if isinstance(value, Enum) or _is_secret(value):  # a member is the same everywhere; a secret is never shown
        return None
    if dataclasses.is_dataclass(value) and isinstance(value, _ENCODED):
        return path  # its record has the one or the other
    if kind is defaultdict and value.default_factory is not None:
        return f"{path}.default_factory"
    if kind in _PLAIN:
        beside = sorted({*getattr(value, "__dict__", ())} - _HOLDS_DATA)
        if beside:
            return f"{path}.{beside[0]}"
    else:
        if isinstance(value, Mapping) and not isinstance(value, dict):
            return path  # what it gives is for its code to say
        beside = sorted(_state(value) - _fields(value))
        if beside:
            return f"{path}.{beside[0]}"
    return next((found for name, one in _inner(value, path) if (found := _unshown(one, name, seen)) is not None), None)


def _inner(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        pairs: Iterable[tuple[Any, Any]] = dict.items(value) if isinstance(value, dict) else value.items()
        for key, item in pairs:
            yield f"a key of {path}", key
            yield f"{path}.{key}" if type(key) is str else f"{path}[]", item
    elif isinstance(value, list | tuple | set | frozenset):
        base: Any = next(one for one in (list, tuple, set, frozenset) if isinstance(value, one))
        for item in base.__iter__(value):
            yield f"{path}[]", item
    else:
        for name in sorted(_fields(value)):
            if hasattr(value, name):
                yield f"{path}.{name}", getattr(value, name)


def _fields(value: Any) -> set[str]:
    """The attributes of ``value`` that its record has."""
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(value, pydantic.BaseModel):
        return {name for name in (*vars(value), *(value.__pydantic_extra__ or ())) if not name.startswith("_")}
    if dataclasses.is_dataclass(value):
        return {field.name for field in dataclasses.fields(value)}
    return set()


def _state(value: Any) -> set[str]:
    """The attributes that ``value`` has of its own."""
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(value, pydantic.BaseModel):
        return {*vars(value), *(value.__pydantic_private__ or ())}
    if not _is_data(value):
        return set()  # it has no encoding, and is UNINSPECTABLE as it is
    slots: set[str] = set()
    for kind in type(value).__mro__:
        if kind in _PLAIN:
            break
        own = vars(kind).get("__slots__", ())
        slots.update((own,) if isinstance(own, str) else own)
    slots -= {"__dict__", "__weakref__"}
    return {*getattr(value, "__dict__", ()), *(name for name in slots if hasattr(value, name))}


def _is_data(value: Any) -> bool:
    return dataclasses.is_dataclass(value) or isinstance(value, _ENCODED)


def _is_secret(value: Any) -> bool:
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(value, pydantic.SecretStr | pydantic.SecretBytes | pydantic.Secret)
