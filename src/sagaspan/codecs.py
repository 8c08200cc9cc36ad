"""Values to JSON text and back, without pickle and without importing anything by a stored name.

Plain JSON goes as it is. A closed list of types beyond it travels as ``{"$type": ..., "value": ...}``: datetime, date,
time, timedelta, Decimal, Fraction, bytes, bytearray, UUID, paths, IP addresses, set, frozenset, tuple, deque, integers
of 2^53 and beyond, NaN and infinities, and mappings with keys that are not strings. An Enum is stored as its value, and
an object of a dataclass, of a class of attrs, of a pydantic model or a ``SimpleNamespace`` as its data: they come back
as plain values. Anything else cannot be encoded (``Unencodable``); the caller decides what that means.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import ipaddress
import json
import math
import sys
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from types import SimpleNamespace
from typing import Any, Final, Protocol

TAG: Final = "$type"
REDACTED: Final = "redacted"
_REDACTED_TEXT: Final = f'"{TAG}":"{REDACTED}"'
_SHOWN: Final = "<encrypted>"
_NO_CODEC: Final = "it is encrypted, and there is no codec here that reads it"
MAX_SAFE_INTEGER: Final = 2**53 - 1
MAX_DEPTH: Final = 100
_MAX_READ_DEPTH: Final = 3 * MAX_DEPTH  # a tag adds levels of its own


ENCRYPTED: Final = "$encrypted:"
"""How a recorded text starts that went through a ``Codec``: no JSON does."""


class Codec(Protocol):
    """What encrypts recorded values: ``Guard(codec=...)``. It is used by many threads at once.

    ``decode`` undoes ``encode``, also that of another process and of an earlier key, or raises any exception.
    """

    def encode(self, data: bytes, /) -> bytes:
        """``data`` as it is recorded."""

    def decode(self, data: bytes, /) -> bytes:
        """What ``encode`` was given."""


class Unencodable(ValueError):
    """``path`` of the first value that has no encoding, and its ``kind``."""

    def __init__(self, path: str, kind: str) -> None:
        super().__init__(f"{path or 'the value'} is of the type {kind}, which cannot be recorded")
        self.path = path
        self.kind = kind


class SecretFound(Unencodable):
    """A pydantic secret where nobody said what is to stand for it."""


class Undecodable(ValueError):
    """A recorded text that cannot be read: not of this module, damaged, or of a later version."""


class Unrecorded(str):
    """What stands for a recorded value that had no encoding."""

    __slots__ = ()


class Unreadable(str):
    """What stands for a recorded value that is there but cannot be read, and why."""

    __slots__ = ()


class Encrypted(Unreadable):
    """What stands for a recorded value that is encrypted, where it cannot be decrypted."""

    __slots__ = ()


class Sealed(str):
    """A recorded text that the codec here could not decrypt; it is written back as it is."""

    __slots__ = ()


class Redacted:
    """What stands for a value that is never recorded: equal to one with the same ``digest``, a keyed hash.

    It is no string and no number, so that it is not taken for the value by accident.
    """

    __slots__ = ("digest",)

    def __init__(self, digest: str) -> None:
        self.digest = digest

    def __repr__(self) -> str:
        return f"<redacted {self.digest[:8]}>" if self.digest else "<redacted>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Redacted) and bool(self.digest) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


Hide = Callable[[Any, str], dict[str, str]]
"""What stands for plain JSON data at a path."""


def redacted(digest: str) -> dict[str, str]:
    """What stands in a record for a value with this keyed hash; the empty one says nothing of it."""
    return _tagged(REDACTED, digest)


def blank(_: Any, __: str) -> dict[str, str]:
    """A ``Hide`` that says nothing of the value."""
    return redacted("")


def holds_redacted(text: str) -> bool:
    """Whether something was left out of an encoded text (a string that looks so has its quotes escaped)."""
    return _REDACTED_TEXT in text


def encode(value: Any) -> str:
    """The compact JSON text of ``value``, a pydantic secret in it left out; raises ``Unencodable``."""
    return dump(to_json(value, hide=blank))


def decode(text: str) -> Any:
    """The value of an encoded text; raises ``Undecodable``, and nothing else, on text this module did not write."""
    if text.startswith(ENCRYPTED):
        raise Undecodable(_NO_CODEC)
    try:
        return _from_json(json.loads(text), 0)
    except Undecodable:
        raise
    except (Exception, RecursionError) as error:  # a damaged or hostile text breaks any of the decoders
        raise Undecodable(f"it is damaged ({type(error).__name__})") from error


def shown(text: str) -> Any:
    """As ``decode`` for somebody who only looks: ``Unreadable`` stands for what cannot be read."""
    if text.startswith(ENCRYPTED):
        return Encrypted(_SHOWN)
    try:
        return decode(text)
    except Undecodable as problem:
        return Unreadable(f"<cannot be read: {problem}>")


def is_encrypted(text: str | None) -> bool:
    """Whether a recorded text is encrypted, here and now: none is that a codec has decrypted."""
    return text is not None and text.startswith(ENCRYPTED)


def legible(text: str | None) -> str | None:
    """A recorded text that is no encoded value, for somebody who only looks."""
    return _SHOWN if is_encrypted(text) else text


_COMPACT: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def dump(data: Any) -> str:
    """The compact JSON text of data that ``to_json`` made plain."""
    return _COMPACT.encode(data)


def differs(value: Any, recorded: Any, path: str) -> str | None:
    """Where ``recorded``, which came back from a record, is not what ``value`` was (None: nowhere).

    A dataclass or a model comes back as its data, an Enum as its value.
    """
    if isinstance(value, Mapping) and isinstance(recorded, Mapping):
        pairs = [(value[key], recorded.get(key), f"{path}.{key}") for key in value]
    elif type(value) is not type(recorded):
        return path
    elif isinstance(value, list | tuple):
        pairs = [(item, recorded[at], f"{path}[{at}]") for at, item in enumerate(value)]
    else:  # NaN is not itself
        return None if value == recorded or (value != value and recorded != recorded) else path
    return next((found for pair in pairs if (found := differs(*pair)) is not None), None)


def unrecorded(problem: Unencodable) -> dict[str, str]:
    """What stands in a record for a value that has no encoding."""
    return _tagged("unrecorded", problem.kind)


def to_json(value: Any, path: str = "", hide: Hide | None = None) -> Any:
    """``value`` as plain JSON data with tags; raises ``Unencodable``, and nothing else.

    A pydantic secret becomes what ``hide`` makes of its plain value; without ``hide`` it is ``Unencodable``.
    """
    try:
        return _to_json(value, path, 0, hide)
    except Unencodable:
        raise
    except Exception as error:  # somebody's mapping or property, or an integer too long to print
        kind = f"{type(value).__qualname__} that cannot be read ({type(error).__name__})"
        raise Unencodable(path, kind) from error


def _to_json(value: Any, path: str, depth: int, hide: Hide | None) -> Any:
    kind = type(value)
    if kind is str:
        return _text(value, path)
    if value is None or kind is bool:
        return value
    if kind is int:
        return value if -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER else _tagged("int", str(value))
    if kind is float:
        return value if math.isfinite(value) else _tagged("float", repr(value))
    if depth > MAX_DEPTH:
        raise Unencodable(path, f"structure nested deeper than {MAX_DEPTH}")
    return _compound(value, path, depth, hide)


def _compound(value: Any, path: str, depth: int, hide: Hide | None) -> Any:
    if isinstance(value, Mapping):
        return _mapping(value, path, depth, hide)
    if type(value) is list:
        return _items(value, path, depth, hide)
    for kind, name, dump in _SCALARS:
        if isinstance(value, kind):
            return _tagged(name, dump(value))
    return _container(value, path, depth, hide)


def _container(value: Any, path: str, depth: int, hide: Hide | None) -> Any:
    if _is_secret(value):
        if hide is None:
            raise SecretFound(path, type(value).__qualname__)
        return hide(_to_json(value.get_secret_value(), path, depth + 1, hide), path)
    if isinstance(value, Redacted):
        return _tagged(REDACTED, value.digest)
    if isinstance(value, Enum):
        return _to_json(value._value_, path, depth + 1, hide)
    if isinstance(value, tuple):
        return _tagged("tuple", _items(list(tuple.__iter__(value)), path, depth, hide))
    if isinstance(value, set | frozenset):
        name = "set" if isinstance(value, set) else "frozenset"
        # Sorted: the same set must have the same fingerprint in every process.
        held = list(set.__iter__(value) if isinstance(value, set) else frozenset.__iter__(value))
        items = [_hashable(item, path) for item in _items(held, path, depth, hide)]
        return _tagged(name, sorted(items, key=_sort_key))
    if _is_model(value):
        return _to_json(dict(_fields_of_model(value)), path, depth + 1, hide)
    names = _names_of_fields(type(value))
    if names is not None:
        return _to_json({name: getattr(value, name) for name in names}, path, depth + 1, hide)
    return _rare(value, path, depth, hide)


def _names_of_fields(kind: type) -> list[str] | None:
    """The fields of a class that declares its data, None for any other."""
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    of_attrs = getattr(kind, "__attrs_attrs__", None)
    return [field.name for field in of_attrs] if isinstance(of_attrs, tuple) else None


def _rare(value: Any, path: str, depth: int, hide: Hide | None) -> Any:
    if isinstance(value, deque):
        return _tagged("deque", _items(list(deque.__iter__(value)), path, depth, hide))
    if type(value) is SimpleNamespace:
        return _to_json(vars(value), path, depth + 1, hide)
    for kind, name, dump in _RARE:
        if isinstance(value, kind):
            return _tagged(name, _text(dump(value), path))
    return _subclass_of_plain(value, path, depth, hide)


def _is_model(value: Any) -> bool:
    # Where pydantic was never imported nothing is a model of it; importing it here would cost 0.1 s.
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(value, pydantic.BaseModel)


def _fields_of_model(value: Any) -> Any:
    return sys.modules["pydantic"].BaseModel.__iter__(value)


def _is_secret(value: Any) -> bool:
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(value, pydantic.SecretStr | pydantic.SecretBytes | pydantic.Secret)


def _subclass_of_plain(value: Any, path: str, depth: int, hide: Hide | None) -> Any:
    for kind, read in _PLAIN:
        if isinstance(value, kind):
            return _to_json(read(value), path, depth + 1, hide)
    raise Unencodable(path, type(value).__qualname__)


def _mapping(value: Mapping[Any, Any], path: str, depth: int, hide: Hide | None) -> Any:
    if type(value) is not dict:
        value = _plain_dict(value)
    if all(type(key) is str for key in value) and TAG not in value:
        return {
            _text(key, path): _to_json(item, f"{path}.{key}" if path else key, depth + 1, hide)
            for key, item in value.items()
        }
    pairs = [
        [_hashable(_to_json(key, path, depth + 1, hide), path), _to_json(item, f"{path}[{key!r}]", depth + 1, hide)]
        for key, item in value.items()
    ]
    return _tagged("dict", sorted(pairs, key=_sort_key))


def _plain_dict(value: Mapping[Any, Any]) -> dict[Any, Any]:
    if isinstance(value, OrderedDict):
        return dict(OrderedDict.items(value))
    return dict(dict.items(value) if isinstance(value, dict) else value.items())


def _items(value: list[Any] | tuple[Any, ...], path: str, depth: int, hide: Hide | None) -> list[Any]:
    return [_to_json(item, f"{path}[{index}]", depth + 1, hide) for index, item in enumerate(value)]


def _hashable(data: Any, path: str) -> Any:
    """``data`` if it comes back as something a set or a mapping can hold (a frozen dataclass comes back as a dict)."""
    tag = data.get(TAG) if isinstance(data, dict) else None
    if tag == "tuple":
        for item in data["value"]:
            _hashable(item, path)
    elif isinstance(data, dict) and tag in (None, "dict"):
        raise Unencodable(path, "set or mapping of records")
    return data


def _text(value: str, path: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Unencodable(path, "string with a lone surrogate") from None
    return value


def _tagged(name: str, value: Any) -> dict[str, Any]:
    return {TAG: name, "value": value}


def _sort_key(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _seconds(value: dt.timedelta) -> list[int]:
    return [value.days, value.seconds, value.microseconds]


# Of a subclass its own data, whatever its methods say: what is shown of it must be what runs.
_PLAIN: Final[tuple[tuple[type, Callable[[Any], Any]], ...]] = (
    (str, str.__str__), (int, int.__int__), (float, float.__float__), (list, lambda value: list(list.__iter__(value))),
)  # fmt: skip

# datetime before date: it is a subclass.
_SCALARS: Final[tuple[tuple[type, str, Callable[[Any], Any]], ...]] = (
    (dt.datetime, "datetime", dt.datetime.isoformat),
    (dt.date, "date", dt.date.isoformat),
    (dt.time, "time", dt.time.isoformat),
    (dt.timedelta, "timedelta", _seconds),
    (Decimal, "decimal", Decimal.__str__),
    (uuid.UUID, "uuid", uuid.UUID.__str__),
    (bytes, "bytes", lambda value: base64.b64encode(value).decode()),
)

# The interfaces before the addresses, and a path of this system before a pure one: each is a subclass of it.
_RARE: Final[tuple[tuple[type, str, Callable[[Any], str]], ...]] = (
    (Path, "path", PurePath.__str__),
    (PurePosixPath, "posix_path", PurePath.__str__),
    (PureWindowsPath, "windows_path", PurePath.__str__),
    (bytearray, "bytearray", lambda value: base64.b64encode(value).decode()),
    (Fraction, "fraction", Fraction.__str__),
    (ipaddress.IPv4Interface, "ip_interface", ipaddress.IPv4Interface.__str__),
    (ipaddress.IPv6Interface, "ip_interface", ipaddress.IPv6Interface.__str__),
    (ipaddress.IPv4Address, "ip_address", ipaddress.IPv4Address.__str__),
    (ipaddress.IPv6Address, "ip_address", ipaddress.IPv6Address.__str__),
    (ipaddress.IPv4Network, "ip_network", ipaddress.IPv4Network.__str__),
    (ipaddress.IPv6Network, "ip_network", ipaddress.IPv6Network.__str__),
)

_DECODERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "int": int,
    "float": float,
    "datetime": dt.datetime.fromisoformat,
    "date": dt.date.fromisoformat,
    "time": dt.time.fromisoformat,
    "timedelta": lambda parts: dt.timedelta(*parts),
    "decimal": Decimal,
    "uuid": uuid.UUID,
    "bytes": lambda text: base64.b64decode(text, validate=True),
    "bytearray": lambda text: bytearray(base64.b64decode(text, validate=True)),
    "path": Path,
    "posix_path": PurePosixPath,
    "windows_path": PureWindowsPath,
    "fraction": lambda text: Fraction(*map(int, text.split("/"))),  # of no text with an exponent, which may be huge
    "ip_address": ipaddress.ip_address,
    "ip_interface": ipaddress.ip_interface,
    "ip_network": ipaddress.ip_network,
    REDACTED: lambda digest: Redacted(str(digest)),
    "unrecorded": lambda kind: Unrecorded(f"<{kind}, not recorded>"),
}

_CONTAINERS: Final[Mapping[str, Callable[[list[Any]], Any]]] = {
    "set": set, "frozenset": frozenset, "tuple": tuple, "dict": dict, "deque": deque,
}  # fmt: skip


def _from_json(value: Any, depth: int) -> Any:
    if isinstance(value, list):
        _check_depth(depth)
        return [_from_json(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    _check_depth(depth)
    if TAG not in value:
        return {key: _from_json(item, depth + 1) for key, item in value.items()}
    tag = value[TAG] if isinstance(value[TAG], str) else ""
    if tag in _CONTAINERS and isinstance(value["value"], list):
        return _CONTAINERS[tag](_from_json(value["value"], depth + 1))
    if tag not in _DECODERS:
        raise Undecodable(f"it has a type tag that this version does not know, {value[TAG]!r:.40}")
    return _DECODERS[tag](value["value"])


def _check_depth(depth: int) -> None:
    if depth > _MAX_READ_DEPTH:
        raise Undecodable("it is nested too deeply")
