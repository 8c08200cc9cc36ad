"""Which fields are never recorded: paths into arguments and results, and what is put in their place.

``card``            the argument ``card``
``customer.ssn``    a field of an argument; through lists and tuples too, and ``*`` is any field
``result``          what the tool returns
``result.token``    a field of it
``**.password``     a field of that name anywhere, in arguments and results
"""

from __future__ import annotations

import base64
import contextlib
import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sagaspan.codecs import REDACTED, TAG, Hide, Unencodable, redacted, to_json
from sagaspan.exceptions import ConfigurationError

RESULT: Final = "result"
ANYWHERE: Final = "**"
ANY_FIELD: Final = "*"

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Redaction:
    """The redacted ``paths`` of one tool."""

    paths: tuple[Path, ...]

    @property
    def anywhere(self) -> frozenset[str]:
        """The names that are redacted wherever they are."""
        return frozenset(path[1] for path in self.paths if path[0] == ANYWHERE)

    @property
    def whole(self) -> frozenset[str]:
        """The arguments, and perhaps ``result``, of which nothing is recorded."""
        return frozenset(path[0] for path in self.paths if len(path) == 1) | self.anywhere

    @property
    def partly(self) -> frozenset[str]:
        """The arguments, and perhaps ``result``, of which some fields are not recorded."""
        return frozenset(path[0] for path in self.paths if len(path) > 1 and path[0] != ANYWHERE)

    def beside(self, other: Redaction | None) -> Redaction:
        """What either of them redacts."""
        return Redaction(tuple(dict.fromkeys((*(other.paths if other else ()), *self.paths))))

    def secrets_of(self, value: Any) -> tuple[str, ...]:
        """The texts of what is redacted of a result."""
        found: list[str] = []

        def hide(data: Any, _: str) -> dict[str, str]:
            found.extend(leaves(data))
            return redacted("")

        with contextlib.suppress(Unencodable):
            self.result(to_json(value, hide=hide), hide)
        return tuple(found)

    def arguments(self, plain: Mapping[str, Any], hide: Hide) -> dict[str, Any]:
        """Arguments as plain JSON data, with ``hide`` in the place of what is redacted."""
        return {name: self._below(name, data, hide) for name, data in plain.items()}

    def result(self, plain: Any, hide: Hide) -> Any:
        """A result as plain JSON data, with ``hide`` in the place of what is redacted."""
        return self._below(RESULT, plain, hide, itself=(RESULT,) in self.paths)

    def _below(self, root: str, data: Any, hide: Hide, *, itself: bool | None = None) -> Any:
        if itself or (itself is None and root in self.whole):
            return _hidden(data, root, hide)
        for path in self.paths:
            if path[0] == root:
                data = _replaced(data, path[1:], root, hide)
        return _replaced_anywhere(data, self.anywhere, root, hide) if self.anywhere else data


def redaction_of(paths: Sequence[str], parameters: Sequence[str], *, where: str) -> Redaction | None:
    """The redaction of a tool with ``parameters``; raises ``ConfigurationError`` for a path that leads nowhere."""
    if not paths:
        return None
    split = tuple(dict.fromkeys(_split(path, where) for path in paths))
    for path in split:
        if path[0] not in (*parameters, RESULT, ANYWHERE):
            known = [*parameters, RESULT]
            near = difflib.get_close_matches(path[0], known, n=3)
            hint = f"did you mean {', '.join(near)}?" if near else f"it has {', '.join(known)}"
            raise ConfigurationError(
                f"{where}: redact names {'.'.join(path)!r}, but the tool has no argument {path[0]!r}; {hint} "
                f"(result.{path[0]} is a field of its result)"
            )
    return Redaction(split)


def _split(path: str, where: str) -> Path:
    parts = tuple(path.split("."))
    wrong = not all(parts) or parts[0] == ANY_FIELD or (parts[0] == ANYWHERE and len(parts) != 2)
    if wrong or ANYWHERE in parts[1:]:
        raise ConfigurationError(
            f"{where}: redact names {path!r}, which is no path; write for example 'card', 'customer.ssn', "
            "'items.*.pin', 'result.token' or '**.password'"
        )
    return parts


def _hidden(data: Any, place: str, hide: Hide) -> Any:
    """Nothing is there to hide of what is absent, or hidden already."""
    if data is None or (isinstance(data, dict) and data.get(TAG) == REDACTED):
        return data
    return hide(data, place)


def _replaced(data: Any, rest: Path, place: str, hide: Hide) -> Any:
    """``data`` without what ``rest`` leads to; lists and tuples are walked through."""
    if not rest:
        return _hidden(data, place, hide)
    if isinstance(data, list):
        return [_replaced(item, rest, place, hide) for item in data]
    if not isinstance(data, dict):
        return data
    first, more = rest[0], rest[1:]

    def below(name: Any, item: Any) -> Any:
        wanted = first in (ANY_FIELD, name)
        return _replaced(item, more, f"{place}.{first}", hide) if wanted else item

    return _with_fields(data, below, lambda item: _replaced(item, rest, place, hide))


def _replaced_anywhere(data: Any, names: frozenset[str], place: str, hide: Hide) -> Any:
    if isinstance(data, list):
        return [_replaced_anywhere(item, names, place, hide) for item in data]
    if not isinstance(data, dict):
        return data

    def below(name: Any, item: Any) -> Any:
        if name in names:
            return _hidden(item, f"{ANYWHERE}.{name}", hide)
        return _replaced_anywhere(item, names, place, hide)

    return _with_fields(data, below, lambda item: _replaced_anywhere(item, names, place, hide))


def _with_fields(data: dict[str, Any], below: Any, inside: Any) -> Any:
    """A mapping with ``below(name, item)`` for each field; of a tagged value its items, if it has any."""
    tag = data.get(TAG)
    if tag is None:
        return {name: below(name, item) for name, item in data.items()}
    if tag == "dict":
        pairs = [[key, below(key if isinstance(key, str) else None, item)] for key, item in data["value"]]
        return {**data, "value": pairs}
    return {**data, "value": inside(data["value"])} if isinstance(data["value"], list) else data


def without(data: Any, finds: Callable[[str], bool]) -> Any:
    """Return plain JSON ``data`` with a stand-in for each value in whose text ``finds`` something redacted.

    Nobody takes the rest of a text for the whole: the value is gone, so that no call is answered with it.
    """
    if isinstance(data, list):
        return [without(item, finds) for item in data]
    if not isinstance(data, dict):
        return redacted("") if any(map(finds, leaves(data))) else data
    tag = data.get(TAG)
    if tag is None:
        if any(map(finds, data)):
            return redacted("")
        return {name: without(item, finds) for name, item in data.items()}
    if tag in ("dict", "tuple", "set", "frozenset"):
        items = without(data["value"], finds)
        hides_key = tag == "dict" and any(
            key != kept for (key, _), (kept, _) in zip(data["value"], items, strict=True)
        )  # fmt: skip
        return redacted("") if hides_key else {**data, "value": items}
    texts = [*leaves(data)]
    if tag == "bytes":
        texts.append(base64.b64decode(data["value"]).decode("utf-8", "replace"))
    return redacted("") if any(map(finds, texts)) else data


def leaves(data: Any) -> Iterator[str]:
    """The texts of plain JSON data: strings, numbers, and what tagged values say."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, bool) or data is None:
        return
    elif isinstance(data, int | float):
        yield repr(data)
    elif isinstance(data, list):
        for item in data:
            yield from leaves(item)
    elif isinstance(data, dict) and data.get(TAG) != REDACTED:
        for name, item in data.items():
            if name != TAG:
                yield from leaves(item)
