"""Letters that are not what they look like: scripts mixed in a word, letters that stand for others, foreign digits.

By the names and decompositions of Unicode that Python brings along, at the level that Unicode calls highly restrictive:
Latin with Chinese, Japanese or Korean is no mixture. A word that is wholly of another script can still look like a
Latin one (``сосо``), so those scripts are named too.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Final

from sagaspan._characters import script_of

_WITH_LATIN: Final = frozenset({"LATIN", "CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "BOPOMOFO", "HANGUL"})
_COMMON: Final = frozenset({"MODIFIER", "MICRO", "MASCULINE", "FEMININE", "IDEOGRAPHIC", "DOUBLE-STRUCK"})
_ALIKE: Final = frozenset({"<font>", "<wide>", "<narrow>", "<compat>"})
_DIGITS: Final = "ASCII"
# Latin letters of phonetics and other notations: no language is written in them, and many look like a to z.
_NOTATION: Final = ((0x250, 0x2AF), (0x1D00, 0x1DBF), (0x2C60, 0x2C7F), (0xA720, 0xA7FF), (0xAB30, 0xAB6F))


def mixed_scripts(text: str) -> tuple[str, ...]:
    """The scripts of the first word of ``text`` that has letters, or digits, of more than one."""
    # Most texts are in one script, and long ones are not looked through word by word for that.
    one_script = text.isascii() or (len({_script(one) for one in set(text)} - {None}) < 2 and len(_of_digits(text)) < 2)
    for word in () if one_script else text.split():
        letters = {script for one in set(word) if (script := _script(one)) is not None}
        for scripts in (letters, _of_digits(word)):
            if len(scripts) > 1 and not scripts <= _WITH_LATIN:
                return tuple(sorted(map(_title, scripts)))
    return ()


def other_scripts(text: str) -> tuple[str, ...]:
    """The scripts other than Latin that ``text`` has letters or digits of."""
    if text.isascii():
        return ()
    found = {_script(one) for one in set(text)} | _of_digits(text)
    return tuple(sorted(_title(script) for script in found if script not in (None, "LATIN", _DIGITS)))


def pretenders(text: str) -> tuple[str, ...]:
    """The letters and digits of ``text`` that stand for another one, or are no language's, each with its name."""
    found: AbstractSet[str] = set() if text.isascii() else set(text)
    return tuple(unicodedata.name(one).lower() for one in sorted(found) if _pretends(one))


@lru_cache(maxsize=4096)
def _pretends(character: str) -> bool:
    if character.isascii() or not character.isalnum():
        return False
    if any(first <= ord(character) <= last for first, last in _NOTATION):
        return True
    kind, _, rest = unicodedata.decomposition(character).partition(" ")
    plain = unicodedata.normalize("NFKC", character)
    return plain.isascii() and plain.isalnum() and (kind in _ALIKE or not rest)


@lru_cache(maxsize=4096)
def _script(character: str) -> str | None:
    if not character.isalpha() or script_of(character) in _COMMON:
        return None
    plain = unicodedata.normalize("NFKC", character)
    return script_of(plain if len(plain) == 1 else character)


def _of_digits(text: str) -> set[str]:
    found = {one for one in set(text) if one.isdecimal()}
    return {_DIGITS if unicodedata.normalize("NFKC", one).isascii() else script_of(one) for one in found}


def _title(script: str) -> str:
    return script if script in ("CJK", _DIGITS) else script.title()
