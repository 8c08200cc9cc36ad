"""What a person is shown of a call, made from the bytes that were hashed: nothing in it is obeyed, nothing hides.

Every argument is there. A long value is its head, its tail, its length and a hash of all of it, and is named as such
(``Rendered.cut``); ``render(whole=True)`` shows all that was hashed. What cannot be shown is ``UNINSPECTABLE``, and
says why. What the characters of a text become, and how a line is folded: ``_characters``.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sagaspan._characters import WIDTH as WIDTH
from sagaspan._characters import fold, quoted, visible
from sagaspan._characters import folded as folded
from sagaspan._scripts import mixed_scripts, other_scripts, pretenders
from sagaspan.codecs import REDACTED, TAG

UNINSPECTABLE: Final = "UNINSPECTABLE"
HEAD: Final = 160
TAIL: Final = 60
ITEMS: Final = 24
"""How many items of a list or fields of a mapping are shown; of more the first and the last half of so many."""
ARGUMENTS: Final = 100
VALUE: Final = 2000
"""How long one argument is shown at most: a value that scrolls the others away would hide them."""
MAX_DEPTH: Final = 12
_NAMED: Final = 6
_WIDEST_NAME: Final = 24

_SCALARS: Final = (
    "int", "float", "decimal", "uuid", "datetime", "date", "time", "timedelta", "fraction",
    "path", "posix_path", "windows_path", "ip_address", "ip_interface", "ip_network",
)  # fmt: skip
_CONTAINERS: Final = ("set", "frozenset", "tuple", "dict", "deque")


@dataclass(frozen=True, slots=True)
class Rendered:
    """Arguments by name as lines of text, and where in them something is to be said of what is shown.

    ``uninspectable`` cannot be shown, ``redacted`` is not, and of ``cut`` there is more than is shown. ``mixed`` are
    sentences about letters that may not be what they look like; ``scripts`` where others than Latin are used.
    """

    lines: tuple[tuple[str, str], ...]
    uninspectable: tuple[str, ...] = ()
    mixed: tuple[str, ...] = ()
    redacted: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The lines as a block, folded."""
        width = min(max((len(name) for name, _ in self.lines), default=0), _WIDEST_NAME)
        return "\n".join(row for name, value in self.lines for row in fold(f"  {name:<{width}}  {value}"))

    @property
    def line(self) -> str:
        """All of it in one line."""
        return ", ".join(f"{name} {value}" for name, value in self.lines)


_ENCRYPTED: Final = Rendered(
    (("arguments", f"{UNINSPECTABLE} (encrypted; use the guard that has the codec: --app)"),), ("arguments",)
)
_DAMAGED: Final = Rendered((("arguments", f"{UNINSPECTABLE} (its record is damaged)"),), ("arguments",))


def cut(text: str) -> str:
    """A text in quotes, if it is long by its head and tail, with its length and the hash of all of it."""
    if len(text) <= HEAD + TAIL:
        return quoted(text)
    whole = _hash(text.encode("utf-8", "surrogatepass"))
    return f"{quoted(text[:HEAD])} … {quoted(text[-TAIL:])} ({len(text)} characters, {whole})"


