"""What a person is shown of a call, made from the bytes that were hashed: nothing in it is obeyed, nothing hides.

Controls, escapes, bidirectional and zero-width characters, blanks that are no space, and fillers that look like nothing
are ``\\u{..}``; a backslash is doubled, so that no text can pretend to be one of these. A long value is its head, its
tail, its length and a hash of all of it. What cannot be shown is ``UNINSPECTABLE``, and says why.
"""

from __future__ import annotations

import base64
import hashlib
import json
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sagaspan.codecs import REDACTED, TAG

UNINSPECTABLE: Final = "UNINSPECTABLE"
HEAD: Final = 160
TAIL: Final = 60
ITEMS: Final = 24
"""How many items of a list or fields of a mapping are shown; of more the first and the last half of so many."""
MAX_DEPTH: Final = 12

_HIDDEN: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
# Blanks and fillers of other categories that are drawn as nothing, and marks that change what stands before them.
_BLANK: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_SCALARS: Final = ("int", "float", "decimal", "uuid", "datetime", "date", "time", "timedelta")
_CONTAINERS: Final = ("set", "frozenset", "tuple", "dict")
_SCRIPTS: Final = ("LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "HEBREW", "ARABIC", "CHEROKEE", "COPTIC", "GEORGIAN")


@dataclass(frozen=True, slots=True)
class Rendered:
    """Arguments by name as lines of text, what is ``uninspectable`` of them, and where scripts are ``mixed``."""

    lines: tuple[tuple[str, str], ...]
    uninspectable: tuple[str, ...] = ()
    mixed: tuple[str, ...] = ()


def is_hidden(character: str) -> bool:
    """Whether ``character`` is obeyed, drawn as nothing, or drawn as another one, by a terminal or a browser."""
    if " " <= character <= "~":
        return False
    category = unicodedata.category(character)
    if category in _HIDDEN or character in _BLANK or (category == "Zs" and character != " "):
        return True
    return category in ("Mn", "Me") and (unicodedata.combining(character) == 0)  # variation selectors and their like


def visible(value: object) -> str:
    """``value`` as text in which every such character is shown, not obeyed."""
    return "".join(f"\\u{{{ord(one):x}}}" if is_hidden(one) else one for one in str(value))


def quoted(text: str) -> str:
    """A text in quotes: a backslash or a quote in it is escaped, so that what looks like an escape is one."""
    inner = "".join(f"\\{one}" if one in '\\"' else f"\\u{{{ord(one):x}}}" if is_hidden(one) else one for one in text)
    return f'"{inner}"'


def cut(text: str) -> str:
    """A text in quotes, if it is long by its head and tail, with its length and the hash of all of it."""
    if len(text) <= HEAD + TAIL:
        return quoted(text)
    whole = _hash(text.encode("utf-8", "surrogatepass"))
    return f"{quoted(text[:HEAD])} … {quoted(text[-TAIL:])} ({len(text)} characters, {whole})"


def render(arguments: Mapping[str, Any]) -> Rendered:
    """Arguments, as the plain JSON data that was hashed, by name."""
    found = _Found([], [])
    lines = tuple((quoted(name) if not name.isidentifier() or visible(name) != name else name,
                   _shown(value, name, found, 0)) for name, value in arguments.items())  # fmt: skip
    return Rendered(lines, tuple(found.uninspectable), tuple(found.mixed))


@dataclass(frozen=True, slots=True)
class _Found:
    uninspectable: list[str]
    mixed: list[str]

    def hidden(self, path: str, why: str) -> str:
        self.uninspectable.append(visible(path))
        return f"{UNINSPECTABLE} ({why})"


def _shown(value: Any, path: str, found: _Found, depth: int) -> str:
    if isinstance(value, str):
        if scripts := mixed_scripts(value):
            found.mixed.append(f"{visible(path)} mixes {' and '.join(scripts)}")
        return cut(value)
    if value is None or isinstance(value, bool | int | float):
        text = json.dumps(value)
        return text if len(text) <= HEAD + TAIL else f"{text[:HEAD]} … {text[-TAIL:]} ({len(text)} digits)"
    if depth > MAX_DEPTH:
        return found.hidden(path, f"nested more than {MAX_DEPTH} deep, {_hash(_bytes(value))}")
    if isinstance(value, list):
        return f"[{', '.join(_items(value, path, found, depth))}]"
    if isinstance(value, dict):
        return _tagged(value, path, found, depth) if TAG in value else _mapping(value, path, found, depth)
    return found.hidden(path, f"a {type(value).__name__}")


def _tagged(value: Mapping[str, Any], path: str, found: _Found, depth: int) -> str:
    kind, inner = value[TAG], value.get("value")
    if kind == "bytes" and isinstance(inner, str):
        return _of_bytes(inner, path, found)
    if kind in ("int", "float") and isinstance(inner, str) and len(inner) <= HEAD:
        return visible(inner)
    if kind in _SCALARS:
        return f"{kind}({_shown(inner, path, found, depth + 1)})"
    if kind in _CONTAINERS and isinstance(inner, list):
        return f"{kind}({', '.join(_items(inner, path, found, depth))})"
    if kind == REDACTED:
        return f"<redacted {visible(inner)[:8]}>"
    if kind == "unrecorded":
        return found.hidden(path, f"a {cut(str(inner))}, which has no encoding")
    return found.hidden(path, f"an unknown type, {_hash(_bytes(value))}")


def _of_bytes(inner: str, path: str, found: _Found) -> str:
    try:
        data = base64.b64decode(inner, validate=True)
    except ValueError:
        return found.hidden(path, "damaged bytes")
    try:
        return f"bytes({cut(data.decode())})"
    except UnicodeDecodeError:
        return found.hidden(path, f"{len(data)} bytes that are no text, {_hash(data)}")


def _mapping(value: Mapping[str, Any], path: str, found: _Found, depth: int) -> str:
    pairs = list(value.items())
    shown = [f"{cut(name)}: {_shown(item, f'{path}.{name}', found, depth + 1)}" for name, item in _ends(pairs)]
    return f"{{{', '.join(_with_gap(shown, pairs))}}}"


def _items(value: list[Any], path: str, found: _Found, depth: int) -> Iterator[str]:
    shown = [_shown(item, f"{path}[]", found, depth + 1) for item in _ends(value)]
    return iter(_with_gap(shown, value))


def _ends(items: list[Any]) -> list[Any]:
    return items if len(items) <= ITEMS else [*items[: ITEMS // 2], *items[-ITEMS // 2 :]]


def _with_gap(shown: list[str], items: list[Any]) -> list[str]:
    if len(items) <= ITEMS:
        return shown
    gap = f"… ({len(items)} items, {_hash(_bytes(items))}) …"
    return [*shown[: ITEMS // 2], gap, *shown[ITEMS // 2 :]]


def mixed_scripts(text: str) -> tuple[str, ...]:
    """The scripts of a word in ``text`` that has letters of more than one: ``pаypal`` with a Cyrillic а."""
    for word in text[:100_000].split() if not text.isascii() else ():
        scripts = sorted({script for one in word if (script := _script(one)) is not None})
        if len(scripts) > 1:
            return tuple(script.title() for script in scripts)
    return ()


def _script(character: str) -> str | None:
    if not character.isalpha():
        return None
    name = unicodedata.name(character, "")
    return next((script for script in _SCRIPTS if name.startswith(script)), None)


def _bytes(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _hash(data: bytes) -> str:
    return f"sha256 {hashlib.sha256(data).hexdigest()[:16]}"