def few(paths: tuple[str, ...]) -> str:
    """The first of ``paths``, and how many more there are."""
    more = len(paths) - _NAMED
    return ", ".join(paths[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def render(arguments: Mapping[str, Any], *, whole: bool = False) -> Rendered:
    """Arguments, as the plain JSON data that was hashed, by name; ``whole``: nothing of them is left out."""
    found = _Found(whole=whole)
    lines = [(_name(name, found), _argument(value, _under("", name), found)) for name, value in arguments.items()]
    if len(lines) > ARGUMENTS and not whole:
        found.cut.append("the arguments")
        gap = f"({len(lines)} arguments, {_hash(_bytes(dict(arguments)))})"
        lines = [*lines[: ARGUMENTS // 2], ("…", gap), *lines[-ARGUMENTS // 2 :]]
    return Rendered(tuple(lines), *(tuple(dict.fromkeys(one)) for one in found.all()))


def render_subject(subject: str, *, whole: bool = False) -> Rendered:
    """The arguments in what a request asks about; an empty one is encrypted."""
    if not subject:
        return _ENCRYPTED
    try:
        return render(json.loads(subject)["arguments"], whole=whole)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return _DAMAGED


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What is met on the way, by path."""

    whole: bool
    uninspectable: list[str] = field(default_factory=list)
    mixed: list[str] = field(default_factory=list)
    redacted: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)

    def all(self) -> tuple[list[str], ...]:
        return (self.uninspectable, self.mixed, self.redacted, self.cut, self.scripts)

    def hidden(self, path: str, why: str) -> str:
        self.uninspectable.append(path)
        return f"{UNINSPECTABLE} ({why})"

    def letters(self, text: str, path: str) -> None:
        """Say what letters ``text`` has, if they are not what most people expect."""
        if text.isascii():
            return
        if scripts := mixed_scripts(text):
            self.mixed.append(f"{path} mixes {' and '.join(scripts)}")
        if names := pretenders(text):
            self.mixed.append(f"{path} has {few(names)}")
        if scripts := other_scripts(text):
            self.scripts.append(f"{path} {', '.join(scripts[:_NAMED])}")


def _name(name: str, found: _Found) -> str:
    found.letters(name, f"the name {cut(name)}")
    plain = name.isidentifier() and visible(name) == name and len(name) <= HEAD
    return name if plain else quoted(name) if found.whole else cut(name)


def _argument(value: Any, path: str, found: _Found) -> str:
    shown = _shown(value, path, found, 0)
    if found.whole or len(shown) <= VALUE:
        return shown
    found.cut.append(path)
    head, tail = shown[: VALUE * 2 // 3], shown[-VALUE // 3 :]
    return f"{head} … {tail} ({len(shown)} characters if shown whole, {_hash(_bytes(value))})"


def _shown(value: Any, path: str, found: _Found, depth: int) -> str:
    if isinstance(value, str):
        return _text(value, path, found)
    if value is None or isinstance(value, bool | int | float):
        return _number(json.dumps(value), path, found)
    if depth > MAX_DEPTH and not found.whole:
        return found.hidden(path, f"nested more than {MAX_DEPTH} deep, {_hash(_bytes(value))}")
    if isinstance(value, list):
        return f"[{_items(value, path, found, depth)}]"
    if isinstance(value, dict):
        return _tagged(value, path, found, depth) if TAG in value else _mapping(value, path, found, depth)
    return found.hidden(path, f"a {type(value).__name__}")


def _text(text: str, path: str, found: _Found) -> str:
    found.letters(text, path)
    if found.whole:
        return quoted(text)
    if len(text) > HEAD + TAIL:
        found.cut.append(path)
    return cut(text)


def _number(text: str, path: str, found: _Found) -> str:
    if len(text) <= HEAD + TAIL or found.whole:
        return visible(text)
    found.cut.append(path)
    return f"{visible(text[:HEAD])} … {visible(text[-TAIL:])} ({len(text)} digits)"


def _tagged(value: Mapping[str, Any], path: str, found: _Found, depth: int) -> str:
    kind, inner = value[TAG], value.get("value")
    if kind in ("bytes", "bytearray") and isinstance(inner, str):
        return _of_bytes(kind, inner, path, found)
    if kind in ("int", "float") and isinstance(inner, str):
        return _number(inner, path, found)
    if kind in _SCALARS:
        return f"{kind}({_shown(inner, path, found, depth + 1)})"
    if kind in _CONTAINERS and isinstance(inner, list):
        return f"{kind}({_items(inner, path, found, depth)})"
    if kind == REDACTED:
        found.redacted.append(path)
        return f"<redacted {visible(inner)[:8]}>"
    if kind == "unrecorded":
        return found.hidden(path, f"a {cut(str(inner))}, which has no encoding")
    if found.whole:
        return found.hidden(path, f"an unknown type: {_mapping(value, path, found, depth)}")
    return found.hidden(path, f"an unknown type, {_hash(_bytes(value))}")


def _of_bytes(kind: str, inner: str, path: str, found: _Found) -> str:
    try:
        data = base64.b64decode(inner, validate=True)
    except ValueError:
        return found.hidden(path, f"damaged bytes: {quoted(inner)}" if found.whole else "damaged bytes")
    try:
        return f"{kind}({_text(data.decode(), path, found)})"
    except UnicodeDecodeError:
        content = f": {data.hex()}" if found.whole else f", {_hash(data)}"
        return found.hidden(path, f"{len(data)} bytes that are no text{content}")


def _mapping(value: Mapping[str, Any], path: str, found: _Found, depth: int) -> str:
    shown = []
    for name, item in value.items():
        under = _under(path, name)
        found.letters(name, f"a name in {path}")
        shown.append(f"{_key(name, under, found)}: {_shown(item, under, found, depth + 1)}")
    return f"{{{_with_gap(shown, value, path, found)}}}"


def _key(name: str, path: str, found: _Found) -> str:
    if len(name) > HEAD + TAIL and not found.whole:
        found.cut.append(path)
        return cut(name)
    return quoted(name)


def _items(value: list[Any], path: str, found: _Found, depth: int) -> str:
    return _with_gap([_shown(item, f"{path}[]", found, depth + 1) for item in value], value, path, found)


def _with_gap(shown: list[str], value: Any, path: str, found: _Found) -> str:
    if len(shown) > ITEMS and not found.whole:
        found.cut.append(path)
        gap = f"… ({len(shown)} items, {_hash(_bytes(value))}) …"
        shown = [*shown[: ITEMS // 2], gap, *shown[-ITEMS // 2 :]]
    return ", ".join(shown)


def _under(path: str, name: str) -> str:
    """The path of a field: one that could be taken for something else stands in quotes."""
    plain = name.isidentifier() and visible(name) == name and len(name) <= _WIDEST_NAME * 2
    return f"{path}.{name}".lstrip(".") if plain else f"{path}[{cut(name)}]"


def _bytes(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _hash(data: bytes) -> str:
    return f"sha256 {hashlib.sha256(data).hexdigest()[:16]}"
